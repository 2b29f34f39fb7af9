// SPDX-License-Identifier: Apache-2.0
// Gradients of conv_bias_act: the gradient in front of relu, mask and scale, rounded; those of x
// and of the weights by oneDNN. Without it that of x is a convolution with the windows turned
// round, that of the weights a product of its transpose by the windows of x, added up block by
// block.
#include "anyop/ops/conv_bias_act_backward.h"

#include "anyop/cpu/columns.h"
#include "dnnl_convolution.h"
#include "windows.h"

namespace anyop::cpu {
namespace {

struct Front {
  const ConvBiasActBackwardArgs& args;
  const ColumnSums& sums;
  char* seen;  // what relu and mask let pass, or nullptr
};

// n places of a row, in front of relu and mask; each but `grad` and `to` may be absent.
template <typename Wide>
struct Places {
  const Wide *grad, *result;
  const char* mask;
  Wide *residual, *sum, *to;

  void Pass(int64_t n) const {
    const Wide *from = grad, *out = result;
    Wide *added = sum, *seen = to;
    const char* let = mask;
    if (out) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) seen[j] = out[j] <= 0 ? Wide(0) : from[j];
    } else {
      std::memcpy(seen, from, static_cast<size_t>(n) * sizeof *seen);
    }
    if (residual) std::memcpy(residual, seen, static_cast<size_t>(n) * sizeof *seen);
    if (let) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) seen[j] = let[j] ? seen[j] : Wide(0);
    }
    if (!added) return;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) added[j] += seen[j];
  }
};

template <typename Wide>
inline void Pass(const Front& front, int64_t begin, int64_t end) {
  const ConvBiasActBackwardArgs& args = front.args;
  const int64_t K = args.K, item = args.grad_out->dtype_bits / 8;
  const AnyopDtype dtype = AnyopDtypeOf(args.grad_out);
  const auto at_row = [&](const AnyopTensor* tensor, int64_t row) {
    return tensor ? static_cast<char*>(tensor->data) + row * K * item : nullptr;
  };
  Wide buffer[kBlock];
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> grad(dtype, at_row(args.grad_out, row), K);
    // Of what is absent nothing is read, and nothing ahead of it.
    RowReader<Wide> out(dtype, at_row(args.out, row), args.relu ? K : INT64_MAX,
                        args.relu ? K * item : 0);
    RowWriter<Wide> residual(dtype, at_row(args.grad_residual, row));
    RowWriter<Wide> seen(dtype, front.seen ? front.seen + row * K * item : nullptr);
    Wide* sum = args.grad_bias ? front.sums.At<Wide>(row) : nullptr;
    const char* mask = args.mask ? static_cast<const char*>(args.mask->data) + row * K : nullptr;
    ForBlocks(K, [&](int64_t at, int64_t n) {
      const Places<Wide> places = {
          grad.Read(at, n),           args.relu ? out.Read(at, n) : nullptr,
          mask ? mask + at : nullptr, args.grad_residual ? residual.Target(at) : nullptr,
          sum ? sum + at : nullptr,   front.seen ? seen.Target(at) : buffer};
      places.Pass(n);
      if (args.grad_residual) residual.Write(at, n);
      if (front.seen) seen.Write(at, n);
    });
  }
}

ANYOP_CPU_CLONES void Run(const Front* front, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(front->args.grad_out),
            [&](auto wide) { Pass<decltype(wide)>(*front, begin, end); });
}

template <typename Wide>
void AddUp(AnyopCall* call, void* total, const void* part, int64_t count) {
  ParallelFor(call, count, 16384, [&](int64_t begin, int64_t end) {
    auto* to = static_cast<Wide*>(total);
    for (int64_t i = begin; i < end; ++i) to[i] += static_cast<const Wide*>(part)[i];
  });
}

