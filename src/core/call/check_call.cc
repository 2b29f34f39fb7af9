// SPDX-License-Identifier: Apache-2.0
// All tensors of the call are copied to the host before the kernel runs, for it may write what it
// reads; what it has written is copied behind it. The CPU's kernel then gets the argument struct
// with tensors of the first copies, at addresses with the same low bits.
#include "call/check_call.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "call/scratch.h"
#include "loader.h"
#include "operator/metadata.h"
#include "router/choose/reading.h"
#include "router/report/log.h"
#include "router/router.h"
#include "tensors/compare_tensors.h"
#include "tensors/dtype.h"
#include "tensors/memory.h"
#include "threads/pool.h"

namespace anyop {
namespace {

constexpr uintptr_t kPage = 4096;

std::atomic<int64_t> num_calls{0};

// The bytes that the elements of a tensor lie in, at a place like that on the device.
class HostCopy {
 public:
  explicit HostCopy(const AnyopTensor& there) : tensor_(there) {
    const int64_t item = there.dtype_bits / 8;
    Footprint f;
    MeasureFootprint(there, item, &f);  // has been checked
    bytes_ = f.numel ? (f.end - f.low) * item : 0;
    low_ = f.low * item;
    if (bytes_) {
      memory_.reset(static_cast<char*>(std::aligned_alloc(
          kPage, (static_cast<size_t>(bytes_) + 2 * kPage - 1) / kPage * kPage)));
      if (!memory_) throw std::bad_alloc();
    }
    tensor_.device_type = 1;
    tensor_.device_id = 0;
    begin_ = memory_.get() + (bytes_ ? reinterpret_cast<uintptr_t>(Begin(there)) % kPage : 0);
    tensor_.data = bytes_ ? begin_ - low_ : nullptr;
  }

  int32_t Take(const AnyopDevice& device, const AnyopCall& call, const AnyopTensor& there) {
    if (bytes_ == 0) return kAnyopOk;
    return device.copy(call.device_id, begin_, Begin(there), bytes_, kAnyopDeviceToHost);
  }

  const AnyopTensor& tensor() const { return tensor_; }

 private:
  const char* Begin(const AnyopTensor& t) const { return static_cast<const char*>(t.data) + low_; }
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  AnyopTensor tensor_;
  std::unique_ptr<char, Free> memory_;
  char* begin_;
  int64_t bytes_, low_;
};

// A call of the CPU's kernel that is no call of the caller's.
struct CpuCall : InCall {
  Scratch scratch;
  std::string text;
};
CpuCall* Self(AnyopCall* call) {
  return static_cast<CpuCall*>(static_cast<InCall*>(call->internal));
}
void* TakeScratch(AnyopCall* call, int64_t bytes) { return Self(call)->scratch.Take(bytes); }
int32_t NoteFailure(AnyopCall* call, int32_t status, const char* message) {
  Self(call)->text = message;
  return status;
}
void RunParallel(AnyopCall*, int64_t count, int64_t grain, AnyopBody body, void* context) {
  Parallel(count, grain, body, context);
}

// One that takes every call; nullptr where the operator has none.
AnyopKernel FindCpuKernel(const std::vector<const Implementation*>& all) {
  for (const Implementation* i : all) {
    const bool compiled = i->is_own && i->form.empty() && i->device_type == 1;
    if (compiled && i->run && i->when.Always()) return i->run;
  }
  return nullptr;
}

class Check {
 public:
  Check(Frame* frame, const AnyopDevice& device, AnyopKernel kernel, AnyopCall* call)
      : frame_(frame), op_(*frame->op), device_(device), kernel_(kernel), call_(call) {}

  int32_t Run() {
    const Reading reading;
    const auto all = ListImplementations(&op_);
    const AnyopKernel cpu = FindCpuKernel(all);
    if (const char* why = WhyNot(cpu)) {
      LogFallbackOnce(op_.name + ": ANYOP_CHECK=cpu does not check it: " + why);
      return kernel_(frame_->args, call_);
    }
    for (const Implementation* i : all) {
      if (i->run == kernel_ && i->context == call_->context) name_ = i->name;
    }
    if (int32_t status = CopyAll(&before_, true)) return status;
    if (int32_t status = kernel_(frame_->args, call_)) return status;
    number_ = num_calls.fetch_add(1, std::memory_order_relaxed) + 1;
    if (int32_t status = CopyAll(&behind_, false)) return status;
    if (int32_t status = RunOnCpu(cpu)) return status;
    return Compare();
  }

 private:
  // of each tensor, in the order of parameters
  struct Copied {
    uint32_t param;
    int64_t element;  // of a list; -1
    std::unique_ptr<HostCopy> copy;
  };

  const char* WhyNot(AnyopKernel cpu) const {
    if (!cpu) return "no kernel of its for the CPU takes every call";
    if (frame_->deferred) return "its kernel makes the results";
    const bool copies = HasFunction(&device_, &AnyopDevice::copy) &&
                        HasFunction(&device_, &AnyopDevice::synchronize_stream);
    return copies ? nullptr : "the device has no copies";
  }

  bool IsWritten(uint32_t i) const { return op_.params[i].flags & (kAnyopOutput | kAnyopMutated); }

