// SPDX-License-Identifier: Apache-2.0
// Queues and threads of torch's engine of autograd, made as the engine makes them.
#include "device/engine_queues.h"

#include <torch/csrc/autograd/engine.h>

#include <thread>

#include "platform/platform.h"

namespace anyop::torch_device {
namespace {

using torch::autograd::Engine;
using torch::autograd::ReadyQueue;

// Never made: what an engine keeps for classes that derive from it is reached through this name.
class OpenEngine : public Engine {
 public:
  static bool HasCounted(Engine& engine) {
    return (engine.*&OpenEngine::thread_pool_shared_) != nullptr;
  }

  static void AddQueues(Engine& engine, size_t count) {
    auto& queues = engine.*&OpenEngine::device_ready_queues_;
    if (queues.size() >= count) return;
    // The old array is never freed: another thread may be in a backward, and read it.
    auto* made = new std::vector<std::shared_ptr<ReadyQueue>>(queues);
    while (made->size() < count) {
      made->push_back(std::make_shared<ReadyQueue>());
      StartThread(engine, static_cast<int>(made->size()) - 1, made->back());
    }
    queues.swap(*made);
  }

 private:
  // The engine's end waits for as many threads as are counted, so it is done here, not in the
  // thread.
  static void StartThread(Engine& engine, int device, std::shared_ptr<ReadyQueue> queue) {
    (engine.*&OpenEngine::increment_non_reentrant_thread_count)();
    std::thread([&engine, device, queue = std::move(queue)] {
      engine.thread_init(device, queue, /*should_increment=*/false);
      (engine.*&OpenEngine::decrement_non_reentrant_thread_count)();
    }).detach();
  }
};

}  // namespace

void AddEngineQueues() {
  Engine& engine = Engine::get_default_engine();
  if (OpenEngine::HasCounted(engine))
    OpenEngine::AddQueues(engine, static_cast<size_t>(platform->Count()));
}

}  // namespace anyop::torch_device
