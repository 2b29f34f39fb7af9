// SPDX-License-Identifier: Apache-2.0
// One registered operator: its table, checked once and brought into the form that calls read.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "anyop/table.h"

namespace anyop {

constexpr int kMaxParams = 64;
constexpr int kMaxSymbols = 64;
constexpr int kMaxGroups = 8;  // bound by shapes and joined, together
constexpr int kMaxRank = 32;
constexpr int kMaxStack = 16;  // of an expression

struct Route;
struct Shortcut;

// How many words of a program hold so many bytes of a text.
inline int64_t TextWords(int64_t bytes) { return (bytes + 3) / 4; }

// A shape program, decoded: before terms, the sizes of a group, after terms.
struct ShapeProgram {
  int32_t before;
  int32_t after;
  int32_t group;   // -1: none
  bool broadcast;  // mode 1: the shape must only be broadcastable to this
  const int32_t* terms;
};

struct Param {
  const char* name;
  const char* shape_text;
  uint32_t offset;
  uint16_t flags;
  uint8_t kind;
  uint8_t layout;
  uint8_t dtype_rule;
  uint8_t align_log2;
  int8_t dtype_a;
  int8_t dtype_b;
  uint64_t dtype_set;
  decltype(AnyopParam::value) value;
  int32_t length;
  int32_t fixed_count;
  bool alike;  // a list whose tensors have one dtype, which a result takes
  ShapeProgram shape;

  bool Is(AnyopParamFlag flag) const { return flags & flag; }
  bool IsTensor() const { return kind == kAnyopTensor; }
  bool IsList() const { return flags & kAnyopList; }
};

struct Condition {
  const char* text;
  const int32_t* program;
};

struct Join {
  int count;
  const int32_t* groups;
};

// The order in which the tensors of the last call with many lay in memory, by their numbers; who
// uses it takes it away meanwhile.
class LastOrder {
 public:
  using Numbers = std::vector<uint32_t>;
  ~LastOrder() { delete kept_.load(); }
  std::unique_ptr<Numbers> Take() const {
    return std::unique_ptr<Numbers>(kept_.exchange(nullptr, std::memory_order_acquire));
  }
  void Keep(std::unique_ptr<Numbers> order) const {
    delete kept_.exchange(order.release(), std::memory_order_acq_rel);
  }

 private:
  mutable std::atomic<Numbers*> kept_{nullptr};
};

struct Operator {
  const AnyopOp* table;
  std::string name;                 // as errors say it: "rms_norm", "acme.rms_norm"
  std::string full_name;            // "anyop.rms_norm"
  std::vector<Param> params;        // inputs, then outputs
  std::vector<Condition> of_texts;  // those that ask for str arguments alone, checked first
  std::vector<Condition> conditions;
  std::vector<Join> joins;
  uint32_t num_inputs;
  uint32_t num_outputs;
  uint32_t args_size;
  uint32_t sizes_offset;
  int num_sizes;
  int num_symbols;
  int num_groups;
  uint64_t element_symbols;
  uint64_t element_groups;
  bool has_lists;  // of tensors
  bool has_expanded;
  bool has_numbers;  // tensors for which a binding takes numbers
  bool has_views;    // the kernel may get others than those given: expanded, or copied
  uint64_t checked;  // inputs of which a call checks something: tensors, dtypes that are listed
  uint64_t written;  // parameters that the kernel writes and the caller may have given
  std::atomic<const Route*> route{nullptr};
  std::atomic<const Shortcut*> shortcut{nullptr};
  mutable std::atomic<uint64_t> copies_said{0};  // parameters of which it was said
  LastOrder last_order;

  const char* SymbolName(int symbol) const { return table->symbols[symbol]; }
};

// Checks a table against everything a call will rely on. On failure returns nullptr and sets
// *error.
Operator* MakeOperator(const AnyopOp* table, uint32_t library_abi, std::string* error);

// "an int", "a float": for messages.
inline std::string WithArticle(const std::string& word) {
  const bool vowel = !word.empty() && std::string("aeioAEIO").find(word[0]) != std::string::npos;
  return (vowel ? "an " : "a ") + word;
}

}  // namespace anyop
