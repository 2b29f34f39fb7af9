// SPDX-License-Identifier: Apache-2.0
// ATen's operators as the table of the installed torch says them. Read when a name is first asked
// for, never freed.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "../torch_glue/torch_aten_glue.h"

namespace anyop::aten {

struct Param {
  std::string name;
  std::string type_text;  // "int[2]?"
  AnyopAtenType type = {0, 0, -1};
  int32_t fixed_count = -1;  // int[2]: 2, which one number stands for, too
  bool keyword_only = false;
  bool symbolic = false;  // a SymInt: torch.ops is stricter to those than to int
  bool has_default = false;
  AnyopAtenValue default_value = {};  // points into memory that stays

  bool Is(AnyopAtenTypeFlag flag) const { return type.flags & flag; }
  bool IsTensor() const { return type.kind == kAnyopAtenKindTensor; }
  bool IsList() const { return type.flags & kAnyopAtenIsList; }
};

// An argument that the operator writes though its schema says nothing of it: running_mean of
// batch_norm.
struct HiddenWrite {
  size_t param;
  size_t condition;  // the bool argument under which it is written; the same as param: always
};

struct Op {
  std::string full_name;  // "add.Tensor", "relu"
  std::string name;       // "aten::add"
  std::string overload;   // "Tensor", ""
  std::string schema;
  std::string refusal;     // why it cannot be called from here; empty: it can
  std::string needs_glue;  // why not by the shim; empty: it can
  std::vector<Param> params;
  std::vector<Param> results;        // type.alias: see AnyopAtenType
  std::vector<AnyopAtenType> types;  // of params
  std::vector<HiddenWrite> hidden_writes;
  uint32_t num_positional = 0;
  bool numbers_as_tensors = false;  // torch lets a number stand for a Tensor in this operator
  bool needs_alignment = false;     // its kernel dies of bfloat16 memory not aligned to 32 bytes
  mutable std::atomic<void*> handle{nullptr};  // the glue's
};

// All overloads of one name, in the order in which torch tries them.
struct Name {
  std::string name;  // "add"
  std::vector<const Op*> overloads;
};

// nullptr where there is none, or no table is open: AnyopLastError says which.
const Name* FindName(std::string_view name);

// torch's codes by name: dtypes "float32", layouts "strided", memory formats "channels_last",
// types of devices "cuda". -1: none.
int32_t CodeOf(AnyopAtenKind kind, std::string_view name);
// And back; nullptr: none.
const char* NameOf(AnyopAtenKind kind, int32_t code);

// "cuda:1" as the integer of kAnyopAtenDevice. False: no device.
bool ParseDevice(std::string_view text, int64_t* device);

}  // namespace anyop::aten
