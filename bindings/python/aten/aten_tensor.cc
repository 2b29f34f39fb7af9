// SPDX-License-Identifier: Apache-2.0
// Its view is made anew each time: operators that work in place may change it.
#include "aten/aten_tensor.h"

#include "aten/aten_names.h"
#include "frameworks/dlpack.h"
#include "gil.h"
#include "module.h"
#include "objects.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

PyTypeObject* tensor_type = nullptr;

struct Tensor {
  PyObject_HEAD AnyopAtenTensor* cell;
  bool for_reader;
};

Tensor* In(PyObject* self) { return reinterpret_cast<Tensor*>(self); }

bool View(PyObject* self, AnyopTensor* view) {
  uint32_t flags;
  return ViewAtenTensor(self, view, &flags);
}

// An attribute that the view says.
template <PyObject* (*function)(const AnyopTensor& view)>
PyObject* Of(PyObject* self, void*) {
  AnyopTensor view;
  return View(self, &view) ? function(view) : nullptr;
}

PyObject* Shape(const AnyopTensor& view) { return NewSizes(view.shape, view.ndim); }
PyObject* Strides(const AnyopTensor& view) { return NewSizes(view.strides, view.ndim); }

// Of torch's dtypes that no operator of anyop has, too.
const char* DtypeText(const AnyopTensor& view) {
  const int known = AnyopDtypeOf(&view);
  if (known != kAnyopNoDtype) return DtypeName(known);
  static const struct {
    uint8_t code, bits;
    const char* name;
  } others[] = {{5, 32, "complex32"},
                {11, 8, "float8_e4m3fnuz"},
                {13, 8, "float8_e5m2fnuz"},
                {14, 8, "float8_e8m0fnu"}};
  for (const auto& type : others) {
    if (type.code == view.dtype_code && type.bits == view.dtype_bits) return type.name;
  }
  return "opaque";
}

PyObject* Dtype(const AnyopTensor& view) { return PyUnicode_FromString(DtypeText(view)); }

PyObject* Device(const AnyopTensor& view) {
  if (view.device_type == kDLCPU) return PyUnicode_FromString("cpu");
  const char* name = view.device_type == kDLCUDA ? "cuda" : "device";
  return PyUnicode_FromFormat("%s:%d", name, view.device_id);
}

void SetVersion(DLManagedTensorVersioned* managed, uint32_t flags) {
  managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed->flags = flags & kAnyopAtenReadOnly ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
}

template <typename Managed>
void DeleteWithObject(Managed* managed) {
  ReleaseObject(managed->manager_ctx);
  std::free(managed);
}

// Lets the consumer's stream wait for torch's.
bool Order(const AnyopTensor& view, PyObject* stream) {
  if (view.device_type != kDLCUDA || !stream || stream == Py_None) return true;
  const long long address = PyLong_AsLongLong(stream);
  if (address == -1) return !PyErr_Occurred();
  const Ref ours = TorchStreamAddress(view.device_id);
  if (!ours) return false;
  if (PyLong_AsLongLong(ours.get()) == address) return true;
  const Ref cuda = Attribute(torch_objects.torch, "cuda");
  const Ref current = TorchStream(view.device_id);
  const Ref theirs(
      address <= 2
          ? PyObject_CallMethod(cuda.get(), "default_stream", "i", view.device_id)
          : PyObject_CallMethod(cuda.get(), "ExternalStream", "Li", address, view.device_id));
  if (!current || !theirs) return false;
  const Ref done(PyObject_CallMethod(theirs.get(), "wait_stream", "O", current.get()));
  return static_cast<bool>(done);
}

// In the form before DLPack 1.0, which cannot say that memory is read-only.
PyObject* OldCapsule(PyObject* self, const AnyopTensor& view, uint32_t flags) {
  if ((flags & kAnyopAtenReadOnly) && !In(self)->for_reader)
    return Raise(PyExc_BufferError,
                 "AtenTensor: the memory is read-only, which DLPack before 1.0 cannot say");
  auto* managed = NewManagedOf<DLManagedTensor>(view, self, DeleteWithObject);
  if (!managed) return nullptr;
  Py_INCREF(self);
  return NewCapsuleOf(managed, "dltensor");
}

