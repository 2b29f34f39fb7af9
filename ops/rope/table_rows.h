// SPDX-License-Identifier: Apache-2.0
// Which row of a table of angles each token takes: by positions, by its place in a packed sequence,
// or by its place; what is out of range is found before anything is written.
#ifndef ANYOP_OPS_ROPE_TABLE_ROWS_H_
#define ANYOP_OPS_ROPE_TABLE_ROWS_H_

#include "../embedding/indices.h"
#include "anyop/cpu/rows.h"
#include "rotary_checks.h"

namespace anyop::cpu {

// The row of token t is rows[t % period], or t % period; -1 for padding between sequences.
struct TableRows {
  const int64_t* rows = nullptr;
  int64_t period = 1;
  int64_t operator[](int64_t token) const {
    const int64_t at = token < period ? token : token % period;
    return rows ? rows[at] : at;
  }
};

inline int64_t IndexAt(const AnyopTensor* tensor, const void* at) {
  return tensor->dtype_bits == 32 ? *static_cast<const int32_t*>(at)
                                  : *static_cast<const int64_t*>(at);
}

inline int32_t ReadPositions(AnyopCall* call, const AnyopTensor* positions, int64_t tokens,
                             int64_t P, int64_t* rows) {
  const Rows places(positions, 0);
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t row = IndexAt(positions, places[token]);
    if (row < 0 || row >= P) return FailOutside(call, *positions, token, row, P, "positions");
    rows[token] = row;
  }
  return kAnyopOk;
}

inline int32_t ReadSequences(AnyopCall* call, const AnyopTensor* cu_seqlens, int64_t S, int64_t P,
                             int64_t* rows) {
  for (int64_t s = 0; s < S; ++s) rows[s] = -1;
  const auto* ends = static_cast<const int32_t*>(cu_seqlens->data);
  for (int64_t begin = 0, n = 0; n < cu_seqlens->shape[0]; ++n) {
    const int64_t end = ends[n];
    const int64_t most = n == 0 || S - begin < P ? S : begin + P;
    if (end < begin || end > most) {
      char message[240];
      std::snprintf(message, sizeof message,
                    "cu_seqlens[%lld] is %lld, expected %lld to %lld: not less than the one "
                    "before, at most S=%lld, and no sequence longer than the tables' P=%lld",
                    static_cast<long long>(n), static_cast<long long>(end),
                    static_cast<long long>(begin), static_cast<long long>(most),
                    static_cast<long long>(S), static_cast<long long>(P));
      return call->fail(call, kAnyopValueError, message);
    }
    for (int64_t s = begin; n > 0 && s < end; ++s) rows[s] = s - begin;
    begin = end;
  }
  return kAnyopOk;
}

// tokens: all of them, S in each sequence; P: rows of the table. positions come before cu_seqlens.
inline int32_t FindRows(AnyopCall* call, const AnyopTensor* positions,
                        const AnyopTensor* cu_seqlens, int64_t tokens, int64_t S, int64_t P,
                        TableRows* found) {
  if (tokens == 0) return kAnyopOk;
  found->period = positions ? tokens : S;
  if (positions || cu_seqlens) {
    auto* rows = static_cast<int64_t*>(call->workspace(call, found->period * int64_t{8}));
    if (!rows) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    found->rows = rows;
    return positions ? ReadPositions(call, positions, tokens, P, rows)
                     : ReadSequences(call, cu_seqlens, S, P, rows);
  }
  return CheckLength(call, S, P);
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_ROPE_TABLE_ROWS_H_
