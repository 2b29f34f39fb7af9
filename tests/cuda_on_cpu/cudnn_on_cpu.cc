// SPDX-License-Identifier: Apache-2.0
// cuDNN's functions for tests without a GPU: graphs of a convolution and what comes behind it, in
// memory of the CPU, by plain loops in double, from the same descriptors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "../../ops/convolution/cudnn.h"
#include "cuda_on_cpu.h"

using namespace anyop::cudnn;

namespace {

constexpr int kBadParameter = 2000, kNotFinished = 2004, kNotSupported = 3000;
constexpr int kWorkspace = 512;

struct TheDescriptor {
  int kind;
  bool finished = false;
  std::map<int, std::vector<char>> values;

  template <typename T>
  std::vector<T> All(int attribute) const {
    const auto found = values.find(attribute);
    if (found == values.end()) return {};
    std::vector<T> all(found->second.size() / sizeof(T));
    std::memcpy(all.data(), found->second.data(), found->second.size());
    return all;
  }
  template <typename T>
  T One(int attribute, T missing = T()) const {
    const auto all = All<T>(attribute);
    return all.empty() ? missing : all[0];
  }
  const TheDescriptor* Of(int attribute) const {
    return static_cast<const TheDescriptor*>(One<Descriptor>(attribute));
  }
};

size_t BytesOf(int type) {
  switch (type) {
    case kBoolType:
      return 1;
    case kHandleType:
    case kInt64Type:
    case kPointerType:
    case kDescriptorType:
      return 8;
    default:
      return 4;
  }
}

double Read(int data, const void* from, int64_t at) {
  switch (data) {
    case kFloat32:
      return static_cast<const float*>(from)[at];
    case kFloat16:
      return __half2float(static_cast<const __half*>(from)[at]);
    case kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]);
    default:
      return static_cast<const uint8_t*>(from)[at];
  }
}
void Write(int data, void* to, int64_t at, double value) {
  const auto narrow = static_cast<float>(value);
  if (data == kFloat32) static_cast<float*>(to)[at] = narrow;
  if (data == kFloat16) static_cast<__half*>(to)[at] = __float2half_rn(narrow);
  if (data == kBFloat16) static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16_rn(narrow);
}

// The numbers of a tensor N C H W, as its strides say.
struct Numbers {
  std::vector<int64_t> sizes, strides;
  std::vector<double> values;

  explicit Numbers(const TheDescriptor& of)
      : sizes(of.All<int64_t>(kTensorSizes)), strides(of.All<int64_t>(kTensorStrides)) {
    int64_t count = 1;
    for (int d = 0; d < 4; ++d) count = std::max(count, sizes[d] * strides[d]);
    values.resize(count);
  }
  double& At(int64_t n, int64_t c, int64_t h, int64_t w) {
    const int64_t at[] = {n, c, h, w};
    int64_t place = 0;
    for (int d = 0; d < 4; ++d) place += (sizes[d] == 1 ? 0 : at[d]) * strides[d];
    return values[place];
  }
};

// One run of a plan: the numbers of each tensor by its name.
class Running {
 public:
  Running(const TheDescriptor& graph, const TheDescriptor& pack, bool narrows)
      : graph_(graph), narrows_(narrows) {
    const auto names = pack.All<int64_t>(kPackNames);
    const auto pointers = pack.All<void*>(kPackPointers);
    for (size_t i = 0; i < names.size(); ++i) places_[names[i]] = pointers[i];
  }

  int Run() {
    for (const Descriptor one : graph_.All<Descriptor>(kGraphOperations)) {
      const auto& operation = *static_cast<const TheDescriptor*>(one);
      const int status =
          operation.kind == kPointwiseOperation ? Point(operation) : Convolve(operation);
      if (status != kOk) return status;
    }
    return kOk;
  }

 private:
  // nullptr where the tensor is not where it must be.
  Numbers* Get(const TheDescriptor* tensor, bool reads) {
    if (!tensor || !tensor->finished) return nullptr;
    const auto name = tensor->One<int64_t>(kTensorName);
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return &found->second;
    Numbers& made = numbers_.emplace(name, Numbers(*tensor)).first->second;
    if (tensor->One<char>(kTensorIsVirtual)) return reads ? nullptr : &made;
    const auto alignment = tensor->One<int64_t>(kTensorAlignment);
    void* place = places_[name];
    if (!place || reinterpret_cast<uintptr_t>(place) % alignment) return nullptr;
    if (!reads) return &made;
    const int data = tensor->One<int>(kTensorDataType);
    for (size_t i = 0; i < made.values.size(); ++i) {
      made.values[i] = Read(data, place, static_cast<int64_t>(i));
      if (narrows_ && data == kFloat32) made.values[i] = AsTf32(made.values[i]);
    }
    return &made;
  }
  static double AsTf32(double value) {
    int exponent;
    const double fraction = std::frexp(value, &exponent);
    return std::ldexp(std::nearbyint(fraction * 2048) / 2048, exponent);
  }

