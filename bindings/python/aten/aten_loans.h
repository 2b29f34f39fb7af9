// SPDX-License-Identifier: Apache-2.0
// The arguments of one call of an operator of ATen's, looked at once: kinds of values, torch's
// tensors, and other frameworks' memory, which they have on loan to torch until the call ends.
#pragma once

#include "aten/aten_names.h"
#include "aten/aten_tensor.h"
#include "frameworks/loans.h"

namespace anyop {

constexpr int kMaxAtenArguments = 64;

inline AnyopAtenValue Tagged(int32_t tag) {
  AnyopAtenValue value = {};
  value.tag = tag;
  return value;
}

inline AnyopAtenValue Integer(int32_t tag, int64_t number) {
  AnyopAtenValue value = Tagged(tag);
  value.as.i = number;
  return value;
}

// Tags beside AnyopAtenTag, of what no call is given: a tensor whose value is not there yet, and an
// object that a parameter's type may make something of.
constexpr int32_t kGivenTraced = -1, kGivenOther = -2;

// An argument, or an element of a list.
struct Given {
  PyObject* object;  // the caller holds it
  AnyopAtenValue value;

  bool Is(int32_t tag) const { return value.tag == tag; }
  bool IsInteger() const { return Is(kAnyopAtenInt) || Is(kAnyopAtenBool); }
  bool IsReal() const { return IsInteger() || Is(kAnyopAtenFloat); }
  bool IsTensor() const {
    return Is(kAnyopAtenTorch) || Is(kAnyopAtenMemoryOf) || Is(kGivenTraced);
  }
};

// Memory of another framework. An AnyopAtenMemory's address is that of its AtenLoan.
struct AtenLoan {
  AnyopAtenMemory memory;
  PyObject* object;
  bool is_turned;  // a negative stride, which torch has not
  const Source* from;
  AtenLoan* next;  // of the call's
};
inline AtenLoan* LoanOf(const AnyopAtenValue& value) {
  return value.tag == kAnyopAtenMemoryOf ? reinterpret_cast<AtenLoan*>(value.as.memory) : nullptr;
}

// The home of results that are nobody's: _anyop.AtenTensor.
extern const Framework aten_home;

class AtenLoans : public Loans {
 public:
  explicit AtenLoans(const char* name) : Loans(&own_arena_), name_(name) {
    all_types = true;
    stream_of = TorchStreamAddress;
  }

  // False with an error raised.
  bool Look(PyObject* object, Given* given);
  // When all is matched: memory is looked at again where code of the caller's ran after it was
  // taken, and stays in its place until the call ends. False with an error raised.
  bool Settle();
  // Makes a turned memory a straight copy. False with an error raised.
  bool Straighten(AtenLoan* loan);
  // Where a call on this device memory runs. False with an error raised.
  bool SetStream(AnyopAtenOptions* options) const;
  // Behind a call: waits where whose the memory is would use it again before torch's kernels are
  // done. False with an error raised.
  bool Finish() const;

  const Framework* home = nullptr;  // of the results
  bool has_tracers = false;         // the value is not there yet
  bool needs_torch = false;         // modes and subclasses: torch.ops gives torch's answer
  bool wants_gradient = false;      // of a framework other than torch
  bool has_turned = false;
  bool has_held = false;  // an AtenTensor, which may lie in anybody's memory

 private:
  bool Refuse(PyObject* kind, const std::string& text) const;
  bool LookMore(PyObject* object, Given* given);
  bool LookScalar(PyObject* object, Given* given);
  bool LookView(const AnyopTensor& tensor, PyObject* object, Given* given);
  bool LookTensor(const Source* from, PyObject* object, Given* given);
  bool LookTorch(const Source* from, PyObject* object, Given* given);
  bool LookAdapters(const Source* from, PyObject* object, Given* given);
  bool Join(const Source* from, PyObject* object);
  bool Take(const Source* from, PyObject* object, Given* given);
  bool View(const Source* from, PyObject* object, AtenLoan* loan);

  Arena own_arena_;
  const char* const name_;                  // the operator's, for messages
  const AnyopTensor* on_device_ = nullptr;  // the first that is not in host memory
  AtenLoan* taken_ = nullptr;               // all of them
};

}  // namespace anyop
