// SPDX-License-Identifier: Apache-2.0
// The exception of C++ callers.
#ifndef ANYOP_ERROR_H_
#define ANYOP_ERROR_H_

#include <cstdint>
#include <stdexcept>
#include <string>

#include "anyop/anyop.h"

namespace anyop {

// A failed call. The text names operator, argument, found and expected; status is an AnyopStatus.
class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int32_t status() const { return status_; }

 private:
  int32_t status_;
};

namespace internal {

inline void Check(int32_t status) {
  if (status != kAnyopOk) throw Error(status, AnyopLastError());
}

}  // namespace internal
}  // namespace anyop

#endif  // ANYOP_ERROR_H_
