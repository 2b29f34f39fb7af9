// SPDX-License-Identifier: Apache-2.0
// What both kernels of bitonic_sort compare: one unsigned integer for an element and its place.
//
// A key orders as the elements do, whatever their type: all NaN are one key above infinity, -0 is
// 0. The index below it in the same integer makes every element different, so the order is stable
// in any network. constexpr functions are compiled for the host and for the device.
#pragma once

#include "anyop/kernel.h"

namespace anyop::sorting {

constexpr int kMaxD = 8192;  // as the schema says

// Bits of a type of elements. Integers have no magnitude bits that are to be folded.
template <typename Raw>
struct Order {
  Raw magnitude;  // floats: all bits but the sign; integers: 0
  Raw infinity;   // floats: the bits of infinity; integers: 0
  Raw flip;       // all bits, when the largest come first
};

// Raw: uint16_t or uint32_t, the bits of an element.
template <typename Raw>
constexpr Raw KeyOf(Raw bits, const Order<Raw>& order) {
  constexpr Raw kSign = static_cast<Raw>(Raw{1} << (8 * sizeof(Raw) - 1));
  const Raw magnitude = bits & order.magnitude;
  const bool is_negative = (bits & kSign) != 0;
  // Negative floats turn around, and 0x80..0, which is -0, meets 0. Integers only move.
  Raw key = static_cast<Raw>(order.magnitude && is_negative ? kSign - magnitude : bits ^ kSign);
  if (magnitude > order.infinity) key = static_cast<Raw>(~Raw{0});
  return static_cast<Raw>(key ^ order.flip);
}

// The key above the index; both take half.
template <typename Raw>
struct PackedOf {
  using Type = uint64_t;
};
template <>
struct PackedOf<uint16_t> {
  using Type = uint32_t;
};
template <typename Raw>
using Packed = typename PackedOf<Raw>::Type;

template <typename Raw>
constexpr Packed<Raw> Pack(Raw key, int64_t index) {
  return static_cast<Packed<Raw>>(key) << 8 * sizeof(Raw) | static_cast<Packed<Raw>>(index);
}
// The index, also of the places behind the row, which are sorted behind every element.
template <typename Raw>
constexpr int IndexIn(Packed<Raw> packed) {
  return static_cast<int>(packed & static_cast<Raw>(~Raw{0}));
}
template <typename Raw>
constexpr Packed<Raw> Behind(int64_t place) {
  return Pack<Raw>(static_cast<Raw>(~Raw{0}), place);
}

// Calls body with the order of a dtype.
template <typename Body>
int32_t WithOrder(AnyopDtype dtype, bool descending, const Body& body) {
  const auto flip16 = static_cast<uint16_t>(descending ? 0xffff : 0);
  const uint32_t flip32 = descending ? ~0u : 0;
  switch (dtype) {
    case kAnyopFloat32:
      return body(Order<uint32_t>{0x7fffffff, 0x7f800000, flip32});
    case kAnyopFloat16:
      return body(Order<uint16_t>{0x7fff, 0x7c00, flip16});
    case kAnyopBFloat16:
      return body(Order<uint16_t>{0x7fff, 0x7f80, flip16});
    default:  // int32, as the schema says
      return body(Order<uint32_t>{0, 0, flip32});
  }
}

}  // namespace anyop::sorting
