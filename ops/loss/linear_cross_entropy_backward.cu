// SPDX-License-Identifier: Apache-2.0
// Gradients of linear_cross_entropy on CUDA: cuBLASLt gives the logits of a block of classes for
// all rows again, a block of threads for each row turns them into their gradient in x's dtype, and
// that is multiplied twice: for the block's rows of grad_weight, which are done then, and onto
// grad_x in float32, which is rounded once, behind the last block. A target outside makes the
// gradients NaN.
//
// Memory: class_blocks_cuda.h, grad_x once in float32 for 16 bits, and the workspace of one block.
#include "../linear/gradient_products.h"
#include "anyop/ops/linear_cross_entropy_backward.h"
#include "class_blocks_cuda.h"
#include "loss_numbers.h"
#include "reused_workspace.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct BackwardBlock : LossBlock<T> {
  using W = Wide<T>;
  using LossBlock<T>::LossBlock;
  T* grad;  // (rows, n); of one dtype with the logits their memory
  const W *lse, *grad_loss, *grad_lse;
};

// The gradient of a row's logits is p * of_sum - of_all, less of_target at the target.
template <typename T>
struct Factors {
  using W = Wide<T>;
  W lse, of_sum = 0, of_all = 0, of_target = 0;
  int64_t target;  // in the block, or anywhere outside of it

  __device__ Factors(const BackwardBlock<T>& p, int64_t row)
      : lse(p.lse[row]), target(p.TargetOf(row)) {
    if (p.grad_loss && target != p.ignored) {
      const W g = p.Inside(target) ? p.grad_loss[row] : static_cast<W>(NAN);
      of_sum = p.z_loss != 0 ? g * (1 + 2 * p.z_loss * lse) : g;
      of_target = g * (1 - p.smoothing);
      of_all = g * p.smoothing / static_cast<W>(p.V);
    }
    if (p.grad_lse) of_sum += p.grad_lse[row];
    target = p.Inside(target) ? target - p.first : -1;
  }
  __device__ bool None() const { return of_sum == 0 && of_all == 0 && of_target == 0; }
  __device__ W operator()(W logit, bool of_its_target) const {
    const W all = Exponential(logit - lse) * of_sum - of_all;
    return of_its_target ? all - of_target : all;
  }
};

