// SPDX-License-Identifier: Apache-2.0
// What Python says to the device, as operators torch.ops.anyop_device.*: this library uses no
// Python.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "device/device_generator.h"
#include "device/device_guard.h"
#include "device/lent_storage.h"
#include "device/start.h"
#include "kernels/boxed.h"
#include "kernels/wrappers.h"
#include "platform/platform.h"
#include "routes/native.h"
#include "routes/overlay.h"
#include "routes/python_backend.h"
#include "routes/routes.h"

namespace anyop::torch_device {
namespace {

using at::Tensor;

DeviceIndex Index(int64_t index) {
  const DeviceIndex found = OrCurrent(static_cast<DeviceIndex>(index));
  CheckIndex(found);
  return found;
}

Overload& Known(const std::string& name) {
  Overload* found = FindOverload(name);
  TORCH_CHECK_VALUE(found, "the device has no kernel of an overload '", name, "'");
  return *found;
}

const std::vector<std::string> kStatNames = {"allocated_bytes.current", "allocated_bytes.peak",
                                             "reserved_bytes.current",  "reserved_bytes.peak",
                                             "active_bytes.current",    "active_bytes.peak",
                                             "allocation.current",      "allocation.peak",
                                             "allocation.allocated",    "allocation.freed",
                                             "segment.current",         "segment.peak",
                                             "num_alloc_retries",       "num_ooms"};

std::vector<int64_t> MemoryStats(int64_t index) {
  const auto s = Use()->Stats(Index(index));
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {s.allocated_bytes[all].current,
          s.allocated_bytes[all].peak,
          s.reserved_bytes[all].current,
          s.reserved_bytes[all].peak,
          s.active_bytes[all].current,
          s.active_bytes[all].peak,
          s.allocation[all].current,
          s.allocation[all].peak,
          s.allocation[all].allocated,
          s.allocation[all].freed,
          s.segment[all].current,
          s.segment[all].peak,
          s.num_alloc_retries,
          s.num_ooms};
}

DeviceProperties PropertiesOf(int64_t index) { return Use()->Properties(Index(index)); }

// The same bytes as a tensor of the other side; both keep them alive.
Tensor Alias(const Tensor& tensor, c10::Device device, c10::DispatchKeySet keys) {
  c10::intrusive_ptr<c10::StorageImpl> storage =
      c10::make_intrusive<LentStorage>(tensor.storage(), device);
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)), keys, tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return Tensor(std::move(impl));
}

Tensor InnerTensor(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_privateuseone(), "expected a tensor of the device, found one of ",
              tensor.device());
  TORCH_CHECK_NOT_IMPLEMENTED(Use()->boxed, "the memory of ", Use()->name,
                              " cannot be read by another device");
  Use()->Drain(tensor.device().index());
  return Alias(tensor.resolve_conj().resolve_neg(), Use()->Inner(tensor.device().index()),
               Use()->inner_keys);
}

Tensor OuterTensor(const Tensor& tensor, int64_t index) {
  TORCH_CHECK(tensor.device().type() == Use()->inner, "expected a tensor of ", Use()->inner,
              ", found one of ", tensor.device());
  return Alias(tensor.resolve_conj().resolve_neg(), Outer(Index(index)),
               c10::DispatchKeySet(c10::DispatchKey::PrivateUse1));
}

std::vector<std::string> RegisteredOps() {
  std::vector<std::string> names;
  for (const Overload* overload : AllOverloads()) names.push_back(overload->name);
  return names;
}

std::vector<std::string> NativeOps() {
  std::vector<std::string> names;
  for (const Overload* overload : AllOverloads())
    if (overload->native.load()) names.push_back(overload->name);
  return names;
}

std::vector<std::string> OverlaidOps(const std::string& device) {
  std::vector<std::string> names;
  for (const Overload* overload : OverlaidOverloads())
    if (overload->overlaid->device == device) names.push_back(overload->name);
  return names;
}

Overload& KnownOverlaid(const std::string& name, const std::string& device) {
  Overload* found = FindOverlaid(name, device);
  TORCH_CHECK_VALUE(found, "no overlay lies over '", name, "' on ", device);
  return *found;
}

std::vector<int64_t> CallsOf(const Overload& overload) {
  std::vector<int64_t> counts;
  for (const auto& count : overload.calls) counts.push_back(count.load());
  return counts;
}

using Name = std::string;

}  // namespace

