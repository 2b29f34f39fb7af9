// SPDX-License-Identifier: Apache-2.0
// What is said where a dtype is none that the schema allows.
#include "operator/dtype_rule.h"

namespace anyop {

std::string DtypeRules::ExpectedText(const Param& p) const {
  if (p.dtype_rule != kAnyopOneOf) {
    const int dtype = Rule(p);
    return dtype < kAnyopNumDtypes ? DtypeName(dtype)
                                   : "a dtype that the arguments promote to (there is none)";
  }
  std::string text = DtypeSetText(p.dtype_set);
  if (p.dtype_a < 0) return text;
  const std::string same =
      std::string(DtypeName(dtypes_[p.dtype_a])) + " as " + frame_->op->params[p.dtype_a].name;
  return text.empty() ? same : same + " or " + text;
}

}  // namespace anyop
