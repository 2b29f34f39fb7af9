// SPDX-License-Identifier: Apache-2.0
// Memory of other frameworks, as ATen's operators borrow it, and the streams on which it is used.
#include <utility>

#include "aten/aten_given.h"
#include "aten/aten_tensor.h"
#include "frameworks/cupy.h"
#include "frameworks/dlpack.h"
#include "frameworks/numpy.h"
#include "gil.h"

namespace anyop {
namespace {

constexpr int kCpu = 1, kCuda = 2, kCudaManaged = 13;  // DLDeviceType

// Of aten_on_stream.
struct SaidStream {
  int device_id = -1;
  void* stream = nullptr;
};
thread_local SaidStream said;

// Sizes without elements or of one have no direction.
bool FindTurned(Arena* arena, AnyopTensor* tensor) {
  int64_t signs = 0;
  for (int d = 0; tensor->strides && d < tensor->ndim; ++d) signs |= tensor->strides[d];
  if (__builtin_expect(signs >= 0, 1)) return false;
  bool empty = false, turned = false;
  for (int d = 0; d < tensor->ndim; ++d) {
    turned |= tensor->strides[d] < 0 && tensor->shape[d] > 1;
    empty |= tensor->shape[d] == 0;
  }
  if (turned && !empty) return true;
  auto* strides = arena->Take<int64_t>(tensor->ndim);
  for (int d = 0; d < tensor->ndim; ++d)
    strides[d] = tensor->strides[d] < 0 ? 1 : tensor->strides[d];
  tensor->strides = strides;
  return false;
}

}  // namespace

// Memory of a call to one of anyop's operators, whose backend runs.
bool AtenCaller::LookView(const AnyopTensor& tensor, PyObject* object, Given* given) {
  if (home == Home::kNone) home = Home::kAten;
  auto* lent = arena.Take<Lent>(1);
  lent->memory = {tensor, 0, 0, object, RetainObject, ReleaseObject};
  lent->object = object;
  lent->is_turned = FindTurned(&arena, &lent->memory.tensor);
  has_turned |= lent->is_turned;
  SetNumber(given, GivenKind::kTensor, kAnyopAtenMemoryOf);
  given->value.as.memory = &lent->memory;
  return true;
}

bool AtenCaller::Lend(const Source* from, PyObject* object, Given* given) {
  auto* lent = arena.Take<Lent>(1);
  lent->memory.reserved = 0;
  lent->memory.retain = RetainObject;
  lent->memory.release = ReleaseObject;
  lent->object = object;
  lent->from = from;
  lent->next = lent_;
  if (__builtin_expect(!BorrowFor(lent), 0)) return false;
  lent_ = lent;
  SetNumber(given, GivenKind::kTensor, kAnyopAtenMemoryOf);
  given->value.as.memory = &lent->memory;
  return true;
}

bool AtenCaller::BorrowFor(Lent* lent) {
  lent->memory.flags = 0;
  lent->memory.owner = lent->object;
  std::string why;
  if (__builtin_expect(!Borrow(lent->from, lent, &why), 0)) {
    if (why.empty() && PyErr_Occurred()) return false;
    PyErr_Clear();
    const bool value = why.rfind("has strides", 0) == 0;
    return Raise(value ? PyExc_ValueError : PyExc_TypeError, why);
  }
  AnyopTensor* tensor = &lent->memory.tensor;
  if (__builtin_expect(static_cast<uint32_t>(tensor->ndim) > 64 || (tensor->ndim && !tensor->shape),
                       0))
    return Raise(PyExc_ValueError, "has " + std::to_string(tensor->ndim) + " dimensions" +
                                       (tensor->shape ? "" : " and no sizes"));
  lent->is_turned = FindTurned(&arena, tensor);
  has_turned |= lent->is_turned;
  if (__builtin_expect(tensor->device_type != kCpu && !on_device_, 0)) on_device_ = tensor;
  return true;
}

bool AtenCaller::Settle() {
  constexpr uint64_t kManyBytes = uint64_t{1} << 20;  // of a call that takes its time
  for (Lent* lent = lent_; lent; lent = lent->next) {
    const Origin origin = lent->from->origin;
    const bool is_numpy = origin == Origin::kNumpy;
    const bool looks_again = is_numpy || origin == Origin::kPaddle || origin == Origin::kExchange;
    if (__builtin_expect(ran_code && looks_again, 0) && !BorrowFor(lent)) return false;
    if (!is_numpy) continue;
    const AnyopTensor& tensor = lent->memory.tensor;
    uint64_t bytes = tensor.dtype_bits / 8;
    for (int d = 0; d < tensor.ndim; ++d) bytes *= static_cast<uint64_t>(tensor.shape[d]);
    if (bytes >= kManyBytes) Keep(PinArray(lent->object));
  }
  return true;
}

bool AtenCaller::Borrow(const Source* from, Lent* lent, std::string* why) {
  AnyopTensor* tensor = &lent->memory.tensor;
  switch (from->origin) {
    case Origin::kNumpy:
      return BorrowNumpy(lent, lent->object, why);
    case Origin::kPaddle: {
      const Way way = ViewPaddleTensor(from, lent->object, paddle_records_, tensor, why);
      wants_gradient |= way == Way::kGradient;
      return why->empty();
    }
    case Origin::kExchange:
      if (!from->api->dltensor_from_py_object_no_sync(lent->object,
                                                      reinterpret_cast<DLTensor*>(tensor)))
        return true;
      *why = "is " + ObjectText(Py_TYPE(lent->object)) + " without plain memory";
      return false;
    case Origin::kBuffer:
      return BorrowBuffer(lent, why);
    case Origin::kCupy:
      // The call runs on CuPy's own current stream: there is nothing to wait for.
      return BorrowCapsule(lent, Ref(PyLong_FromLong(-1)).get(), why);
    case Origin::kForeign:
      return BorrowJax(lent, why);
    default:
      return BorrowCapsule(lent, nullptr, why);
  }
}

bool AtenCaller::BorrowCapsule(Lent* lent, PyObject* stream, std::string* why) {
  AnyopTensor* tensor = &lent->memory.tensor;
  PyObject* capsule = Keep(NewCapsule(lent->object, stream));
  if (!capsule || !ReadCapsule(capsule, false, tensor, why)) return false;
  lent->memory.owner = capsule;
  if (IsReadOnlyCapsule(capsule)) lent->memory.flags |= kAnyopAtenReadOnly;
  if (tensor->device_type == kCudaManaged) tensor->device_type = kCuda;
  return true;
}

// By way of a NumPy array, which holds the buffer.
bool AtenCaller::BorrowBuffer(Lent* lent, std::string* why) {
  if (!ImportNumpy(why)) return false;
  const Ref view(PyMemoryView_FromObject(lent->object));
  PyObject* array =
      view ? Keep(PyObject_CallMethod(LoadedModule("numpy"), "asarray", "O", view.get())) : nullptr;
  if (!array) return false;
  return BorrowNumpy(lent, array, why);
}

bool AtenCaller::BorrowNumpy(Lent* lent, PyObject* array, std::string* why) {
  AnyopTensor* tensor = &lent->memory.tensor;
  lent->memory.owner = array;
  if (!IsWriteable(array)) lent->memory.flags |= kAnyopAtenReadOnly;
  if (!BorrowArray(&arena, array, false, tensor, why, /*all_types=*/true)) return false;
  for (int d = 0; d < tensor->ndim; ++d) {
    if (!tensor->shape[d]) tensor->strides = nullptr;  // NumPy's are 0 there, torch's row-major
  }
  return true;
}

// __dlpack__ waits for the value on the host, and lets torch's stream wait for it on a device.
bool AtenCaller::BorrowJax(Lent* lent, std::string* why) {
  const Ref ask = Attribute(lent->object, "__dlpack_device__");
  const Ref device(ask ? PyObject_CallObject(ask.get(), nullptr) : nullptr);
  int kind, index;
  if (!ask) *why = "is " + ObjectText(Py_TYPE(lent->object)) + ", which holds no numbers";
  if (!device || !PyArg_ParseTuple(device.get(), "ii", &kind, &index)) return false;
  Ref stream;
  if (kind != kCpu && !(stream = TorchStream(index))) return false;
  if (!BorrowCapsule(lent, stream.get(), why)) return false;
  lent->memory.flags |= kAnyopAtenReadOnly;  // immutable, whatever the capsule says
  return true;
}

bool AtenCaller::Straighten(Lent* lent) {
  PyObject* copy = Keep(PyObject_CallMethod(lent->object, "copy", nullptr));
  std::string why = "has negative strides, which torch has not";
  if (!copy && !PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
  if (!copy) PyErr_Clear();
  const bool good = copy && IsInstance(copy, LoadedModule("numpy"), "ndarray") &&
                    BorrowNumpy(lent, copy, &why) && !FindTurned(&arena, &lent->memory.tensor);
  return good || Raise(PyExc_ValueError, why);
}

// XLA knows nothing of torch's stream: what is let go of it gives to its own kernels at once.
bool AtenCaller::Finish() const {
  if (__builtin_expect(home != Home::kJax || !on_device_, 1)) return true;
  const Ref cuda = Attribute(torch_objects.torch, "cuda");
  const Ref stream(PyObject_CallMethod(cuda.get(), "current_stream", "i", on_device_->device_id));
  return stream && Ref(PyObject_CallMethod(stream.get(), "synchronize", nullptr));
}

bool AtenCaller::SetStream(AnyopAtenOptions* options) const {
  if (__builtin_expect(said.device_id >= 0 && home == Home::kAten, 0)) {
    options->device_id = said.device_id;
    options->stream = said.stream;
    options->flags |= kAnyopAtenHasStream;
    return true;
  }
  if (__builtin_expect(!on_device_, 1)) return true;
  if (on_device_->device_type != kCuda || home == Home::kJax || home == Home::kNumpy) return true;
  options->device_id = on_device_->device_id;
  if (home == Home::kCupy) {
    if (!CupyStream(options->device_id, &options->stream)) return false;
  } else if (source->api->current_work_stream(static_cast<DLDeviceType>(kCuda), options->device_id,
                                              &options->stream)) {
    return PyErr_Occurred() ? false : Raise(PyExc_RuntimeError, "names no current stream");
  }
  options->flags |= kAnyopAtenHasStream;
  return true;
}

PyObject* AtenOnStream(PyObject*, PyObject* args) {
  SaidStream wanted;
  unsigned long long stream;
  if (!PyArg_ParseTuple(args, "iK", &wanted.device_id, &stream)) return nullptr;
  wanted.stream = reinterpret_cast<void*>(static_cast<uintptr_t>(stream));
  std::swap(said, wanted);
  return Py_BuildValue("(iK)", wanted.device_id,
                       static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(wanted.stream)));
}

}  // namespace anyop
