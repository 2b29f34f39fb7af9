// SPDX-License-Identifier: Apache-2.0
// Reads the text of a call: a function's name and its arguments, written as in Python.
#include "call_plan.h"

#include <locale.h>
#include <stdlib.h>

#include <algorithm>

namespace anyop::ffi {
namespace {

bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Whether a parameter is a number that expressions may use.
bool IsInteger(const Param& p) {
  return p.kind == kAnyopInt && !p.IsList() && !p.Is(kAnyopOptional);
}

struct View {
  const char* word;
  PlanArgument::Kind kind;
};
constexpr View kViews[] = {{"rows", PlanArgument::kRows}, {"flat", PlanArgument::kFlat}};
struct Binary {
  const char* word;
  PlanStep::Kind kind;
};
constexpr Binary kSums[] = {{"+", PlanStep::kAdd}, {"-", PlanStep::kSubtract}};
constexpr Binary kProducts[] = {
    {"//", PlanStep::kFloorDivide}, {"*", PlanStep::kMultiply}, {"%", PlanStep::kRemainder}};

class Parser {
 public:
  Parser(std::string_view text, const Operator& op, std::string* error)
      : text_(text), op_(op), error_(error) {}

  bool Parse(CallPlan* plan) {
    Blanks();
    const size_t begin = at_;
    while (at_ < text_.size() && (IsWord(text_[at_]) || text_[at_] == '.')) ++at_;
    plan->function = text_.substr(begin, at_ - begin);
    if (plan->function.empty()) return Expected("the name of a function");
    if (!Take("(")) return Expected("( and the function's arguments");
    if (!Take(")")) {
      do {
        if (plan->arguments.size() == kMaxParams) return Expected("at most 64 arguments");
        if (!Argument(&plan->arguments.emplace_back())) return false;
      } while (Take(","));
      if (!Take(")")) return Expected(", or )");
    }
    Blanks();
    if (at_ < text_.size()) return Expected("nothing behind the call");
    return WritesAllResults(*plan);
  }

 private:
  void Blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool Expected(const std::string& what) {
    const std::string_view rest = text_.substr(at_, 24);
    const std::string call(text_.substr(0, 200));
    *error_ = "column " + std::to_string(at_ + 1) + " of the call '" + call + "': found " +
              (rest.empty() ? "its end" : "'" + std::string(rest) + "'") + ", expected " + what;
    return false;
  }

