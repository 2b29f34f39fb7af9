// SPDX-License-Identifier: Apache-2.0
// topk on CUDA: a block holds a row, or a segment of one, in registers and finds the k-th place
// digit by digit; what comes before it, and the first of those that are equal to it, are written
// to shared memory in their order and sorted. An element is read once.
//
// Longer rows are cut into segments, whose k first are the rows of another turn. Where k is more
// than a quarter of a segment the row is sorted instead.
#include "anyop/ops/topk.h"
#include "row_order_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int64_t kCounted = 256;  // up to as many are sorted by counting who comes before

template <typename Raw>
struct Selection {
  const Raw* x;            // (rows, D)
  const int64_t* sources;  // (rows, D): where elements come from; NULL: from their own places
  int64_t rows, D, segments, k;
  Raw* values;       // (rows, segments, k)
  int64_t* indices;  // (rows, segments, k)
  PlaceOf<Raw> place;
};

// The k-th place of a block's items, and how many that are equal to it are among the first k.
template <typename Raw>
struct Threshold {
  Raw place;
  unsigned equal;
};

// counts: kDigits + 2 in shared memory.
template <typename Raw>
__device__ Threshold<Raw> FindThreshold(const Raw (&places)[kSortItems], int items, int n,
                                        unsigned k, unsigned* counts) {
  Raw prefix = 0, mask = 0;
  for (int d = int{sizeof(Raw)} - 1; d >= 0; --d) {
    const int shift = d * kDigitBits;
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x) counts[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSortItems; ++i) {
      if (i >= items) break;
      const bool in = ItemAt(items, i) < n && (places[i] & mask) == prefix;
      const unsigned those = __ballot_sync(~0u, in);
      if (!those) continue;
      const unsigned digit = static_cast<unsigned>(places[i] >> shift) & (kDigits - 1);
      const unsigned same = LanesWith(digit) & those;
      if (in && (same & LanesBefore()) == 0)
        atomicAdd(&counts[digit], static_cast<unsigned>(__popc(same)));
    }
    __syncthreads();
    ScanDigits(counts);
    __syncthreads();
    // The digit in whose run the k-th is: the last one that begins before it.
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x) {
      const bool last = i + 1 == kDigits || counts[i + 1] >= k;
      if (counts[i] < k && last) {
        counts[kDigits] = static_cast<unsigned>(i);
        counts[kDigits + 1] = counts[i];
      }
    }
    __syncthreads();
    prefix |= static_cast<Raw>(static_cast<Raw>(counts[kDigits]) << shift);
    mask |= static_cast<Raw>(static_cast<Raw>(kDigits - 1) << shift);
    k -= counts[kDigits + 1];
    __syncthreads();
  }
  return {prefix, k};
}

// Writes the first k items, in the order of their indices, to shared memory.
template <typename Raw>
__device__ void Collect(const Raw (&places)[kSortItems], int items, int n,
                        const Threshold<Raw>& threshold, const BlockItems<Raw>& to) {
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  unsigned before = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    if (i >= items) break;
    const bool inside = ItemAt(items, i) < n;
    before += __popc(__ballot_sync(~0u, inside && places[i] < threshold.place));
    equal += __popc(__ballot_sync(~0u, inside && places[i] == threshold.place));
  }
  if (threadIdx.x % 32 == 0) {
    to.counts[warp] = before;
    to.counts[warps + warp] = equal;
  }
  __syncthreads();
  before = equal = 0;
  for (int w = 0; w < warp; ++w) {
    before += to.counts[w];
    equal += to.counts[warps + w];
  }
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    if (i >= items) break;
    const bool inside = ItemAt(items, i) < n;
    const bool is_before = inside && places[i] < threshold.place;
    const bool is_equal = inside && places[i] == threshold.place;
    const unsigned all_before = __ballot_sync(~0u, is_before);
    const unsigned all_equal = __ballot_sync(~0u, is_equal);
    const unsigned equals = equal + __popc(all_equal & LanesBefore());
    if (is_before || (is_equal && equals < threshold.equal)) {
      const unsigned at = before + __popc(all_before & LanesBefore()) +
                          (equals < threshold.equal ? equals : threshold.equal);
      to.raws[at] = places[i];
      to.indices[at] = static_cast<uint16_t>(ItemAt(items, i));
    }
    before += __popc(all_before);
    equal += __popc(all_equal);
  }
  __syncthreads();
}

