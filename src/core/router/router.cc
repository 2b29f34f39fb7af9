// SPDX-License-Identifier: Apache-2.0
// Takes in implementations, and makes those ready that are needed.
#include "router/router.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "anyop/forms/image_maker.h"
#include "router/report/log.h"
#include "router/router_state.h"

namespace anyop {
namespace {

std::atomic<MakeImage> image_maker{nullptr};

// The context of a Triton kernel in images.
struct ImageMaker : AnyopImageMaker {
  std::string op, text;
};

int32_t MakeImageOf(const AnyopImageMaker* maker, const char* kind, char* text, size_t bytes) {
  const MakeImage make = image_maker.load(std::memory_order_acquire);
  std::string answer = "it is made by Python with anyop";
  const auto* self = static_cast<const ImageMaker*>(maker);
  bool made = false;
  try {
    made = make && make(self->op, self->text, kind, &answer);
    made = made && answer.size() < bytes;
  } catch (const std::exception& error) {  // never through the kernel's C
    answer = error.what();
  }
  std::snprintf(text, bytes, "%s", answer.c_str());
  return made ? 0 : 1;
}

// The list with `added` in the place of what has its name, which is returned if there is one.
Implementation* Insert(std::vector<Implementation*>* list, Implementation* added) {
  Implementation* replaced = nullptr;
  const auto same = std::find_if(list->begin(), list->end(),
                                 [&](Implementation* i) { return i->name == added->name; });
  if (same != list->end()) {
    replaced = *same;
    list->erase(same);
  }
  const auto at = std::find_if(list->begin(), list->end(),
                               [&](Implementation* i) { return i->priority < added->priority; });
  list->insert(at, added);
  return replaced;
}

// No route that is kept leads to it any more. The caller holds the lock.
void TakeAway(State* state, Implementation* implementation) {
  for (auto at = state->routes.begin(); at != state->routes.end();) {
    const auto holds = [&](const OnDevice& on) {
      const auto& there = on.candidates;
      return std::find(there.begin(), there.end(), implementation) != there.end();
    };
    const auto& devices = at->second->devices;
    const bool leads = std::any_of(devices.begin(), devices.end(), holds);
    if (leads) Retire(at->second.release());
    at = leads ? state->routes.erase(at) : std::next(at);
  }
  Retire(implementation);
}

// A kernel's condition speaks of what it runs as.
bool NamesKernelsDevices(const std::vector<Term>& terms, std::string* error) {
  for (const Term& term : terms) {
    if (term.name != "device" || std::count(term.words.begin(), term.words.end(), "anyop") == 0)
      continue;
    *error = "found device anyop, which is for rules: on it run the kernels of cpu, cuda or hip";
    return false;
  }
  return true;
}

bool BindWhen(const char* when, Implementation* made, std::string* error) {
  std::vector<Term> terms;
  const Term* at;
  made->when_text = when ? when : "";
  if (ParseCondition(made->when_text, &terms, error) && NamesKernelsDevices(terms, error) &&
      CallCondition::Bind(*made->op, terms, &made->when, &at, error))
    return true;
  *error = made->op->name + ": when of " + made->name + ": " + *error;
  return false;
}

// Fields that a record of an older library lacks read as 0.
AnyopKernelEntry WholeEntry(const AnyopOp* table, uint32_t i) {
  AnyopKernelEntry entry = {};
  const char* at = reinterpret_cast<const char*>(table->kernels) + size_t{i} * table->kernel_size;
  std::memcpy(&entry, at, std::min<size_t>(table->kernel_size, sizeof entry));
  return entry;
}

std::unique_ptr<Implementation> FromEntry(const Operator* op, const AnyopKernelEntry& entry) {
  auto made = std::make_unique<Implementation>();
  made->op = op;
  made->backend = entry.backend;
  made->name = entry.name ? entry.name : entry.backend;
  made->source = entry.source ? entry.source : "";
  made->form = entry.form ? entry.form : "";
  made->text = entry.text ? entry.text : "";
  made->device_type = entry.device_type;
  made->priority = entry.priority;
  made->choices = static_cast<int>(std::min<uint32_t>(entry.choices, kMaxChoices));
  made->deterministic = entry.flags & kAnyopDeterministic;
  made->is_own = entry.run != nullptr;
  made->run = entry.run;
  if (entry.run) made->readiness = Readiness::kReady;
  if (made->form == "triton") {  // kept as long as shortcuts, which hold it, are: for good
    made->context = new ImageMaker{{sizeof(AnyopImageMaker), MakeImageOf}, op->name, made->text};
    made->is_own = false;
  }
  return made;
}

void TakeIn(State* state, std::unique_ptr<Implementation> made, const char* when) {
  std::string why;
  if (!BindWhen(when, made.get(), &why)) {
    made->readiness = Readiness::kMissing;
    made->why = "its condition cannot be read: " + why;
  }
  Insert(&state->implementations, made.get());
  static_cast<void>(made.release());  // the state's now
}

// Backends that compute the texts of another, with a library of their own, on CUDA.
constexpr const char* kOfAtensTexts[] = {"flaggems", "flaggems_c"};

std::unique_ptr<Implementation> Derived(const Implementation& aten, const char* backend) {
  auto made = std::make_unique<Implementation>();
  made->op = aten.op;
  made->form = made->backend = backend;
  const bool is_first = aten.name.compare(0, aten.backend.size(), aten.backend) == 0;
  made->name = backend + (is_first ? aten.name.substr(aten.backend.size()) : "." + aten.name);
  made->source = "flag_gems";
  made->text = aten.text;
  made->device_type = 2;  // kDLCUDA
  made->priority = -110;  // behind aten: nobody's default
  return made;
}

}  // namespace

Implementation::~Implementation() {
  ForgetChoices(this);
  if (forget) forget(resolve_context, context);
  delete declined.load();
}

std::unique_ptr<Implementation> NewImplementation() { return std::make_unique<Implementation>(); }

void AddToRouter(Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  State& state = router.states[op];
  state.op = op;
  for (uint32_t i = 0; i < op->table->num_kernels; ++i) {
    const AnyopKernelEntry entry = WholeEntry(op->table, i);
    if (entry.device_type < 0 || entry.device_type >= kMaxDeviceTypes || !entry.backend ||
        (!entry.run && !entry.form))
      continue;
    auto made = FromEntry(op, entry);
    if (made->form == "aten" && made->backend == "aten") {  // not of a text for some calls alone
      for (const char* backend : kOfAtensTexts) TakeIn(&state, Derived(*made, backend), entry.when);
    }
    TakeIn(&state, std::move(made), entry.when);
  }
  Publish(&router, &state);
}

void ForgetInRouter(const Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  router.states.erase(op);
}

bool AddImplementation(Operator* op, std::unique_ptr<Implementation> made, const char* when,
                       std::string* error) {
  made->op = op;
  if (made->device_type < 0 || made->device_type >= kMaxDeviceTypes) {
    *error = op->name + ": device type " + std::to_string(made->device_type) + " is none";
    return false;
  }
  if (!BindWhen(when, made.get(), error)) return false;
  Router& router = TheRouter();
  {
    const std::lock_guard<std::mutex> lock(router.mutex);
    State& state = router.states[op];
    auto list = state.implementations;
    Implementation* replaced = Insert(&list, made.get());
    PublishWith(&state.implementations, std::move(list), [&] { Publish(&router, &state); });
    static_cast<void>(made.release());  // the state's now
    if (replaced) TakeAway(&state, replaced);
  }
  FreeRetired();
  return true;
}

bool RemoveImplementation(Operator* op, const std::string& name, std::string* error) {
  Router& router = TheRouter();
  {
    const std::lock_guard<std::mutex> lock(router.mutex);
    State& state = router.states[op];
    auto list = state.implementations;
    const auto found = std::find_if(
        list.begin(), list.end(), [&](Implementation* i) { return i->name == name && !i->is_own; });
    if (found == list.end()) {
      *error = op->name + " has no implementation '" + name + "' that was registered";
      return false;
    }
    Implementation* removed = *found;
    list.erase(found);
    PublishWith(&state.implementations, std::move(list), [&] { Publish(&router, &state); });
    TakeAway(&state, removed);
  }
  FreeRetired();
  return true;
}

void SetProvider(const std::string& form, Resolve resolve) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  router.providers[form] = resolve;
}

