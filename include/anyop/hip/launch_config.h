/* SPDX-License-Identifier: Apache-2.0 */
/* How CUDA's runtime is told of a launch. dim3 and cudaStream_t are those of who includes it. */
#ifndef ANYOP_HIP_LAUNCH_CONFIG_H_
#define ANYOP_HIP_LAUNCH_CONFIG_H_

#include <cstddef>

enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeCooperative,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    dim3 clusterDim;
    int cooperative;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

#endif  // ANYOP_HIP_LAUNCH_CONFIG_H_
