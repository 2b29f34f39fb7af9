// SPDX-License-Identifier: Apache-2.0
// Expressions, broadcasts and shapes of results. Arithmetic that overflows has no value.
#include "operator/sizes.h"

#include <algorithm>
#include <cstring>

#include "tensors/dtype.h"

namespace anyop {
namespace {

int64_t FloorDiv(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

// One operation with two operands. False: overflow, or division by zero.
bool Apply(int32_t opcode, int64_t a, int64_t b, int64_t* r) {
  const bool divides = opcode == kAnyopFloorDiv || opcode == kAnyopCeilDiv || opcode == kAnyopMod;
  if (divides && (b == 0 || (a == INT64_MIN && b == -1))) return false;
  switch (opcode) {
    case kAnyopAdd:
      return !__builtin_add_overflow(a, b, r);
    case kAnyopSub:
      return !__builtin_sub_overflow(a, b, r);
    case kAnyopMul:
      return !__builtin_mul_overflow(a, b, r);
    case kAnyopFloorDiv:
      *r = FloorDiv(a, b);
      return true;
    case kAnyopCeilDiv:
      *r = FloorDiv(a, b) + (a % b != 0);
      return true;
    case kAnyopMod:
      *r = a - b * FloorDiv(a, b);
      return true;
    case kAnyopMin:
      *r = std::min(a, b);
      return true;
    case kAnyopMax:
      *r = std::max(a, b);
      return true;
    case kAnyopEq:
      *r = a == b;
      return true;
    case kAnyopNe:
      *r = a != b;
      return true;
    case kAnyopLt:
      *r = a < b;
      return true;
    case kAnyopLe:
      *r = a <= b;
      return true;
    case kAnyopAnd:
      *r = a && b;
      return true;
    case kAnyopOr:
      *r = a || b;
      return true;
    default:
      return false;
  }
}

constexpr int64_t kLongestShown = 40;  // bytes of a text in a message

}  // namespace

AnyopString Sizes::TextOf(int32_t param) const {
  const Param& p = op_->params[param];
  if (!p.IsTensor()) return *reinterpret_cast<const AnyopString*>(args_ + p.offset);
  const char* name = DtypeName(dtypes_[param]);
  return {name, static_cast<int64_t>(std::strlen(name))};
}

// The operands of kAnyopTextIs.
bool Sizes::TextIs(const int32_t* operands) const {
  const AnyopString text = TextOf(operands[0]);
  if (text.count != operands[1]) return false;
  for (int64_t i = 0; i < text.count; ++i) {
    const uint32_t word = static_cast<uint32_t>(operands[2 + i / 4]);
    if (static_cast<uint8_t>(text.data[i]) != (word >> 8 * (i % 4) & 255)) return false;
  }
  return true;
}

bool Sizes::Evaluate(const int32_t* program, int64_t* value) const {
  int64_t stack[kMaxStack];
  int n = 0;
  for (const int32_t* c = program; *c != kAnyopEnd; ++c) {
    switch (*c) {
      case kAnyopConst:
        stack[n++] = *++c;
        break;
      case kAnyopSymbol:
        if (!(known_ >> *++c & 1)) return false;
        stack[n++] = symbols_[*c];
        break;
      case kAnyopRank:
        if (!GroupKnown(*++c)) return false;
        stack[n++] = groups_[*c].rank;
        break;
      case kAnyopNumel:
        ++c;
        if (!GroupKnown(*c) || !Numel(*c, &stack[n])) return false;
        ++n;
        break;
      case kAnyopTextIs:
        stack[n++] = TextIs(c + 1);
        c += 2 + TextWords(c[2]);
        break;
      default:
        if (!Apply(*c, stack[n - 2], stack[n - 1], &stack[n - 2])) return false;
        --n;
    }
  }
  *value = stack[0];
  return true;
}

bool Sizes::Numel(int group, int64_t* product) const {
  *product = GroupKnown(group) ? 1 : 0;
  if (!GroupKnown(group)) return true;
  bool overflow = false, empty = false;
  for (int i = 0; i < groups_[group].rank; ++i) {
    empty |= groups_[group].dims[i] == 0;
    overflow |= __builtin_mul_overflow(*product, groups_[group].dims[i], product);
  }
  if (empty) *product = 0;
  return empty || !overflow;
}

bool Sizes::MatchBroadcast(const ShapeProgram& program, int ndim, const int64_t* shape) const {
  int64_t full[kMaxRank];
  const int rank = Build(program, full);
  if (rank < ndim) return false;
  for (int i = 1; i <= ndim; ++i) {
    if (shape[ndim - i] != full[rank - i] && shape[ndim - i] != 1) return false;
  }
  return true;
}

int Sizes::JoinGroups() {
  for (size_t j = 0; j < op_->joins.size(); ++j) {
    const Join& join = op_->joins[j];
    int rank = 0;
    for (int i = 0; i < join.count; ++i) {
      if (GroupKnown(join.groups[i])) rank = std::max(rank, groups_[join.groups[i]].rank);
    }
    int64_t* dims = arena_->Take<int64_t>(rank);
    std::fill(dims, dims + rank, 1);
    for (int i = 0; i < join.count; ++i) {
      if (!GroupKnown(join.groups[i])) continue;  // of an absent optional argument
      const Group& g = groups_[join.groups[i]];
      for (int k = 1; k <= g.rank; ++k) {
        int64_t* to = &dims[rank - k];
        const int64_t size = g.dims[g.rank - k];
        if (size == 1 || size == *to) continue;
        if (*to != 1) return static_cast<int>(j);
        *to = size;
      }
    }
    const int joined = op_->num_groups + static_cast<int>(j);
    if (GroupKnown(joined)) {  // by an input that has this shape, such as the gradient of a result
      const Group& given = groups_[joined];
      if (given.rank != rank || !std::equal(dims, dims + rank, given.dims))
        return static_cast<int>(j);
    }
    groups_[joined] = {rank, dims};
    known_groups_ |= uint64_t{1} << joined;
  }
  return -1;
}

bool Sizes::BuildTerm(int32_t term, int64_t* size) const {
  if (term >= 0 && term < kMaxSymbols) {
    *size = symbols_[term];
    return known_ >> term & 1;
  }
  if (term >= kMaxSymbols) return Evaluate(op_->table->code + term - kMaxSymbols, size);
  const int32_t* record = op_->table->code + ~term;
  return (known_ >> record[0] & 1) &&
         !__builtin_mul_overflow(symbols_[record[0]], int64_t{record[1]}, size) &&
         !__builtin_add_overflow(*size, int64_t{record[2]}, size);
}

int Sizes::Build(const ShapeProgram& program, int64_t* out) const {
  if (program.group >= 0 && !GroupKnown(program.group)) return -1;
  const int rank = program.group < 0 ? 0 : groups_[program.group].rank;
  if (program.before + rank + program.after > kMaxRank) return -1;
  int n = 0;
  for (int i = 0; i < program.before; ++i, ++n) {
    if (!BuildTerm(program.terms[i], &out[n]) || out[n] < 0) return -1;
  }
  for (int i = 0; i < rank; ++i) out[n++] = groups_[program.group].dims[i];
  for (int i = 0; i < program.after; ++i, ++n) {
    if (!BuildTerm(program.terms[program.before + i], &out[n]) || out[n] < 0) return -1;
  }
  return n;
}

void Sizes::CollectExpression(const int32_t* c, Names* names) const {
  for (; *c != kAnyopEnd; ++c) {
    if (*c == kAnyopTextIs) {
      names->texts |= uint64_t{1} << c[1];
      c += 2 + TextWords(c[2]);
      continue;
    }
    if (*c == kAnyopSymbol) names->symbols |= uint64_t{1} << c[1];
    if (*c >= kAnyopConst && *c <= kAnyopNumel) ++c;
  }
}

std::string Sizes::NamesText(const Names& names) const {
  std::string text;
  const auto add = [&](const std::string& name, const std::string& value) {
    text += (text.empty() ? " with " : ", ") + name + value;
  };
  for (int i = 0; names.symbols & known_ && i < op_->num_symbols; ++i) {
    if ((names.symbols & known_) >> i & 1)
      add(op_->SymbolName(i), "=" + std::to_string(symbols_[i]));
  }
  for (int i = 0; names.texts && i < kMaxParams; ++i) {
    if (!(names.texts >> i & 1)) continue;
    const Param& p = op_->params[i];
    const AnyopString found = TextOf(i);
    const std::string value(found.data ? found.data : "", static_cast<size_t>(found.count));
    if (p.IsTensor()) {
      add("dtype(" + std::string(p.name) + ")", "=" + value);
    } else if (found.count > kLongestShown) {
      add(p.name, " of " + std::to_string(found.count) + " bytes");
    } else {
      add(p.name, "='" + value + "'");
    }
  }
  return text;
}

std::string Sizes::KnownText(const int32_t* expression) const {
  Names names;
  CollectExpression(expression, &names);
  return NamesText(names);
}

std::string Sizes::KnownText(const ShapeProgram& program) const {
  Names names;
  for (int i = 0; i < program.before + program.after; ++i) {
    const int32_t term = program.terms[i];
    if (term >= kMaxSymbols) CollectExpression(op_->table->code + term - kMaxSymbols, &names);
    if (term < kMaxSymbols)
      names.symbols |= uint64_t{1} << (term >= 0 ? term : op_->table->code[~term]);
  }
  return NamesText(names);
}

}  // namespace anyop
