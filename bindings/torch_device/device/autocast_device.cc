// SPDX-License-Identifier: Apache-2.0
// torch.autocast on the device: torch's own lists of operators, by torch's own macros.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace anyop::torch_device {

void RegisterAutocast();

}  // namespace anyop::torch_device

namespace at::autocast {
namespace {

// The macros register with a library named m.
void RegisterLists(torch::Library& m) {
#define ANYOP_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(ANYOP_LOWER)
#define ANYOP_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(ANYOP_FLOAT32)
#define ANYOP_FLOAT32_SET(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(ANYOP_FLOAT32_SET)
#define ANYOP_REDISPATCH(a, b, c, d, e) \
  KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(a, b, c, d, e)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(ANYOP_REDISPATCH)
#define ANYOP_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(ANYOP_PROMOTE)
}

}  // namespace
}  // namespace at::autocast

void anyop::torch_device::RegisterAutocast() {
  constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;
  static torch::Library all(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFallthrough());
  static torch::Library aten(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  at::autocast::RegisterLists(aten);
}
