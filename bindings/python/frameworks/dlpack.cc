// SPDX-License-Identifier: Apache-2.0
// Capsules are asked for and read without being consumed: their destructors let the memory go.
#include "frameworks/dlpack.h"

#include <dlpack/dlpack.h>

#include <cstring>

#include "frameworks/loans.h"
#include "frameworks/numpy.h"
#include "module.h"

namespace anyop {
namespace {

const Source generic = {&dlpack_framework, nullptr, true};

// object.__dlpack__() in the newest form that it knows. nullptr with an error set.
PyObject* NewCapsule(PyObject* object, PyObject* stream) {
  if (!HasStack()) return nullptr;
  const Ref method(PyObject_GetAttrString(object, "__dlpack__"));
  const Ref none(PyTuple_New(0)),
      keywords(
          Py_BuildValue("{s:(ii)}", "max_version", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION));
  if (!method || !none || !keywords) return nullptr;
  if (stream && PyDict_SetItemString(keywords.get(), "stream", stream)) return nullptr;
  PyObject* capsule = PyObject_Call(method.get(), none.get(), keywords.get());
  if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError)) return capsule;
  PyErr_Clear();  // older than DLPack 1.0
  PyDict_Clear(keywords.get());
  if (stream && PyDict_SetItemString(keywords.get(), "stream", stream)) return nullptr;
  return PyObject_Call(method.get(), none.get(), keywords.get());
}

// What a capsule holds; nullptr where it is of another form.
template <typename Managed>
Managed* In(PyObject* capsule, const char* name) {
  return PyCapsule_IsValid(capsule, name)
             ? static_cast<Managed*>(PyCapsule_GetPointer(capsule, name))
             : nullptr;
}

DLManagedTensorVersioned* VersionedIn(PyObject* capsule) {
  return In<DLManagedTensorVersioned>(capsule, "dltensor_versioned");
}

// Reads a capsule of either form.
Way ReadCapsule(Loans* loans, PyObject* capsule, bool writes, AnyopTensor* tensor) {
  if (const auto* versioned = VersionedIn(capsule)) {
    if (versioned->version.major != DLPACK_MAJOR_VERSION)
      return loans->Reject(
          PyExc_TypeError,
          "speaks DLPack " + std::to_string(versioned->version.major) + ", expected 1");
    if (writes && (versioned->flags & DLPACK_FLAG_BITMASK_READ_ONLY))
      return loans->Reject(PyExc_ValueError, kReadOnly);
    std::memcpy(tensor, &versioned->dl_tensor, sizeof *tensor);
    return Way::kPlain;
  }
  const auto* managed = In<DLManagedTensor>(capsule, "dltensor");
  if (!managed)
    return loans->Reject(PyExc_TypeError, "has a __dlpack__ that returned no DLPack capsule");
  if (writes)  // the old form cannot say whether the memory is immutable, as JAX's arrays are
    return loans->Reject(
        PyExc_ValueError,
        "is read-only as far as it says (DLPack before 1.0, as of JAX's immutable arrays), and the "
        "operator would write it");
  std::memcpy(tensor, &managed->dl_tensor, sizeof *tensor);
  return Way::kPlain;
}

Way View(Loans* loans, const Source*, PyObject* object, bool writes, AnyopTensor* tensor) {
  return ViewCapsule(loans, object, nullptr, writes, tensor);
}

Way ViewExchanged(Loans* loans, const Source* source, PyObject* object, bool, AnyopTensor* tensor) {
  if (__builtin_expect(ViewByExchange(source, object, tensor), 1)) return Way::kPlain;
  return loans->Reject(PyExc_TypeError, "is " + ObjectText(Py_TYPE(object)) +
                                            " without plain memory; expected a dense one");
}

}  // namespace

Found FindDlpack(PyObject* object) {
  if (const DLPackExchangeAPI* api = ExchangeApi(Py_TYPE(object)))
    return Remember(Py_TYPE(object), false, {&exchange_framework, api, true});
  if (Ref(PyObject_GetAttrString(object, "__dlpack__"))) return {true, &generic};
  return ClearOrdinary() ? kNotMine : Found{true, nullptr};
}

const DLPackExchangeAPI* ExchangeApi(PyTypeObject* type) {
  const Ref capsule = Attribute(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (!capsule) return nullptr;
  auto* header = static_cast<const DLPackExchangeAPIHeader*>(
      PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  if (!header) PyErr_Clear();
  while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  return api && api->dltensor_from_py_object_no_sync ? api : nullptr;
}

void HoldByExchange(Loans* loans, const Source* source, PyObject* object) {
  if (!source->api || !source->api->managed_tensor_from_py_object_no_sync) return;
  DLManagedTensorVersioned* managed = nullptr;
  if (source->api->managed_tensor_from_py_object_no_sync(object, &managed)) PyErr_Clear();
  loans->Keep(managed, [](void* what) {
    auto* held = static_cast<DLManagedTensorVersioned*>(what);
    if (held->deleter) held->deleter(held);
  });
}

int32_t AllocateByExchange(Loans* loans, AnyopTensor* tensor, PyObject** object) {
  const DLPackExchangeAPI* api = loans->source->api;
  auto set_error = [](void*, const char*, const char* message) {
    PyErr_SetString(std::strstr(message, "memory") ? PyExc_MemoryError : PyExc_RuntimeError,
                    message);
  };
  DLManagedTensorVersioned* managed = nullptr;
  if (api->managed_tensor_allocator(reinterpret_cast<DLTensor*>(tensor), &managed, nullptr,
                                    set_error)) {
    if (!PyErr_Occurred()) PyErr_NoMemory();
    return kAnyopPending;
  }
  const DLTensor made = managed->dl_tensor;
  void* owned = nullptr;
  if (api->managed_tensor_to_py_object_no_sync(managed, &owned)) return kAnyopPending;
  *object = static_cast<PyObject*>(owned);
  // The sizes that managed pointed to may be gone; the call's say the same.
  tensor->data = static_cast<char*>(made.data) + made.byte_offset;
  return kAnyopOk;
}

bool StreamByExchange(const Source* source, int32_t device_type, int32_t device_id, void** stream) {
  return !source->api || !source->api->current_work_stream(static_cast<DLDeviceType>(device_type),
                                                           device_id, stream);
}

Way ViewCapsule(Loans* loans, PyObject* object, PyObject* stream, bool writes,
                AnyopTensor* tensor) {
  loans->NoteCode();
  PyObject* capsule = loans->Keep(NewCapsule(object, stream));
  if (!capsule) return Way::kRefused;
  const Way way = ReadCapsule(loans, capsule, writes, tensor);
  if (way == Way::kPlain && tensor->device_type == kDLCUDAManaged)
    tensor->device_type = kDLCUDA;  // kernels read it as any other
  loans->owner = capsule;
  return way;
}

bool IsReadOnlyCapsule(PyObject* capsule) {
  const auto* managed = VersionedIn(capsule);
  return !managed || managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
}

const Framework dlpack_framework = [] {
  Framework f;
  f.name = "dlpack";
  f.home = &numpy_framework;
  f.view_holds = true;
  f.view = View;
  f.allocate = AllocateArray;
  f.is_read_only = IsReadOnlyCapsule;
  return f;
}();

const Framework exchange_framework = [] {
  Framework f;
  f.name = "exchange";
  f.view = ViewExchanged;
  f.hold = HoldByExchange;
  f.allocate = AllocateByExchange;
  f.stream = StreamByExchange;
  return f;
}();

}  // namespace anyop
