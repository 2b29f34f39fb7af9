/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels over lists of tensors: tables of chunks in kernel parameters, elements of any
 * dtypes. */
#ifndef ANYOP_CUDA_LISTS_H_
#define ANYOP_CUDA_LISTS_H_

#include "anyop/cuda/row_operands.h"

// A launch takes a block for each chunk of ChunkOf elements of the tensors of its table, in
// every list at once. The table travels in the kernel's parameters, so that a captured graph keeps
// it and nothing is copied to the device; longer lists take several launches, of which each starts
// where the one before it leaves room (Hopper). The dtypes may differ from tensor to tensor: a
// block branches on those of its own.
namespace anyop::cuda {

constexpr int kListThreads = 256;
// What a kernel knows of the dtypes when it is compiled: kMixedLists nothing, else a bit for each
// list whose tensors are all of float32; those of the others are all of bfloat16.
constexpr unsigned kMixedLists = ~0u;
template <int kLists>
constexpr unsigned kFloat32Lists = (1u << kLists) - 1;
// Few lists have little to read: what a block costs by itself is shared by more elements, and more
// of them are on their way at once. A short block reads and then writes, once or twice.
template <int kLists, unsigned kKinds>
constexpr int ChunkOf = (kLists == 1   ? 8192
                         : kLists == 2 ? 4096
                                       : 2048) *
                        (kKinds == 0 ? 2 : 1);

// So many fours of each list does a thread ask for before it looks at the first. Where three lists
// or more are of float32 one is faster than two: the block begins to write sooner.
template <int kLists, unsigned kKinds>
constexpr int FoursAhead = kKinds == 0 ? (kLists <= 2 ? 8 : 4) : (kLists <= 2 ? 4 : 1);

// Parameters of a kernel have 4,096 bytes; 32,764 from CUDA 12.1 on. Some are left for others.
constexpr int kFewBytes = 3840;
#if defined(CUDART_VERSION) && CUDART_VERSION >= 12010
constexpr int kManyBytes = 32256;
#else
constexpr int kManyBytes = kFewBytes;
#endif

// What a block asks for lies side by side: parameters are read in lines.
template <int kLists>
struct ListedTensor {
  char* data[kLists];  // NULL: the list is not given
  unsigned first;      // chunk of the launch with which it begins
  uint16_t rest;       // elements of its last chunk
  uint8_t dtype[kLists];
};
template <int kLists, int kTableBytes>
struct ListTable {
  static constexpr int kBytes = kTableBytes;
  static constexpr int kTensors = (kBytes - 32) / int{sizeof(ListedTensor<kLists>)} - 1;
  int64_t first_tensor;      // of the launch, in the lists
  int64_t first_chunk;       // of the launch, in the call
  unsigned tensors_of_2p31;  // in 2^31 blocks, the mean
  int count;
  bool goes_on;                               // in another launch of the call
  ListedTensor<kLists> tensor[kTensors + 1];  // of the one behind the last: first
};

template <typename Table>
constexpr int BytesOf = std::decay_t<Table>::kBytes;

// ---- device ----

// The chunk of a block: a tensor of the table, and elements of it.
struct Chunk {
  int tensor, n;
  int64_t begin;
};
template <unsigned kKinds, int kLists, int kBytes>
__device__ Chunk FindChunk(const ListTable<kLists, kBytes>& table) {
  constexpr int kChunk = ChunkOf<kLists, kKinds>;
  const unsigned own = blockIdx.x;
  // Where all tensors have as many chunks, it is this one; loads of a search wait for one another.
  const int last = table.count - 1,
            mean = static_cast<int>(uint64_t{own} * table.tensors_of_2p31 >> 31);
  int low = mean < last ? mean : last;
  unsigned first = table.tensor[low].first, next = table.tensor[low + 1].first;
  if (own < first || own >= next) {
    int high = own < first ? low - 1 : last;
    low = own < first ? 0 : low + 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (table.tensor[middle].first <= own) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    first = table.tensor[low].first, next = table.tensor[low + 1].first;
  }
  return {low, own + 1 < next ? kChunk : table.tensor[low].rest, int64_t{own - first} * kChunk};
}

// Four elements, widened; and as they lie in memory, so that several are on their way before the
// first is looked at.
template <typename W>
struct Four {
  W at[4];
};
template <typename W>
struct FourBits {
  uint4 at[sizeof(W) / 4];
};

// kOnce: of what this kernel does not write, past the first cache.
template <bool kOnce, typename Bits>
__device__ Bits LoadBits(const Bits* from) {
#if ANYOP_PTX
  if constexpr (kOnce) {
    Bits bits;
    if constexpr (sizeof bits == 16) {
      asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                   : "l"(from));
    } else {
      asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                   : "=r"(bits.x), "=r"(bits.y)
                   : "l"(from));
    }
    return bits;
  }
