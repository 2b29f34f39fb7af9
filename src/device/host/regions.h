// SPDX-License-Identifier: Apache-2.0
// What memory the host's device gave out, and whose it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anyop::host {

constexpr int32_t kPinned = -1;    // the host's, given by allocate_host
constexpr int32_t kNoDevice = -2;  // not given out here

struct Region {
  int32_t owner = kNoDevice;  // a device, kPinned or kNoDevice
  uintptr_t begin = 0;
  int64_t bytes = 0;
};

// The region in which this address lies.
Region FindRegion(const void* memory);

// kAnyopOk, or an error noted. 512-byte aligned, with guards before and behind.
int32_t MakeRegion(int32_t owner, int64_t bytes, void** memory);

// Frees it. An error is noted when nothing begins here that owner has, and when a guard was
// overwritten.
int32_t DropRegion(int32_t owner, void* memory);

}  // namespace anyop::host
