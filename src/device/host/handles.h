// SPDX-License-Identifier: Apache-2.0
// Objects that callers hold by address: an address that is none, or no longer one, is found out.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

namespace anyop::host {

template <typename Object>
class Handles {
 public:
  void* Add(std::shared_ptr<Object> object) {
    std::lock_guard<std::mutex> lock(mutex_);
    void* handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  // nullptr when there is none. What is returned lives on, also when another thread removes it.
  std::shared_ptr<Object> Find(void* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<Object> Remove(void* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  template <typename Body>
  void ForEach(const Body& body) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto objects = objects_;  // body may wait
    lock.unlock();
    for (const auto& entry : objects) body(*entry.second);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Object>> objects_;
};

}  // namespace anyop::host
