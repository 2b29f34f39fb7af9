// SPDX-License-Identifier: Apache-2.0
// Memory of other frameworks, and the streams on which torch's kernels use it.
#include "aten/aten_loans.h"

#include <utility>

#include "gil.h"
#include "module.h"

namespace anyop {
namespace {

struct SaidStream {
  int device_id = -1;
  void* stream = nullptr;
};
thread_local SaidStream said;

// aten_on_stream(device_id, stream): where this thread's calls on views and AtenTensors run until
// the next word; device_id -1: where torch says. Returns what was said before.
PyObject* SayStream(PyObject*, PyObject* args) {
  SaidStream wanted;
  unsigned long long stream;
  if (!PyArg_ParseTuple(args, "iK", &wanted.device_id, &stream)) return nullptr;
  wanted.stream = reinterpret_cast<void*>(static_cast<uintptr_t>(stream));
  std::swap(said, wanted);
  return Py_BuildValue("(iK)", wanted.device_id,
                       static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(wanted.stream)));
}

PyMethodDef methods[] = {{"aten_on_stream", Guarded<SayStream>, METH_VARARGS, nullptr}, {}};
const ModulePart part(methods);

// Sizes without elements or of one have no direction; without elements there are no strides either,
// as NumPy's are 0 there and torch's row-major.
bool FindTurned(Arena* arena, AnyopTensor* tensor) {
  if (!tensor->strides) return false;
  int64_t signs = 0;
  bool empty = false, turned = false;
  for (int d = 0; d < tensor->ndim; ++d) {
    signs |= tensor->strides[d];
    empty |= tensor->shape[d] == 0;
  }
  if (__builtin_expect(empty, 0)) return tensor->strides = nullptr, false;
  if (__builtin_expect(signs >= 0, 1)) return false;
  auto* strides = arena->Take<int64_t>(tensor->ndim);
  for (int d = 0; d < tensor->ndim; ++d) {
    turned |= tensor->strides[d] < 0 && tensor->shape[d] > 1;
    strides[d] = tensor->strides[d] < 0 ? 1 : tensor->strides[d];
  }
  if (!turned) tensor->strides = strides;
  return turned;
}

}  // namespace

const Framework aten_home = [] {
  Framework f;
  f.name = "aten";
  return f;
}();

// Memory of a call to one of anyop's operators, whose backend runs.
bool AtenLoans::LookView(const AnyopTensor& tensor, PyObject* object, Given* given) {
  if (!home) home = &aten_home;
  auto* loan = arena->Take<AtenLoan>(1);
  loan->memory = {tensor, 0, 0, object, RetainObject, ReleaseObject};
  loan->object = object;
  loan->from = nullptr;
  loan->is_turned = FindTurned(arena, &loan->memory.tensor);
  has_turned |= loan->is_turned;
  given->value = Tagged(kAnyopAtenMemoryOf);
  given->value.as.memory = &loan->memory;
  return true;
}

bool AtenLoans::Take(const Source* from, PyObject* object, Given* given) {
  auto* loan = arena->Take<AtenLoan>(1);
  loan->memory.reserved = 0;
  loan->memory.retain = RetainObject;
  loan->memory.release = ReleaseObject;
  loan->object = object;
  loan->from = from;
  loan->next = taken_;
  if (__builtin_expect(!View(from, object, loan), 0)) return false;
  taken_ = loan;
  given->value = Tagged(kAnyopAtenMemoryOf);
  given->value.as.memory = &loan->memory;
  return true;
}

bool AtenLoans::View(const Source* from, PyObject* object, AtenLoan* loan) {
  const Framework& row = *from->framework;
  AnyopTensor* tensor = &loan->memory.tensor;
  owner = object;
  const Way way = row.view(this, from, object, false, tensor);
  if (__builtin_expect(way == Way::kRefused, 0)) {
    if (why.empty()) return false;
    PyErr_Clear();
    return Refuse(why_kind, why);
  }
  wants_gradient |= way == Way::kGradient;
  loan->memory.owner = owner;
  loan->memory.flags = row.is_read_only && row.is_read_only(owner) ? kAnyopAtenReadOnly : 0;
  if (__builtin_expect(static_cast<uint32_t>(tensor->ndim) > 64 || (tensor->ndim && !tensor->shape),
                       0))
    return Refuse(PyExc_ValueError, "has " + std::to_string(tensor->ndim) + " dimensions" +
                                        (tensor->shape ? "" : " and no sizes"));
  loan->is_turned = FindTurned(arena, tensor);
  has_turned |= loan->is_turned;
  if (__builtin_expect(tensor->device_type != kDLCPU && !on_device_, 0)) on_device_ = tensor;
  return true;
}

bool AtenLoans::Settle() {
  constexpr uint64_t kManyBytes = uint64_t{1} << 20;  // of a call that takes its time
  for (AtenLoan* loan = taken_; loan; loan = loan->next) {
    const Framework& row = *loan->from->framework;
    if (row.view_holds) continue;
    if (__builtin_expect(ran_code, 0) && !View(loan->from, loan->object, loan)) return false;
    const AnyopTensor& tensor = loan->memory.tensor;
    uint64_t bytes = tensor.dtype_bits / 8;
    for (int d = 0; d < tensor.ndim; ++d) bytes *= static_cast<uint64_t>(tensor.shape[d]);
    if (bytes >= kManyBytes && row.hold) row.hold(this, loan->from, loan->object);
  }
  return true;
}

bool AtenLoans::Straighten(AtenLoan* loan) {
  const AnyopTensor& tensor = loan->memory.tensor;
  const int32_t device_id = tensor.device_id;
  PyObject* copy = Keep(PyObject_CallMethod(loan->object, "copy", nullptr));
  if (!copy && !PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
  PyErr_Clear();
  std::string ignored;
  const Source* from = copy ? FindSource(copy, &ignored) : nullptr;
  const bool is_its = from && from->framework == loan->from->framework;
  if (is_its && !View(from, copy, loan)) return false;
  // CuPy copies to the current device; without a stream to order it a copy may be let go too early.
  const bool is_there =
      tensor.device_type == kDLCPU || (home->stream && tensor.device_id == device_id);
  return (is_its && !loan->is_turned && is_there) ||
         Refuse(PyExc_ValueError, "has negative strides, which torch has not");
}

// Such a framework knows nothing of torch's stream: what is let go of it gives to its own kernels
// at once.
bool AtenLoans::Finish() const {
  if (__builtin_expect(!on_device_ || home->stream || !home->is_immutable, 1)) return true;
  const Ref stream = TorchStream(on_device_->device_id);
  return stream && Ref(PyObject_CallMethod(stream.get(), "synchronize", nullptr));
}

bool AtenLoans::SetStream(AnyopAtenOptions* options) const {
  if (__builtin_expect(said.device_id >= 0 && home == &aten_home, 0)) {
    options->device_id = said.device_id;
    options->stream = said.stream;
    options->flags |= kAnyopAtenHasStream;
    return true;
  }
  if (__builtin_expect(!on_device_, 1)) return true;
  if (on_device_->device_type != kDLCUDA || !home->stream) return true;
  options->device_id = on_device_->device_id;
  if (!home->stream(source, kDLCUDA, options->device_id, &options->stream))
    return PyErr_Occurred() ? false : Refuse(PyExc_RuntimeError, "names no current stream");
  options->flags |= kAnyopAtenHasStream;
  return true;
}

}  // namespace anyop
