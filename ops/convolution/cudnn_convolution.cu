// SPDX-License-Identifier: Apache-2.0
// A plan is made once for a kind of call (device, sizes, dtypes, what comes behind the sums) and
// kept for ever. A handle of each device belongs to one thread at a time, while it starts a plan:
// the stream is the handle's. What does not start at a multiple of 16 bytes is copied, so that
// another plan, with other bits, is never needed.
#include <atomic>
#include <mutex>

#include "../linear/outside_of_capture.h"
#include "anyop/cuda/launch.h"
#include "cudnn_convolution.h"
#include "kept_plans.h"

namespace anyop::cudnn {
namespace {

constexpr int kMostKinds = 1024;
using Plans = KeptPlans<11, Plan, kMostKinds>;

int32_t Fail(AnyopCall* call, const Library& library, int status, const char* doing) {
  char text[300];
  std::snprintf(text, sizeof text, "cuDNN says %s while %s", library.GetErrorString(status), doing);
  return call->fail(call, kAnyopDeviceError, text);
}

struct Device {
  Handle handle = nullptr;
  std::mutex starting;
};

// One for each device, kept for ever.
int32_t GetDevice(AnyopCall* call, const Library& library, Device** device) {
  constexpr int kMaxDevices = 64;
  static std::atomic<Device*> known[kMaxDevices];
  static std::mutex making;
  if (call->device_id < 0 || call->device_id >= kMaxDevices)
    return call->fail(call, kAnyopDeclined, "there are more than 64 devices");
  std::atomic<Device*>& place = known[call->device_id];
  *device = place.load(std::memory_order_acquire);
  if (*device) return kAnyopOk;
  const std::lock_guard<std::mutex> lock(making);
  *device = place.load(std::memory_order_acquire);
  if (*device) return kAnyopOk;
  const cuda::OutsideOfCapture mode;
  auto* made = new (std::nothrow) Device;
  if (!made) return call->fail(call, kAnyopOutOfMemory, "no memory for cuDNN's handle");
  if (const int status = library.Create(&made->handle)) {
    delete made;
    return Fail(call, library, status, "making its handle");
  }
  place.store(made, std::memory_order_release);
  *device = made;
  return kAnyopOk;
}

Plans::Key KeyOf(const AnyopCall* call, const Convolution& c) {
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  uint64_t kind = u(call->device_id) | u(c.dtype) << 8 | u(c.result) << 16 | u(int(c.pass)) << 24 |
                  uint64_t{c.relu} << 26 | uint64_t{c.tf32} << 27;
  int bit = 28;
  for (const void* end : {c.scale, c.bias, c.residual}) kind |= uint64_t{!!end} << bit++;
  const Sizes& s = c.sizes;
  return {{kind, u(s.N), u(s.H), u(s.W), u(s.C), u(s.K), u(s.R), u(s.S), u(s.stride), u(s.padding),
           u(s.dilation)}};
}

// nullptr, with the failure, where no more are kept.
const Plan* GetPlan(AnyopCall* call, const Library& library, Device* device, const Convolution& c,
                    int32_t* status) {
  static Plans plans;
  const Plans::Key key = KeyOf(call, c);
  const Plan* plan = plans.Find(key);
  if (plan) return plan;
  if (!plans.is_full()) {
    Plan made;
    const cuda::OutsideOfCapture mode;
    const std::lock_guard<std::mutex> lock(device->starting);
    plan = plans.Find(key);  // of a thread that was before this one
    if (plan) return plan;
    MakePlan(library, device->handle, c, &made);
    plan = plans.Keep(key, made);
  }
  if (!plan)
    *status = call->fail(call, kAnyopDeclined, "1024 kinds of convolutions by cuDNN are kept");
  return plan;
}

int32_t Start(AnyopCall* call, const Library& library, Device* device, const Plan& plan,
              const Convolution& convolution) {
  constexpr uintptr_t kAligned = 256;
  char* workspace = nullptr;
  if (plan.workspace) {
    workspace = static_cast<char*>(
        call->workspace(call, plan.workspace + static_cast<int64_t>(kAligned) - 64));
    if (!workspace) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    workspace += (kAligned - reinterpret_cast<uintptr_t>(workspace) % kAligned) % kAligned;
  }
  const std::lock_guard<std::mutex> lock(device->starting);
  if (const int error = library.SetStream(device->handle, call->stream))
    return Fail(call, library, error, "taking a stream");
  const int error = Execute(library, device->handle, plan, convolution, workspace);
  return error == kOk ? kAnyopOk : Fail(call, library, error, "starting a convolution");
}

constexpr uintptr_t kAlignment = 16;  // bytes
bool StartsWell(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

// Copies on the call's stream, in the place of what does not start well.
class Aligned {
 public:
  Aligned(AnyopCall* call, const Convolution& convolution) : call_(call), c_(convolution) {}
  const Convolution& convolution() const { return c_; }

  int32_t Begin() {
    const Sizes& s = c_.sizes;
    const int64_t bytes = c_.dtype == kAnyopFloat32 ? 4 : 2;
    const int64_t result_bytes = c_.result == kAnyopFloat32 ? 4 : 2;
    const int64_t images = s.N * s.H * s.W * s.C, windows = s.K * s.R * s.S * s.C;
    const int64_t results = s.N * s.P * s.Q * s.K;
    Put(&c_.x, images, c_.pass == Pass::kGradImages ? -result_bytes : bytes);
    Put(&c_.weight, windows, c_.pass == Pass::kGradWeight ? -result_bytes : bytes);
    Put(&c_.y, results, c_.pass == Pass::kForward ? -result_bytes : bytes);
    Read(&c_.scale, s.K * bytes);
    Read(&c_.bias, s.K * bytes);
    Read(&c_.residual, results * bytes);
    return status_;
  }
  // What was computed goes where it belongs.
  int32_t End() {
    if (!to_) return kAnyopOk;
    Copy(to_, from_, bytes_);
    return status_;
  }

 private:
  // bytes of an element; negative: it is written.
  void Put(void** data, int64_t count, int64_t bytes) {
    const void* read = *data;
    if (bytes > 0) {
      Read(&read, count * bytes);
      *data = const_cast<void*>(read);
    } else if (!StartsWell(*data)) {
      to_ = *data;
      bytes_ = -count * bytes;
      from_ = *data = Take(bytes_);
    }
  }
  void Read(const void** data, int64_t bytes) {
    if (StartsWell(*data) || status_ != kAnyopOk) return;
    void* memory = Take(bytes);
    if (memory) Copy(memory, *data, bytes);
    *data = memory;
  }
  void* Take(int64_t bytes) {
    void* memory = call_->workspace(call_, bytes);
    if (!memory) status_ = call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
    return memory;
  }
  void Copy(void* to, const void* from, int64_t bytes) {
    status_ = cuda::Check(call_,
                          cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                          cudaMemcpyDeviceToDevice, cuda::StreamOf(call_)),
                          "copying what is not aligned");
  }

  AnyopCall* call_;
  Convolution c_;
  void *to_ = nullptr, *from_ = nullptr;
  int64_t bytes_ = 0;
  int32_t status_ = kAnyopOk;
};

}  // namespace

int32_t Convolve(AnyopCall* call, const Convolution& convolution, bool* taken, const char** why) {
  const Library* library;
  *taken = false;
  if (const int32_t status = GetLibrary(call, &library)) return status;
  Device* device;
  if (const int32_t status = GetDevice(call, *library, &device)) return status;
  int32_t status = kAnyopOk;
  const Plan* plan = GetPlan(call, *library, device, convolution, &status);
  if (!plan) return status;
  *why = plan->why;
  if (!plan->plan) return kAnyopOk;
  *taken = true;
  Aligned aligned(call, convolution);
  if (const int32_t failed = aligned.Begin()) return failed;
  status = Start(call, *library, device, *plan, aligned.convolution());
  return status ? status : aligned.End();
}

}  // namespace anyop::cudnn
