// SPDX-License-Identifier: Apache-2.0
// A tensor of batch, channels and further sizes on CUDA, element by element: a thread has chunks of
// 8 elements that lie side by side (a byte of a mask), read and written in pieces of 16 bytes.
#pragma once

#include "anyop/cuda/walk.h"
#include "channel_sums_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
__device__ void WriteChunk(T* data, int64_t at, int64_t count, bool aligned,
                           const Piece<Wide<T>, kChunk>& chunk) {
  constexpr int kPer = kPerVector<T>;
  if (aligned && at + kChunk <= count) {
#pragma unroll
    for (int j = 0; j < kChunk; j += kPer) {
      Piece<Wide<T>, kPer> some;
#pragma unroll
      for (int k = 0; k < kPer; ++k) some.at[k] = chunk.at[j + k];
      WritePiece<kPer>(data + at + j, true, some);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      if (at + k < count) data[at + k] = Narrow<T>(chunk.at[k]);
    }
  }
}

// A quotient of numbers that are not negative; fast where they are below 2^31.
struct Quotient {
  int64_t value;
  Divisor by;
  bool small;

  Quotient(int64_t value, int64_t most)
      : value(value),
        by(most < 0x7fffffff ? Divisor(value) : Divisor()),
        small(most < 0x7fffffff) {}
  __device__ int64_t Of(int64_t n) const {
    return small ? by.Divide(static_cast<uint32_t>(n)) : n / value;
  }
};

// Where the channels of chunks are: kSame: a chunk has one; kBeside: 8 that lie side by side, for a
// thread always the same; kMixed: any.
enum class Order { kSame, kBeside, kMixed };

struct Chunks {
  static constexpr int kThreads = 256;
  int64_t C, S, count, chunks;  // S: elements of a channel side by side
  Order order;
  int64_t step;  // of a thread
  Quotient by_S, by_C;

  Chunks(int64_t C, int64_t S_first, int64_t count, bool last, const Limits& limits)
      : C(C),
        S(C == 1 ? count
          : last ? 1
                 : S_first),
        count(count),
        chunks(CeilDiv(count, kChunk)),
        order(C % kChunk == 0 && S == 1   ? Order::kBeside
              : S % kChunk == 0 || C == 1 ? Order::kSame
                                          : Order::kMixed),
        step(Blocks(limits) * kThreads),
        by_S(S, count),
        by_C(C, count) {
    if (order == Order::kBeside) step = std::max(step / (C / kChunk), int64_t{1}) * (C / kChunk);
  }
  // A thread that has read the numbers of 8 channels, in 100 registers, uses them for some chunks.
  int64_t Blocks(const Limits& limits) const {
    const int64_t most = order == Order::kBeside ? 2 * limits.multiprocessors : 4096;
    return std::min(CeilDiv(chunks, kThreads), most);
  }
  __device__ int64_t ChannelOf(int64_t element) const {
    const int64_t row = by_S.Of(element);
    return row - by_C.Of(row) * C;
  }

  // A step of more threads than there are.
  Launch LaunchFor() const {
    return {dim3(static_cast<unsigned>(CeilDiv(std::min(step, chunks), kThreads))), dim3(kThreads),
            0, true};
  }
  // Runs write(chunk, read(chunk), numbers) for the chunks of a thread, numbers(k) being those of
  // element k's channel, `make(c)`.
  template <Order kOrder, typename Make, typename Read, typename Write>
  __device__ void ForEach(const Make& make, const Read& read, const Write& write) const {
    using Numbers = decltype(make(int64_t{0}));
    const int64_t own = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (own >= step || own >= chunks) return;
    if constexpr (kOrder == Order::kBeside) {
      Numbers numbers[kChunk];
      const int64_t c = own % (C / kChunk) * kChunk;
#pragma unroll
      for (int k = 0; k < kChunk; ++k) numbers[k] = make(c + k);
      const auto of = [&](int k) -> const Numbers& { return numbers[k]; };
      ReadTwoAtOnce(own, chunks, step, read,
                    [&](int64_t chunk, const auto& in) { write(chunk, in, of); });
    } else if constexpr (kOrder == Order::kSame) {
      for (int64_t chunk = own; chunk < chunks; chunk += step) {
        const Numbers numbers = make(C == 1 ? 0 : ChannelOf(chunk * kChunk));
        write(chunk, read(chunk), [&](int) -> const Numbers& { return numbers; });
      }
    } else {
      for (int64_t chunk = own; chunk < chunks; chunk += step) {
        write(chunk, read(chunk), [&](int k) {
          const int64_t element = chunk * kChunk + k;
          return make(ChannelOf(element < count ? element : count - 1));
        });
      }
    }
  }
};

// run(a constant: the order of the chunks).
template <typename Run>
int32_t WithOrder(Order order, const Run& run) {
  if (order == Order::kSame) return run(std::integral_constant<Order, Order::kSame>());
  if (order == Order::kBeside) return run(std::integral_constant<Order, Order::kBeside>());
  return run(std::integral_constant<Order, Order::kMixed>());
}

}  // namespace
}  // namespace anyop::cuda
