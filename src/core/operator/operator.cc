// SPDX-License-Identifier: Apache-2.0
// Turns a table into an Operator; a table that calls could not trust is refused here, by name.
#include "operator/operator.h"

#include <cstring>
#include <memory>

namespace anyop {
namespace {

// Reads one table; the first thing found wrong is kept in error_.
class Reader {
 public:
  Reader(const AnyopOp* table, std::string* error) : table_(table), error_(error) {}

  std::unique_ptr<Operator> Read() {
    auto op = std::make_unique<Operator>();
    if (!ReadHead(op.get())) return nullptr;
    for (uint32_t p = 0; p < op->num_inputs + op->num_outputs; ++p) {
      if (!ReadParam(op.get(), p)) return nullptr;
    }
    if (!ReadPrograms(op.get())) return nullptr;
    return op;
  }

 private:
  bool Bad(const std::string& what) {
    *error_ = std::string(table_->name ? table_->name : "operator") + ": the table " + what;
    return false;
  }

  bool ReadHead(Operator* op) {
    const AnyopOp& t = *table_;
    if (!t.name || !t.name_space || !t.schema || !t.doc || !t.metadata)
      return Bad("lacks a name, schema or text");
    if (t.num_inputs > kMaxParams || t.num_outputs > kMaxParams ||
        t.num_inputs + t.num_outputs > kMaxParams) {
      return Bad("has more than " + std::to_string(kMaxParams) + " parameters");
    }
    if (t.num_symbols > kMaxSymbols || t.num_sizes > t.num_symbols)
      return Bad("has too many sizes");
    if (t.num_groups > kMaxGroups || t.num_joins > kMaxGroups ||
        t.num_groups + t.num_joins > kMaxGroups) {
      return Bad("has more than " + std::to_string(kMaxGroups) + " groups of sizes");
    }
    const uint64_t words = uint64_t{t.num_sizes} + t.num_groups + t.num_joins;
    if (t.args_size < sizeof(AnyopArgs) || t.sizes_offset % 8 ||
        t.sizes_offset + words * 8 > t.args_size) {
      return Bad("places its sizes outside the arguments");
    }
    if (t.param_size < sizeof(AnyopParam) || t.kernel_size < offsetof(AnyopKernelEntry, name)) {
      return Bad("has records smaller than any released");
    }
    op->table = table_;
    op->full_name = std::string(t.name_space) + "." + t.name;
    op->name = std::strcmp(t.name_space, "anyop") == 0 ? t.name : op->full_name;
    op->num_inputs = t.num_inputs;
    op->num_outputs = t.num_outputs;
    op->args_size = t.args_size;
    op->sizes_offset = t.sizes_offset;
    op->num_sizes = static_cast<int>(t.num_sizes);
    op->num_symbols = static_cast<int>(t.num_symbols);
    op->num_groups = static_cast<int>(t.num_groups);
    op->element_symbols = t.element_symbols;
    op->element_groups = t.element_groups;
    op->has_lists = op->has_expanded = op->has_views = op->has_numbers = false;
    op->checked = op->written = 0;
    return true;
  }

  static uint32_t FieldSize(const Param& p) {
    if (p.IsList() || p.kind == kAnyopStr) return 16;
    return p.Is(kAnyopOptional) && !p.IsTensor() ? 16 : 8;
  }

  bool ReadParam(Operator* op, uint32_t index) {
    const auto* raw = reinterpret_cast<const AnyopParam*>(
        reinterpret_cast<const char*>(table_->params) + size_t{index} * table_->param_size);
    Param p = {};
    p.name = raw->name;
    p.shape_text = raw->shape_text ? raw->shape_text : "";
    p.offset = raw->offset;
    p.flags = raw->flags;
    p.kind = raw->kind;
    p.layout = raw->layout;
    p.dtype_rule = raw->dtype_rule;
    p.align_log2 = raw->align_log2;
    p.dtype_a = raw->dtype_a;
    p.dtype_b = raw->dtype_b;
    p.dtype_set = raw->dtype_set;
    p.value = raw->value;
    p.length = raw->length;
    p.fixed_count = raw->fixed_count;
    const std::string where = std::string("at parameter ") + (p.name ? p.name : "?");
    if (!p.name || p.kind < kAnyopTensor || p.kind > kAnyopScalarType)
      return Bad("has an unknown kind " + where);
    if (p.offset % 8 || p.offset < sizeof(AnyopArgs) ||
        p.offset + FieldSize(p) > table_->args_size) {
      return Bad("places a field outside the arguments " + where);
    }
    if (p.Is(kAnyopOutput) != (index >= table_->num_inputs))
      return Bad("mixes inputs and results " + where);
    if (p.IsTensor()) {
      takes_dtypes_ = p.Is(kAnyopOutput);
      if (!ReadTensorParam(&p, raw->shape, index, where)) return false;
      if (!FitsDtypeRule(*op, p)) return Bad("has a dtype rule of no dtypes " + where);
      if (p.Is(kAnyopOutput) && p.dtype_a >= 0) op->params[p.dtype_a].alike = true;
      op->has_lists |= p.IsList();
      op->has_expanded |= p.Is(kAnyopExpanded);
      op->has_numbers |= p.Is(kAnyopNumber);
      op->has_views |= (p.flags & (kAnyopExpanded | kAnyopCopied)) != 0;
      if (p.flags & (kAnyopOutput | kAnyopMutated)) op->written |= uint64_t{1} << index;
    }
    const bool lists_dtypes = p.kind == kAnyopScalarType && p.dtype_set;
    if (!p.Is(kAnyopOutput) && (p.IsTensor() || lists_dtypes)) op->checked |= uint64_t{1} << index;
    op->params.push_back(p);
    return true;
  }

