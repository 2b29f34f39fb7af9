// SPDX-License-Identifier: Apache-2.0
// The one generic call: check what was given, compute and make results, route, run. Nothing is
// thrown out of here.
#include "call/call.h"

#include <cxxabi.h>

#include <cstdio>
#include <exception>
#include <new>
#include <optional>

#include "call/deferred.h"
#include "call/device_call.h"
#include "call/held.h"
#include "call/scratch.h"
#include "operator/dtype_rule.h"
#include "operator/sizes.h"
#include "router/choose/choose.h"
#include "router/choose/device_below.h"
#include "tensors/broadcast.h"
#include "tensors/copies.h"
#include "tensors/dtype.h"
#include "tensors/memory.h"
#include "threads/pool.h"

namespace anyop {
namespace {

// A kernel that moves less than this is done before another thread could take the caller's lock.
constexpr uint64_t kManyBytes = uint64_t{1} << 20;

// Fails with a message that ends in the element of the list, when the tensor is in one.
#define ANYOP_FAIL(status, ...)          \
  do {                                   \
    Fail(frame_, status, __VA_ARGS__);   \
    return NameElement(element, status); \
  } while (0)

class Call : InCall {
 public:
  explicit Call(Frame* frame)
      : InCall{frame},
        op_(*frame->op),
        sizes_(frame->op, &frame->arena, frame->args, dtypes_),
        spans_(&frame->arena) {}

  int32_t Run() {
    if (int32_t status = CheckConditions(op_.of_texts)) return status;
    if (int32_t status = CheckInputs()) return status;
    if (int32_t status = CheckConditions(op_.conditions)) return status;
    if (int32_t status = CheckOutputs()) return status;
    if (int32_t status = CheckOverlap()) return status;
    if (int32_t status = FillSizes()) return status;
    if (int32_t status = op_.has_views ? MakeViews() : kAnyopOk) return status;
    return RunKernel();
  }

 private:
  // ---- inputs ----

  int32_t CheckInputs() {
    for (int i = op_.num_sizes; i < op_.num_symbols; ++i) {
      const Param& p = op_.params[op_.table->attributes[i - op_.num_sizes]];
      sizes_.SetSymbol(i, frame_->Field<int64_t>(p));
    }
    std::memset(dtypes_, kAnyopNoDtype, sizeof dtypes_);
    for (uint64_t bits = op_.checked; bits; bits &= bits - 1) {
      const auto i = static_cast<uint32_t>(__builtin_ctzll(bits));
      const Param& p = op_.params[i];
      if (!p.IsTensor()) {
        if (int32_t status = CheckAttribute(p)) return status;
        continue;
      }
      if (p.IsList() || !(frame_->given >> i & 1)) continue;
      AnyopTensor* tensor = &frame_->tensors[i];
      frame_->Field<AnyopTensor*>(p) = tensor;
      if (int32_t status = CheckGiven(i, p, tensor, -1)) return status;
    }
    if (int32_t status = op_.has_lists ? CheckLists() : kAnyopOk) return status;
    const int join = op_.joins.empty() ? -1 : sizes_.JoinGroups();
    return join < 0 ? kAnyopOk : FailJoin(frame_, join);
  }

  // The value of a ScalarType argument for which the schema lists what is allowed.
  int32_t CheckAttribute(const Param& p) {
    if (p.Is(kAnyopOptional) && !p.IsList() && !frame_->Field<AnyopOptionalInt>(p).has)
      return kAnyopOk;
    const auto one = AnyopIntList{&frame_->Field<int64_t>(p), 1};
    const AnyopIntList values = p.IsList() ? frame_->Field<AnyopIntList>(p) : one;
    for (int64_t i = 0; i < values.count; ++i) {
      const int64_t dtype = values.data[i];
      if (dtype >= 0 && dtype < kAnyopNumDtypes && (p.dtype_set >> dtype & 1)) continue;
      return Fail(frame_, kAnyopTypeError, "%s is %s, expected %s", p.name,
                  DtypeName(static_cast<int>(dtype)), DtypeSetText(p.dtype_set).c_str());
    }
    return kAnyopOk;
  }

