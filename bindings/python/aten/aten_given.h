// SPDX-License-Identifier: Apache-2.0
// What a caller gave to an operator of ATen's, looked at once: kinds of values, tensors' memory and
// whose framework the call is in.
#pragma once

#include <vector>

#include "aten/aten_names.h"
#include "operators/borrow.h"

namespace anyop {

constexpr int kMaxAtenArguments = 64;

enum class GivenKind : uint8_t { kTensor, kNone, kBool, kInt, kFloat, kComplex, kStr, kOther };

// An argument, or an element of a list. value is set for all kinds but kOther.
struct Given {
  PyObject* object;  // the caller holds it
  GivenKind kind;
  AnyopAtenValue value;
};

inline void SetNumber(Given* given, GivenKind kind, int32_t tag) {
  given->kind = kind;
  given->value = {};
  given->value.tag = tag;
}

// Whether object is one of module's type of that name. module may be nullptr.
bool IsInstance(PyObject* object, PyObject* module, const char* name);

// Memory of another framework. An AnyopAtenMemory's address is that of its Lent.
struct Lent {
  AnyopAtenMemory memory;
  PyObject* object;
  bool is_turned;  // a negative stride, which torch has not
  const Source* from;
  Lent* next;  // of the caller's
};
inline Lent* LentOf(const AnyopAtenValue& value) {
  return value.tag == kAnyopAtenMemoryOf ? reinterpret_cast<Lent*>(value.as.memory) : nullptr;
}

// Whose results are made. kAten: nobody's, as _anyop.AtenTensor.
enum class Home : uint8_t { kNone, kAten, kNumpy, kTorch, kJax, kPaddle, kCupy, kExchange };

// aten_on_stream(device_id, stream): where this thread's calls on views and AtenTensors run until
// the next word; device_id -1: where torch says. Returns what was said before.
PyObject* AtenOnStream(PyObject*, PyObject* args);

// Whether torch's thread is in a mode, so that only torch.ops gives torch's answer.
bool IsTorchInMode();

class AtenCaller {
 public:
  explicit AtenCaller(const char* name) : name_(name) {}
  AtenCaller(const AtenCaller&) = delete;
  AtenCaller& operator=(const AtenCaller&) = delete;
  ~AtenCaller();

  // False with an error raised.
  bool Look(PyObject* object, Given* given);
  // When all is matched: memory is looked at again where code of the caller's ran after it was
  // lent, and stays in its place until the call ends. False with an error raised.
  bool Settle();
  // Makes a turned memory a straight copy. False with an error raised.
  bool Straighten(Lent* lent);
  // Where a call on this device memory runs. False with an error raised.
  bool SetStream(AnyopAtenOptions* options) const;
  // Behind a call: waits where who lent the memory would use it again before torch's kernels are
  // done. False with an error raised.
  bool Finish() const;
  // Keeps a new reference until the call ends.
  PyObject* Keep(PyObject* object) {
    if (object) kept_.push_back(object);
    return object;
  }

  Arena arena;
  Home home = Home::kNone;
  const Source* source = nullptr;  // of the first tensor
  PyObject* first = nullptr;       // that tensor
  PyTypeObject* type = nullptr;    // its type; nullptr: each object is asked
  bool has_tracers = false;        // JAX's: the value is not there yet
  bool needs_torch = false;        // modes and subclasses: torch.ops gives torch's answer
  bool wants_gradient = false;     // Paddle's
  bool has_turned = false;
  bool ran_code = false;  // of the caller's, which may have changed what was lent
  bool has_held = false;  // an AtenTensor, which may lie in anybody's memory

 private:
  bool Raise(PyObject* kind, const std::string& why) const;
  bool LookMore(PyObject* object, Given* given);
  bool LookScalar(PyObject* object, Given* given);
  bool LookView(const AnyopTensor& tensor, PyObject* object, Given* given);
  bool LookTensor(const Source* from, PyObject* object, Given* given);
  bool LookTorch(const Source* from, PyObject* object, Given* given);
  bool LookForeign(const Source* from, PyObject* object, Given* given);
  bool Join(Home home, const Source* from, PyObject* object);
  bool Lend(const Source* from, PyObject* object, Given* given);
  bool Borrow(const Source* from, Lent* lent, std::string* why);
  bool BorrowFor(Lent* lent);
  bool BorrowCapsule(Lent* lent, PyObject* stream, std::string* why);
  bool BorrowNumpy(Lent* lent, PyObject* array, std::string* why);
  bool BorrowBuffer(Lent* lent, std::string* why);
  bool BorrowJax(Lent* lent, std::string* why);

  const char* const name_;                  // the operator's, for messages
  const AnyopTensor* on_device_ = nullptr;  // the first that is not in host memory
  bool paddle_records_ = false;
  Lent* lent_ = nullptr;  // all of it
  std::vector<PyObject*> kept_;
};

}  // namespace anyop