// Rows of `count` numbers of Wide times the factor of the row.
template <typename Wide>
void ScaleRows(const ConvBiasActBackwardArgs& args, void* rows, int64_t count) {
  RowReader<Wide> scale(args.scale, 1, args.K);
  auto* to = static_cast<Wide*>(rows);
  for (int64_t k = 0; args.scale && k < args.K; ++k) {
    const Wide factor = *scale.Read(k, 1);
    for (int64_t i = 0; i < count; ++i) to[k * count + i] *= factor;
  }
}

void Narrowed(const void* from, int64_t n, AnyopDtype dtype, void* to, int64_t at) {
  if (dtype == kAnyopFloat64) {
    anyop::Narrow(static_cast<const double*>(from), n, dtype, to, at);
  } else {
    anyop::Narrow(static_cast<const float*>(from), n, dtype, to, at);
  }
}

// With oneDNN; false where that has no fast kernel.
bool GradientOfWeightByDnnl(AnyopCall* call, const ConvBiasActBackwardArgs& args,
                            const dnnl::Library& library, const Windows& windows,
                            const char* grad) {
  const int64_t count = args.K * windows.length();
  auto* total = static_cast<float*>(call->workspace(call, count * 4 + 1));
  if (!total || !dnnl::GradientOfWeights(call, library, windows, args.K, grad, total)) return false;
  ScaleRows<float>(args, total, windows.length());
  Narrowed(total, count, windows.dtype, args.grad_weight->data, 0);
  return true;
}

// So with that of x.
bool GradientOfXByDnnl(AnyopCall* call, const ConvBiasActBackwardArgs& args,
                       const dnnl::Library& library, const Windows& windows, const char* grad) {
  const int64_t length = windows.length(), count = args.K * length;
  const void* weights = args.weight->data;
  if (args.scale) {
    const int64_t item = SizeOf(windows.dtype);
    auto* wide = static_cast<float*>(call->workspace(call, count * (4 + item) + 1));
    if (!wide) return false;
    RowReader<float> from(windows.dtype, static_cast<const char*>(weights), count);
    ForBlocks(count, [&](int64_t at, int64_t n) {
      std::memcpy(wide + at, from.Read(at, n), static_cast<size_t>(n) * sizeof *wide);
    });
    ScaleRows<float>(args, wide, length);
    Narrowed(wide, count, windows.dtype, wide + count, 0);
    weights = wide + count;
  }
  return dnnl::GradientOfImages(call, library, windows, args.K, weights, grad, args.grad_x->data);
}

int32_t GradientOfWeight(AnyopCall* call, const ConvBiasActBackwardArgs& args,
                         const Windows& windows, const char* grad) {
  const int64_t count = args.K * windows.length(), item = SizeOf(windows.dtype);
  const int64_t wide = item == 8 ? 8 : 4;
  const WindowBlocks blocks(call, windows, INT64_MAX);
  auto* total = static_cast<char*>(call->workspace(call, 2 * count * wide + 1));
  if (!total || !blocks.has_memory())
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  std::memset(total, 0, static_cast<size_t>(count * wide));
  GemmProblem p = {};
  p.dtype = windows.dtype;
  p.M = args.K, p.N = windows.length();
  p.out = total + count * wide;
  p.wide_out = item != 8;
  p.fixed_tiles = true;
  const int32_t status = blocks.ForEach([&](int64_t first, int64_t rows, const void* matrix) {
    p.K = rows;
    p.a = {grad + first * args.K * item, 1, args.K, nullptr, nullptr};
    p.b = {matrix, p.N, 1, nullptr, nullptr};
    const int32_t failed = Gemm(call, p);
    if (failed) return failed;
    if (item == 8) {
      AddUp<double>(call, total, p.out, count);
    } else {
      AddUp<float>(call, total, p.out, count);
    }
    return failed;
  });
  if (status) return status;
  WithFloat(windows.dtype,
            [&](auto type) { ScaleRows<decltype(type)>(args, total, windows.length()); });
  Narrowed(total, count, windows.dtype, args.grad_weight->data, 0);
  return kAnyopOk;
}

