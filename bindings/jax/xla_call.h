// SPDX-License-Identifier: Apache-2.0
// One call from XLA into a frame: buffers as its plan says, everything else by name.
#pragma once

#include <string_view>

#include "call/call.h"
#include "plan.h"
#include "xla_ffi.h"

namespace anyop::xla {

class Site {
 public:
  // The frame belongs to the plan's operator.
  Site(const CallFrame& call, const Plan& plan, int32_t device_type, int32_t device_id,
       Frame* frame)
      : call_(call),
        plan_(plan),
        device_type_(device_type),
        device_id_(device_id),
        frame_(*frame) {}

  // Fills the frame. A status, with the text in frame->error.
  int32_t Read();

 private:
  int32_t ReadSlots(const Buffers& buffers, const std::vector<Slot>& slots);
  int32_t ReadList(const Slot& slot, const Buffers& buffers);
  int32_t CheckChanged(const Slot& slot, const Buffers& buffers);
  int32_t CheckSame(const Param& p, const AnyopTensor& given, const AnyopTensor& changed);
  int32_t Take(const Param& p, const Buffers& buffers, AnyopTensor* tensor);
  int32_t ReadAttribute(std::string_view name, Attribute kind, void* value);
  int32_t ReadText(const Param& p, const Bytes& text);
  int32_t ReadTexts(const Param& p, const Bytes& texts);
  int32_t ReadDtype(const Param& p, const char* name, int64_t* dtype);
  int32_t ReadScalar(const Param& p, const Scalar& scalar);
  int32_t ReadArray(const Param& p, const Array& array);
  int32_t FillDefaults();
  int32_t Wrong(const Param& p);

  const CallFrame& call_;
  const Plan& plan_;
  const int32_t device_type_;
  const int32_t device_id_;
  Frame& frame_;
  int64_t next_ = 0;   // buffer
  uint64_t seen_ = 0;  // bit of a parameter that is no tensor
};

}  // namespace anyop::xla
