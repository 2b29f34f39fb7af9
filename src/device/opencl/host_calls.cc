// SPDX-License-Identifier: Apache-2.0
// Threads that are made when none is free, and kept: a function may take long, and holds up no
// other stream.
#include "host_calls.h"

#include <condition_variable>
#include <deque>
#include <thread>

#include "runtime.h"

namespace anyop::opencl {
namespace {

struct HostCall {
  void (*function)(void*);
  void* context;
  Handle held;
};

struct Callers {
  std::mutex mutex;
  std::condition_variable there;
  std::deque<HostCall> calls;
  size_t idle = 0;
};

Callers& TheCallers() {
  static auto* callers = new Callers;  // never destroyed: its threads run until the process ends
  return *callers;
}

void Work() {
  Callers& callers = TheCallers();
  const Api& cl = TheRuntime().cl;
  std::unique_lock<std::mutex> lock(callers.mutex);
  for (;;) {
    ++callers.idle;
    callers.there.wait(lock, [&] { return !callers.calls.empty(); });
    --callers.idle;
    const HostCall call = callers.calls.front();
    callers.calls.pop_front();
    lock.unlock();
    call.function(call.context);
    cl.SetUserEventStatus(call.held, 0);
    cl.ReleaseEvent(call.held);
    lock.lock();
  }
}

// On a thread of the driver's.
void Begin(Handle, Code, void* context) {
  const std::unique_ptr<HostCall> call(static_cast<HostCall*>(context));
  Callers& callers = TheCallers();
  const std::lock_guard<std::mutex> lock(callers.mutex);
  callers.calls.push_back(*call);
  if (callers.idle < callers.calls.size()) std::thread(Work).detach();
  callers.there.notify_one();
}

}  // namespace

Code CallBehind(Handle before, void (*function)(void*), void* context, Handle held) {
  auto call = std::make_unique<HostCall>(HostCall{function, context, held});
  const Code code = TheRuntime().cl.SetEventCallback(before, 0, Begin, call.get());
  if (code == 0) static_cast<void>(call.release());  // Begin's now
  return code;
}

}  // namespace anyop::opencl
