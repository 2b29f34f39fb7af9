// SPDX-License-Identifier: Apache-2.0
// add in OpenCL C: four elements a thread; broadcast inputs have strides of 0.
__kernel void add(TENSOR(x), TENSOR(y), TENSOR(out), const REAL alpha, const Layout places) {
  BEGIN(x);
  BEGIN(y);
  BEGIN(out);
  FOUR_EACH(out, places, i, LOAD(x, at(&places, 1, i)) + alpha * LOAD(y, at(&places, 2, i)))
}
