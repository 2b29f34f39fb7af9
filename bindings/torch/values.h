// SPDX-License-Identifier: Apache-2.0
// One boxed call: torch's values into a frame, results back. What lay on the stack is this call's
// to let go of, unless the glue lends it.
#pragma once

#include <atomic>

#include "../torch_glue/torch_glue.h"
#include "call/call.h"
#include "shim.h"
#include "torch_entry.h"

namespace anyop::torch {

// What every call needs; the glue may be missing, and the shim then does its work.
struct Runtime {
  const Shim* shim;
  AnyopTorchRaise raise;
  AnyopTorchRecorder recorder;
  std::atomic<const AnyopTorchGlue*> glue;
};
extern Runtime runtime;

// One of the ways in which torch calls an operator.
struct Form {
  bool destination;  // results are written into given tensors; else they are made and returned
  bool records;      // at the Autograd keys: somebody may want a gradient
};
inline bool operator==(Form a, Form b) {
  return a.destination == b.destination && a.records == b.records;
}

class Values {
 public:
  Values(const Operator* op, Form form, const Value* stack, uint64_t count, bool lent = false);
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  ~Values();

  // From the stack into the frame. A status, with the text in frame.error.
  int32_t Read();
  // A form that records, after Read: whether nothing is to be recorded and the tensors are what
  // their memory says.
  bool IsPlain() const { return plain_; }
  // The stack's values are someone else's after all.
  void LeaveStack() { owns_stack_ = false; }
  // The kernel has run: versions of what it wrote go up.
  void MarkWritten();
  // Results to the stack, which own them from then on.
  void Return(Value* stack);
  // The same as references to torch's TensorImpl. Only with the glue.
  void ReturnImpls(void** impls);

  Frame frame;

 private:
  const Param& ParamAt(uint64_t i) const { return frame.op->params[i]; }
  int32_t ReadArgument(uint32_t i, const Param& p, Value value);
  int32_t ReadTensor(const Param& p, Value value, AnyopTensor* tensor);
  int32_t ViewByGlue(const Param& p, TensorHandle handle, AnyopTensor* tensor);
  int32_t ViewByShim(const Param& p, TensorHandle handle, AnyopTensor* tensor);
  int32_t ReadElement(const Param& p, Value value, void* to);
  int32_t ReadText(const char* name, StringHandle handle, AnyopString* text);
  int32_t ReadScope();
  int32_t ReadList(const Param& p, Value value);
  int32_t ReadTensors(const Param& p, ListHandle list, int64_t count);
  int32_t SetStream();
  void* InputImpl(uint32_t i) const;  // its c10::TensorImpl
  int32_t Allocate(uint32_t output, AnyopTensor* tensor);
  int32_t AllocateByShim(uint32_t output, AnyopTensor* tensor);
  void LetGo(const Param& p, Value value);
  void LetGoScope();
  void LetGoElements(const Param& p, ListHandle list);

  const Shim& shim_;
  const AnyopTorchGlue* const glue_;
  const Form form_;
  const uint64_t count_;
  const bool has_mask_;     // behind the inputs of the functional form
  const bool takes_scope_;  // the last argument, a str? that is no parameter of the operator
  const bool lent_;         // the stack, by the glue: texts are its own
  bool owns_stack_;
  bool plain_ = true;
  int32_t records_ = 0;  // AnyopTorchFlag
  const AnyopTensor* first_ = nullptr;
  TensorHandle* listed_[kMaxParams];  // by parameter: the tensors of a list; filled when the
                                      // operator has lists
  TensorHandle results_[kMaxParams];  // without the glue
  void* impls_[kMaxParams];           // with it
  const Value* const stack_;
  Value copied_[kMaxParams + 2];  // torch's stack, which results are written to
};

}  // namespace anyop::torch
