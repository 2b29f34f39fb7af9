// SPDX-License-Identifier: Apache-2.0
// Rules about overloads of ATen's through the C ABI: what they fit, who wins, what is refused, and
// who is told.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "anyop/aten_route.h"
#include "router/numbered_kernels.h"
#include "router/report/log.h"
#include "router/rules/aten_rules.h"
#include "tests/check.h"

namespace {

bool Has(const std::string& text, const std::string& part) {
  const bool has = text.find(part) != std::string::npos;
  if (!has) std::printf("found \"%s\", expected \"%s\"\n", text.c_str(), part.c_str());
  return has;
}

// A route file of this text, loaded.
int32_t Load(const std::string& text) {
  static const std::string path = [] {
    char name[] = "/tmp/anyop_aten_routes_test_XXXXXX";
    close(mkstemp(name));
    static const std::string made = name;
    std::atexit([] { unlink(made.c_str()); });
    return made;
  }();
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
  return AnyopLoadRoutes(path.c_str());
}

// The mistake in a file, from its line on.
std::string Mistake(const std::string& text) {
  CHECK_EQ(Load(text), int{kAnyopValueError});
  const std::string error = AnyopLastError();
  return error.substr(std::min(error.size(), error.find(':') + 1));
}

// "native,aten"; with "-triton" what is disabled; "default".
std::string Route(const char* overload, const char* device = "anyop") {
  AnyopAtenRouting routing = {};
  routing.size = sizeof routing;
  CHECK_EQ(AnyopAtenRoute(overload, device, &routing), int{kAnyopOk});
  if (routing.is_default) {
    CHECK(!routing.backends[0] && std::string(routing.reason) == "default");
    return "default";
  }
  const std::string disabled = routing.disabled;
  return std::string(routing.backends) + (disabled.empty() ? "" : "-" + disabled);
}

int32_t SetOverloads(const std::vector<const char*>& names) {
  return AnyopSetAtenOverloads(names.data(), static_cast<int64_t>(names.size()));
}

const std::vector<const char*> kOverloads = {"mm",         "mm.out",      "add.Tensor",
                                             "add.Scalar", "add_.Tensor", "_foreach_add.List",
                                             "relu",       "relu_"};

// The variables of this whole program, before anything reads them.
const bool kSet = [] {
  setenv("ANYOP_OP_ATEN__RELU", "native", 1);
  setenv("ANYOP_OP_aten__add_", "boxed", 1);
  setenv("ANYOP_OP_ATEN__ADD___TENSOR", "native, none", 1);
  setenv("ANYOP_DISABLE", "triton,!cpu,!native,!boxed", 1);
  return true;
}();

TEST(PatternsFitOverloads) {
  using anyop::FitsOverload;
  using anyop::IsAten;
  CHECK(IsAten("aten.mm") && IsAten("aten::mm") && IsAten("aten.*"));
  CHECK(!IsAten("*") && !IsAten("aten") && !IsAten("aten*") && !IsAten("a*.mm") && !IsAten(""));
  CHECK(FitsOverload("aten.mm", "mm") && FitsOverload("aten.mm", "mm.out"));
  CHECK(FitsOverload("aten::mm", "mm") && FitsOverload("aten.mm.default", "mm"));
  CHECK(!FitsOverload("aten.mm.default", "mm.out") && !FitsOverload("aten.mm.out", "mm"));
  CHECK(FitsOverload("aten.add.Tensor", "add.Tensor"));
  CHECK(!FitsOverload("aten.add.Tensor", "add.Scalar") && !FitsOverload("aten.ad", "add.Tensor"));
  CHECK(FitsOverload("aten.*_foreach*", "_foreach_add.List"));
  CHECK(FitsOverload("aten.*_", "add_.Tensor") && !FitsOverload("aten.*_", "add.Tensor"));
  CHECK(FitsOverload("aten.*.out", "mm.out") && !FitsOverload("aten.*.out", "mm"));
  CHECK(FitsOverload("aten.*", "mm") && FitsOverload("aten.?m", "mm"));
}

TEST(NothingIsSaidAtFirst) {
  CHECK_EQ(Route("mm"), "default");
  CHECK_EQ(Route("add.Tensor", "cuda"), "default");
  CHECK_EQ(Route("unheard.of"), "default");
}

TEST(TheLastRuleThatFitsHolds) {
  CHECK_EQ(Load("* = cpu\naten.* = boxed\naten.add = native\naten.add.Scalar = none\n"
                "[when device=cpu|cuda]\naten.mm = native, aten\n[when device!=cpu]\n"
                "aten::mm.out = cpu_fallback\n"),
           int{kAnyopOk});
  CHECK_EQ(Route("_foreach_add.List"), "aten");
  CHECK_EQ(Route("add.Tensor"), "native");
  CHECK_EQ(Route("add.Scalar"), "none");
  CHECK_EQ(Route("mm"), "aten");
  CHECK_EQ(Route("mm", "cuda"), "native,aten");
  CHECK_EQ(Route("mm.out"), "-cpu_fallback");  // ANYOP_DISABLE leaves native and boxed alone
  CHECK_EQ(Route("mm.out", "cpu"), "native,aten");
  CHECK_EQ(which::Caller(4).Run(), 1);  // operators go by their own rule
  AnyopAtenRouting routing = {};
  routing.size = sizeof routing;
  CHECK_EQ(AnyopAtenRoute("mm", "cuda", &routing), int{kAnyopOk});
  CHECK(Has(routing.reason, "anyop_aten_routes_test_") && Has(routing.reason, ":6"));
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
  CHECK_EQ(Route("mm", "cuda"), "default");
  CHECK_EQ(std::string(routing.backends), "native,aten");  // the text stays
}

TEST(ABareStarIsTheOperators) {
  CHECK_EQ(Load("aten.mm = aten\n* = cpu\n[when dtype=float32]\n*.* = cpu\n"), int{kAnyopOk});
  CHECK_EQ(Route("mm"), "aten");
  CHECK_EQ(Route("relu_"), "default");
  for (const char* preset : {"cpu", "cuda", "triton", "reference"}) {
    CHECK_EQ(AnyopLoadRoutes(preset), int{kAnyopOk});
    CHECK_EQ(Route("mm"), "default");
  }
  CHECK_EQ(AnyopLoadRoutes("native"), int{kAnyopOk});
  CHECK_EQ(Route("mm"), "native,aten-cpu_fallback");
  CHECK_EQ(AnyopLoadRoutes("flaggems"), int{kAnyopOk});
  CHECK_EQ(Route("mm"), "aten-triton,flaggems,cpu_fallback");
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
}

TEST(VariablesComeBeforeFiles) {
  CHECK_EQ(Load("aten.* = boxed\n"), int{kAnyopOk});
  CHECK_EQ(Route("relu"), "native");
  CHECK_EQ(Route("relu_"), "aten");
  CHECK_EQ(Route("add_.Scalar"), "aten");
  CHECK_EQ(Route("add_.Tensor"), "native,none");  // the one that says more
  AnyopAtenRouting routing = {};
  routing.size = sizeof routing;
  CHECK_EQ(AnyopAtenRoute("add_.Tensor", "anyop", &routing), int{kAnyopOk});
  CHECK_EQ(std::string(routing.reason), "ANYOP_OP_ATEN__ADD___TENSOR");
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
}

TEST(DisablingIsByKind) {
  CHECK_EQ(AnyopAtenIsDisabled("native"), 0);
  CHECK_EQ(AnyopAtenIsDisabled("aten"), 0);
  CHECK_EQ(AnyopAtenIsDisabled("boxed"), 0);  // the same backend
  CHECK_EQ(AnyopAtenIsDisabled("cpu_fallback"), 1);
  CHECK_EQ(AnyopAtenIsDisabled("triton"), 1);
  CHECK_EQ(AnyopAtenIsDisabled("none"), 0);
  CHECK_EQ(AnyopAtenIsDisabled(nullptr), 0);
  CHECK_EQ(which::Caller(4).Run(), 1);  // !native does not take cpu from operators
  CHECK(Has(which::Caller(4).Explain(), "ANYOP_DISABLE"));  // !cpu takes the others from them
}

TEST(MistakesHavePlaces) {
  CHECK_EQ(Load("aten.mm = aten\n"), int{kAnyopOk});
  const std::string known = ", expected native, aten, cpu_fallback, none, triton, flaggems";
  CHECK_EQ(Mistake("\n  aten.mm = nativ"), "2:13: unknown backend 'nativ' of ATen's overloads" +
                                               known + "; did you mean 'native'?");
  CHECK_EQ(Mistake("aten.mm = cuda"), "1:11: unknown backend 'cuda' of ATen's overloads" + known);
  CHECK_EQ(Mistake("aten.mm = none, aten"),
           "1:17: found 'aten' behind none, expected none to be the last: it refuses");
  CHECK_EQ(Mistake("[when device=cpu D>8]\naten.mm = aten"),
           "1:18: found a condition on D, expected device alone: routes of ATen's overloads do not "
           "look at the call");
  CHECK_EQ(Mistake("[when device=cpu|hip]\naten.mm = aten"),
           "1:7: found device hip, expected anyop, cpu or cuda for ATen's overloads");
  CHECK_EQ(Mistake("* = boxed"),
           "1:5: unknown backend 'boxed'; it is for rules of ATen's overloads: aten.*");
  CHECK_EQ(Mistake("aten* = cpu"), "1:1: no operator fits 'aten*'");
  CHECK(Has(Mistake("aten.mm = aten\naten::mm = aten"), "2:1: found 'aten.mm' again"));
  CHECK_EQ(Route("mm"), "aten");  // that of before
  AnyopImplementation made = {};
  made.size = sizeof made;
  made.backend = "extra";
  made.run = which::Kernel<3>;
  made.when = "device=anyop";
  CHECK_EQ(AnyopRegisterImplementation(which::Operator(), &made), int{kAnyopValueError});
  CHECK(Has(AnyopLastError(), "found device anyop"));
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
}

TEST(NamesAreCheckedOnceTheyAreKnown) {
  CHECK_EQ(Load("aten.mm = aten\naten.add.Tensr = aten\n"), int{kAnyopOk});
  CHECK_EQ(SetOverloads(kOverloads), int{kAnyopValueError});
  CHECK(
      Has(AnyopLastError(),
          ":2:1: no overload of ATen's that can be routed is named 'aten.add.Tensr'; did you mean "
          "'aten.add.Tensor'?"));
  CHECK_EQ(Load("aten.mmm = aten\n"), int{kAnyopOk});  // nothing was taken over
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
  CHECK_EQ(SetOverloads({"mm", "relu_"}), int{kAnyopValueError});
  CHECK_EQ(SetOverloads({"mm", "relu", "add.Tensor"}), int{kAnyopValueError});
  CHECK(Has(AnyopLastError(), " names no overload of ATen's that can be routed; did you mean "));
  CHECK_EQ(SetOverloads(kOverloads), int{kAnyopOk});
  CHECK(Has(Mistake("aten.mm = aten\naten.rleu = aten\n"),
            "2:1: no overload of ATen's that can be routed is named 'aten.rleu'; did you mean "
            "'aten.relu'?"));
  CHECK_EQ(Mistake("mm = cpu"), "1:1: unknown operator 'mm'; ATen's is 'aten.mm'");
  CHECK_EQ(Mistake("aten.foo* = boxed"), "1:1: no overload of ATen's fits 'aten.foo*'");
  CHECK_EQ(Load("aten.add.* = boxed\naten.relu.default = native\naten.*_foreach* = boxed\n"),
           int{kAnyopOk});
  CHECK_EQ(Route("add.Scalar"), "aten");
  CHECK_EQ(SetOverloads({}), int{kAnyopOk});
  CHECK_EQ(Load("aten.mmm = aten\n"), int{kAnyopOk});
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
}

TEST(BackendsCanBeAdded) {
  CHECK(Has(Mistake("aten.mm = my_kernels"), "unknown backend 'my_kernels'"));
  CHECK_EQ(AnyopAddAtenBackend("my_kernels"), int{kAnyopOk});
  CHECK_EQ(AnyopAddAtenBackend("my_kernels"), int{kAnyopOk});
  CHECK_EQ(AnyopAddAtenBackend("boxed"), int{kAnyopOk});
  CHECK_EQ(Load("aten.mm = my_kernels, aten\n"), int{kAnyopOk});
  CHECK_EQ(Route("mm"), "aten-my_kernels");
  CHECK(Has(Mistake("aten.mm = my_kernel"), "flaggems, my_kernels; did you mean 'my_kernels'?"));
  for (const char* bad : {"", "1a", "a b", "a,b", "a-b", "*"}) {
    CHECK_EQ(AnyopAddAtenBackend(bad), int{kAnyopValueError});
    CHECK(Has(AnyopLastError(), "expected a letter, then letters, digits and _"));
  }
  CHECK_EQ(AnyopAddAtenBackend(nullptr), int{kAnyopValueError});
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
}

struct Told {
  std::atomic<int> times{0};
  std::string route;
};

TEST(WhoWatchesIsToldWithTheNewRulesInForce) {
  static Told told;
  const auto changed = [](void* context) {
    auto* mine = static_cast<Told*>(context);
    ++mine->times;
    mine->route = Route("mm");
  };
  CHECK_EQ(AnyopWatchAtenRoutes(changed, &told), int{kAnyopOk});
  CHECK_EQ(AnyopWatchAtenRoutes(changed, &told), int{kAnyopOk});
  CHECK_EQ(Load("aten.mm = native\n"), int{kAnyopOk});
  CHECK(told.times == 1 && told.route == "native");
  CHECK_EQ(Load("aten.mm = natve\n"), int{kAnyopValueError});
  CHECK_EQ(told.times.load(), 1);
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
  CHECK(told.times == 2 && told.route == "default");
  // Whoever is told last has seen the last rules, however many threads load.
  std::atomic<int> loaded{0};
  std::vector<std::thread> threads;
  for (const char* preset : {"native", "cpu", "flaggems", "native"}) {
    threads.emplace_back([preset, &loaded] {
      for (int i = 0; i < 200; ++i) loaded += AnyopLoadRoutes(preset) == kAnyopOk;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(loaded == 800 && told.times == 802);
  CHECK_EQ(told.route, Route("mm"));
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
  CHECK_EQ(AnyopWatchAtenRoutes(nullptr, nullptr), int{kAnyopValueError});
}

TEST(WhoWatchesTheLogIsToldOfItsLevel) {
  static int32_t seen = -1;
  const auto changed = [](void* level) {
    seen = __atomic_load_n(static_cast<const int32_t*>(level), __ATOMIC_RELAXED);
  };
  auto* level = const_cast<int32_t*>(AnyopDispatchLogLevel());
  CHECK_EQ(AnyopWatchDispatchLog(changed, level), int{kAnyopOk});
  std::string error;
  for (const int32_t wanted : {2, 1, 0}) {
    CHECK(anyop::SetLog(wanted, "", false, &error));
    CHECK_EQ(seen, wanted);
  }
  seen = -1;
  CHECK_EQ(AnyopLoadRoutes("native"), int{kAnyopOk});
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
  CHECK_EQ(seen, -1);
  CHECK_EQ(AnyopWatchDispatchLog(nullptr, nullptr), int{kAnyopValueError});
}

TEST(BadArgumentsAreRefused) {
  AnyopAtenRouting routing = {};
  CHECK_EQ(AnyopAtenRoute("mm", "anyop", &routing), int{kAnyopValueError});
  routing.size = sizeof routing;
  CHECK_EQ(AnyopAtenRoute("mm", "npu", &routing), int{kAnyopValueError});
  CHECK(Has(AnyopLastError(), "found device 'npu', expected anyop, cpu or cuda"));
  CHECK_EQ(AnyopAtenRoute(nullptr, "anyop", &routing), int{kAnyopValueError});
  CHECK_EQ(AnyopSetAtenOverloads(nullptr, 1), int{kAnyopValueError});
  CHECK_EQ(SetOverloads({"mm", nullptr}), int{kAnyopValueError});
  CHECK(Has(AnyopLastError(), "name 1 is empty"));
  CHECK_EQ(AnyopLogAtenDispatch("mm", nullptr, "anyop:0", "default", 0), int{kAnyopValueError});
  CHECK_EQ(AnyopAtenFallback("mm", "aten", "anyop:0", nullptr), int{kAnyopValueError});
}

}  // namespace
