// SPDX-License-Identifier: Apache-2.0
// Whether a function of a vendor's is called as we call it: kSame of the types of both.
#pragma once

#include <type_traits>

namespace {

// What a calling convention sees of a type: an address, or an integer of its size.
template <typename T>
auto Seen() {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<void*>(nullptr);
  } else if constexpr (std::is_enum_v<T>) {
    return 0;
  } else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 4) {
    return 0u;
  } else {
    return T{};
  }
}

template <typename T>
struct Shape;
template <typename Result, typename... Parameters>
struct Shape<Result (*)(Parameters...)> {
  using Type = decltype(Seen<Result>()) (*)(decltype(Seen<Parameters>())...);
};

template <typename Theirs, typename Ours>
constexpr bool kSame = std::is_same_v<typename Shape<Theirs>::Type, typename Shape<Ours>::Type>;

}  // namespace