// weight (K, R, S, C) times scale as (C, R, S, K).
template <typename Wide>
void Turn(const ConvBiasActBackwardArgs& args, char* to) {
  const int64_t length = args.R * args.S * args.C, C = args.C, item = args.weight->dtype_bits / 8;
  const AnyopDtype dtype = AnyopDtypeOf(args.weight);
  RowReader<Wide> scale(args.scale, 1, args.K);
  for (int64_t k = 0; k < args.K; ++k) {
    const Wide factor = *scale.Read(k, 1);
    RowReader<Wide> row(dtype, static_cast<const char*>(args.weight->data) + k * length * item,
                        length);
    for (int64_t i = 0; i < length; ++i) {
      const Wide scaled = *row.Read(i, 1) * factor;
      Narrowed(&scaled, 1, dtype, to, (i % C * (args.R * args.S) + i / C) * args.K + k);
    }
  }
}

int32_t GradientOfX(AnyopCall* call, const ConvBiasActBackwardArgs& args, const Windows& of_x,
                    const char* grad) {
  Windows windows = of_x;
  windows.turned = true;
  windows.data = grad;
  windows.channels = args.K;
  std::swap(windows.height, windows.out_height);
  std::swap(windows.width, windows.out_width);
  const int64_t item = SizeOf(of_x.dtype), C = args.C;
  auto* turned = static_cast<char*>(call->workspace(call, windows.length() * C * item + 1));
  if (!turned) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  WithFloat(of_x.dtype, [&](auto type) { Turn<decltype(type)>(args, turned); });
  return Convolve(call, windows, turned, C, [&](int64_t first, int64_t rows, const void* sums) {
    const int64_t wide = item == 8 ? 8 : 4;
    ParallelFor(call, rows, 16384 / C + 1, [&](int64_t begin, int64_t end) {
      Narrowed(static_cast<const char*>(sums) + begin * C * wide, (end - begin) * C, of_x.dtype,
               args.grad_x->data, (first + begin) * C);
    });
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_conv_bias_act_backward_cpu(const ConvBiasActBackwardArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop;
  const int64_t* out = args->grad_out->shape;
  const Windows windows = {AnyopDtypeOf(args->x),
                           args->x->data,
                           args->N,
                           args->H,
                           args->W,
                           args->C,
                           out[1],
                           out[2],
                           args->R,
                           args->S,
                           args->stride,
                           args->padding,
                           args->dilation,
                           false};
  const int64_t rows = windows.rows();
  const cpu::ColumnSums sums(call, windows.dtype, rows, args->grad_bias ? args->K : 0);
  cpu::Front front = {*args, sums, nullptr};
  if (args->grad_x || args->grad_weight) {
    front.seen =
        static_cast<char*>(call->workspace(call, rows * args->K * SizeOf(windows.dtype) + 1));
  }
  if (!sums.has_memory() || ((args->grad_x || args->grad_weight) && !front.seen))
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  sums.RunParts(call, &front, rows, args->K, cpu::Run);
  if (args->grad_bias) sums.Write(call, 0, args->grad_bias);
  const dnnl::Library* library = nullptr;
  int32_t status = kAnyopOk;
  if ((args->grad_x || args->grad_weight) && dnnl::IsWorth(windows, args->K))
    status = dnnl::GetLibrary(call, windows.dtype, &library);
  if (status) return status;
  if (args->grad_weight &&
      !(library && cpu::GradientOfWeightByDnnl(call, *args, *library, windows, front.seen)))
    status = cpu::GradientOfWeight(call, *args, windows, front.seen);
  if (status == kAnyopOk && args->grad_x && args->C > 0 &&
      !(library && cpu::GradientOfXByDnnl(call, *args, *library, windows, front.seen)))
    status = cpu::GradientOfX(call, *args, windows, front.seen);
  return status;
}
