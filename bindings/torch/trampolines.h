// SPDX-License-Identifier: Apache-2.0
// torch calls a kernel by an address and nothing else, so each form of an operator needs an address
// of its own.
#pragma once

#include "values.h"

namespace anyop::torch {

constexpr int kNumTrampolines = 4096;

// The address for this form of this operator, the same one whenever it is asked for. nullptr when
// all are taken.
BoxedKernel TrampolineFor(const Operator* op, Form form);

// The same with the glue, which lends what lies on torch's stack: the context of RunLent, nullptr
// when all are taken.
void* SlotFor(const Operator* op, Form form);
int32_t RunLent(void* slot, const Value* values, uint64_t count, void** results);
[[noreturn]] void FailRecording(void* slot, const char* why);

// Defines the overload with which a form is recorded, once. Whether it is there.
bool DefineRecording(const Operator& op, Form form);

}  // namespace anyop::torch
