// SPDX-License-Identifier: Apache-2.0
// A torch.Tensor's _cdata is the address of its TensorImpl, so the place of that address in the
// object can be found.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "frameworks/torch.h"

namespace anyop {
namespace {

constexpr Py_ssize_t kSamples = 10;

// Offsets, as a bit set of words, at which object holds the address that its _cdata says.
uint64_t Offsets(PyObject* object, Py_ssize_t bytes) {
  const Ref data = Attribute(object, "_cdata");
  void* impl = data ? PyLong_AsVoidPtr(data.get()) : nullptr;
  if (!impl) PyErr_Clear();
  uint64_t found = 0;
  for (Py_ssize_t word = 2; impl && word < 64 && (word + 1) * 8 <= bytes; ++word) {
    void* held;
    std::memcpy(&held, reinterpret_cast<char*>(object) + word * 8, sizeof held);
    if (held == impl) found |= uint64_t{1} << word;
  }
  return found;
}

}  // namespace

Ref PlainSamples(PyObject* torch, Py_ssize_t count) {
  return CallImported("anyop._frameworks", "samples", "On", torch, count);
}

Py_ssize_t FindTensorOffset(PyObject* torch) {
  const Ref size = Attribute(Attribute(torch, "Tensor").get(), "__basicsize__");
  const Py_ssize_t bytes = size ? PyLong_AsSsize_t(size.get()) : 0;
  const Ref samples = PlainSamples(torch, kSamples);
  if (!samples) PyErr_Clear();
  uint64_t found = samples ? ~uint64_t{0} : 0;
  for (Py_ssize_t i = 0; samples && i < kSamples; ++i)
    found &= Offsets(PyList_GetItem(samples.get(), i), bytes);
  const bool unique = found && !(found & (found - 1));
  return unique ? __builtin_ctzll(found) * 8 : 0;
}

WrapTensor FindWrapTensor() {
  void* library = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  // PyObject* THPVariable_Wrap(const at::TensorBase&), where a TensorBase is a pointer to its
  // TensorImpl.
  return reinterpret_cast<WrapTensor>(
      library ? dlsym(library, "_Z16THPVariable_WrapRKN2at10TensorBaseE") : nullptr);
}

}  // namespace anyop
