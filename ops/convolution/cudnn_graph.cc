// SPDX-License-Identifier: Apache-2.0
// Descriptors of cuDNN's backend: tensors, operations, their graph, configurations of engines, of
// which the first that computes as it must becomes a plan.
#include "cudnn_graph.h"

#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace anyop::cudnn {
namespace {

// How tensors are told apart in a graph and where it is run.
enum Name : int64_t { kX = 1, kWeight, kY, kScale, kBias, kResidual, kFirstVirtual };

// Makes descriptors, notes the first error, and destroys all that are not released.
class Maker {
 public:
  explicit Maker(const Library& library) : library_(library) {}
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;
  ~Maker() {
    for (int i = count_ - 1; i >= 0; --i) library_.BackendDestroyDescriptor(owned_[i]);
  }

  int error() const { return error_; }
  void Release() { count_ = 0; }

  Descriptor Make(Kind kind) {
    Descriptor made = nullptr;
    if (count_ == kMost) error_ = -1;
    if (error_ != kOk) return nullptr;
    Note(library_.BackendCreateDescriptor(kind, &made));
    if (error_ == kOk) owned_[count_++] = made;
    return made;
  }
  template <typename T>
  void Set(Descriptor of, int attribute, Type type, const T* values, int64_t count) {
    if (error_ == kOk) Note(library_.BackendSetAttribute(of, attribute, type, count, values));
  }
  template <typename T>
  void Set(Descriptor of, int attribute, Type type, T value) {
    Set(of, attribute, type, &value, 1);
  }
  Descriptor Finish(Descriptor made) {
    if (error_ == kOk) Note(library_.BackendFinalize(made));
    return made;
  }

 private:
  void Note(int status) {
    if (error_ == kOk) error_ = status;
  }
  static constexpr int kMost = 64;
  const Library& library_;
  Descriptor owned_[kMost];
  int count_ = 0, error_ = kOk;
};

Data DataOf(AnyopDtype dtype) {
  return dtype == kAnyopFloat16 ? kFloat16 : dtype == kAnyopBFloat16 ? kBFloat16 : kFloat32;
}

// The graph of a convolution.
class Graph {
 public:
  Graph(const Library& library, const Convolution& convolution)
      : maker_(library), c_(convolution) {}

  Maker& maker() { return maker_; }

  // What comes behind the sums.
  int ends() const {
    return (c_.scale != nullptr) + (c_.bias != nullptr) + (c_.residual != nullptr) + c_.relu;
  }

  Descriptor Describe(Handle handle) {
    DescribeConvolution();
    if (c_.pass == Pass::kForward) DescribeEnds();
    const Descriptor graph = maker_.Make(kGraph);
    maker_.Set(graph, kGraphHandle, kHandleType, handle);
    maker_.Set(graph, kGraphOperations, kDescriptorType, operations_, count_);
    return maker_.Finish(graph);
  }

 private:
  // cuDNN's order of sizes is N C H W, whatever lies side by side.
  Descriptor Tensor(int64_t name, Data data, int64_t n, int64_t h, int64_t w, int64_t c) {
    const int64_t sizes[] = {n, c, h, w}, strides[] = {h * w * c, 1, w * c, c};
    const Descriptor made = maker_.Make(kTensor);
    maker_.Set(made, kTensorDataType, kDataType, int{data});
    maker_.Set(made, kTensorSizes, kInt64Type, sizes, 4);
    maker_.Set(made, kTensorStrides, kInt64Type, strides, 4);
    maker_.Set(made, kTensorName, kInt64Type, name);
    maker_.Set(made, kTensorAlignment, kInt64Type, int64_t{16});
    if (name >= kFirstVirtual) maker_.Set(made, kTensorIsVirtual, kBoolType, true);
    return maker_.Finish(made);
  }
  Descriptor Images(int64_t name, Data data) {  // of the results' sizes
    return Tensor(name, data, c_.sizes.N, c_.sizes.P, c_.sizes.Q, c_.sizes.K);
  }

  // What an operation gives: y behind the last, else a tensor that is nowhere.
  Descriptor NextResult() {
    if (done_++ == ends()) return Images(kY, DataOf(c_.result));
    return Images(kFirstVirtual + done_, kFloat32);
  }

