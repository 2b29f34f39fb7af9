// SPDX-License-Identifier: Apache-2.0
// With the glue one call a tensor. Without it torch's own Python attributes, through their C
// functions where those can be had.
#include "frameworks/torch.h"

#include <atomic>
#include <mutex>

#include "frameworks/dlpack.h"
#include "frameworks/loans.h"
#include "frameworks/query.h"
#include "module.h"
#include "torch_entry.h"

namespace anyop {
namespace {

struct Access {
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
std::atomic<const Access*> access{nullptr};
std::mutex init_lock;

void FindForwardAd(PyObject* torch, Access* access) {
  const Ref module = Attribute(Attribute(torch, "autograd").get(), "forward_ad");
  if (!module || !Attribute(module.get(), "_current_level")) return;
  access->forward_ad = PyModule_GetDict(module.get());  // borrowed: torch is never unloaded
  access->level_name = PyUnicode_InternFromString("_current_level");
  access->no_level = PyLong_FromLong(-1);
}

// Inside dual_level() tensors may carry tangents, and nothing cheap says which do.
bool InForwardLevel(const Access& g) {
  PyObject* level = g.forward_ad ? PyDict_GetItemWithError(g.forward_ad, g.level_name) : nullptr;
  if (__builtin_expect(level == g.no_level || !level, 1))
    return false;  // -1 is one object in CPython
  return PyLong_AsLong(level) >= 0;
}

void FindGlue(PyObject* torch, Access* access) {
  access->glue = LoadTorchGlue();
  access->offset = access->glue ? FindTensorOffset(torch) : 0;
  access->wrap = FindWrapTensor();
  if (!access->offset || !access->wrap) access->glue = nullptr;
}

bool FindWatchers(PyObject* c, Access* made) {
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

bool Quiet(const Access& g) {
  for (const Query& query : g.watchers) {
    const Ref answer(query.Ask(query.owner));
    if (!answer || PyObject_IsTrue(answer.get()) != 0) return false;
  }
  return true;
}

bool FindAttributes(PyObject* torch, Access* made) {
  const Ref c = Attribute(torch, "_C");
  const Ref base = Attribute(c.get(), "TensorBase");
  const Ref samples = PlainSamples(torch, 1);
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

Way ReadModeByAttributes(const Access& g, Mode* mode) {
  const int records = g.grad_enabled.AskTruth(g.grad_enabled.owner);
  mode->flags = records == 1 ? kAnyopTorchRecords : 0;
  return records >= 0 && Quiet(g) && !InForwardLevel(g) ? Way::kPlain : Way::kDispatch;
}

Way ViewByAttributes(const Access& g, const Source* source, PyObject* object, bool writes,
                     const Mode& mode, AnyopTensor* tensor) {
  if (!source->api || !ViewByExchange(source, object, tensor)) return Way::kDispatch;
  const bool records = mode.flags & kAnyopTorchRecords;
  const int negative = g.is_neg.AskTruth(object);
  const int conjugate = tensor->dtype_code == kDLComplex ? g.is_conj.AskTruth(object) : 0;
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

void* ImplOf(const Access& g, PyObject* object) {
  return *reinterpret_cast<void**>(reinterpret_cast<char*>(object) + g.offset);
}

// Finds what the loaded torch offers: the glue, else what its Python attributes say; once. False
// with *why set when there is neither.
bool Init(PyObject* torch, std::string* why) {
  if (access.load(std::memory_order_acquire)) return true;
  auto* made = new Access;
  FindForwardAd(torch, made);
  FindGlue(torch, made);
  if (!FindAttributes(torch, made) && !made->glue) {
    delete made;
    *why = "is a tensor of a torch whose attributes were not found; expected torch 2.9 or newer";
    return false;
  }
  std::lock_guard<std::mutex> lock(init_lock);
  if (!access.load()) access.store(made, std::memory_order_release);
  return true;
}

const Access& TheAccess() { return *access.load(std::memory_order_acquire); }

// PyTorch's module, also while another framework answers to its name.
Ref RealTorch() {
  PyObject* torch = LoadedModule("torch");
  bool is_hidden = false;
  EachFramework([&](const Framework& row) { is_hidden |= row.proxy && LoadedModule(row.proxy); });
  if (!is_hidden) return Ref(Py_XNewRef(torch));
  Ref real = CallImported("anyop._frameworks", "real_torch", nullptr);
  if (!real) PyErr_Clear();
  return real.get() == Py_None ? Ref() : std::move(real);
}

Found Find(PyTypeObject* type, std::string* why) {
  const Ref module = RealTorch();
  PyObject* torch = module.get();
  const Ref tensor = Attribute(torch, "Tensor");
  if (IsSubtype(type, tensor)) {
    const Ref parameter = Attribute(Attribute(torch, "nn").get(), "Parameter");
    if (!Init(torch, why)) return {true, nullptr};
    const bool plain = Is(type, tensor) || Is(type, parameter);
    return Remember(type, plain, {&torch_framework, plain ? ExchangeApi(type) : nullptr, plain});
  }
  if (!IsSubtype(type, Attribute(LoadedModule("torch.fx.proxy"), "Proxy"))) return kNotMine;
  *why =
      "is a torch.fx.Proxy, which has no values: torch.fx.symbolic_trace does not see into this "
      "function; torch.export and make_fx do, and it records torch.ops.<namespace>.<operator>";
  return {true, nullptr};
}

void* Impl(PyObject* object) { return ImplOf(TheAccess(), object); }

PyObject* Wrap(void* impl) {
  const Access& g = TheAccess();
  PyObject* object = g.wrap(&impl);
  g.glue->release(impl);
  return object;
}

void ReleaseImpl(void* impl) { TheAccess().glue->release(impl); }

void HoldImpls(Loans* loans, void* const* impls, uint64_t count) {
  const AnyopTorchGlue& glue = *TheAccess().glue;
  loans->Keep(glue.hold(impls, count), glue.let_go);
}

constexpr TensorImpls kImpls = {Impl, Wrap, ReleaseImpl, HoldImpls};

Way ReadMode(Mode* mode) {
  const Access& g = TheAccess();
  mode->impls = g.glue ? &kImpls : nullptr;
  if (__builtin_expect(below_dispatcher, 0)) return Way::kPlain;
  if (__builtin_expect(g.glue != nullptr, 1)) return WayOf(g.glue->thread_verdict(&mode->flags));
  return ReadModeByAttributes(g, mode);
}

Way ViewByGlue(const Access& g, PyObject* object, bool writes, Mode* mode, AnyopTensor* tensor) {
  int32_t flags = (mode->flags & kAnyopTorchRecords) | (writes ? int{kAnyopTorchWrites} : 0);
  void* impl = ImplOf(g, object);
  const Way way = __builtin_expect(below_dispatcher, 0)  // a tensor of a forward level is no matter
                      ? (g.glue->view_memory(impl, &flags, tensor) ? Way::kDispatch : Way::kPlain)
                      : WayOf(g.glue->view(impl, &flags, tensor));
  mode->flags |= flags & (kAnyopTorchShortStorage | kAnyopTorchFrozen | kAnyopTorchLazy);
  return way;
}

// An error of Python's may be set with Way::kDispatch; what is dispatched again will meet it again.
Way View(Loans* loans, const Source* source, PyObject* object, bool writes, AnyopTensor* tensor) {
  const Access& g = TheAccess();
  const Way way = __builtin_expect(g.glue != nullptr, 1)
                      ? ViewByGlue(g, object, writes, &loans->mode, tensor)
                      : ViewByAttributes(g, source, object, writes, loans->mode, tensor);
  if (__builtin_expect(way == Way::kDispatch, 0)) return way;
  const char* problem = AnyopTorchRefusal(loans->mode.flags);
  return __builtin_expect(!problem, 1) ? way : loans->Reject(PyExc_ValueError, problem);
}

// The version goes up.
void MarkWritten(PyObject* object) {
  const Access& g = TheAccess();
  if (g.glue) return g.glue->written(ImplOf(g, object));
  const Ref tensors(PyTuple_Pack(1, object));
  const Ref done(PyObject_CallFunctionObjArgs(g.increment_version, tensors.get(), nullptr));
  if (!done) PyErr_Clear();
}

int32_t Allocate(Loans* loans, AnyopTensor* tensor, PyObject** object) {
  const Access& g = TheAccess();
  if (!g.glue) return AllocateByExchange(loans, tensor, object);
  void* impl = nullptr;
  char why[512];
  why[0] = 0;
  if (const int32_t status = g.glue->new_tensor(tensor, &impl, why, sizeof why)) {
    PyErr_SetString(status == kAnyopOutOfMemory ? PyExc_MemoryError : PyExc_TypeError, why);
    return kAnyopPending;
  }
  *object = Wrap(impl);
  return *object ? kAnyopOk : kAnyopPending;
}

// open_torch_glue(path, torch's version): the address of the glue.
PyObject* OpenGlue(PyObject*, PyObject* args) {
  const char *path, *version, *why;
  if (!PyArg_ParseTuple(args, "ss", &path, &version)) return nullptr;
  const AnyopTorchGlue* glue = AnyopOpenTorchGlue(path, version, &why);
  if (!glue) return Raise(PyExc_ValueError, why);
  return PyLong_FromVoidPtr(const_cast<AnyopTorchGlue*>(glue));
}

PyMethodDef methods[] = {{"open_torch_glue", Guarded<OpenGlue>, METH_VARARGS, nullptr}, {}};
const ModulePart part(methods);

}  // namespace

const AnyopTorchGlue* LoadTorchGlue() {
  return static_cast<const AnyopTorchGlue*>(LoadGlue("torch_glue"));
}

bool FindTorchLender(TorchLender* lender) {
  Ref torch = CallImported("anyop._frameworks", "real_torch", nullptr);
  std::string why;
  const bool found = torch && torch.get() != Py_None && Init(torch.get(), &why);
  PyErr_Clear();
  const Access* g = found ? access.load(std::memory_order_acquire) : nullptr;
  if (!g || !g->glue) return false;
  *lender = {g->glue, g->wrap, torch.Release()};  // torch is never unloaded
  return true;
}

bool IsTorchInMode(PyObject* torch) {
  std::string why;
  Mode mode;
  const bool is_in = !Init(torch, &why) || ReadMode(&mode) == Way::kDispatch;
  if (PyErr_Occurred()) PyErr_Clear();
  return is_in;
}

const Framework torch_framework = [] {
  Framework f;
  f.name = "torch";
  f.adapter = "anyop.torch.adapter.dispatch";
  f.find = Find;
  f.read_mode = ReadMode;
  f.view = View;
  f.hold = HoldByExchange;
  f.mark_written = MarkWritten;
  f.allocate = Allocate;
  f.stream = StreamByExchange;
  f.tracer = "torch._C._dynamo.eval_frame";
  return f;
}();

const Listed listed(&torch_framework);

}  // namespace anyop