  int32_t CheckLists() {
    if (__builtin_expect(frame_->held != nullptr, 0)) {
      fits_held_ = HeldLists(frame_, op_).Fit();
      if (fits_held_) return TakeOver(*frame_->held);
    }
    int64_t longest = 0;
    for (uint32_t i = 0; i < op_.num_inputs; ++i) {
      const Param& p = op_.params[i];
      if (!p.IsTensor() || !p.IsList() || !(frame_->given >> i & 1)) continue;
      const int64_t count = frame_->Field<AnyopTensorList>(p).count;
      if (p.length >= 0 && !sizes_.MatchSymbol(p.length, count)) {
        return Fail(frame_, kAnyopValueError, "%s has %lld tensors, expected %lld", p.name,
                    (long long)count, (long long)sizes_.Symbol(p.length));
      }
      longest = count > longest ? count : longest;
    }
    for (int64_t element = 0; element < longest; ++element) {
      sizes_.ForgetElement();
      for (uint32_t i = 0; i < op_.num_inputs; ++i) {
        const Param& p = op_.params[i];
        if (!p.IsTensor() || !p.IsList() || !(frame_->given >> i & 1)) continue;
        const AnyopTensorList& list = frame_->Field<AnyopTensorList>(p);
        auto* tensor = const_cast<AnyopTensor*>(&list.data[element]);
        if (element >= list.count) continue;
        if (tensor->ndim < 0 && p.Is(kAnyopOptionalElements)) continue;  // None in a Tensor?[]
        const int before = dtypes_[i];
        if (int32_t status = CheckGiven(i, p, tensor, element)) return status;
        if (p.layout == kAnyopDense) {
          const std::string problem = OrderProblem(op_, frame_->args, frame_->given, i, element);
          if (!problem.empty()) ANYOP_FAIL(kAnyopValueError, "%s %s", p.name, problem.c_str());
        }
        if (p.alike && element > 0 && dtypes_[i] != before) {
          ANYOP_FAIL(kAnyopTypeError, "%s has dtype %s, expected %s as the others", p.name,
                     DtypeName(dtypes_[i]), DtypeName(before));
        }
      }
    }
    return kAnyopOk;
  }

  // Everything that is asked of one tensor. element: its place in a list, or -1.
  int32_t CheckGiven(uint32_t i, const Param& p, AnyopTensor* t, int64_t element) {
    if (__builtin_expect(static_cast<uint32_t>(t->ndim) > kMaxRank, 0)) {
      ANYOP_FAIL(kAnyopValueError, "%s has %d dimensions, expected at most %d", p.name, t->ndim,
                 kMaxRank);
    }
    if (__builtin_expect(!t->shape && t->ndim, 0))
      ANYOP_FAIL(kAnyopValueError, "%s has %d dimensions and no sizes", p.name, t->ndim);
    if (!first_) first_ = t;
    if (__builtin_expect(t->device_type != first_->device_type || t->device_id != first_->device_id,
                         0)) {
      ANYOP_FAIL(kAnyopValueError, "%s is on device %s:%d, expected %s:%d as the tensors before it",
                 p.name, DeviceName(t->device_type).c_str(), t->device_id,
                 DeviceName(first_->device_type).c_str(), first_->device_id);
    }
    if (int32_t status = CheckDtype(i, p, *t, element)) return status;
    if (!t->strides && t->ndim) {
      t->strides = frame_->arena.Take<int64_t>(t->ndim);
      FillStrides(t->ndim, t->shape, t->strides);
    }
    if (__builtin_expect(!sizes_.Match(p.shape, t->ndim, t->shape), 0)) {
      ANYOP_FAIL(kAnyopValueError, "%s has shape %s, expected (%s)%s", p.name,
                 SizesText(t->ndim, t->shape).c_str(), p.shape_text,
                 sizes_.KnownText(p.shape).c_str());
    }
    return CheckMemory(i, p, t, element);
  }