  void DescribeConvolution() {
    const Sizes& s = c_.sizes;
    const Descriptor how = maker_.Make(kConvolution);
    const auto both = [&](Attribute attribute, int64_t value) {
      const int64_t values[] = {value, value};
      maker_.Set(how, attribute, kInt64Type, values, 2);
    };
    maker_.Set(how, kConvolutionPrecision, kDataType, int{kFloat32});
    maker_.Set(how, kConvolutionMode, kConvolutionModeType, kCrossCorrelation);
    maker_.Set(how, kConvolutionDims, kInt64Type, int64_t{2});
    both(kConvolutionPaddingsBefore, s.padding);
    both(kConvolutionPaddingsBehind, s.padding);
    both(kConvolutionStrides, s.stride);
    both(kConvolutionDilations, s.dilation);
    maker_.Finish(how);

    const Data data = DataOf(c_.dtype), result = DataOf(c_.result);
    const bool of_images = c_.pass == Pass::kGradImages, of_weight = c_.pass == Pass::kGradWeight;
    const Descriptor x = Tensor(kX, of_images ? result : data, s.N, s.H, s.W, s.C);
    const Descriptor w = Tensor(kWeight, of_weight ? result : data, s.K, s.R, s.S, s.C);
    last_ = c_.pass == Pass::kForward ? NextResult() : Images(kY, data);
    const Descriptor operation = maker_.Make(of_images   ? kGradImagesOperation
                                             : of_weight ? kGradWeightOperation
                                                         : kForwardOperation);
    const int first = of_images ? kGradImagesFirst : of_weight ? kGradWeightFirst : kForwardFirst;
    maker_.Set(operation, first, kFloatType, 1.0f);
    maker_.Set(operation, first + 1, kFloatType, 0.0f);
    maker_.Set(operation, first + 2, kDescriptorType, how);
    maker_.Set(operation, first + 3, kDescriptorType, w);
    maker_.Set(operation, first + 4, kDescriptorType, x);
    maker_.Set(operation, first + 5, kDescriptorType, last_);
    operations_[count_++] = maker_.Finish(operation);
  }

  void DescribeEnds() {
    const int64_t K = c_.sizes.K;
    const Data data = DataOf(c_.dtype);
    if (c_.scale) Append(kTimes, Tensor(kScale, data, 1, 1, 1, K));
    if (c_.bias) Append(kAdd, Tensor(kBias, data, 1, 1, 1, K));
    if (c_.residual) Append(kAdd, Images(kResidual, data));
    if (c_.relu) Append(kRelu, nullptr);
  }

  // An operation of the last result and b.
  void Append(Mode mode, Descriptor b) {
    const Descriptor how = maker_.Make(kPointwise);
    maker_.Set(how, kPointwiseMode, kPointwiseModeType, int{mode});
    maker_.Set(how, kPointwisePrecision, kDataType, int{kFloat32});
    if (mode == kRelu) maker_.Set(how, kPointwiseNan, kNanType, kKeepNan);
    maker_.Finish(how);
    const Descriptor operation = maker_.Make(kPointwiseOperation);
    maker_.Set(operation, kOperationPointwise, kDescriptorType, how);
    maker_.Set(operation, kOperationX, kDescriptorType, last_);
    if (b) maker_.Set(operation, kOperationB, kDescriptorType, b);
    last_ = NextResult();
    maker_.Set(operation, kOperationY, kDescriptorType, last_);
    operations_[count_++] = maker_.Finish(operation);
  }

