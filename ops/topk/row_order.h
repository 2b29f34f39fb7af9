// SPDX-License-Identifier: Apache-2.0
// The order of a row's elements as integers of their bits: what topk and sort compare.
#ifndef ANYOP_OPS_TOPK_ROW_ORDER_H_
#define ANYOP_OPS_TOPK_ROW_ORDER_H_

#include <limits>

#include "anyop/kernel.h"

namespace anyop {

__extension__ typedef unsigned __int128 UInt128;

// Masks that make the bits of an element an integer of the wanted order: the greater, the earlier.
template <typename Raw>
struct Order {
  Raw fold = 0;      // floats: all but the sign
  Raw unit = 0;      // floats: all
  Raw infinity = 0;  // floats: magnitudes above are NaN
  Raw flip = 0;      // all, when the smallest come first
};

template <typename Raw>
Raw KeyOf(Raw bits, const Order<Raw>& order) {
  const Raw sign = static_cast<Raw>(bits >> (8 * sizeof(Raw) - 1));
  const Raw number =
      static_cast<Raw>((bits ^ (sign & order.fold)) - (sign & order.unit));  // -0 is 0
  const Raw key = (bits & order.fold) > order.infinity ? std::numeric_limits<Raw>::max() : number;
  return static_cast<Raw>(key ^ order.flip);
}

// Calls run(Order<Raw>()) with the integer of the dtype's width. NaN are larger than any number.
template <typename Run>
int32_t WithOrder(AnyopDtype dtype, bool largest_first, Run run) {
  // infinity: bits of the float type's; 0 for integers.
  const auto with = [&](auto infinity) {
    using Raw = decltype(infinity);
    Order<Raw> order;
    if (infinity != 0) order = {std::numeric_limits<Raw>::max(), -1, infinity, 0};
    if (!largest_first) order.flip = -1;
    return run(order);
  };
  switch (dtype) {
    case kAnyopFloat16:
      return with(int16_t{0x7c00});
    case kAnyopBFloat16:
      return with(int16_t{0x7f80});
    case kAnyopFloat32:
      return with(int32_t{0x7f800000});
    case kAnyopFloat64:
      return with(int64_t{0x7ff0000000000000});
    case kAnyopInt32:
      return with(int32_t{0});
    default:
      return with(int64_t{0});
  }
}

}  // namespace anyop

#endif  // ANYOP_OPS_TOPK_ROW_ORDER_H_
