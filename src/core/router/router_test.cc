// SPDX-License-Identifier: Apache-2.0
// Which implementation runs: priorities, conditions, registration, scopes, route files,
// determinism.
#include "router/router.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "anyop/aten_route.h"
#include "router/numbered_kernels.h"
#include "router/report/log.h"
#include "router/rules/scope.h"
#include "tests/check.h"

namespace {

using which::Caller;

bool Has(const std::string& text, const char* part) {
  const bool has = text.find(part) != std::string::npos;
  if (!has) std::printf("found \"%s\", expected \"%s\"\n", text.c_str(), part);
  return has;
}

bool LastErrorHas(const char* part) { return Has(AnyopLastError(), part); }

// A route file of this text, loaded.
int32_t Load(const std::string& text) {
  char path[] = "/tmp/anyop_router_test_XXXXXX";
  const int file = mkstemp(path);
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  const int32_t status = written ? AnyopLoadRoutes(path) : -1;
  unlink(path);
  return status;
}

int32_t Register(const char* name, int priority, AnyopKernel run, const char* when = nullptr,
                 int32_t device = 0) {
  AnyopImplementation made = {};
  made.size = sizeof made;
  made.backend = "extra";
  made.name = name;
  made.when = when;
  made.priority = priority;
  made.run = run;
  made.device_type = device;
  return AnyopRegisterImplementation(which::Operator(), &made);
}

TEST(PrioritiesAndConditions) {
  CHECK_EQ(Caller(4).Run(), 1);
  CHECK_EQ(Caller(1000).Run(), 2);  // the higher priority, where its condition holds
  CHECK(Has(Caller(4).Explain(), "\"chosen\":\"cpu\""));
  CHECK(Has(Caller(4).Explain(), "takes D>=1000, and D is 4"));
  CHECK(Has(Caller(1000).Explain(), "\"chosen\":\"cpu_long\""));
}

TEST(RegisteringReplacingRemoving) {
  CHECK_EQ(Register("third", -10, which::Kernel<3>), int{kAnyopOk});
  CHECK_EQ(Caller(4).Run(), 1);
  CHECK_EQ(Caller(4).Run("extra"), 3);
  CHECK_EQ(Caller(4).Run("third=*which"), 3);
  CHECK_EQ(Caller(4).Run("third=test.other"), 1);
  CHECK_EQ(Register("third", 10, which::Kernel<4>), int{kAnyopOk});
  CHECK_EQ(Caller(4).Run(), 4);
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "third"), int{kAnyopOk});
  CHECK_EQ(Caller(4).Run(), 1);
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "third"), int{kAnyopValueError});
  CHECK(LastErrorHas("test.which has no implementation 'third' that was registered"));
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "cpu"), int{kAnyopValueError});
}

TEST(RegistrationRefuses) {
  CHECK_EQ(Register("bad", 0, which::Kernel<3>, "K<4"), int{kAnyopValueError});
  CHECK(LastErrorHas("test.which has no size K; it has D"));
  CHECK_EQ(Register("bad", 0, which::Kernel<3>, "D<"), int{kAnyopValueError});
  CHECK_EQ(Register("bad", 0, which::Kernel<3>, nullptr, 99), int{kAnyopValueError});
  CHECK(LastErrorHas("device type 99"));
  CHECK_EQ(Register("bad", 0, nullptr), int{kAnyopValueError});
  CHECK_EQ(AnyopRegisterImplementation(nullptr, nullptr), int{kAnyopValueError});
  CHECK_EQ(Caller(4).Run(), 1);
}

TEST(ScopesOfOneCall) {
  CHECK_EQ(Caller(4).Run("cpu_long"), 1);  // which does not take it: the next, said on stderr
  CHECK_EQ(Caller(1000).Run("cpu_long"), 2);
  CHECK_EQ(Caller(1000).Run("cpu=*;cpu_long=test.*"), 2);  // the last that fits holds
  CHECK_EQ(Caller(4).Run("="), -kAnyopValueError);
  CHECK(LastErrorHas("test.which: use is '=', expected backends=patterns"));
  CHECK(Has(Caller(4).Explain("far"), "kernels of the form nobody need Python"));
  CHECK_EQ(Caller(4).Run("far"), 1);
}