template <typename T, int kPer>
__global__ void __launch_bounds__(kLossThreads)
    Differentiate(const __grid_constant__ BackwardBlock<T> p) {
  using W = Wide<T>;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const W* logits = p.logits + row * p.n;
    T* grad = p.grad + row * p.n;
    const Factors<T> f(p, row);
    const bool none = f.None();
    for (int at = threadIdx.x * kPer; at < p.n; at += blockDim.x * kPer) {
      Vector<T, kPer> to = {};
      if (!none) {
        const Vector<W, kPer> v = p.template Read<kPer>(logits, at);
#pragma unroll
        for (int k = 0; k < kPer; ++k) {
          W g = f(v.at[k], at + k == f.target);
          if (p.softcap > 0) {
            const W t = v.at[k] * p.inverse_cap;
            g *= 1 - t * t;
          }
          to.at[k] = Narrow<T>(g);
        }
      }
      *reinterpret_cast<Vector<T, kPer>*>(grad + at) = to;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kLossThreads) Round(const float* from, T* to, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kLossThreads;
  for (int64_t i = int64_t{blockIdx.x} * kLossThreads + threadIdx.x; i < count; i += step)
    to[i] = Narrow<T>(from[i]);
}

// grad_bias of the block: sums over all rows.
template <typename T>
int32_t SumBias(AnyopCall* call, const LinearCrossEntropyBackwardArgs& args,
                const BackwardBlock<T>& p) {
  int64_t shape[] = {p.rows, p.n}, strides[] = {p.n, 1};
  AnyopTensor grad = *args.x, sums = *args.grad_bias;
  grad.data = p.grad;
  grad.ndim = 2, grad.shape = shape, grad.strides = strides;
  sums.data = From<T>(args.grad_bias, p.first);
  sums.shape = shape + 1, sums.strides = strides + 1;
  return SumColumns(call, &grad, &sums);
}

// Products of the block's gradient: the rows of grad_weight, and what is added to sum, grad_x.
template <typename T>
int32_t MultiplyGradient(AnyopCall* call, const LinearCrossEntropyBackwardArgs& args,
                         const BackwardBlock<T>& p, Wide<T>* sum) {
  const AnyopDtype dtype = AnyopDtypeOf(args.x);
  const int64_t K = args.K;
  int32_t status = kAnyopOk;
  if (args.grad_weight)
    status = Multiply(call, GradientOfWeight(dtype, p.rows, p.n, K, p.grad, args.x->data,
                                             From<T>(args.grad_weight, p.first * K)));
  if (status || !args.grad_x) return status;
  cublaslt::Product product =
      GradientOfRows(dtype, p.rows, p.n, K, p.grad, From<T>(args.weight, p.first * K), sum);
  product.out_dtype = sizeof(T) == 8 ? kAnyopFloat64 : kAnyopFloat32;
  if (p.first) {
    product.added = sum;
    product.added_row_stride = K;
  }
  return Multiply(call, product);
}

template <typename T>
int32_t RunBlock(AnyopCall* call, const LinearCrossEntropyBackwardArgs& args,
                 const BackwardBlock<T>& p, Wide<T>* sum) {
  int32_t status =
      Multiply(call, LogitsOf<T>(args.x, args.weight, p.rows, args.K, p.first, p.n, p.logits));
  if (!status && p.rows && p.n)
    status = WithPieces<T>(p, [&](auto per) {
      return LossLaunch(p.rows, p.n, per).Run(call, Differentiate<T, per>, p);
    });
  if (!status && args.grad_bias) status = SumBias<T>(call, args, p);
  return status ? status : MultiplyGradient<T>(call, args, p, sum);
}

template <typename T>
int32_t Run(const LinearCrossEntropyBackwardArgs& args, AnyopCall* call) {
  using W = Wide<T>;
  constexpr bool kHalf = sizeof(T) == 2;
  const auto padded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t rows = args.rows, V = args.V, count = rows * args.K, most = ClassesOfBlock(rows, V);
  const int64_t of_logits = padded(rows * most * int64_t{sizeof(W)}),
                of_grad = kHalf ? padded(rows * most * 2) : 0,
                of_sum = kHalf && args.grad_x ? padded(count * 4) : 0;
  auto* memory = static_cast<char*>(call->workspace(call, of_logits + of_grad + of_sum + 64));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  BackwardBlock<T> p(args, rows);
  p.logits = reinterpret_cast<W*>(memory);
  p.grad = reinterpret_cast<T*>(kHalf ? memory + of_logits : memory);
  p.lse = From<W>(args.lse, 0);
  p.grad_loss = args.grad_loss ? From<W>(args.grad_loss, 0) : nullptr;
  p.grad_lse = args.grad_lse ? From<W>(args.grad_lse, 0) : nullptr;
  void* sum = kHalf ? memory + of_logits + of_grad : args.grad_x ? args.grad_x->data : nullptr;
  ReusedWorkspace reused(call);
  do {  // once, too, where there are no classes
    p.n = static_cast<int>(std::min(most, V - p.first));
    if (args.bias) p.bias = From<T>(args.bias, p.first);
    if (const int32_t status = RunBlock<T>(reused.NextStep(), args, p, static_cast<W*>(sum)))
      return status;
    p.first += p.n;
  } while (p.first < V);
  if constexpr (kHalf) {
    if (args.grad_x && count)
      return Launch{
          dim3(static_cast<unsigned>(std::min<int64_t>(CeilDiv(count, kLossThreads), 8192))),
          dim3(kLossThreads)}
          .Run(call, Round<T>, static_cast<const float*>(sum), From<T>(args.grad_x, 0), count);
  }
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_cross_entropy_backward_cuda(
    const LinearCrossEntropyBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (const int32_t status = anyop::CheckLossNumbers(call, args->label_smoothing, args->softcap))
    return status;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return Run<decltype(zero)>(*args, call); });
}
