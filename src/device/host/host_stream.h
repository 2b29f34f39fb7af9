// SPDX-License-Identifier: Apache-2.0
// A stream of the host's device: a thread that does what was put in, one after another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace anyop::host {

constexpr int32_t kDevices = 2;

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(int32_t device) : device_(device) {}

  int32_t device() const { return device_; }

  // Nothing is there to do. One atomic load.
  bool Idle() const { return pending_.load(std::memory_order_acquire) == 0; }

  // An AnyopStatus. The first starts the thread.
  int32_t Put(std::function<void()> task);

  // Until all that was put in before is done. Refused on the thread of a stream.
  int32_t Wait();

  // Nothing more may be put in. The thread ends, and with it the handle, when all is done.
  void End();

  struct Progress {
    int64_t put, done;  // tasks
  };
  Progress GetProgress();

 private:
  int32_t Start();
  void Work();

  const int32_t device_;
  std::atomic<int64_t> pending_{0};
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<std::function<void()>> tasks_;
  int64_t num_put_ = 0, num_done_ = 0;
  bool started_ = false, ended_ = false;
};

// kAnyopOk, or an error noted: there is no such device, or the process may not use it.
int32_t CheckDevice(int32_t device);
// The same for a question that starts nothing, so that a fork may still follow.
int32_t CheckIndex(int32_t device);

// kAnyopOk, or an error noted: this is the thread of a stream, and what it waits for may be itself.
int32_t CheckMayWait();

// The stream of a handle; NULL is the device's default one. An error is noted when there is none on
// this device.
int32_t FindStream(int32_t device, void* handle, std::shared_ptr<Stream>* stream);

int32_t CreateStream(int32_t device, void** stream);
int32_t CreateStreamWith(int32_t device, int32_t priority, void** stream);
int32_t DestroyStream(int32_t device, void* stream);
int32_t QueryStream(int32_t device, void* stream, int32_t* done);
int32_t SynchronizeStream(int32_t device, void* stream);
int32_t SynchronizeDevice(int32_t device);
int32_t LaunchHost(int32_t device, void* stream, void (*function)(void*), void* context);

}  // namespace anyop::host
