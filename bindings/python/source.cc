// SPDX-License-Identifier: Apache-2.0
// Classifies types once. Known ones are a list that grows under a lock and is read without one.
#include "source.h"

#include <atomic>
#include <mutex>

#include "numpy.h"
#include "torch_guard.h"

namespace anyop {
namespace {

struct Node {
  Source source;
  const Node* next;
};
std::atomic<const Node*> known{nullptr};
std::mutex publish;

const Source kGeneric = {nullptr, Origin::kDlpack, nullptr};
const Source kBuffer = {nullptr, Origin::kBuffer, nullptr};

const Source* Publish(const Source& source) {
  std::lock_guard<std::mutex> lock(publish);
  for (const Node* n = known.load(); n; n = n->next) {
    if (n->source.type == source.type) return &n->source;
  }
  Py_INCREF(
      reinterpret_cast<PyObject*>(source.type));  // kept for ever, so that its address names it
  const Node* node = new Node{source, known.load()};
  known.store(node, std::memory_order_release);
  return &node->source;
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

const Source* Classify(PyObject* object, std::string* why) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyObject* numpy = LoadedModule("numpy")) {
    const Ref array = Attribute(numpy, "ndarray");
    if (IsSubtype(type, array.get())) {
      const Ref masked = Attribute(Attribute(numpy, "ma").get(), "MaskedArray");
      if (IsSubtype(type, masked.get())) {
        *why = "is a masked array, whose mask would be ignored; expected a plain array";
        return nullptr;
      }
      if (!InitNumpy(why)) return nullptr;
      return Publish({type, Origin::kNumpy, nullptr});
    }
  }
  PyObject* torch = LoadedModule("torch");
  const Ref tensor = Attribute(torch, "Tensor");
  if (IsSubtype(type, tensor.get())) {
    const Ref parameter = Attribute(Attribute(torch, "nn").get(), "Parameter");
    auto* itself = reinterpret_cast<PyObject*>(type);
    if (!InitTorchGuard(torch, why)) return nullptr;
    const bool plain = itself == tensor.get() || itself == parameter.get();
    return Publish(
        {type, plain ? Origin::kTorch : Origin::kTorchOther, plain ? ExchangeApi(type) : nullptr});
  }
  if (const DLPackExchangeAPI* api = ExchangeApi(type))
    return Publish({type, Origin::kExchange, api});
  if (PyObject_HasAttrString(object, "__dlpack__")) return &kGeneric;
  if (Ref(PyMemoryView_FromObject(object))) return &kBuffer;
  PyErr_Clear();
  *why = "is a " + TypeText(type) + ", expected a tensor";
  return nullptr;
}

}  // namespace

const Source* FindSource(PyObject* object, std::string* why) {
  PyTypeObject* type = Py_TYPE(object);
  for (const Node* n = known.load(std::memory_order_acquire); n; n = n->next) {
    if (n->source.type == type) return &n->source;
  }
  return Classify(object, why);
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
  return (prefix.empty() || prefix == "builtins" ? "" : prefix + ".") + text(name);
}

}  // namespace anyop