  DtypeRules Rules() { return {frame_, dtypes_}; }

  int32_t CheckDtype(uint32_t i, const Param& p, const AnyopTensor& t, int64_t element) {
    const int dtype = t.dtype_lanes == 1 ? AnyopDtypeOf(&t) : kAnyopNoDtype;
    dtypes_[i] = static_cast<uint8_t>(dtype);  // of a list: of the element that is being checked
    if (__builtin_expect(Rules().Fits(p, dtype), 1)) return kAnyopOk;
    ANYOP_FAIL(kAnyopTypeError, "%s has dtype %s, expected %s", p.name, DtypeName(dtype),
               Rules().ExpectedText(p).c_str());
  }

  int32_t CheckMemory(uint32_t i, const Param& p, AnyopTensor* t, int64_t element) {
    if (__builtin_expect(t->byte_offset != 0, 0)) {
      if (t->data) t->data = static_cast<char*>(t->data) + t->byte_offset;
      t->byte_offset = 0;
    }
    const int64_t item = t->dtype_bits / 8;
    Footprint f;
    const Extent extent = MeasureFootprint(*t, item, &f);
    if (__builtin_expect(extent == Extent::kNegativeSize, 0)) {
      ANYOP_FAIL(kAnyopValueError, "%s has shape %s, expected no negative size", p.name,
                 SizesText(t->ndim, t->shape).c_str());
    }
    if (__builtin_expect(extent == Extent::kOverflow, 0)) {
      ANYOP_FAIL(kAnyopValueError, "%s has shape %s: its size in bytes overflows 64 bits", p.name,
                 SizesText(t->ndim, t->shape).c_str());
    }
    const bool writes = p.flags & (kAnyopOutput | kAnyopMutated);
    if (f.numel == 0) {
      writes_nothing_ |= writes;
      return kAnyopOk;
    }
    if (__builtin_expect(!t->data, 0)) {
      ANYOP_FAIL(kAnyopValueError, "%s has no storage, expected %lld elements in memory", p.name,
                 (long long)f.numel);
    }
    const auto at = reinterpret_cast<uintptr_t>(t->data);
    const uintptr_t begin = at + static_cast<uintptr_t>(f.low * item),
                    end = at + static_cast<uintptr_t>(f.end * item);
    int align_log2 = p.align_log2;
    if (__builtin_expect(!f.dense, 0)) {
      if (static_cast<intptr_t>(begin | end) < 0) {
        ANYOP_FAIL(kAnyopValueError, "%s has sizes %s and strides %s: it reaches beyond all memory",
                   p.name, SizesText(t->ndim, t->shape).c_str(),
                   SizesText(t->ndim, t->strides).c_str());
      }
      if (int32_t status = CheckLayout(i, p, *t, writes, element)) return status;
      if (p.Is(kAnyopCopied) && !FitsLayout(p, *t)) align_log2 = 0;  // the copy is aligned
    }
    const uintptr_t alignment =
        align_log2 ? uintptr_t{1} << align_log2 : static_cast<uintptr_t>(item > 8 ? 8 : item);
    if (__builtin_expect((at & (alignment - 1)) != 0, 0)) {
      ANYOP_FAIL(kAnyopValueError, "%s lies at an address that is no multiple of %d bytes", p.name,
                 (int)alignment);
    }
    touched_bytes_ += static_cast<uint64_t>(f.numel * item);
    checks_overlap_ |= writes;
    spans_.Add({begin, end, t, static_cast<uint16_t>(i), writes});
    return kAnyopOk;
  }

