// SPDX-License-Identifier: Apache-2.0
// Views, and the capsules they give.
#include "operators/view.h"

#include <string>

#include "frameworks/dlpack.h"
#include "gil.h"
#include "module.h"
#include "objects.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

PyTypeObject* view_type = nullptr;

struct View {
  PyObject_HEAD AnyopTensor tensor;
  int64_t sizes[2 * 32];  // shape, strides
};

const AnyopTensor& TensorOf(PyObject* self) { return reinterpret_cast<View*>(self)->tensor; }

PyObject* Shape(PyObject* self, void*) {
  return NewSizes(TensorOf(self).shape, TensorOf(self).ndim);
}
PyObject* Strides(PyObject* self, void*) {
  return NewSizes(TensorOf(self).strides, TensorOf(self).ndim);
}
PyObject* Dtype(PyObject* self, void*) {
  return PyUnicode_FromString(DtypeName(AnyopDtypeOf(&TensorOf(self))));
}
PyObject* DataPtr(PyObject* self, void*) { return PyLong_FromVoidPtr(TensorOf(self).data); }
PyObject* DeviceType(PyObject* self, void*) { return PyLong_FromLong(TensorOf(self).device_type); }
PyObject* DeviceId(PyObject* self, void*) { return PyLong_FromLong(TensorOf(self).device_id); }

// NumPy's letter and bytes; what NumPy has not is shown as unsigned integers of that size.
std::string TypeText(const AnyopTensor& t) {
  const char* letters = "iuf?uc";  // by DLDataTypeCode; 3 is no tensor's, 4 bfloat16
  const int bytes = t.dtype_bits / 8;
  const char letter = t.dtype_code <= 5 ? letters[t.dtype_code] : t.dtype_code == 6 ? 'b' : 'u';
  return std::string(bytes == 1 ? "|" : "<") + letter + std::to_string(bytes);
}

PyObject* ArrayInterface(PyObject* self, void*) {
  const AnyopTensor& t = TensorOf(self);
  if (t.device_type != 1)
    return Raise(PyExc_AttributeError, "__array_interface__: the memory is not the CPU's");
  const Ref shape(Shape(self, nullptr)), strides(NewSizes(t.strides, t.ndim, t.dtype_bits / 8));
  if (!shape || !strides) return nullptr;
  static char nothing[64];  // NumPy takes no NULL, not for an empty array either
  return Py_BuildValue("{sisOsOsss(NO)}", "version", 3, "shape", shape.get(), "strides",
                       strides.get(), "typestr", TypeText(t).c_str(), "data",
                       PyLong_FromVoidPtr(t.data ? t.data : nothing), Py_False);
}

void DeleteManaged(DLManagedTensor* managed) {
  const WithGil gil;
  if (gil) Py_DECREF(static_cast<PyObject*>(managed->manager_ctx));
  std::free(managed);
}

// The stream is the call's own: who takes the memory is told it beside.
PyObject* Dlpack(PyObject* self, PyObject*, PyObject*) {
  auto* managed = NewManagedOf<DLManagedTensor>(TensorOf(self), self, DeleteManaged);
  if (!managed) return nullptr;
  Py_INCREF(self);
  return NewCapsuleOf(managed, "dltensor");
}

PyObject* DlpackDevice(PyObject* self, PyObject*) {
  return Py_BuildValue("(ii)", TensorOf(self).device_type, TensorOf(self).device_id);
}

PyGetSetDef attributes[] = {
    {"shape", Guarded<Shape>, nullptr, nullptr, nullptr},
    {"strides", Guarded<Strides>, nullptr, "in elements", nullptr},
    {"dtype", Guarded<Dtype>, nullptr, nullptr, nullptr},
    {"data_ptr", Guarded<DataPtr>, nullptr, nullptr, nullptr},
    {"device_type", Guarded<DeviceType>, nullptr, "DLDeviceType", nullptr},
    {"device_id", Guarded<DeviceId>, nullptr, nullptr, nullptr},
    {"__array_interface__", Guarded<ArrayInterface>, nullptr, nullptr, nullptr},
    {}};

PyMethodDef methods[] = {
    {"__dlpack__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Guarded<Dlpack>)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {"__dlpack_device__", Guarded<DlpackDevice>, METH_NOARGS, nullptr},
    {}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A tensor of a call, for backends written in Python.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(FreeObject)},
    {Py_tp_getset, attributes},
    {Py_tp_methods, methods},
    {0, nullptr}};

const ModulePart part({"anyop._anyop.View", sizeof(View), 0,
                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots},
                      &view_type);

}  // namespace

PyObject* NewView(const AnyopTensor& tensor) {
  auto* view = reinterpret_cast<View*>(PyType_GenericAlloc(view_type, 0));
  if (!view) return nullptr;
  view->tensor = tensor;
  view->tensor.shape = view->sizes;
  view->tensor.strides = view->sizes + 32;
  for (int d = 0; d < tensor.ndim; ++d) {
    view->sizes[d] = tensor.shape[d];
    view->sizes[32 + d] = tensor.strides[d];
  }
  return reinterpret_cast<PyObject*>(view);
}

const AnyopTensor* TensorOfView(PyObject* object) {
  return Py_TYPE(object) == view_type ? &TensorOf(object) : nullptr;
}

}  // namespace anyop