PyObject* Dlpack(PyObject* self, PyObject* args, PyObject* keywords) {
  PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
  static const char* names[] = {"stream", "max_version", "dl_device", "copy", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO", const_cast<char**>(names), &stream,
                                   &version, &device, &copy))
    return nullptr;
  int major = 0, minor = 0;
  if (version != Py_None && !PyArg_ParseTuple(version, "ii", &major, &minor)) return nullptr;
  if (copy == Py_True) return Raise(PyExc_BufferError, "AtenTensor: gives its memory, not a copy");
  AnyopTensor view;
  uint32_t flags;
  if (!ViewAtenTensor(self, &view, &flags) || !Order(view, stream)) return nullptr;
  if (major < DLPACK_MAJOR_VERSION) return OldCapsule(self, view, flags);
  auto* managed = NewManagedOf<DLManagedTensorVersioned>(view, self, DeleteWithObject);
  if (!managed) return nullptr;
  Py_INCREF(self);
  SetVersion(managed, flags);
  return NewCapsuleOf(managed, "dltensor_versioned");
}

PyObject* DlpackDevice(PyObject* self, PyObject*) {
  AnyopTensor view;
  return View(self, &view) ? Py_BuildValue("(ii)", view.device_type, view.device_id) : nullptr;
}

PyObject* Text(PyObject* self) {
  AnyopTensor view;
  if (!View(self, &view)) {
    PyErr_Clear();
    return PyUnicode_FromString("<AtenTensor without plain memory>");
  }
  const Ref shape(NewSizes(view.shape, view.ndim)), device(Device(view));
  if (!shape || !device) return nullptr;
  return PyUnicode_FromFormat("<AtenTensor %s %R on %U>", DtypeText(view), shape.get(),
                              device.get());
}

void Delete(PyObject* self) {
  if (In(self)->cell) AnyopAtenRelease(In(self)->cell);
  FreeObject(self);
}

PyGetSetDef attributes[] = {{"shape", Guarded<Of<Shape>>, nullptr, nullptr, nullptr},
                            {"strides", Guarded<Of<Strides>>, nullptr, "in elements", nullptr},
                            {"dtype", Guarded<Of<Dtype>>, nullptr, nullptr, nullptr},
                            {"device", Guarded<Of<Device>>, nullptr, nullptr, nullptr},
                            {}};

PyMethodDef methods[] = {
    {"__dlpack__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Guarded<Dlpack>)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {"__dlpack_device__", Guarded<DlpackDevice>, METH_NOARGS, nullptr},
    {}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A tensor of torch's that no framework has taken yet.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(Delete)},
    {Py_tp_repr, reinterpret_cast<void*>(Guarded<Text>)},
    {Py_tp_getset, attributes},
    {Py_tp_methods, methods},
    {0, nullptr}};

const ModulePart part({"anyop._anyop.AtenTensor", sizeof(Tensor), 0,
                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots},
                      &tensor_type);

}  // namespace

bool IsAtenTensor(PyObject* object) { return Py_TYPE(object) == tensor_type; }

AnyopAtenTensor* AtenTensorIn(PyObject* object) { return In(object)->cell; }

PyObject* NewAtenTensor(AnyopAtenTensor* tensor, bool for_reader) {
  PyObject* object = PyType_GenericAlloc(tensor_type, 0);
  if (!object) return AnyopAtenRelease(tensor), nullptr;
  In(object)->cell = tensor;
  In(object)->for_reader = for_reader;
  return object;
}

bool ViewAtenTensor(PyObject* object, AnyopTensor* view, uint32_t* flags) {
  const int32_t status = AnyopAtenView(&In(object)->cell, view, flags);
  if (status) RaiseStatus(status, AnyopLastError());
  return status == kAnyopOk;
}

DLManagedTensorVersioned* NewManaged(AnyopAtenTensor* tensor, const AnyopTensor& view,
                                     uint32_t flags, bool late) {
  auto now = [](DLManagedTensorVersioned* held) {
    AnyopAtenRelease(static_cast<AnyopAtenTensor*>(held->manager_ctx));
    std::free(held);
  };
  auto later = [](DLManagedTensorVersioned* held) {
    DoLate([](void* cell) { AnyopAtenRelease(static_cast<AnyopAtenTensor*>(cell)); },
           held->manager_ctx);
    std::free(held);
  };
  auto* managed = late ? NewManagedOf<DLManagedTensorVersioned>(view, tensor, later)
                       : NewManagedOf<DLManagedTensorVersioned>(view, tensor, now);
  if (managed)
    SetVersion(managed, flags);
  else
    AnyopAtenRelease(tensor);
  return managed;
}

Ref TorchStream(int index) {
  const Ref cuda = Attribute(torch_objects.torch, "cuda");
  return Ref(PyObject_CallMethod(cuda.get(), "current_stream", "i", index));
}

Ref TorchStreamAddress(int index) {
  const Ref stream = TorchStream(index);
  Ref address(stream ? PyObject_GetAttrString(stream.get(), "cuda_stream") : nullptr);
  if (address && PyObject_Not(address.get()))
    address = Ref(PyLong_FromLong(1));  // DLPack's default
  return address;
}

}  // namespace anyop
