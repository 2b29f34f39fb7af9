// SPDX-License-Identifier: Apache-2.0
// A false libopapi: functions of Ascend's operators with the prototypes of CANN's documentation.
// The first phase checks every argument as strictly as that says; the second one has anyop's kernel
// of the CPU compute when the stream comes to it. Tensors that are destroyed too early, a workspace
// that is too small or gone, and an executor that is used twice show.
#include "false_aclnn.h"

static long live;  // tensors, numbers and executors that were not destroyed

EXPORT long FalseAclnnLive(void) { return __atomic_load_n(&live, __ATOMIC_RELAXED); }

static void* New(size_t bytes) {
  __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
  return calloc(1, bytes);
}

static int Delete(const void* object, size_t bytes) {
  if (!object) return FalseAclFail(kNull, "nothing is destroyed");
  __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
  memset((void*)object, 0xEE, bytes);
  free((void*)object);
  return 0;
}

// ---- libnnopbase's objects ----

static const uint8_t kTypes[][3] = {
    // aclDataType, DLDataTypeCode, bits
    {12, 6, 8}, {4, 1, 8},   {2, 0, 8},   {6, 0, 16},  {3, 0, 32},  {9, 0, 64},
    {1, 2, 16}, {27, 4, 16}, {0, 2, 32},  {11, 2, 64}, {16, 5, 64}, {17, 5, 128},
    {7, 1, 16}, {8, 1, 32},  {10, 1, 64}, {36, 10, 8}, {35, 12, 8},
};

EXPORT aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t ndim, int dtype,
                                  const int64_t* strides, int64_t offset, int format,
                                  const int64_t* storage, uint64_t storage_ndim, void* data) {
  int64_t last = 1;
  const uint8_t* type = NULL;
  for (size_t i = 0; i < sizeof kTypes / sizeof kTypes[0]; ++i)
    if (kTypes[i][0] == dtype) type = kTypes[i];
  if (!type || ndim > kMostDims || offset || format != 2 || storage_ndim != 1) return NULL;
  aclTensor* made = New(sizeof *made);
  for (uint64_t d = 0; d < ndim; ++d) {
    made->sizes[d] = sizes[d];
    made->strides[d] = strides[d];
    last = sizes[d] && last ? last + (sizes[d] - 1) * strides[d] : 0;
  }
  made->tensor = (AnyopTensor){data, 1, 0, (int32_t)ndim, type[1], type[2], 1, NULL, NULL, 0};
  if (last == storage[0]) return made;
  Delete(made, sizeof *made);
  return NULL;
}
EXPORT int aclDestroyTensor(const aclTensor* tensor) { return Delete(tensor, sizeof *tensor); }

EXPORT aclScalar* aclCreateScalar(void* value, int dtype) {
  if (dtype != 0 || !value) return NULL;
  aclScalar* made = New(sizeof *made);
  made->value = *(float*)value;
  return made;
}
EXPORT int aclDestroyScalar(const aclScalar* scalar) { return Delete(scalar, sizeof *scalar); }

EXPORT aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  if (count > kMostDims) return NULL;
  aclIntArray* made = New(sizeof *made);
  made->count = count;
  memcpy(made->values, values, count * sizeof *values);
  return made;
}
EXPORT int aclDestroyIntArray(const aclIntArray* array) { return Delete(array, sizeof *array); }
EXPORT int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return Delete(executor, sizeof *executor);
}

// ---- the executor: tensors of it are copies, as those of the caller end with the call ----

static AnyopTensor* Keep(aclOpExecutor* e, const aclTensor* tensor) {
  aclTensor* kept = &e->tensors[e->count];
  *kept = *tensor;
  kept->tensor.shape = kept->sizes;
  kept->tensor.strides = kept->strides;
  return &kept->tensor;
}

