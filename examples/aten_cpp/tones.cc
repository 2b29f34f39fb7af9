// SPDX-License-Identifier: Apache-2.0
// Finds the tones in a second of noisy sound by torch's operators, in C++ without Python.
#include <anyop/aten.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace aten = anyop::aten;
using aten::Tensor;

int main() {
  aten::Open();  // the table and the torch that anyop/aten.h was made for

  constexpr int64_t kRate = 8000;
  std::vector<float> sound(kRate);
  for (size_t t = 0; t < sound.size(); ++t) {
    const double at = 6.283185307179586 * static_cast<double>(t) / kRate;
    sound[t] = static_cast<float>(std::sin(440 * at) + 0.5 * std::sin(1000 * at));
  }
  const Tensor x = Tensor::View(sound.data(), {kRate});
  aten::add_(x, aten::randn({kRate}, /*generator=*/7), 0.1);  // written where sound lies

  const Tensor spectrum = aten::abs(aten::fft_rfft(x));
  const auto [loudness, hertz] = aten::topk(spectrum, 2);
  const float* loud = loudness.data<float>();
  const int64_t* tone = hertz.data<int64_t>();
  for (int i = 0; i < 2; ++i) {
    std::printf("%4lld Hz, %.2f\n", (long long)tone[i], 2 * loud[i] / kRate);
  }
  if (tone[0] != 440 || tone[1] != 1000) return 1;

  // Results may be given; views share memory and keep it alive.
  std::vector<float> squares(kRate);
  aten::square_out(Tensor::View(squares.data(), {kRate}), x);
  const Tensor halves = aten::view(x, {2, -1});
  std::printf("mean square %.3f, shape of the halves (%lld, %lld)\n",
              aten::item(aten::mean(Tensor::View(squares.data(), {kRate}))).real(),
              (long long)halves.size(0), (long long)halves.size(1));

  // A mistake is an exception with torch's text.
  try {
    aten::add(x, aten::ones({3}));
    return 1;
  } catch (const anyop::Error& error) {
    std::printf("refused: %s\n", error.what());
  }
  return 0;
}
