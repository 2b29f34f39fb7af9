// SPDX-License-Identifier: Apache-2.0
// multi_tensor_adam on the CPU: four reads and three writes an element.
#include "adam_step.h"
#include "anyop/cpu_lists.h"

namespace anyop::cpu {
namespace {

struct Row {
  const AnyopTensor *p, *g, *m, *v, *master, *copy;  // master and copy: NULL where not given
};

template <typename W>
inline void Update(const AdamStep<W>& s, int64_t n, const W* old, const W* g, W* m, W* v, W* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const W p = old[i], h = g[i] * s.scale + s.l2 * p;
    const W mean = s.beta1 * m[i] + s.rest1 * h, square = s.beta2 * v[i] + s.rest2 * (h * h);
    const W root = sqrt(square) * s.root_factor + s.eps;
    m[i] = mean;
    v[i] = square;
    to[i] = p - s.lr * (mean * s.mean_factor / root + s.decay * p);
  }
}

template <typename W>
inline void Block(const AdamStep<W>& s, const Row& row, int64_t at, int64_t n) {
  Elements<W> p(*row.p, at, n), g(*row.g, at, n), m(*row.m, at, n), v(*row.v, at, n);
  Elements<W> master(row.master ? *row.master : *row.p, at, n);
  Elements<W>& old = row.master ? master : p;
  old.Read(), m.Read(), v.Read();
  Update(s, n, old.data(), g.Read(), m.data(), v.data(), old.data());
  m.Write(), v.Write(), old.Write();
  const auto also = [&](const AnyopTensor& t) {
    Elements<W> other(t, at, n);
    for (int64_t i = 0; i < n; ++i) other.data()[i] = old.data()[i];
    other.Write();
  };
  if (row.master) also(*row.p);
  if (row.copy) also(*row.copy);
}

ANYOP_CPU_CLONES void RunFloat(const AdamStep<float>& s, const Row& row, int64_t begin,
                               int64_t count) {
  for (int64_t at = 0; at < count; at += kBlock)
    Block(s, row, begin + at, count - at < kBlock ? count - at : kBlock);
}
ANYOP_CPU_CLONES void RunDouble(const AdamStep<double>& s, const Row& row, int64_t begin,
                                int64_t count) {
  for (int64_t at = 0; at < count; at += kBlock)
    Block(s, row, begin + at, count - at < kBlock ? count - at : kBlock);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_adam_cpu(const MultiTensorAdamArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  if (ValueOf(args->found_inf, 0) != 0) return kAnyopOk;
  const ListChunks chunks(call, args->p);
  if (int32_t status = chunks.status()) return status;
  const double lr = ValueOf(args->lr, 0), step = ValueOf(args->step, 1);
  const double inv_scale = ValueOf(args->inv_scale, 1);
  const anyop::AdamRates rates(*args);
  const anyop::AdamStep<float> narrow(rates, lr, step, inv_scale);
  const anyop::AdamStep<double> wide(rates, lr, step, inv_scale);
  const bool is_wide = AnyFloat64(args->p, args->g, args->m, args->v, args->master, args->copy);
  chunks.ForEach(call, [&](int64_t, int64_t k, int64_t begin, int64_t n) {
    const Row row = {&args->p.data[k],
                     &args->g.data[k],
                     &args->m.data[k],
                     &args->v.data[k],
                     args->master.data ? &args->master.data[k] : nullptr,
                     args->copy.data ? &args->copy.data[k] : nullptr};
    is_wide ? RunDouble(wide, row, begin, n) : RunFloat(narrow, row, begin, n);
  });
  return kAnyopOk;
}
