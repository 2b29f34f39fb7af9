// SPDX-License-Identifier: Apache-2.0
// Each primitive of anyop/cuda/hopper.h but the products in a kernel of its own: `primitives NAME`
// prints "right", or what is not. `primitives` alone lists the names.
#include <cstring>

#include "primitives.h"
#include "products.h"

namespace hopper {
namespace {

// ---- boxes ----

enum class Way { kPlain, kPrefetched, kReadOnce, kReadByAll };

__global__ void MoveBox(const __grid_constant__ CUtensorMap from,
                        const __grid_constant__ CUtensorMap to, int x, int y, int to_x, int to_y,
                        uint16_t* seen, Way way) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t place;
  const uint32_t tile = SharedAddress(shared), barrier = SharedAddress(&place);
  StartBarrier(barrier, 1);
  if (threadIdx.x == 0) {
    PrefetchMap(&from);
    if (way == Way::kPrefetched) PrefetchBox(&from, x, y);
    ArriveForBytes(barrier, kBoxBytes);
    if (way == Way::kReadOnce) {
      LoadBox(tile, &from, barrier, x, y, ReadOnce());
    } else if (way == Way::kReadByAll) {
      LoadBox(tile, &from, barrier, x, y, ReadByAll());
    } else {
      LoadBox(tile, &from, barrier, x, y);
    }
  }
  WaitAt(barrier, 0);
  ReadBox(shared, seen);
  __syncthreads();
  if (threadIdx.x > 0) return;
  StoreBox(&to, tile, to_x, to_y);
  CommitStores();
  WaitForStores<0>();
  WaitForWrites();
}

// 100 x 72 numbers; a box lies half outside.
void Move(Way way) {
  constexpr int kRows = 100, kColumns = 72, kX = 32, kY = 70, kToX = 16, kToY = 80;
  Numbers<uint16_t> from(Counted<uint16_t>(kRows * kColumns)), seen(64 * 64, 9);
  Numbers<uint16_t> to(kRows * kColumns, 7);
  MoveBox<<<1, 128, kBoxBytes>>>(MapOf(from.data(), kRows, kColumns, 64),
                                 MapOf(to.data(), kRows, kColumns, 64), kX, kY, kToX, kToY,
                                 seen.data(), way);
  Finish();
  const auto in_box = [&](int row, int column) {
    row += kY, column += kX;
    return row < kRows && column < kColumns ? from.given(row * kColumns + column) : 0;
  };
  Compare("box", seen.Now(), [&](size_t i) { return in_box(i / 64, i % 64); });
  Compare("to", to.Now(), [&](size_t i) {
    const int row = static_cast<int>(i) / kColumns - kToY, column = i % kColumns - kToX;
    return row >= 0 && column >= 0 && column < 64 ? in_box(row, column) : 7;
  });
}

__global__ void LoadOfMany(const __grid_constant__ CUtensorMap from, int y, int which, int group,
                           uint16_t* seen) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t place;
  const uint32_t barrier = SharedAddress(&place);
  StartBarrier(barrier, 1);
  if (threadIdx.x == 0) {
    ArriveForBytes(barrier, 16 * 128);
    LoadBox(SharedAddress(shared), &from, barrier, 0, y, which, group);
  }
  WaitAt(barrier, 0);
  ReadBox(shared, seen, 16);
}
// 3 groups of 2 matrices of 40 x 64: behind a matrix is nothing, not the next.
void BoxOfMany() {
  Numbers<uint16_t> from(Counted<uint16_t>(3 * 2 * 40 * 64)), seen(16 * 64, 9);
  LoadOfMany<<<1, 128, kBoxBytes>>>(MapOf(from.data(), 40, 64, 16, 2, 3), 30, 1, 2, seen.data());
  Finish();
  Compare("box", seen.Now(),
          [](size_t i) { return i / 64 + 30 < 40 ? ((2 * 2 + 1) * 40 + 30) * 64 + i : 0; });
}

