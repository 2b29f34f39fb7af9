// SPDX-License-Identifier: Apache-2.0
// The pool: every index exactly once, pieces no smaller than the grain, and the ways it meets
// threads and forks.
#include "threads/pool.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace {

bool MayNotFork() {
#ifdef __SANITIZE_THREAD__
  std::printf("  skipped: ThreadSanitizer allows no threads after a fork\n");
  return true;
#else
  // qemu 7.2 ends with an assertion of its own (cpu-exec.c) in a child forked beside threads.
  if (!std::getenv("ANYOP_TEST_EMULATED")) return false;
  std::printf("  skipped: the emulator does not bear a fork beside threads\n");
  return true;
#endif
}

using anyop::Parallel;
using anyop::SetNumThreads;

template <typename Body>
void For(int64_t count, int64_t grain, const Body& body) {
  Parallel(
      count, grain,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<const Body*>(context))(begin, end);
      },
      const_cast<Body*>(&body));
}

// How often each index was visited must be once.
bool CoversOnce(int64_t count, int64_t grain) {
  auto seen = std::make_unique<std::atomic<int>[]>(count + 1);
  std::atomic<bool> pieces_good{true};
  For(count, grain, [&](int64_t begin, int64_t end) {
    if (begin < 0 || end > count || begin >= end) pieces_good = false;
    if (end - begin < grain && end - begin != count) pieces_good = false;
    if (grain > 0 && begin % grain != 0) pieces_good = false;
    for (int64_t i = begin; i < end; ++i) seen[i].fetch_add(1, std::memory_order_relaxed);
  });
  for (int64_t i = 0; i < count; ++i) {
    if (seen[i] != 1) return false;
  }
  return pieces_good;
}

// Threads of this process whose name begins with "anyop-", and whether they block SIGINT.
struct Workers {
  std::set<std::string> names;
  bool block_interrupt = true;
  bool let_faults_through = true;
  bool asleep = true;
  int64_t switches = 0;  // how often they were given the processor
};

Workers FindWorkers() {
  Workers workers;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    std::ifstream status(std::string("/proc/self/task/") + entry->d_name + "/status");
    std::string line, name;
    unsigned long long blocked = 0;
    int64_t switches = 0;
    bool asleep = false;
    while (std::getline(status, line)) {
      if (line.rfind("Name:", 0) == 0) name = line.substr(6);
      if (line.rfind("State:", 0) == 0) asleep = line.find("S (sleeping)") != line.npos;
      if (line.rfind("SigBlk:", 0) == 0) blocked = std::stoull(line.substr(8), nullptr, 16);
      const size_t at = line.find("voluntary_ctxt_switches:");
      if (at != line.npos) switches += std::stoll(line.substr(line.find(':') + 1));
    }
    if (name.rfind("anyop-", 0) != 0) continue;
    workers.names.insert(name);
    workers.block_interrupt &= blocked >> (SIGINT - 1) & 1;
    workers.let_faults_through &= !(blocked >> (SIGSEGV - 1) & 1);
    workers.asleep &= asleep;
    workers.switches += switches;
  }
  closedir(tasks);
  return workers;
}

TEST(NoWorkersBeforeTheFirstParallelCall) {
  SetNumThreads(4);
  CHECK_EQ(anyop::NumThreads(), 4);
  CHECK(CoversOnce(100, 100));  // one piece: no need of a thread
  CHECK_EQ(FindWorkers().names.size(), 0u);
}

TEST(EveryIndexOnce) {
  SetNumThreads(4);
  for (int64_t count : {0, 1, 2, 3, 7, 64, 1000, 4097}) {
    for (int64_t grain : {1, 2, 16, 100, 5000}) CHECK(CoversOnce(count, grain));
  }
  CHECK(CoversOnce(100, 0));
  Parallel(-5, 1, [](void*, int64_t, int64_t) { CHECK(!"called for a negative count"); }, nullptr);
  for (int i = 0; i < 2000; ++i) {
    if (!CoversOnce(64, 1)) CHECK(false);
  }
}

