// SPDX-License-Identifier: Apache-2.0
// With the glue one call a tensor. Without it Paddle's exchange functions and its Python
// attributes, through their C functions where those can be had; new tensors by its Python.
#include "frameworks/paddle.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "anyop/library_file.h"
#include "frameworks/query.h"
#include "frameworks/torch.h"

namespace anyop {
namespace {

struct Guard {
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
std::atomic<const Guard*> guard{nullptr};
std::mutex init_lock;

constexpr char kNoMemory[] =
    "is a paddle.Tensor without plain memory (sparse, distributed, or not initialized), expected a "
    "dense one";
constexpr char kShortStorage[] = "is larger than its storage";

const AnyopPaddleGlue* LoadPaddleGlue() {
  const Ref module(PyImport_ImportModule("anyop.native.glues"));
  const Ref address(module ? PyObject_CallMethod(module.get(), "load", "s", "paddle_glue")
                           : nullptr);
  void* glue = address && address.get() != Py_None ? PyLong_AsVoidPtr(address.get()) : nullptr;
  if (PyErr_Occurred()) PyErr_Clear();
  return static_cast<const AnyopPaddleGlue*>(glue);
}

// A function of one of anyop's own modules; a new reference, or nullptr without an error set.
PyObject* FindNewTensor() {
  const Ref module(PyImport_ImportModule("anyop._paddle_memory"));
  PyObject* found = module ? PyObject_GetAttrString(module.get(), "new") : nullptr;
  if (!found) PyErr_Clear();
  return found;
}

bool FindAttributes(PyObject* paddle, Guard* made) {
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
long AskTracer(const Guard& g, PyObject* name) {
  const Ref tracer(PyObject_CallObject(g.tracer, nullptr));
  const Ref value(tracer ? PyObject_GetAttr(tracer.get(), name) : nullptr);
  return value ? PyLong_AsLong(value.get()) : -1;
}

Way Cleared(Way way) {
  PyErr_Clear();
  return way;
}

Way ViewByAttributes(const Source* source, PyObject* object, AnyopTensor* tensor,
                     std::string* why) {
  if (!source->api->dltensor_from_py_object_no_sync(object, reinterpret_cast<DLTensor*>(tensor)))
    return Way::kPlain;
  PyErr_Clear();
  *why = kNoMemory;
  return Way::kDispatch;
}

Way ViewByGlue(const AnyopPaddleGlue& glue, const Source* source, PyObject* object,
               AnyopTensor* tensor, std::string* why) {
  const int32_t view = glue.view(object, tensor);
  if (__builtin_expect(view == kAnyopPaddleViewed, 1)) return Way::kPlain;
  if (view == kAnyopPaddleOtherPlace) return ViewByAttributes(source, object, tensor, why);
  *why = view == kAnyopPaddleShortStorage ? kShortStorage : kNoMemory;
  return Way::kDispatch;
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
  Ref sizes(PyTuple_New(tensor->ndim));
  for (int32_t i = 0; sizes && i < tensor->ndim; ++i) {
    PyObject* size = PyLong_FromLongLong(tensor->shape[i]);
    if (!size || PyTuple_SetItem(sizes.get(), i, size)) sizes = Ref();
  }
  Ref made(sizes ? PyObject_CallFunction(make, "Oiiii", sizes.get(), int{tensor->dtype_code},
                                         int{tensor->dtype_bits}, tensor->device_type,
                                         tensor->device_id)
                 : nullptr);
  if (!made) return kAnyopPending;
  if (made.get() == Py_None) return kAnyopNotImplemented;
  DLTensor view;
  if (source->api->dltensor_from_py_object_no_sync(made.get(), &view)) return kAnyopPending;
  tensor->data = static_cast<char*>(view.data) + view.byte_offset;
  *object = made.Release();
  return kAnyopOk;
}

}  // namespace

bool InitPaddleGuard(PyObject* paddle, std::string* why) {
  if (guard.load(std::memory_order_acquire)) return true;
  auto* made = new Guard;
  if (!FindAttributes(paddle, made)) {
    PyErr_Clear();
    *why = "is a tensor of a paddle whose attributes were not found; expected paddle 3.3 or newer";
    delete made;
    return false;
  }
  made->glue = LoadPaddleGlue();
  made->new_tensor = FindNewTensor();
  std::lock_guard<std::mutex> lock(init_lock);
  if (!guard.load()) guard.store(made, std::memory_order_release);
  return true;
}

const AnyopPaddleGlue* OpenPaddleGlueLibrary(const char* path, const char* version,
                                             std::string* why) {
  char problem[1024];
  void* library =
      AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, problem, sizeof problem);
  if (!library) {
    *why = problem;
    return nullptr;
  }
  auto entry = reinterpret_cast<AnyopPaddleGlueFunction>(dlsym(library, "AnyopPaddleGlueEntry"));
  const AnyopPaddleGlue* glue = entry ? entry() : nullptr;
  if (!glue || glue->version != ANYOP_PADDLE_GLUE_VERSION || glue->size < sizeof *glue) {
    *why = std::string(path) + " is no glue of this version of anyop";
    return nullptr;
  }
  if (std::strcmp(glue->paddle_version, version) == 0) return glue;
  *why = std::string(path) + " is for Paddle " + glue->paddle_version + ", and Paddle " + version +
         " is loaded";
  return nullptr;
}

bool IsPlainPaddleType(PyTypeObject* type) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  auto* itself = reinterpret_cast<PyObject*>(type);
  return itself == g.tensor || itself == g.parameter;
}

Way ReadPaddleMode(bool* records) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  *records = false;
  if (__builtin_expect(IsBelowDispatcher(), 0)) return Way::kPlain;
  if (__builtin_expect(g.glue != nullptr, 1)) {
    const int32_t state = g.glue->thread_state();
    *records = state & kAnyopPaddleRecords;
    return state & kAnyopPaddleElsewhere ? Way::kDispatch : Way::kPlain;
  }
  *records = true;  // asked when a tensor wants a gradient, which few do outside of training
  return AskTracer(g, g.amp_level) == 0 ? Way::kPlain : Cleared(Way::kDispatch);
}