void SetImageMaker(MakeImage make) { image_maker.store(make, std::memory_order_release); }

void SetWatch(Watch what, bool on) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const uint32_t watch = on ? router.watch | what : router.watch & ~uint32_t{what};
  PublishWith(&router.watch, watch, [&] {
    if (what != kWatchScopes) return PublishAll(&router);
    if (on) MakeTwins(&router);
    for (auto& entry : router.states) Show(router, &entry.second);
  });
}

void WatchOperator(Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  State& state = router.states[op];
  PublishWith(&state.watched, true, [&] { Publish(&router, &state); });
}

bool IsWatched(const Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  return router.states[op].watched;
}

void PublishWhatIsKnown() {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  PublishAll(&router);
  ReportOtherMachines(router);
}

void MakeReady(const Implementation* implementation) {
  Router& router = TheRouter();
  Resolve resolve = implementation->resolve;
  if (!resolve) {
    const std::lock_guard<std::mutex> lock(router.mutex);
    const auto provider = router.providers.find(implementation->form);
    if (provider != router.providers.end()) resolve = provider->second;
  }
  AnyopKernel run = nullptr;
  void* context = nullptr;
  std::string why = "kernels of the form " + implementation->form + " need Python with anyop";
  const bool made = resolve && resolve(*implementation, &run, &context, &why);
  const std::lock_guard<std::mutex> lock(router.mutex);
  auto* mine = const_cast<Implementation*>(implementation);
  if (made && !run) return;
  if (mine->readiness.load() != Readiness::kUnresolved) {  // another thread was first
    if (made && mine->forget) mine->forget(nullptr, context);
    return;
  }
  mine->run = run;
  mine->context = context;
  mine->why = made ? "" : why;
  mine->readiness.store(made ? Readiness::kReady : Readiness::kMissing, std::memory_order_release);
  State& state = router.states[mine->op];
  Publish(&router, &state);
}

std::vector<const Implementation*> ListImplementations(const Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const auto& list = router.states[op].implementations;
  return {list.begin(), list.end()};
}

}  // namespace anyop
