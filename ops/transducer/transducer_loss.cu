// SPDX-License-Identifier: Apache-2.0
// transducer_loss on CUDA, padded or packed. First rows of logits, each read once (cuda/row.h).
// Then a block for each sequence and direction: a thread has a token, and all go through the frames
// one behind the other, so that on each step a diagonal of the lattice is done. Sums are float64,
// of logarithms in x's width. At last the moves of each row.
#include "anyop/cuda/row.h"
#include "anyop/ops/transducer_loss.h"
#include "anyop/ops/transducer_loss_packed.h"
#include "loss_lattice.h"

namespace anyop::cuda {
namespace {

// Logarithms of both moves of a row.
template <typename W>
struct Moves {
  W blank, label;
};

// Of a row: the class of its label, -1 where there is none, kOutside where no sequence is.
constexpr int64_t kOutside = -2;
__global__ void __launch_bounds__(256)
    MarkRows(const __grid_constant__ LossLattice lattice, int64_t* marks) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < lattice.rows;
       row += threads) {
    const Lattice::Node node = lattice.Find(row);
    marks[row] = node.inside ? lattice.LabelOf(node, lattice[node.b]) : kOutside;
  }
}

template <typename T, bool kAny>
struct ReadMoves {
  using W = Wide<T>;
  RowsAt<kAny> x;
  const int64_t* marks;
  int64_t rows, blank;
  bool log_softmax;
  W* lse;
  Moves<W>* logs;

  __device__ W One(int64_t row, int64_t v) const {
    if constexpr (kAny) {
      return ReadFloating<W>(x.At(row), v * x.step, x.dtype());
    } else {
      return Widen(reinterpret_cast<const T*>(x.At(row))[v]);
    }
  }

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const int64_t r = row.index() < rows ? row.index() : 0;
    if (!log_softmax || marks[r] == kOutside) row.Keep(0);
    const auto v = row.Read(x);
    const W greatest = row.Most(v), most = greatest == W(-INFINITY) ? W(0) : greatest;
    const W sum = row.Sum([=](W sum, W v) { return sum + Exponential(v - most); }, row.Again(v));
    if (!row.IsFirst()) return;
    const int64_t own = marks[r];
    const bool sums = log_softmax && own != kOutside;
    const W log_sum = sums ? log(sum) : W(0), base = sums ? greatest : W(0);
    lse[r] = base + log_sum;
    if (own == kOutside) return;
    logs[r] = {One(r, blank) - base - log_sum,
               own < 0 ? static_cast<W>(-INFINITY) : One(r, own) - base - log_sum};
  }
};

// log(exp(a) + exp(b)); what is added to the greater one is at most log(2), and in W.
template <typename W>
__device__ double LogOfSum(double a, double b) {
  const double most = a > b ? a : b, least = a > b ? b : a;
  if (most == -INFINITY) return most;
  return most + static_cast<double>(log1p(exp(static_cast<W>(least - most))));
}

template <typename W>
struct Alignments {
  LossLattice lattice;
  const Moves<W>* logs;
  double *alphas, *betas;  // of rows
  int* bad;                // of sequences: without a loss, and without gradients
  W *loss, *blank_moves, *label_moves;
};

constexpr int kMostTokens = 512;  // of a block at a time

// blockIdx.y: 0 from the beginning, 1 from the end, where frames and tokens are counted from.
template <typename W>
__global__ void __launch_bounds__(kMostTokens)
    SumAlignments(const __grid_constant__ Alignments<W> p) {
  __shared__ double left_of[2][kMostTokens];
  const int64_t b = blockIdx.x;
  const Lattice::Sequence s = p.lattice[b];
  const bool from_end = blockIdx.y == 1;
  int bad = !s.good;
  if (s.good) {
    for (int64_t u = threadIdx.x; u + 1 < s.tokens; u += blockDim.x)
      bad |= !p.lattice.IsClass(p.lattice.label[b * p.lattice.L + u]);
  }
  bad = __syncthreads_or(bad);
  if (from_end && threadIdx.x == 0) {
    p.bad[b] = bad;
    if (bad) p.loss[b] = static_cast<W>(NAN);
  }
  if (bad) return;
  double* const sums = from_end ? p.betas : p.alphas;
  const int64_t threads = blockDim.x, own = threadIdx.x;
  for (int64_t begin = 0; begin < s.tokens; begin += threads) {
    const int64_t u = begin + own, left = s.tokens - begin, width = left < threads ? left : threads;
    const auto row_of = [&](int64_t t, int64_t u) {
      return s.first + (from_end ? s.frames - 1 - t : t) * s.stride +
             (from_end ? s.tokens - 1 - u : u);
    };
    // Moves to (t, u), each that of the row it begins at. They are read a step ahead.
    const auto moves_to = [&](int64_t t) {
      const int64_t row = row_of(t, u);
      Moves<W> moves = {static_cast<W>(-INFINITY), static_cast<W>(-INFINITY)};
      if (t > 0) moves.blank = p.logs[from_end ? row : row - s.stride].blank;
      if (u > 0) moves.label = p.logs[from_end ? row : row - 1].label;
      return moves;
    };
    Moves<W> next = {};
    if (own < width && s.frames > 0) next = moves_to(0);
    double above = -INFINITY;  // that of (t - 1, u)
    for (int64_t step = 0; step < s.frames + width - 1; ++step) {
      const int64_t t = step - own;
      if (t >= 0 && t < s.frames && own < width) {
        const Moves<W> moves = next;
        if (t + 1 < s.frames) next = moves_to(t + 1);
        double beside = -INFINITY;  // that of (t, u - 1)
        if (u > 0) beside = own > 0 ? left_of[(step + 1) % 2][own - 1] : sums[row_of(t, u - 1)];
        double sum = LogOfSum<W>(above + static_cast<double>(moves.blank),
                                 beside + static_cast<double>(moves.label));
        if (t == 0 && u == 0) sum = from_end ? static_cast<double>(p.logs[row_of(0, 0)].blank) : 0;
        sums[row_of(t, u)] = above = left_of[step % 2][own] = sum;
      }
      __syncthreads();
    }
  }
  if (from_end && threadIdx.x == 0)
    p.loss[b] = s.frames > 0 ? static_cast<W>(-p.betas[s.first]) : W(0);
}

