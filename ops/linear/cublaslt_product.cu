// SPDX-License-Identifier: Apache-2.0
// Describes a product to cuBLASLt, which thinks in columns: out, read by columns, is the product of
// b and a so read. An algorithm is asked for once for a kind of call.
#include <atomic>

#include "anyop/cuda/launch.h"
#include "cublaslt.h"
#include "cublaslt_product.h"
#include "outside_of_capture.h"
#include "plan_table.h"

namespace anyop::cublaslt {
namespace {

struct Plan {
  Algorithm algorithm;
  uint64_t workspace;  // bytes; kNone: there is no algorithm
};
constexpr uint64_t kNone = ~0ull;
constexpr int kChoices = 16;
constexpr uint32_t kAlignment = 16;  // bytes, of every start
using Plans = PlanTable<13, Plan>;

// A matrix as columns without steps inside, `stride` apart.
struct Columns {
  bool transposed;
  int64_t stride;
};
// rows x columns, as cuBLASLt reads it; false when it lies in no such way.
bool ReadColumns(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                 Columns* lies) {
  if ((row_stride == 1 || rows == 1) && (col_stride >= rows || cols == 1)) {
    *lies = {false, cols == 1 ? rows : col_stride};
    return true;
  }
  if ((col_stride == 1 || cols == 1) && (row_stride >= cols || rows == 1)) {
    *lies = {true, rows == 1 ? cols : row_stride};
    return true;
  }
  return false;
}

int TypeOf(AnyopDtype dtype) {
  switch (dtype) {
    case kAnyopFloat16:
      return kFloat16;
    case kAnyopBFloat16:
      return kBFloat16;
    case kAnyopFloat64:
      return kFloat64;
    case kAnyopFloat8E4M3FN:
      return kE4M3;
    default:
      return kFloat32;
  }
}

// The descriptors of one call, in memory of the stack. cuBLASLt's A is our b.
struct Described {
  const Library& library;
  const Product& product;
  Desc desc;
  Layout a, b, added, out;
  int error = kOk;

  Described(const Library& with, const Product& p, const Columns& b_lies, const Columns& a_lies)
      : library(with), product(p) {
    const bool wide = p.dtype == kAnyopFloat64;
    Note(library.MatmulDescInit_internal(&desc, sizeof desc,
                                         wide     ? kInFloat64
                                         : p.tf32 ? kInTF32
                                                  : kInFloat32,
                                         wide ? kFloat64 : kFloat32));
    if (b_lies.transposed) Set(kTransposeA, int32_t{1});
    if (a_lies.transposed) Set(kTransposeB, int32_t{1});
    if (p.epilogue != kPlain) Set(kEpilogue, p.epilogue);
    if (p.bias) Set(kBiasPointer, p.bias);
    if (p.aux) {
      Set(kAuxPointer, p.aux);
      Set(kAuxStride, p.aux_row_stride);
    }
    if (p.dtype == kAnyopFloat8E4M3FN) SetScales();
    Lay(&a, p.dtype, p.N, p.K, b_lies, p.b.batch_stride);
    Lay(&b, p.dtype, p.K, p.M, a_lies, p.a.batch_stride);
    Lay(&out, p.out_dtype, p.N, p.M, {false, p.out_row_stride}, p.out_batch_stride);
    added = out;
    if (p.added) Lay(&added, p.out_dtype, p.N, p.M, {false, p.added_row_stride}, 0);
  }

