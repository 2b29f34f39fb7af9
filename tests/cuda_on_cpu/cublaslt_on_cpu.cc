// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's functions for tests without a GPU: products of matrices in memory of the CPU, by plain
// loops in double, from the same descriptors.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../../ops/linear/cublaslt.h"
#include "cuda_on_cpu.h"

using namespace anyop::cublaslt;

namespace {

constexpr int kInvalid = 7, kNotSupported = 15;

struct TheDesc {
  int32_t compute, transposed[2];
  uint32_t epilogue;
  void *bias, *aux;
  int64_t aux_stride;
};
struct TheLayout {
  int32_t type, batch;
  int64_t rows, columns, stride, batch_stride;
};
static_assert(sizeof(TheDesc) <= sizeof(Desc) && sizeof(TheLayout) <= sizeof(Layout), "");

const TheDesc& Of(const Desc* desc) { return *reinterpret_cast<const TheDesc*>(desc); }
const TheLayout& Of(const Layout* layout) { return *reinterpret_cast<const TheLayout*>(layout); }

double Read(int type, const void* data, int64_t at) {
  switch (type) {
    case kFloat32:
      return static_cast<const float*>(data)[at];
    case kFloat64:
      return static_cast<const double*>(data)[at];
    case kFloat16:
      return __half2float(static_cast<const __half*>(data)[at]);
    default:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  }
}
void Write(int type, void* data, int64_t at, double value) {
  switch (type) {
    case kFloat32:
      static_cast<float*>(data)[at] = static_cast<float>(value);
      break;
    case kFloat64:
      static_cast<double*>(data)[at] = value;
      break;
    case kFloat16:
      static_cast<__half*>(data)[at] = __float2half_rn(static_cast<float>(value));
      break;
    default:
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(static_cast<float>(value));
  }
}

double GeluTanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double GeluTanhSlope(double x) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

// op(m)[row, col] of the batch-th.
struct Side {
  const void* data;
  const TheLayout& layout;
  bool transposed;
  int64_t batch;
  double operator()(int64_t row, int64_t col) const {
    const int64_t at = transposed ? col + row * layout.stride : row + col * layout.stride;
    return Read(layout.type, data, batch * layout.batch_stride + at);
  }
  int64_t rows() const { return transposed ? layout.columns : layout.rows; }
  int64_t columns() const { return transposed ? layout.rows : layout.columns; }
};

double Finish(const TheDesc& desc, int type, double sum, int64_t row, int64_t col) {
  if (desc.epilogue & 4) sum += Read(type, desc.bias, row);
  const int64_t at = row + col * desc.aux_stride;
  if (desc.epilogue == (64 | 128) || desc.epilogue == (64 | 128 | 16))
    return sum * GeluTanhSlope(Read(type, desc.aux, at));
  if (desc.epilogue & 128) Write(type, desc.aux, at, sum);
  if (desc.epilogue & 2) return sum > 0 || sum != sum ? sum : 0;
  return desc.epilogue & 32 ? GeluTanh(sum) : sum;
}

void MultiplyOne(const TheDesc& desc, const Side& a, const Side& b, double beta, const void* c,
                 void* d, const TheLayout& out) {
  const int64_t base = a.batch * out.batch_stride;
  for (int64_t row = 0; row < out.rows; ++row) {
    double over_columns = 0;
    for (int64_t col = 0; col < out.columns; ++col) {
      double sum = 0;
      for (int64_t k = 0; k < a.columns(); ++k) sum += a(row, k) * b(k, col);
      const int64_t at = base + row + col * out.stride;
      if (beta != 0) sum += beta * Read(out.type, c, at);
      const double value = Finish(desc, out.type, sum, row, col);
      over_columns += value;
      Write(out.type, d, at, value);
    }
    if (desc.epilogue & 16) Write(out.type, desc.bias, row, over_columns);
  }
  if (!(desc.epilogue & 512)) return;
  for (int64_t col = 0; col < out.columns; ++col) {
    double sum = 0;
    for (int64_t k = 0; k < b.rows(); ++k) sum += b(k, col);
    Write(out.type, desc.bias, col, sum);
  }
}

}  // namespace

