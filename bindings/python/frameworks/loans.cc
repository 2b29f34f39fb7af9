// SPDX-License-Identifier: Apache-2.0
// Let go of in the order in which it was taken.
#include "frameworks/loans.h"

#include "frameworks/dlpack.h"
#include "objects.h"

namespace anyop {

void Loans::LetGo() {
  // What is let go of may run Python code (a producer's deleter), which must not meet, or lose, the
  // call's error.
  const WithoutError without;
  for (const Kept& kept : kept_) kept.let_go(kept.what);
}

PyObject* Loans::Keep(PyObject* object) {
  Keep(object, [](void* what) { Py_DECREF(static_cast<PyObject*>(what)); });
  return object;
}

bool Loans::Fits(const Source& other) const {
  return HomeOf(other) == HomeOf(*source) &&
         (other.framework != &exchange_framework || other.api == source->api);
}

std::string Loans::MixedText(PyObject* object) const {
  return "is " + ObjectText(Py_TYPE(object)) + ", expected a " + TypeText(Py_TYPE(first)) +
         " as the tensors before it";
}

}  // namespace anyop
