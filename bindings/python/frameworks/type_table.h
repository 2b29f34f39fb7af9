// SPDX-License-Identifier: Apache-2.0
// What is known of Python's types, by their addresses: a bounded table that keeps no class alive.
#pragma once

#include "python.h"

namespace anyop {

// Used with Python's lock in hand.
class TypeTable {
 public:
  // nullptr where nothing is known.
  const void* Find(PyTypeObject* type) const {
    for (int i = 0; i < count_; ++i) {
      if (entries_[i].type == type) return IsThatType(entries_[i]) ? entries_[i].value : nullptr;
    }
    return nullptr;
  }

  // The same, of a type that stays.
  const void* FindStaying(PyTypeObject* type) const {
    for (int i = 0; i < count_; ++i) {
      if (entries_[i].type == type) return entries_[i].stays ? entries_[i].value : nullptr;
    }
    return nullptr;
  }

  // stays: a framework's own type, which lives as long as the process.
  void Add(PyTypeObject* type, const void* value, bool stays) {
    auto* object = reinterpret_cast<PyObject*>(type);
    PyObject* alive = stays ? Py_NewRef(object) : PyWeakref_NewRef(object, nullptr);
    if (!alive) return PyErr_Clear();
    const int at = PlaceFor(type);
    if (at < 0) return Py_DECREF(alive);
    PyObject* before = entries_[at].alive;
    entries_[at] = {type, value, alive, stays};
    Py_XDECREF(before);
  }

 private:
  struct Entry {
    PyTypeObject* type;
    const void* value;
    PyObject* alive;  // the type, or a weak reference to it
    bool stays;
  };

  // The address may be another type's by now.
  static bool IsThatType(const Entry& e) {
    return e.stays || PyWeakref_GetObject(e.alive) == reinterpret_cast<PyObject*>(e.type);
  }

  // Of that type, of one that is gone, a new one, or in turn of one that does not stay.
  int PlaceFor(PyTypeObject* type) {
    int gone = -1;
    for (int i = 0; i < count_; ++i) {
      if (entries_[i].type == type) return i;
      if (gone < 0 && !IsThatType(entries_[i])) gone = i;
    }
    if (gone >= 0) return gone;
    if (count_ < kMaxTypes) return count_++;
    for (int tries = 0; tries < kMaxTypes; ++tries) {
      turn_ = (turn_ + 1) % kMaxTypes;
      if (!entries_[turn_].stays) return turn_;
    }
    return -1;
  }

  static constexpr int kMaxTypes = 64;
  Entry entries_[kMaxTypes] = {};
  int count_ = 0;
  int turn_ = 0;
};

}  // namespace anyop
