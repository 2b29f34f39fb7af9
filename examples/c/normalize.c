/* SPDX-License-Identifier: Apache-2.0 */
/* Normalises two rows in C: rms_norm into memory of our own, layer_norm into memory that anyop
 * makes. */
#include <anyop/anyop.h>
#include <math.h>
#include <stdio.h>

enum { kRows = 2, kColumns = 4 };

/* A view of floats that we own. Shape and strides must live as long as the view. */
static AnyopTensor View(float* data, int32_t ndim, int64_t* shape, int64_t* strides) {
  AnyopTensor tensor = {0};
  tensor.data = data;
  tensor.device_type = 1; /* CPU */
  tensor.ndim = ndim;
  tensor.dtype_code = 2; /* float */
  tensor.dtype_bits = 32;
  tensor.dtype_lanes = 1;
  tensor.shape = shape;
  tensor.strides = strides;
  return tensor;
}

static void Give(AnyopValue* value, AnyopTensor* tensor) {
  value->kind = kAnyopTensorValue;
  value->as.tensor = tensor;
}

static void Print(const char* name, const float* data) {
  printf("%s\n", name);
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < kColumns; ++d) printf("%9.5f", data[r * kColumns + d]);
    printf("\n");
  }
}

static int Fail(void) {
  fprintf(stderr, "%s\n", AnyopLastError());
  return 1;
}

/* rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset, ScalarType? dtype) -> Tensor,
   into out. */
static int RmsNorm(AnyopTensor* x, AnyopTensor* weight, AnyopTensor* out) {
  AnyopValue values[6] = {0}; /* zero: None, so eps and those behind it are their defaults */
  Give(&values[0], x);
  Give(&values[1], weight);
  Give(&values[5], out);
  return AnyopInvoke(AnyopFindOperator("rms_norm"), values, 6, NULL);
}

/* layer_norm(Tensor x, ...) -> Tensor, without weight and bias, into a new tensor. */
static AnyopTensor* LayerNorm(AnyopTensor* x) {
  const AnyopOperator* op = AnyopFindOperator("layer_norm");
  AnyopValue values[7] = {0};
  Give(&values[0], x);
  if (AnyopInvoke(op, values, 7, NULL) != kAnyopOk) return NULL;
  return values[6].as.tensor;
}

int main(void) {
  float x_data[kRows * kColumns] = {1, 2, 3, 4, -1, 0, 1, 2};
  float weight_data[kColumns] = {1, 1, 2, 2};
  float out_data[kRows * kColumns];
  int64_t shape[2] = {kRows, kColumns}, strides[2] = {kColumns, 1};
  AnyopTensor x = View(x_data, 2, shape, strides);
  AnyopTensor weight = View(weight_data, 1, shape + 1, strides + 1);
  AnyopTensor out = View(out_data, 2, shape, strides);

  printf("anyop %s\n", AnyopVersion());
  if (RmsNorm(&x, &weight, &out) != kAnyopOk) return Fail();
  Print("rms_norm", out_data);
  const float expected = 1 / sqrtf((1 + 4 + 9 + 16) / 4.0f + 1e-6f);
  if (fabsf(out_data[0] - expected) > 1e-6f) return 1;

  AnyopTensor* normal = LayerNorm(&x);
  if (!normal) return Fail();
  Print("layer_norm", normal->data);
  AnyopDeleteTensor(normal);

  /* A wrong shape is an error with a text, never a crash. */
  AnyopTensor narrow = View(weight_data, 1, (int64_t[]){3}, strides + 1);
  if (RmsNorm(&x, &narrow, &out) != kAnyopValueError) return 1;
  printf("refused: %s\n", AnyopLastError());
  return 0;
}
