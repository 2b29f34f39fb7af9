// SPDX-License-Identifier: Apache-2.0
// What the programs of one primitive each share: memory of the device, tensor maps, what is said of
// a wrong number.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "anyop/cuda/hopper.h"

namespace hopper {
using namespace anyop::cuda;

inline std::string wrong;  // the first thing

inline void Must(bool is_right, const std::string& text) {
  if (!is_right && wrong.empty()) wrong = text;
}
inline void Check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", doing, cudaGetErrorString(error));
  std::exit(2);
}
// Behind a launch.
inline void Finish() {
  Check(cudaGetLastError(), "launch");
  Check(cudaDeviceSynchronize(), "kernel");
}

// Numbers here and on the device.
template <typename T>
class Numbers {
 public:
  explicit Numbers(std::vector<T> values) : values_(std::move(values)) {
    Check(cudaMalloc(&data_, bytes()), "cudaMalloc");
    Check(cudaMemcpy(data_, values_.data(), bytes(), cudaMemcpyHostToDevice), "copy");
  }
  Numbers(size_t count, T value) : Numbers(std::vector<T>(count, value)) {}
  Numbers(const Numbers&) = delete;
  ~Numbers() { cudaFree(data_); }

  T* data() { return data_; }
  T given(size_t i) const { return values_[i]; }
  std::vector<T> Now() const {
    std::vector<T> now(values_.size());
    Check(cudaMemcpy(now.data(), data_, bytes(), cudaMemcpyDeviceToHost), "copy back");
    return now;
  }

 private:
  size_t bytes() const { return values_.size() * sizeof(T); }
  std::vector<T> values_;
  T* data_ = nullptr;
};
// 0, 1, 2, ...
template <typename T>
std::vector<T> Counted(size_t count) {
  std::vector<T> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<T>(i);
  return numbers;
}

// Expects expected(i) of each.
template <typename T, typename Expected>
void Compare(const char* what, const std::vector<T>& found, const Expected& expected) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == static_cast<T>(expected(i))) continue;
    Must(false, std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(found[i]) +
                    ", expected " + std::to_string(static_cast<T>(expected(i))));
    return;
  }
}

// Rows of 16-bit numbers, in boxes of box_rows x 64.
inline CUtensorMap MapOf(uint16_t* data, int64_t rows, int64_t columns, int box_rows,
                         int64_t count = 1, int64_t groups = 1) {
  CUtensorMap map;
  MatrixOfMap m{data, rows, columns, 2 * columns, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, box_rows, 2};
  if (count * groups > 1) {
    m.dimensions = 4, m.count = count, m.groups = groups;
    m.count_bytes = rows * columns * 2, m.group_bytes = count * m.count_bytes;
  }
  if (!EncodeMap(&map, m)) Check(cudaErrorInvalidValue, "EncodeMap");
  return map;
}

// What a kernel has in front of all else: a tile at a multiple of 1,024 bytes, and a barrier.
constexpr uint32_t kBoxBytes = 64 * 128;
__device__ inline void StartBarrier(uint32_t barrier, uint32_t arrivals) {
  if (threadIdx.x == 0) {
    InitBarrier(barrier, arrivals);
    FenceBarriers();
  }
  __syncthreads();
}
// A box as rows of 64 numbers.
__device__ inline void ReadBox(const uint8_t* tile, uint16_t* to, int rows = 64) {
  for (int i = threadIdx.x; i < rows * 64; i += blockDim.x) {
    const uint32_t at = Swizzled(i / 64, i % 64 / 8) + i % 8 * 2;
    to[i] = *reinterpret_cast<const uint16_t*>(tile + at);
  }
}

}  // namespace hopper
