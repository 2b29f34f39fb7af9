// SPDX-License-Identifier: Apache-2.0
// What a call has on loan from its caller until it ends, and what its first tensor decides.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "call/arena.h"
#include "frameworks/dlpack.h"
#include "objects.h"

namespace anyop {

class Loans : NoCopy {
 public:
  explicit Loans(Arena* arena) : arena(arena) {}
  ~Loans() {
    if (__builtin_expect(!kept_.empty(), 0)) LetGo();
  }

  // Until the call ends. A new reference, or nullptr, which is returned.
  PyObject* Keep(PyObject* object) {
    Keep(object, [](void* what) { Py_DECREF(static_cast<PyObject*>(what)); });
    return object;
  }
  void Keep(void* what, void (*let_go)(void*)) {
    if (what) kept_.push_back({what, let_go});
  }

  // For rows: a tensor cannot be used, and why.
  Way Reject(PyObject* kind, std::string text) {
    why_kind = kind;
    why = std::move(text);
    return Way::kRefused;
  }
  // Code of the caller's runs now, or has run: objects may change their memory and their types.
  void NoteCode() {
    ran_code = true;
    type = nullptr;
  }

  // Tensors of two frameworks in one call: whose allocator, stream and rules would hold?
  bool Fits(const Source& other) const {
    return HomeOf(other) == HomeOf(*source) &&
           (other.framework != &exchange_framework || other.api == source->api);
  }
  // What is said of one that does not fit; not in the way of those that do.
  [[gnu::cold, gnu::noinline]] std::string MixedText(PyObject* object) const {
    return "is " + ObjectText(Py_TYPE(object)) + ", expected a " + TypeText(Py_TYPE(first)) +
           " as the tensors before it";
  }

  Arena* const arena;
  const Source* source = nullptr;  // of the first tensor
  PyObject* first = nullptr;       // that tensor; the caller holds it
  PyTypeObject* type = nullptr;    // its type; nullptr: each object is asked
  Mode mode;
  bool ran_code = false;
  bool all_types = false;     // also of types that no operator of anyop has
  PyObject* owner = nullptr;  // from view: what keeps the memory, where it is not the object
  Ref (*stream_of)(int index) =
      nullptr;  // the stream on which memory is read, as __dlpack__ wants it
  std::string why;
  PyObject* why_kind = nullptr;  // the exception

 private:
  // In the order in which it was taken. That may run Python code (a producer's deleter), which must
  // not meet, or lose, the call's error.
  [[gnu::cold]] void LetGo() {
    const WithoutError without;
    for (const Kept& kept : kept_) kept.let_go(kept.what);
  }

  struct Kept {
    void* what;
    void (*let_go)(void*);
  };
  std::vector<Kept> kept_;
};

}  // namespace anyop