  // visit(parameter, element, tensor) for each that the kernel gets.
  template <typename Visit>
  void EachTensor(const Visit& visit) const {
    for (uint32_t i = 0; i < op_.params.size(); ++i) {
      const Param& p = op_.params[i];
      if (!p.IsTensor()) continue;
      if (p.IsList()) {
        const auto& list = frame_->Field<AnyopTensorList>(p);
        for (int64_t k = 0; k < list.count; ++k) {
          if (list.data[k].ndim >= 0) visit(i, k, list.data[k]);
        }
      } else if (const auto* tensor = frame_->Field<const AnyopTensor*>(p)) {
        visit(i, int64_t{-1}, *tensor);
      }
    }
  }

  // What lies on the device once the stream is done; all, or what is written.
  int32_t CopyAll(std::vector<Copied>* to, bool all) {
    int32_t status = device_.synchronize_stream(call_->device_id, call_->stream);
    EachTensor([&](uint32_t i, int64_t element, const AnyopTensor& there) {
      if (status || !(all || IsWritten(i))) return;
      to->push_back({i, element, std::make_unique<HostCopy>(there)});
      status = to->back().copy->Take(device_, *call_, there);
    });
    return status ? Fail(frame_, status, "ANYOP_CHECK=cpu: %s", device_.last_error()) : status;
  }

  // The argument struct with the copies; lists of them are kept in *lists.
  std::vector<char> Arguments(std::vector<std::vector<AnyopTensor>>* lists) {
    std::vector<char> args(frame_->args, frame_->args + op_.args_size);
    for (const Param& p : op_.params) {
      if (!p.IsTensor() || !p.IsList()) continue;
      const auto& list = frame_->Field<AnyopTensorList>(p);
      lists->emplace_back(list.data, list.data + list.count);
      if (list.data)
        reinterpret_cast<AnyopTensorList*>(&args[p.offset])->data = lists->back().data();
    }
    for (const Copied& copied : before_) {
      char* field = &args[op_.params[copied.param].offset];
      const AnyopTensor& mine = copied.copy->tensor();
      if (copied.element < 0) {
        *reinterpret_cast<const AnyopTensor**>(field) = &mine;
      } else {
        const auto* list = reinterpret_cast<const AnyopTensorList*>(field);
        const_cast<AnyopTensor*>(list->data)[copied.element] = mine;
      }
    }
    return args;
  }

  int32_t RunOnCpu(AnyopKernel kernel) {
    std::vector<std::vector<AnyopTensor>> lists;
    const std::vector<char> args = Arguments(&lists);
    CpuCall own{{frame_}, {}, {}};
    AnyopCall call = {};
    call.size = sizeof call;
    call.device_type = 1;
    call.workspace = TakeScratch;
    call.fail = NoteFailure;
    call.parallel = RunParallel;
    call.internal = static_cast<InCall*>(&own);
    call.choice = -1;
    const int32_t status = kernel(args.data(), &call);
    if (status == kAnyopOk) return status;
    return Fail(frame_, status, "call %lld: the CPU's kernel refuses what %s took: %s%s",
                static_cast<long long>(number_), name_.c_str(), own.text.c_str(),
                CalledWith().c_str());
  }

  int32_t Compare() {
    for (const Copied& behind : behind_) {
      const AnyopTensor& found = behind.copy->tensor();
      const AnyopTensor& expected = Before(behind).copy->tensor();
      const int dtype = AnyopDtypeOf(&expected);
      const std::string wrong = DifferenceOf(found, expected, ToleranceOf(op_, dtype, device_.name),
                                             IsFiniteAlone(op_, device_.name));
      if (wrong.empty()) continue;
      const std::string of = behind.element < 0 ? "" : "[" + std::to_string(behind.element) + "]";
      return Fail(frame_, kAnyopInternalError,
                  "call %lld: %s differs from the CPU's kernel: %s%s%s%s",
                  static_cast<long long>(number_), name_.c_str(), op_.params[behind.param].name,
                  of.c_str(), wrong.c_str(), CalledWith().c_str());
    }
    return kAnyopOk;
  }

  const Copied& Before(const Copied& behind) const {
    size_t at = 0;
    while (before_[at].param != behind.param || before_[at].element != behind.element) ++at;
    return before_[at];
  }

  // "; x float32 (8, 512), weight float32 (512)"; of long lists the first.
  std::string CalledWith() const {
    constexpr size_t kMost = 8;
    std::string text;
    for (size_t i = 0; i < before_.size() && i < kMost; ++i) {
      const AnyopTensor& t = before_[i].copy->tensor();
      text += (i ? ", " : "; ") + std::string(op_.params[before_[i].param].name) + " " +
              DtypeName(AnyopDtypeOf(&t)) + " " + SizesText(t.ndim, t.shape);
    }
    return text + (before_.size() > kMost ? ", ..." : "");
  }

  Frame* frame_;
  const Operator& op_;
  const AnyopDevice& device_;
  const AnyopKernel kernel_;
  AnyopCall* call_;
  int64_t number_ = 0;
  std::string name_ = "the kernel";
  std::vector<Copied> before_, behind_;
};

}  // namespace

int32_t RunChecked(Frame* frame, const AnyopDevice* device, AnyopKernel kernel, AnyopCall* call) {
  if (!device) return kernel(frame->args, call);
  try {
    return Check(frame, *device, kernel, call).Run();
  } catch (const std::bad_alloc&) {  // not through the device's leave
    return Fail(frame, kAnyopOutOfMemory, "ANYOP_CHECK=cpu: no memory for copies of the call");
  }
}

}  // namespace anyop
