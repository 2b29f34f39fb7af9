// SPDX-License-Identifier: Apache-2.0
// The sizes of one call: binds letters and groups while matching shapes, then computes the shapes
// of results.
#pragma once

#include <string>

#include "call/arena.h"
#include "operator/operator.h"

namespace anyop {

class Sizes {
 public:
  // What texts are compared with: the argument struct, and the dtypes of parameters.
  Sizes(const Operator* op, Arena* arena, const char* args = nullptr,
        const uint8_t* dtypes = nullptr)
      : op_(op), arena_(arena), args_(args), dtypes_(dtypes) {}

  void SetSymbol(int symbol, int64_t value) {
    symbols_[symbol] = value;
    known_ |= uint64_t{1} << symbol;
  }
  // The value of a letter or of a group's product; 0 when nothing bound it. False when the product
  // overflows.
  int64_t Symbol(int symbol) const { return known_ >> symbol & 1 ? symbols_[symbol] : 0; }
  bool Known(int symbol) const { return known_ >> symbol & 1; }
  bool Numel(int group, int64_t* product) const;

  // Letters of list elements are bound anew for each element.
  void ForgetElement() {
    known_ &= ~op_->element_symbols;
    known_groups_ &= ~op_->element_groups;
  }

  // Matches a shape against a program and binds what is new. False: it does not fit.
  bool Match(const ShapeProgram& program, int ndim, const int64_t* shape);
  // Binds or compares one symbol.
  bool MatchSymbol(int symbol, int64_t value) {
    if (known_ >> symbol & 1) return symbols_[symbol] == value;
    SetSymbol(symbol, value);
    return true;
  }
  // Computes the groups that are broadcasts of others, and compares them with those of inputs.
  // Returns the join that fails, or -1.
  int JoinGroups();
  bool GroupKnown(int group) const { return known_groups_ >> group & 1; }
  int GroupRank(int group) const { return groups_[group].rank; }
  const int64_t* GroupDims(int group) const { return groups_[group].dims; }

  // Writes the shape that a program stands for to out[kMaxRank]. Returns its rank, -1 when it has
  // none.
  int Build(const ShapeProgram& program, int64_t* out) const;
  bool Evaluate(const int32_t* program, int64_t* value) const;
  // The first that does not hold.
  const Condition* FindBroken(const std::vector<Condition>& conditions) const {
    for (const Condition& condition : conditions) {
      int64_t value;
      if (!Evaluate(condition.program, &value) || !value) return &condition;
    }
    return nullptr;
  }

  // " with D=64, k=3": what is known of the letters in a shape or expression. Empty when there are
  // none.
  std::string KnownText(const ShapeProgram& program) const;
  std::string KnownText(const int32_t* expression) const;

 private:
  struct Group {
    int rank;
    const int64_t* dims;
  };

  bool MatchTerm(int32_t term, int64_t size);
  bool BuildTerm(int32_t term, int64_t* size) const;
  bool MatchBroadcast(const ShapeProgram& program, int ndim, const int64_t* shape) const;
  struct Names {
    uint64_t symbols = 0;
    uint64_t texts = 0;  // by parameter
  };
  AnyopString TextOf(int32_t param) const;
  bool TextIs(const int32_t* operands) const;
  void CollectExpression(const int32_t* code, Names* names) const;
  std::string NamesText(const Names& names) const;

  const Operator* op_;
  Arena* arena_;
  const char* args_;
  const uint8_t* dtypes_;
  uint64_t known_ = 0;
  uint64_t known_groups_ = 0;
  int64_t symbols_[kMaxSymbols];
  Group groups_[kMaxGroups];
};

inline bool Sizes::MatchTerm(int32_t term, int64_t size) {
  if (__builtin_expect(term >= 0 && term < kMaxSymbols, 1)) return MatchSymbol(term, size);
  if (term >= kMaxSymbols) {
    int64_t value;
    return Evaluate(op_->table->code + term - kMaxSymbols, &value) && value == size;
  }
  const int32_t* record = op_->table->code + ~term;  // size = a * symbol + b
  if (known_ >> record[0] & 1) {
    int64_t value;
    return BuildTerm(term, &value) && value == size;
  }
  const int64_t rest = size - record[2];
  if (rest < 0 || rest % record[1] != 0) return false;
  SetSymbol(record[0], rest / record[1]);
  return true;
}

inline bool Sizes::Match(const ShapeProgram& program, int ndim, const int64_t* shape) {
  if (__builtin_expect(program.broadcast, 0)) return MatchBroadcast(program, ndim, shape);
  const int before = program.before, after = program.after, group = program.group;
  const int rank = ndim - before - after;
  if (group < 0 ? rank != 0 : rank < 0) return false;
  for (int i = 0; i < before; ++i) {
    if (!MatchTerm(program.terms[i], shape[i])) return false;
  }
  if (group >= 0) {
    const int64_t* dims = shape + before;
    if (known_groups_ >> group & 1) {
      if (groups_[group].rank != rank) return false;
      for (int i = 0; i < rank; ++i) {
        if (groups_[group].dims[i] != dims[i]) return false;
      }
    } else {
      known_groups_ |= uint64_t{1} << group;
      groups_[group] = {rank, dims};
    }
  }
  for (int i = 0; i < after; ++i) {
    if (!MatchTerm(program.terms[before + i], shape[ndim - after + i])) return false;
  }
  return true;
}

}  // namespace anyop