  bool Take(std::string_view word) {
    Blanks();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  std::string_view PeekName() {
    Blanks();
    size_t end = at_;
    if (end < text_.size() && IsDigit(text_[end])) return {};
    while (end < text_.size() && IsWord(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }

  bool TakeName(std::string_view name) {
    if (PeekName() != name) return false;
    at_ += name.size();
    return true;
  }

  // Behind a word: a name of its own may stand there without one.
  bool TakeWordAndParenthesis(std::string_view word) {
    const size_t before = at_;
    if (TakeName(word) && Take("(")) return true;
    at_ = before;
    return false;
  }

  int FindParam(std::string_view name) const {
    for (size_t i = 0; i < op_.params.size(); ++i) {
      if (name == op_.params[i].name) return static_cast<int>(i);
    }
    return -1;
  }

  bool Argument(PlanArgument* argument) {
    Blanks();
    const size_t begin = at_;
    if (!ArgumentOfKind(argument)) return false;
    if (argument->kind != PlanArgument::kText) argument->text = text_.substr(begin, at_ - begin);
    return true;
  }

  bool ArgumentOfKind(PlanArgument* argument) {
    if (Constant(argument)) return true;
    if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'')) return Text(argument);
    if (Take("[")) return List(argument);
    for (const View& view : kViews) {
      if (TakeWordAndParenthesis(view.word)) return ViewOf(view.kind, argument);
    }
    if (TakeWordAndParenthesis("workspace")) {
      argument->kind = PlanArgument::kWorkspace;
      return Expression(&argument->steps) && (Take(")") || Expected(")"));
    }
    const std::string_view name = PeekName();
    const int param = FindParam(name);
    if (param >= 0 && !IsInteger(op_.params[param])) {
      at_ += name.size();
      argument->kind = PlanArgument::kParam;
      argument->param = param;
      return true;
    }
    argument->kind = PlanArgument::kInteger;
    return Expression(&argument->steps);
  }

  // None, True, False and numbers with a point or an exponent.
  bool Constant(PlanArgument* argument) {
    if (TakeName("None")) return true;
    const bool is_true = TakeName("True");
    if (is_true || TakeName("False")) {
      argument->kind = PlanArgument::kBool;
      argument->number = is_true;
      return true;
    }
    size_t end = at_ + (at_ < text_.size() && text_[at_] == '-');
    const size_t first = end;
    bool is_float = false;
    while (end < text_.size() && (IsDigit(text_[end]) || (end > first && IsFloatSign(end)))) {
      is_float |= !IsDigit(text_[end++]);
    }
    if (!is_float) return false;
    static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
    const std::string literal(text_.substr(at_, end - at_));
    char* stop = nullptr;
    argument->number = strtod_l(literal.c_str(), &stop, c_locale);
    if (*stop) return false;
    argument->kind = PlanArgument::kFloat;
    at_ = end;
    return true;
  }

  bool IsFloatSign(size_t at) const {
    const char c = text_[at], before = text_[at - 1];
    return c == '.' || c == 'e' || c == 'E' || ((c == '-' || c == '+') && (before | 32) == 'e');
  }

  // Without escapes: no name of a mode needs one.
  bool Text(PlanArgument* argument) {
    const char quote = text_[at_];
    const size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) return Expected(std::string("a closing ") + quote);
    argument->kind = PlanArgument::kText;
    argument->text = text_.substr(at_ + 1, end - at_ - 1);
    if (argument->text.find('\\') != std::string::npos) return Expected("a text without \\");
    at_ = end + 1;
    return true;
  }

  bool List(PlanArgument* argument) {
    argument->kind = PlanArgument::kList;
    if (Take("]")) return true;
    do {
      PlanArgument& element = argument->elements.emplace_back();
      Blanks();
      if (Constant(&element)) {
        if (element.kind == PlanArgument::kNone) return Expected("a number in front of it");
        continue;
      }
      element.kind = PlanArgument::kInteger;
      if (!Expression(&element.steps)) return false;
    } while (Take(","));
    return Take("]") || Expected(", or ]");
  }

  bool ViewOf(PlanArgument::Kind kind, PlanArgument* argument) {
    argument->kind = kind;
    return Tensor(&argument->param) && (Take(")") || Expected(")"));
  }

  bool Tensor(int* param) {
    const std::string_view name = PeekName();
    *param = FindParam(name);
    if (*param < 0 || !op_.params[*param].IsTensor() || op_.params[*param].IsList()) {
      return Expected("a tensor of " + Schema());
    }
    at_ += name.size();
    return true;
  }

  template <size_t count>
  bool Operands(const Binary (&signs)[count], bool (Parser::*operand)(std::vector<PlanStep>*),
                std::vector<PlanStep>* steps) {
    if (!(this->*operand)(steps)) return false;
    for (bool more = true; more;) {
      more = false;
      for (const Binary& sign : signs) {
        if (!Take(sign.word)) continue;
        if (!(this->*operand)(steps)) return false;
        steps->push_back({sign.kind, 0});
        more = true;
        break;
      }
    }
    return true;
  }

  // Checked here, so that a call needs no check of the stack.
  bool Expression(std::vector<PlanStep>* steps) {
    if (!Sum(steps)) return false;
    int held = 0, most = 0;
    for (const PlanStep& step : *steps) {
      held += step.kind < PlanStep::kAdd ? 1 : -1;
      most = std::max(most, held);
    }
    return most <= kMaxPlanStack || Expected("a simpler expression in front of it");
  }

