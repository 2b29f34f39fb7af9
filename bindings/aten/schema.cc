// SPDX-License-Identifier: Apache-2.0
// Reads schemas by torch's grammar: torch/csrc/jit/frontend/function_schema_parser.cpp says it.
#include "schema.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

namespace anyop::aten {
namespace {

struct KindName {
  const char* text;
  AnyopAtenKind kind;
};
constexpr KindName kKinds[] = {
    {"Tensor", kAnyopAtenKindTensor},
    {"Scalar", kAnyopAtenKindScalar},
    {"int", kAnyopAtenKindInt},
    {"SymInt", kAnyopAtenKindInt},
    {"float", kAnyopAtenKindFloat},
    {"bool", kAnyopAtenKindBool},
    {"SymBool", kAnyopAtenKindBool},
    {"str", kAnyopAtenKindStr},
    {"ScalarType", kAnyopAtenKindDtype},
    {"Layout", kAnyopAtenKindLayout},
    {"MemoryFormat", kAnyopAtenKindMemoryFormat},
    {"Device", kAnyopAtenKindDevice},
    {"Generator", kAnyopAtenKindGenerator},
};

AnyopAtenKind KindOf(std::string_view text) {
  for (const KindName& known : kKinds) {
    if (text == known.text) return known.kind;
  }
  return kAnyopAtenKindOther;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  char Peek() const { return at_ < end_ ? *at_ : '\0'; }
  bool Take(std::string_view word) {
    while (Peek() == ' ') ++at_;
    if (static_cast<size_t>(end_ - at_) < word.size() ||
        std::memcmp(at_, word.data(), word.size()) != 0)
      return false;
    at_ += word.size();
    return true;
  }
  std::string_view Word() {
    while (Peek() == ' ') ++at_;
    const char* begin = at_;
    while (at_ < end_ &&
           (std::isalnum(static_cast<unsigned char>(*at_)) || *at_ == '_' || *at_ == '.'))
      ++at_;
    return {begin, static_cast<size_t>(at_ - begin)};
  }

  // "Tensor(a!)[]", "int[2]?". *alias: the letters of the set, empty where there is none.
  bool Type(Param* p, std::string_view* alias) {
    const std::string_view base = Word();
    if (base.empty()) return false;
    p->type.kind = static_cast<uint8_t>(KindOf(base));
    p->type.alias = -1;
    p->symbolic = base == "SymInt";
    p->type_text = base == "SymInt" ? "int" : base == "SymBool" ? "bool" : std::string(base);
    for (;;) {
      if (Peek() == '(') {
        if (!Alias(base == "Dict" ? nullptr : alias, p)) return false;
      } else if (Peek() == '[') {
        if (!ListOf(p)) return false;
      } else if (Peek() == '?') {
        ++at_;
        p->type.flags |= kAnyopAtenOptional;
        p->type_text += '?';
      } else {
        return true;
      }
    }
  }

  // A default; lists and text stay for ever.
  bool Default(AnyopAtenValue* value) {
    if (Take("[")) return List(value);
    if (Take("\"")) return Text(value);
    const std::string_view word = Number();
    if (word == "None") return *value = {}, true;
    if (word == "True" || word == "False") {
      value->tag = kAnyopAtenBool;
      value->as.i = word == "True";
      return true;
    }
    const std::string text(word);
    char* stop = nullptr;
    if (text.find_first_of(".en") == std::string::npos) {
      value->tag = kAnyopAtenInt;
      value->as.i = std::strtoll(text.c_str(), &stop, 10);
    } else {
      value->tag = kAnyopAtenFloat;
      value->as.f = std::strtod(text.c_str(), &stop);
    }
    return !text.empty() && !*stop;
  }

 private:
  std::string_view Number() {
    while (Peek() == ' ') ++at_;
    const char* begin = at_;
    while (at_ < end_ && !std::strchr(",)] ", *at_)) ++at_;
    return {begin, static_cast<size_t>(at_ - begin)};
  }

  // "(a!)", "(a -> *)"; of a dictionary its types.
  bool Alias(std::string_view* alias, Param* p) {
    const char* begin = ++at_;
    while (at_ < end_ && *at_ != ')') ++at_;
    if (at_ == end_) return false;
    const std::string_view inside(begin, static_cast<size_t>(at_++ - begin));
    if (!alias) return true;
    if (inside.find('!') != std::string_view::npos) p->type.flags |= kAnyopAtenWrites;
    if (alias->empty()) *alias = inside.substr(0, inside.find_first_of("!| "));
    return true;
  }

  bool ListOf(Param* p) {
    const char* begin = at_++;
    if (Peek() != ']') {
      char* stop = nullptr;
      p->fixed_count = static_cast<int32_t>(std::strtol(at_, &stop, 10));
      at_ = stop;
    }
    if (!Take("]")) return false;
    if (p->type.flags & kAnyopAtenOptional)  // T?[]
      p->type.flags =
          static_cast<uint8_t>((p->type.flags & ~kAnyopAtenOptional) | kAnyopAtenOptionalElements);
    p->type.flags |= kAnyopAtenIsList;
    p->type_text.append(begin, at_);
    return true;
  }

  bool List(AnyopAtenValue* value) {
    std::vector<AnyopAtenValue> items;
    while (!Take("]")) {
      items.emplace_back();
      if (!Default(&items.back())) return false;
      Take(",");
    }
    value->tag = kAnyopAtenList;
    value->more.count = static_cast<int64_t>(items.size());
    value->as.list = new AnyopAtenValue[items.size() + 1];
    std::copy(items.begin(), items.end(), value->as.list);
    return true;
  }

  bool Text(AnyopAtenValue* value) {
    std::string text;
    for (; at_ < end_ && *at_ != '"'; ++at_) {
      if (*at_ == '\\' && at_ + 1 < end_) ++at_;
      text += *at_;
    }
    if (!Take("\"")) return false;
    char* kept = new char[text.size() + 1];
    std::memcpy(kept, text.c_str(), text.size() + 1);
    value->tag = kAnyopAtenStr;
    value->as.s = kept;
    value->more.count = static_cast<int64_t>(text.size());
    return true;
  }

  const char* at_;
  const char* end_;
};

bool ReadParam(Reader* in, Op* op, std::vector<std::string>* aliases, bool keyword_only) {
  Param p;
  std::string_view alias;
  if (!in->Type(&p, &alias)) return false;
  p.name = in->Word();
  p.keyword_only = keyword_only;
  if (in->Take("=")) {
    p.has_default = true;
    if (!in->Default(&p.default_value)) return false;
  }
  aliases->emplace_back(alias);
  op->params.push_back(std::move(p));
  return true;
}

bool ReadParams(Reader* in, Op* op, std::vector<std::string>* aliases) {
  bool keyword_only = false;
  while (!in->Take(")")) {
    if (in->Take("*")) {
      keyword_only = true;
    } else if (!ReadParam(in, op, aliases, keyword_only)) {
      return false;
    }
    in->Take(",");
  }
  return true;
}

bool ReadResult(Reader* in, Op* op, const std::vector<std::string>& aliases) {
  Param p;
  std::string_view alias;
  if (!in->Type(&p, &alias)) return false;
  for (size_t i = 0; !alias.empty() && i < aliases.size(); ++i) {
    if (aliases[i] == alias) p.type.alias = static_cast<int16_t>(i);
  }
  p.name = in->Word();
  op->results.push_back(std::move(p));
  return true;
}

bool ReadResults(Reader* in, Op* op, const std::vector<std::string>& aliases) {
  if (!in->Take("->")) return false;
  if (!in->Take("(")) return ReadResult(in, op, aliases);
  while (!in->Take(")")) {
    if (!ReadResult(in, op, aliases)) return false;
    in->Take(",");
  }
  return true;
}

// Torch's C shim converts no Scalar and no Generator, and results only where all are of one type.
std::string ShimRefusal(const Op& op) {
  for (const Param& p : op.params) {
    if (p.type.kind == kAnyopAtenKindScalar) return "a Scalar (" + p.name + ")";
  }
  for (const Param& p : op.results) {
    if (p.type.kind == kAnyopAtenKindScalar || p.type.kind == kAnyopAtenKindStr)
      return "a result of type " + p.type_text;
    if (p.type_text != op.results[0].type_text) return "results of different types";
  }
  return "";
}

void Judge(Op* op) {
  for (const auto* values : {&op->params, &op->results}) {
    for (const Param& p : *values) {
      if (p.type.kind == kAnyopAtenKindOther && op->refusal.empty())
        op->refusal = "it has a " + p.type_text + (p.name.empty() ? "" : " " + p.name) +
                      ", which only torch can make";
    }
  }
  op->needs_glue = ShimRefusal(*op);
}

}  // namespace

bool ReadSchema(std::string_view text, Op* op) {
  op->schema = text;
  const size_t bracket = text.find('(');
  if (bracket == std::string_view::npos) return false;
  op->full_name = text.substr(0, bracket);
  const size_t dot = op->full_name.find('.');
  op->name = "aten::" + op->full_name.substr(0, dot);
  op->overload = dot == std::string::npos ? "" : op->full_name.substr(dot + 1);
  Reader in(text.substr(bracket + 1));
  std::vector<std::string> aliases;
  if (!ReadParams(&in, op, &aliases) || !ReadResults(&in, op, aliases)) return false;
  for (const Param& p : op->params) {
    op->types.push_back(p.type);
    if (!p.keyword_only) ++op->num_positional;
  }
  Judge(op);
  return true;
}

bool ReadHiddenWrites(std::string_view text, Op* op) {
  auto index = [&](std::string_view name) {
    size_t i = 0;
    while (i < op->params.size() && op->params[i].name != name) ++i;
    return i;
  };
  const size_t mark = text.find('?');
  const size_t condition =
      mark == std::string_view::npos ? op->params.size() : index(text.substr(mark + 1));
  if (mark != std::string_view::npos && condition == op->params.size()) return false;
  text = text.substr(0, mark);
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const size_t param = index(text.substr(0, end));
    if (param == op->params.size()) return false;
    op->hidden_writes.push_back({param, mark == std::string_view::npos ? param : condition});
    AnyopAtenType& type = op->types[param];
    type.flags |= kAnyopAtenWritesUnmarked;
    if (mark != std::string_view::npos) type.alias = static_cast<int16_t>(condition);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

}  // namespace anyop::aten