extern "C" {

#ifndef VERSION
#define VERSION 130100
#endif
size_t cublasLtGetVersion() { return VERSION; }
const char* cublasLtGetStatusString(int status) {
  return status == kNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
}
#ifndef WITHOUT_CREATE
int cublasLtCreate(Handle* handle) {
  static char one;
  *handle = reinterpret_cast<Handle>(&one);
  return kOk;
}
#endif
int cublasLtMatmulDescInit_internal(Desc* desc, size_t bytes, int compute, int) {
  if (bytes < sizeof(TheDesc)) return kInvalid;
  *reinterpret_cast<TheDesc*>(desc) = {compute, {0, 0}, 1, nullptr, nullptr, 0};
  return kOk;
}
int cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t bytes) {
  auto* the = reinterpret_cast<TheDesc*>(desc);
  void* to = attribute == kTransposeA    ? &the->transposed[0]
             : attribute == kTransposeB  ? &the->transposed[1]
             : attribute == kEpilogue    ? static_cast<void*>(&the->epilogue)
             : attribute == kBiasPointer ? static_cast<void*>(&the->bias)
             : attribute == kAuxPointer  ? static_cast<void*>(&the->aux)
             : attribute == kAuxStride   ? &the->aux_stride
                                         : nullptr;
  const bool is_long = attribute >= kBiasPointer;
  if (!to || bytes != (is_long ? 8u : 4u)) return kInvalid;
  std::memcpy(to, value, bytes);
  return kOk;
}
int cublasLtMatrixLayoutInit_internal(Layout* layout, size_t, int type, uint64_t rows,
                                      uint64_t columns, int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return kInvalid;
  *reinterpret_cast<TheLayout*>(layout) = {
      type, 1, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride, 0};
  return kOk;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                     size_t bytes) {
  auto* the = reinterpret_cast<TheLayout*>(layout);
  if (attribute == kBatch && bytes == 4) {
    std::memcpy(&the->batch, value, 4);
  } else if (attribute == kBatchStride && bytes == 8) {
    std::memcpy(&the->batch_stride, value, 8);
  } else {
    return kInvalid;
  }
  return kOk;
}
int cublasLtMatmulPreferenceInit_internal(Preference*, size_t) { return kOk; }
int cublasLtMatmulPreferenceSetAttribute(Preference*, int, const void*, size_t) { return kOk; }
// As cuBLASLt has no epilogues for float64.
int cublasLtMatmulAlgoGetHeuristic(Handle, const Desc* desc, const Layout* a, const Layout*,
                                   const Layout*, const Layout*, const Preference*, int most,
                                   Heuristic* found, int* count) {
  *count = 0;
  if (Of(a).type == kFloat64 && Of(desc).epilogue != 1) return kNotSupported;
  for (; *count < most && *count < 2; ++*count) {
    found[*count] = {};
    found[*count].workspace = 512;
  }
  return kOk;
}
int cublasLtMatmul(Handle, const Desc* desc, const void*, const void* a, const Layout* a_layout,
                   const void* b, const Layout* b_layout, const void* beta, const void* c,
                   const Layout*, void* d, const Layout* layout, const Algorithm*, void* workspace,
                   size_t workspace_bytes, void*) {
  const TheDesc& the = Of(desc);
  const TheLayout& out = Of(layout);
  if (workspace_bytes != 512 || !workspace || reinterpret_cast<uintptr_t>(workspace) % 256)
    return kInvalid;
  for (int64_t i = 0; i < out.batch; ++i) {
    const Side left = {a, Of(a_layout), the.transposed[0] != 0, i};
    const Side right = {b, Of(b_layout), the.transposed[1] != 0, i};
    if (left.rows() != out.rows || right.columns() != out.columns ||
        left.columns() != right.rows() || Of(a_layout).batch != out.batch ||
        Of(b_layout).batch != out.batch)
      return kInvalid;
    const double factor = the.compute == kInFloat64 ? *static_cast<const double*>(beta)
                                                    : *static_cast<const float*>(beta);
    MultiplyOne(the, left, right, factor, c, d, out);
  }
  return kOk;
}
}