  Maker maker_;
  const Convolution& c_;
  Descriptor operations_[5], last_ = nullptr;
  int count_ = 0, done_ = 0;
};

// Fuses bias and relu of windows of one place, and makes 0 of NaN, whatever the graph says: cuDNN
// 9 in 245 of 381 sizes. Of the other engines none did, in 4,900 cases.
constexpr int64_t kLosesNan = 39;

// Sums are float32 of the numbers as they are, in one order, and NaN stays.
bool Computes(const Library& library, Descriptor config, const Convolution& c) {
  constexpr int kMostNotes = 32;
  Maker maker(library);
  Descriptor engine = maker.Make(kEngine);
  int notes[kMostNotes];
  int64_t count = 0, index = 0;
  if (maker.error() != kOk ||
      library.BackendGetAttribute(config, kConfigEngine, kDescriptorType, 1, &count, &engine) ||
      library.BackendGetAttribute(engine, kEngineIndex, kInt64Type, 1, &count, &index) ||
      library.BackendGetAttribute(engine, kEngineNotes, kNoteType, kMostNotes, &count, notes))
    return false;
  if (index == kLosesNan && c.relu) return false;
  const bool exact = c.dtype == kAnyopFloat32 && !c.tf32;
  for (int64_t i = 0; i < count && i < kMostNotes; ++i) {
    const int note = notes[i];
    if (note == kTensorCores ? exact : note >= kNarrowsInputs && note <= kWinogradLast)
      return false;
  }
  return true;
}

constexpr int64_t kWorkspaceLimit = int64_t{1} << 30;

// A plan of this configuration, where its engine runs it here.
bool TryConfig(const Library& library, Handle handle, Descriptor config, Plan* plan) {
  Maker maker(library);
  const Descriptor made = maker.Make(kPlan);
  maker.Set(made, kPlanHandle, kHandleType, handle);
  maker.Set(made, kPlanConfig, kDescriptorType, config);
  maker.Finish(made);
  int64_t count = 0, bytes = 0;
  if (maker.error() != kOk ||
      library.BackendGetAttribute(made, kPlanWorkspace, kInt64Type, 1, &count, &bytes) ||
      bytes > kWorkspaceLimit)
    return false;
  maker.Release();
  plan->plan = made;
  plan->workspace = bytes;
  return true;
}

// False where none of what the heuristics of this mode offer serves.
bool TryAll(const Library& library, Handle handle, Descriptor graph, Heuristics mode,
            const Convolution& c, Plan* plan) {
  constexpr int kMostConfigs = 48;
  Maker maker(library);
  const Descriptor heuristics = maker.Make(kHeuristics);
  maker.Set(heuristics, kHeuristicsGraph, kDescriptorType, graph);
  maker.Set(heuristics, kHeuristicsMode, kHeuristicsModeType, int{mode});
  maker.Finish(heuristics);
  Descriptor configs[kMostConfigs];
  for (Descriptor& config : configs) config = maker.Make(kConfig);
  int64_t count = 0;
  if (maker.error() != kOk ||
      library.BackendGetAttribute(heuristics, kHeuristicsResults, kDescriptorType, kMostConfigs,
                                  &count, configs))
    return false;
  for (int64_t i = 0; i < count && i < kMostConfigs; ++i) {
    if (!Computes(library, configs[i], c)) continue;
    if (!TryConfig(library, handle, configs[i], plan)) continue;
    maker.Release();  // what the plan may look at stays
    return true;
  }
  return false;
}

void Explain(const Library& library, const char* doing, Plan* plan) {
  char last[300] = "";
  library.GetLastErrorString(last, sizeof last);
  last[sizeof last - 1] = 0;
  last[std::strcspn(last, "\n")] = 0;  // the first of what it says
  std::snprintf(plan->why, sizeof plan->why, "cuDNN has no %s this convolution%s%s", doing,
                *last ? ": " : "", last);
}

}  // namespace

void MakePlan(const Library& library, Handle handle, const Convolution& convolution, Plan* plan) {
  Graph graph(library, convolution);
  const Descriptor described = graph.Describe(handle);
  if (graph.maker().error() != kOk) return Explain(library, "graph of", plan);
  // The one that always works is no gain where a second kernel can do the rest.
  const bool is_exact = convolution.dtype == kAnyopFloat32 && !convolution.tf32;
  for (const Heuristics mode : {kBest, kFallback}) {
    if (mode == kFallback && is_exact && graph.ends()) break;
    if (!TryAll(library, handle, described, mode, convolution, plan)) continue;
    graph.maker().Release();
    return;
  }
  Explain(library, "engine for", plan);
}

int Execute(const Library& library, Handle handle, const Plan& plan, const Convolution& c,
            void* workspace) {
  constexpr int64_t kMost = 6;
  const void* const places[kMost] = {c.x, c.weight, c.y, c.scale, c.bias, c.residual};
  int64_t names[kMost];
  const void* pointers[kMost];
  int64_t count = 0;
  for (int64_t i = 0; i < kMost; ++i) {
    if (!places[i]) continue;
    names[count] = kX + i;
    pointers[count++] = places[i];
  }
  Maker maker(library);
  const Descriptor pack = maker.Make(kPack);
  maker.Set(pack, kPackNames, kInt64Type, names, count);
  maker.Set(pack, kPackPointers, kPointerType, pointers, count);
  maker.Set(pack, kPackWorkspace, kPointerType, &workspace, 1);
  maker.Finish(pack);
  return maker.error() != kOk ? maker.error() : library.BackendExecute(handle, plan.plan, pack);
}

}  // namespace anyop::cudnn
