// SPDX-License-Identifier: Apache-2.0
// anyop/philox.h: the known answers that Random123 publishes beside the paper, and the numbers
// drawn.
#include "anyop/philox.h"

#include "tests/check.h"

namespace {

using anyop::Philox;
using anyop::PhiloxUniform;
using anyop::PhiloxWords;

TEST(KnownAnswers) {
  const struct {
    PhiloxWords counter;
    uint64_t key;
    PhiloxWords words;
  } cases[] = {
      {{{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0x299f31d0a4093822u,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const auto& c : cases) {
    const PhiloxWords found = Philox(c.counter, c.key);
    for (int i = 0; i < 4; ++i) CHECK_EQ(found.at[i], c.words.at[i]);
  }
  // Seed, offset and place are key, high and low half of the counter.
  const PhiloxWords found = Philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u);
  for (int i = 0; i < 4; ++i) CHECK_EQ(found.at[i], cases[2].words.at[i]);
}

TEST(NumbersAreInside) {
  CHECK(PhiloxUniform(0) == 0x1p-24f);
  CHECK(PhiloxUniform(~0u) == 1 - 0x1p-24f);
}

}  // namespace
