// SPDX-License-Identifier: Apache-2.0
// Plans of call sites, found without a lock by their text.
#include "plan.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

#include "operator/registry.h"

namespace anyop::xla {
namespace {

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

std::string_view TakeToken(std::string_view* text) {
  const size_t end = text->find(' ');
  const std::string_view token = text->substr(0, end);
  *text = end == text->npos ? std::string_view() : text->substr(end + 1);
  return token;
}

// False when the operator has no such tensor.
bool AddSlot(std::string_view token, bool in_results, Plan* plan) {
  const size_t colon = token.find(':');
  const bool is_list = colon != token.npos;
  const Operator& op = *plan->op;
  for (uint32_t i = 0; i < op.params.size(); ++i) {
    const Param& p = op.params[i];
    if (p.name != token.substr(0, colon)) continue;
    if (!p.IsTensor() || p.IsList() != is_list) return false;
    const bool is_input = i < op.num_inputs;
    if (!in_results && !is_input) return false;
    auto& slots = in_results ? plan->results : plan->args;
    slots.push_back({i, is_list, in_results && is_input, {}});
    if (is_list) slots.back().elements = token.substr(colon + 1);
    plan->unwanted &= ~(uint64_t{1} << i);
    return true;
  }
  return false;
}

const Plan* Read(std::string_view text, std::string* error, int32_t* status) {
  auto plan = std::make_unique<Plan>();
  plan->text = text;
  if (const size_t end = text.find(';'); end != text.npos) {
    plan->scope = FindScope(text.substr(end + 1), error);
    if (!plan->scope) {
      *status = kAnyopValueError;
      return nullptr;
    }
    text = text.substr(0, end);
  }
  const std::string_view names = TakeToken(&text);
  const size_t slash = names.find('/');
  if (slash != names.npos) plan->called = names.substr(slash + 1);
  const std::string name(names.substr(0, slash));
  plan->op = FindOperator(name.c_str());
  if (!plan->op) {
    *status = kAnyopValueError;
    *error = "there is no operator " + name + "; load its library with anyop.load() first";
    return nullptr;
  }
  for (uint32_t i = plan->op->num_inputs; i < plan->op->params.size(); ++i) {
    if (plan->op->params[i].Is(kAnyopOptional)) plan->unwanted |= uint64_t{1} << i;
  }
  for (uint32_t i = 0; i < plan->op->num_inputs; ++i) {
    const Param& p = plan->op->params[i];
    if (!p.IsTensor() || !(MayBeNone(p) || p.Is(kAnyopHasDefault)))
      plan->expected |= uint64_t{1} << i;
  }
  bool in_results = false;
  while (!text.empty()) {
    const std::string_view token = TakeToken(&text);
    if (token == "->") {
      in_results = true;
    } else if (!AddSlot(token, in_results, plan.get())) {
      *status = kAnyopInternalError;
      *error = plan->op->name + ": has no tensor '" + std::string(token) +
               "'; was the program made for another version of it?";
      return nullptr;
    }
  }
  return plan.release();
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
