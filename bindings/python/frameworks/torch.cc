// SPDX-License-Identifier: Apache-2.0
// With the glue one call a tensor. Without it torch's own Python attributes, through their C
// functions where those can be had.
#include "frameworks/torch.h"

#include <atomic>
#include <mutex>

#include "frameworks/query.h"

namespace anyop {
namespace {

struct Guard {
  // All three or none.
  const AnyopTorchGlue* glue = nullptr;
  Py_ssize_t offset = 0;
  WrapTensor wrap = nullptr;

  Query requires_grad, is_neg, is_conj, is_inference, grad_enabled;
  Query
      watchers[5];  // something else than 0, None or False: a mode, a transform or a profiler is on
  PyObject* increment_version = nullptr;
  // Of torch.autograd.forward_ad, for its _current_level: -1 outside of every dual_level(). nullptr
  // where there is none.
  PyObject* forward_ad = nullptr;
  PyObject* level_name = nullptr;
  PyObject* no_level = nullptr;
};
std::atomic<const Guard*> guard{nullptr};
std::mutex init_lock;
thread_local bool below_dispatcher = false;

void FindForwardAd(PyObject* torch, Guard* guard) {
  const Ref module = Attribute(Attribute(torch, "autograd").get(), "forward_ad");
  if (!module || !Attribute(module.get(), "_current_level")) return;
  guard->forward_ad = PyModule_GetDict(module.get());  // borrowed: torch is never unloaded
  guard->level_name = PyUnicode_InternFromString("_current_level");
  guard->no_level = PyLong_FromLong(-1);
}

// Inside dual_level() tensors may carry tangents, and nothing cheap says which do.
bool InForwardLevel(const Guard& g) {
  PyObject* level = g.forward_ad ? PyDict_GetItemWithError(g.forward_ad, g.level_name) : nullptr;
  if (__builtin_expect(level == g.no_level || !level, 1))
    return false;  // -1 is one object in CPython
  return PyLong_AsLong(level) >= 0;
}

void FindGlue(PyObject* torch, Guard* guard) {
  guard->glue = LoadTorchGlue();
  guard->offset = guard->glue ? FindTensorOffset(torch) : 0;
  guard->wrap = FindWrapTensor();
  if (!guard->offset || !guard->wrap) guard->glue = nullptr;
}

bool FindWatchers(PyObject* c, Guard* made) {
  const char* const names[] = {"_len_torch_dispatch_stack", "_len_torch_function_stack",
                               "_is_any_autocast_enabled", "_get_tracing_state",
                               "_profiler_enabled"};
  const Ref autograd = Attribute(c, "_autograd");
  Query* query = made->watchers;
  for (const char* name : names) {
    PyObject* owner = name == names[4] ? autograd.get() : c;
    if (!owner || !MakeQuery(owner, owner, name, false, query)) return false;
    Py_INCREF(owner);
    (query++)->owner = owner;
  }
  return true;
}

bool Quiet(const Guard& g) {
  for (const Query& query : g.watchers) {
    const Ref answer(query.Ask(query.owner));
    if (!answer || PyObject_IsTrue(answer.get()) != 0) return false;
  }
  return true;
}

bool FindAttributes(PyObject* torch, Guard* made) {
  const Ref c = Attribute(torch, "_C");
  const Ref base = Attribute(c.get(), "TensorBase");
  const Ref samples(PlainSamples(torch, 1));
  PyObject* const sample = samples ? PyList_GetItem(samples.get(), 0) : nullptr;
  made->increment_version = Attribute(c.get(), "_increment_version").Release();
  const bool found = sample && base && made->increment_version &&
                     MakeQuery(base.get(), sample, "requires_grad", true, &made->requires_grad) &&
                     MakeQuery(base.get(), sample, "is_neg", false, &made->is_neg) &&
                     MakeQuery(base.get(), sample, "is_conj", false, &made->is_conj) &&
                     MakeQuery(base.get(), sample, "is_inference", false, &made->is_inference) &&
                     MakeQuery(c.get(), c.get(), "is_grad_enabled", false, &made->grad_enabled) &&
                     FindWatchers(c.get(), made);
  made->grad_enabled.owner = c.get();
  Py_XINCREF(c.get());  // kept, as torch is never unloaded
  if (!found) PyErr_Clear();
  return found;
}

Way ReadModeByAttributes(const Guard& g, TorchMode* mode) {
  const int records = g.grad_enabled.AskTruth(g.grad_enabled.owner);
  mode->flags = records == 1 ? kAnyopTorchRecords : 0;
  return records >= 0 && Quiet(g) && !InForwardLevel(g) ? Way::kPlain : Way::kDispatch;
}

Way ViewByAttributes(const Guard& g, const Source* source, PyObject* object, bool writes,
                     TorchMode* mode, AnyopTensor* tensor) {
  if (!source->api ||
      source->api->dltensor_from_py_object_no_sync(object, reinterpret_cast<DLTensor*>(tensor)))
    return Way::kDispatch;
  constexpr int kComplexCode = 5;
  const bool records = mode->flags & kAnyopTorchRecords;
  const int negative = g.is_neg.AskTruth(object);
  const int conjugate = tensor->dtype_code == kComplexCode ? g.is_conj.AskTruth(object) : 0;
  const int inference = writes ? g.is_inference.AskTruth(object) : 0;
  if (negative || conjugate || inference) return Way::kDispatch;
  const int needs_gradient = records ? g.requires_grad.AskTruth(object) : 0;
  if (needs_gradient < 0) return Way::kDispatch;
  return needs_gradient ? Way::kGradient : Way::kPlain;
}

Way WayOf(int32_t verdict) {
  static_assert(static_cast<int>(Way::kGradient) == kAnyopTorchGradient &&
                static_cast<int>(Way::kDispatch) == kAnyopTorchDispatch);
  return static_cast<Way>(verdict);
}

void* ImplOf(const Guard& g, PyObject* object) {
  return *reinterpret_cast<void**>(reinterpret_cast<char*>(object) + g.offset);
}

}  // namespace

const AnyopTorchGlue* LoadTorchGlue() {
  const Ref module(PyImport_ImportModule("anyop.native.glues"));
  const Ref address(module ? PyObject_CallMethod(module.get(), "load", "s", "torch_glue")
                           : nullptr);
  void* glue = address && address.get() != Py_None ? PyLong_AsVoidPtr(address.get()) : nullptr;
  if (PyErr_Occurred()) PyErr_Clear();
  return static_cast<const AnyopTorchGlue*>(glue);
}

bool InitTorchGuard(PyObject* torch, std::string* why) {
  if (guard.load(std::memory_order_acquire)) return true;
  auto* made = new Guard;
  FindForwardAd(torch, made);
  FindGlue(torch, made);
  if (!FindAttributes(torch, made) && !made->glue) {
    delete made;
    *why = "is a tensor of a torch whose attributes were not found; expected torch 2.9 or newer";
    return false;
  }
  std::lock_guard<std::mutex> lock(init_lock);
  if (!guard.load()) guard.store(made, std::memory_order_release);
  return true;
}

PyObject* CallBelowDispatcher(PyObject*, PyObject* args) {
  PyObject *function, *positional, *named;
  if (!PyArg_ParseTuple(args, "OOO", &function, &positional, &named)) return nullptr;
  const bool before = below_dispatcher;
  below_dispatcher = true;
  PyObject* result = PyObject_Call(function, positional, named);
  below_dispatcher = before;
  return result;
}

bool IsBelowDispatcher() { return below_dispatcher; }

Way ReadTorchMode(TorchMode* mode) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  mode->glue = g.glue;
  mode->flags = 0;
  if (__builtin_expect(below_dispatcher, 0)) {
    mode->below = true;
    return Way::kPlain;
  }
  if (__builtin_expect(g.glue != nullptr, 1)) return WayOf(g.glue->thread_verdict(&mode->flags));
  return ReadModeByAttributes(g, mode);
}

