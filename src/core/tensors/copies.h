// SPDX-License-Identifier: Apache-2.0
// Copies of inputs that have not the layout which the kernel takes, where the schema says that they
// are copied.
#pragma once

#include "call/call.h"
#include "call/scratch.h"

namespace anyop {

// Whether a tensor that is not dense has the layout of its parameter.
bool FitsLayout(const Param& p, const AnyopTensor& t);

// What to say of one that has not.
std::string LayoutProblem(const Param& p, const AnyopTensor& t);

// The elements row by row into memory that does not overlap. Sizes are above 0, elements have 1, 2,
// 4, 8 or 16 bytes.
void CopyDense(const AnyopTensor& from, char* to);

// The copies of one call.
class Copies {
 public:
  Copies(Frame* frame, Scratch* scratch) : frame_(frame), scratch_(scratch) {}

  // Makes the tensors of these parameters (a bit each) dense, and says once of each that it is
  // copied. Behind what the stream holds, where first, one of the call's, is of a framework's
  // device; without the caller's lock where that is so or the copies are long. Where the call is
  // only explained, nothing is copied.
  int32_t Make(uint64_t params, const AnyopTensor& first, bool is_long);

 private:
  // In memory that is still to be filled.
  int32_t Plan(uint64_t params);
  // Fills it. Throws nothing.
  void Run() const;
  struct Copy {
    const Copy* next;
    AnyopTensor from;
    char* to;
  };

  int32_t PlanOne(uint32_t i, AnyopTensor* t);
  void Say(uint32_t i, const AnyopTensor& t) const;

  Frame* frame_;
  Scratch* scratch_;
  const Copy* first_ = nullptr;
};

}  // namespace anyop
