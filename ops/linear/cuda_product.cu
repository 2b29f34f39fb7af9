// SPDX-License-Identifier: Apache-2.0
// What cuBLASLt does not do is done around it, mostly by copies: of matrices with steps in both
// directions, leading dimensions that do not lie as one, terms of a sum that do not lie behind one
// another, starts that are not aligned (whose results would have other bits).
#include <algorithm>

#include "anyop/cuda.h"
#include "cuda_product.h"

namespace anyop::cuda {
namespace {

using cublaslt::Matrix;
using cublaslt::Product;

constexpr int kThreads = 256;
constexpr uintptr_t kAligned = 16;
constexpr int64_t kMostBatches = 65535;
constexpr int64_t kFewCalls = 4;  // rather than a copy of the operands

int64_t BytesOf(AnyopDtype dtype) {
  return dtype == kAnyopFloat64        ? 8
         : dtype == kAnyopFloat32      ? 4
         : dtype == kAnyopFloat8E4M3FN ? 1
                                       : 2;
}
const void* Shift(const void* data, int64_t elements, AnyopDtype dtype) {
  return static_cast<const char*>(data) + elements * BytesOf(dtype);
}

// Sizes and strides, outermost first.
struct Dims {
  int count = 0;
  int64_t size[kMaxDims + 2], stride[kMaxDims + 2];

