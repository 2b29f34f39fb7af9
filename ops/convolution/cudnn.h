// SPDX-License-Identifier: Apache-2.0
// The part of cuDNN's C interface that convolutions need, its graphs, by declarations of our own:
// the library is looked up at run time, and no header of it is needed to build. Numbers are those
// of 9.0 to 9.28.
#pragma once

#include "anyop/kernel.h"

namespace anyop::cudnn {

constexpr size_t kMinimumVersion = 90000;  // 9.0: major * 10000 + minor * 100 + patch

using Handle = struct HandleTag*;
using Descriptor = void*;
constexpr int kOk = 0;

enum Kind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kConfig = 3,  // of an engine
  kHeuristics = 4,
  kPlan = 5,
  kForwardOperation = 10,
  kGradWeightOperation = 11,
  kGradImagesOperation = 12,
  kPointwiseOperation = 13,
  kGraph = 15,
  kPack = 16,  // memory for the tensors of a plan
  kTensor = 17,
};

// What an attribute is a number of.
enum Type : int {
  kHandleType = 0,
  kDataType = 1,
  kBoolType = 2,
  kInt64Type = 3,
  kFloatType = 4,
  kPointerType = 6,
  kConvolutionModeType = 7,
  kHeuristicsModeType = 8,
  kNanType = 10,
  kNoteType = 11,
  kPointwiseModeType = 14,
  kDescriptorType = 15,
};

enum Attribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseNan = 2,
  kConvolutionPrecision = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPaddingsBehind = 104,
  kConvolutionPaddingsBefore = 105,
  kConvolutionDims = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  // Of an operation of a convolution, behind the first of its kind: alpha, beta, the convolution,
  // weight, images, result (or their gradients).
  kForwardFirst = 700,
  kGradImagesFirst = 706,
  kGradWeightFirst = 712,
  kOperationPointwise = 750,
  kOperationX = 751,
  kOperationB = 752,
  kOperationY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorName = 906,
  kTensorIsVirtual = 907,
  kPackNames = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineIndex = 1301,
  kEngineNotes = 1303,
};

enum Data : int { kFloat32 = 0, kFloat16 = 2, kBFloat16 = 9 };
enum Mode : int { kAdd = 0, kTimes = 1, kRelu = 100 };
enum Heuristics : int { kFallback = 2, kBest = 3 };
constexpr int kCrossCorrelation = 1, kKeepNan = 1;

// What an engine does to numbers.
enum Note : int {
  kTensorCores = 0,  // of float32: rounds to TF32
  kNarrowsInputs = 1,
  kNarrowSums = 2,
  kFourier = 3,
  kOtherBits = 4,  // in another run
  kWinograd = 5,   // to 8, by sizes of tiles
  kWinogradLast = 8,
};

// X(name without cudnn, result, arguments).
#define ANYOP_CUDNN_FUNCTIONS(X)                                                       \
  X(GetVersion, size_t, ())                                                            \
  X(GetErrorString, const char*, (int status))                                         \
  X(GetLastErrorString, void, (char* text, size_t bytes))                              \
  X(Create, int, (Handle*))                                                            \
  X(SetStream, int, (Handle, void* stream))                                            \
  X(BackendCreateDescriptor, int, (int kind, Descriptor*))                             \
  X(BackendDestroyDescriptor, int, (Descriptor))                                       \
  X(BackendFinalize, int, (Descriptor))                                                \
  X(BackendSetAttribute, int,                                                          \
    (Descriptor, int attribute, int type, int64_t count, const void* values))          \
  X(BackendGetAttribute, int,                                                          \
    (Descriptor, int attribute, int type, int64_t most, int64_t* count, void* values)) \
  X(BackendExecute, int, (Handle, Descriptor plan, Descriptor pack))

struct Library {
#define ANYOP_X(name, result, arguments) \
  result(*name) arguments = nullptr; /* NOLINT(bugprone-macro-parentheses): a declaration */
  ANYOP_CUDNN_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
};

// The library of the process, opened at the first call. kAnyopDeclined, with where it was looked
// for, where there is none that serves; ValueError where ANYOP_CUDNN names none.
int32_t GetLibrary(AnyopCall* call, const Library** library);

}  // namespace anyop::cudnn