#endif
  return *from;
}
template <typename W, bool kOnce>
__device__ FourBits<W> LoadFour(const char* from, AnyopDtype dtype, int i) {
  FourBits<W> bits = {};
  if (dtype == kAnyopFloat32) {
    bits.at[0] = LoadBits<kOnce>(reinterpret_cast<const uint4*>(from) + i / 4);
  } else if (sizeof(W) == 8 && dtype == kAnyopFloat64) {
#pragma unroll
    for (int half = 0; half < int{sizeof(W) / 4}; ++half)
      bits.at[half] = LoadBits<kOnce>(reinterpret_cast<const uint4*>(from) + i / 2 + half);
  } else {
    const uint2 two = LoadBits<kOnce>(reinterpret_cast<const uint2*>(from) + i / 4);
    bits.at[0].x = two.x, bits.at[0].y = two.y;
  }
  return bits;
}

template <typename W>
__device__ Four<W> WidenFour(const FourBits<W>& bits, AnyopDtype dtype) {
  Four<W> four;
  const uint4& first = bits.at[0];
  if (dtype == kAnyopFloat32) {
    const Unpacked<float> wide = Unpack<float>(first);
#pragma unroll
    for (int k = 0; k < 4; ++k) four.at[k] = wide.at[k];
  } else if (sizeof(W) == 8 && dtype == kAnyopFloat64) {
#pragma unroll
    for (int half = 0; half < int{sizeof(W) / 4}; ++half) {
      const Unpacked<double> wide = Unpack<double>(bits.at[half]);
      four.at[2 * half] = static_cast<W>(wide.at[0]);
      four.at[2 * half + 1] = static_cast<W>(wide.at[1]);
    }
  } else if (dtype == kAnyopFloat16) {
    four = {{WidenLow(__half(), first.x), WidenHigh(__half(), first.x), WidenLow(__half(), first.y),
             WidenHigh(__half(), first.y)}};
  } else {
    four = {{WidenLow(__nv_bfloat16(), first.x), WidenHigh(__nv_bfloat16(), first.x),
             WidenLow(__nv_bfloat16(), first.y), WidenHigh(__nv_bfloat16(), first.y)}};
  }
  return four;
}

template <typename W>
__device__ void StoreFour(char* to, AnyopDtype dtype, int i, const Four<W>& four) {
  float narrow[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) narrow[k] = static_cast<float>(four.at[k]);
  if (dtype == kAnyopFloat32) {
    reinterpret_cast<uint4*>(to)[i / 4] =
        make_uint4(__float_as_uint(narrow[0]), __float_as_uint(narrow[1]),
                   __float_as_uint(narrow[2]), __float_as_uint(narrow[3]));
  } else if (sizeof(W) == 8 && dtype == kAnyopFloat64) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Unpacked<double> wide = {{four.at[2 * half], four.at[2 * half + 1]}};
      reinterpret_cast<uint4*>(to)[i / 2 + half] = Pack<double>(wide);
    }
  } else if (dtype == kAnyopFloat16) {
    reinterpret_cast<uint2*>(to)[i / 4] = make_uint2(NarrowTwo(__half(), narrow[0], narrow[1]),
                                                     NarrowTwo(__half(), narrow[2], narrow[3]));
  } else {
    reinterpret_cast<uint2*>(to)[i / 4] =
        make_uint2(NarrowTwo(__nv_bfloat16(), narrow[0], narrow[1]),
                   NarrowTwo(__nv_bfloat16(), narrow[2], narrow[3]));
  }
}

