// SPDX-License-Identifier: Apache-2.0
// How checkpoints store 4-bit weights, for CPU and CUDA: what w4_pack reads.
//
// awq: 8 neighbouring results in a word, in the order 0 2 4 6 1 3 5 7 from its low bits on. gptq: 8
// neighbouring factors in a word, zero points less 1 (15 for 0); gptq_v2: zero points as they are.
// plain: 2 factors in a byte.
#pragma once

#include <cstring>

#include "anyop/ops/w4_pack.h"
#include "w4_layout.h"

namespace anyop::w4 {

enum class Format { kAwq, kGptq, kGptqV2, kPlain };

struct Checkpoint {
  const void* factors;
  const int32_t* zeros;  // or NULL
  uint8_t* weight;
  int32_t* zero;          // or NULL
  int64_t N, K, columns;  // columns: of factors
  int64_t zero_words;
};

inline Format FormatOf(const AnyopString& text) {
  const auto is = [&](const char* word) { return std::strcmp(text.data, word) == 0; };
  return is("awq")       ? Format::kAwq
         : is("gptq")    ? Format::kGptq
         : is("gptq_v2") ? Format::kGptqV2
                         : Format::kPlain;
}

inline Checkpoint CheckpointOf(const W4PackArgs* args, Format format) {
  const int64_t A = args->A, B = args->B;
  Checkpoint c = {};
  c.factors = args->qweight->data;
  c.zeros = args->qzeros ? static_cast<const int32_t*>(args->qzeros->data) : nullptr;
  c.weight = args->weight ? static_cast<uint8_t*>(args->weight->data) : nullptr;
  c.N = format == Format::kAwq ? 8 * B : format == Format::kPlain ? A : B;
  c.K = format == Format::kAwq ? A : format == Format::kPlain ? 2 * B : 8 * A;
  c.columns = B;
  if (args->zero) {
    c.zero = static_cast<int32_t*>(args->zero->data);
    c.zero_words = 1;
    for (int d = 0; d < args->zero->ndim; ++d) c.zero_words *= args->zero->shape[d];
  }
  return c;
}

// Where the bits of result i of 8 begin.
ANYOP_W4_BOTH inline int AwqShift(int64_t i) { return static_cast<int>(4 * (i % 2 * 4 + i / 2)); }

ANYOP_W4_BOTH inline unsigned Factor(const Checkpoint& c, Format format, int64_t n, int64_t k) {
  if (format == Format::kPlain)
    return static_cast<const uint8_t*>(c.factors)[n * c.columns + k / 2] >> 4 * (k % 2) & 15;
  const auto* words = static_cast<const uint32_t*>(c.factors);
  if (format == Format::kAwq) return words[k * c.columns + n / 8] >> AwqShift(n % 8) & 15;
  return words[k / 8 * c.columns + n] >> 4 * (k % 8) & 15;
}

// Block b of row n.
ANYOP_W4_BOTH inline void PackBlock(const Checkpoint& c, Format format, int64_t n, int64_t b) {
  const int64_t first = b * kFactors;
  const bool whole = first + kFactors <= c.K;
  const int bytes = whole ? kBytes : static_cast<int>(c.K - first) / 2;
  uint8_t* to = c.weight + n * (c.K / 2) + b * kBytes;
  for (int i = 0; i < bytes; ++i) {
    const int low = whole ? FactorOf(i, false) : EndFactorOf(i, false);
    const int high = whole ? FactorOf(i, true) : EndFactorOf(i, true);
    to[i] = static_cast<uint8_t>(Factor(c, format, n, first + low) |
                                 Factor(c, format, n, first + high) << 4);
  }
}

// Eight zero points.
ANYOP_W4_BOTH inline int32_t PackZeros(const Checkpoint& c, Format format, int64_t at) {
  if (!c.zeros) return static_cast<int32_t>(0x11111111u * kMiddle);
  const uint32_t given = static_cast<uint32_t>(c.zeros[at]);
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t zero = given >> (format == Format::kAwq ? AwqShift(i) : 4 * i) & 15;
    word |= (format == Format::kGptq ? (zero + 1) & 15 : zero) << 4 * i;
  }
  return static_cast<int32_t>(word);
}

}  // namespace anyop::w4
