// SPDX-License-Identifier: Apache-2.0
// When routes and implementations that were taken away may be freed: once nobody reads them.
#pragma once

namespace anyop {

// What calls may be reading while it is taken away.
struct Readable {
  Readable() = default;
  Readable(const Readable&) = delete;
  Readable& operator=(const Readable&) = delete;
  virtual ~Readable() = default;
  Readable* next_retired = nullptr;
};

// Within its life nothing is freed that an operator's route leads to. Takes no lock; a long one
// holds up nothing but the freeing.
class Reading {
 public:
  Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading();

 private:
  int parity_;
};

// Takes over what no route leads to any more. The caller holds the router's lock.
void Retire(Readable* object);
// Frees what nobody can be reading. The caller holds no lock of the core.
void FreeRetired();

}  // namespace anyop
