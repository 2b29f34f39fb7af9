// SPDX-License-Identifier: Apache-2.0
// Threads that use the PyTorch device at once, without Python, to be compiled with
// -fsanitize=thread: shared weights, streams, memory that passes between threads, random numbers,
// backward, and routes and an overlay that change meanwhile. Arguments: the device's library, and a
// platform (host).
#include <ATen/Parallel.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr int kThreads = 4;
std::atomic<int64_t> wrong{0};

void Expect(bool good, const char* what) {
  if (good) return;
  ++wrong;
  std::fprintf(stderr, "wrong: %s\n", what);
}

// An operator of the device's library.
c10::IValue Control(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("anyop_device::") + name).c_str(), "")
      .callBoxed(&stack);
  return stack.empty() ? c10::IValue() : stack[0];
}

at::Tensor There(const at::Tensor& tensor, int index = 0) {
  return tensor.to(c10::Device(kDevice, static_cast<c10::DeviceIndex>(index)));
}

void Together(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

// 12,000 in all, while their route changes.
void Products() {
  std::vector<at::Tensor> weights, expected;
  const at::Tensor ones = There(at::ones({4, 16}));
  for (int i = 0; i < 4; ++i) {
    weights.push_back(There(at::randn({16, 16})));
    expected.push_back(at::mm(ones, weights.back()));
  }
  std::atomic<int> left{kThreads};
  Together(kThreads + 1, [&](int number) {
    for (int i = 0; number == kThreads && left > 0; ++i) {
      Control("set_route", {"add.Tensor", i % 2 ? "native, boxed" : ""});
      Control("count_calls", {i % 3 == 0});
    }
    for (int i = 0; number < kThreads && i < 3000; ++i) {
      const at::Tensor found = at::mm(ones, weights[i % 4]);
      const bool right = found.is_privateuseone() && weights[i % 4].is_privateuseone();
      if (!right || !at::equal(found, expected[i % 4])) Expect(false, "a product");
      if (i % 8 == 0) at::add(found, found);
    }
    left -= number < kThreads;
  });
}

void Streams() {
  const at::Tensor before = at::ones({1 << 18}).pin_memory();  // holds a stream up
  Together(kThreads, [](int number) {
    const c10::Device device(kDevice, static_cast<c10::DeviceIndex>(number % 2));
    const c10::OptionalDeviceGuard guard(device);
    const c10::impl::VirtualGuardImpl impl(kDevice);
    const c10::Stream other = impl.getStreamFromGlobalPool(device);
    for (int i = 0; i < 100; ++i) {
      c10::Event done(kDevice);
      at::Tensor x = at::zeros({500}, at::device(device));
      {
        const c10::StreamGuard on(impl.getStreamFromGlobalPool(device));
        const at::Tensor source = at::full({500}, number).pin_memory();
        at::zeros({1 << 18}, at::device(device)).copy_(before, /*non_blocking=*/true);
        x.copy_(source, /*non_blocking=*/true);
        done.record(impl.getStream(device));
      }
      const c10::StreamGuard on(other);
      done.block(other);
      Expect(at::all(at::eq((x * 2).cpu(), 2 * number)).item<bool>(), "a copy on a stream");
    }
  });
}

// What one thread makes dies in another.
void Memory() {
  std::mutex mutex;
  std::queue<at::Tensor> passed;
  Together(kThreads, [&](int number) {
    for (int i = 0; i < 2000; ++i) {
      at::Tensor made = There(at::full({1 + (i * 37 + number) % 900}, number), number % 2);
      const std::lock_guard lock(mutex);
      passed.push(made);
      if (passed.size() > 20) passed.pop();
      if (i % 100 == 0) Control("memory_stats", {number % 2});
      if (i % 500 == 0) Control("empty_cache", {});
    }
  });
}

void RandomNumbers() {
  Together(kThreads, [](int) {
    for (int i = 0; i < 200; ++i) {
      const at::Tensor found = at::rand({64}, at::device(kDevice));
      Expect(at::all(at::logical_and(found >= 0, found < 1)).item<bool>(), "a random number");
      if (i % 50 == 0) Control("manual_seed", {0, i});
    }
  });
}

void Backward() {
  const at::Tensor x = There(at::ones({8, 8}));
  Together(kThreads, [&](int) {
    at::Tensor w = There(at::ones({8, 8})).requires_grad_();
    for (int i = 0; i < 50; ++i) at::mm(x, w).sum().backward();
    Expect(at::all(at::eq(w.grad().cpu(), 400)).item<bool>(), "a gradient");
  });
}

// Calls on the CPU while an overlay comes and goes.
void Overlay() {
  const at::Tensor a = at::randn({8, 8}), expected = at::mm(a, a);
  std::atomic<int> left{kThreads};
  Together(kThreads + 1, [&](int number) {
    while (number == kThreads && left > 0) {
      const c10::List<std::string> ops({"mm"});
      const c10::IValue made = Control("overlay", {ops, "cpu", ""});
      Control("overlay_off", {made});
    }
    for (int i = 0; number < kThreads && i < 2000; ++i)
      Expect(at::equal(at::mm(a, a), expected), "a product under an overlay");
    left -= number < kThreads;
  });
}

}  // namespace

int main(int count, char** words) {
  if (count < 2 || !dlopen(words[1], RTLD_NOW | RTLD_GLOBAL)) {
    std::fprintf(stderr, "expected the device's library: %s\n", count > 1 ? dlerror() : "");
    return 2;
  }
  at::set_num_threads(1);
  Control("start", {count > 2 ? words[2] : "host"});
  c10::register_privateuse1_backend("anyop");  // from now on torch's accelerator
  const std::pair<const char*, void (*)()> parts[] = {
      {"products", Products},    {"streams", Streams},   {"memory", Memory},
      {"random", RandomNumbers}, {"backward", Backward}, {"overlay", Overlay}};
  for (const auto& [name, run] : parts) {
    run();
    std::printf("%s\n", name);
    std::fflush(stdout);
  }
  std::printf("%lld wrong\n", static_cast<long long>(wrong));
  return wrong != 0;
}