// Boxes of a matrix one behind the other, through three stages: a warp loads, four add up.
__global__ void AddBoxes(const __grid_constant__ CUtensorMap from, int boxes, int* sums) {
  constexpr int kStages = 3;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t full[kStages], empty[kStages];
  const uint32_t tiles = SharedAddress(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(full + i), 1);
      InitBarrier(SharedAddress(empty + i), 128);
    }
    FenceBarriers();
  }
  __syncthreads();
  RingPlace<kStages> at;
  if (threadIdx.x >= 128) {
    for (int i = 0; threadIdx.x == 128 && i < boxes; ++i, at.Next()) {
      const uint32_t barrier = SharedAddress(full + at.stage);
      WaitAt(SharedAddress(empty + at.stage), at.parity ^ 1);
      ArriveForBytes(barrier, kBoxBytes);
      LoadBox(tiles + at.stage * kBoxBytes, &from, barrier, 0, 64 * i);
    }
    return;
  }
  int sum = 0;
  for (int i = 0; i < boxes; ++i, at.Next()) {
    WaitAt(SharedAddress(full + at.stage), at.parity);
    const auto* words = reinterpret_cast<const uint16_t*>(shared + at.stage * kBoxBytes);
    for (int j = threadIdx.x; j < 64 * 64; j += 128) sum += words[j] * (i + 1);
    Arrive(SharedAddress(empty + at.stage));
  }
  atomicAdd(sums, sum);
}
void Ring() {
  constexpr int kBoxes = 20;
  std::vector<uint16_t> numbers(kBoxes * 64 * 64);
  int expected = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<uint16_t>(i % 7);
    expected += numbers[i] * (static_cast<int>(i) / (64 * 64) + 1);
  }
  Numbers<uint16_t> from(numbers);
  Numbers<int> sums(1, 0);
  AddBoxes<<<1, 160, 3 * kBoxBytes>>>(MapOf(from.data(), kBoxes * 64, 64, 64), kBoxes, sums.data());
  Finish();
  Compare("sum", sums.Now(), [&](size_t) { return expected; });
}

// ---- bytes ----

__global__ void MoveBytes(const float* from, float* to, float* sums) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t place;
  const uint32_t tile = SharedAddress(shared), barrier = SharedAddress(&place);
  StartBarrier(barrier, 1);
  if (threadIdx.x > 0) return;
  ArriveForBytes(barrier, 4096);
  LoadBytes(tile, from, barrier, 4096);
  WaitAt(barrier, 0);
  StoreBytes(to, tile, 2048);
  CommitStores();
  for (int i = 0; i < 2; ++i) {
    AddFloats(sums, tile, 4096);
    CommitStores();
  }
  WaitForWrites();
}
void Bytes() {
  Numbers<float> from(Counted<float>(1024)), to(1024, -1), sums(1024, 0.5f);
  MoveBytes<<<1, 32, 4096>>>(from.data(), to.data(), sums.data());
  Finish();
  Compare("to", to.Now(), [](size_t i) { return i < 512 ? static_cast<float>(i) : -1; });
  Compare("sums", sums.Now(), [](size_t i) { return 0.5f + 2 * static_cast<float>(i); });
}

__global__ void CopyAndArrive(const uint4* from, uint4* to) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t place;
  const uint32_t barrier = SharedAddress(&place), i = threadIdx.x;
  StartBarrier(barrier, blockDim.x);
  CopyAside(SharedAddress(shared) + 16 * i, from + i, i % 3 != 0);
  ArriveWhenCopied(barrier);
  WaitAt(barrier, 0);
  to[i] = reinterpret_cast<const uint4*>(shared)[blockDim.x - 1 - i];  // another's
}
void Copies() {
  Numbers<int> from(Counted<int>(4 * 128)), to(4 * 128, -1);
  CopyAndArrive<<<1, 128, 2048>>>(reinterpret_cast<uint4*>(from.data()),
                                  reinterpret_cast<uint4*>(to.data()));
  Finish();
  Compare("to", to.Now(), [](size_t i) {
    const size_t who = 127 - i / 4;
    return who % 3 ? 4 * who + i % 4 : 0;
  });
}

