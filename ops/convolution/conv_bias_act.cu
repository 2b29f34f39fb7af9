// SPDX-License-Identifier: Apache-2.0
// One graph of cuDNN's with all that comes behind the sums; where no engine takes that, as of
// float32 where those that fuse most round to TF32, or there is a mask, whose bytes cuDNN would
// take for eight numbers each, the convolution alone, whose sums a second kernel finishes. Results
// are rounded once but where that is said.
#include <algorithm>

#include "anyop/cuda.h"
#include "anyop/ops/conv_bias_act.h"
#include "cudnn_convolution.h"

namespace anyop::cuda {
namespace {

using cudnn::Convolution;

constexpr int kThreads = 256;

// out = relu((sums * scale + bias) * mask + residual). NULL where there is none.
template <typename T, typename Sum>
struct End {
  const Sum* sums;
  const T *scale, *bias, *residual;
  const uint8_t* mask;
  T* out;
  int64_t count, K;
  bool relu;
};

template <typename T, typename Sum>
__global__ void __launch_bounds__(kThreads) Finish(const __grid_constant__ End<T, Sum> end) {
  const int64_t step = int64_t{gridDim.x} * kThreads, turn = step % end.K;
  int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, k = at % end.K;
  for (; at < end.count; at += step) {
    float v = Widen(end.sums[at]);
    if (end.scale) v *= Widen(end.scale[k]);
    if (end.bias) v += Widen(end.bias[k]);
    if (end.mask && !end.mask[at]) v = 0;
    if (end.residual) v += Widen(end.residual[at]);
    if (end.relu && v < 0) v = 0;
    end.out[at] = Narrow<T>(v);
    k += turn;
    if (k >= end.K) k -= end.K;
  }
}

template <typename T, typename Sum>
int32_t RunFinish(AnyopCall* call, const End<T, Sum>& end) {
  const int64_t blocks = std::min<int64_t>(CeilDiv(end.count, kThreads), 4096);
  return Launch{dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}.Run(call, Finish<T, Sum>, end);
}

const void* DataOf(const AnyopTensor* tensor) { return tensor ? tensor->data : nullptr; }

Convolution Describe(const ConvBiasActArgs& args, bool tf32) {
  Convolution c;
  const int64_t* out = args.out->shape;
  c.sizes = {args.N, args.H, args.W, args.C,      args.K,       args.R,
             args.S, out[1], out[2], args.stride, args.padding, args.dilation};
  c.dtype = c.result = AnyopDtypeOf(args.out);
  c.x = args.x->data;
  c.weight = args.weight->data;
  c.y = args.out->data;
  c.tf32 = tf32;
  return c;
}

template <typename Sum>
int32_t FinishSums(AnyopCall* call, const ConvBiasActArgs& args, const void* sums) {
  return WithFloat32Sums(AnyopDtypeOf(args.out), [&](auto zero) {
    using T = decltype(zero);
    using Read = std::conditional_t<std::is_void_v<Sum>, T, float>;
    const End<T, Read> end = {static_cast<const Read*>(sums),
                              static_cast<const T*>(DataOf(args.scale)),
                              static_cast<const T*>(DataOf(args.bias)),
                              static_cast<const T*>(DataOf(args.residual)),
                              static_cast<const uint8_t*>(DataOf(args.mask)),
                              static_cast<T*>(args.out->data),
                              args.N * args.out->shape[1] * args.out->shape[2] * args.K,
                              args.K,
                              args.relu != 0};
    return RunFinish(call, end);
  });
}

// The convolution into float32, and a kernel for the rest. Where no engine gives 16 bits' sums so,
// they are rounded in front of the rest, in its place.
int32_t RunInTwo(AnyopCall* call, const ConvBiasActArgs& args, const Convolution& plain) {
  const bool ends = args.scale || args.bias || args.mask || args.residual || args.relu;
  Convolution c = plain;
  c.result = kAnyopFloat32;
  if (ends || c.dtype != kAnyopFloat32) {
    c.y = call->workspace(call, c.sizes.N * c.sizes.P * c.sizes.Q * c.sizes.K * 4);
    if (!c.y) return call->fail(call, kAnyopOutOfMemory, "no memory for the sums");
  }
  bool taken;
  const char* why;
  if (const int32_t status = cudnn::Convolve(call, c, &taken, &why)) return status;
  if (taken) return c.y == plain.y ? kAnyopOk : FinishSums<float>(call, args, c.y);
  if (ends && c.dtype != kAnyopFloat32) {
    if (const int32_t status = cudnn::Convolve(call, plain, &taken, &why)) return status;
    if (taken) return FinishSums<void>(call, args, plain.y);
  }
  return call->fail(call, kAnyopDeclined, why);
}

int32_t Run(const ConvBiasActArgs& args, AnyopCall* call, bool tf32) {
  const Convolution plain = Describe(args, tf32);
  if (args.mask) return RunInTwo(call, args, plain);
  Convolution whole = plain;
  whole.scale = DataOf(args.scale);
  whole.bias = DataOf(args.bias);
  whole.residual = DataOf(args.residual);
  whole.relu = args.relu != 0;
  bool taken;
  const char* why;
  const int32_t status = cudnn::Convolve(call, whole, &taken, &why);
  return status || taken ? status : RunInTwo(call, args, plain);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_conv_bias_act_cuda(const ConvBiasActArgs* args, AnyopCall* call) {
  return anyop::cuda::Run(*args, call, false);
}
extern "C" int32_t anyop_conv_bias_act_cuda_tf32(const ConvBiasActArgs* args, AnyopCall* call) {
  return anyop::cuda::Run(*args, call, true);
}