  int32_t CheckLayout(uint32_t i, const Param& p, const AnyopTensor& t, bool writes,
                      int64_t element) {
    if (!FitsLayout(p, t)) {
      if (p.Is(kAnyopCopied) && RunsOnCpu(op_, t.device_type)) {
        copied_ |= uint64_t{1} << i;
        return kAnyopOk;
      }
      ANYOP_FAIL(kAnyopValueError, "%s %s", p.name, LayoutProblem(p, t).c_str());
    }
    if (writes && OverlapsItself(t)) {
      ANYOP_FAIL(kAnyopValueError,
                 "%s has sizes %s and strides %s: its elements overlap, so it cannot be written",
                 p.name, SizesText(t.ndim, t.shape).c_str(), SizesText(t.ndim, t.strides).c_str());
    }
    return kAnyopOk;
  }

  int32_t NameElement(int64_t element, int32_t status) {
    if (element < 0) return status;
    const size_t n = std::strlen(frame_->error);
    std::snprintf(frame_->error + n, sizeof frame_->error - n, " [element %lld]",
                  (long long)element);
    return status;
  }

  int32_t CheckConditions(const std::vector<Condition>& conditions) {
    const Condition* broken = sizes_.FindBroken(conditions);
    if (!broken) return kAnyopOk;
    return Fail(frame_, kAnyopValueError, "expected %s%s", broken->text,
                sizes_.KnownText(broken->program).c_str());
  }

  // ---- results ----

  int32_t CheckOutputs() {
    const uint32_t end = op_.num_inputs + op_.num_outputs;
    for (uint32_t i = op_.num_inputs; i < end; ++i) {
      const Param& p = op_.params[i];
      if (frame_->unwanted >> i & 1) continue;
      AnyopTensor* tensor = &frame_->tensors[i];
      frame_->Field<AnyopTensor*>(p) = tensor;
      const bool given = frame_->given >> i & 1;
      if (int32_t status = given ? CheckGiven(i, p, tensor, -1) : Allocate(i, p, tensor))
        return status;
    }
    return kAnyopOk;
  }

  int32_t Allocate(uint32_t i, const Param& p, AnyopTensor* t) {
    if (!first_)
      return Fail(frame_, kAnyopValueError, "expected at least one tensor, or a place for %s",
                  p.name);
    int64_t* shape = frame_->arena.Take<int64_t>(kMaxRank);
    const int ndim = sizes_.Build(p.shape, shape);
    if (ndim < 0) {
      return Fail(frame_, kAnyopValueError, "the shape (%s) of %s has no value%s", p.shape_text,
                  p.name, sizes_.KnownText(p.shape).c_str());
    }
    const int dtype = Rules().Result(p);
    if (dtype >= kAnyopNumDtypes) {
      return Fail(frame_, kAnyopTypeError, "%s has no dtype: expected %s", p.name,
                  Rules().ExpectedText(p).c_str());
    }
    dtypes_[i] = static_cast<uint8_t>(dtype);
    const DlpackType type = DlpackTypeOf(dtype);
    *t = *first_;
    t->data = nullptr, t->byte_offset = 0;
    t->ndim = ndim, t->shape = shape, t->strides = frame_->arena.Take<int64_t>(ndim);
    t->dtype_code = type.code, t->dtype_bits = type.bits, t->dtype_lanes = 1;
    FillStrides(ndim, shape, t->strides);
    Footprint f;
    if (MeasureFootprint(*t, type.bits / 8, &f) != Extent::kFits) {
      return Fail(frame_, kAnyopValueError,
                  "%s would have shape %s: its size in bytes overflows 64 bits", p.name,
                  SizesText(ndim, shape).c_str());
    }
    touched_bytes_ += static_cast<uint64_t>(f.numel * (type.bits / 8));
    (f.numel ? makes_elements_ : writes_nothing_) = true;
    if (frame_->explanation) return kAnyopOk;
    if (frame_->take_result && Defer(frame_, i, first_->device_type)) return kAnyopOk;
    return frame_->allocate(frame_, i - op_.num_inputs, t);
  }

  int32_t CheckOverlap() {
    if (__builtin_expect(frame_->held != nullptr, 0)) return CheckHeldOverlap(frame_->held);
    return CheckOverlap(op_.last_order);
  }

