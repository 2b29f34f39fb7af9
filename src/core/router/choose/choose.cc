// SPDX-License-Identifier: Apache-2.0
// Asks the implementations of a route in turn.
#include "router/choose/choose.h"

#include <cstring>
#include <memory>

#include "router/choose/capability.h"
#include "router/choose/device_below.h"
#include "router/report/json.h"
#include "router/report/log.h"
#include "router/report/record.h"
#include "router/router.h"
#include "router/rules/scope.h"
#include "router/rules/settings.h"

namespace anyop {
namespace {

class Chooser {
 public:
  Chooser(Frame* frame, const Facts& facts)
      : frame_(frame),
        op_(*frame->op),
        facts_(facts),
        type_(facts.device_type),
        id_(facts.device_id) {}

  int32_t Run(Ready* ready, int* runs_as) {
    Find();
    NoteDeclined();
    if (frame_->explanation) *frame_->explanation = Explain();
    if (chosen_ && falls_back_ && TheSettings().fallback == Fallback::kError) return FailFallback();
    if (!chosen_) return FailNone();
    if (frame_->explanation) return kAnyopOk;
    if (facts_.declined && facts_.declined->counted) Uncount();
    *ready = {chosen_->run, chosen_->context, choice_};
    *runs_as = RunsAs(*chosen_, type_);
    const_cast<Implementation*>(chosen_)->calls.fetch_add(1, std::memory_order_relaxed);
    Say();
    return kAnyopOk;
  }

