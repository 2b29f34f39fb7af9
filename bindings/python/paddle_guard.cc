// SPDX-License-Identifier: Apache-2.0
// By Paddle's own Python attributes, through their C functions: nothing is bound to its C++ ABI.
#include "paddle_guard.h"

#include <atomic>
#include <mutex>

#include "query.h"

namespace anyop {
namespace {

struct Guard {
  PyObject* tensor = nullptr;     // paddle.Tensor
  PyObject* parameter = nullptr;  // EagerParamBase
  Query stop_gradient;
  PyObject* tracer = nullptr;  // paddle.base.framework._dygraph_tracer
  PyObject* has_grad = nullptr;
  PyObject* amp_level = nullptr;
  PyObject* bump_version = nullptr;
};
std::atomic<const Guard*> guard{nullptr};
std::mutex init_lock;

}  // namespace

bool InitPaddleGuard(PyObject* paddle, std::string* why) {
  if (guard.load(std::memory_order_acquire)) return true;
  auto* made = new Guard;
  made->tensor = Attribute(paddle, "Tensor").Release();
  const Ref base = Attribute(paddle, "base");
  const Ref framework = Attribute(base.get(), "framework");
  made->parameter = Attribute(framework.get(), "EagerParamBase").Release();
  made->tracer = Attribute(framework.get(), "_dygraph_tracer").Release();
  made->has_grad = PyUnicode_InternFromString("_has_grad");
  made->amp_level = PyUnicode_InternFromString("_amp_level");
  made->bump_version = Attribute(made->tensor, "_bump_inplace_version").Release();
  if (!made->parameter || !made->tracer || !made->bump_version ||
      !MakeQuery(made->tensor, made->tensor, "stop_gradient", true, &made->stop_gradient)) {
    PyErr_Clear();
    *why = "is a tensor of a paddle whose attributes were not found; expected paddle 3.3 or newer";
    delete made;
    return false;
  }
  std::lock_guard<std::mutex> lock(init_lock);
  if (!guard.load()) guard.store(made, std::memory_order_release);
  return true;
}

bool IsPlainPaddleType(PyTypeObject* type) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  auto* itself = reinterpret_cast<PyObject*>(type);
  return itself == g.tensor || itself == g.parameter;
}

Way ReadPaddleMode(bool* records) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  const Ref tracer(PyObject_CallObject(g.tracer, nullptr));
  const Ref has_grad(tracer ? PyObject_GetAttr(tracer.get(), g.has_grad) : nullptr);
  const Ref amp(has_grad ? PyObject_GetAttr(tracer.get(), g.amp_level) : nullptr);
  const long level = amp ? PyLong_AsLong(amp.get()) : -1;
  *records = has_grad.get() == Py_True;
  if (level != 0) PyErr_Clear();
  return level == 0 ? Way::kPlain : Way::kDispatch;
}

Way ViewPaddleTensor(const Source* source, PyObject* object, bool records, AnyopTensor* tensor,
                     std::string* why) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  if (source->api->dltensor_from_py_object_no_sync(object, reinterpret_cast<DLTensor*>(tensor))) {
    PyErr_Clear();
    *why = "is a paddle.Tensor without plain memory; expected a dense one";
    return Way::kDispatch;
  }
  if (!records) return Way::kPlain;
  const int stops = g.stop_gradient.AskTruth(object);
  if (stops < 0) PyErr_Clear();
  return stops > 0 ? Way::kPlain : stops == 0 ? Way::kGradient : Way::kDispatch;
}

void MarkPaddleWritten(PyObject* object) {
  const Guard& g = *guard.load(std::memory_order_acquire);
  const Ref done(PyObject_CallFunctionObjArgs(g.bump_version, object, nullptr));
  if (!done) PyErr_Clear();
}

}  // namespace anyop