Way ViewTorchTensor(const Source* source, PyObject* object, bool writes, TorchMode* mode,
                    AnyopTensor* tensor) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  if (__builtin_expect(!mode->glue, 0))
    return ViewByAttributes(g, source, object, writes, mode, tensor);
  int32_t flags = (mode->flags & kAnyopTorchRecords) | (writes ? int{kAnyopTorchWrites} : 0);
  void* impl = ImplOf(g, object);
  const Way way =
      __builtin_expect(below_dispatcher, 0)  // a tensor of a forward level is no matter
          ? (mode->glue->view_memory(impl, &flags, tensor) ? Way::kDispatch : Way::kPlain)
          : WayOf(mode->glue->view(impl, &flags, tensor));
  mode->flags |= flags & (kAnyopTorchShortStorage | kAnyopTorchFrozen | kAnyopTorchLazy);
  return way;
}

void MarkTorchWritten(const TorchMode& mode, PyObject* object) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  if (mode.glue) return mode.glue->written(ImplOf(g, object));
  const Ref tensors(PyTuple_Pack(1, object));
  const Ref done(PyObject_CallFunctionObjArgs(g.increment_version, tensors.get(), nullptr));
  if (!done) PyErr_Clear();
}

void* TorchTensorImpl(PyObject* object) {
  return ImplOf(*guard.load(std::memory_order_acquire), object);
}

PyObject* NewTorchTensor(const TorchMode& mode, AnyopTensor* tensor) {
  void* impl = nullptr;
  char why[512];
  why[0] = 0;
  if (const int32_t status = mode.glue->new_tensor(tensor, &impl, why, sizeof why)) {
    PyErr_SetString(status == kAnyopOutOfMemory ? PyExc_MemoryError : PyExc_TypeError, why);
    return nullptr;
  }
  return WrapTorchTensor(mode, impl);
}

PyObject* WrapTorchTensor(const TorchMode& mode, void* impl) {
  PyObject* object = guard.load(std::memory_order_acquire)->wrap(&impl);
  mode.glue->release(impl);
  return object;
}

bool FindTorchLender(TorchLender* lender) {
  const Ref frameworks(PyImport_ImportModule("anyop._frameworks"));
  Ref torch(frameworks ? PyObject_CallMethod(frameworks.get(), "real_torch", nullptr) : nullptr);
  std::string why;
  const bool found = torch && torch.get() != Py_None && InitTorchGuard(torch.get(), &why);
  PyErr_Clear();
  const Guard* g = found ? guard.load(std::memory_order_acquire) : nullptr;
  if (!g || !g->glue) return false;
  *lender = {g->glue, g->wrap, torch.Release()};  // torch is never unloaded
  return true;
}

}  // namespace anyop
