// SPDX-License-Identifier: Apache-2.0
// mul in OpenCL C: four elements a thread; broadcast inputs have strides of 0.
__kernel void mul(TENSOR(x), TENSOR(y), TENSOR(out), const Layout places) {
  BEGIN(x);
  BEGIN(y);
  BEGIN(out);
  FOUR_EACH(out, places, i, LOAD(x, at(&places, 1, i)) * LOAD(y, at(&places, 2, i)))
}
