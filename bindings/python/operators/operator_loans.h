// SPDX-License-Identifier: Apache-2.0
// The arguments of one call of an operator, as its frame takes them, and its results: tensors as
// AnyopTensors for the time of the call, numbers and texts as values (scalar.cc). All that depends
// on a framework is asked of the first tensor's row.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "call/call.h"
#include "frameworks/loans.h"
#include "python.h"

namespace anyop {

// Raises kind with "op: parameter why" and returns false.
bool Refuse(const Operator& op, const Param& p, PyObject* kind, const std::string& why);

class OperatorLoans : public Loans {
 public:
  // arguments: by parameter, held by the caller; a list becomes the tuple of its elements.
  OperatorLoans(Frame* frame, uint32_t num_outputs, PyObject** arguments)
      : Loans(&frame->arena), arguments_(arguments), num_outputs_(num_outputs) {
    for (uint32_t o = 0; o < num_outputs; ++o) results_[o] = nullptr;
    frame->binding = this;
    frame->allocate = Allocate;
    frame->hold = Hold;
    // While a long kernel runs, other Python threads do.
    frame->before_kernel = [](Frame* of) { Of(of).thread_ = PyEval_SaveThread(); };
    frame->after_kernel = [](Frame* of) { PyEval_RestoreThread(Of(of).thread_); };
  }
  ~OperatorLoans() {
    if (__builtin_expect(made_ != 0, 0)) ReleaseMade();
    for (uint32_t o = 0; o < num_outputs_; ++o) Py_XDECREF(results_[o]);
  }

  // Fills tensor from object. False with an error raised that names p, or where way() is kDispatch.
  bool Take(Frame* frame, const Param& p, PyObject* object, AnyopTensor* tensor);
  // The same for the list or tuple that is argument i; fills its field.
  bool TakeList(Frame* frame, const Param& p, uint32_t i);
  // Writes a value or a list of values (anything but tensors) into its field. False with an error
  // raised. Strings and lists point into objects that the caller holds, or into the frame's arena.
  bool TakeScalar(Frame* frame, const Param& p, PyObject* object);
  // The memory that nothing holds, once more: code of the caller's may have changed it. No such
  // code runs in here.
  bool TakeAgain(Frame* frame);

  // What the tensors taken so far ask for. With Way::kGradient all are taken, and the call must be
  // recorded.
  Way way() const { return way_; }

  // The kernel has run.
  void MarkWritten() {
    for (int i = 0; i < num_written_; ++i) source->framework->mark_written(written_[i]);
    for (PyObject* object : more_written_) source->framework->mark_written(object);
  }

  // The current stream of the first tensor's framework and device. False with an error set.
  bool SetStream(Frame* frame) const {
    return __builtin_expect(!first_tensor_ || first_tensor_->device_type == 1, 1) ||
           AskStream(frame);
  }
  // Gives up the ownership of a result; nullptr when it was not made here.
  PyObject* ReleaseResult(uint32_t output) { return std::exchange(results_[output], nullptr); }
  // What torch has made for deferred results, as objects. False with an error set.
  bool WrapMade() { return __builtin_expect(!made_, 1) || WrapAllMade(); }

 private:
  // AnyopFrame's: a result in the framework of the first tensor; torch's tensors as they are.
  static int32_t Allocate(Frame* frame, uint32_t output, AnyopTensor* tensor);
  static void TakeResult(Frame* frame, uint32_t output, void* impl);
  // What was taken keeps its memory, whatever other threads do to the tensors.
  static void Hold(Frame* frame);
  static OperatorLoans& Of(Frame* frame) { return *static_cast<OperatorLoans*>(frame->binding); }

  const Source* Find(const Operator& op, const Param& p, PyObject* object);
  bool SetFirst(Frame* frame, PyObject* object, const Source* found);
  bool Settle(const Operator& op, const Param& p, Way way);
  void NoteWritten(PyObject* object);
  bool AskStream(Frame* frame) const;
  bool WrapAllMade();
  void ReleaseMade();
  // visit(p, object, tensor) for each tensor that was taken, until it returns false.
  template <typename Visit>
  bool Each(Frame* frame, const Visit& visit) const;
  void HoldImpls(Frame* frame);
  static int32_t Refused(Frame* frame, uint32_t output, const AnyopTensor& tensor);

  PyObject** const arguments_;
  const AnyopTensor* first_tensor_ = nullptr;
  PyThreadState* thread_ = nullptr;
  Way way_ = Way::kPlain;
  int num_written_ = 0;
  PyObject* written_[8];  // the caller holds them
  std::vector<PyObject*> more_written_;
  const uint32_t num_outputs_;
  uint64_t made_ = 0;  // bits of results that are c10::TensorImpls
  PyObject* results_[kMaxParams];
};

}  // namespace anyop