static void Put(aclOpExecutor* e, const aclTensor* tensor) {  // NULL: None
  AnyopValue* value = &e->values[e->count];
  value->kind = tensor ? kAnyopTensorValue : kAnyopNoValue;
  if (tensor) value->as.tensor = Keep(e, tensor);
  ++e->count;
}
static void PutInt(aclOpExecutor* e, int64_t number) {
  e->values[e->count].kind = kAnyopIntValue;
  e->values[e->count++].as.i = number;
}
static void PutFloat(aclOpExecutor* e, double number) {
  e->values[e->count].kind = kAnyopFloatValue;
  e->values[e->count++].as.f = number;
}
static void PutText(aclOpExecutor* e, const char* text) {
  e->values[e->count].kind = kAnyopStringValue;
  e->values[e->count++].as.s = text;
}

static aclOpExecutor* Make(const char* name, const char* op, uint64_t* bytes,
                           aclOpExecutor** executor) {
  aclOpExecutor* e = New(sizeof *e);
  e->name = name;
  e->op = op;
  e->workspace_bytes = *bytes = 96;
  return *executor = e;
}

typedef const AnyopOperator* (*FindOperator)(const char*);
typedef int32_t (*Invoke)(const AnyopOperator*, AnyopValue*, int32_t, const AnyopInvokeOptions*);
typedef const char* (*LastError)(void);

static void* Core(const char* name) {
  void* library = dlopen(getenv("ANYOP_FALSE_BELOW"), RTLD_NOW | RTLD_LOCAL);
  void* found = library ? dlsym(library, name) : NULL;
  if (!found) abort();
  return found;
}

// When the stream comes to it. What the kernel refuses must have been refused before.
static void Compute(void* context) {
  aclOpExecutor* e = context;
  FindOperator find;
  Invoke invoke;
  LastError error;
  *(void**)&find = Core("AnyopFindOperator");
  *(void**)&invoke = Core("AnyopInvoke");
  *(void**)&error = Core("AnyopLastError");
  memset(e->workspace, 0xA5, e->workspace_bytes);
  if (e->scratch.tensor.data) memset(e->scratch.tensor.data, 0xA5, 4);
  if (invoke(find(e->op), e->values, e->count, NULL)) {
    fprintf(stderr, "false libopapi: %s: %s\n", e->name, error());
    abort();
  }
  Delete(e, sizeof *e);
}

static int Run(const char* name, void* workspace, uint64_t bytes, aclOpExecutor* e, void* stream) {
  if (!e || e->name != name) return FalseAclFail(kInner, "an executor of another function");
  if (!workspace || bytes != e->workspace_bytes) return FalseAclFail(kInner, "another workspace");
  e->name = NULL;
  e->workspace = workspace;
  return aclrtLaunchHostFunc(stream, Compute, e);
}

