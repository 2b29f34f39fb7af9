// SPDX-License-Identifier: Apache-2.0
// Calls in 16 threads while routes change under them: each result is that of the old or the new
// route. ANYOP_TEST_CALLS: calls of each thread.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "router/numbered_kernels.h"
#include "router/router.h"
#include "tests/check.h"

namespace {

constexpr int kThreads = 16;

int64_t CallsOfEach() {
  const char* text = std::getenv("ANYOP_TEST_CALLS");
  return text ? std::atoll(text) : 20000;
}

int32_t Load(const char* text) {
  static const std::string path = [] {
    char name[] = "/tmp/anyop_router_threads_XXXXXX";
    std::fclose(fdopen(mkstemp(name), "w"));
    return std::string(name);
  }();
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fputs(text, file);
  std::fclose(file);
  return AnyopLoadRoutes(path.c_str());
}

TEST(CallsWhileRoutesReload) {
  static int five = 5;
  AnyopImplementation made = {};
  made.size = sizeof made;
  made.backend = "extra";
  made.run = which::Kernel<5>;
  made.context = &five;
  made.priority = -1;
  CHECK_EQ(AnyopRegisterImplementation(which::Operator(), &made), int{kAnyopOk});
  const int64_t calls = CallsOfEach();
  std::atomic<int64_t> ones{0}, fives{0}, others{0};
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      auto caller = std::make_unique<which::Caller>(4);
      int64_t mine[3] = {};
      for (int64_t i = 0; i < calls; ++i) {
        const int found = caller->Run(t == 0 ? "extra" : nullptr);
        const bool scoped_wrong = t == 0 && found != 5;
        ++mine[scoped_wrong ? 2 : found == 1 ? 0 : found == 5 ? 1 : 2];
      }
      ones += mine[0];
      fives += mine[1];
      others += mine[2];
      --running;
    });
  }
  int reloads = 0;
  auto next = std::chrono::steady_clock::now();
  while (running > 0) {
    const char* text = reloads % 3 == 0 ? "test.which = extra\n"
                       : reloads % 3 == 1
                           ? "[when D<8]\ntest.* = extra\n[always]\ntest.other = cpu\n"
                           : "* = cpu\n";
    CHECK_EQ(Load(text), int{kAnyopOk});
    if (reloads % 10 == 0) AnyopSetDeterministic(0);
    if (reloads % 7 == 0) AnyopRegisterImplementation(which::Operator(), &made);
    ++reloads;
    next += std::chrono::milliseconds(10);  // 100 a second, where the machine can
    std::this_thread::sleep_until(next);
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%lld calls, %d reloads: %lld by cpu, %lld by extra\n", (long long)calls * kThreads,
              reloads, (long long)ones, (long long)fives);
  CHECK_EQ(others.load(), int64_t{0});
  CHECK_EQ(ones + fives, calls * kThreads);
  CHECK(ones > 0 && fives > 0 && reloads > 1);
}

}  // namespace
