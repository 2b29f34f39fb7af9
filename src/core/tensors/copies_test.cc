// SPDX-License-Identifier: Apache-2.0
// Dense copies compared with an index for each element: random views of all element sizes.
#include "tensors/copies.h"

#include <random>
#include <vector>

#include "tests/check.h"

namespace {

using anyop::CopyDense;

TEST(CopiesOfRandomViewsAreRowByRow) {
  std::mt19937 draw(7);
  std::vector<char> memory(1 << 18), found;
  for (char& byte : memory) byte = static_cast<char>(draw());
  const auto upto = [&](int n) { return static_cast<int64_t>(draw() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 20000; ++round) {
    const int bits = 8 << upto(5), item = bits / 8;
    const int ndim = static_cast<int>(upto(5));
    std::vector<int64_t> shape, strides;
    int64_t numel = 1, low = 0;
    for (int d = 0; d < ndim; ++d) {
      shape.push_back(upto(3) == 0 && ndim <= 2 ? 33 + upto(40) : 1 + upto(5));
      // Such as those of a dense tensor in any order of its dimensions, of steps, repeated, back.
      const int64_t stride = upto(4) == 0 ? upto(8) : upto(2) ? numel : shape.back();
      strides.push_back(upto(3) == 0 ? -stride : stride);
      numel *= shape.back();
      low += std::min<int64_t>(0, (shape.back() - 1) * strides.back());
    }
    int64_t high = 0;
    for (int d = 0; d < ndim; ++d) high += std::max<int64_t>(0, (shape[d] - 1) * strides[d]);
    if ((high - low + 1) * item > static_cast<int64_t>(memory.size()) || numel > 1 << 14) continue;
    char* const data = memory.data() - low * item;
    const AnyopTensor from = {
        data, 1, 0, ndim, 0, static_cast<uint8_t>(bits), 1, shape.data(), strides.data(), 0};
    found.assign(static_cast<size_t>(numel * item) + 1, 'x');
    CopyDense(from, found.data());
    bool same = found.back() == 'x';
    for (int64_t i = 0; i < numel; ++i) {
      int64_t rest = i, at = 0;
      for (int d = ndim; d--; rest /= shape[d]) at += rest % shape[d] * strides[d];
      same &=
          std::memcmp(found.data() + i * item, data + at * item, static_cast<size_t>(item)) == 0;
    }
    CHECK(same);
  }
}

}  // namespace