TEST(RouteFiles) {
  CHECK_EQ(Load("[when D>=8]\ntest.which = cpu_long, cpu\n"), int{kAnyopOk});
  CHECK_EQ(Caller(1000).Run(), 2);
  CHECK(Has(Caller(8).Explain(), ":2\""));  // the reason: its line
  CHECK_EQ(Caller(8).Run(), 1);
  CHECK_EQ(Load("* = cpu\n[when dtype=float64]\ntest.* = cpu_long\n"), int{kAnyopOk});
  CHECK_EQ(Caller(1000, false).Run(), 2);  // both of backend cpu, by priority
  CHECK_EQ(Caller(1000, true).Run(), 2);
  CHECK_EQ(Load("test::which = cpu, cpu_long\n"), int{kAnyopOk});
  const int32_t bad = Load("test.which = cpu_long\ntest.witch = cpu\n");
  CHECK_EQ(bad, int{kAnyopValueError});
  CHECK(LastErrorHas(":2:1: unknown operator 'test.witch'; did you mean 'test.which'?"));
  CHECK(Has(Caller(4).Explain(), ":1\""));  // what was loaded before holds
  CHECK_EQ(Load("test.which = cpux\n"), int{kAnyopValueError});
  CHECK(LastErrorHas(":1:14: unknown backend 'cpux'; did you mean 'cpu'?"));
  CHECK_EQ(Load("test.which = extra_\n"), int{kAnyopValueError});
  CHECK_EQ(Load("test.which = triton\n"), int{kAnyopValueError});
  CHECK(LastErrorHas("test.which has no backend 'triton'; it has cpu_long, cpu, far"));
  CHECK_EQ(Load("test.which = flaggems\n"), int{kAnyopValueError});  // it has no text of ATen's
  CHECK(LastErrorHas("test.which has no backend 'flaggems'; it has cpu_long, cpu, far"));
  CHECK_EQ(Load("[when K=1]\ntest.which = cpu\n"), int{kAnyopValueError});
  CHECK(LastErrorHas(":1:7: test.which has no size K; it has D"));
  CHECK_EQ(Load("gone.* = cpu\n"), int{kAnyopValueError});
  CHECK_EQ(Load("namespace gone\ngone.op = cpu\n"), int{kAnyopOk});
  CHECK_EQ(AnyopLoadRoutes("cuda"), int{kAnyopOk});  // a preset
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
  CHECK(Has(Caller(4).Explain(), "\"reason\":\"default\""));
}

TEST(WhereAnOperatorHasKernels) {
  const auto has = [](int32_t type) { return AnyopHasKernel(which::Operator(), type); };
  CHECK(has(1) && !has(12) && !has(0) && !has(-1) && !has(32) && !AnyopHasKernel(nullptr, 1));
  CHECK_EQ(Register("any", -10, which::Kernel<3>), int{kAnyopOk});
  CHECK(!has(12));
  CHECK_EQ(Register("there", -10, which::Kernel<3>, "D>=1000", 12), int{kAnyopOk});
  CHECK(has(1) && has(12) && !has(2));
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "there"), int{kAnyopOk});
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "any"), int{kAnyopOk});
  CHECK(!has(12));
}

TEST(DevicesThatOnlyAConditionNames) {
  CHECK_EQ(Register("there", -10, which::Kernel<3>, "device=cuda"), int{kAnyopOk});
  Caller there(4), elsewhere(4);
  there.x.device_type = there.out.device_type = 2;
  elsewhere.x.device_type = elsewhere.out.device_type = 12;
  CHECK(Has(there.Explain(), "\"chosen\":\"there\""));
  CHECK(Has(elsewhere.Explain(), "\"chosen\":null"));
  CHECK(Has(elsewhere.Explain(), "serves device=cuda, and the tensors are on anyop"));
  CHECK_EQ(elsewhere.Run(), -kAnyopNotImplemented);
  CHECK(Has(Caller(4).Explain(), "\"chosen\":\"cpu\""));
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "there"), int{kAnyopOk});
}

TEST(Determinism) {
  AnyopSetDeterministic(1);
  CHECK_EQ(Caller(1000).Run(), 1);
  CHECK(Has(Caller(1000).Explain(), "does not declare determinism"));
  CHECK_EQ(Caller(1000).Run("cpu_long"), 1);
  AnyopSetDeterministic(0);
  CHECK_EQ(Caller(1000).Run(), 2);
}

TEST(EqualRoutesAreOneObject) {
  const auto* op = reinterpret_cast<const anyop::Operator*>(which::Operator());
  const anyop::Route* before = op->route.load();
  for (int i = 0; i < 3; ++i) {
    AnyopLoadRoutes("cpu");
    CHECK(op->route.load() != before);
    AnyopLoadRoutes(nullptr);
    CHECK(op->route.load() == before);
    anyop::EnterScope();
    CHECK(op->route.load() == before->twin.get());
    anyop::LeaveScope();
    CHECK(op->route.load() == before);
  }
}

// A call may hold a route while another thread publishes the next, and the route may come back
// later.
TEST(ScopesOfARouteKnowOnlyItsOwn) {
  const auto* op = reinterpret_cast<const anyop::Operator*>(which::Operator());
  const anyop::Route* before = op->route.load();
  CHECK_EQ(Register("later", -10, which::Kernel<6>), int{kAnyopOk});
  CHECK_EQ(Caller(4).Run("later"), 6);
  std::string error;
  const anyop::Scope* scope = anyop::FindScope("later=*", &error);
  const anyop::Variants* variants = anyop::VariantsInScope(op, *before, *scope, 1);
  CHECK_EQ(variants->front().listed, size_t{0});
  CHECK_EQ(Caller(4).Run("later=*"), 6);
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "later"), int{kAnyopOk});
  CHECK(op->route.load() == before);
  CHECK_EQ(Caller(4).Run("later=*"), 1);  // it was there
  CHECK_EQ(Caller(4).Run("cpu,later"), -int{kAnyopValueError});
  CHECK(LastErrorHas("unknown backend 'later'"));
  CHECK_EQ(Caller(4).Run("cpu=test.witch"), -int{kAnyopValueError});
  CHECK(LastErrorHas("unknown operator 'test.witch'; did you mean 'test.which'?"));
}

}  // namespace