  int32_t CheckOverlap(const LastOrder& last) {
    const Span *written, *other;
    if (!checks_overlap_ || !spans_.FindOverlap(op_, frame_->args, last, &written, &other))
      return kAnyopOk;
    return Fail(frame_, kAnyopValueError, "%s",
                OverlapText(op_, frame_->args, *written, *other).c_str());
  }

  // ---- handles ----

  int32_t TakeOver(const Held& held) {
    HeldLists(frame_, op_).Bind(&sizes_, dtypes_, &first_);
    touched_bytes_ += held.touched_bytes;
    checks_overlap_ |= held.checks_overlap;
    writes_nothing_ |= held.writes_nothing;
    return kAnyopOk;
  }

  int32_t CheckHeldOverlap(Held* held) {
    HeldLists lists(frame_, op_);
    if (fits_held_ && !held->has_moved && lists.AreApartFrom(spans_)) return lists.Keep(spans_);
    if (fits_held_) lists.AddTo(&spans_);
    if (int32_t status = CheckOverlap(held->order)) return status;
    if (!fits_held_) lists.KeepAll();
    return lists.Keep(spans_);
  }

  // ---- kernel ----

  int32_t FillSizes() {
    auto* sizes = reinterpret_cast<int64_t*>(frame_->args + op_.sizes_offset);
    for (int i = 0; i < op_.num_sizes; ++i) *sizes++ = sizes_.Symbol(i);
    const int groups = op_.num_groups + static_cast<int>(op_.joins.size());
    for (int g = 0; g < groups; ++g) {
      // Groups of given tensors fit already; broadcasting can make a product that does not.
      if (!sizes_.Numel(g, sizes++))
        return Fail(frame_, kAnyopValueError, "the broadcast shape overflows 64 bits");
    }
    return kAnyopOk;
  }

  int32_t MakeViews() {
    const int32_t status = copied_ ? CopyInputs() : kAnyopOk;
    if (!status && op_.has_expanded) Expand(frame_, sizes_);
    return status;
  }

  int32_t CopyInputs() {
    Copies copies(frame_, &scratch_);
    return copies.Make(copied_, *first_, touched_bytes_ >= kManyBytes);
  }

  // What the route says for every call on this kind of device, or the choice of this one.
  int32_t FindKernel(int device_type, Ready* ready, int* runs_as) {
    if (__builtin_expect(device_type < 0 || device_type >= kMaxDeviceTypes, 0))
      return Fail(frame_, kAnyopNotImplemented, "has no kernel for %s",
                  DeviceName(device_type).c_str());
    const Shortcut* shortcut = op_.shortcut.load(std::memory_order_acquire);
    *ready = shortcut->ready[device_type];
    if (__builtin_expect(ready->run && !frame_->scope && !frame_->explanation, 1)) {
      *runs_as =
          __builtin_expect(device_type == kFrameworkDevice, 0) ? shortcut->runs_as : device_type;
      return kAnyopOk;
    }
    return ChooseNow(ready, runs_as);
  }

  int32_t ChooseNow(Ready* ready, int* runs_as) {
    if (!reading_) reading_.emplace();
    const int type = first_ ? first_->device_type : 1, id = first_ ? first_->device_id : 0;
    return Choose(frame_, {frame_, &sizes_, dtypes_, copied_, type, id, declined_}, ready, runs_as);
  }

  int32_t RunKernel() {
    Ready ready;
    int runs_as;
    const int32_t status = FindKernel(first_ ? first_->device_type : 1, &ready, &runs_as);
    return status || frame_->explanation ? status : RunReady(ready, runs_as);
  }

