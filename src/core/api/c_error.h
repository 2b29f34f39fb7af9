// SPDX-License-Identifier: Apache-2.0
// How functions of the C ABI fail.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <new>

#include "anyop/anyop.h"

namespace anyop {

// Notes the text of this thread's AnyopLastError and returns the status.
int32_t SetError(int32_t status, const char* text);

// Runs body; what it throws becomes a status.
template <typename Body>
int32_t Guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return SetError(kAnyopOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return SetError(kAnyopInternalError, error.what());
  } catch (abi::__forced_unwind&) {
    throw;  // the thread ends
  } catch (...) {
    return SetError(kAnyopInternalError, "an exception of unknown kind was thrown");
  }
}

}  // namespace anyop
