// SPDX-License-Identifier: Apache-2.0
// The generation of the GPUs that calls meet, for conditions: 90 for CUDA's compute capability 9.0.
#pragma once

#include <string>

namespace anyop {

// Of one device, asked once; 0: it cannot be asked, or has none.
int CapabilityOf(int device_type, int device_id);

// Asks all devices of a kind, once; true where that was now.
bool LearnCapabilities(int device_type);
// What they all have, once they were asked; 0: not known, or they differ.
int CommonCapability(int device_type);

// The name that they all have; empty: not known, or they differ.
std::string CommonName(int device_type);

// "9.0"
std::string CapabilityText(int capability);

}  // namespace anyop
