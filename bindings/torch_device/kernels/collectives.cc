// SPDX-License-Identifier: Apache-2.0
// Collectives on tensors of the device: process groups get tensors of the inner device over the
// same bytes, so that gloo, NCCL and what else carries those carries these, without a copy.
//
// ProcessGroup's functions come through the dispatcher. Torch's kernel for the device asks the
// group for its backend of the device and hands it the tensors; ours lends them first, then calls
// torch's. Work outlives the call, and so does what is lent.
#include "kernels/collectives.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/library.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device/lent_storage.h"
#include "device/no_warnings.h"
#include "platform/platform.h"

namespace anyop::torch_device {
namespace {

using at::Tensor;
using c10::IValue;
using Tensors = c10::List<Tensor>;
using TensorLists = c10::List<Tensors>;

Tensor Over(c10::Storage storage, c10::DispatchKeySet keys, const Tensor& like) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return Tensor(std::move(impl));
}

Tensor Lend(const Tensor& tensor, DeviceIndex* index) {
  if (!tensor.defined()) return tensor;
  TORCH_CHECK(tensor.is_privateuseone(), "a collective takes tensors of one device, found some of ",
              kOuter, " and ", tensor.device());
  *index = tensor.device().index();
  platform->Drain(*index);
  c10::intrusive_ptr<c10::StorageImpl> storage =
      c10::make_intrusive<LentStorage>(tensor.storage(), platform->Inner(*index));
  return Over(c10::Storage(std::move(storage)), platform->inner_keys, tensor);
}

// What was lent, or a part of it, as a tensor of the device.
Tensor TakeBack(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return tensor;
  const auto* lent = dynamic_cast<LentStorage*>(tensor.storage().unsafeGetStorageImpl());
  if (!lent) return tensor;
  return Over(lent->outer, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor);
}

// The value with each tensor in it replaced.
template <typename Replace>
IValue Map(const IValue& value, const Replace& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    Tensors list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (!value.isList() || !value.toListRef().size() || !value.toListRef()[0].isTensorList())
    return value;
  TensorLists lists;
  for (const IValue& list : value.toListRef()) lists.push_back(Map(list, replace).toTensorList());
  return lists;
}

// The backend's work, whose results are tensors of the device.
class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> inner, DeviceIndex index)
      : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), index_(index) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  void synchronize() override { inner_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override { return inner_->wait(timeout); }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
  std::vector<Tensor> result() override {
    std::vector<Tensor> tensors = inner_->result();
    for (Tensor& tensor : tensors) tensor = TakeBack(tensor);
    return tensors;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto inner = inner_->getFuture();
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(inner->elementType(), std::vector{Outer(index_)});
    inner->addCallback([future](c10::ivalue::Future& done) {
      if (done.hasError()) {
        future->setError(done.exception_ptr());
      } else {
        future->markCompleted(Map(done.constValue(), TakeBack));
      }
    });
    return future;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const DeviceIndex index_;
};

void CheckBackend(const IValue& value) {
  const auto devices = value.toCustomClass<c10d::ProcessGroup>()->getDeviceTypes();
  std::string found;
  for (const c10::Device& device : devices) {
    if (device.type() == kOuter) return;
    found += (found.empty() ? "" : ", ") + c10::DeviceTypeName(device.type(), true);
  }
  if (devices.empty()) return;  // a group that is a backend itself
  const auto name = c10::DeviceTypeName(kOuter, /*lower_case=*/true);
  const char* backend = platform->inner == c10::DeviceType::CPU ? ":gloo" : ":nccl";
  TORCH_CHECK(false, "the process group has backends for ", found, ", none for ", name,
              "; make one that has, such as init_process_group(\"cpu:gloo,", name, backend, "\")");
}

class Collective final : public c10::OperatorKernel {
 public:
  explicit Collective(const c10::OperatorHandle& op)
      : kernel_(op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    const size_t base = stack->size() - op.schema().arguments().size();
    const IValue first = (*stack)[base];  // a result as well, where there is one beside the work
    DeviceIndex index = 0;
    for (size_t i = base; i < stack->size(); ++i) {
      IValue& value = (*stack)[i];
      if (value.isCustomClass() && IsGroup(op.schema().arguments()[i - base])) CheckBackend(value);
      value = Map(value, [&](const Tensor& tensor) { return Lend(tensor, &index); });
    }
    kernel_.callBoxed(op, keys, stack);
    const size_t results = op.schema().returns().size();
    if (results == 2) (*stack)[base] = first;
    if (results == 0 || !stack->back().isCustomClass()) return;
    auto work = stack->back().toCustomClass<c10d::Work>();
    if (work)
      stack->back() = IValue(
          c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<DeviceWork>(std::move(work), index)));
  }

 private:
  static bool IsGroup(const c10::Argument& argument) { return argument.name() == "process_group"; }

  c10::SafeKernelFunction kernel_;
};

}  // namespace

void RegisterCollectives() {
  if (!platform->boxed) return;  // its bytes are no other device's; its vendor brings a backend
  static auto* library = new torch::Library(torch::Library::IMPL, "c10d",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  const Silence silence;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("c10d::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    library->impl(name.name.c_str(),
                  torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Collective>(*op)));
  }
}

}  // namespace anyop::torch_device

#else  // this torch has no process groups
namespace anyop::torch_device {
void RegisterCollectives() {}
}  // namespace anyop::torch_device
#endif