void WakePaddleThread() {
  const Guard* g = guard.load(std::memory_order_acquire);
  if (g && AskTracer(*g, g->amp_level) < 0) PyErr_Clear();
}

Way ViewPaddleTensor(const Source* source, PyObject* object, bool records, AnyopTensor* tensor,
                     std::string* why) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  const Way way = __builtin_expect(g.glue != nullptr, 1)
                      ? ViewByGlue(*g.glue, source, object, tensor, why)
                      : ViewByAttributes(source, object, tensor, why);
  if (way != Way::kPlain || !records) return way;
  const int stops = g.stop_gradient.AskTruth(object);
  if (__builtin_expect(stops == 1, 1)) return Way::kPlain;
  const long is_recorded = stops < 0 ? -1 : g.glue ? 1 : AskTracer(g, g.has_grad);
  if (is_recorded < 0) return Cleared(Way::kDispatch);
  return is_recorded ? Way::kGradient : Way::kPlain;
}

void MarkPaddleWritten(PyObject* object) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  if (g.glue) return g.glue->written(object);
  const Ref done(PyObject_CallFunctionObjArgs(g.bump_version, object, nullptr));
  if (!done) PyErr_Clear();
}

bool NewPaddleTensor(const Source* source, AnyopTensor* tensor, PyObject** object,
                     int32_t* status) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  *status = kAnyopNotImplemented;
  if (g.glue) *status = NewByGlue(*g.glue, tensor, object);
  if (*status == kAnyopNotImplemented && g.new_tensor)
    *status = NewByPython(g.new_tensor, source, tensor, object);
  return *status != kAnyopNotImplemented;
}

}  // namespace anyop
