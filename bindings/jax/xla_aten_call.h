// SPDX-License-Identifier: Apache-2.0
// One call of ATen from XLA: its text, the buffers of its arguments and of its results.
//
// The attribute _aten, written by python/anyop/jax/aten_text.py, has the overload, its arguments in
// the schema's order, an arrow and its results, as "topk t i2 -> t t":
//   t   the next buffer                     r  that of the next result, for an argument like out=
//   n   None                                d  the argument's default
//   i7  an int                     f<bits>  a float, by its bits as an int64; c<bits>,<bits>:
//   complex b0  b1                             s3:cat  text, its bytes counted [   ...  ]  a list
//   g7  a generator with this seed; G: with the next buffer's
// Behind the arrow t is a tensor for the next result, n None, i7 a number that the program knows
// already, _ anything else.
#pragma once

#include <string_view>
#include <vector>

#include "anyop/aten_call.h"
#include "call/arena.h"
#include "xla_ffi.h"

namespace anyop::xla {

// False where the text is no int64.
bool ReadInt(std::string_view text, int64_t* number);

class AtenSite {
 public:
  // stream: of device device_id, where device_type is no CPU.
  AtenSite(const CallFrame& call, std::string_view text, int32_t device_type, int32_t device_id,
           void* stream);

  // A status, with the text in AnyopLastError.
  int32_t Run();

 private:
  // What a call returned, let go of at its end.
  struct Outcome {
    explicit Outcome(int32_t count) : values(static_cast<size_t>(count)) {}
    ~Outcome() { AnyopAtenDrop(values.data(), static_cast<int32_t>(values.size())); }

    std::vector<AnyopAtenValue> values;
  };

  int32_t ReadName();
  int32_t ReadList(std::string_view end, AnyopAtenValue* list);
  int32_t ReadValue(std::string_view token, AnyopAtenValue* value);
  int32_t ReadText(AnyopAtenValue* value);
  int32_t ReadSeed(AnyopAtenValue* value);
  int32_t Take(const Buffers& buffers, int64_t* next, uint32_t flags, AnyopAtenValue* value);
  int32_t Write(AnyopAtenValue* found);
  int32_t WriteList(AnyopAtenValue* found);
  int32_t WriteTensor(AnyopAtenValue* found);
  int32_t Copy(const AnyopAtenValue& to, const AnyopAtenValue& from, bool narrows);
  int32_t Call(const char* name, const AnyopAtenValue* arguments, int32_t count, Outcome* outcome);
  int32_t Fail(int32_t status, const char* why);
  int32_t Broken();
  std::string_view Token();

  const CallFrame& call_;
  std::string_view text_;  // what is not read yet
  const char* name_ = "aten";
  const int32_t device_type_;
  AnyopAtenOptions options_ = {};
  Arena arena_;
  int64_t next_argument_ = 0;
  int64_t next_place_ = 0;   // of results, as arguments
  int64_t next_result_ = 0;  // of results, as results
};

}  // namespace anyop::xla