struct AsItIs {
  template <typename Raw>
  __device__ Raw operator()(Raw raw) const {
    return raw;
  }
};

template <typename Raw>
__global__ void __launch_bounds__(kSortThreads<Raw>)
    SelectInBlock(const __grid_constant__ Selection<Raw> p) {
  const int k = static_cast<int>(p.k);
  const BlockItems<Raw> list(DynamicShared(), blockDim.x / 32, k);
  for (int64_t part = blockIdx.x; part < p.rows * p.segments; part += gridDim.x) {
    const int64_t row = part / p.segments, segment = part % p.segments;
    const int64_t first = p.D * segment / p.segments;
    const int n = static_cast<int>(p.D * (segment + 1) / p.segments - first);
    const int items = (n + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x);
    const Raw* x = p.x + row * p.D + first;
    Raw places[kSortItems];
#pragma unroll
    for (int i = 0; i < kSortItems; ++i) {
      places[i] = 0;
      if (i < items && ItemAt(items, i) < n) places[i] = x[ItemAt(items, i)];
    }
#pragma unroll
    for (int i = 0; i < kSortItems; ++i) places[i] = p.place(places[i]);
    const auto threshold = FindThreshold(places, items, n, static_cast<unsigned>(k), list.counts);
    Collect(places, items, n, threshold, list);
    const auto write = [&](int at, int from) {
      const int64_t to = part * k + at;
      p.values[to] = x[from];
      p.indices[to] = p.sources ? p.sources[row * p.D + first + from] : first + from;
    };
    if (k <= kCounted) {
      for (int j = threadIdx.x; j < k; j += blockDim.x) {
        const Raw own = list.raws[j];
        int at = 0;
        for (int other = 0; other < k; ++other)
          at += list.raws[other] < own || (list.raws[other] == own && other < j);
        write(at, list.indices[j]);
      }
    } else {
      list.Sort(k, AsItIs(), int{sizeof(Raw)});
      for (int j = threadIdx.x; j < k; j += blockDim.x) write(j, list.indices[j]);
    }
    __syncthreads();
  }
}

template <typename Raw>
int32_t Run(AnyopCall* call, const TopkArgs& args, const PlaceOf<Raw>& place) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t most = BlockPlan<Raw>(limits, args.rows, 1, 1).most, k = args.k;
  if (k * 4 > (args.D < most ? args.D : most))
    return SortFirst(call, args.x, args.rows, args.D, k, place, args.values, args.indices);
  Selection<Raw> p = {static_cast<const Raw*>(args.x->data),
                      nullptr,
                      args.rows,
                      args.D,
                      1,
                      k,
                      nullptr,
                      nullptr,
                      place};
  for (;;) {
    p.segments = CeilDiv(p.D, most);
    const int64_t made = p.segments * k;  // of a row
    if (p.segments == 1) {
      p.values = static_cast<Raw*>(args.values->data);
      p.indices = static_cast<int64_t*>(args.indices->data);
    } else {
      p.indices = static_cast<int64_t*>(
          call->workspace(call, p.rows * made * int64_t{sizeof(int64_t) + sizeof(Raw)}));
      if (!p.indices) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
      p.values = reinterpret_cast<Raw*>(p.indices + p.rows * made);
    }
    const BlockPlan<Raw> plan(limits, p.rows * p.segments, CeilDiv(p.D, p.segments), k);
    if (int32_t status = plan.Run(call, p.rows * p.segments, SelectInBlock<Raw>, p)) return status;
    if (p.segments == 1) return kAnyopOk;
    p.x = p.values;
    p.sources = p.indices;
    p.D = made;
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_topk_cuda(const TopkArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->k == 0 || args->rows == 0) return kAnyopOk;
  return WithPlace(AnyopDtypeOf(args->x), args->largest,
                   [&](const auto& place) { return Run(call, *args, place); });
}
