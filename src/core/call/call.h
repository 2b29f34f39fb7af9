// SPDX-License-Identifier: Apache-2.0
// One call in flight. A binding fills a Frame with what its caller gave, AnyopRunFrame does
// everything else.
#pragma once

#include <cstring>
#include <string>

#include "call/arena.h"
#include "operator/operator.h"

namespace anyop {

struct Held;
struct Scope;

// Lives on the binding's stack. The binding
//   - writes each given tensor to tensors[p] and sets bit p of given,
//   - writes other arguments into args (SetInt and the like, or SetDefault),
//   - leaves results that the core shall allocate alone, or sets their bit in unwanted when
//   optional.
// Shapes and strides that tensors point to must outlive the call up to hold.
struct Frame {
  explicit Frame(const Operator* op) : op(op), args(arena.Take<char>(op->args_size)) {
    std::memset(args, 0, op->args_size);
    error[0] = 0;
  }

  template <typename T>
  T& Field(const Param& p) {
    return *reinterpret_cast<T*>(args + p.offset);
  }

  const Operator* op;
  Arena arena;
  char* args;
  uint64_t given = 0;     // bit of a parameter
  uint64_t unwanted = 0;  // bit of a parameter: an optional result nobody asked for
  uint64_t deferred = 0;  // bit of a result: made by the kernel of plans, or else before a kernel
  void* stream = nullptr;
  void* binding = nullptr;
  const Scope* scope =
      nullptr;           // the backends of this call; nullptr: the thread's, where it is in one
  Held* held = nullptr;  // what a handle kept of the call before
  std::string* explanation = nullptr;  // set: what would run is written there, and nothing runs
  // Makes the tensor of a result in the caller's framework: device, dtype, ndim and shape are set,
  // data and strides are to be filled (and shape replaced by one that outlives the call, where it
  // would not).
  int32_t (*allocate)(Frame* frame, uint32_t output, AnyopTensor* tensor) = nullptr;
  // Of a result that was made: its c10::TensorImpl, where torch's glue made it. May be null.
  void* (*torch_result)(Frame* frame, uint32_t output) = nullptr;
  // Both, where the caller's tensors are torch's and plain; else neither: the c10::TensorImpl of an
  // input that was given; the one that torch has made for a deferred result, taken from the kernel.
  void* (*torch_input)(Frame* frame, uint32_t param) = nullptr;
  void (*take_result)(Frame* frame, uint32_t output, void* impl) = nullptr;
  // Before code that lets the caller's other threads run, at most once: the memory of the arguments
  // stays in its place until the call ends. May be null.
  void (*hold)(Frame* frame) = nullptr;
  // Around a kernel with much to do: lets go of the caller's lock. May be null.
  void (*before_kernel)(Frame* frame) = nullptr;
  void (*after_kernel)(Frame* frame) = nullptr;
  char error[1024];
  AnyopTensor tensors[kMaxParams];  // by parameter; uninitialised where not given
};

// Notes "op: message" in frame->error and returns status.
__attribute__((format(printf, 3, 4), cold)) int32_t Fail(Frame* frame, int32_t status,
                                                         const char* format, ...);

// What AnyopCall::internal points to.
struct InCall {
  Frame* frame_;
};
inline Frame* FrameOf(const AnyopCall& call) { return static_cast<InCall*>(call.internal)->frame_; }

// What a call becomes whose kernel returned this status, which is not kAnyopOk.
int32_t KernelFailure(Frame* frame, int32_t status);

inline void SetInt(Frame* frame, const Param& p, int64_t value) {
  frame->Field<int64_t>(p) = value;
  if (p.Is(kAnyopOptional)) frame->Field<AnyopOptionalInt>(p).has = 1;
}

inline void SetFloat(Frame* frame, const Param& p, double value) {
  frame->Field<double>(p) = value;
  if (p.Is(kAnyopOptional)) frame->Field<AnyopOptionalFloat>(p).has = 1;
}

// For a parameter that is no tensor and was not given. False when it has no default.
inline bool SetDefault(Frame* frame, const Param& p) {
  if (!p.Is(kAnyopHasDefault)) return p.Is(kAnyopOptional);
  if (p.IsList()) {
    if (p.value.list) std::memcpy(frame->args + p.offset, p.value.list, 16);
  } else if (p.kind == kAnyopStr) {
    if (p.value.s)
      frame->Field<AnyopString>(p) = {p.value.s, static_cast<int64_t>(std::strlen(p.value.s))};
  } else if (p.kind == kAnyopFloat) {
    if (!p.Is(kAnyopOptional) || p.value.f == p.value.f)
      SetFloat(frame, p, p.value.f);                             // NaN: None
  } else if (!p.Is(kAnyopOptional) || p.value.i != INT64_MIN) {  // the smallest int64: None
    SetInt(frame, p, p.value.i);
  }
  return true;
}

}  // namespace anyop

extern "C" {
// Checks, allocates, routes and runs. Returns an AnyopStatus; the text of a failure is
// frame->error.
__attribute__((visibility("default"))) int32_t AnyopRunFrame(anyop::Frame* frame);
}
