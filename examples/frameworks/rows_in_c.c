/* SPDX-License-Identifier: Apache-2.0 */
/* Two rows and what is added to them, normalised by one compiled kernel: C. */
#include <anyop/anyop.h>
#include <stdio.h>

/* Data on the CPU (1), 32-bit floats (type code 2), one lane. */
#define FLOATS(data, ndim, shape, strides) {data, 1, 0, ndim, 2, 32, 1, shape, strides, 0}

int main(void) {
  float x_data[] = {0, 1, 2, 3, 4, 5, 6, 7}, weight_data[] = {1, 1, 2, 2}, half = 0.5f;
  int64_t shape[] = {2, 4}, strides[] = {4, 1};
  AnyopTensor x = FLOATS(x_data, 2, shape, strides), more = FLOATS(&half, 0, NULL, NULL);
  AnyopTensor weight = FLOATS(weight_data, 1, shape + 1, strides + 1);

  /* Arguments, then the result. Zeroed: an argument's default, a result that anyop makes. */
  AnyopValue add[4] = {{kAnyopTensorValue, 0, {&x}}, {kAnyopTensorValue, 0, {&more}}};
  if (AnyopInvoke(AnyopFindOperator("add"), add, 4, NULL) != kAnyopOk) return 1;
  AnyopValue norm[6] = {add[3], {kAnyopTensorValue, 0, {&weight}}};
  norm[2].kind = kAnyopFloatValue, norm[2].as.f = 1e-6;
  if (AnyopInvoke(AnyopFindOperator("rms_norm"), norm, 6, NULL) != kAnyopOk) return 1;

  const float* row = norm[5].as.tensor->data;
  for (int i = 0; i < 2; ++i, row += 4)
    printf("%.4f %.4f %.4f %.4f\n", row[0], row[1], row[2], row[3]);
  AnyopDeleteTensor(add[3].as.tensor);
  AnyopDeleteTensor(norm[5].as.tensor);
  return 0;
}