 private:
  void Uncount() const {
    for (const Implementation* i : ListImplementations(&op_)) {
      if (HasDeclined(*i) == facts_.declined)
        const_cast<Implementation*>(i)->calls.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  // The last that left this call to others; nullptr where it has been taken away meanwhile.
  Implementation* LastDeclined() const {
    for (const Implementation* i : ListImplementations(&op_)) {
      if (HasDeclined(*i) == facts_.declined) return const_cast<Implementation*>(i);
    }
    return nullptr;
  }

  // For those who ask later, without a call.
  void NoteDeclined() const {
    Implementation* i = facts_.declined ? LastDeclined() : nullptr;
    if (!i || i->declined.load(std::memory_order_relaxed)) return;
    auto made = std::make_unique<const std::string>(facts_.declined->why);
    const std::string* none = nullptr;
    if (i->declined.compare_exchange_strong(none, made.get()))
      static_cast<void>(made.release());  // the implementation's now
  }

  void Find() {
    if (LearnCapabilities(type_)) PublishWhatIsKnown();
    route_ = op_.route.load(std::memory_order_acquire);
    chosen_ = nullptr;
    const Variants* variants = &route_->On(type_).variants;
    const Scope* scope = frame_->scope ? frame_->scope : route_->scoped ? CurrentScope() : nullptr;
    if (scope) {
      const Variants* own = VariantsInScope(&op_, *route_, *scope, type_);
      if (own) variants = own;
    }
    size_t v = 0;
    while (!(*variants)[v].when.Holds(facts_)) ++v;  // the last one always holds
    variant_ = &(*variants)[v];
    for (size_t i = 0; i < variant_->order.size(); ++i) {
      if (!Takes(*variant_->order[i].implementation)) continue;
      chosen_ = variant_->order[i].implementation;
      choice_ = variant_->order[i].choice;
      falls_back_ = FallsBack(i);
      return;
    }
  }

  const Declined* HasDeclined(const Implementation& i) const {
    const Declined* at = facts_.declined;
    while (at && (at->ready.run != i.run || at->ready.context != i.context)) at = at->before;
    return at;
  }

  bool Takes(const Implementation& i) const {
    if (facts_.declined && HasDeclined(i)) return false;
    if (i.readiness.load(std::memory_order_acquire) == Readiness::kUnresolved) {
      if (frame_->hold) frame_->hold(frame_);  // who makes it ready may be written in Python
      MakeReady(&i);
    }
    const Readiness found = i.readiness.load(std::memory_order_acquire);
    // Who only asks is told of what the first call will build.
    const bool ready =
        found == Readiness::kReady || (frame_->explanation && found == Readiness::kUnresolved);
    return ready && i.when.Holds(facts_);
  }

  // Beyond what a rule names, or, without a rule, to what is there for want of a better.
  bool FallsBack(size_t at) const {
    if (!variant_->named.empty()) return at >= variant_->listed;
    if (chosen_->is_own || chosen_->priority >= 0) return false;
    for (const Implementation* i : ListImplementations(&op_)) {
      if (i->is_own && !IsDisabled(*i)) return true;
    }
    return false;
  }

  std::string WhyNot(const Implementation& i) const {
    std::string refusal = WhyNotRouted(i, type_);
    if (!refusal.empty()) return refusal;
    if (i.readiness.load(std::memory_order_acquire) == Readiness::kMissing) return i.why;
    if (const Declined* declined = HasDeclined(i)) return declined->why;
    const std::string failing = i.when.Failing(facts_);
    return failing.empty() ? "" : "takes " + failing;
  }

  std::string WhyNotAll() const {
    std::string text;
    for (const Implementation* i : ListImplementations(&op_))
      text += (text.empty() ? "" : "; ") + i->name + " " + WhyNot(*i);
    return text.empty() ? "" : " (" + text + ")";
  }

  int32_t FailNone() {
    return Fail(frame_, kAnyopNotImplemented, "has no kernel for %s%s", DeviceName(type_).c_str(),
                WhyNotAll().c_str());
  }

  // Why those of the rule do not run; without one, the operator's own.
  std::string WhyFallback() const {
    std::string text;
    for (const std::string& asked : variant_->named) {
      const auto [name, choice] = ReadAsked(asked);
      bool found = false;
      for (const Implementation* i : ListImplementations(&op_)) {
        if (i->backend != name && i->name != name) continue;
        found = true;
        const std::string wrong = WrongChoice(*i, choice);
        text += (text.empty() ? "" : "; ") + (wrong.empty() ? i->name + " " + WhyNot(*i) : wrong);
      }
      if (!found) text += (text.empty() ? "" : "; ") + name + " is not there";
    }
    for (const Implementation* i : ListImplementations(&op_)) {
      const std::string why = variant_->named.empty() && i->is_own ? WhyNot(*i) : "";
      if (!why.empty()) text += (text.empty() ? "" : "; ") + i->name + " " + why;
    }
    return text;
  }

  int32_t FailFallback() {
    return Fail(frame_, kAnyopNotImplemented,
                "%s; %s would run instead, which ANYOP_FALLBACK=error forbids",
                WhyFallback().c_str(), chosen_->name.c_str());
  }

  static std::string Name(const Implementation* i) { return i ? i->name : "another"; }

  void Say() {
    Choice choice = {&op_, chosen_, variant_->reason, type_, id_, choice_, falls_back_};
    if (falls_back_ && TheSettings().fallback == Fallback::kWarn && IsNewFallback(choice))
      LogFallback(op_.name + ": " + WhyFallback() + "; " + chosen_->name + " runs instead");
    if (facts_.declined && facts_.declined->is_told && !falls_back_ &&
        TheSettings().fallback == Fallback::kWarn && IsNewFallback(choice))
      LogFallback(op_.name + ": " + Name(LastDeclined()) + " " + facts_.declined->why + "; " +
                  chosen_->name + " runs instead");
    if (LogLevel() > 0) LogChoice(choice);
    if (IsRecording() && !facts_.declined) RecordCall(*frame_, facts_, *chosen_);
  }

  std::string Explain() const {
    Json json;
    json.Open('{').Key("operator").Text(op_.name);
    json.Key("device").Text(DeviceName(type_) + ":" + std::to_string(id_));
    json.Key("chosen");
    chosen_ ? json.Text(chosen_->name) : json.Raw("null");
    json.Key("choice");
    chosen_&& choice_ >= 0 ? json.Number(choice_) : json.Raw("null");
    json.Key("reason").Text(variant_->reason).Key("rule").Open('[');
    for (const std::string& name : variant_->named) json.Text(name);
    json.Close(']').Key("fallback").Boolean(chosen_ && falls_back_);
    if (chosen_ && falls_back_) json.Key("why_fallback").Text(WhyFallback());
    json.Key("copied").Open('[');
    for (uint64_t left = facts_.copied; left; left &= left - 1)
      json.Text(op_.params[static_cast<size_t>(__builtin_ctzll(left))].name);
    json.Close(']').Key("candidates").Open('[');
    for (const Implementation* i : ListImplementations(&op_)) ExplainOne(&json, *i);
    return json.Close(']').Close('}').text();
  }

  void ExplainOne(Json* json, const Implementation& i) const {
    if (i.readiness.load() == Readiness::kUnresolved && WhyNotRouted(i, type_).empty())
      MakeReady(&i);
    std::string why = &i == chosen_ ? "" : WhyNot(i);
    if (&i != chosen_ && why.empty())
      why = chosen_ ? "comes after " + chosen_->name : "was made ready meanwhile";
    json->Open('{').Key("name").Text(i.name).Key("backend").Text(i.backend);
    json->Key("source").Text(i.source).Key("priority").Number(i.priority);
    json->Key("choices").Number(i.choices);
    json->Key("deterministic").Boolean(i.deterministic).Key("when").Text(i.when_text);
    json->Key("why_not").Text(why);
    const std::string* declined = i.declined.load(std::memory_order_acquire);
    json->Key("declined").Text(declined ? *declined : "").Close('}');
  }

  Frame* frame_;
  const Operator& op_;
  const Facts& facts_;
  const int type_, id_;
  const Route* route_ = nullptr;
  const Variant* variant_ = nullptr;
  const Implementation* chosen_ = nullptr;
  int choice_ = -1;
  bool falls_back_ = false;
};

}  // namespace

Declined::Declined(Frame* frame, const Ready& asked, bool was_counted, const Declined* others)
    : ready(asked), why("does not take the call"), counted(was_counted), before(others) {
  if (const char* text = std::strstr(frame->error, ": ")) {  // behind the operator
    is_told = text[2] != 0;
    why = is_told ? text + 2 : "leaves the call to others, which are faster";
  }
  frame->error[0] = 0;
}

int32_t Choose(Frame* frame, const Facts& facts, Ready* ready, int* runs_as) {
  return Chooser(frame, facts).Run(ready, runs_as);
}

}  // namespace anyop
