// SPDX-License-Identifier: Apache-2.0
// A fixed pool of functions that differ only in the number of their slot. They are written in
// assembly, because 4,096 instances of a template take the compiler 4 s.
#include "trampolines.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>

#include "signature.h"

namespace anyop::torch {
namespace {

struct Slot {
  const Operator* op = nullptr;
  Form form = {};
  std::atomic<bool> can_record{false};  // its overload for that is there
};
Slot slots[kNumTrampolines];
int num_slots = 0;
std::mutex lock;

[[noreturn]] void Raise(int32_t status, const char* message) {
  if (runtime.raise) runtime.raise(status, message);
  throw std::runtime_error(message);
}

// All results of the overload that records are optional where one is: see AllOptional.
void TakeFromOptional(const Operator& op, Value* stack) {
  for (uint32_t o = 0; HasMask(op) && o < op.num_outputs; ++o) {
    if (op.params[op.num_inputs + o].Is(kAnyopOptional)) continue;
    auto* held = reinterpret_cast<Value*>(stack[o]);
    stack[o] = *held;
    delete held;
  }
}

// Python's kernel, which records: an overload with the same arguments, defined by now. Its error
// waits with the binding.
void Record(Slot& slot, Value* stack) {
  const Shim& shim = *runtime.shim;
  const AnyopOp& table = *slot.op->table;
  const std::string name = table.name_space + std::string("::") + table.name;
  if (!slot.can_record.load(std::memory_order_acquire)) {
    if (!DefineRecording(*slot.op, slot.form) ||
        runtime.recorder(slot.op->name.c_str(), slot.form.destination))
      return Raise(kAnyopPending,
                   (slot.op->name + ": torch could not define its gradient").c_str());
    slot.can_record.store(true, std::memory_order_release);
  }
  const char* overload = slot.form.destination ? "out_autograd" : "autograd";
  const int32_t failed = shim.call ? shim.call(name.c_str(), overload, stack, kBuiltFor)
                                   : shim.call_2_9(name.c_str(), overload, stack);
  if (!failed) return slot.form.destination ? void() : TakeFromOptional(*slot.op, stack);
  const char* why = shim.error_text ? shim.error_text() : "torch could not record the call";
  Raise(kAnyopPending, (slot.op->name + ": " + why).c_str());
}

void Run(Slot& slot, Value* stack, uint64_t num_arguments) {
  char error[sizeof Frame::error];
  int32_t status;
  {
    Values values(slot.op, slot.form, stack, num_arguments);
    status = values.Read();
    if (__builtin_expect(!values.IsPlain(), 0)) {
      values.LeaveStack();
      return Record(slot, stack);
    }
    if (status == kAnyopOk) status = AnyopRunFrame(&values.frame);
    if (__builtin_expect(status == kAnyopOk, 1)) {
      values.MarkWritten();
      values.Return(stack);
      return;
    }
    std::memcpy(error, values.frame.error, sizeof error);
  }
  Raise(status, error);
}

}  // namespace

// Where every trampoline jumps to, with its number in place of the number of results, which the
// operator knows.
extern "C" __attribute__((visibility("hidden"), used)) void AnyopTorchRunSlot(
    Value* stack, uint64_t num_arguments, uint64_t slot) {
  Run(slots[slot], stack, num_arguments);
}

#if defined(__x86_64__)
#define ANYOP_JUMP "endbr64\n movl $anyop_slot, %edx\n jmp AnyopTorchRunSlot\n"
#elif defined(__aarch64__)
#define ANYOP_JUMP "bti c\n mov w2, #anyop_slot\n b AnyopTorchRunSlot\n"
#else
#error \
    "write the jump of a trampoline for this processor: third argument = slot, then AnyopTorchRunSlot"
#endif
constexpr int kTrampolineBytes = 16;
static_assert(kNumTrampolines == 4096, "as many as below");
asm(R"(
  .pushsection .text
  .balign 16
  .hidden AnyopTorchTrampolines
AnyopTorchTrampolines:
  .set anyop_slot, 0
  .rept 4096
  .balign 16
)" ANYOP_JUMP R"(
  .set anyop_slot, anyop_slot + 1
  .endr
  .popsection
)");
extern "C" __attribute__((visibility("hidden"))) const char AnyopTorchTrampolines[];

static BoxedKernel At(int slot) {
  return reinterpret_cast<BoxedKernel>(
      const_cast<char*>(AnyopTorchTrampolines + int64_t{slot} * kTrampolineBytes));
}

BoxedKernel TrampolineFor(const Operator* op, Form form) {
  std::lock_guard<std::mutex> guard(lock);
  for (int i = 0; i < num_slots; ++i) {
    if (slots[i].op == op && slots[i].form == form) return At(i);
  }
  if (num_slots == kNumTrampolines) return nullptr;
  slots[num_slots].op = op;
  slots[num_slots].form = form;
  return At(num_slots++);
}

}  // namespace anyop::torch
