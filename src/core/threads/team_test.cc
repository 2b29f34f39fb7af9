// SPDX-License-Identifier: Apache-2.0
// Jobs on the threads of GCC's OpenMP runtime: of one thread, where there are enough, and never in
// a forked child.
#include "threads/team.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/check.h"
#include "threads/pool.h"

namespace {

constexpr char kRuntime[] = "libgomp.so.1";
constexpr int kTeam = 3;

// Loads the runtime, and has the pool use it with a team of three; false where it cannot be had.
bool HasRuntime() {
#ifdef __SANITIZE_THREAD__
  std::printf("  skipped: ThreadSanitizer does not know how OpenMP's threads wait\n");
  return false;
#else
  unsetenv("OMP_WAIT_POLICY");
  void* runtime = dlopen(kRuntime, RTLD_NOW);
  if (!runtime) {
    std::printf("  skipped: %s\n", dlerror());
    return false;
  }
  reinterpret_cast<void (*)(int)>(dlsym(runtime, "omp_set_num_threads"))(kTeam);
  anyop::UseTeamOf(kRuntime);
  return true;
#endif
}

// A job of many pieces, by so many threads: each stays in its first piece until all have come.
struct Job {
  explicit Job(size_t threads) : expected(threads) {}
  const size_t expected;
  std::mutex lock;
  std::condition_variable came;
  std::set<std::thread::id> threads;
  int workers = 0;  // the pool's own
  int64_t done = 0;
};

void Count(void* context, int64_t begin, int64_t end) {
  auto* job = static_cast<Job*>(context);
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  std::unique_lock<std::mutex> guard(job->lock);
  job->done += end - begin;
  if (!job->threads.insert(std::this_thread::get_id()).second) return;
  job->workers += std::string(name).rfind("anyop-", 0) == 0;
  job->came.notify_all();
  job->came.wait_for(guard, std::chrono::seconds(20),
                     [job] { return job->threads.size() >= job->expected; });
}

int WorkersOf(int threads) {
  Job job(threads);
  anyop::SetNumThreads(threads);
  anyop::Parallel(1000, 10, Count, &job);
  CHECK_EQ(job.done, 1000);
  CHECK_EQ(job.threads.size(), job.expected);
  return job.workers;
}

// In one of some jobs: where other programs have the CPUs, the pool does without the team for a
// while.
bool DoneByTeam(int threads) {
  for (int tries = 0; tries < 100; ++tries) {
    if (WorkersOf(threads) == 0) return true;
    for (int i = 0; i < 5000; ++i) anyop::Parallel(2, 1, [](void*, int64_t, int64_t) {}, nullptr);
  }
  return false;
}

TEST(AnotherThreadHasWorkers) {
  if (!HasRuntime()) return;
  std::thread([] { CHECK_EQ(WorkersOf(2), 1); }).join();
}

TEST(TheTeamDoesTheJobs) {
  if (!HasRuntime()) return;
  for (int threads : {kTeam, 2, kTeam}) CHECK(DoneByTeam(threads));
}

TEST(WorkersWhereMoreAreAskedForThanTheTeamHas) {
  if (!HasRuntime()) return;
  CHECK_EQ(WorkersOf(kTeam + 2), kTeam + 1);
}

TEST(AnExceptionComesToTheCaller) {
  if (!HasRuntime()) return;
  anyop::SetNumThreads(kTeam);
  bool caught = false;
  try {
    anyop::Parallel(
        1000, 1, [](void*, int64_t, int64_t) { throw std::runtime_error("no"); }, nullptr);
  } catch (const std::runtime_error&) {
    caught = true;
  }
  CHECK(caught);
  CHECK(DoneByTeam(kTeam));
}

TEST(AJobWithinAJobIsTheThreadsOwn) {
  if (!HasRuntime()) return;
  anyop::SetNumThreads(kTeam);
  std::atomic<int64_t> sum{0};
  anyop::Parallel(
      100, 1,
      [](void* context, int64_t begin, int64_t end) {
        anyop::Parallel(
            end - begin, 1,
            [](void* inner, int64_t from, int64_t to) {
              *static_cast<std::atomic<int64_t>*>(inner) += to - from;
            },
            context);
      },
      &sum);
  CHECK_EQ(sum.load(), 100);
}

TEST(AForkedChildHasWorkers) {
  if (!HasRuntime()) return;
  if (std::getenv("ANYOP_TEST_EMULATED")) {
    std::printf("  skipped: the emulator does not bear a fork beside threads\n");
    return;
  }
  CHECK(DoneByTeam(kTeam));
  const pid_t child = fork();
  if (child == 0) _exit(WorkersOf(2) == 1 && check::failed == 0 ? 0 : 1);
  int status = 1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

TEST(NothingIsTakenFromWhatSleeps) {
  setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  CHECK(anyop::TeamOf(kRuntime) == nullptr);
  unsetenv("OMP_WAIT_POLICY");
  CHECK(anyop::TeamOf("libnothing.so") == nullptr);
}

}  // namespace