  int32_t RunReady(const Ready& ready, int runs_as) {
    const int device_type = first_ ? first_->device_type : 1;
    const bool is_long = device_type != 1 || touched_bytes_ >= kManyBytes;
    if (__builtin_expect(is_long || ready.context || frame_->deferred, 0)) {
      const bool lends = op_.has_views || checks_overlap_;
      if (int32_t failed = Prepare(frame_, ready, is_long, lends, runs_as == 1)) return failed;
    }
    auto* base = reinterpret_cast<AnyopArgs*>(frame_->args);
    base->size = op_.args_size;
    base->version = ANYOP_ABI_VERSION;
    AnyopCall call = {sizeof(AnyopCall),
                      runs_as,
                      first_ ? first_->device_id : 0,
                      0,
                      frame_->stream,
                      TakeScratch,
                      FailCall,
                      RunParallel,
                      static_cast<InCall*>(this),
                      ready.context,
                      static_cast<int32_t>(ready.choice),
                      0};
    if (__builtin_expect(device_type != 1, 0)) {
      const int32_t status = RunOnDevice(frame_, *first_, ready.run, &call);
      return status == kAnyopOk ? status : CheckKernelStatus(status, ready);
    }
    const bool unlock = is_long && frame_->before_kernel;
    if (unlock) frame_->before_kernel(frame_);
    int32_t status;
    try {
      status = ready.run(frame_->args, &call);
    } catch (...) {
      if (unlock) frame_->after_kernel(frame_);
      throw;
    }
    if (unlock) frame_->after_kernel(frame_);
    return __builtin_expect(status != kAnyopOk, 0) ? CheckKernelStatus(status, ready) : kAnyopOk;
  }

  __attribute__((cold)) int32_t CheckKernelStatus(int32_t status, Ready ready) {
    if (status != kAnyopDeclined) return KernelFailure(frame_, status);
    const Declined mine(frame_, ready, reading_.has_value(), declined_);
    declined_ = &mine;
    int runs_as;
    const int32_t failed = ChooseNow(&ready, &runs_as);
    return failed ? failed : RunReady(ready, runs_as);
  }

  static Call* Self(AnyopCall* call) {
    return static_cast<Call*>(static_cast<InCall*>(call->internal));
  }
  static void* TakeScratch(AnyopCall* call, int64_t bytes) {
    return Self(call)->scratch_.Take(bytes);
  }
  static int32_t FailCall(AnyopCall* call, int32_t status, const char* message) {
    return Fail(Self(call)->frame_, status, "%s", message);
  }
  // Where all that is written is empty, more pieces than elements are of nothing: not run through.
  static void RunParallel(AnyopCall* call, int64_t count, int64_t grain, AnyopBody body,
                          void* context) {
    const Call& self = *Self(call);
    const bool is_empty = self.writes_nothing_ && !self.checks_overlap_ && !self.makes_elements_;
    if (is_empty && static_cast<uint64_t>(count) > self.touched_bytes_) return;
    Parallel(count, grain, body, context);
  }

  const Operator& op_;
  Sizes sizes_;
  Spans spans_;
  Scratch scratch_;
  std::optional<Reading> reading_;  // of what was chosen, until it has run
  const AnyopTensor* first_ = nullptr;
  uint64_t touched_bytes_ = 0;
  uint64_t copied_ = 0;  // parameters of which a tensor is
  bool fits_held_ = false;
  bool checks_overlap_ = false;  // elements that were given are written
  bool makes_elements_ = false;
  bool writes_nothing_ = false;  // a tensor that is written has no elements
  const Declined* declined_ = nullptr;
  uint8_t dtypes_[kMaxParams];
};

}  // namespace
}  // namespace anyop

int32_t AnyopRunFrame(anyop::Frame* frame) {
  try {
    return anyop::Call(frame).Run();
  } catch (const std::bad_alloc&) {
    return anyop::Fail(frame, kAnyopOutOfMemory, "out of memory");
  } catch (const std::exception& error) {  // of a kernel
    return anyop::Fail(frame, kAnyopInternalError, "%s", error.what());
  } catch (abi::__forced_unwind&) {
    throw;  // the thread ends
  } catch (...) {
    return anyop::Fail(frame, kAnyopInternalError, "an exception of unknown kind was thrown");
  }
}