TEST(HugeCountsDoNotOverflow) {
  SetNumThreads(4);
  std::atomic<int64_t> sum{0};
  For(INT64_MAX, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  CHECK_EQ(sum.load(), INT64_MAX);
  sum = 0;
  For(INT64_MAX, INT64_MAX / 3, [&](int64_t begin, int64_t end) { sum += end - begin; });
  CHECK_EQ(sum.load(), INT64_MAX);
}

TEST(WorkersAreNamedAndLeaveSignalsAlone) {
  SetNumThreads(4);
  CHECK(CoversOnce(1000, 1));
  Workers workers = FindWorkers();
  for (int i = 0; i < 500 && !workers.let_faults_through; ++i) {
    usleep(10000);  // a thread that has not run yet still blocks everything
    workers = FindWorkers();
  }
  CHECK(workers.names.size() >= 3);
  CHECK(workers.names.count("anyop-1") && workers.names.count("anyop-3"));
  CHECK(workers.block_interrupt);
  CHECK(workers.let_faults_through);
}

// The largest number of bodies that ran at the same moment.
int MostAtOnce() {
  std::atomic<int> inside{0}, most{0};
  For(64, 1, [&](int64_t, int64_t) {
    const int now = ++inside;
    int before = most.load();
    while (now > before && !most.compare_exchange_weak(before, now)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --inside;
  });
  return most;
}

TEST(UsesItsThreadsAndNoMore) {
  SetNumThreads(3);
  CHECK_EQ(MostAtOnce(), 3);  // a fourth worker sleeps since the tests before
  SetNumThreads(1);
  CHECK_EQ(MostAtOnce(), 1);
  SetNumThreads(6);
  CHECK_EQ(MostAtOnce(), 6);
  CHECK_EQ(FindWorkers().names.size(), 5u);
  SetNumThreads(0);
  CHECK_EQ(anyop::NumThreads(), 1);
  SetNumThreads(1 << 20);
  CHECK_EQ(anyop::NumThreads(), anyop::kMaxThreads);
  SetNumThreads(4);
}

// Short jobs, with workers that sleep before each and come when all is done: they are woken no
// more, but for some, and for a job that turns out to be long.
TEST(LongJobsAreHelpedWithAfterShortOnes) {
  SetNumThreads(4);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 100; ++i) {
      CHECK(CoversOnce(8, 1));
      usleep(200);
    }
    CHECK_EQ(MostAtOnce(), 4);
  }
}

TEST(NestedCallsRunInTheirThread) {
  std::atomic<int> wrong{0};
  std::atomic<int64_t> sum{0};
  For(32, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto self = std::this_thread::get_id();
      For(100, 1, [&](int64_t b, int64_t e) {
        if (std::this_thread::get_id() != self) ++wrong;
        sum += e - b;
      });
    }
  });
  CHECK_EQ(wrong.load(), 0);
  CHECK_EQ(sum.load(), 3200);
}

TEST(ManyCallersAtOnce) {
  std::atomic<int64_t> sum{0};
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int n = 1; !stop; n = n % 5 + 1) SetNumThreads(n);
  });
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        For(200, 3, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  stop = true;
  changer.join();
  SetNumThreads(4);
  CHECK_EQ(sum.load(), 4 * 500 * 200);
}

// Told by the system: no worker runs, and none has run in between.
TEST(IdleWorkersSleep) {
  CHECK(CoversOnce(1000, 1));
  bool slept = false;
  for (int i = 0; i < 50 && !slept; ++i) {  // until the last has gone to sleep
    const Workers before = FindWorkers();
    usleep(200000);
    const Workers after = FindWorkers();
    CHECK(after.names.size() >= 3);
    slept = before.asleep && after.asleep && before.switches == after.switches;
  }
  CHECK(slept);
}

// Forks, runs jobs in the child and gives its exit status; a child that hangs is ended by SIGALRM.
template <typename Body>
int StatusOfChild(const Body& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(WorksInAForkedChild) {
  if (MayNotFork()) return;
  CHECK(CoversOnce(1000, 1));
  const int status = StatusOfChild([] {
    if (FindWorkers().names.size() != 0) return 1;
    for (int i = 0; i < 100; ++i) {
      if (!CoversOnce(1000, 1)) return 2;
    }
    if (FindWorkers().names.size() != 3) return 3;
    return StatusOfChild([] { return CoversOnce(1000, 1) ? 0 : 1; }) == 0 ? 0 : 4;
  });
  CHECK_EQ(status, 0);
  CHECK(CoversOnce(1000, 1));
}

TEST(WorksInAChildForkedBesideARunningJob) {
  if (MayNotFork()) return;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) For(64, 1, [](int64_t, int64_t) { usleep(50); });
  });
  int failed = 0;
  for (int i = 0; i < 20; ++i) {
    failed += StatusOfChild([] { return CoversOnce(1000, 1) ? 0 : 1; }) != 0;
  }
  stop = true;
  other.join();
  CHECK_EQ(failed, 0);
}

TEST(GoesOnWithoutThreadsWhenThereAreNone) {
  if (MayNotFork()) return;
  const int status = StatusOfChild([] {
    const rlimit none = {0, 0};
    if (getuid() == 0 && setuid(65534) != 0) return 9;  // root is bound by no limit
    setrlimit(RLIMIT_NPROC, &none);
    return CoversOnce(1000, 1) && MostAtOnce() == 1 ? 0 : 1;
  });
  CHECK_EQ(status, 0);
}

// A child that leaves main while a thread of its own is inside a job.
TEST(ExitBesideARunningJob) {
  if (MayNotFork()) return;
  int failed = 0;
  for (int i = 0; i < 10; ++i) {
    std::fflush(stdout);
    failed += StatusOfChild([] {
                std::thread([] {
                  for (;;) For(64, 1, [](int64_t, int64_t) { usleep(20); });
                }).detach();
                usleep(2000);
                std::exit(0);
                return 1;
              }) != 0;
  }
  CHECK_EQ(failed, 0);
}

}  // namespace
