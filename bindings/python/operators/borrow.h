// SPDX-License-Identifier: Apache-2.0
// A Python object's memory as an AnyopTensor, for the time of one call.
#pragma once

#include <string>
#include <vector>

#include "call.h"
#include "frameworks/framework.h"
#include "frameworks/paddle.h"
#include "frameworks/torch.h"
#include "python.h"

namespace anyop {

// What a call holds on to: the source of its first tensor, capsules and buffers to let go of,
// results made.
class Borrowed {
 public:
  // arguments: by parameter, held by the caller; a list becomes the tuple of its elements.
  Borrowed(uint32_t num_outputs, PyObject** arguments)
      : arguments_(arguments), num_outputs_(num_outputs) {
    for (uint32_t o = 0; o < num_outputs; ++o) results_[o] = nullptr;
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed();

  // Fills tensor from object. False with an error raised that names p.
  bool Take(Frame* frame, const Param& p, PyObject* object, AnyopTensor* tensor);
  // The same for the list or tuple that is argument i; fills its field.
  bool TakeList(Frame* frame, const Param& p, uint32_t i);
  // Code of the caller's runs now, or has run: objects may change their types, too.
  void NoteCode(Frame* frame) {
    frame->ran_code = true;
    first_type_ = nullptr;
  }
  // The memory that nothing holds, once more: code of the caller's may have changed it. No such
  // code runs in here.
  bool TakeAgain(Frame* frame);
  // AnyopFrame's allocate: a result in the framework of the first tensor.
  static int32_t Allocate(Frame* frame, uint32_t output, AnyopTensor* tensor);
  // AnyopFrame's torch_input and take_result.
  static void* TorchInput(Frame* frame, uint32_t param);
  static void TakeResult(Frame* frame, uint32_t output, void* impl);

  // AnyopFrame's hold: what was taken keeps its memory, whatever other threads do to the tensors.
  static void Hold(Frame* frame);
  // While a long kernel runs, other Python threads do.
  static void ReleaseGil(Frame* frame);
  static void TakeGil(Frame* frame);

  // What the tensors taken so far ask for. Take returns false without an error for Way::kDispatch;
  // with Way::kGradient all are taken, and the call must be recorded.
  Way way() const { return way_; }
  // The module that takes a call whose way is not plain.
  const char* adapter() const { return first_->adapter; }

  // The kernel has run.
  void MarkWritten() {
    for (int i = 0; i < num_written_; ++i) MarkOneWritten(written_[i]);
    for (PyObject* object : more_written_) MarkOneWritten(object);
  }

  // The current stream of the first tensor's framework and device. False with an error set.
  bool SetStream(Frame* frame) const {
    return __builtin_expect(!first_tensor_ || first_tensor_->device_type == 1, 1) ||
           AskStream(frame);
  }
  // Gives up the ownership of a result; nullptr when it was not made here.
  PyObject* ReleaseResult(uint32_t output) {
    PyObject* object = results_[output];
    results_[output] = nullptr;
    return object;
  }
  // What torch has made for deferred results, as objects. False with an error set.
  bool WrapMade() { return __builtin_expect(!made_, 1) || WrapAllMade(); }

 private:
  bool SetFirst(Frame* frame, PyObject* object, const Source* source);
  bool FitsFirst(const Operator& op, const Param& p, PyObject* object, const Source* source);
  bool TakeFrom(Frame* frame, const Source* source, PyObject* object, bool writes,
                AnyopTensor* tensor, std::string* why);
  bool TakeTorch(Frame* frame, const Param& p, const Source* source, PyObject* object, bool writes,
                 AnyopTensor* tensor);
  bool TakePaddle(Frame* frame, const Param& p, const Source* source, PyObject* object, bool writes,
                  AnyopTensor* tensor);
  void NoteWritten(PyObject* object);
  void MarkOneWritten(PyObject* object) {
    first_->origin == Origin::kPaddle ? MarkPaddleWritten(object) : MarkTorchWritten(mode_, object);
  }
  bool TakeDlpack(Frame* frame, const Source* source, PyObject* object, bool writes,
                  AnyopTensor* tensor, std::string* why);
  bool TakeBuffer(Frame* frame, PyObject* object, bool writes, AnyopTensor* tensor,
                  std::string* why);
  bool AskStream(Frame* frame) const;
  bool WrapAllMade();
  // visit(p, object, tensor) for each tensor that was taken, until it returns false.
  template <typename Visit>
  bool Each(Frame* frame, const Visit& visit) const;
  void HoldOne(PyObject* object);
  void HoldTorch(Frame* frame);
  void LetGoLater(void (*let_go)(void*), void* held) {
    if (held) held_.push_back({let_go, held});
  }
  void Keep(PyObject* object);
  int32_t AllocateByGlue(Frame* frame, uint32_t output, AnyopTensor* tensor);
  int32_t AllocateArray(Frame* frame, uint32_t output, AnyopTensor* tensor);
  int32_t AllocateByExchange(uint32_t output, AnyopTensor* tensor);
  static int32_t Refused(Frame* frame, uint32_t output, const AnyopTensor& tensor);

  PyObject** const arguments_;
  const Source* first_ = nullptr;
  PyObject* first_object_ = nullptr;
  PyTypeObject* first_type_ = nullptr;  // whose source is first_; nullptr: each object is asked
  const AnyopTensor* first_tensor_ = nullptr;
  PyThreadState* thread_ = nullptr;
  TorchMode mode_ = {nullptr, 0};
  bool paddle_records_ = false;
  Way way_ = Way::kPlain;
  int num_written_ = 0;
  PyObject* written_[8];  // torch's or Paddle's; the caller holds them
  std::vector<PyObject*> more_written_;
  struct Held {
    void (*let_go)(void*);
    void* held;
  };
  std::vector<Held> held_;
  std::string why_;  // an object is refused
  const uint32_t num_outputs_;
  uint64_t made_ = 0;  // bits of results that are c10::TensorImpls
  PyObject* results_[kMaxParams];
};

}  // namespace anyop
