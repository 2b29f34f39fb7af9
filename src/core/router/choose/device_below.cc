// SPDX-License-Identifier: Apache-2.0
// Says as what a kernel sees a framework's device, and hands it over: its stream, its tensors.
#include "router/choose/device_below.h"

#include <algorithm>

#include "api/c_error.h"
#include "call/call.h"
#include "router/router_state.h"

namespace anyop {
namespace {

std::atomic<const AnyopDeviceBelow*> device_below{nullptr};

const AnyopDeviceBelow* Below() { return device_below.load(std::memory_order_acquire); }

bool IsType(int type) { return type > 0 && type < kMaxDeviceTypes; }

int32_t SetBelow(const AnyopDeviceBelow* below) {
  if (!below || below->size < sizeof *below || !IsType(below->types[0]) ||
      (below->types[1] && !IsType(below->types[1])) || !below->enter) {
    return SetError(kAnyopValueError,
                    "AnyopSetDeviceBelow: expected size, one or two DLDeviceTypes and enter");
  }
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const AnyopDeviceBelow* before = Below();
  if (before == below) return kAnyopOk;
  if (before)
    return SetError(kAnyopValueError,
                    "AnyopSetDeviceBelow: it was said before, and cannot be changed");
  device_below.store(below, std::memory_order_release);
  try {
    PublishAll(&router);
  } catch (...) {
    device_below.store(nullptr, std::memory_order_release);
    throw;
  }
  return kAnyopOk;
}

int PlaceBelow(const Implementation& i) {
  const int type = RunsAs(i, kFrameworkDevice);
  return Below() && type != Below()->types[0];
}

}  // namespace

bool HasDeviceBelow() { return Below() != nullptr; }

int NearestBelow(int device_type) {
  const AnyopDeviceBelow* below = device_type == kFrameworkDevice ? Below() : nullptr;
  return below ? below->types[0] : device_type;
}

uint64_t TypesBelow() {
  const AnyopDeviceBelow* below = Below();
  const auto bit = [](int type) { return type ? uint64_t{1} << type : 0; };
  return below ? bit(below->types[0]) | bit(below->types[1]) : 0;
}

int RunsAs(const Implementation& i, int device_type) {
  const AnyopDeviceBelow* below = device_type == kFrameworkDevice ? Below() : nullptr;
  if (!below) return ServesItself(i, device_type) ? device_type : -1;
  for (int type : below->types) {
    if (type && ServesItself(i, type)) return type;
  }
  return -1;
}

bool IsNearer(const Implementation& a, const Implementation& b) {
  return a.priority != b.priority ? a.priority > b.priority : PlaceBelow(a) < PlaceBelow(b);
}

bool RunsOnCpu(const Operator& op, int device_type) {
  if (device_type != kFrameworkDevice) return device_type == 1;
  const Reading reading;
  const Route* route = op.route.load(std::memory_order_acquire);
  if (!route->Names(kFrameworkDevice)) return false;
  const auto& there = route->On(kFrameworkDevice).candidates;
  return !there.empty() && std::all_of(there.begin(), there.end(), [](const auto* i) {
    return RunsAs(*i, kFrameworkDevice) == 1;
  });
}

int32_t EnterBelow(Frame* frame, int type, int index, void** stream) {
  char error[512] = "";
  const int32_t status = Below()->enter(type, index, stream, error, sizeof error);
  return status ? Fail(frame, status, "%s", error) : int32_t{kAnyopOk};
}

void LowerTensors(Frame* frame, int type) {
  const auto lower = [type](const AnyopTensor* tensor) {
    auto* mine = const_cast<AnyopTensor*>(tensor);
    mine->device_type = type;
    if (type == 1) mine->device_id = 0;
  };
  for (uint32_t i = 0; i < frame->op->params.size(); ++i) {
    const Param& p = frame->op->params[i];
    if (!p.IsTensor()) continue;
    if (p.IsList()) {
      const auto& list = frame->Field<AnyopTensorList>(p);
      std::for_each_n(list.data, list.count, [&](const AnyopTensor& t) { lower(&t); });
    } else if (const auto* tensor = frame->Field<const AnyopTensor*>(p)) {
      lower(tensor);  // a view of it, where it is expanded
      lower(&frame->tensors[i]);
    }
  }
}

}  // namespace anyop

int32_t AnyopSetDeviceBelow(const AnyopDeviceBelow* below) {
  return anyop::Guarded([&] { return anyop::SetBelow(below); });
}