// Calls body(v) for the elements of a chunk, four of each list at a time: v[l] is read from the
// lists of `reads` and written to those of `writes`, a bit each. Of a list that is not given, and
// behind the end of a tensor, v is 0. body(v, n) is told how many are left of the chunk. Another
// launch of the call may start meanwhile, and no block ends before the launch in front of its own
// has: a kernel that walks over nothing calls WaitForWork itself.
template <typename W, unsigned kKinds, int kThreads = kListThreads, int kLists, int kBytes,
          typename Body>
__device__ void WalkChunk(const ListTable<kLists, kBytes>& table, const Chunk& chunk,
                          unsigned reads, unsigned writes, const Body& body) {
  if (table.goes_on) LetNextStart();
  constexpr int kStep = kThreads * 4;
  constexpr int kAhead = FoursAhead<kLists, kKinds>;
  const ListedTensor<kLists>& tensor = table.tensor[chunk.tensor];
  char* data[kLists];
  AnyopDtype dtype[kLists];
  bool aligned = true;
#pragma unroll
  for (int l = 0; l < kLists; ++l) {
    dtype[l] = kKinds == kMixedLists ? static_cast<AnyopDtype>(tensor.dtype[l])
               : kKinds >> l & 1     ? kAnyopFloat32
                                     : kAnyopBFloat16;
    const int item = dtype[l] == kAnyopFloat32 ? 4 : dtype[l] == kAnyopFloat64 ? 8 : 2;
    data[l] = tensor.data[l];
    if (data[l]) data[l] += chunk.begin * item;
    aligned &= reinterpret_cast<uintptr_t>(data[l]) % (item == 2 ? 8 : 16) == 0;
  }
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) * 4; first < chunk.n; first += kAhead * kStep) {
    FourBits<W> bits[kAhead][kLists];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (!aligned || first + u * kStep + 4 > chunk.n) continue;
#pragma unroll
      for (int l = 0; l < kLists; ++l) {
        if (reads >> l & 1 && data[l])
          bits[u][l] = writes ? LoadFour<W, false>(data[l], dtype[l], first + u * kStep)
                              : LoadFour<W, true>(data[l], dtype[l], first + u * kStep);
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int at = first + u * kStep, n = chunk.n - at;
      if (n <= 0) break;
      const bool whole = aligned && n >= 4;
      Four<W> v[kLists] = {};
#pragma unroll
      for (int l = 0; l < kLists; ++l) {
        if (!(reads >> l & 1) || !data[l]) continue;
        if (whole) {
          v[l] = WidenFour<W>(bits[u][l], dtype[l]);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (k < n) v[l].at[k] = ReadFloating<W>(data[l], at + k, dtype[l]);
        }
      }
      if constexpr (std::is_invocable_v<Body, Four<W>(&)[kLists], int>) {
        body(v, n);
      } else {
        body(v);
      }
#pragma unroll
      for (int l = 0; l < kLists; ++l) {
        if (!(writes >> l & 1) || !data[l]) continue;
        if (whole) {
          StoreFour<W>(data[l], dtype[l], at, v[l]);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (k < n) WriteFloating<W>(data[l], at + k, dtype[l], v[l].at[k]);
        }
      }
    }
  }
  WaitForWork();
}