template <typename W>
__global__ void __launch_bounds__(256) FindMoves(const __grid_constant__ Alignments<W> p) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < p.lattice.rows;
       row += threads) {
    const Lattice::Node node = p.lattice.Find(row);
    W blank = 0, label = 0;
    if (node.inside && !p.bad[node.b]) {
      const Lattice::Sequence s = p.lattice[node.b];
      const bool last_frame = node.t + 1 == s.frames, last_token = node.u + 1 == s.tokens;
      const double here = p.alphas[row] - p.betas[s.first];
      const auto share = [&](W log, double behind) {
        return exp(static_cast<W>(here + static_cast<double>(log) + behind));
      };
      const double below = last_frame ? (last_token ? 0 : -INFINITY) : p.betas[row + s.stride];
      blank = share(p.logs[row].blank, below);
      label = share(p.logs[row].label, last_token ? -INFINITY : p.betas[row + 1]);
    }
    p.blank_moves[row] = blank;
    p.label_moves[row] = label;
  }
}

template <typename T, typename Args>
int32_t Run(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  using W = Wide<T>;
  const LossLattice lattice(args, batch_offset);
  const int64_t rows = lattice.rows, B = lattice.B;
  const int64_t bytes = rows * int64_t{sizeof(Moves<W>) + 3 * sizeof(double)} + B * 4 + 16;
  auto* memory = static_cast<double*>(call->workspace(call, bytes));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  auto* marks = reinterpret_cast<int64_t*>(memory + 2 * rows);
  auto* logs = reinterpret_cast<Moves<W>*>(marks + rows);
  const auto at = [](const AnyopTensor* tensor) { return static_cast<W*>(tensor->data); };
  const Alignments<W> p = {lattice,
                           logs,
                           memory,
                           memory + rows,
                           reinterpret_cast<int*>(logs + rows),
                           at(args.loss),
                           at(args.blank_moves),
                           at(args.label_moves)};
  const int64_t blocks = CeilDiv(rows, 256);
  const Launch of_rows{dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
                       dim3(256)};
  if (rows > 0) {
    if (const int32_t status = of_rows.Run(call, MarkRows, lattice, marks)) return status;
    const int32_t status =
        RunRows<T>(call, {rows, args.V}, {args.x}, {nullptr}, [&](auto of, auto any) {
          return ReadMoves<decltype(of), any>{
              PlaceRows<any>(args.x), marks,        rows, lattice.blank,
              args.log_softmax != 0,  at(args.lse), logs};
        });
    if (status) return status;
  }
  if (B > 0) {
    const int64_t tokens = CeilDiv(lattice.U, 32) * 32;
    const Launch launch{dim3(static_cast<unsigned>(B), 2),
                        dim3(static_cast<unsigned>(tokens < kMostTokens ? tokens : kMostTokens))};
    if (const int32_t status = launch.Run(call, SumAlignments<W>, p)) return status;
  }
  return rows > 0 ? of_rows.Run(call, FindMoves<W>, p) : kAnyopOk;
}

template <typename Args>
int32_t LossesOf(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  return WithFloating(AnyopDtypeOf(args.x),
                      [&](auto zero) { return Run<decltype(zero)>(args, call, batch_offset); });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_transducer_loss_cuda(const TransducerLossArgs* args, AnyopCall* call) {
  return anyop::cuda::LossesOf(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_loss_packed_cuda(const TransducerLossPackedArgs* args,
                                                     AnyopCall* call) {
  return anyop::cuda::LossesOf(*args, call, args->batch_offset);
}