TORCH_LIBRARY(anyop_device, m) {
  m.def("claim() -> ()", [] { Claim(); });
  m.def("start(str platform) -> int", [](Name name) { return Start(name); });
  m.def("platform() -> str", [] { return Use()->name; });
  m.def("device_count() -> int", []() -> int64_t { return Use()->Count(); });
  m.def("current_device() -> int", []() -> int64_t { return Use()->Current(); });
  m.def("set_device(int index) -> ()", [](int64_t index) { Use()->SetCurrent(Index(index)); });
  m.def("exchange_device(int index) -> int", [](int64_t index) -> int64_t {
    const int64_t before = Use()->Current();
    if (index >= 0) Use()->SetCurrent(Index(index));
    return before;
  });
  m.def("synchronize(int index) -> ()", [](int64_t index) { Use()->Synchronize(Index(index)); });
  m.def("memory_stat_names() -> str[]", [] { return kStatNames; });
  m.def("memory_stats(int index) -> int[]", MemoryStats);
  m.def("memory_info(int index) -> int[]", [](int64_t index) {
    const auto [free_bytes, total_bytes] = Use()->MemoryInfo(Index(index));
    return std::vector<int64_t>{static_cast<int64_t>(free_bytes),
                                static_cast<int64_t>(total_bytes)};
  });
  m.def("empty_cache() -> ()", [] { Use()->EmptyCache(); });
  m.def("reset_peak_memory_stats(int index) -> ()",
        [](int64_t index) { Use()->ResetPeak(Index(index)); });
  m.def("properties(int index) -> (str, int, int, int, int, bool)", PropertiesOf);
  m.def("manual_seed(int index, int seed) -> ()", [](int64_t index, int64_t seed) {
    at::Generator generator = DefaultGenerator(Index(index));
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(static_cast<uint64_t>(seed));
  });
  m.def("seed(int index) -> int", [](int64_t index) {
    at::Generator generator = DefaultGenerator(Index(index));
    const std::lock_guard lock(generator.mutex());
    return static_cast<int64_t>(generator.seed());
  });
  m.def("initial_seed(int index) -> int", [](int64_t index) {
    return static_cast<int64_t>(DefaultGenerator(Index(index)).current_seed());
  });
  m.def("get_rng_state(int index) -> Tensor",
        [](int64_t index) { return DefaultGenerator(Index(index)).get_state(); });
  m.def("set_rng_state(int index, Tensor state) -> ()", [](int64_t index, const Tensor& state) {
    at::Generator generator = DefaultGenerator(Index(index));
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  });
  m.def("default_generator(int index) -> Generator?",
        [](int64_t index) { return std::optional(DefaultGenerator(Index(index))); });
  m.def("registered_ops() -> str[]", RegisteredOps);
  m.def("route(str overload) -> str", [](Name name) { return RouteText(Known(name)); });
  m.def("set_route(str overload, str backends) -> ()",
        [](Name name, Name backends) { SetRoute(&Known(name), backends); });
  m.def("count_calls(bool on) -> ()", [](bool on) { CountCalls(on); });
  m.def("calls(str overload) -> int[]", [](Name name) { return CallsOf(Known(name)); });
  m.def("backend_available(str name) -> bool", [](Name name) { return IsBackendAvailable(name); });
  m.def("add_native(Any texts) -> ()", [](const c10::IValue& texts) {
    AddNative(texts);
    for (Overload* overload : AllOverloads()) AttachNative(overload);
    for (Overload* overload : OverlaidOverloads()) AttachNative(overload);
  });
  m.def("native_ops() -> str[]", NativeOps);
  m.def("add_backend(str name) -> ()", [](Name name) { AddPythonBackend(name); });
  m.def("decline(str why) -> ()", [](Name why) { DeclinePython(why); });
  m.def("overlay(str[] ops, str device, str route) -> int",
        [](const std::vector<Name>& ops, Name device, Name route) {
          return TurnOverlayOn(ops, device, route);
        });
  m.def("overlay_off(int number) -> ()", [](int64_t number) { TurnOverlayOff(number); });
  m.def("overlaid(str device) -> str[]", OverlaidOps);
  m.def("overlaid_route(str overload, str device) -> str",
        [](Name name, Name device) { return RouteText(KnownOverlaid(name, device)); });
  m.def("overlaid_calls(str overload, str device) -> int[]",
        [](Name name, Name device) { return CallsOf(KnownOverlaid(name, device)); });
  m.def("inner(Tensor tensor) -> Tensor", InnerTensor);
  m.def("outer(Tensor tensor, int index) -> Tensor", OuterTensor);
}

}  // namespace anyop::torch_device