  void Put(int64_t size_of, int64_t stride_of) {
    if (size_of == 1) return;
    if (count && stride[count - 1] == stride_of * size_of) {
      size[count - 1] *= size_of;
      stride[count - 1] = stride_of;
      return;
    }
    size[count] = size_of;
    stride[count++] = stride_of;
  }
  int64_t elements() const {
    int64_t product = 1;
    for (int d = 0; d < count; ++d) product *= size[d];
    return product;
  }
};

template <typename Word>
__global__ void Gather(const __grid_constant__ Dims dims, const Word* from, Word* to,
                       int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    int64_t rest = i, at = 0;
    for (int d = dims.count - 1; d >= 0; --d) {
      at += rest % dims.size[d] * dims.stride[d];
      rest /= dims.size[d];
    }
    to[i] = from[at];
  }
}

template <typename Word>
__global__ void FillRows(const Word* row, Word* to, int64_t rows, int64_t cols, int64_t stride) {
  const int64_t count = rows * cols, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    to[i / cols * stride + i % cols] = row ? row[i % cols] : Word(0);
}

Launch Over(int64_t count) {
  return {dim3(static_cast<unsigned>(std::min<int64_t>(CeilDiv(count, kThreads), 4096))),
          dim3(kThreads)};
}

// Calls body with a word of the element's size.
template <typename Body>
int32_t WithWord(AnyopDtype dtype, const Body& body) {
  switch (BytesOf(dtype)) {
    case 1:
      return body(uint8_t());
    case 2:
      return body(uint16_t());
    case 4:
      return body(uint32_t());
    default:
      return body(uint64_t());
  }
}

int32_t RunGather(AnyopCall* call, AnyopDtype dtype, const Dims& dims, const void* from, void* to) {
  return WithWord(dtype, [&](auto word) {
    using Word = decltype(word);
    const int64_t count = dims.elements();
    return Over(count).Run(call, Gather<Word>, dims, static_cast<const Word*>(from),
                           static_cast<Word*>(to), count);
  });
}

int32_t TakeWorkspace(AnyopCall* call, int64_t bytes, void** memory) {
  *memory = call->workspace(call, bytes);
  return *memory ? kAnyopOk : call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
}

// A copy of what dims say, one element behind the other, in the place of a matrix's data.
int32_t CopyMatrix(AnyopCall* call, AnyopDtype dtype, const Dims& dims, const void** data) {
  void* copy;
  if (const int32_t status = TakeWorkspace(call, dims.elements() * BytesOf(dtype), &copy))
    return status;
  const int32_t status = RunGather(call, dtype, dims, *data, copy);
  *data = copy;
  return status;
}

// The bias in every row, or 0.
int32_t Fill(AnyopCall* call, const Product& p, const void* bias) {
  return WithWord(p.out_dtype, [&](auto word) {
    using Word = decltype(word);
    return Over(p.M * p.N).Run(call, FillRows<Word>, static_cast<const Word*>(bias),
                               static_cast<Word*>(p.out), p.M, p.N, p.out_row_stride);
  });
}

// Whether cuBLASLt takes it as it lies.
bool LiesWell(const Matrix& m, int64_t rows, int64_t cols) {
  const bool in_rows = (m.col_stride == 1 || cols == 1) && (m.row_stride >= cols || rows == 1);
  const bool in_columns = (m.row_stride == 1 || rows == 1) && (m.col_stride >= rows || cols == 1);
  return (in_rows || in_columns) && IsAligned(static_cast<const char*>(m.data), kAligned);
}

// A copy in the place of a matrix, or of a pile of them, that does not lie well: in columns if it
// lies so, for its results have the bits of one that starts well.
int32_t Straighten(AnyopCall* call, const Product& p, int64_t rows, int64_t cols, Matrix* m) {
  if (LiesWell(*m, rows, cols)) return kAnyopOk;
  Dims dims;
  const bool many = p.batch > 1 && m->batch_stride != 0;
  if (many) dims.Put(p.batch, m->batch_stride);
  if (m->row_stride == 1 && m->col_stride != 1) {
    dims.Put(cols, m->col_stride);
    dims.Put(rows, 1);
    *m = {m->data, 1, rows, many ? rows * cols : 0};
  } else {
    dims.Put(rows, m->row_stride);
    dims.Put(cols, m->col_stride);
    *m = {m->data, cols, 1, many ? rows * cols : 0};
  }
  return CopyMatrix(call, p.dtype, dims, &m->data);
}

int32_t FailToFind(AnyopCall* call) {
  return call->fail(call, kAnyopDeclined, "cuBLASLt has no algorithm for this product");
}

bool StartsWell(const void* data) { return IsAligned(static_cast<const char*>(data), kAligned); }

// Rows of which each begins as the first does, by 16 bytes, so that epilogues work on sums:
// elsewhere a bias may be added to what was rounded.
bool HasEvenRows(const Product& p) {
  const int64_t bytes = BytesOf(p.dtype);
  return p.dtype != kAnyopFloat64 && p.N * bytes % kAligned == 0 && p.K * bytes % kAligned == 0 &&
         p.added_row_stride * bytes % kAligned == 0;
}

// A copy of rows, `stride` apart, in the place of what does not start well.
int32_t AlignRows(AnyopCall* call, AnyopDtype dtype, int64_t rows, int64_t cols, int64_t* stride,
                  const void** data) {
  if (StartsWell(*data)) return kAnyopOk;
  Dims dims;
  dims.Put(rows, *stride);
  dims.Put(cols, 1);
  *stride = cols;
  return CopyMatrix(call, dtype, dims, data);
}

// Memory in the place of a result that does not start well, and what was written there.
int32_t AlignResult(AnyopCall* call, AnyopDtype dtype, int64_t count, void** data) {
  return StartsWell(*data) ? kAnyopOk : TakeWorkspace(call, count * BytesOf(dtype), data);
}
int32_t CopyResult(AnyopCall* call, AnyopDtype dtype, int64_t count, const void* from, void* to) {
  if (from == to) return kAnyopOk;
  Dims dims;
  dims.Put(count, 1);
  return RunGather(call, dtype, dims, from, to);
}

// The input of GELU is read by its derivative, and written by GELU itself.
bool ReadsAux(const Product& p) {
  constexpr uint32_t kSlope = cublaslt::kGeluTanhSlope & ~cublaslt::kKeepInput;
  return p.epilogue & kSlope;
}
int32_t AlignAux(AnyopCall* call, Product* p) {
  if (!ReadsAux(*p)) return AlignResult(call, p->out_dtype, p->M * p->N, &p->aux);
  const void* aux = p->aux;
  const int32_t status = AlignRows(call, p->out_dtype, p->M, p->N, &p->aux_row_stride, &aux);
  p->aux = const_cast<void*>(aux);
  return status;
}

// A bias is read, sums of columns are written.
int32_t AlignBias(AnyopCall* call, Product* p) {
  if (p->epilogue & cublaslt::kSumOfSlope) return AlignResult(call, p->out_dtype, p->N, &p->bias);
  int64_t stride = p->N;
  const void* bias = p->bias;
  const int32_t status = AlignRows(call, p->out_dtype, 1, p->N, &stride, &bias);
  p->bias = const_cast<void*>(bias);
  return status;
}

// With copies of what does not lie or start well. *taken as cublaslt::Multiply's.
int32_t MultiplyAligned(AnyopCall* call, const Product& product, bool* taken) {
  Product p = product;
  const int64_t count = p.batch * p.M * p.N;
  *taken = false;
  int32_t status = Straighten(call, p, p.M, p.K, &p.a);
  if (!status) status = Straighten(call, p, p.K, p.N, &p.b);
  if (!status) status = AlignBias(call, &p);
  if (!status) status = AlignRows(call, p.out_dtype, p.M, p.N, &p.added_row_stride, &p.added);
  if (!status) status = AlignResult(call, p.out_dtype, count, &p.out);
  if (!status) status = AlignAux(call, &p);
  if (!status) status = cublaslt::Multiply(call, p, taken);
  if (status || !*taken) return status;
  status = CopyResult(call, p.out_dtype, count, p.out, product.out);
  if (!status && !ReadsAux(p)) status = CopyResult(call, p.out_dtype, count, p.aux, product.aux);
  if (!status && p.epilogue & cublaslt::kSumOfSlope)
    status = CopyResult(call, p.out_dtype, p.N, p.bias, product.bias);
  return status;
}

// One product, or some with strides between them, of sizes above 0.
int32_t MultiplyStrided(AnyopCall* call, Product p) {
  if (p.epilogue == cublaslt::kAddBias && !p.added && !HasEvenRows(p)) {
    if (const int32_t status = Fill(call, p, p.bias)) return status;
    p.epilogue = cublaslt::kPlain;
    p.added = p.out;
    p.added_row_stride = p.out_row_stride;
    p.bias = nullptr;
  }
  bool taken;
  const int32_t status = MultiplyAligned(call, p, &taken);
  return status || taken ? status : FailToFind(call);
}

// Without sizes of 1; neighbours that lie as one are one.
Leading Joined(const Leading& from) {
  Leading to;
  for (int d = 0; d < from.dims; ++d) {
    if (from.size[d] == 1) continue;
    const int last = to.dims - 1;
    const auto lies_as_one = [&](const int64_t (&inner)[kMaxDims],
                                 const int64_t (&outer)[kMaxDims]) {
      return outer[last] == inner[d] * from.size[d];
    };
    if (last >= 0 && lies_as_one(from.a, to.a) && lies_as_one(from.b, to.b) &&
        lies_as_one(from.out, to.out)) {
      to.size[last] *= from.size[d];
      to.a[last] = from.a[d];
      to.b[last] = from.b[d];
      to.out[last] = from.out[d];
    } else {
      to.Put(from.size[d], from.a[d], from.b[d], from.out[d]);
    }
  }
  return to;
}

// Makes one stride of an operand's strides over all of the batch, by a copy where it has several.
int32_t Align(AnyopCall* call, AnyopDtype dtype, const Leading& batch,
              const int64_t (&strides)[kMaxDims], int64_t rows, int64_t cols, Matrix* m) {
  Dims dims;
  for (int d = 0; d < batch.dims; ++d) dims.Put(batch.size[d], strides[d]);
  m->batch_stride = dims.count ? dims.stride[0] : 0;
  if (dims.count <= 1) return kAnyopOk;
  dims.Put(rows, m->row_stride);
  dims.Put(cols, m->col_stride);
  *m = {m->data, cols, 1, rows * cols};
  return CopyMatrix(call, dtype, dims, &m->data);
}

// Pairs that lie in one stride.
int32_t MultiplyPile(AnyopCall* call, const Product& p, int64_t count) {
  Product some = p;
  for (int64_t first = 0; first < count; first += kMostBatches) {
    some.batch = std::min(kMostBatches, count - first);
    some.a.data = Shift(p.a.data, first * p.a.batch_stride, p.dtype);
    some.b.data = Shift(p.b.data, first * p.b.batch_stride, p.dtype);
    some.out = const_cast<void*>(Shift(p.out, first * p.out_batch_stride, p.out_dtype));
    if (const int32_t status = MultiplyStrided(call, some)) return status;
  }
  return kAnyopOk;
}

// The product at the index-th place of the first dimensions.
Product At(Product p, const Leading& batch, int dims, int64_t index) {
  for (int d = dims - 1; d >= 0; --d) {
    const int64_t i = index % batch.size[d];
    index /= batch.size[d];
    p.a.data = Shift(p.a.data, i * batch.a[d], p.dtype);
    p.b.data = Shift(p.b.data, i * batch.b[d], p.dtype);
    p.out = const_cast<void*>(Shift(p.out, i * batch.out[d], p.out_dtype));
  }
  return p;
}

int32_t MultiplyBatches(AnyopCall* call, Product p, const Leading& batch) {
  if (batch.dims == 0) return MultiplyStrided(call, p);
  const int last = batch.dims - 1;
  const int64_t calls = batch.count() / batch.size[last];
  p.out_batch_stride = p.M * p.N;
  if (calls > kFewCalls) {
    if (const int32_t status = Align(call, p.dtype, batch, batch.a, p.M, p.K, &p.a)) return status;
    if (const int32_t status = Align(call, p.dtype, batch, batch.b, p.K, p.N, &p.b)) return status;
    return MultiplyPile(call, p, batch.count());
  }
  p.a.batch_stride = batch.a[last];
  p.b.batch_stride = batch.b[last];
  if (calls == 1 && p.b.batch_stride == 0 && p.a.batch_stride == p.M * p.a.row_stride) {
    p.M *= batch.size[last];  // the rows of all pairs are one matrix
    return MultiplyStrided(call, p);
  }
  for (int64_t i = 0; i < calls; ++i)
    if (const int32_t status = MultiplyPile(call, At(p, batch, last, i), batch.size[last]))
      return status;
  return kAnyopOk;
}

// Puts the terms of a sum behind one another, as one long product.
int32_t JoinTerms(AnyopCall* call, const Leading& sum, Product* p) {
  const int64_t terms = sum.count(), K = p->K;
  p->K *= terms;
  if (sum.dims == 1 && sum.a[0] == K * p->a.col_stride && sum.b[0] == K * p->b.row_stride)
    return kAnyopOk;
  Dims a, b;  // (M, terms, K) and (terms, K, N)
  a.Put(p->M, p->a.row_stride);
  for (int d = 0; d < sum.dims; ++d) {
    a.Put(sum.size[d], sum.a[d]);
    b.Put(sum.size[d], sum.b[d]);
  }
  a.Put(K, p->a.col_stride);
  b.Put(K, p->b.row_stride);
  b.Put(p->N, p->b.col_stride);
  p->a = {p->a.data, p->K, 1, 0};
  p->b = {p->b.data, p->N, 1, 0};
  if (const int32_t status = CopyMatrix(call, p->dtype, a, &p->a.data)) return status;
  return CopyMatrix(call, p->dtype, b, &p->b.data);
}

}  // namespace

