// SPDX-License-Identifier: Apache-2.0
// transducer_loss on the CPU, padded or packed: a thread takes rows of logits, then sequences,
// whose alignments are summed in float64, from the end (beta), then from the beginning (alpha).
#include "anyop/ops/transducer_loss.h"

#include <cmath>

#include "../loss/class_sums.h"
#include "anyop/ops/transducer_loss_packed.h"
#include "loss_lattice.h"

namespace anyop::cpu {
namespace {

struct Work {
  const AnyopTensor *x, *loss, *blank_moves, *label_moves, *lse;
  LossLattice lattice;
  bool log_softmax;
  double *logs, *betas, *alphas;  // of a row: both moves, what follows; of a sequence: U
};

constexpr double kNever = -Bits<double>::kInfinity;

// log(exp(a) + exp(b)).
inline double LogOfSum(double a, double b) {
  const double most = a > b ? a : b, least = a > b ? b : a;
  return most == kNever ? most : most + std::log1p(std::exp(least - most));
}

template <typename Wide>
inline void ReadMoves(const Work& work, int64_t begin, int64_t end) {
  const Rows x(work.x);
  const LossLattice& lattice = work.lattice;
  const auto put = [](const AnyopTensor* tensor, int64_t row, double v) {
    static_cast<Wide*>(tensor->data)[row] = static_cast<Wide>(v);
  };
  for (int64_t row = begin; row < end; ++row) {
    const Lattice::Node node = lattice.Find(row);
    double lse = 0;
    if (node.inside) {
      if (work.log_softmax) {
        RowReader<Wide> in(x.dtype(), x[row], lattice.V);
        lse = SumsOfRow(lattice.V, in, -1, false).log_sum();
      }
      const auto move = [&](int64_t v) {
        if (v < 0) return kNever;
        RowReader<Wide, 1> one(x.dtype(), x[row] + v * (work.x->dtype_bits / 8), 1, 0);
        return static_cast<double>(one.Read(0, 1)[0]) - lse;
      };
      work.logs[2 * row] = move(lattice.blank);
      work.logs[2 * row + 1] = move(lattice.LabelOf(node, lattice[node.b]));
    } else {
      put(work.blank_moves, row, 0);
      put(work.label_moves, row, 0);
    }
    put(work.lse, row, lse);
  }
}

// All of a sequence: b, by logs alone.
template <typename Wide>
inline void SumAlignments(const Work& work, int64_t b) {
  const Lattice::Sequence s = work.lattice[b];
  const double* const logs = work.logs;
  double *const betas = work.betas, *const alphas = work.alphas + b * work.lattice.U;
  auto* const blank_moves = static_cast<Wide*>(work.blank_moves->data);
  auto* const label_moves = static_cast<Wide*>(work.label_moves->data);
  // Both ways on from (t, u): their logarithms with all that follows.
  const auto ways = [&](int64_t t, int64_t u, double* blank, double* label) {
    const int64_t row = s.first + t * s.stride + u;
    const bool last_frame = t + 1 == s.frames, last_token = u + 1 == s.tokens;
    const double behind = last_frame ? (last_token ? 0 : kNever) : betas[row + s.stride];
    *blank = logs[2 * row] + behind;
    *label = last_token ? kNever : logs[2 * row + 1] + betas[row + 1];
  };
  double blank, label;
  for (int64_t t = s.frames - 1; t >= 0; --t) {
    for (int64_t u = s.tokens - 1; u >= 0; --u) {
      ways(t, u, &blank, &label);
      betas[s.first + t * s.stride + u] = LogOfSum(blank, label);
    }
  }
  const double all = s.frames > 0 ? betas[s.first] : 0;
  static_cast<Wide*>(work.loss->data)[b] = static_cast<Wide>(-all);
  for (int64_t t = 0; t < s.frames; ++t) {
    for (int64_t u = 0; u < s.tokens; ++u) {
      const int64_t row = s.first + t * s.stride + u;
      // alphas[u] is that of the frame before until here.
      const double down = t > 0 ? alphas[u] + logs[2 * (row - s.stride)] : kNever;
      const double right = u > 0 ? alphas[u - 1] + logs[2 * (row - 1) + 1] : kNever;
      alphas[u] = t + u > 0 ? LogOfSum(down, right) : 0;
      ways(t, u, &blank, &label);
      blank_moves[row] = static_cast<Wide>(std::exp(alphas[u] - all + blank));
      label_moves[row] = static_cast<Wide>(std::exp(alphas[u] - all + label));
    }
  }
}

ANYOP_CPU_CLONES void RunReading(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->x),
            [&](auto wide) { ReadMoves<decltype(wide)>(*work, begin, end); });
}
ANYOP_CPU_CLONES void RunSums(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->x), [&](auto wide) {
    for (int64_t b = begin; b < end; ++b) SumAlignments<decltype(wide)>(*work, b);
  });
}

template <typename Args>
int32_t LossesOf(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  const LossLattice lattice(args, batch_offset);
  if (const int32_t status = lattice.CheckAll(call)) return status;
  const int64_t rows = lattice.rows, elements = 3 * rows + lattice.B * lattice.U;
  auto* memory = static_cast<double*>(call->workspace(call, elements * int64_t{sizeof(double)}));
  if (!memory && elements) return call->fail(call, kAnyopOutOfMemory, "no memory for alignments");
  const Work work = {args.x,
                     args.loss,
                     args.blank_moves,
                     args.label_moves,
                     args.lse,
                     lattice,
                     args.log_softmax != 0,
                     memory,
                     memory + 2 * rows,
                     memory + 3 * rows};
  RunRows(call, &work, rows, args.log_softmax ? args.V : 2, RunReading);
  return RunRows(call, &work, lattice.B, 16 * rows / (lattice.B ? lattice.B : 1), RunSums);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_transducer_loss_cpu(const TransducerLossArgs* args, AnyopCall* call) {
  return anyop::cpu::LossesOf(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_loss_packed_cpu(const TransducerLossPackedArgs* args,
                                                    AnyopCall* call) {
  return anyop::cpu::LossesOf(*args, call, args->batch_offset);
}
