// SPDX-License-Identifier: Apache-2.0
// Rows of topk and sort on CUDA: where an element comes, and the sorts of anyop/cuda/sort.h.
#pragma once

#include <type_traits>

#include "anyop/cuda/sort.h"
#include "row_order.h"

namespace anyop::cuda {
namespace {

// The smaller the earlier; see row_order.h.
template <typename Raw>
struct PlaceOf {
  Order<std::make_signed_t<Raw>> order;

  __device__ Raw operator()(Raw raw) const {
    constexpr Raw kTop = Raw(1) << (8 * sizeof(Raw) - 1);
    const Raw fold = static_cast<Raw>(order.fold), flip = static_cast<Raw>(order.flip);
    const Raw signs = raw & kTop ? static_cast<Raw>(~Raw(0)) : Raw(0);
    Raw key = static_cast<Raw>((raw ^ (signs & fold)) - (signs & static_cast<Raw>(order.unit)));
    if (static_cast<Raw>(raw & fold) > static_cast<Raw>(order.infinity)) key = kTop - 1;  // NaN
    // From the order of signed integers, the greater the earlier.
    return static_cast<Raw>(kTop - 1 - static_cast<Raw>(key ^ flip));
  }
};

// Calls run(PlaceOf<Raw>) with the unsigned integer of the dtype's width.
template <typename Run>
int32_t WithPlace(AnyopDtype dtype, bool largest_first, const Run& run) {
  return WithOrder(dtype, largest_first, [&](const auto& order) {
    using Raw = std::make_unsigned_t<decltype(order.fold)>;
    return run(PlaceOf<Raw>{order});
  });
}

// The first k of rows of x, in order.
template <typename Raw>
int32_t SortFirst(AnyopCall* call, const AnyopTensor* x, int64_t rows, int64_t D, int64_t k,
                  const PlaceOf<Raw>& place, const AnyopTensor* values,
                  const AnyopTensor* indices) {
  return RunRowSort(call, RowSort<Raw, PlaceOf<Raw>>{static_cast<const Raw*>(x->data), rows, D, k,
                                                     static_cast<Raw*>(values->data),
                                                     static_cast<int64_t*>(indices->data), place,
                                                     int{sizeof(Raw)}});
}

}  // namespace
}  // namespace anyop::cuda
