// SPDX-License-Identifier: Apache-2.0
// Binds the words of a condition to one operator, and asks them of a call.
#include "router/rules/call_condition.h"

#include <cstdio>

#include "router/choose/capability.h"
#include "router/choose/device_below.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

struct Device {
  const char* name;
  int type;  // DLDeviceType
};
constexpr Device kDevices[] = {{"cpu", 1},     {"cuda", 2},    {"opencl", 4},   {"vulkan", 7},
                               {"metal", 8},   {"vpi", 9},     {"hip", 10},     {"anyop", 12},
                               {"oneapi", 14}, {"webgpu", 15}, {"hexagon", 16}, {"maia", 17},
                               {"ext_dev", 12}};  // as anyop's was called before

constexpr const char* kSigns[] = {"=", "!=", "<", "<=", ">", ">="};

// The name behind the * in "* D", "*X" or "B *X D"; false when the shape has no group.
bool GroupName(const Param& p, std::string* name) {
  const std::string text = p.shape_text;
  const size_t star = text.find('*');
  if (p.shape.group < 0 || star == std::string::npos) return false;
  size_t end = star + 1;
  while (end < text.size() && (std::isalnum(text[end]) || text[end] == '_')) ++end;
  *name = text.substr(star + 1, end - star - 1);
  return true;
}

// The group of that name; "rows" is the one without. -1: none.
int FindGroup(const Operator& op, const std::string& wanted) {
  std::string name;
  for (const Param& p : op.params) {
    if (p.IsTensor() && !p.IsList() && GroupName(p, &name) &&
        (name == wanted || (name.empty() && wanted == "rows")))
      return p.shape.group;
  }
  return -1;
}

int FindSymbol(const Operator& op, const std::string& name) {
  for (int i = 0; i < op.num_symbols; ++i) {
    if (name == op.SymbolName(i)) return i;
  }
  return -1;
}

int FindTensor(const Operator& op, const std::string& name) {
  for (size_t i = 0; i < op.params.size(); ++i) {
    if (op.params[i].IsTensor() && !op.params[i].IsList() && name == op.params[i].name)
      return static_cast<int>(i);
  }
  return -1;
}

// One number that every call has, unless it is optional. -1: none.
int FindArgument(const Operator& op, const std::string& name) {
  for (size_t i = 0; i < op.params.size(); ++i) {
    const Param& p = op.params[i];
    const bool is_number = p.kind == kAnyopInt || p.kind == kAnyopFloat || p.kind == kAnyopBoolean;
    if (is_number && !p.IsList() && name == p.name) return static_cast<int>(i);
  }
  return -1;
}

std::string Names(const Operator& op) {
  std::string text = "it has ";
  const size_t begin = text.size();
  auto add = [&](const std::string& name) { text += (text.size() == begin ? "" : ", ") + name; };
  for (int i = 0; i < op.num_symbols; ++i) add(op.SymbolName(i));
  std::string group, last;
  for (const Param& p : op.params) {
    if (p.IsTensor()) add(p.name);
    if (p.IsTensor() && GroupName(p, &group) && group != last && !group.empty()) add(last = group);
    if (FindArgument(op, p.name) >= 0 && FindSymbol(op, p.name) < 0) add(p.name);
  }
  return text;
}

bool IsContiguous(const AnyopTensor& t) {
  if (!t.strides) return true;
  int64_t expected = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 0) return true;
    if (t.shape[d] != 1 && t.strides[d] != expected) return false;
    expected *= t.shape[d];
  }
  return true;
}

}  // namespace

std::string SubjectText(const Term& term) {
  std::string text = term.name;
  if (!term.argument.empty()) text += "(" + term.argument + ")";
  return term.modulo ? text + "%" + std::to_string(term.modulo) : text;
}

std::string TermText(const Term& term) {
  std::string text = SubjectText(term) + kSigns[static_cast<int>(term.compare)];
  if (term.name == "capability") return text + CapabilityText(static_cast<int>(term.number));
  if (term.words.empty()) return text + std::to_string(term.number);
  for (const std::string& word : term.words) text += (&word == &term.words[0] ? "" : "|") + word;
  return text;
}

