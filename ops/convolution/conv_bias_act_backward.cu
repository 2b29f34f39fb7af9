// SPDX-License-Identifier: Apache-2.0
// Gradients of conv_bias_act on CUDA: what relu and mask let through, sums of its columns, and two
// convolutions by cuDNN, that of the images with weight * scale, that of the weight into float32
// where scale is multiplied behind its sums.
#include <algorithm>

#include "../linear/gradient_products.h"
#include "anyop/cuda.h"
#include "anyop/ops/conv_bias_act_backward.h"
#include "cudnn_convolution.h"

namespace anyop::cuda {
namespace {

using Args = ConvBiasActBackwardArgs;
using cudnn::Convolution;

constexpr int kThreads = 256;

Launch Over(int64_t count) {
  const int64_t blocks = std::min<int64_t>(CeilDiv(count, kThreads), 4096);
  return {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)};
}

// passed: the gradient where relu let through; seen: also where mask did. NULL: not wanted.
template <typename T>
struct Through {
  const T *grad, *out;  // out is NULL without relu
  const uint8_t* mask;
  T *passed, *seen;
  int64_t count;
};
template <typename T>
__global__ void __launch_bounds__(kThreads) PassGradient(const __grid_constant__ Through<T> p) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.count; i += step) {
    T value = p.grad[i];
    if (p.out && Widen(p.out[i]) <= 0) value = Narrow<T>(0);
    if (p.passed) p.passed[i] = value;
    if (p.mask && !p.mask[i]) value = Narrow<T>(0);
    if (p.seen) p.seen[i] = value;
  }
}

// Windows, one behind the other, times the scale of each.
template <typename From, typename T>
__global__ void __launch_bounds__(kThreads)
    ScaleWindows(const From* from, const T* scale, T* to, int64_t count, int64_t window) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    to[i] = Narrow<T>(Widen(from[i]) * Widen(scale[i / window]));
}

// One call: what its steps share.
class Gradients {
 public:
  Gradients(const Args& args, AnyopCall* call, bool tf32)
      : args_(args), call_(call), tf32_(tf32), dtype_(AnyopDtypeOf(args.grad_out)) {}

  int32_t Run() {
    int32_t status = PassThrough();
    if (!status && args_.grad_bias) {
      AnyopTensor seen = *args_.grad_out;
      seen.data = const_cast<void*>(seen_);
      status = SumColumns(call_, &seen, args_.grad_bias);
    }
    if (!status && args_.grad_x) status = ToImages();
    return status || !args_.grad_weight ? status : ToWeight();
  }

 private:
  void* Take(int64_t count, int64_t bytes) {
    void* memory = call_->workspace(call_, count * bytes);
    if (!memory) call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
    return memory;
  }
  int64_t element_bytes() const { return dtype_ == kAnyopFloat32 ? 4 : 2; }
  int64_t results() const { return args_.N * args_.P * args_.Q * args_.K; }
  int64_t weights() const { return args_.K * window(); }
  int64_t window() const { return args_.R * args_.S * args_.C; }

  int32_t PassThrough() {
    void* passed = args_.grad_residual ? args_.grad_residual->data : nullptr;
    const bool needs_seen = args_.grad_bias || args_.grad_x || args_.grad_weight;
    seen_ = args_.mask || args_.relu ? passed : args_.grad_out->data;
    void* seen = nullptr;
    if (needs_seen && (args_.mask || (args_.relu && !passed))) {
      if (!(seen = Take(results(), element_bytes()))) return kAnyopOutOfMemory;
      seen_ = seen;
    }
    if (!passed && !seen) return kAnyopOk;
    return WithFloat32Sums(dtype_, [&](auto zero) {
      using T = decltype(zero);
      const Through<T> through = {
          static_cast<const T*>(args_.grad_out->data),
          args_.relu ? static_cast<const T*>(args_.out->data) : nullptr,
          args_.mask ? static_cast<const uint8_t*>(args_.mask->data) : nullptr,
          static_cast<T*>(passed),
          static_cast<T*>(seen),
          results()};
      return Over(through.count).Run(call_, PassGradient<T>, through);
    });
  }

  template <typename From>
  int32_t Scale(const void* from, void* to) {
    return WithFloat32Sums(dtype_, [&](auto zero) {
      using T = decltype(zero);
      using Read = std::conditional_t<std::is_void_v<From>, T, float>;
      return Over(weights()).Run(call_, ScaleWindows<Read, T>, static_cast<const Read*>(from),
                                 static_cast<const T*>(args_.scale->data), static_cast<T*>(to),
                                 weights(), window());
    });
  }

  Convolution Describe(cudnn::Pass pass) const {
    Convolution c;
    c.sizes = {args_.N, args_.H, args_.W, args_.C,      args_.K,       args_.R,
               args_.S, args_.P, args_.Q, args_.stride, args_.padding, args_.dilation};
    c.pass = pass;
    c.dtype = c.result = dtype_;
    c.y = const_cast<void*>(seen_);
    c.tf32 = tf32_;
    return c;
  }
  int32_t Convolve(const Convolution& c) {
    bool taken;
    const int32_t status = TryToConvolve(c, &taken);
    return status || taken ? status : call_->fail(call_, kAnyopDeclined, why_);
  }
  int32_t TryToConvolve(const Convolution& c, bool* taken) {
    return cudnn::Convolve(call_, c, taken, &why_);
  }

  int32_t ToImages() {
    Convolution c = Describe(cudnn::Pass::kGradImages);
    c.weight = args_.weight->data;
    c.x = args_.grad_x->data;
    if (args_.scale) {
      if (!(c.weight = Take(weights(), element_bytes()))) return kAnyopOutOfMemory;
      if (const int32_t status = Scale<void>(args_.weight->data, c.weight)) return status;
    }
    return Convolve(c);
  }

  int32_t ToWeight() {
    Convolution c = Describe(cudnn::Pass::kGradWeight);
    c.x = args_.x->data;
    c.weight = args_.grad_weight->data;
    if (!args_.scale) return Convolve(c);
    c.result = kAnyopFloat32;
    if (!(c.weight = Take(weights(), 4))) return kAnyopOutOfMemory;
    bool taken;
    if (const int32_t status = TryToConvolve(c, &taken)) return status;
    if (taken) return Scale<float>(c.weight, args_.grad_weight->data);
    c.result = dtype_;  // no engine gives float32: rounded in front of the scale, too
    c.weight = args_.grad_weight->data;
    const int32_t status = Convolve(c);
    return status ? status : Scale<void>(c.weight, c.weight);
  }

  const Args& args_;
  AnyopCall* call_;
  const bool tf32_;
  const AnyopDtype dtype_;
  const void* seen_ = nullptr;
  const char* why_ = nullptr;  // no engine took it
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_conv_bias_act_backward_cuda(const ConvBiasActBackwardArgs* args,
                                                     AnyopCall* call) {
  return anyop::cuda::Gradients(*args, call, false).Run();
}
extern "C" int32_t anyop_conv_bias_act_backward_cuda_tf32(const ConvBiasActBackwardArgs* args,
                                                          AnyopCall* call) {
  return anyop::cuda::Gradients(*args, call, true).Run();
}