  int Store(const TheDescriptor* tensor, const Numbers& numbers) {
    if (tensor->One<char>(kTensorIsVirtual)) return kOk;
    const int data = tensor->One<int>(kTensorDataType);
    for (size_t i = 0; i < numbers.values.size(); ++i)
      Write(data, places_[tensor->One<int64_t>(kTensorName)], static_cast<int64_t>(i),
            numbers.values[i]);
    return kOk;
  }

  int Convolve(const TheDescriptor& operation) {
    const bool to_x = operation.kind == kGradImagesOperation;
    const bool to_w = operation.kind == kGradWeightOperation;
    const int first = to_x ? kGradImagesFirst : to_w ? kGradWeightFirst : kForwardFirst;
    if (operation.One<float>(first) != 1 || operation.One<float>(first + 1) != 0)
      return kBadParameter;
    const TheDescriptor* of[] = {operation.Of(first + 3), operation.Of(first + 4),
                                 operation.Of(first + 5)};
    Numbers *w = Get(of[0], !to_w), *x = Get(of[1], !to_x), *y = Get(of[2], to_x || to_w);
    if (!w || !x || !y) return kBadParameter;
    const TheDescriptor& how = *operation.Of(first + 2);
    const auto stride = how.One<int64_t>(kConvolutionStrides);
    const auto padding = how.One<int64_t>(kConvolutionPaddingsBefore);
    const auto dilation = how.One<int64_t>(kConvolutionDilations);
    if (how.One<int64_t>(kConvolutionDims) != 2 ||
        how.One<int>(kConvolutionMode) != kCrossCorrelation)
      return kBadParameter;
    Numbers& result = to_x ? *x : to_w ? *w : *y;
    std::fill(result.values.begin(), result.values.end(), 0);
    for (int64_t n = 0; n < y->sizes[0]; ++n)
      for (int64_t p = 0; p < y->sizes[2]; ++p)
        for (int64_t q = 0; q < y->sizes[3]; ++q)
          for (int64_t r = 0; r < w->sizes[2]; ++r)
            for (int64_t s = 0; s < w->sizes[3]; ++s) {
              const int64_t h = p * stride - padding + r * dilation;
              const int64_t v = q * stride - padding + s * dilation;
              if (h < 0 || v < 0 || h >= x->sizes[2] || v >= x->sizes[3]) continue;
              for (int64_t k = 0; k < y->sizes[1]; ++k)
                for (int64_t c = 0; c < x->sizes[1]; ++c) {
                  double &a = x->At(n, c, h, v), &b = w->At(k, c, r, s), &sum = y->At(n, k, p, q);
                  if (to_x)
                    a += sum * b;
                  else if (to_w)
                    b += sum * a;
                  else
                    sum += a * b;
                }
            }
    return Store(to_x ? of[1] : to_w ? of[0] : of[2], result);
  }

  int Point(const TheDescriptor& operation) {
    const TheDescriptor& how = *operation.Of(kOperationPointwise);
    const int mode = how.One<int>(kPointwiseMode);
    if (mode == kRelu && how.One<int>(kPointwiseNan) != kKeepNan) return kBadParameter;
    Numbers *x = Get(operation.Of(kOperationX), true), *y = Get(operation.Of(kOperationY), false);
    Numbers* b = mode == kRelu ? x : Get(operation.Of(kOperationB), true);
    if (!x || !y || !b) return kBadParameter;
    for (int64_t n = 0; n < y->sizes[0]; ++n)
      for (int64_t c = 0; c < y->sizes[1]; ++c)
        for (int64_t h = 0; h < y->sizes[2]; ++h)
          for (int64_t w = 0; w < y->sizes[3]; ++w) {
            const double v = x->At(n, c, h, w), other = b->At(n, c, h, w);
            y->At(n, c, h, w) = mode == kAdd     ? v + other
                                : mode == kTimes ? v * other
                                                 : (v < 0 ? 0 : v);
          }
    return Store(operation.Of(kOperationY), *y);
  }

  const TheDescriptor& graph_;
  const bool narrows_;
  std::map<int64_t, void*> places_;
  std::map<int64_t, Numbers> numbers_;
};

// Loses NaN in relu; it must not be chosen there.
constexpr int64_t kLosesNan = 39;

// What each configuration's engine does to numbers, and its index, by heuristics.
struct Offer {
  std::vector<int> notes;
  int64_t index = 0;
};
std::vector<Offer> OffersOf(const TheDescriptor& heuristics) {
#ifdef WITHOUT_ENGINES
  return {};
#endif
#ifdef WITHOUT_FUSION
  if (heuristics.Of(kHeuristicsGraph)->All<Descriptor>(kGraphOperations).size() > 1) return {};
#endif
  if (heuristics.One<int>(kHeuristicsMode) == kFallback) return {Offer()};
  return {{{kTensorCores}, kLosesNan},
          {{kTensorCores, kOtherBits}},
          {{kWinograd + 1}},
          {{kNarrowSums}},
          {{kTensorCores}}};
}