#define NEED(condition, code) \
  if (!(condition)) return FalseAclFail(code, #condition)
#define PHASES(function, ...)                                                                   \
  static const char k##function[] = #function;                                                  \
  EXPORT int function(void* workspace, uint64_t bytes, aclOpExecutor* executor, void* stream) { \
    return Run(k##function, workspace, bytes, executor, stream);                                \
  }                                                                                             \
  EXPORT int function##GetWorkspaceSize(__VA_ARGS__, uint64_t* bytes, aclOpExecutor** executor)
#define MAKE(function, op) aclOpExecutor* e = Make(k##function, op, bytes, executor)

// ---- elementwise ----

static int Binary(const aclTensor* x, const aclTensor* y, const aclTensor* out) {
  NEED(x && y && out, kNull);
  NEED(IsFloat(x) && IsFloat(y) && IsFloat(out), kInvalid);
  NEED(SameSizes(x, out) && SameSizes(y, out), kInvalid);
  return 0;
}

PHASES(aclnnAdd, const aclTensor* self, const aclTensor* other, const aclScalar* alpha,
       aclTensor* out) {
  NEED(alpha, kNull);
  if (Binary(self, other, out)) return kInvalid;
  MAKE(aclnnAdd, "add");
  Put(e, self);
  Put(e, other);
  PutFloat(e, alpha->value);
  Put(e, out);
  return 0;
}
PHASES(aclnnMul, const aclTensor* self, const aclTensor* other, aclTensor* out) {
  if (Binary(self, other, out)) return kInvalid;
  MAKE(aclnnMul, "mul");
  Put(e, self);
  Put(e, other);
  Put(e, out);
  return 0;
}

static int Unary(const aclTensor* self, const aclTensor* out) {
  NEED(self && out, kNull);
  NEED(IsFloat(self) && Dtype(self) == Dtype(out) && SameSizes(self, out), kInvalid);
  return 0;
}

PHASES(aclnnRelu, const aclTensor* self, aclTensor* out) {
  if (Unary(self, out)) return kInvalid;
  MAKE(aclnnRelu, "relu");
  Put(e, self);
  Put(e, out);
  return 0;
}
PHASES(aclnnSilu, const aclTensor* self, aclTensor* out) {
  if (Unary(self, out)) return kInvalid;
  MAKE(aclnnSilu, "silu");
  Put(e, self);
  Put(e, out);
  return 0;
}
PHASES(aclnnGeluV2, const aclTensor* x, int64_t approximate, aclTensor* y) {
  if (Unary(x, y)) return kInvalid;
  NEED(approximate == 0 || approximate == 1, kInvalid);
  MAKE(aclnnGeluV2, "gelu");
  Put(e, x);
  PutText(e, approximate ? "tanh" : "none");
  Put(e, y);
  return 0;
}
PHASES(aclnnSwiGlu, const aclTensor* x, int64_t dim, const aclTensor* out) {
  NEED(x && out, kNull);
  NEED(IsFloat(x) && Dtype(x) == Dtype(out) && dim == -1, kInvalid);
  NEED(x->tensor.ndim == out->tensor.ndim && Last(x, 1) == 2 * Last(out, 1), kInvalid);
  MAKE(aclnnSwiGlu, "silu_and_mul");
  Put(e, x);
  Put(e, out);
  return 0;
}
PHASES(aclnnCast, const aclTensor* self, const int dtype, aclTensor* out) {
  NEED(self && out, kNull);
  NEED(SameSizes(self, out), kInvalid);
  bool named = false;
  for (size_t i = 0; i < sizeof kTypes / sizeof kTypes[0]; ++i)
    named |= kTypes[i][0] == dtype && kTypes[i][1] == out->tensor.dtype_code &&
             kTypes[i][2] == out->tensor.dtype_bits;
  NEED(named, kInvalid);
  MAKE(aclnnCast, "cast");
  Put(e, self);
  PutInt(e, Dtype(out));
  Put(e, out);
  return 0;
}

// ---- norms and softmaxes ----

PHASES(aclnnRmsNorm, const aclTensor* x, const aclTensor* gamma, double epsilon, const aclTensor* y,
       const aclTensor* rstd) {
  NEED(x && gamma && y && rstd, kNull);
  if (Unary(x, y)) return kInvalid;
  NEED(Dtype(gamma) == Dtype(x) && gamma->tensor.ndim == 1, kInvalid);
  NEED(gamma->sizes[0] == Last(x, 1) && epsilon >= 0 && epsilon < 1, kInvalid);
  NEED(Dtype(rstd) == kAnyopFloat32 && IsReduced(x, x->tensor.ndim - 1, rstd), kInvalid);
  MAKE(aclnnRmsNorm, "rms_norm");
  Put(e, x);
  Put(e, gamma);
  PutFloat(e, epsilon);
  PutFloat(e, 0);
  Put(e, NULL);
  Put(e, y);
  e->scratch = *rstd;
  return 0;
}
PHASES(aclnnLayerNorm, const aclTensor* input, const aclIntArray* normalized,
       const aclTensor* weight, const aclTensor* bias, double eps, aclTensor* out, aclTensor* mean,
       aclTensor* rstd) {
  NEED(input && normalized && out && !mean == !rstd, kNull);
  if (Unary(input, out)) return kInvalid;
  NEED(normalized->count == 1 && normalized->values[0] == Last(input, 1), kInvalid);
  const aclTensor* one[] = {weight, bias};
  for (int i = 0; i < 2; ++i)
    NEED(!one[i] || (Dtype(one[i]) == Dtype(input) && one[i]->tensor.ndim == 1 &&
                     one[i]->sizes[0] == Last(input, 1)),
         kInvalid);
  NEED(!mean || (IsReduced(input, input->tensor.ndim - 1, mean) && SameSizes(mean, rstd)),
       kInvalid);
  NEED(!mean || (Dtype(mean) == kAnyopFloat32 && Dtype(rstd) == kAnyopFloat32), kInvalid);
  MAKE(aclnnLayerNorm, mean ? "native_layer_norm" : "layer_norm");
  Put(e, input);
  Put(e, weight);
  Put(e, bias);
  PutFloat(e, eps);
  PutFloat(e, 0);
  Put(e, NULL);
  Put(e, out);
  if (mean) Put(e, mean);
  if (mean) Put(e, rstd);
  return 0;
}

static int Softmax(const aclTensor* self, int64_t dim, const aclTensor* out) {
  if (Unary(self, out)) return kInvalid;
  NEED(dim >= -self->tensor.ndim && dim < self->tensor.ndim, kInvalid);
  return 0;
}
PHASES(aclnnSoftmax, const aclTensor* self, int64_t dim, aclTensor* out) {
  if (Softmax(self, dim, out)) return kInvalid;
  MAKE(aclnnSoftmax, "softmax");
  Put(e, self);
  PutInt(e, dim);
  Put(e, out);
  return 0;
}
PHASES(aclnnLogSoftmax, const aclTensor* self, int64_t dim, aclTensor* out) {
  if (Softmax(self, dim, out)) return kInvalid;
  MAKE(aclnnLogSoftmax, "log_softmax");
  Put(e, self);
  PutInt(e, dim);
  Put(e, out);
  return 0;
}

// ---- tables and selections ----

PHASES(aclnnEmbedding, const aclTensor* weight, const aclTensor* indices, const aclTensor* out) {
  NEED(weight && indices && out, kNull);
  NEED(weight->tensor.ndim == 2 && Dtype(weight) == Dtype(out), kInvalid);
  NEED(Dtype(indices) == kAnyopInt32 || Dtype(indices) == kAnyopInt64, kInvalid);
  NEED(out->tensor.ndim == indices->tensor.ndim + 1 && Last(out, 1) == weight->sizes[1], kInvalid);
  MAKE(aclnnEmbedding, "embedding");
  Put(e, indices);
  Put(e, weight);
  Put(e, out);
  return 0;
}
PHASES(aclnnTopk, const aclTensor* self, int64_t k, int64_t dim, bool largest, bool sorted,
       aclTensor* values, aclTensor* indices) {
  NEED(self && values && indices, kNull);
  NEED(dim == -1 && sorted && k >= 0 && k <= Last(self, 1) && Last(values, 1) == k, kInvalid);
  NEED(Dtype(values) == Dtype(self) && Dtype(indices) == kAnyopInt64, kInvalid);
  NEED(SameSizes(values, indices), kInvalid);
  MAKE(aclnnTopk, "topk");
  Put(e, self);
  PutInt(e, k);
  PutInt(e, largest);
  Put(e, values);
  Put(e, indices);
  return 0;
}

// ---- products ----

PHASES(aclnnMatmul, const aclTensor* self, const aclTensor* mat2, aclTensor* out,
       int8_t cube_math) {
  NEED(self && mat2 && out, kNull);
  NEED(IsFloat(self) && Dtype(mat2) == Dtype(self) && Dtype(out) == Dtype(self), kInvalid);
  NEED(self->tensor.ndim >= 2 && mat2->tensor.ndim >= 2 && cube_math == 0, kInvalid);
  NEED(Last(self, 1) == Last(mat2, 2) && Last(self, 1) > 0, kInvalid);
  NEED(Last(out, 2) == Last(self, 2) && Last(out, 1) == Last(mat2, 1), kInvalid);
  MAKE(aclnnMatmul, "matmul");
  Put(e, self);
  Put(e, mat2);
  Put(e, out);
  return 0;
}
PHASES(aclnnAddmm, const aclTensor* self, const aclTensor* mat1, const aclTensor* mat2,
       const aclScalar* beta, const aclScalar* alpha, aclTensor* out, int8_t cube_math) {
  NEED(self && mat1 && mat2 && beta && alpha && out, kNull);
  NEED(IsFloat(self) && Dtype(mat1) == Dtype(self) && Dtype(mat2) == Dtype(self), kInvalid);
  NEED(mat1->tensor.ndim == 2 && mat2->tensor.ndim == 2 && self->tensor.ndim == 1, kInvalid);
  NEED(mat1->sizes[1] == mat2->sizes[0] && mat1->sizes[1] > 0, kInvalid);
  NEED(out->sizes[0] == mat1->sizes[0] && out->sizes[1] == mat2->sizes[1], kInvalid);
  NEED(self->sizes[0] == out->sizes[1] && beta->value == 1 && alpha->value == 1, kInvalid);
  NEED(mat2->strides[0] == 1 && mat2->strides[1] == mat2->sizes[0] && !cube_math, kInvalid);
  aclTensor weight = *mat2;  // the rows that it is the transposed view of
  weight.sizes[0] = mat2->sizes[1];
  weight.sizes[1] = weight.strides[0] = mat2->sizes[0];
  weight.strides[1] = 1;
  MAKE(aclnnAddmm, "linear");
  Put(e, mat1);
  Put(e, &weight);
  Put(e, self);
  Put(e, out);
  return 0;
}

// ---- attention: no mask, no dropout, every query sees every key ----

static int AttentionTensors(const aclTensor* q, const aclTensor* k, const aclTensor* v,
                            const aclTensor* out) {
  const aclTensor* all[] = {q, k, v, out};
  for (int i = 0; i < 4; ++i) {
    NEED(all[i], kNull);
    NEED(IsFloat(all[i]) && Dtype(all[i]) == Dtype(q) && all[i]->tensor.ndim == 4, kInvalid);
  }
  for (int d = 0; d < 3; ++d)
    NEED(v->sizes[d] == k->sizes[d] && out->sizes[d] == q->sizes[d], kInvalid);
  NEED(q->sizes[0] == k->sizes[0] && q->sizes[1] % k->sizes[1] == 0, kInvalid);
  NEED(q->sizes[3] == k->sizes[3] && v->sizes[3] <= k->sizes[3], kInvalid);
  NEED(out->sizes[3] == v->sizes[3] && q->sizes[1] <= 256 && q->sizes[3] <= 768, kInvalid);
  return 0;
}
static bool IsStatistic(const aclTensor* q, const aclTensor* statistic, int64_t last) {
  return statistic && Dtype(statistic) == kAnyopFloat32 && statistic->tensor.ndim == 4 &&
         !memcmp(statistic->sizes, q->sizes, 3 * sizeof *q->sizes) && Last(statistic, 1) == last;
}
PHASES(aclnnFlashAttentionScore, const aclTensor* query, const aclTensor* key,
       const aclTensor* value, const aclTensor* shift, const aclTensor* dropout,
       const aclTensor* padding, const aclTensor* mask, const aclIntArray* prefix, double scale,
       double keep, int64_t before, int64_t after, int64_t heads, char* layout, int64_t precise,
       int64_t sparse, const aclTensor* most, const aclTensor* sums, const aclTensor* reserved,
       const aclTensor* out) {
  const int code = AttentionTensors(query, key, value, out);
  if (code) return code;
  NEED(!shift && !dropout && !padding && !mask && !prefix && keep == 1, kInvalid);
  NEED(before == INT32_MAX && after == INT32_MAX && !precise && !sparse, kInvalid);
  NEED(heads == query->sizes[1] && layout && !strcmp(layout, "BNSD"), kInvalid);
  NEED(IsStatistic(query, most, 8) && IsStatistic(query, sums, 8), kInvalid);
  NEED(IsStatistic(query, reserved, 0), kInvalid);
  MAKE(aclnnFlashAttentionScore, "attention");
  Put(e, query);
  Put(e, key);
  Put(e, value);
  Put(e, NULL);
  PutFloat(e, scale);
  PutInt(e, 0);
  PutInt(e, 0);
  PutInt(e, -1);
  PutInt(e, -1);
  PutFloat(e, 0);
  Put(e, NULL);
  Put(e, NULL);
  Put(e, out);
  e->scratch = *sums;
  return 0;
}
