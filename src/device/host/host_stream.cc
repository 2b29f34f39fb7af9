// SPDX-License-Identifier: Apache-2.0
// Threads of streams are never joined: what they still have to do when the process exits is waited
// for there, and then they sleep until it is gone.
#include "host_stream.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "anyop/device.h"
#include "fork.h"
#include "handles.h"
#include "last_error.h"

namespace anyop::host {
namespace {

// Leaked, as everything that threads may use behind static destructors.
Handles<Stream>& Streams() {
  static auto* streams = new Handles<Stream>;
  return *streams;
}

std::shared_ptr<Stream>* DefaultStreams() {
  static auto* streams = [] {
    auto* made = new std::shared_ptr<Stream>[kDevices];
    for (int32_t d = 0; d < kDevices; ++d) {
      made[d] = std::make_shared<Stream>(d);
      Streams().Add(made[d]);
    }
    return made;
  }();
  return streams;
}

thread_local const Stream* running = nullptr;  // whose thread this is

// What was put in by now; patient as long as something is done.
void DrainAtExit() {
  if (Forked()) return;
  constexpr std::chrono::seconds kPatience(30);
  constexpr std::chrono::microseconds kPause(200);
  std::vector<std::pair<std::shared_ptr<Stream>, Stream::Progress>> wanted;
  Streams().ForEach([&](Stream& stream) {
    wanted.emplace_back(stream.shared_from_this(), stream.GetProgress());
  });
  auto last = std::chrono::steady_clock::now();
  for (int64_t before = -1;; std::this_thread::sleep_for(kPause)) {
    bool all = true;
    int64_t done = 0;
    for (const auto& [stream, at_exit] : wanted) {
      const Stream::Progress now = stream->GetProgress();
      all = all && now.done >= at_exit.put;
      done += now.done;
    }
    const auto now = std::chrono::steady_clock::now();
    if (done != before) last = now;
    before = done;
    if (all) return;
    if (now - last > kPatience) break;
  }
  std::fprintf(stderr, "anyop: work on the device host does not end; it is given up\n");
}

}  // namespace

int32_t Stream::Start() {
  static const int registered = std::atexit(DrainAtExit);
  (void)registered;
  try {
    std::thread([self = shared_from_this()] { self->Work(); }).detach();
  } catch (const std::system_error&) {
    return RefuseOnDevice(kAnyopDeviceError, "host: there is no thread to be had for a stream");
  }
  started_ = true;
  return kAnyopOk;
}

int32_t Stream::Put(std::function<void()> task) try {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return RefuseOnDevice(kAnyopValueError, "host: the stream was destroyed");
  if (!started_) {
    if (int32_t status = Start()) return status;
  }
  tasks_.push_back(std::move(task));
  ++num_put_;
  pending_.fetch_add(1, std::memory_order_relaxed);
  work_.notify_one();
  return kAnyopOk;
} catch (const std::bad_alloc&) {
  return RefuseOnDevice(kAnyopOutOfMemory, "host: out of memory");
}

void Stream::Work() {
  running = this;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return ended_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
    lock.lock();
    ++num_done_;
    pending_.fetch_sub(1, std::memory_order_release);
    done_.notify_all();
  }
}

int32_t Stream::Wait() {
  if (Idle()) return kAnyopOk;
  if (int32_t status = CheckMayWait()) return status;
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t wanted = num_put_;
  done_.wait(lock, [&] { return num_done_ >= wanted; });
  return kAnyopOk;
}

void Stream::End() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return;
  ended_ = true;
  if (!started_) return void(Streams().Remove(this));
  // Until then those who wait for the device, or for the end of the process, find it.
  tasks_.push_back([this] { Streams().Remove(this); });
  ++num_put_;
  pending_.fetch_add(1, std::memory_order_relaxed);
  work_.notify_one();
}

Stream::Progress Stream::GetProgress() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {num_put_, num_done_};
}

int32_t CheckIndex(int32_t device) {
  if (Forked()) return RefuseOnDevice(kAnyopDeviceError, "host: %s", kForkedText);
  if (device < 0 || device >= kDevices)
    return RefuseOnDevice(kAnyopDeviceError, "host: there is no device %d; there are %d", device,
                          kDevices);
  return kAnyopOk;
}

int32_t CheckDevice(int32_t device) {
  if (int32_t status = CheckIndex(device)) return status;
  WatchForks();
  return kAnyopOk;
}

int32_t CheckMayWait() {
  if (!running) return kAnyopOk;
  return RefuseOnDevice(kAnyopDeviceError, "host: a function that a stream runs may not wait");
}

int32_t FindStream(int32_t device, void* handle, std::shared_ptr<Stream>* stream) {
  if (int32_t status = CheckDevice(device)) return status;
  *stream = handle ? Streams().Find(handle) : DefaultStreams()[device];
  if (*stream && (*stream)->device() == device) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "host: %p is no stream of device %d%s", handle, device,
                        *stream ? ", but of another one" : "");
}

int32_t CreateStream(int32_t device, void** stream) {
  *stream = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  try {
    *stream = Streams().Add(std::make_shared<Stream>(device));
  } catch (const std::bad_alloc&) {
    return RefuseOnDevice(kAnyopOutOfMemory, "host: out of memory");
  }
  return kAnyopOk;
}

int32_t CreateStreamWith(int32_t device, int32_t, void** stream) {
  return CreateStream(device, stream);
}

int32_t DestroyStream(int32_t device, void* stream) {
  if (!stream || Forked()) return kAnyopOk;
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  found->End();
  return kAnyopOk;
}

// Asked before every operator that runs in the calling thread.
int32_t QueryStream(int32_t device, void* stream, int32_t* done) {
  if (!stream) {
    if (int32_t status = CheckDevice(device)) return status;
    *done = DefaultStreams()[device]->Idle();
    return kAnyopOk;
  }
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  *done = found->Idle();
  return kAnyopOk;
}

int32_t SynchronizeStream(int32_t device, void* stream) {
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  return found->Wait();
}

int32_t SynchronizeDevice(int32_t device) {
  if (int32_t status = CheckDevice(device)) return status;
  int32_t status = kAnyopOk;
  Streams().ForEach([&](Stream& stream) {
    if (stream.device() != device || status) return;
    status = stream.Wait();
  });
  return status;
}

int32_t LaunchHost(int32_t device, void* stream, void (*function)(void*), void* context) {
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (!function) return RefuseOnDevice(kAnyopValueError, "host: launch_host without a function");
  return found->Put([=] { function(context); });
}

}  // namespace anyop::host