int32_t MultiplyWithEpilogue(AnyopCall* call, const Product& p, bool* taken) {
  *taken = false;
  return HasEvenRows(p) ? MultiplyAligned(call, p, taken) : kAnyopOk;
}

int32_t MultiplyScaled(AnyopCall* call, const Product& p) {
  bool taken;
  const int32_t status = MultiplyWithEpilogue(call, p, &taken);
  return status || taken ? status : FailToFind(call);
}

void Leading::Put(int64_t size_of, int64_t a_stride, int64_t b_stride, int64_t out_stride) {
  size[dims] = size_of;
  a[dims] = a_stride;
  b[dims] = b_stride;
  out[dims++] = out_stride;
}

int64_t Leading::count() const {
  int64_t product = 1;
  for (int d = 0; d < dims; ++d) product *= size[d];
  return product;
}

int32_t Multiply(AnyopCall* call, Product p, const Leading& batch_dims, const Leading& sum_dims) {
  const Leading batch = Joined(batch_dims), sum = Joined(sum_dims);
  const int64_t count = batch.count(), terms = sum.count();
  if (p.M == 0 || p.N == 0 || count == 0) return kAnyopOk;
  if (p.K == 0 || terms == 0) {  // out is contiguous in its leading dimensions
    p.M *= count;
    return Fill(call, p, p.bias);
  }
  if (sum.dims == 0) return MultiplyBatches(call, p, batch);
  for (int64_t i = 0; i < count; ++i) {
    Product one = At(p, batch, batch.dims, i);
    if (const int32_t status = JoinTerms(call, sum, &one)) return status;
    if (const int32_t status = MultiplyStrided(call, one)) return status;
  }
  return kAnyopOk;
}

}  // namespace anyop::cuda
