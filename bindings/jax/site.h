// SPDX-License-Identifier: Apache-2.0
// One call from XLA into a frame: buffers by the names in _tensors, everything else by its own.
#pragma once

#include <string_view>

#include "call.h"
#include "xla_ffi.h"

namespace anyop::xla {

class Site {
 public:
  // The frame belongs to the call's operator.
  Site(const CallFrame& call, int32_t device_type, int32_t device_id, Frame* frame)
      : call_(call), device_type_(device_type), device_id_(device_id), frame_(*frame) {}

  // Fills the frame. A status, with the text in frame->error.
  int32_t Read(std::string_view tensors);

 private:
  int32_t ReadTensors(std::string_view text);
  int32_t ReadToken(std::string_view token);
  int32_t ReadList(uint32_t i, const Param& p, std::string_view elements);
  int32_t ReadChanged(uint32_t i, const Param& p, std::string_view elements);
  int32_t Check(const Param& p, const AnyopTensor& given, const AnyopTensor& changed);
  int32_t Take(const Param& p, AnyopTensor* tensor);
  int32_t ReadAttribute(std::string_view name, Attribute kind, void* value);
  int32_t ReadText(const Param& p, const Bytes& text);
  int32_t ReadTexts(const Param& p, const Bytes& texts);
  int32_t ReadDtype(const Param& p, const char* name, int64_t* dtype);
  int32_t ReadScalar(const Param& p, const Scalar& scalar);
  int32_t ReadArray(const Param& p, const Array& array);
  int32_t FillDefaults();
  int32_t Unknown(std::string_view name);
  int32_t Wrong(const Param& p);
  int32_t Find(std::string_view name);

  const CallFrame& call_;
  const int32_t device_type_;
  const int32_t device_id_;
  Frame& frame_;
  bool in_results_ = false;
  int64_t next_ = 0;   // buffer
  uint64_t seen_ = 0;  // bit of a parameter that is no tensor
  int32_t last_ = -1;  // parameter found before: the next one is likely behind it
};

// The attribute of that name, where it is a string; nullptr otherwise.
const Bytes* FindText(const Attributes& attributes, std::string_view name);

}  // namespace anyop::xla