  bool ReadTensorParam(Param* p, int32_t word, uint32_t index, const std::string& where) {
    if (p->layout > kAnyopDense || p->dtype_rule > kAnyopFirstGiven || p->align_log2 > 12) {
      return Bad("has an unknown layout, dtype rule or alignment " + where);
    }
    if (p->Is(kAnyopCopied) && p->flags & (kAnyopOutput | kAnyopMutated | kAnyopInplace))
      return Bad("copies what is written " + where);
    for (const int other : {int{p->dtype_a}, int{p->dtype_b}}) {
      if (other >= static_cast<int>(index) || other < -1)
        return Bad("refers to a later dtype " + where);
    }
    const bool both = p->dtype_rule == kAnyopFirstGiven ||
                      (p->dtype_rule == kAnyopPromote && __builtin_popcountll(p->dtype_set) != 1);
    if (p->dtype_rule != kAnyopOneOf && (p->dtype_a < 0 || (both && p->dtype_b < 0)))
      return Bad("has an incomplete dtype rule " + where);
    if (p->length >= static_cast<int>(table_->num_sizes) || (p->Is(kAnyopOutput) && p->IsList())) {
      return Bad("has a list that cannot be " + where);
    }
    const int64_t words = table_->code_words;
    if (word < 0 || word + 4 > words) return Bad("lacks a shape " + where);
    const int32_t* c = table_->code + word;
    p->shape = {c[0], c[1], c[2], c[3] != 0, c + 4};
    const int groups = static_cast<int>(table_->num_groups + table_->num_joins);
    if (c[0] < 0 || c[1] < 0 || c[0] + c[1] > kMaxRank || word + 4 + c[0] + c[1] > words ||
        c[2] < -1 || c[2] >= groups) {
      return Bad("has a broken shape " + where);
    }
    for (int i = 0; i < c[0] + c[1]; ++i) {
      if (!CheckTerm(p->shape.terms[i])) return Bad("has a broken size " + where);
    }
    return true;
  }

  // What a rule names is a tensor; before an attribute's 'or', one ScalarType.
  static bool FitsDtypeRule(const Operator& op, const Param& p) {
    const bool from_attribute = p.dtype_rule == kAnyopFromAttribute;
    if (from_attribute &&
        (op.params[p.dtype_a].kind != kAnyopScalarType || op.params[p.dtype_a].IsList()))
      return false;
    return (p.dtype_a < 0 || from_attribute || op.params[p.dtype_a].IsTensor()) &&
           (p.dtype_b < 0 || op.params[p.dtype_b].IsTensor());
  }

  bool CheckTerm(int32_t term) {
    if (term >= 0 && term < kMaxSymbols) return term < static_cast<int>(table_->num_symbols);
    if (term >= kMaxSymbols) return CheckExpression(term - kMaxSymbols);
    const int64_t word = ~term;
    if (word + 3 > table_->code_words) return false;
    const int32_t* record = table_->code + word;
    return record[0] >= 0 && record[0] < static_cast<int>(table_->num_symbols) && record[1] > 0;
  }

