// SPDX-License-Identifier: Apache-2.0
// Normalises two rows in C++: rms_norm into memory of our own, layer_norm into memory that anyop
// makes.
#include <anyop/ops.h>

#include <cmath>
#include <cstdio>
#include <vector>

using anyop::Tensor;

namespace {

constexpr int kRows = 2, kColumns = 4;

void Print(const char* name, const float* data) {
  std::printf("%s\n", name);
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < kColumns; ++d) std::printf("%9.5f", data[r * kColumns + d]);
    std::printf("\n");
  }
}

}  // namespace

int main() {
  std::vector<float> x_data = {1, 2, 3, 4, -1, 0, 1, 2}, weight_data = {1, 1, 2, 2}, out_data(8);
  const Tensor x = Tensor::View(x_data.data(), {kRows, kColumns});
  const Tensor weight = Tensor::View(weight_data.data(), {kColumns});
  const Tensor out = Tensor::View(out_data.data(), {kRows, kColumns});

  std::printf("anyop %s\n", AnyopVersion());
  anyop::rms_norm(x, weight, 1e-6, 0, std::nullopt, out);
  Print("rms_norm", out_data.data());
  if (std::abs(out_data[0] - 1 / std::sqrt(7.5f + 1e-6f)) > 1e-6f) return 1;

  const Tensor normal = anyop::layer_norm(x);  // made on the CPU, freed with the last handle
  Print("layer_norm", normal.data<float>());

  // A wrong shape is an exception with a text, never a crash.
  try {
    anyop::rms_norm(x, Tensor::View(weight_data.data(), {3}));
    return 1;
  } catch (const anyop::Error& error) {
    std::printf("refused: %s\n", error.what());
  }
  return 0;
}
