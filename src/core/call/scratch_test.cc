// SPDX-License-Identifier: Apache-2.0
// Scratch memory: aligned, apart, kept for the next call of the thread, refused when it cannot be.
#include "call/scratch.h"

#include <cstring>
#include <thread>

#include "tests/check.h"

namespace {

using anyop::Scratch;

TEST(BlocksAreAlignedAndApart) {
  Scratch scratch;
  char* blocks[8];
  for (int i = 0; i < 8; ++i) {
    blocks[i] = static_cast<char*>(scratch.Take(100 + i));
    CHECK_EQ(reinterpret_cast<uintptr_t>(blocks[i]) % 64, uintptr_t{0});
    std::memset(blocks[i], i, 100 + static_cast<size_t>(i));
  }
  for (int i = 0; i < 8; ++i) CHECK(blocks[i][0] == i && blocks[i][99 + i] == i);
  CHECK(scratch.Take(0) != nullptr);
}

TEST(TheNextCallGetsTheSameMemory) {
  void* first;
  {
    Scratch scratch;
    first = scratch.Take(1 << 20);
  }
  {
    Scratch scratch;
    CHECK_EQ(scratch.Take(1 << 19), first);
    CHECK(scratch.Take(1 << 10) != first);
  }
  void* elsewhere = nullptr;
  std::thread([&] {
    Scratch scratch;
    elsewhere = scratch.Take(1 << 19);
  }).join();
  CHECK(elsewhere != first);
}

TEST(WhatCannotBeIsRefused) {
  Scratch scratch;
  CHECK(scratch.Take(-1) == nullptr);
  CHECK(scratch.Take(INT64_MAX) == nullptr);
  CHECK(scratch.Take(int64_t{1} << 62) == nullptr);
  CHECK(scratch.Take(64) != nullptr);
}

}  // namespace
