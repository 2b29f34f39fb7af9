// SPDX-License-Identifier: Apache-2.0
// Plans of call sites, found without a lock by their text.
#include "plan.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "operator/registry.h"

namespace anyop::xla {
namespace {

using nlohmann::json;

constexpr size_t kBuckets = 1024;
std::atomic<const Plan*> buckets[kBuckets];  // lists that only grow
std::mutex growing;

size_t BucketOf(std::string_view text) {
  uint64_t hash = text.size(), word = 0;
  while (text.size() >= 8) {
    std::memcpy(&word, text.data(), 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    text.remove_prefix(8);
  }
  word = 0;
  std::memcpy(&word, text.data(), text.size());
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash >> 54;
}
static_assert(kBuckets == size_t{1} << (64 - 54), "BucketOf gives a bucket");

const Plan* Search(size_t bucket, std::string_view text) {
  const Plan* plan = buckets[bucket].load(std::memory_order_acquire);
  while (plan && plan->text != text) plan = plan->next;
  return plan;
}

// A tensor is its name, a list its name and elements. False when the operator has no such tensor.
bool AddSlot(const json& tensor, bool in_results, Plan* plan) {
  const bool is_list = tensor.is_array();
  const auto& name = (is_list ? tensor.at(0) : tensor).get_ref<const std::string&>();
  const Operator& op = *plan->op;
  for (uint32_t i = 0; i < op.params.size(); ++i) {
    const Param& p = op.params[i];
    if (p.name != name) continue;
    if (!p.IsTensor() || p.IsList() != is_list) return false;
    const bool is_input = i < op.num_inputs;
    if (!in_results && !is_input) return false;
    auto& slots = in_results ? plan->results : plan->args;
    slots.push_back({i, is_list, in_results && is_input, {}});
    if (is_list) tensor.at(1).get_to(slots.back().elements);
    plan->unwanted &= ~(uint64_t{1} << i);
    return true;
  }
  return false;
}

bool ReadSlots(const json& tensors, bool in_results, Plan* plan, std::string* error) {
  for (const json& tensor : tensors) {
    if (AddSlot(tensor, in_results, plan)) continue;
    *error = plan->op->name + ": has no tensor " + tensor.dump() +
             "; was the program made for another version of it?";
    return false;
  }
  return true;
}

void CountOptional(Plan* plan) {
  const Operator& op = *plan->op;
  for (uint32_t i = 0; i < op.params.size(); ++i) {
    const Param& p = op.params[i];
    const uint64_t bit = uint64_t{1} << i;
    if (i >= op.num_inputs)
      plan->unwanted |= p.Is(kAnyopOptional) ? bit : 0;
    else if (!p.IsTensor() || !(MayBeNone(p) || p.Is(kAnyopHasDefault)))
      plan->expected |= bit;
  }
}

bool ReadSite(const json& site, Plan* plan, std::string* error, int32_t* status) {
  *status = kAnyopValueError;
  if (site.contains("use")) {
    plan->scope = FindScope(site.at("use").get_ref<const std::string&>(), error);
    if (!plan->scope) return false;
  }
  const auto& name = site.at("operator").get_ref<const std::string&>();
  plan->called = site.value("called", "");
  plan->op = FindOperator(name.c_str());
  if (!plan->op) {
    *error = "there is no operator " + name + "; load its library with anyop.load() first";
    return false;
  }
  *status = kAnyopInternalError;
  CountOptional(plan);
  return ReadSlots(site.at("arguments"), false, plan, error) &&
         ReadSlots(site.at("results"), true, plan, error);
}

const Plan* Read(std::string_view text, std::string* error, int32_t* status) {
  auto plan = std::make_unique<Plan>();
  plan->text = text;
  try {
    return ReadSite(json::parse(text), plan.get(), error, status) ? plan.release() : nullptr;
  } catch (const json::exception&) {
    *status = kAnyopInternalError;
    *error = "anyop: a call site is not understood; was the program made by another version of it?";
    return nullptr;
  }
}

const Plan* FindOrRead(std::string_view text, std::string* error, int32_t* status) {
  const size_t bucket = BucketOf(text);
  if (const Plan* plan = Search(bucket, text)) return plan;
  const std::lock_guard<std::mutex> guard(growing);
  if (const Plan* plan = Search(bucket, text)) return plan;
  const Plan* made = Read(text, error, status);
  if (!made) return nullptr;
  const_cast<Plan*>(made)->next = buckets[bucket].load(std::memory_order_relaxed);
  buckets[bucket].store(made, std::memory_order_release);
  return made;
}

}  // namespace

const Plan* FindPlan(std::string_view text, std::string* error, int32_t* status) {
  // The text of one site stays where it is while its program lives.
  static std::atomic<const Plan*> recent[256];
  auto& slot = recent[reinterpret_cast<uintptr_t>(text.data()) / 16 % 256];
  const Plan* plan = slot.load(std::memory_order_acquire);
  if (plan && plan->text == text) return plan;
  plan = FindOrRead(text, error, status);
  if (plan) slot.store(plan, std::memory_order_release);
  return plan;
}

}  // namespace anyop::xla
