// SPDX-License-Identifier: Apache-2.0
// Paddle's eager tensors as memory. With the glue one call a tensor. Without it Paddle's exchange
// functions and its Python attributes, through their C functions where those can be had; new
// tensors by its Python.

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "../../paddle_glue/paddle_glue.h"
#include "anyop/library_file.h"
#include "frameworks/dlpack.h"
#include "frameworks/loans.h"
#include "frameworks/query.h"
#include "module.h"
#include "objects.h"

namespace anyop {
namespace {

struct Access {
  const AnyopPaddleGlue* glue = nullptr;
  PyObject* tensor = nullptr;     // paddle.Tensor
  PyObject* parameter = nullptr;  // EagerParamBase
  Query stop_gradient;
  PyObject* tracer = nullptr;  // paddle.base.framework._dygraph_tracer, of this thread
  PyObject* has_grad = nullptr;
  PyObject* amp_level = nullptr;
  PyObject* bump_version = nullptr;
  PyObject* new_tensor = nullptr;  // anyop._paddle_memory.new; may be missing
};
std::atomic<const Access*> access{nullptr};
std::mutex init_lock;

constexpr char kNoMemory[] =
    "is a paddle.Tensor without plain memory (sparse, distributed, or not initialized), expected a "
    "dense one";
constexpr char kShortStorage[] = "is larger than its storage";

bool FindAttributes(PyObject* paddle, Access* made) {
  const Ref base = Attribute(paddle, "base");
  const Ref framework = Attribute(base.get(), "framework");
  made->tensor = Attribute(paddle, "Tensor").Release();
  made->parameter = Attribute(framework.get(), "EagerParamBase").Release();
  made->tracer = Attribute(framework.get(), "_dygraph_tracer").Release();
  made->has_grad = PyUnicode_InternFromString("_has_grad");
  made->amp_level = PyUnicode_InternFromString("_amp_level");
  made->bump_version = Attribute(made->tensor, "_bump_inplace_version").Release();
  return made->parameter && made->tracer && made->bump_version &&
         MakeQuery(made->tensor, made->tensor, "stop_gradient", true, &made->stop_gradient);
}

// An attribute of this thread's tracer as a number. -1 where there is none, as while a static graph
// is made: an error may be set.
long AskTracer(const Access& g, PyObject* name) {
  const Ref tracer(PyObject_CallObject(g.tracer, nullptr));
  const Ref value(tracer ? PyObject_GetAttr(tracer.get(), name) : nullptr);
  return value ? PyLong_AsLong(value.get()) : -1;
}

Way Cleared(Way way) {
  PyErr_Clear();
  return way;
}

Way ViewMemory(Loans* loans, const Source* source, PyObject* object, AnyopTensor* tensor) {
  if (ViewByExchange(source, object, tensor)) return Way::kPlain;
  PyErr_Clear();
  return loans->Reject(PyExc_TypeError, kNoMemory);
}

Way ViewByGlue(const AnyopPaddleGlue& glue, Loans* loans, const Source* source, PyObject* object,
               AnyopTensor* tensor) {
  const int32_t view = glue.view(object, tensor);
  if (__builtin_expect(view == kAnyopPaddleViewed, 1)) return Way::kPlain;
  if (view == kAnyopPaddleOtherPlace) return ViewMemory(loans, source, object, tensor);
  return loans->Reject(PyExc_TypeError,
                       view == kAnyopPaddleShortStorage ? kShortStorage : kNoMemory);
}

int32_t NewByGlue(const AnyopPaddleGlue& glue, AnyopTensor* tensor, PyObject** object) {
  char why[512];
  why[0] = 0;
  void* made = nullptr;
  const int32_t status = glue.new_tensor(tensor, &made, why, sizeof why);
  *object = static_cast<PyObject*>(made);
  if (status != kAnyopOutOfMemory) return status;
  PyErr_SetString(PyExc_MemoryError, why);
  return kAnyopPending;
}

int32_t NewByPython(PyObject* make, const Source* source, AnyopTensor* tensor, PyObject** object) {
  const Ref sizes(NewSizes(tensor->shape, tensor->ndim));
  Ref made(sizes ? PyObject_CallFunction(make, "Oiiii", sizes.get(), int{tensor->dtype_code},
                                         int{tensor->dtype_bits}, tensor->device_type,
                                         tensor->device_id)
                 : nullptr);
  if (!made) return kAnyopPending;
  if (made.get() == Py_None) return kAnyopNotImplemented;
  AnyopTensor view;
  if (!ViewByExchange(source, made.get(), &view)) return kAnyopPending;
  tensor->data = static_cast<char*>(view.data) + view.byte_offset;
  *object = made.Release();
  return kAnyopOk;
}

// Finds what the loaded paddle offers: the glue, else what its Python attributes say; once. False
// with *why set when it is too old.
bool Init(PyObject* paddle, std::string* why) {
  if (access.load(std::memory_order_acquire)) return true;
  auto* made = new Access;
  if (!FindAttributes(paddle, made)) {
    PyErr_Clear();
    *why = "is a tensor of a paddle whose attributes were not found; expected paddle 3.3 or newer";
    delete made;
    return false;
  }
  made->glue = static_cast<const AnyopPaddleGlue*>(LoadGlue("paddle_glue"));
  made->new_tensor = Imported("anyop._paddle_memory", "new").Release();
  if (!made->new_tensor) PyErr_Clear();
  std::lock_guard<std::mutex> lock(init_lock);
  if (!access.load()) access.store(made, std::memory_order_release);
  return true;
}

// open_paddle_glue(path, Paddle's version): the address of the glue, which is for this Paddle and
// this anyop. It is never closed.
PyObject* OpenGlue(PyObject*, PyObject* args) {
  const char *path, *version;
  if (!PyArg_ParseTuple(args, "ss", &path, &version)) return nullptr;
  char problem[1024];
  void* library =
      AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, problem, sizeof problem);
  if (!library) return Raise(PyExc_ValueError, problem);
  auto entry = reinterpret_cast<AnyopPaddleGlueFunction>(dlsym(library, "AnyopPaddleGlueEntry"));
  const AnyopPaddleGlue* glue = entry ? entry() : nullptr;
  if (!glue || glue->version != ANYOP_PADDLE_GLUE_VERSION || glue->size < sizeof *glue)
    return Raise(PyExc_ValueError, "%s is no glue of this version of anyop", path);
  if (std::strcmp(glue->paddle_version, version) == 0)
    return PyLong_FromVoidPtr(const_cast<AnyopPaddleGlue*>(glue));
  return Raise(PyExc_ValueError, "%s is for Paddle %s, and Paddle %s is loaded", path,
               glue->paddle_version, version);
}

PyMethodDef methods[] = {{"open_paddle_glue", Guarded<OpenGlue>, METH_VARARGS, nullptr}, {}};
const ModulePart part(methods);

const Access& TheAccess() { return *access.load(std::memory_order_acquire); }

extern const Framework row;

Found Find(PyTypeObject* type, std::string* why) {
  PyObject* paddle = LoadedModule("paddle");
  if (IsSubtype(type, Attribute(paddle, "Tensor"))) {
    if (!Init(paddle, why)) return {true, nullptr};
    const DLPackExchangeAPI* api = ExchangeApi(type);
    // Itself and a layer's parameters; other subclasses are the adapter's.
    const auto* itself = reinterpret_cast<PyObject*>(type);
    const bool plain = api && (itself == TheAccess().tensor || itself == TheAccess().parameter);
    return Remember(type, plain, {&row, api, plain});
  }
  const Ref value = Attribute(Attribute(paddle, "pir").get(), "Value");
  const Ref variable = Attribute(Attribute(paddle, "static").get(), "Variable");
  if (!IsSubtype(type, value) && !IsSubtype(type, variable)) return kNotMine;
  return Remember(type, false, {&row, nullptr, false});
}

// The flags: whether gradients may be recorded.
Way ReadMode(Mode* mode) {
  const Access& g = TheAccess();
  mode->flags = 0;
  if (__builtin_expect(below_dispatcher, 0)) return Way::kPlain;
  if (__builtin_expect(g.glue != nullptr, 1)) {
    const int32_t state = g.glue->thread_state();
    mode->flags = state & kAnyopPaddleRecords;
    return state & kAnyopPaddleElsewhere ? Way::kDispatch : Way::kPlain;
  }
  mode->flags = 1;  // asked when a tensor wants a gradient, which few do outside of training
  return AskTracer(g, g.amp_level) == 0 ? Way::kPlain : Cleared(Way::kDispatch);
}

// Gives the thread Paddle's tracer where Paddle is in use. A thread that has not called Paddle yet
// has none, and its first call goes by the adapter, which wakes it; an explanation goes nowhere
// else.
void WakeThread() {
  const Access* g = access.load(std::memory_order_acquire);
  if (g && AskTracer(*g, g->amp_level) < 0) PyErr_Clear();
}

Way View(Loans* loans, const Source* source, PyObject* object, bool, AnyopTensor* tensor) {
  const Access& g = TheAccess();
  const Way way = __builtin_expect(g.glue != nullptr, 1)
                      ? ViewByGlue(*g.glue, loans, source, object, tensor)
                      : ViewMemory(loans, source, object, tensor);
  if (way != Way::kPlain || !loans->mode.flags) return way;
  const int stops = g.stop_gradient.AskTruth(object);
  if (__builtin_expect(stops == 1, 1)) return Way::kPlain;
  const long is_recorded = stops < 0 ? -1 : g.glue ? 1 : AskTracer(g, g.has_grad);
  if (is_recorded < 0) return Cleared(Way::kDispatch);
  return is_recorded ? Way::kGradient : Way::kPlain;
}

// The version goes up.
void MarkWritten(PyObject* object) {
  const Access& g = TheAccess();
  if (g.glue) return g.glue->written(object);
  const Ref done(PyObject_CallFunctionObjArgs(g.bump_version, object, nullptr));
  if (!done) PyErr_Clear();
}

// By the glue or by Paddle's Python; see anyop/_paddle_memory.py for why its exchange functions are
// the last resort.
int32_t Allocate(Loans* loans, AnyopTensor* tensor, PyObject** object) {
  const Access& g = TheAccess();
  int32_t status = kAnyopNotImplemented;
  if (g.glue) status = NewByGlue(*g.glue, tensor, object);
  if (status == kAnyopNotImplemented && g.new_tensor)
    status = NewByPython(g.new_tensor, loans->source, tensor, object);
  return status == kAnyopNotImplemented ? AllocateByExchange(loans, tensor, object) : status;
}

const Source* Import() {
  const Ref paddle(PyImport_ImportModule("paddle"));
  const Ref tensor(paddle ? PyObject_CallMethod(paddle.get(), "empty", "[]") : nullptr);
  std::string why;
  const Source* source = tensor ? FindSource(tensor.get(), &why) : nullptr;
  if (source && source->api) return source;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "like: this paddle has no DLPack API");
  return nullptr;
}

const Framework row = [] {
  Framework f;
  f.name = "paddle";
  f.adapter = "anyop.paddle.dispatch";
  f.find = Find;
  f.read_mode = ReadMode;
  f.view = View;
  f.hold = HoldByExchange;
  f.mark_written = MarkWritten;
  f.allocate = Allocate;
  f.stream = StreamByExchange;
  f.no_graphs =
      "ATen's operators cannot be nodes of Paddle's graphs; call them on eager tensors, outside of "
      "to_static";
  f.no_gradients =
      "records no gradients for Paddle, and an argument wants one (stop_gradient=False); use "
      "paddle.no_grad() or .detach()";
  f.import = Import;
  f.wake_thread = WakeThread;
  f.tracer = "paddle.base.core";
  f.proxy = "paddle.compat.proxy";
  return f;
}();
const Listed listed(&row);

}  // namespace
}  // namespace anyop
