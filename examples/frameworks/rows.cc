// SPDX-License-Identifier: Apache-2.0
// Two rows and what is added to them, normalised by one compiled kernel: C++.
#include <anyop/ops.h>

#include <cstdio>

int main() {
  float x[] = {0, 1, 2, 3, 4, 5, 6, 7}, weight[] = {1, 1, 2, 2}, half = 0.5f;
  const anyop::Tensor more = anyop::Tensor::View(&half, {});  // broadcast, as in NumPy
  const anyop::Tensor sum = anyop::add(anyop::Tensor::View(x, {2, 4}), more);
  const anyop::Tensor y = anyop::rms_norm(sum, anyop::Tensor::View(weight, {4}), 1e-6);
  const float* row = y.data<float>();
  for (int i = 0; i < 2; ++i, row += 4)
    std::printf("%.4f %.4f %.4f %.4f\n", row[0], row[1], row[2], row[3]);
}