bool HasRelu(const TheDescriptor& graph) {
  const auto operations = graph.All<Descriptor>(kGraphOperations);
  return std::any_of(operations.begin(), operations.end(), [](Descriptor one) {
    const auto& operation = *static_cast<const TheDescriptor*>(one);
    return operation.kind == kPointwiseOperation &&
           operation.Of(kOperationPointwise)->One<int>(kPointwiseMode) == kRelu;
  });
}

TheDescriptor& Of(Descriptor descriptor) { return *static_cast<TheDescriptor*>(descriptor); }

}  // namespace

extern "C" {

#ifndef VERSION
#define VERSION 92801
#endif
size_t cudnnGetVersion() { return VERSION; }
const char* cudnnGetErrorString(int status) {
  return status == kBadParameter ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED";
}
void cudnnGetLastErrorString(char* text, size_t bytes) { std::strncpy(text, "the last", bytes); }
#ifndef WITHOUT_CREATE
int cudnnCreate(Handle* handle) {
  static char one;
  *handle = reinterpret_cast<Handle>(&one);
  return kOk;
}
#endif
int cudnnSetStream(Handle, void*) { return kOk; }
int cudnnBackendCreateDescriptor(int kind, Descriptor* made) {
  *made = new TheDescriptor{kind};
  return kOk;
}
int cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  delete &Of(descriptor);
  return kOk;
}
int cudnnBackendFinalize(Descriptor descriptor) {
  TheDescriptor& the = Of(descriptor);
  if (the.finished) return kBadParameter;
  if (the.kind == kPlan && !the.values.count(kPlanConfig)) return kBadParameter;
  if (the.kind == kGraph && !the.values.count(kGraphHandle)) return kBadParameter;
  the.finished = true;
  return kOk;
}
int cudnnBackendSetAttribute(Descriptor descriptor, int attribute, int type, int64_t count,
                             const void* values) {
  TheDescriptor& the = Of(descriptor);
  if (the.finished || count < 1) return kBadParameter;
  const auto* bytes = static_cast<const char*>(values);
  the.values[attribute].assign(bytes, bytes + static_cast<size_t>(count) * BytesOf(type));
  if (type != kDescriptorType) return kOk;
  for (const Descriptor one : the.All<Descriptor>(attribute))
    if (!one || !Of(one).finished) return kNotFinished;
  return kOk;
}
int cudnnBackendGetAttribute(Descriptor descriptor, int attribute, int, int64_t most,
                             int64_t* count, void* values) {
  const TheDescriptor& the = Of(descriptor);
  if (attribute == kHeuristicsResults) {
    const auto offers = OffersOf(the);
    *count = std::min<int64_t>(most, static_cast<int64_t>(offers.size()));
    for (int64_t i = 0; i < *count; ++i) {
      TheDescriptor& config = Of(static_cast<Descriptor*>(values)[i]);
      config.finished = true;
      config.values[kHeuristicsGraph] = the.values.at(kHeuristicsGraph);
      const auto* notes = reinterpret_cast<const char*>(offers[i].notes.data());
      config.values[kEngineNotes].assign(notes, notes + 4 * offers[i].notes.size());
      const auto* index = reinterpret_cast<const char*>(&offers[i].index);
      config.values[kEngineIndex].assign(index, index + sizeof offers[i].index);
    }
    return kOk;
  }
  if (attribute == kConfigEngine) {
    for (const int of_engine : {kEngineNotes, kEngineIndex})
      Of(*static_cast<Descriptor*>(values)).values[of_engine] = the.values.at(of_engine);
    return kOk;
  }
  if (attribute == kEngineIndex) {
    *static_cast<int64_t*>(values) = the.One<int64_t>(kEngineIndex);
    return kOk;
  }
  if (attribute == kEngineNotes) {
    const auto notes = the.All<int>(kEngineNotes);
    *count = static_cast<int64_t>(notes.size());
    std::copy(notes.begin(), notes.end(), static_cast<int*>(values));
    return kOk;
  }
  if (attribute != kPlanWorkspace) return kNotSupported;
  *static_cast<int64_t*>(values) = kWorkspace;
  return kOk;
}
int cudnnBackendExecute(Handle, Descriptor plan, Descriptor pack) {
  const TheDescriptor& config = *Of(plan).Of(kPlanConfig);
  const auto notes = config.All<int>(kEngineNotes);
  const auto* workspace = Of(pack).One<char*>(kPackWorkspace);
  if (!Of(pack).finished || !workspace || reinterpret_cast<uintptr_t>(workspace) % 256)
    return kBadParameter;
  for (const int note : notes)
    if (note != kTensorCores) return kNotSupported;  // it must not be chosen
  if (config.One<int64_t>(kEngineIndex) == kLosesNan && HasRelu(*config.Of(kHeuristicsGraph)))
    return kNotSupported;
  return Running(*config.Of(kHeuristicsGraph), Of(pack), !notes.empty()).Run();
}
}
