// SPDX-License-Identifier: Apache-2.0
// A process's first call may be inside a graph capture: what a library allocates and loads then is
// no part of the graph.
#pragma once

#include "anyop/cuda/launch.h"

namespace anyop::cuda {

class OutsideOfCapture {
 public:
  OutsideOfCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideOfCapture(const OutsideOfCapture&) = delete;
  OutsideOfCapture& operator=(const OutsideOfCapture&) = delete;
  ~OutsideOfCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace anyop::cuda
