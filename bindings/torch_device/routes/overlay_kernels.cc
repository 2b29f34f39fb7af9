// SPDX-License-Identifier: Apache-2.0
// Kernels that lie over torch's own, which they keep and call.
//
// Torch's table of kernels is read without a lock while it is changed, so a call may meet our
// function with the functor of the kernel that comes back. Each of ours therefore looks whose
// functor it got.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "device/no_warnings.h"
#include "kernels/boxed.h"
#include "routes/overlay.h"
#include "routes/signatures.h"

// Torch keeps these to itself: an explicit instantiation may name them, and one that is gone is an
// error of the compiler.
namespace c10 {
const KernelFunction& AnyopKernelOf(const SafeKernelFunction& safe);
const BoxedKernel& AnyopBoxedOf(const KernelFunction& kernel);
void* AnyopUnboxedOf(const KernelFunction& kernel, bool takes_symbols);
const intrusive_ptr<OperatorKernel>& AnyopFunctorOf(const BoxedKernel& kernel);
template <auto kKernel, auto kBoxed, auto kUnboxed, auto kSymbols, auto kFunctor>
struct AnyopReach {
  friend const KernelFunction& AnyopKernelOf(const SafeKernelFunction& safe) {
    return safe.*kKernel;
  }
  friend const BoxedKernel& AnyopBoxedOf(const KernelFunction& kernel) { return kernel.*kBoxed; }
  friend void* AnyopUnboxedOf(const KernelFunction& kernel, bool takes_symbols) {
    return takes_symbols ? kernel.*kSymbols : kernel.*kUnboxed;
  }
  friend const intrusive_ptr<OperatorKernel>& AnyopFunctorOf(const BoxedKernel& kernel) {
    return kernel.*kFunctor;
  }
};
template struct AnyopReach<&SafeKernelFunction::kernel_, &KernelFunction::boxed_kernel_func_,
                           &KernelFunction::unboxed_kernel_func_,
                           &KernelFunction::sym_unboxed_kernel_func_, &BoxedKernel::functor_>;
}  // namespace c10

namespace anyop::torch_device {
namespace {

using c10::DispatchKeySet;
using torch::jit::Stack;

std::mutex replaced_mutex;
std::map<const c10::OperatorKernel*, Overload*> replaced;  // by torch's functor

c10::OperatorKernel* FunctorOf(const c10::KernelFunction& kernel) {
  return c10::AnyopFunctorOf(c10::AnyopBoxedOf(kernel)).get();
}

// The base of our functors.
class Ours : public c10::OperatorKernel {
 public:
  explicit Ours(Overload* overload) : overload_(overload) {}

  // Torch's function and functor, where it can be called as it is.
  void Lay(void* direct, c10::OperatorKernel* functor) {
    direct_ = direct;
    functor_ = functor;
  }

 protected:
  bool IsMine(const void* own_table) const { return TableOf(this) == own_table; }
  bool IsLookedAt() const { return overload_->attention.load(std::memory_order_relaxed) != 0; }
  Overload* Get(const void* own_table) { return IsMine(own_table) ? overload_ : Replaced(this); }
  static const void* TableOf(const Ours* kernel) {
    return *reinterpret_cast<const void* const volatile*>(kernel);
  }

 private:
  [[gnu::noinline, gnu::cold]] static Overload* Replaced(const c10::OperatorKernel* functor) {
    const std::lock_guard lock(replaced_mutex);
    return replaced.at(functor);
  }

  Overload* overload_;

 protected:
  void* direct_ = nullptr;
  c10::OperatorKernel* functor_ = nullptr;
};

class OursBoxed final : public Ours {
 public:
  explicit OursBoxed(Overload* overload) : Ours(overload) { table_ = TableOf(this); }
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    Overload* overload = Get(table_);
    if (overload->attention.load(std::memory_order_relaxed)) [[unlikely]]
      return RunRouted(*overload, stack);
    overload->overlaid->original.callBoxed(op, keys, stack);
  }

 private:
  static inline const void* table_ = nullptr;
};

class RoutedKernel final : public c10::OperatorKernel {
 public:
  explicit RoutedKernel(Overload* overload) : overload_(overload) {}
  void operator()(const c10::OperatorHandle&, DispatchKeySet, Stack* stack) {
    RunRouted(*overload_, stack);
  }

 private:
  Overload* overload_;
};

template <class R, class... A>
class OursUnboxed final : public Ours {
 public:
  explicit OursUnboxed(Overload* overload) : Ours(overload) { table_ = TableOf(this); }
  R operator()(DispatchKeySet keys, A... arguments) {
    if (IsMine(table_) && this->direct_ && !IsLookedAt()) [[likely]]
      return c10::callUnboxedKernelFunction<R, A...>(this->direct_, this->functor_, keys,
                                                     std::forward<A>(arguments)...);
    return Slow(Get(table_), keys, std::forward<A>(arguments)...);
  }

 private:
  // Apart: what it needs on the stack would cost every call.
  [[gnu::noinline, gnu::cold]] static R Slow(Overload* overload, DispatchKeySet keys,
                                             A... arguments) {
    if (overload->attention.load(std::memory_order_relaxed) == 0)
      return overload->overlaid->original.template call<R, A...>(overload->op, keys,
                                                                 std::forward<A>(arguments)...);
    return c10::impl::BoxedKernelWrapper<R(A...)>::call(
        overload->overlaid->routed, overload->op, DispatchKeySet(), std::forward<A>(arguments)...);
  }

  static inline const void* table_ = nullptr;
};

struct OursMaker {
  template <class R, class... A>
  static void Make(Overload* overload, Overlaid* overlaid) {
    overload->op.typed<R(A...)>();  // throws where the types are others
    overlaid->signature = c10::impl::CppSignature::make<R(A...)>();
    overlaid->ours = c10::KernelFunction::makeFromUnboxedFunctor<false, OursUnboxed<R, A...>>(
        std::make_unique<OursUnboxed<R, A...>>(overload));
  }
};

// Whether the C++ signature has SymInt, for which torch keeps another function.
bool TakesSymbols(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.real_type()->str().find("SymInt") != std::string::npos;
  });
}

}  // namespace

void MakeKernel(Overload* overload, Overlaid* overlaid) {
  overlaid->routed = c10::BoxedKernel::makeFromFunctor(std::make_unique<RoutedKernel>(overload));
  if (!signatures::Table<OursMaker>::Get().Find(overload->op.schema(),
                                                [&](auto make) { make(overload, overlaid); }))
    overlaid->ours =
        c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<OursBoxed>(overload));
}

void LayOver(Overload* overload, Overlaid* overlaid) {
  overlaid->original =
      c10::AnyopKernelOf(overload->op.getComputedKernelForDispatchKey(overlaid->key));
  c10::OperatorKernel* functor = FunctorOf(overlaid->original);
  TORCH_CHECK_NOT_IMPLEMENTED(functor, overload->name, " has a kernel that cannot be laid over");
  {
    const std::lock_guard lock(replaced_mutex);
    replaced[functor] = overload;
  }
  if (overlaid->signature) {
    void* direct = c10::AnyopUnboxedOf(overlaid->original, TakesSymbols(overload->op.schema()));
    static_cast<Ours*>(FunctorOf(overlaid->ours))->Lay(direct, functor);
  }
  const Silence silence;
  overlaid->registered.emplace(c10::Dispatcher::singleton().registerImpl(
      overload->op.operator_name(), overlaid->key, overlaid->ours, overlaid->signature, nullptr,
      "anyop.torch.overlay"));
}

}  // namespace anyop::torch_device
