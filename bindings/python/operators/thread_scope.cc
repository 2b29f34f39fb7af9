// SPDX-License-Identifier: Apache-2.0
// The scope of the calling thread or task as an attribute, which torch.compile can read and guard:
// of ThreadScope(get), `text` is what get() returns. Dynamo refuses a ContextVar, but reads an
// attribute with a getter in C, and reads it again in the guard of what it has compiled, in the
// calling thread.
#include "module.h"
#include "objects.h"

namespace anyop {
namespace {

struct ThreadScope {
  PyObject ob_base;
  PyObject* get;
};

PyObject* Get(PyObject* self, void*) {
  return PyObject_CallObject(reinterpret_cast<ThreadScope*>(self)->get, nullptr);
}

// Traced code sets the attribute where it enters and leaves a block. In its compiled form only the
// last value is set, at the end: the one that the scope had before.
int Set(PyObject* self, PyObject* value, void*) {
  const Ref now(value ? Get(self, nullptr) : nullptr);
  const int equal = now ? PyObject_RichCompareBool(now.get(), value, Py_EQ) : 0;
  if (equal == 1) return 0;
  if (!PyErr_Occurred())
    PyErr_SetString(PyExc_RuntimeError,
                    "use: a block that began in compiled code did not end there");
  return -1;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* get;
  if (!PyArg_ParseTuple(args, "O", &get)) return nullptr;
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self) reinterpret_cast<ThreadScope*>(self)->get = Py_NewRef(get);
  return self;
}

void Delete(PyObject* self) {
  Py_DECREF(reinterpret_cast<ThreadScope*>(self)->get);
  FreeObject(self);
}

PyGetSetDef attributes[] = {{"text", Guarded<Get>, Guarded<Set>, "None: no scope", nullptr}, {}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(Guarded<New>)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(Delete)},
                       {Py_tp_getset, attributes},
                       {0, nullptr}};

PyTypeObject* scope_type = nullptr;
const ModulePart part({"anyop._anyop.ThreadScope", sizeof(ThreadScope), 0, Py_TPFLAGS_DEFAULT,
                       slots},
                      &scope_type);

}  // namespace
}  // namespace anyop
