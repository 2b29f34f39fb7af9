// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 by panels: 64 columns of b, in which the terms of a pair lie side by side.
#pragma once

#include "gemm.h"

namespace anyop {

constexpr int64_t kPanelColumns = 64;

// Whether the product was computed: one of bfloat16, without batches, of rows of a by rows of b
// without steps inside; panels are made of b first. The bits of a result depend on its own row and
// column alone.
bool Panels(AnyopCall* call, const GemmProblem& problem);

// b.data is panels[N/64][K/2][64][2]; its strides are not read.
bool PackedPanels(AnyopCall* call, const GemmProblem& problem);

// ---- products of a thread's own blocks, summed in float32, only where HasBF16Dots() ----

// Pair j of the terms of row m lies at data + m * row_step + j * pair_step: 2 of rows as they lie,
// and of 64 columns of a panel, taken as rows, 2 and 2 * kPanelColumns.
struct PairRows {
  const uint16_t* data;
  int64_t row_step, pair_step;
};

// Of the panels of K terms and N columns: elements of a panel, and of all.
inline int64_t PanelStep(int64_t K) { return (K + 1) / 2 * 2 * kPanelColumns; }
inline int64_t CountPanels(int64_t K, int64_t N) {
  return (N + kPanelColumns - 1) / kPanelColumns * PanelStep(K);
}

// Of K rows of N elements; of N rows of K elements. What is missing of a pair or of a panel is 0.
void MakePanels(const uint16_t* b, int64_t step, int64_t K, int64_t N, uint16_t* to);
void MakeTurnedPanels(const uint16_t* b, int64_t step, int64_t K, int64_t N, uint16_t* to);

// c[M,N] = or += a[M,K] b[K,N]; a panel begins `panel_step` behind the one before.
void AddPanels(const PairRows& a, const uint16_t* panels, int64_t panel_step, int64_t M, int64_t N,
               int64_t K, bool first, float* c, int64_t ldc);

}  // namespace anyop