bool CallCondition::Bind(const Operator& op, const std::vector<Term>& terms, CallCondition* bound,
                         const Term** at, std::string* error) {
  bound->text_ = ConditionText(terms);
  for (const Term& term : terms) {
    *at = &term;
    if (term.name == "device") {
      uint64_t mask = 0;
      for (const std::string& word : term.words) mask |= uint64_t{1} << DeviceFromName(word);
      if (mask & TypesBelow()) mask |= uint64_t{1} << kFrameworkDevice;
      bound->devices_ &= term.compare == Compare::kEqual ? mask : ~mask;
      continue;
    }
    Clause clause = {Subject::kSize, -1, term.compare, term.modulo, term.number, 0, TermText(term)};
    const bool known = term.name == "dtype" ? BindDtype(op, term, &clause, error)
                                            : BindNumber(op, term, &clause, error);
    if (!known) return false;
    bound->clauses_.push_back(std::move(clause));
  }
  return true;
}

bool CallCondition::BindDtype(const Operator& op, const Term& term, Clause* clause,
                              std::string* error) {
  clause->subject = Subject::kDtype;
  for (size_t i = 0; i < op.params.size() && clause->index < 0; ++i) {
    const Param& p = op.params[i];
    if (p.IsTensor() && (term.argument.empty() || term.argument == p.name))
      clause->index = static_cast<int>(i);
  }
  if (clause->index < 0) {
    *error = op.name + " has no tensor " + term.argument + "; " + Names(op);
    return false;
  }
  for (const std::string& word : term.words)
    clause->dtypes |= uint64_t{1} << DtypeFromName(word.c_str());
  return true;
}

bool CallCondition::BindNumber(const Operator& op, const Term& term, Clause* clause,
                               std::string* error) {
  const bool is_rank = term.name == "rank", is_numel = term.name == "numel";
  if (term.name == "capability") {
    clause->subject = Subject::kCapability;
    return true;
  }
  if (term.argument.empty()) {
    clause->index = FindSymbol(op, term.name);
    if (clause->index >= 0) return true;
    clause->subject = Subject::kArgument;
    clause->index = term.modulo ? -1 : FindArgument(op, term.name);
    if (clause->index >= 0) return true;
    clause->subject = Subject::kNumelOfGroup;  // "rows" alone
    clause->index = term.name == "rows" ? FindGroup(op, "rows") : -1;
  } else if (is_rank || is_numel) {
    clause->subject = is_rank ? Subject::kRank : Subject::kNumel;
    clause->index = FindTensor(op, term.argument);
    if (clause->index >= 0) return true;
    clause->subject = is_rank ? Subject::kRankOfGroup : Subject::kNumelOfGroup;
    clause->index = FindGroup(op, term.argument);
  } else if (term.name == "contiguous" || term.name == "address" || term.name == "given") {
    clause->subject = term.name == "address" ? Subject::kAddress
                      : term.name == "given" ? Subject::kGiven
                                             : Subject::kContiguous;
    clause->index = FindTensor(op, term.argument);
  }
  if (clause->index >= 0) return true;
  *error = op.name + " has no " + (term.argument.empty() ? "size " + term.name : term.argument) +
           "; " + Names(op);
  return false;
}

bool CallCondition::Value(const Clause& clause, const Facts& facts, int64_t* value) {
  if (clause.subject == Subject::kCapability) {
    *value = CapabilityOf(facts.device_type, facts.device_id);
    return *value != 0;
  }
  const AnyopTensor& t = facts.frame->tensors[clause.index];  // of a parameter
  switch (clause.subject) {
    case Subject::kSize:
      *value = facts.sizes->Symbol(clause.index);
      return facts.sizes->Known(clause.index);
    case Subject::kRankOfGroup:
      *value = facts.sizes->GroupKnown(clause.index) ? facts.sizes->GroupRank(clause.index) : 0;
      return facts.sizes->GroupKnown(clause.index);
    case Subject::kNumelOfGroup:
      return facts.sizes->GroupKnown(clause.index) && facts.sizes->Numel(clause.index, value);
    default:
      break;
  }
  const bool is_given = facts.dtypes[clause.index] != kAnyopNoDtype;
  *value = is_given;
  if (clause.subject == Subject::kGiven) return true;
  if (!is_given) return false;
  *value = clause.subject == Subject::kRank ? t.ndim : 1;
  if (clause.subject >= Subject::kContiguous) {  // as the kernel sees it, which may be expanded
    const uint32_t offset = facts.frame->op->params[static_cast<size_t>(clause.index)].offset;
    const auto& seen = **reinterpret_cast<AnyopTensor* const*>(facts.frame->args + offset);
    *value = clause.subject == Subject::kContiguous
                 ? IsContiguous(seen)
                 : static_cast<int64_t>(reinterpret_cast<uintptr_t>(seen.data) & INT64_MAX);
  }
  for (int d = 0; clause.subject == Subject::kNumel && d < t.ndim; ++d) *value *= t.shape[d];
  return true;
}

