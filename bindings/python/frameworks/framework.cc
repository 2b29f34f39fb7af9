// SPDX-License-Identifier: Apache-2.0
// Classifies types once. Python's lock is held.
#include "frameworks/framework.h"

#include <utility>

#include "frameworks/numpy.h"
#include "frameworks/paddle.h"
#include "frameworks/torch.h"
#include "frameworks/type_table.h"
#include "operator.h"

namespace anyop {
namespace {

TypeTable known;

const Source kGeneric = {Origin::kDlpack, nullptr, nullptr};
const Source kBuffer = {Origin::kBuffer, nullptr, nullptr};
constexpr char kTorchAdapter[] = "anyop.torch.dispatch";
constexpr char kPaddleAdapter[] = "anyop.paddle.dispatch";
constexpr char kJaxAdapter[] = "anyop.jax.dispatch";

// The one source like that: a handful for each framework.
const Source* TheSource(const Source& like) {
  struct Node {
    Source source;
    const Node* next;
  };
  static const Node* first = nullptr;
  for (const Node* n = first; n; n = n->next) {
    const Source& s = n->source;
    if (s.origin == like.origin && s.api == like.api && s.adapter == like.adapter) return &s;
  }
  first = new Node{like, first};
  return &first->source;
}

// is_its: the framework's own type, no subclass of a user's.
const Source* Remember(PyTypeObject* type, bool is_its, const Source& like) {
  const Source* source = TheSource(like);
  known.Add(type, source, is_its);
  return source;
}

const DLPackExchangeAPI* ExchangeApi(PyTypeObject* type) {
  const Ref capsule = Attribute(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (!capsule) return nullptr;
  auto* header = static_cast<const DLPackExchangeAPIHeader*>(
      PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  if (!header) PyErr_Clear();
  while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  return api && api->dltensor_from_py_object_no_sync ? api : nullptr;
}

bool IsSubtype(PyTypeObject* type, PyObject* base) {
  return base && PyType_Check(base) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base));
}

bool Is(PyTypeObject* type, const Ref& other) {
  return reinterpret_cast<PyObject*>(type) == other.get();
}

// What a framework's part of the search returns.
struct Found {
  bool is_mine;
  const Source* source;  // nullptr with *why set
};
constexpr Found kNotMine = {false, nullptr};

Found FindNumpy(PyTypeObject* type, std::string* why) {
  PyObject* numpy = LoadedModule("numpy");
  const Ref array = Attribute(numpy, "ndarray");
  if (!IsSubtype(type, array.get())) return kNotMine;
  const Ref masked = Attribute(Attribute(numpy, "ma").get(), "MaskedArray");
  if (IsSubtype(type, masked.get())) {
    *why = "is a masked array, whose mask would be ignored; expected a plain array";
    return {true, nullptr};
  }
  if (!InitNumpy(why)) return {true, nullptr};
  return {true, Remember(type, Is(type, array), {Origin::kNumpy, nullptr, nullptr})};
}

// Before torch: under Paddle's proxy the module torch is Paddle's.
Found FindPaddle(PyTypeObject* type, std::string* why) {
  PyObject* paddle = LoadedModule("paddle");
  const Ref tensor = Attribute(paddle, "Tensor");
  if (IsSubtype(type, tensor.get())) {
    if (!InitPaddleGuard(paddle, why)) return {true, nullptr};
    const DLPackExchangeAPI* api = ExchangeApi(type);
    const Origin origin = api && IsPlainPaddleType(type) ? Origin::kPaddle : Origin::kForeign;
    return {true, Remember(type, origin == Origin::kPaddle, {origin, api, kPaddleAdapter})};
  }
  const Ref value = Attribute(Attribute(paddle, "pir").get(), "Value");
  const Ref variable = Attribute(Attribute(paddle, "static").get(), "Variable");
  if (!IsSubtype(type, value.get()) && !IsSubtype(type, variable.get())) return kNotMine;
  return {true, Remember(type, false, {Origin::kForeign, nullptr, kPaddleAdapter})};
}

// PyTorch's module, also while Paddle's proxy hides it.
Ref RealTorch() {
  PyObject* torch = LoadedModule("torch");
  if (!LoadedModule("paddle.compat.proxy")) {
    Py_XINCREF(torch);
    return Ref(torch);
  }
  const Ref frameworks(PyImport_ImportModule("anyop._frameworks"));
  Ref real(frameworks ? PyObject_CallMethod(frameworks.get(), "real_torch", nullptr) : nullptr);
  if (!real) PyErr_Clear();
  return real.get() == Py_None ? Ref() : std::move(real);
}

Found FindTorch(PyTypeObject* type, std::string* why) {
  const Ref module = RealTorch();
  PyObject* torch = module.get();
  const Ref tensor = Attribute(torch, "Tensor");
  if (!IsSubtype(type, tensor.get())) return kNotMine;
  const Ref parameter = Attribute(Attribute(torch, "nn").get(), "Parameter");
  if (!InitTorchGuard(torch, why)) return {true, nullptr};
  const bool plain = Is(type, tensor) || Is(type, parameter);
  return {true, Remember(type, plain,
                         {plain ? Origin::kTorch : Origin::kForeign,
                          plain ? ExchangeApi(type) : nullptr, kTorchAdapter})};
}

// Arrays and what stands for them under a transformation.
Found FindJax(PyTypeObject* type, std::string*) {
  PyObject* jax = LoadedModule("jax");
  const Ref tracer = Attribute(Attribute(jax, "core").get(), "Tracer");
  if (!IsSubtype(type, Attribute(jax, "Array").get()) && !IsSubtype(type, tracer.get()))
    return kNotMine;
  return {true, Remember(type, false, {Origin::kForeign, nullptr, kJaxAdapter})};
}

Found FindCupy(PyTypeObject* type, std::string*) {
  const Ref array = Attribute(LoadedModule("cupy"), "ndarray");
  if (!IsSubtype(type, array.get())) return kNotMine;
  return {true, Remember(type, Is(type, array), {Origin::kCupy, nullptr, nullptr})};
}

// What an object's own code raises when it is looked at, but for what no `except Exception`
// catches, such as KeyboardInterrupt: that is the caller's.
bool ClearOrdinary() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

const Source* Classify(PyObject* object, std::string* why) {
  PyTypeObject* type = Py_TYPE(object);
  for (auto find : {FindNumpy, FindPaddle, FindTorch, FindJax, FindCupy}) {
    if (const Found found = find(type, why); found.is_mine) return found.source;
  }
  if (const DLPackExchangeAPI* api = ExchangeApi(type))
    return Remember(type, false, {Origin::kExchange, api, nullptr});
  if (IsSubtype(type, Attribute(LoadedModule("torch.fx.proxy"), "Proxy").get())) {
    *why =
        "is a torch.fx.Proxy, which has no values: torch.fx.symbolic_trace does not see into this "
        "function; torch.export and make_fx do, and it records torch.ops.<namespace>.<operator>";
    return nullptr;
  }
  if (Ref(PyObject_GetAttrString(object, "__dlpack__"))) return &kGeneric;
  if (!ClearOrdinary()) return nullptr;
  if (Ref(PyMemoryView_FromObject(object))) return &kBuffer;
  if (!ClearOrdinary()) return nullptr;
  *why = "is " + ObjectText(type) + ", expected a tensor";
  return nullptr;
}

}  // namespace

const Source* FindSource(PyObject* object, std::string* why) {
  const void* source = known.Find(Py_TYPE(object));
  return source ? static_cast<const Source*>(source) : Classify(object, why);
}

const Source* FindOwnSource(PyTypeObject* type) {
  return static_cast<const Source*>(known.FindStaying(type));
}

std::string TypeText(PyTypeObject* type) {
  auto* object = reinterpret_cast<PyObject*>(type);
  const Ref module = Attribute(object, "__module__"), name = Attribute(object, "__qualname__");
  auto text = [](const Ref& value) {
    const char* s = value && PyUnicode_Check(value.get())
                        ? PyUnicode_AsUTF8AndSize(value.get(), nullptr)
                        : nullptr;
    if (!s) PyErr_Clear();
    return std::string(s ? s : "");
  };
  const std::string prefix = text(module);
  if (prefix == "jaxlib._jax" && text(name) == "ArrayImpl") return "jax.Array";
  return (prefix.empty() || prefix == "builtins" ? "" : prefix + ".") + text(name);
}

std::string ObjectText(PyTypeObject* type) {
  const std::string text = TypeText(type);
  return text == "NoneType" ? "None" : WithArticle(text);
}

}  // namespace anyop
