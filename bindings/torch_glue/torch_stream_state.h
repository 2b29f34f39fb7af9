// SPDX-License-Identifier: Apache-2.0
// A caller's CUDA stream as torch's current one. Part of both glues.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

namespace anyop::glue {

// Makes somebody's CUDA stream and its device torch's current ones.
class StreamState {
 public:
  StreamState(int32_t device_id, void* stream)
      : guard_(c10::DeviceType::CUDA),
        device_(guard_.exchangeDevice(
            {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_id)})),
        stream_(Exchange({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_id)},
                         reinterpret_cast<c10::StreamId>(stream))) {}
  ~StreamState() {
    try {
      guard_.exchangeStream(stream_);
    } catch (...) {  // of a device that is lost
    }
    guard_.uncheckedSetDevice(device_);
  }
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

 private:
  // The identity of a stream that torch did not make is its address. 1 is the default stream, too.
  c10::Stream Exchange(c10::Device device, c10::StreamId id) {
    try {
      return guard_.exchangeStream(c10::Stream(c10::Stream::UNSAFE, device, id == 1 ? 0 : id));
    } catch (...) {
      guard_.uncheckedSetDevice(device_);
      throw;
    }
  }

  c10::impl::VirtualGuardImpl guard_;
  c10::Device device_;
  c10::Stream stream_;
};

}  // namespace anyop::glue