bool CallCondition::Argument(const Clause& clause, const Facts& facts, double* value) {
  const Param& p = facts.frame->op->params[static_cast<size_t>(clause.index)];
  const char* field = facts.frame->args + p.offset;
  if (p.Is(kAnyopOptional) && !reinterpret_cast<const AnyopOptionalInt*>(field)->has) return false;
  *value = p.kind == kAnyopFloat ? *reinterpret_cast<const double*>(field)
                                 : static_cast<double>(*reinterpret_cast<const int64_t*>(field));
  return true;
}

bool CallCondition::HoldsClause(const Clause& clause, const Facts& facts) {
  if (clause.subject == Subject::kDtype) {
    const uint8_t dtype = facts.dtypes[clause.index];
    if (dtype >= kAnyopNumDtypes) return false;
    return (clause.dtypes >> dtype & 1) == (clause.compare == Compare::kEqual);
  }
  if (clause.subject == Subject::kArgument) {
    double argument;
    return Argument(clause, facts, &argument) && Compares(clause, argument);
  }
  int64_t value;
  if (!Value(clause, facts, &value)) return false;
  return Compares(clause, clause.modulo ? value % clause.modulo : value);
}

template <typename T>
bool CallCondition::Compares(const Clause& clause, T found) {
  const T number = static_cast<T>(clause.number);
  switch (clause.compare) {
    case Compare::kEqual:
      return found == number;
    case Compare::kNotEqual:
      return found != number;
    case Compare::kLess:
      return found < number;
    case Compare::kLessEqual:
      return found <= number;
    case Compare::kGreater:
      return found > number;
    default:
      return found >= number;
  }
}

CallCondition::Decided CallCondition::Decide(int capability) const {
  Decided decided = Decided::kYes;
  for (const Clause& clause : clauses_) {
    if (clause.subject != Subject::kCapability || capability <= 0) {
      decided = Decided::kMaybe;
    } else if (!Compares(clause, int64_t{capability})) {
      return Decided::kNo;
    }
  }
  return decided;
}

bool CallCondition::Holds(const Facts& facts) const {
  for (const Clause& clause : clauses_) {
    if (!HoldsClause(clause, facts)) return false;
  }
  return true;
}

std::string CallCondition::Failing(const Facts& facts) const {
  for (const Clause& clause : clauses_) {
    if (HoldsClause(clause, facts)) continue;
    const std::string subject = clause.text.substr(0, clause.text.find_first_of("%=!<>"));
    int64_t value;
    if (clause.subject == Subject::kDtype)
      return clause.text + ", and it is " + DtypeName(facts.dtypes[clause.index]);
    if (clause.subject == Subject::kArgument) {
      double argument;
      if (!Argument(clause, facts, &argument)) return clause.text + ", and that is absent";
      char shown[32];
      std::snprintf(shown, sizeof shown, "%g", argument);
      return clause.text + ", and " + subject + " is " + shown;
    }
    if (!Value(clause, facts, &value)) return clause.text + ", and that is absent";
    if (clause.subject == Subject::kGiven)
      return clause.text + ", and it is " + (value ? "given" : "absent");
    if (clause.subject == Subject::kCapability)
      return clause.text + ", and it is " + CapabilityText(static_cast<int>(value));
    return clause.text + ", and " + subject + " is " + std::to_string(value);
  }
  return "";
}

std::string ConditionText(const std::vector<Term>& terms) {
  std::string text;
  for (const Term& term : terms) text += (text.empty() ? "" : " ") + TermText(term);
  return text;
}

std::string DeviceName(int device_type) {
  for (const Device& device : kDevices) {
    if (device.type == device_type) return device.name;
  }
  return "device type " + std::to_string(device_type);
}

int DeviceFromName(std::string_view name) {
  for (const Device& device : kDevices) {
    if (device.name == name) return device.type;
  }
  return -1;
}

}  // namespace anyop