 private:
  void Note(int status) {
    if (error == kOk) error = status;
  }
  template <typename T>
  void Set(DescAttribute attribute, T value) {
    Note(library.MatmulDescSetAttribute(&desc, attribute, &value, sizeof value));
  }
  void SetScales() {
    Set(kScalePointerA, product.b_scale);
    Set(kScalePointerB, product.a_scale);
    if (product.b_scale_mode != kOfAll)
      Set(kScaleModeA, static_cast<int32_t>(product.b_scale_mode));
    if (product.a_scale_mode != kOfAll)
      Set(kScaleModeB, static_cast<int32_t>(product.a_scale_mode));
    // Sums of blocks are promoted to float32 every 128 terms whatever this says.
    if (product.a_scale_mode == kOfAll) Set(kFastSums, int8_t{1});
  }
  void Lay(Layout* layout, AnyopDtype dtype, int64_t rows, int64_t cols, const Columns& lies,
           int64_t batch_stride) {
    if (lies.transposed) std::swap(rows, cols);
    Note(library.MatrixLayoutInit_internal(layout, sizeof *layout, TypeOf(dtype),
                                           static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
                                           lies.stride));
    if (product.batch == 1) return;
    const auto count = static_cast<int32_t>(product.batch);
    Note(library.MatrixLayoutSetAttribute(layout, kBatch, &count, sizeof count));
    Note(
        library.MatrixLayoutSetAttribute(layout, kBatchStride, &batch_stride, sizeof batch_stride));
  }
};

int32_t Fail(AnyopCall* call, const Library& library, int status, const char* doing) {
  char text[200];
  std::snprintf(text, sizeof text, "cuBLASLt says %s while %s", library.GetStatusString(status),
                doing);
  return call->fail(call, kAnyopDeviceError, text);
}

// One for each device, kept for ever. Two threads may make two; the second is kept by nobody and
// costs little.
int32_t GetHandle(AnyopCall* call, const Library& library, Handle* handle) {
  constexpr int kMaxDevices = 64;
  static std::atomic<Handle> known[kMaxDevices];
  if (call->device_id < 0 || call->device_id >= kMaxDevices)
    return call->fail(call, kAnyopDeclined, "there are more than 64 devices");
  std::atomic<Handle>& place = known[call->device_id];
  *handle = place.load(std::memory_order_acquire);
  if (*handle) return kAnyopOk;
  const cuda::OutsideOfCapture mode;
  Handle made = nullptr;
  if (const int status = library.Create(&made))
    return Fail(call, library, status, "making its handle");
  *handle = place.compare_exchange_strong(*handle, made) ? made : *handle;
  return kAnyopOk;
}

// Workspace that may be asked for: what NVIDIA recommends for Hopper.
constexpr uint64_t kWorkspaceLimit = 32 << 20;

int32_t MakePlan(AnyopCall* call, Handle handle, const Described& d, int choice, Plan* plan) {
  const Library& library = d.library;
  Preference preference;
  int error = library.MatmulPreferenceInit_internal(&preference, sizeof preference);
  const auto set = [&](PreferenceAttribute attribute, auto value) {
    if (error == kOk)
      error = library.MatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value);
  };
  set(kMostWorkspace, kWorkspaceLimit);
  set(kReductions, kReduceInFloat32);
  set(kAlignmentA, kAlignment);
  set(kAlignmentB, kAlignment);
  set(kAlignmentC, kAlignment);
  set(kAlignmentD, kAlignment);
  if (error != kOk) return Fail(call, library, error, "describing a product");
  const cuda::OutsideOfCapture mode;
  Heuristic found[kChoices];
  int count = 0;
  error = library.MatmulAlgoGetHeuristic(handle, &d.desc, &d.a, &d.b, &d.added, &d.out, &preference,
                                         choice < 0 ? 1 : kChoices, found, &count);
  if (error != kOk || count == 0) {
    plan->workspace = kNone;
    return kAnyopOk;
  }
  const Heuristic& best = found[choice < 0 ? 0 : choice % count];
  *plan = {best.algorithm, best.workspace};
  return kAnyopOk;
}

Plans::Key KeyOf(const AnyopCall* call, const Product& p, const Columns& b, const Columns& a,
                 int choice) {
  const uint64_t flags = uint64_t{a.transposed} | uint64_t{b.transposed} << 1 |
                         uint64_t{p.added != nullptr} << 2 | uint64_t{p.added == p.out} << 3 |
                         uint64_t{p.tf32} << 4 | uint64_t{p.bias != nullptr} << 5 |
                         uint64_t{p.a_scale_mode == kOf128} << 6;
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  return {{u(call->device_id) | u(p.dtype) << 8 | u(p.out_dtype) << 16 | flags << 24 |
               uint64_t{p.epilogue} << 32 | u(choice + 1) << 48,
           u(p.M), u(p.N), u(p.K), u(p.batch), u(a.stride), u(b.stride), u(p.out_row_stride),
           u(p.a.batch_stride), u(p.b.batch_stride), u(p.out_batch_stride), u(p.aux_row_stride),
           u(p.added_row_stride)}};
}

int32_t Start(AnyopCall* call, Handle handle, const Described& d, const Plan& plan) {
  constexpr uintptr_t kAligned = 256;
  const Product& p = d.product;
  char* workspace = nullptr;
  if (plan.workspace) {
    workspace = static_cast<char*>(
        call->workspace(call, static_cast<int64_t>(plan.workspace + kAligned - 64)));
    if (!workspace) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    workspace += (kAligned - reinterpret_cast<uintptr_t>(workspace) % kAligned) % kAligned;
  }
  const float one = 1, beta = p.added ? 1 : 0;
  const double wide_one = 1, wide_beta = p.added ? 1 : 0;
  const bool wide = p.dtype == kAnyopFloat64;
  const int status = d.library.Matmul(
      handle, &d.desc, wide ? static_cast<const void*>(&wide_one) : &one, p.b.data, &d.a, p.a.data,
      &d.b, wide ? static_cast<const void*>(&wide_beta) : &beta, p.added ? p.added : p.out,
      &d.added, p.out, &d.out, &plan.algorithm, workspace, plan.workspace, call->stream);
  return status == kOk ? kAnyopOk : Fail(call, d.library, status, "starting a product");
}

}  // namespace

int32_t Multiply(AnyopCall* call, const Product& p, bool* taken) {
  static Plans plans;
  const Library* library;
  *taken = false;
  if (const int32_t status = GetLibrary(call, &library)) return status;
  Columns a, b;
  constexpr int64_t kMost = 0x7fffffff;
  if (p.M > kMost || p.N > kMost || p.K > kMost || p.batch > kMost ||
      !ReadColumns(p.N, p.K, p.b.col_stride, p.b.row_stride, &b) ||
      !ReadColumns(p.K, p.M, p.a.col_stride, p.a.row_stride, &a))
    return kAnyopOk;
  Handle handle;
  if (const int32_t status = GetHandle(call, *library, &handle)) return status;
  const Described described(*library, p, b, a);
  if (described.error != kOk) return Fail(call, *library, described.error, "describing a product");
  const int choice = AnyopChoice(call);
  const Plans::Key key = KeyOf(call, p, b, a, choice);
  Plan plan;
  if (!plans.Find(key, &plan)) {
    if (const int32_t status = MakePlan(call, handle, described, choice, &plan)) return status;
    plans.Keep(key, plan);
  }
  if (plan.workspace == kNone) return kAnyopOk;
  *taken = true;
  return Start(call, handle, described, plan);
}

}  // namespace anyop::cublaslt
