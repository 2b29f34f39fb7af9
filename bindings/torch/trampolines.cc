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

// Python's kernel, which records, is an overload with the same arguments, defined by now.
void DefineRecorder(Slot& slot) {
  if (slot.can_record.load(std::memory_order_acquire)) return;
  if (!DefineRecording(*slot.op, slot.form) ||
      runtime.recorder(slot.op->name.c_str(), slot.form.destination))
    Raise(kAnyopPending, (slot.op->name + ": torch could not define its gradient").c_str());
  slot.can_record.store(true, std::memory_order_release);
}

// Its error waits with the binding.
void Record(Slot& slot, Value* stack) {
  const Shim& shim = *runtime.shim;
  const std::string name = TorchName(*slot.op);
  DefineRecorder(slot);
  if (!shim.Call(name.c_str(), RecordingOverload(slot.form), stack))
    return slot.form.destination ? void() : TakeFromOptional(*slot.op, stack);
  FailRecording(&slot, shim.error_text ? shim.error_text() : "torch could not record the call");
}

// Calls back with the values of a call that has run. Whether it ran: else it is to be recorded.
template <typename Return>
bool RunPlain(const Slot& slot, const Value* stack, uint64_t count, bool lent, Return take) {
  char error[sizeof Frame::error];
  int32_t status;
  {
    Values values(slot.op, slot.form, stack, count, lent);
    status = values.Read();
    if (__builtin_expect(!values.IsPlain(), 0)) {
      values.LeaveStack();
      return false;
    }
    if (status == kAnyopOk) status = AnyopRunFrame(&values.frame);
    if (__builtin_expect(status == kAnyopOk, 1)) {
      values.MarkWritten();
      take(values);
      return true;
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
  const auto take = [stack](Values& values) { values.Return(stack); };
  if (!RunPlain(slots[slot], stack, num_arguments, false, take)) Record(slots[slot], stack);
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

// -1 when all are taken.
static int NumberOf(const Operator* op, Form form) {
  std::lock_guard<std::mutex> guard(lock);
  for (int i = 0; i < num_slots; ++i) {
    if (slots[i].op == op && slots[i].form == form) return i;
  }
  if (num_slots == kNumTrampolines) return -1;
  slots[num_slots].op = op;
  slots[num_slots].form = form;
  return num_slots++;
}

BoxedKernel TrampolineFor(const Operator* op, Form form) {
  const int number = NumberOf(op, form);
  return number < 0 ? nullptr : At(number);
}

void* SlotFor(const Operator* op, Form form) {
  const int number = NumberOf(op, form);
  return number < 0 ? nullptr : &slots[number];
}

void FailRecording(void* slot, const char* why) {
  const std::string& name = static_cast<const Slot*>(slot)->op->name;
  Raise(kAnyopPending, (name + ": " + why).c_str());
}

int32_t RunLent(void* context, const Value* values, uint64_t count, void** results) {
  auto& slot = *static_cast<Slot*>(context);
  const auto take = [results](Values& ran) { ran.ReturnImpls(results); };
  if (__builtin_expect(RunPlain(slot, values, count, true, take), 1)) return 0;
  DefineRecorder(slot);
  return 1;
}

}  // namespace anyop::torch
