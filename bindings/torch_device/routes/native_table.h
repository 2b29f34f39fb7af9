// SPDX-License-Identifier: Apache-2.0
// Which operators of anyop's can stand for which overloads, and how the arguments correspond.
#pragma once

#include <ATen/core/ivalue.h>
#include <anyop/anyop.h>
#include <c10/core/DeviceType.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace anyop::torch_device {

// What an argument of the overload is.
struct Slot {
  enum Form : uint8_t { kAny, kParameter, kTransposed, kEnds, kSizes, kDtype, kValue, kResult };
  Form form = kAny;
  int parameter = -1;                      // of the operator, or the result
  std::vector<std::string> letters;        // of its sizes: equal ones are equal
  std::vector<std::pair<int, int>> sizes;  // parameter, dimension
  c10::IValue value;
};

// One text of an operator's schema.
struct NativeText {
  const AnyopOperator* op = nullptr;
  const AnyopOp* table = nullptr;
  std::string overload;
  std::vector<Slot> positional;
  std::map<std::string, Slot> named;
  std::vector<Slot> given;              // parameters that are values whatever the overload gets
  c10::DeviceType device = c10::kMeta;  // of the tensors, where one is said
};

// It, bound to one overload: a slot for each argument.
struct NativeKernel {
  const NativeText* text;
  std::vector<Slot> slots;
};

// What Python says of one text: (overload, operator, device or None, what is given, arguments,
// those by name), tuples in tuples. Throws what is wrong with it.
NativeText ReadNative(const c10::IValue& said);

// False where the overload cannot be this text's, nor its form in place or with out=.
bool BindNative(const NativeText& text, const c10::FunctionSchema& schema, NativeKernel* kernel);

}  // namespace anyop::torch_device
