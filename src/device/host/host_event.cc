// SPDX-License-Identifier: Apache-2.0
// Each recording is a mark of its own, so that who waits for one is not misled by the next.
#include "host_event.h"

#include <chrono>

#include "anyop/device.h"
#include "fork.h"
#include "handles.h"
#include "host_stream.h"
#include "last_error.h"

namespace anyop::host {
namespace {

using Clock = std::chrono::steady_clock;

class Mark {
 public:
  void Finish() {
    when_ = Clock::now();
    std::lock_guard<std::mutex> lock(mutex_);
    done_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  bool Done() const { return done_.load(std::memory_order_acquire); }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return Done(); });
  }
  Clock::time_point when() const { return when_; }  // of what is done

 private:
  Clock::time_point when_;
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct Event {
  int32_t device;
  bool timed;
  std::mutex mutex{};
  std::shared_ptr<Mark> last{};  // nullptr: never recorded

  std::shared_ptr<Mark> Last() {
    std::lock_guard<std::mutex> lock(mutex);
    return last;
  }
};

Handles<Event>& Events() {
  static auto* events = new Handles<Event>;
  return *events;
}

int32_t FindEvent(void* handle, std::shared_ptr<Event>* event) {
  if (Forked()) return CheckDevice(0);
  *event = Events().Find(handle);
  return *event ? int32_t{kAnyopOk}
                : RefuseOnDevice(kAnyopValueError, "host: %p is no event", handle);
}

int32_t FindOwnEvent(int32_t device, void* handle, std::shared_ptr<Event>* event) {
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = FindEvent(handle, event)) return status;
  if ((*event)->device == device) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "host: %p is an event of device %d, not of %d", handle,
                        (*event)->device, device);
}

}  // namespace

int32_t CreateEventWith(int32_t device, uint32_t flags, void** event) try {
  *event = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  auto made = std::make_shared<Event>();
  made->device = device;
  made->timed = !(flags & kAnyopEventNoTiming);
  *event = Events().Add(std::move(made));
  return kAnyopOk;
} catch (const std::bad_alloc&) {
  return RefuseOnDevice(kAnyopOutOfMemory, "host: out of memory");
}

int32_t CreateEvent(int32_t device, void** event) { return CreateEventWith(device, 0, event); }

int32_t DestroyEvent(int32_t device, void* event) {
  if (!event || Forked()) return kAnyopOk;
  std::shared_ptr<Event> found;
  if (int32_t status = FindOwnEvent(device, event, &found)) return status;
  Events().Remove(event);
  return kAnyopOk;
}

int32_t RecordEvent(int32_t device, void* event, void* stream) try {
  std::shared_ptr<Event> found;
  std::shared_ptr<Stream> on;
  if (int32_t status = FindOwnEvent(device, event, &found)) return status;
  if (int32_t status = FindStream(device, stream, &on)) return status;
  auto mark = std::make_shared<Mark>();
  if (on->Idle()) {
    mark->Finish();
  } else if (int32_t status = on->Put([mark] { mark->Finish(); })) {
    return status;
  }
  std::lock_guard<std::mutex> lock(found->mutex);
  found->last = std::move(mark);
  return kAnyopOk;
} catch (const std::bad_alloc&) {
  return RefuseOnDevice(kAnyopOutOfMemory, "host: out of memory");
}

int32_t WaitEvent(int32_t device, void* stream, void* event) {
  std::shared_ptr<Event> found;
  std::shared_ptr<Stream> waits;
  if (int32_t status = FindEvent(event, &found)) return status;
  if (int32_t status = FindStream(device, stream, &waits)) return status;
  const std::shared_ptr<Mark> mark = found->Last();
  if (!mark || mark->Done()) return kAnyopOk;
  return waits->Put([mark] { mark->Wait(); });
}

int32_t SynchronizeEvent(int32_t device, void* event) {
  std::shared_ptr<Event> found;
  if (int32_t status = FindOwnEvent(device, event, &found)) return status;
  const std::shared_ptr<Mark> mark = found->Last();
  if (!mark || mark->Done()) return kAnyopOk;
  if (int32_t status = CheckMayWait()) return status;
  mark->Wait();
  return kAnyopOk;
}

int32_t QueryEvent(int32_t device, void* event, int32_t* done) {
  std::shared_ptr<Event> found;
  if (int32_t status = FindOwnEvent(device, event, &found)) return status;
  const std::shared_ptr<Mark> mark = found->Last();
  *done = !mark || mark->Done();
  return kAnyopOk;
}

int32_t ElapsedMs(int32_t device, void* begin, void* end, float* milliseconds) {
  std::shared_ptr<Event> first, second;
  if (int32_t status = FindOwnEvent(device, begin, &first)) return status;
  if (int32_t status = FindOwnEvent(device, end, &second)) return status;
  if (!first->timed || !second->timed)
    return RefuseOnDevice(kAnyopValueError, "host: an event was made without timing");
  const std::shared_ptr<Mark> from = first->Last(), to = second->Last();
  if (!from || !to || !from->Done() || !to->Done())
    return RefuseOnDevice(kAnyopDeviceError, "host: an event was not recorded, or is not done");
  *milliseconds = std::chrono::duration<float, std::milli>(to->when() - from->when()).count();
  return kAnyopOk;
}

}  // namespace anyop::host