  // Walks an expression with the height of its stack instead of values.
  bool CheckExpression(int64_t word) {
    int height = 0;
    for (; word >= 0 && word < table_->code_words; ++word) {
      const int32_t opcode = table_->code[word];
      if (opcode == kAnyopEnd) return height == 1;
      if (opcode == kAnyopConst || opcode == kAnyopSymbol || opcode == kAnyopRank ||
          opcode == kAnyopNumel) {
        if (++word >= table_->code_words || ++height > kMaxStack) return false;
        const int64_t operand = table_->code[word];
        const int64_t limit =
            opcode == kAnyopSymbol ? table_->num_symbols : table_->num_groups + table_->num_joins;
        if (opcode != kAnyopConst && (operand < 0 || operand >= limit)) return false;
      } else if (opcode == kAnyopTextIs) {
        if (++height > kMaxStack || !CheckText(word + 1)) return false;
        word += 2 + TextWords(table_->code[word + 2]);
      } else if (opcode < kAnyopConst || opcode > kAnyopOr || --height < 1) {
        return false;
      }
    }
    return false;
  }

  // The words behind kAnyopTextIs.
  bool CheckText(int64_t word) {
    if (word + 2 > table_->code_words) return false;
    const int64_t param = table_->code[word], bytes = table_->code[word + 1];
    if (param < 0 || param >= table_->num_inputs || bytes < 0) return false;
    const auto* raw = reinterpret_cast<const AnyopParam*>(
        reinterpret_cast<const char*>(table_->params) + param * table_->param_size);
    const int forbidden = kAnyopList | (raw->kind == kAnyopStr ? kAnyopOptional : 0);
    const bool is_known = raw->kind == kAnyopStr || (takes_dtypes_ && raw->kind == kAnyopTensor);
    return is_known && !(raw->flags & forbidden) &&
           word + 2 + TextWords(bytes) < table_->code_words;
  }

  static bool AsksForTextsAlone(const Operator& op, const int32_t* c) {
    bool asks = false;
    for (; *c != kAnyopEnd; ++c) {
      if (*c == kAnyopTextIs) {
        if (op.params[c[1]].IsTensor()) return false;
        asks = true;
        c += 2 + TextWords(c[2]);
      } else if (*c >= kAnyopSymbol && *c <= kAnyopNumel) {
        return false;
      } else if (*c == kAnyopConst) {
        ++c;
      }
    }
    return asks;
  }

  bool ReadPrograms(Operator* op) {
    takes_dtypes_ = true;
    for (uint32_t i = 0; i < table_->num_joins; ++i) {
      const int64_t word = table_->joins[i];
      if (word < 0 || word >= table_->code_words) return Bad("has a broken broadcast");
      const int32_t* c = table_->code + word;
      if (c[0] < 1 || word + 1 + c[0] > table_->code_words) return Bad("has a broken broadcast");
      for (int k = 1; k <= c[0]; ++k) {
        if (c[k] < 0 || c[k] >= static_cast<int>(table_->num_groups + i))
          return Bad("broadcasts a later group");
      }
      op->joins.push_back({c[0], c + 1});
    }
    for (uint32_t i = 0; i < table_->num_conditions; ++i) {
      const AnyopCondition& condition = table_->conditions[i];
      if (!condition.text || !CheckExpression(condition.program))
        return Bad("has a broken condition");
      const int32_t* program = table_->code + condition.program;
      auto& kind = AsksForTextsAlone(*op, program) ? op->of_texts : op->conditions;
      kind.push_back({condition.text, program});
    }
    for (uint32_t i = table_->num_sizes; i < table_->num_symbols; ++i) {
      const uint32_t p = table_->attributes[i - table_->num_sizes];
      if (p >= op->num_inputs || op->params[p].kind != kAnyopInt ||
          op->params[p].flags & (kAnyopList | kAnyopOptional)) {
        return Bad("has a size that is no integer argument");
      }
    }
    return true;
  }

  const AnyopOp* table_;
  std::string* error_;
  bool takes_dtypes_ = false;  // the expressions being read come when all dtypes are known
};

}  // namespace

Operator* MakeOperator(const AnyopOp* table, uint32_t library_abi, std::string* error) {
  // A later release may append to AnyopOp; the fields known here keep their places.
  if (table->size < sizeof(AnyopOp)) {
    *error = "an operator's table has " + std::to_string(table->size) +
             " bytes, the oldest release had " + std::to_string(sizeof(AnyopOp)) +
             "; rebuild the library";
    return nullptr;
  }
  if (table->abi_version == 0 || table->abi_version > ANYOP_ABI_VERSION ||
      table->abi_version != library_abi) {
    *error = std::string(table->name) + ": the table has ABI version " +
             std::to_string(table->abi_version) + ", this core reads 1 to " +
             std::to_string(ANYOP_ABI_VERSION) + "; update anyop or rebuild the library";
    return nullptr;
  }
  return Reader(table, error).Read().release();
}

}  // namespace anyop
