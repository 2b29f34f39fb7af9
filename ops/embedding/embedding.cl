// SPDX-License-Identifier: Apache-2.0
// embedding in OpenCL C: one element a thread, copied as it is. Of an index outside the table: zeros.
__kernel void embedding(TENSOR(indices), TENSOR(weight), TENSOR(out), const long rows, const long V,
                        const long D, const Layout matrix) {
  BEGIN(indices);
  BEGIN(weight);
  BEGIN(out);
  const long i = (long)get_global_id(0);
  if (i >= rows * D) return;
  const long index = indices[i / D];
  const JOIN(type_, weight_t) zero = {0};
  out[i] = index < 0 || index >= V ? zero : weight[index * row_step(&matrix, 0) + i % D];
}
