// SPDX-License-Identifier: Apache-2.0
// Asks torch's own Python attributes, through their C functions where those can be had.
#include "torch_guard.h"

#include <atomic>
#include <mutex>

namespace anyop {
namespace {

// A method without arguments, or a property: called as the C function behind it, else as an
// attribute.
struct Query {
  PyObject* name = nullptr;
  PyObject* descriptor = nullptr;  // a property
  descrgetfunc get = nullptr;
  PyCFunction function = nullptr;  // a method, or a function of a module (then owner is the module)
  PyObject* owner = nullptr;

  // A new reference, or nullptr with an error set.
  PyObject* Ask(PyObject* object) const {
    if (get) return get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    if (function) return function(object, nullptr);
    return PyObject_CallMethodObjArgs(object, name, nullptr);
  }
  int AskTruth(PyObject* object) const {
    const Ref answer(Ask(object));
    if (answer.get() == Py_False) return 0;
    return answer ? PyObject_IsTrue(answer.get()) : -1;
  }
};

struct Guard {
  Query requires_grad, is_neg, is_conj, grad_enabled, num_modes;
  // Of torch.autograd.forward_ad, for its _current_level: -1 outside of every dual_level(). nullptr
  // where there is none.
  PyObject* forward_ad = nullptr;
  PyObject* level_name = nullptr;
  PyObject* no_level = nullptr;
};
std::atomic<const Guard*> guard{nullptr};
std::mutex init_lock;

PyCFunction CFunction(PyObject* bound) {
  const Ref builtins(PyImport_ImportModule("builtins"));
  const Ref len = Attribute(builtins.get(), "len");
  if (!bound || !len || Py_TYPE(bound) != Py_TYPE(len.get())) return nullptr;
  return PyCFunction_GetFlags(bound) == METH_NOARGS ? PyCFunction_GetFunction(bound) : nullptr;
}

bool MakeQuery(PyObject* owner, PyObject* sample, const char* name, bool is_property,
               Query* query) {
  query->name = PyUnicode_InternFromString(name);
  Ref attribute = Attribute(owner, name);
  if (!attribute) return false;
  if (is_property) {
    query->get =
        reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(attribute.get()), Py_tp_descr_get));
    query->descriptor = attribute.Release();
    return query->get != nullptr;
  }
  query->function = CFunction(Attribute(sample, name).get());
  return true;
}

void FindForwardAd(PyObject* torch, Guard* guard) {
  const Ref module = Attribute(Attribute(torch, "autograd").get(), "forward_ad");
  if (!module || !Attribute(module.get(), "_current_level")) return;
  guard->forward_ad = PyModule_GetDict(module.get());  // borrowed: torch is never unloaded
  guard->level_name = PyUnicode_InternFromString("_current_level");
  guard->no_level = PyLong_FromLong(-1);
}

// Inside dual_level() tensors may carry tangents, and nothing cheap says which do.
bool NoForwardLevel(const Guard& g, std::string* why) {
  PyObject* level = g.forward_ad ? PyDict_GetItemWithError(g.forward_ad, g.level_name) : nullptr;
  if (__builtin_expect(level == g.no_level || !level, 1))
    return true;  // -1 is one object in CPython
  const long depth = PyLong_AsLong(level);
  if (depth < 0) return true;
  *why =
      "is used inside torch.autograd.forward_ad.dual_level(), whose tangents this call would lose";
  return false;
}

}  // namespace

bool InitTorchGuard(PyObject* torch, std::string* why) {
  if (guard.load(std::memory_order_acquire)) return true;
  const Ref c = Attribute(torch, "_C");
  const Ref base = Attribute(c.get(), "TensorBase");
  const Ref sample(PyObject_CallMethod(torch, "empty", "(i)", 0));
  auto* made = new Guard;
  const bool found =
      sample && base &&
      MakeQuery(base.get(), sample.get(), "requires_grad", true, &made->requires_grad) &&
      MakeQuery(base.get(), sample.get(), "is_neg", false, &made->is_neg) &&
      MakeQuery(base.get(), sample.get(), "is_conj", false, &made->is_conj) &&
      MakeQuery(c.get(), c.get(), "is_grad_enabled", false, &made->grad_enabled) &&
      MakeQuery(c.get(), c.get(), "_len_torch_dispatch_stack", false, &made->num_modes);
  if (!found) {
    PyErr_Clear();
    delete made;
    *why = "is a tensor of a torch whose attributes were not found; expected torch 2.9 or newer";
    return false;
  }
  made->grad_enabled.owner = made->num_modes.owner = c.get();
  FindForwardAd(torch, made);
  Py_INCREF(c.get());  // kept, as torch is never unloaded
  std::lock_guard<std::mutex> lock(init_lock);
  if (!guard.load()) guard.store(made, std::memory_order_release);
  return true;
}

bool ReadTorchMode(TorchMode* mode, std::string* why) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  const Ref count(g.num_modes.Ask(g.num_modes.owner));
  const int records = g.grad_enabled.AskTruth(g.grad_enabled.owner);
  mode->records_gradients = records != 0;
  if (count && PyLong_AsLong(count.get()) == 0 && records >= 0) return NoForwardLevel(g, why);
  *why =
      "is used under a torch dispatch mode (such as FakeTensorMode), which does not see this call";
  return false;
}

bool TorchTensorIsPlain(PyObject* tensor, TorchMode mode, bool is_complex, std::string* why) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  const int needs_gradient = mode.records_gradients ? g.requires_grad.AskTruth(tensor) : 0;
  const int negative = g.is_neg.AskTruth(tensor);
  const int conjugate = is_complex ? g.is_conj.AskTruth(tensor) : 0;
  if (__builtin_expect(needs_gradient == 0 && negative == 0 && conjugate == 0, 1)) return true;
  if (needs_gradient < 0 || negative < 0 || conjugate < 0) return false;
  if (negative)
    *why =
        "has torch's lazy negative bit, so its memory is not its value; call .resolve_neg() first";
  if (conjugate)
    *why =
        "has torch's lazy conjugate bit, so its memory is not its value; call .resolve_conj() "
        "first";
  if (needs_gradient)
    *why = "requires a gradient, which this call would lose; use torch.no_grad() or .detach()";
  return false;
}

}  // namespace anyop
