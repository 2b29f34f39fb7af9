// SPDX-License-Identifier: Apache-2.0
// One product of cuBLASLt where an epilogue of it ends as is asked; else a product in float32
// (float64), which a second kernel finishes and rounds.
#include "anyop/cuda/rows.h"
#include "ended_product.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256;

// out = activation(sums + bias + residual); pre is what it is applied to. NULL where there is none.
template <typename T>
struct End {
  const Wide<T>* sums;
  const T* bias;
  Rows<const T> residual;
  T *out, *pre;
  int64_t rows, N;
  Activation activation;
};

// A thread takes kCount columns side by side, of some rows.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) Finish(const __grid_constant__ End<T> end) {
  using Items = Vector<T, kCount>;
  using Sums = Vector<Wide<T>, kCount>;
  const int64_t n = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (n >= end.N) return;
  for (int64_t row = blockIdx.y; row < end.rows; row += gridDim.y) {
    const int64_t at = row * end.N + n;
    Sums sum = *reinterpret_cast<const Sums*>(end.sums + at);
    if (end.bias) {
      const Items bias = *reinterpret_cast<const Items*>(end.bias + n);
      for (int k = 0; k < kCount; ++k) sum.at[k] += Widen(bias.at[k]);
    }
    if (end.residual.data) {
      const Items more = *reinterpret_cast<const Items*>(end.residual[row] + n);
      for (int k = 0; k < kCount; ++k) sum.at[k] += Widen(more.at[k]);
    }
    Items out;
    if (end.pre) {
      for (int k = 0; k < kCount; ++k) out.at[k] = Narrow<T>(sum.at[k]);
      *reinterpret_cast<Items*>(end.pre + at) = out;
    }
    for (int k = 0; k < kCount; ++k) out.at[k] = Narrow<T>(Activate(end.activation, sum.at[k]));
    *reinterpret_cast<Items*>(end.out + at) = out;
  }
}

template <typename T, int kCount>
bool LiesIn(const End<T>& end) {
  constexpr uintptr_t kBytes = sizeof(Vector<T, kCount>);
  const Rows<const T>& residual = end.residual;
  const bool even = !residual.data || (residual.HasOneStride() && residual.stride % kCount == 0);
  return even && end.N % kCount == 0 && IsAligned(end.bias, kBytes) &&
         IsAligned(residual.data, kBytes) && IsAligned(end.out, kBytes) &&
         IsAligned(end.pre, kBytes);
}

template <typename T, int kCount>
int32_t RunFinish(AnyopCall* call, const End<T>& end) {
  const int64_t rows = end.rows < 4096 ? end.rows : 4096;
  const Launch launch{
      dim3(static_cast<unsigned>(CeilDiv(end.N, kThreads * kCount)), static_cast<unsigned>(rows)),
      dim3(kThreads)};
  return launch.Run(call, Finish<T, kCount>, end);
}

cublaslt::Product ProductOf(const EndedProduct& parts) {
  cublaslt::Product product;
  product.dtype = product.out_dtype = parts.dtype;
  product.M = parts.rows;
  product.N = parts.N;
  product.K = parts.K;
  product.a = {parts.x, parts.K, 1, 0};
  product.b = {parts.weight, 1, parts.K, 0};
  product.out = parts.out;
  product.out_row_stride = parts.N;
  return product;
}

// *taken: whether an epilogue did all.
int32_t MultiplyAtOnce(AnyopCall* call, const EndedProduct& parts, bool* taken) {
  cublaslt::Product product = ProductOf(parts);
  *taken = false;
  const bool gelu = parts.activation == Activation::kGeluTanh;
  const bool known =
      gelu || parts.activation == Activation::kRelu || parts.activation == Activation::kNone;
  if (!known || (parts.pre && !gelu) || product.M * product.N * product.K == 0) return kAnyopOk;
  product.epilogue = gelu                                    ? cublaslt::kGeluTanh
                     : parts.activation == Activation::kRelu ? cublaslt::kRelu
                                                             : 0;
  if (parts.bias) {
    product.epilogue |= cublaslt::kAddBias;
    product.bias = const_cast<void*>(parts.bias);
  }
  if (parts.pre) {
    product.epilogue |= cublaslt::kKeepInput;
    product.aux = parts.pre;
    product.aux_row_stride = parts.N;
  }
  if (product.epilogue == 0) product.epilogue = cublaslt::kPlain;
  if (parts.residual) {
    const auto rows = RowsOf<const char>(parts.residual);
    if (!rows.HasOneStride() || rows.stride < parts.N) return kAnyopOk;
    product.added = parts.residual->data;
    product.added_row_stride = rows.stride;
  }
  return MultiplyWithEpilogue(call, product, taken);
}

template <typename T>
int32_t MultiplyAndFinish(AnyopCall* call, const EndedProduct& parts) {
  const int64_t count = parts.rows * parts.N;
  if (count == 0) return kAnyopOk;
  cublaslt::Product product = ProductOf(parts);
  product.out_dtype = sizeof(T) == 8 ? kAnyopFloat64 : kAnyopFloat32;
  product.out = call->workspace(call, count * int64_t{sizeof(Wide<T>)});
  if (!product.out) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  if (const int32_t status = Multiply(call, product)) return status;
  End<T> end = {};
  end.sums = static_cast<const Wide<T>*>(product.out);
  if (parts.bias) end.bias = static_cast<const T*>(parts.bias);
  if (parts.residual) end.residual = RowsOf<const T>(parts.residual);
  if (parts.pre) end.pre = static_cast<T*>(parts.pre);
  end.out = static_cast<T*>(parts.out);
  end.rows = parts.rows;
  end.N = parts.N;
  end.activation = parts.activation;
  return LiesIn<T, 4>(end) ? RunFinish<T, 4>(call, end) : RunFinish<T, 1>(call, end);
}

}  // namespace

int32_t Multiply(AnyopCall* call, const EndedProduct& parts) {
  bool taken;
  const int32_t status = MultiplyAtOnce(call, parts, &taken);
  if (status || taken) return status;
  return WithFloating(parts.dtype,
                      [&](auto zero) { return MultiplyAndFinish<decltype(zero)>(call, parts); });
}

}  // namespace anyop::cuda