// ---- clusters ----

__global__ __cluster_dims__(2) void LoadForTwo(const __grid_constant__ CUtensorMap from,
                                               uint16_t* seen, uint32_t* ranks) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t place;
  const uint32_t barrier = SharedAddress(&place);
  StartBarrier(barrier, 1);
  if (threadIdx.x == 0) ArriveForBytes(barrier, kBoxBytes);
  ClusterSync();
  if (threadIdx.x == 0 && ClusterRank() == 1)
    LoadBoxForMany(SharedAddress(shared), &from, barrier, 0, 64 * ClusterIndex(), 3);
  WaitAt(barrier, 0);
  ReadBox(shared, seen + blockIdx.x * 4096);
  if (threadIdx.x == 0) {
    uint32_t* mine = ranks + 3 * blockIdx.x;
    mine[0] = ClusterRank(), mine[1] = ClusterIndex(), mine[2] = ClusterCount();
  }
  ClusterSync();
}
void Multicast() {
  Numbers<uint16_t> from(Counted<uint16_t>(128 * 64)), seen(4 * 4096, 9);
  Numbers<uint32_t> ranks(12, 9);
  LoadForTwo<<<4, 128, kBoxBytes>>>(MapOf(from.data(), 128, 64, 64), seen.data(), ranks.data());
  Finish();
  Compare("boxes", seen.Now(), [](size_t i) { return i / 8192 * 4096 + i % 4096; });
  Compare("ranks", ranks.Now(), [](size_t i) {
    return i % 3 == 0 ? i / 3 % 2 : i % 3 == 1 ? i / 6 : 2;
  });
}

__global__ __cluster_dims__(2) void SendToPeer(float* got) {
  __shared__ __align__(16) float received[256];
  __shared__ uint64_t place;
  const uint32_t barrier = SharedAddress(&place), rank = ClusterRank(), i = threadIdx.x;
  StartBarrier(barrier, 1);
  if (i == 0) ArriveForBytes(barrier, sizeof received);
  ClusterSync();
  SendTwo(PeerAddress(SharedAddress(received + 2 * i), rank ^ 1), PeerAddress(barrier, rank ^ 1),
          static_cast<float>(1000 * rank + i), static_cast<float>(i));
  WaitForCluster(barrier, 0);
  got[256 * blockIdx.x + 2 * i] = received[2 * i];
  got[256 * blockIdx.x + 2 * i + 1] = received[2 * i + 1];
  ClusterSync();
}
void Peers() {
  Numbers<float> got(512, -1);
  SendToPeer<<<2, 128>>>(got.data());
  Finish();
  Compare("got", got.Now(), [](size_t i) {
    const size_t from = i / 256 ^ 1, thread = i % 256 / 2;
    return i % 2 ? thread : 1000 * from + thread;
  });
}

// Each phase ends by the arrivals of the other block alone.
__global__ __cluster_dims__(2) void CountPeer(int* phases) {
  __shared__ uint64_t place;
  const uint32_t barrier = SharedAddress(&place), rank = ClusterRank();
  StartBarrier(barrier, blockDim.x);
  ClusterSync();
  for (uint32_t phase = 0; phase < 10; ++phase) {
    ArriveAtPeer(barrier, rank ^ 1);
    WaitAt(barrier, phase & 1);
    if (threadIdx.x == 0) ++phases[blockIdx.x];
    __syncthreads();
  }
  ClusterSync();
}
void Arrivals() {
  Numbers<int> phases(2, 0);
  CountPeer<<<2, 128>>>(phases.data());
  Finish();
  Compare("phases", phases.Now(), [](size_t) { return 10; });
}

// ---- threads ----

