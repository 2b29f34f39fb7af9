// SPDX-License-Identifier: Apache-2.0
// JAX's arrays: operators reach them by XLA alone, ATen's by DLPack.
#include "frameworks/dlpack.h"
#include "frameworks/loans.h"
#include "module.h"
#include "xla_entry.h"

namespace anyop {
namespace {

Ref Tracer() { return Attribute(Attribute(LoadedModule("jax"), "core").get(), "Tracer"); }

extern const Framework row;

// Arrays and what stands for them under a transformation.
Found Find(PyTypeObject* type, std::string*) {
  const Ref array = Attribute(LoadedModule("jax"), "Array");
  if (!IsSubtype(type, array) && !IsSubtype(type, Tracer())) return kNotMine;
  return Remember(type, false, {&row, nullptr, false});
}

bool IsTraced(PyObject* object) { return IsSubtype(Py_TYPE(object), Tracer()); }

// __dlpack__ waits for the value on the host, and lets the reader's stream wait for it on a device.
Way View(Loans* loans, const Source*, PyObject* object, bool writes, AnyopTensor* tensor) {
  const Ref ask = Attribute(object, "__dlpack_device__");
  if (!ask)
    return loans->Reject(PyExc_TypeError,
                         "is " + ObjectText(Py_TYPE(object)) + ", which holds no numbers");
  const Ref device(PyObject_CallObject(ask.get(), nullptr));
  int kind, index;
  if (!device || !PyArg_ParseTuple(device.get(), "ii", &kind, &index)) return Way::kRefused;
  Ref stream;
  if (kind != kDLCPU && !(stream = loans->stream_of(index))) return Way::kRefused;
  return ViewCapsule(loans, object, stream.get(), writes, tensor);
}

// jax_handlers(): {platform: capsule of the handler}, for jax.ffi.register_ffi_target.
PyObject* Handlers(PyObject*, PyObject*) {
  const Ref cpu(PyCapsule_New(reinterpret_cast<void*>(AnyopXlaCpu), nullptr, nullptr));
  const Ref cuda(PyCapsule_New(reinterpret_cast<void*>(AnyopXlaCuda), nullptr, nullptr));
  return cpu && cuda ? Py_BuildValue("{sOsO}", "cpu", cpu.get(), "CUDA", cuda.get()) : nullptr;
}

PyObject* Waits(PyObject*, PyObject*) { return PyBool_FromLong(AnyopXlaWaits()); }

PyMethodDef methods[] = {{"jax_handlers", Guarded<Handlers>, METH_NOARGS, nullptr},
                         {"xla_waits", Guarded<Waits>, METH_NOARGS, nullptr},
                         {}};
const ModulePart part(methods);

const Framework row = [] {
  Framework f;
  f.name = "jax";
  f.adapter = "anyop.jax.dispatch";
  f.view_holds = true;
  f.find = Find;
  f.view = View;
  f.is_read_only = [](PyObject*) { return true; };  // whatever the capsule says
  f.take = {"anyop.jax.aten", "array"};
  f.is_immutable = true;
  f.is_traced = IsTraced;
  f.traced = "anyop.jax.aten";
  f.renamed = {"jaxlib._jax.ArrayImpl", "jax.Array"};
  return f;
}();
const Listed listed(&row);

}  // namespace
}  // namespace anyop
