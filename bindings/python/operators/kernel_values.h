// SPDX-License-Identifier: Apache-2.0
// A kernel's arguments as Python values: tensors as views of their memory, or as torch's.
#pragma once

#include <memory>
#include <vector>

#include "frameworks/torch.h"
#include "operator/operator.h"
#include "python.h"

namespace anyop {

// How a function of torch's that writes its results is called without Python around it: what
// anyop.backend.python does for each call is done here. Its first call on a kind of device goes
// through that all the same, which sees to it that torch can use it.
struct TorchWay {
  Ref function;
  std::vector<Ref> names;  // by parameter; empty: it is passed by position
  TorchLender lender;

  bool HasRun(int32_t device_type) const { return ran_ >> (device_type & 31) & 1; }
  void NoteRun(int32_t device_type);

 private:
  // With Python's lock held.
  uint32_t ran_ = 0;  // a bit for each DLDeviceType
  bool has_asked_ = false;
};

// Of the attribute direct of what runs a kernel; nullptr where it has none. No error is set.
std::unique_ptr<TorchWay> TakeTorchWay(PyObject* run);
// From any thread.
void ForgetTorchWay(std::unique_ptr<TorchWay> way);

// Torch's state of this thread for one call; false: torch has no such device.
class TorchState : NoCopy {
 public:
  TorchState(const TorchWay& way, const AnyopCall& call)
      : glue_(*way.lender.glue),
        entered_(glue_.enter(call.device_type, call.device_id, call.stream)) {}
  ~TorchState() {
    if (entered_) glue_.leave(entered_);
  }
  explicit operator bool() const { return entered_; }

 private:
  const AnyopTorchGlue& glue_;
  void* const entered_;
};

// The values of one call. They are let go of before it is.
class KernelValues : NoCopy {
 public:
  // way: tensors are torch's; nullptr: views.
  KernelValues(const Operator& op, const char* args, const TorchWay* way)
      : op_(op), args_(args), lender_(way ? &way->lender : nullptr) {}
  ~KernelValues();

  // A tuple of all; nullptr with an error set.
  PyObject* Make();
  // Those without a name, and the others by it. False where they cannot be made.
  bool Make(const std::vector<Ref>& names, Ref* positional, Ref* named);

  // The name of a tensor that is still held; nullptr when none is.
  const char* Kept() const;

 private:
  template <typename T>
  const T& Field(const Param& p) const {
    return *reinterpret_cast<const T*>(args_ + p.offset);
  }
  PyObject* One(const Param& p);
  PyObject* Tensor(const Param& p, const AnyopTensor* t);
  PyObject* Number(const Param& p, int64_t i) const;
  PyObject* Value(const Param& p, const void* at) const;
  PyObject* List(const Param& p);

  struct Held {
    PyObject* view;  // or
    void* lent;
    const char* name;
  };
  const Operator& op_;
  const char* const args_;
  const TorchLender* const lender_;
  std::vector<Held> held_;
};

}  // namespace anyop