// Warpgroup 0 gives registers away and writes; 1 and 2 take them, and read behind it.
__global__ __launch_bounds__(384, 1) void HandOver(const int* from, int* to) {
  __shared__ int held[256];
  const int group = threadIdx.x / 128, i = threadIdx.x % 128;
  if (group == 0) {
    GiveRegisters<24>();
    held[i] = from[i], held[128 + i] = from[128 + i];
    ArriveAtMeeting(1, 384);
    return;
  }
  TakeRegisters<240>();
  MeetAt(1, 384);
  to[threadIdx.x - 128] = held[255 - (threadIdx.x - 128)];
}
void Meetings() {
  Numbers<int> from(Counted<int>(256)), to(256, -1);
  HandOver<<<1, 384>>>(from.data(), to.data());
  Finish();
  Compare("to", to.Now(), [](size_t i) { return 255 - i; });
}

// The last block is the first to write.
__global__ void TakeTurns(int* turn, int* order, int* next) {
  const int mine = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  WaitForTurn(turn, mine);
  order[*next] = static_cast<int>(blockIdx.x);
  ++*next;
  PassTurn(turn, mine + 1);
}
void Turns() {
  Numbers<int> turn(1, 0), order(16, -1), next(1, 0);
  TakeTurns<<<16, 1>>>(turn.data(), order.data(), next.data());
  Finish();
  Compare("order", order.Now(), [](size_t i) { return 15 - i; });
}

// Matrices that a warp stores and loads: thread t has of row t / 4 the columns t % 4 * 2 and + 1.
__global__ void StoreAndLoad(uint16_t* seen, uint32_t* again) {
  __shared__ __align__(128) uint16_t tile[32 * 8];
  const uint32_t lane = threadIdx.x, row = SharedAddress(tile) + 16 * lane;
  const auto pair = [&](uint32_t matrix) { return (matrix * 32 + lane) * 0x20002 + 0x10000; };
  StoreMatrices(row, pair(0), pair(1), pair(2), pair(3));
  __syncwarp();
  for (int i = 0; i < 8; ++i) seen[8 * lane + i] = tile[8 * lane + i];
  uint32_t words[4];
  LoadMatrices(words, row);
  for (int i = 0; i < 4; ++i) again[4 * lane + i] = words[i] == pair(i);
}
void Matrices() {
  Numbers<uint16_t> seen(256, 9);
  Numbers<uint32_t> again(128, 0);
  StoreAndLoad<<<1, 32>>>(seen.data(), again.data());
  Finish();
  Compare("tile", seen.Now(), [](size_t i) { return i; });
  Compare("loaded", again.Now(), [](size_t) { return 1; });
}

struct Program {
  const char* name;
  void (*run)();
};
constexpr Program kPrograms[] = {
    {"box", [] { Move(Way::kPlain); }},
    {"box_prefetched", [] { Move(Way::kPrefetched); }},
    {"box_read_once", [] { Move(Way::kReadOnce); }},
    {"box_read_by_all", [] { Move(Way::kReadByAll); }},
    {"box_of_many", BoxOfMany},
    {"ring", Ring},
    {"bytes", Bytes},
    {"copies", Copies},
    {"multicast", Multicast},
    {"peers", Peers},
    {"arrivals", Arrivals},
    {"meetings", Meetings},
    {"turns", Turns},
    {"matrices", Matrices},
    {"products", Products},
    {"products_transposed", ProductsTransposed},
    {"products_of_registers", ProductsOfRegisters},
};

}  // namespace
}  // namespace hopper

int main(int count, char** names) {
  for (const hopper::Program& program : hopper::kPrograms) {
    if (count < 2) std::puts(program.name);
    if (count < 2 || std::strcmp(program.name, names[1]) != 0) continue;
    program.run();
    std::puts(hopper::wrong.empty() ? "right" : hopper::wrong.c_str());
    return !hopper::wrong.empty();
  }
  return count < 2 ? 0 : 2;
}
