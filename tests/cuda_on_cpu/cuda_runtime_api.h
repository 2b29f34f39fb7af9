/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for CUDA's header of this name where a .cu file is compiled for the CPU. */
#pragma once
#include "cuda_on_cpu.h"
