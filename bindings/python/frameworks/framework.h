// SPDX-License-Identifier: Apache-2.0
// A framework as the border sees it: one row, which a file of its own in this folder fills. All
// that calls of operators and of ATen ask of a framework they ask of its row.
#pragma once

#include <dlpack/dlpack.h>

#include <string>

#include "anyop/kernel.h"
#include "python.h"

namespace anyop {

static_assert(sizeof(DLTensor) == sizeof(AnyopTensor) &&
                  offsetof(DLTensor, strides) == offsetof(AnyopTensor, strides) &&
                  offsetof(DLTensor, dtype) == offsetof(AnyopTensor, dtype_code),
              "an AnyopTensor is a DLTensor");

struct Framework;
class Loans;

// What is known of a Python type that holds tensors. There are few, and they never change.
struct Source {
  const Framework* framework;
  const DLPackExchangeAPI* api;  // nullptr where the type has none
  // Its memory is its value. Else only the framework's adapter may ask for it: subclasses of
  // torch.Tensor, JAX's arrays, values of static graphs.
  bool is_plain;
};

// What a row finds in a type, or in an object where nothing is known of its type.
struct Found {
  bool is_mine;
  const Source* source;  // nullptr with *why or an error set
};
constexpr Found kNotMine = {false, nullptr};

// How a call may go on; the worst of its tensors' ways holds.
enum class Way {
  kPlain,     // memory is the value, nobody watches
  kGradient,  // plain, and a gradient is to be recorded
  kDispatch,  // only the framework's adapter gives the framework's answer
  kRefused,   // the tensor cannot be used: the loans say why, or an error is set
};

// Of a framework whose tensors torch's kernels take as they are: by their c10::TensorImpls.
struct TensorImpls {
  void* (*of)(PyObject* object);
  PyObject* (*wrap)(void* impl);  // takes over; nullptr with an error set
  void (*release)(void* impl);
  // Their memory stays in its place until the loans are let go of.
  void (*hold)(Loans* loans, void* const* impls, uint64_t count);
};

// What holds for all tensors of one call.
struct Mode {
  const TensorImpls* impls = nullptr;  // nullptr: there are none
  int32_t flags = 0;                   // the framework's own
};

// What may be nullptr says so.
struct Framework {
  const char* name;
  // The module whose slow_call takes what is not plain. nullptr: all is.
  const char* adapter = nullptr;
  // Whose arrays are made where tensors of this kind come first. nullptr: its own.
  const Framework* home = nullptr;
  // Whether the view holds the memory until the call ends, whatever code of the caller's does.
  bool view_holds = false;

  Found (*find)(PyTypeObject* type, std::string* why) = nullptr;
  // Before the first tensor of a call, which is plain. nullptr: there are no modes.
  Way (*read_mode)(Mode* mode) = nullptr;
  // Fills tensor. writes: the call writes the tensor.
  Way (*view)(Loans* loans, const Source* source, PyObject* object, bool writes,
              AnyopTensor* tensor) = nullptr;
  // The memory stays in its place until the call ends. nullptr: it does so anyway.
  void (*hold)(Loans* loans, const Source* source, PyObject* object) = nullptr;
  // The call has written the tensor, so that autograd finds out. nullptr: nobody asks.
  void (*mark_written)(PyObject* object) = nullptr;
  // A result of tensor's device, dtype and shape, beside the first tensor of the loans; sets its
  // data. An AnyopStatus: kAnyopPending where an error is set, else the loans say why.
  int32_t (*allocate)(Loans* loans, AnyopTensor* tensor, PyObject** object) = nullptr;
  // The current stream of a device. False where there is none, with or without an error set.
  // nullptr: calls run on the device's default stream.
  bool (*stream)(const Source* source, int32_t device_type, int32_t device_id,
                 void** stream) = nullptr;

  // Of calls of ATen's operators, whose results are torch's memory.
  // Whether the memory must not be written. owner: what keeps it. nullptr: it may be.
  bool (*is_read_only)(PyObject* owner) = nullptr;
  // The function that takes a result by __dlpack__; without one, by the exchange functions.
  struct {
    const char* module;
    const char* name;
  } take = {nullptr, nullptr};
  bool is_immutable = false;  // nobody writes its arrays, which are dense
  // Whether an object that is not plain stands for a value that is not there yet; calls of those go
  // to the function call of the module traced. nullptr: nothing that is not plain has memory, and
  // no_graphs says why it is refused.
  bool (*is_traced)(PyObject* object) = nullptr;
  const char* traced = nullptr;
  const char* no_graphs = nullptr;
  const char* no_gradients = nullptr;  // why a tensor that wants a gradient is refused
  // The source of its own tensors, imported where it is not yet. nullptr with an error set.
  const Source* (*import)() = nullptr;

  // Of the process.
  // What a thread needs before its calls are plain. nullptr: nothing.
  void (*wake_thread)() = nullptr;
  const char* tracer = nullptr;  // the module whose set_eval_frame has a hook for Python's frames
  const char* proxy = nullptr;   // loaded where it answers to another framework's name
  struct {
    const char* from;
    const char* to;
  } renamed = {nullptr, nullptr};  // a type, as messages call it
};

// Stands in each file that fills a row.
class Listed {
 public:
  explicit Listed(const Framework* row) : row(row), next(first) { first = this; }
  const Framework* const row;
  const Listed* const next;
  static const Listed* first;
};

// visit(row) for every framework.
template <typename Visit>
void EachFramework(const Visit& visit) {
  for (const Listed* at = Listed::first; at; at = at->next) visit(*at->row);
}

// The framework of a name; nullptr where there is none.
const Framework* FrameworkOf(PyObject* name);
// All names, "cupy, jax, numpy", in their order.
std::string FrameworkNames();

// The source of an object's type; nullptr with *why or an error set when it holds no tensor we
// take.
const Source* FindSource(PyObject* object, std::string* why);

// The same of a framework's own type, no user's, that has been asked for before; or nullptr. Runs
// no code of the object's.
const Source* FindOwnSource(PyTypeObject* type);

// Of an object that no row knows: by __dlpack__ or its type's exchange functions, by Python's
// buffer protocol.
Found FindDlpack(PyObject* object);
Found FindBuffer(PyObject* object);

// For rows: notes what is known of a type. is_its: the framework's own, no subclass of a user's.
Found Remember(PyTypeObject* type, bool is_its, const Source& like);

inline const Framework* HomeOf(const Source& source) {
  return source.framework->home ? source.framework->home : source.framework;
}

// Inside of a Python kernel that a framework's dispatcher has called, in this thread. Modes,
// profilers and gradients have had their say, so calls inside look at tensors alone.
extern thread_local bool below_dispatcher;

// For rows: the table of a framework's glue, built or found once; nullptr: there is none.
void* LoadGlue(const char* name);

// "torch.Tensor", "numpy.ndarray", "str"
std::string TypeText(PyTypeObject* type);

// What an object of the type is, behind "is": "a torch.Tensor", "an int", "None".
std::string ObjectText(PyTypeObject* type);

constexpr char kReadOnly[] = "is read-only, and the operator would write it";

// Clears what an object's own code raised when it was looked at, but for what no `except Exception`
// catches, such as KeyboardInterrupt: that is the caller's. False: an error stays.
bool ClearOrdinary();

bool IsSubtype(PyTypeObject* type, const Ref& base);
inline bool Is(PyTypeObject* type, const Ref& other) {
  return reinterpret_cast<PyObject*>(type) == other.get();
}

}  // namespace anyop