  bool Sum(std::vector<PlanStep>* steps) { return Operands(kSums, &Parser::Product, steps); }
  bool Product(std::vector<PlanStep>* steps) {
    return Operands(kProducts, &Parser::Operand, steps);
  }

  bool Operand(std::vector<PlanStep>* steps) {
    if (Take("-")) {
      steps->push_back({PlanStep::kConst, 0});
      if (!Number(steps)) return false;
      steps->push_back({PlanStep::kSubtract, 0});
      return true;
    }
    return Number(steps);
  }

  bool Number(std::vector<PlanStep>* steps) {
    if (++depth_ > 100) return Expected("a simpler expression");
    const bool good = NumberOrParenthesis(steps);
    --depth_;
    return good;
  }

  bool NumberOrParenthesis(std::vector<PlanStep>* steps) {
    if (Take("(")) return Sum(steps) && (Take(")") || Expected(")"));
    if (TakeWordAndParenthesis("min")) return Pair(PlanStep::kMin, ",", steps);
    if (TakeWordAndParenthesis("max")) return Pair(PlanStep::kMax, ",", steps);
    if (TakeWordAndParenthesis("ceil")) return Quotient(steps);
    if (TakeWordAndParenthesis("numel")) {
      int param = -1;
      if (!Tensor(&param)) return false;
      steps->push_back({PlanStep::kNumel, param});
      return Take(")") || Expected(")");
    }
    Blanks();
    if (at_ < text_.size() && IsDigit(text_[at_])) return Digits(steps);
    return SizeOrParam(steps);
  }

  bool Pair(PlanStep::Kind kind, const char* between, std::vector<PlanStep>* steps) {
    if (!Sum(steps)) return false;
    if (!Take(between)) return Expected(between);
    if (!Sum(steps)) return false;
    steps->push_back({kind, 0});
    return Take(")") || Expected(")");
  }

  bool Quotient(std::vector<PlanStep>* steps) {
    if (!Product(steps)) return false;
    if (!Take("/")) return Expected("/ as in ceil(D/128)");
    if (!Product(steps)) return false;
    steps->push_back({PlanStep::kCeilDivide, 0});
    return Take(")") || Expected(")");
  }

  bool Digits(std::vector<PlanStep>* steps) {
    int64_t value = 0;
    while (at_ < text_.size() && IsDigit(text_[at_])) {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, text_[at_] - '0', &value))
        return Expected("a number of 64 bits");
      ++at_;
    }
    steps->push_back({PlanStep::kConst, value});
    return true;
  }

  bool SizeOrParam(std::vector<PlanStep>* steps) {
    const std::string_view name = PeekName();
    const int param = FindParam(name);
    if (param >= 0 && IsInteger(op_.params[param])) {
      at_ += name.size();
      steps->push_back({PlanStep::kParam, param});
      return true;
    }
    for (int i = 0; i < op_.num_sizes; ++i) {
      if (name != op_.SymbolName(i) || op_.element_symbols >> i & 1) continue;
      at_ += name.size();
      steps->push_back({PlanStep::kSize, i});
      return true;
    }
    return Expected("an argument, a result or a size of " + Schema());
  }

  std::string Schema() const { return op_.table->schema; }

  bool WritesAllResults(const CallPlan& plan) {
    for (size_t i = 0; i < op_.params.size(); ++i) {
      const Param& p = op_.params[i];
      bool given = !p.Is(kAnyopOutput) && !p.Is(kAnyopMutated);
      for (const PlanArgument& argument : plan.arguments)
        given |= argument.param == static_cast<int>(i);
      if (!given)
        return Expected(std::string(p.name) +
                        " among the arguments, which the function must write");
    }
    return true;
  }

  std::string_view text_;
  const Operator& op_;
  std::string* error_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

bool ParseCall(std::string_view text, const Operator& op, CallPlan* plan, std::string* error) {
  if (text.size() > 4096) {
    *error = "the call has more than 4096 characters";
    return false;
  }
  return Parser(text, op, error).Parse(plan);
}

}  // namespace anyop::ffi
