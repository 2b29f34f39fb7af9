// SPDX-License-Identifier: Apache-2.0
// What the schema says of a parameter's dtype in one call.
#pragma once

#include <string>

#include "call/call.h"
#include "tensors/dtype.h"

namespace anyop {

// dtypes: of the call's parameters so far; kAnyopNoDtype where none was given.
class DtypeRules {
 public:
  DtypeRules(Frame* frame, const uint8_t* dtypes) : frame_(frame), dtypes_(dtypes) {}

  bool Fits(const Param& p, int dtype) const {
    return dtype != kAnyopNoDtype &&
           (p.dtype_rule != kAnyopOneOf
                ? dtype == Rule(p)
                : (p.dtype_set >> dtype & 1) || (p.dtype_a >= 0 && dtype == dtypes_[p.dtype_a]));
  }

  // Of a result that is made.
  int Result(const Param& p) const {
    if (p.dtype_rule != kAnyopOneOf) return Rule(p);
    return p.dtype_a >= 0 ? dtypes_[p.dtype_a] : __builtin_ctzll(p.dtype_set | uint64_t{1} << 63);
  }

  // "float16 as x or float32"
  std::string ExpectedText(const Param& p) const;

 private:
  // The dtype of a promotion, an attribute or the first tensor that is given.
  int Rule(const Param& p) const {
    if (p.dtype_rule == kAnyopPromote)
      return Promote(dtypes_[p.dtype_a],
                     p.dtype_b >= 0 ? int{dtypes_[p.dtype_b]} : __builtin_ctzll(p.dtype_set));
    if (p.dtype_rule == kAnyopFirstGiven)
      return dtypes_[dtypes_[p.dtype_a] != kAnyopNoDtype ? p.dtype_a : p.dtype_b];
    const Param& attribute = frame_->op->params[p.dtype_a];
    const auto& value = frame_->Field<AnyopOptionalInt>(attribute);
    if (!attribute.Is(kAnyopOptional) || value.has) return static_cast<int>(value.value);
    return p.dtype_b >= 0 ? dtypes_[p.dtype_b] : int{kAnyopNoDtype};
  }

  Frame* const frame_;
  const uint8_t* const dtypes_;
};

}  // namespace anyop