__device__ inline bool IsFinite(float v) { return fabsf(v) < INFINITY; }
__device__ inline bool IsFinite(double v) { return fabs(v) < INFINITY; }
template <typename W>
__device__ bool AreFinite(const Four<W>& v) {
  return IsFinite(v.at[0]) && IsFinite(v.at[1]) && IsFinite(v.at[2]) && IsFinite(v.at[3]);
}

// A tensor of one element in the memory of the device; NULL where it is not given.
struct Single {
  char* data = nullptr;
  AnyopDtype dtype = kAnyopFloat32;
  Single() = default;
  explicit Single(const AnyopTensor* t) {
    if (t) data = static_cast<char*>(t->data), dtype = AnyopDtypeOf(t);
  }

  __device__ double Read(double otherwise) const {
    if (!data) return otherwise;
    if (dtype == kAnyopInt32) return *reinterpret_cast<const int*>(data);
    if (dtype == kAnyopInt64) return static_cast<double>(*reinterpret_cast<const long long*>(data));
    return ReadFloating<double>(data, 0, dtype);
  }
  __device__ bool IsSet() const { return data && Read(0) != 0; }
  // By any number of threads.
  __device__ void Set() const {
    if (!data) return;
    if (dtype == kAnyopInt32) {
      *reinterpret_cast<int*>(data) = 1;
    } else {
      *reinterpret_cast<float*>(data) = 1;
    }
  }
};

// ---- host ----

inline int64_t ElementsOf(const AnyopTensor& t) {
  int64_t numel = 1;
  for (int d = 0; d < t.ndim; ++d) numel *= t.shape[d];
  return numel;
}

// Which lists are all of one dtype, or not given: a bit each.
template <int kLists>
struct Kinds {
  bool any_float64 = false;
  unsigned float32 = 0, bfloat16 = 0;

  explicit Kinds(const AnyopTensorList (&list)[kLists]) {
    for (int l = 0; l < kLists; ++l) {
      bool all_float32 = true, all_bfloat16 = true;
      for (int64_t i = 0; list[l].data && i < list[l].count; ++i) {
        const AnyopDtype dtype = AnyopDtypeOf(&list[l].data[i]);
        any_float64 |= dtype == kAnyopFloat64;
        all_float32 &= dtype == kAnyopFloat32;
        all_bfloat16 &= dtype == kAnyopBFloat16;
      }
      float32 |= unsigned{all_float32} << l;
      bfloat16 |= unsigned{all_bfloat16} << l;
    }
  }
  bool Are(unsigned kinds) const {
    const unsigned known = kinds & kFloat32Lists<kLists>;
    return (known & ~float32) == 0 && (kFloat32Lists<kLists> & ~known & ~bfloat16) == 0;
  }
};

// Lists of one length that are walked together; those with data NULL are not given, the first is.
template <int kLists>
struct Lists {
  AnyopTensorList list[kLists];
  bool backwards = false;  // from the last tensor on; a kernel cannot tell which it is
  Kinds<kLists> kinds = Kinds<kLists>(list);

  int64_t count() const { return list[0].count; }
  // Of StartLists, where it is told that all may be of bfloat16. Empty tensors have one, so that
  // each tensor has a block.
  int64_t CountChunks() const {
    const int64_t of = kinds.Are(0) ? ChunkOf<kLists, 0> : ChunkOf<kLists, kMixedLists>;
    int64_t chunks = 0;
    for (int64_t i = 0; i < count(); ++i) {
      const int64_t numel = ElementsOf(list[0].data[i]);
      chunks += numel ? CeilDiv(numel, of) : 1;
    }
    return chunks;
  }
};

// Of a kernel that calls WalkChunk: tensors of one call have nothing to do with one another, so
// that a launch waits for the one before it at its end alone.
template <typename Table>
Launch LaunchOver(const Table& table, unsigned blocks) {
  return {dim3(blocks), dim3(kListThreads), 0, table.first_chunk > 0};
}

