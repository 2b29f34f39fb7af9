// SPDX-License-Identifier: Apache-2.0
// Conditions on the generation of a device, and choices of a kernel: who is asked, and what is
// said.
#include "router/choose/capability.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "loader.h"
#include "router/numbered_kernels.h"
#include "router/router.h"
#include "tests/check.h"

namespace {

constexpr int kHere = 10;  // hip: no device of that kind is compiled in
int asked, major = 9, minor_of_second = 0;
std::string name_of_second = "A chip";

int32_t Count(int32_t* count) {
  *count = 2;
  return kAnyopOk;
}
int32_t Properties(int32_t device, AnyopDeviceProperties* found) {
  ++asked;
  found->major = major;
  found->minor = device == 1 ? minor_of_second : 0;
  std::strcpy(found->name, device == 1 ? name_of_second.c_str() : "A chip");
  return kAnyopOk;
}
int32_t Enter(int32_t, AnyopDeviceScope* scope) {
  *scope = {};
  return kAnyopOk;
}
int32_t Leave(const AnyopDeviceScope*) { return kAnyopOk; }
const char* LastError() { return ""; }

AnyopDevice MakeDevice() {
  AnyopDevice device = {};
  device.size = sizeof device;
  device.abi_version = ANYOP_DEVICE_ABI_VERSION;
  device.name = "here";
  device.device_type = kHere;
  device.enter = Enter;
  device.leave = Leave;
  device.last_error = LastError;
  device.count = Count;
  device.properties = Properties;
  return device;
}
const AnyopDevice device = MakeDevice();

int32_t chosen_way;
int32_t Ways(const void* raw, AnyopCall* call) {
  chosen_way = AnyopChoice(call);
  return which::Kernel<7>(raw, call);
}

void Register(const char* name, int priority, AnyopKernel run, const char* when) {
  AnyopImplementation made = {};
  made.size = sizeof made;
  made.backend = "extra";
  made.name = name;
  made.when = when;
  made.priority = priority;
  made.run = run;
  made.device_type = kHere;
  CHECK_EQ(AnyopRegisterImplementation(which::Operator(), &made), int{kAnyopOk});
}

bool Has(const std::string& text, const char* part) {
  const bool has = text.find(part) != std::string::npos;
  if (!has) std::printf("found \"%s\", expected \"%s\"\n", text.c_str(), part);
  return has;
}

struct There : which::Caller {
  explicit There(int id = 0) {
    x.device_type = out.device_type = kHere;
    x.device_id = out.device_id = id;
  }
};

// What is learned of devices is kept: in a process of its own. Whether all checks held there.
template <typename Function>
bool InChild(const Function& run) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    run();
    std::fflush(nullptr);
    _exit(check::failed != 0);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(DevicesOfTwoGenerations) {
  CHECK(InChild([] {
    minor_of_second = 1;
    name_of_second = "Another chip";
    Register("any", 0, which::Kernel<3>, nullptr);
    Register("first", 10, which::Kernel<4>, "capability=9.0");
    std::string error;
    CHECK_EQ(anyop::RegisterDevice(&device, &error), int{kAnyopOk});
    for (int i = 0; i < 3; ++i) {
      CHECK_EQ(There(0).Run(), 4);
      CHECK_EQ(There(1).Run(), 3);
    }
    CHECK(Has(There(1).Explain(), "takes capability=9.0, and it is 9.1"));
    CHECK_EQ(anyop::CommonCapability(kHere), 0);
    CHECK(anyop::CommonName(kHere).empty());
  }));
}

TEST(ACapabilityIsAskedOncePerDevice) {
  Register("any", 0, which::Kernel<3>, nullptr);
  Register("new", 10, which::Kernel<4>, "capability>=9.0");
  Register("next", 20, which::Kernel<5>, "capability=10.0");
  CHECK_EQ(anyop::CommonCapability(kHere), 0);
  CHECK(Has(There().Explain(), "takes capability=10.0, and that is absent"));
  CHECK_EQ(There().Run(), 3);  // nothing is known of a device that is not registered
  std::string error;
  CHECK_EQ(anyop::RegisterDevice(&device, &error), int{kAnyopOk});
  CHECK_EQ(There().Run(), 4);
  CHECK_EQ(There(1).Run(), 4);
  CHECK_EQ(anyop::CommonCapability(kHere), 90);
  CHECK(anyop::CommonName(kHere) == "A chip");
  const int before = asked;
  CHECK_EQ(There().Run(), 4);
  CHECK_EQ(asked, before);
  CHECK(Has(There().Explain(), "takes capability=10.0, and it is 9.0"));
  CHECK_EQ(which::Caller().Run(), 1);  // others are not concerned
  CHECK(Has(which::Caller().Explain("new"), "serves hip"));
}

TEST(ConditionsThatAreNone) {
  const char* const wrong[] = {"capability=9",      "capability>=x.0",  "capability=9.00",
                               "capability(x)=9.0", "capability%2=0.0", "capability=9.0.0"};
  for (const char* when : wrong) {
    AnyopImplementation made = {};
    made.size = sizeof made;
    made.backend = "bad";
    made.when = when;
    made.run = which::Kernel<3>;
    CHECK_EQ(AnyopRegisterImplementation(which::Operator(), &made), int{kAnyopValueError});
    CHECK(Has(AnyopLastError(), "test.which: when of bad: column"));
  }
}

TEST(AChoiceBeyondThoseOfAKernelIsRefused) {
  CHECK(Has(There().Explain("new:5"), "test.which: new has no choices; found 5"));
  CHECK_EQ(There().Run("new:x"), -kAnyopValueError);
  CHECK(Has(AnyopLastError(), "unknown backend 'new:x'"));
}

TEST(KernelsWithoutARuleDecide) {
  Register("ways", 30, Ways, nullptr);
  CHECK_EQ(There().Run(), 7);
  CHECK_EQ(chosen_way, -1);
}

// Loads rules that were measured on a GPU, calls twice, and gives what was said meanwhile.
std::string LoadMeasured(const char* gpu) {
  char rules[] = "/tmp/anyop_rules_XXXXXX", said[] = "/tmp/anyop_said_XXXXXX";
  FILE* file = fdopen(mkstemp(rules), "w");
  std::fprintf(file, "measured on \"%s\" by \"%s\"\ntest.which = tuned:2\n", gpu, AnyopVersion());
  std::fclose(file);
  std::fflush(stderr);
  const int kept = dup(2), to = mkstemp(said);
  dup2(to, 2);
  CHECK_EQ(AnyopLoadRoutes(rules), int{kAnyopOk});
  CHECK_EQ(There().Run(), 7);
  CHECK_EQ(There().Run(), 7);
  std::fflush(stderr);
  dup2(kept, 2);
  char text[1024] = "";
  CHECK(pread(to, text, sizeof text - 1, 0) >= 0);
  close(kept), close(to), unlink(rules), unlink(said);
  return text;
}

TEST(ChoicesMeasuredOnAnotherGpuAreNotUsed) {
  auto made = anyop::NewImplementation();
  made->backend = made->name = "tuned";
  made->device_type = kHere;
  made->choices = 4;
  made->run = Ways;
  made->readiness = anyop::Readiness::kReady;
  auto* op = reinterpret_cast<anyop::Operator*>(const_cast<AnyopOperator*>(which::Operator()));
  std::string error;
  CHECK(anyop::AddImplementation(op, std::move(made), nullptr, &error));
  CHECK(LoadMeasured("A chip").empty());
  CHECK_EQ(chosen_way, 2);
  CHECK(Has(LoadMeasured("Another chip"),
            "measured on Another chip, and this is A chip: its choices are not used"));
  CHECK_EQ(chosen_way, -1);  // the rule holds, and the kernel decides
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
}

}  // namespace