// Calls start(table, blocks) with tables of all tensors until one fails.
template <int kBytes, int kChunk, int kLists, typename Start>
int32_t StartTables(const Lists<kLists>& lists, bool keeps_empty, const Start& start) {
  using Table = ListTable<kLists, kBytes>;
  constexpr int64_t kMostBlocks = 0x7fffffff;
  Table table;
  table.first_tensor = table.first_chunk = table.count = 0;
  table.tensor[0].first = 0;
  const auto start_table = [&](bool goes_on) {
    const unsigned blocks = table.tensor[table.count].first;
    table.tensors_of_2p31 =
        static_cast<unsigned>(CeilDiv(int64_t{table.count} << 31, int64_t{blocks}));
    table.goes_on = goes_on;
    const int32_t status = start(table, blocks);
    table.first_chunk += blocks;
    table.count = 0;
    return status;
  };
  for (int64_t turn = 0; turn < lists.count(); ++turn) {
    const int64_t i = lists.backwards ? lists.count() - 1 - turn : turn;
    const int64_t numel = ElementsOf(lists.list[0].data[i]);
    if (numel == 0 && !keeps_empty) continue;
    const int64_t chunks = numel ? CeilDiv(numel, kChunk) : 1;
    if (table.count == Table::kTensors ||
        (table.count && table.tensor[table.count].first + chunks > kMostBlocks)) {
      if (int32_t status = start_table(true)) return status;
    }
    if (table.count == 0) table.first_tensor = i;
    auto& tensor = table.tensor[table.count++];
    for (int l = 0; l < kLists; ++l) {
      const AnyopTensor* t = lists.list[l].data ? &lists.list[l].data[i] : nullptr;
      tensor.data[l] = t ? static_cast<char*>(t->data) : nullptr;
      tensor.dtype[l] = static_cast<uint8_t>(t ? AnyopDtypeOf(t) : kAnyopFloat32);
    }
    tensor.rest = static_cast<uint16_t>(numel - (chunks - 1) * kChunk);
    table.tensor[table.count].first = tensor.first + static_cast<unsigned>(chunks);
  }
  return table.count ? start_table(false) : int32_t{kAnyopOk};
}

// Calls start(W(), kinds, table, blocks), where W is what the elements are computed in and kinds a
// constant: the first of kKinds that the lists are of, or kMixedLists. Without kKinds they are: all
// of float32, all of bfloat16. The kernel must find its chunks by these kinds.
template <unsigned... kKinds, int kLists, typename Start>
int32_t StartLists(const Lists<kLists>& lists, bool keeps_empty, const Start& start) {
  if constexpr (sizeof...(kKinds) == 0) {
    return StartLists<kFloat32Lists<kLists>, 0u>(lists, keeps_empty, start);
  } else {
    const bool many = lists.count() > ListTable<kLists, kFewBytes>::kTensors;
    const auto with = [&](auto zero, auto kinds) {
      constexpr int kChunk = ChunkOf<kLists, kinds.value>;
      const auto run = [&](const auto& table, unsigned blocks) {
        return start(zero, kinds, table, blocks);
      };
      if constexpr (kManyBytes > kFewBytes && sizeof zero == 4) {
        if (many) return StartTables<kManyBytes, kChunk>(lists, keeps_empty, run);
      }
      return StartTables<kFewBytes, kChunk>(lists, keeps_empty, run);
    };
    constexpr std::integral_constant<unsigned, kMixedLists> mixed;
    if (lists.kinds.any_float64) return with(double(), mixed);
    int32_t status = kAnyopOk;
    const auto are = [&](auto kinds) {
      const bool found = lists.kinds.Are(kinds);
      if (found) status = with(float(), kinds);
      return found;
    };
    if ((are(std::integral_constant<unsigned, kKinds>()) || ...)) return status;
    return with(float(), mixed);
  }
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_LISTS_H_
