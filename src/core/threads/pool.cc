// SPDX-License-Identifier: Apache-2.0
// The one thread pool of the process: sleeping workers, one job at a time, pieces taken from an
// atomic counter. Another library's threads may stand in for the workers.
//
// Nothing here is ever destroyed: workers may outlive every static destructor, so the pool is
// leaked, and a forked child, which has none of its parent's workers, leaks the parent's copy and
// starts anew.
#include "threads/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include "threads/team.h"

namespace anyop {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Word = std::atomic<uint32_t>;  // what a futex waits on
static_assert(sizeof(Word) == 4);

void SleepWhile(Word* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void Wake(Word* word, int threads) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks at the word for a moment before the caller sleeps: a wake-up through the kernel costs as
// much. Short, so that other libraries' threads get the CPU. True when the word changed.
bool SpinWhile(const Word& word, uint32_t value) {
  constexpr std::chrono::microseconds kSpin(20);
  const Time end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != value) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return false;
}

constexpr uint32_t kOpen = 1u << 31;  // workers may join the job
constexpr int kLimitShift = 15;
constexpr uint32_t kCountMask = (1u << kLimitShift) - 1;
static_assert(kMaxThreads <= static_cast<int>(kCountMask));

struct Pool {
  std::atomic<bool> busy{
      false};  // held by the owner of the job; guards all that follow but the words
  int workers = 0;
  bool failed = false;  // no more threads to be had
  AnyopBody body = nullptr;
  void* context = nullptr;
  int64_t count = 0;
  int64_t grain = 0;
  int64_t pieces = 0;

  // kOpen, the number of workers allowed in, the number inside. The fields above are written only
  // while this is 0.
  alignas(64) Word state{0};
  Word epoch{0};  // counts jobs; workers sleep on it
  std::atomic<int> sleepers{0};
  // Woken workers that come when all is done, or to the CPU that the owner is on, are no help, and
  // each costs a call into the kernel: where others keep the CPUs, or jobs are short.
  int missed = 0;                       // jobs in a row that were woken for and not helped with
  int unwoken = 0;                      // jobs since one was woken for
  std::atomic<int> cpu{-1};             // the owner's, when the job began
  std::atomic<bool> was_helped{false};  // by a worker on another
  std::atomic<const Team*> team{nullptr};
  std::atomic<int> places{0};  // for threads of the team beside the owner, in its job
  Time left_work;              // when the owner had nothing more to do in it
  // The team returns when its last thread has had a turn, milliseconds later where other programs
  // have the CPUs. Then some jobs go to workers, and more of them each time.
  int without_team = 0, pause = 0;
  alignas(64) std::atomic<int64_t> next{0};  // piece
  std::atomic<bool> has_thrown{false};
  std::exception_ptr thrown;
};

std::atomic<Pool*> g_pool{nullptr};
std::atomic<int> g_threads{0};  // 0: not yet known

struct Setting {
  int threads;
  bool is_chosen;
  char error[160];
};

const Setting& Default() {
  static const Setting setting = [] {
    const char* text = std::getenv("ANYOP_NUM_THREADS");
    Setting s = {UsableCpus(), text && *text, ""};
    if (s.is_chosen && !ParseThreads(text, &s.threads)) {
      std::snprintf(s.error, sizeof s.error,
                    "ANYOP_NUM_THREADS is '%.40s', expected a whole number from 1 to %d", text,
                    kMaxThreads);
    }
    return s;
  }();
  return setting;
}

void ForgetPool() { g_pool.store(nullptr, std::memory_order_relaxed); }

Pool* GetPool() {
  Pool* pool = g_pool.load(std::memory_order_acquire);
  if (pool) return pool;
  static const bool watched = pthread_atfork(nullptr, nullptr, ForgetPool) == 0;
  if (!watched) return nullptr;
  auto* made = new (std::nothrow) Pool;
  if (!made) return nullptr;
  if (g_pool.compare_exchange_strong(pool, made)) return made;
  delete made;
  return pool;
}

// The first exception of a job goes to its owner, and no piece is begun after it.
void Catch(Pool* pool) {
  if (!pool->has_thrown.exchange(true)) pool->thrown = std::current_exception();
  pool->next.store(pool->pieces, std::memory_order_relaxed);
}

// Takes one piece; false where none is left. Whole grains are shared out; the last piece also has
// the rest.
bool WorkOnce(Pool* pool) {
  const int64_t grains = pool->count / pool->grain;
  const int64_t base = grains / pool->pieces, more = grains % pool->pieces;
  const int64_t i = pool->next.fetch_add(1, std::memory_order_relaxed);
  if (i >= pool->pieces) return false;
  const int64_t begin = i * base + std::min(i, more);
  const int64_t end = begin + base + (i < more);
  try {
    pool->body(pool->context, begin * pool->grain,
               i + 1 == pool->pieces ? pool->count : end * pool->grain);
  } catch (...) {
    Catch(pool);
  }
  return true;
}
void Work(Pool* pool) {
  while (WorkOnce(pool)) {
  }
}

bool Join(Pool* pool) {
  uint32_t state = pool->state.load(std::memory_order_relaxed);
  do {
    const uint32_t limit = state >> kLimitShift & kCountMask;
    if (!(state & kOpen) || (state & kCountMask) >= limit) return false;
  } while (!pool->state.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                              std::memory_order_relaxed));
  return true;
}

void Leave(Pool* pool) {
  if (pool->state.fetch_sub(1, std::memory_order_release) == 1)
    Wake(&pool->state, 1);  // closed, and the last one
}

// Whether a worker has the owner's CPU, which then waits for it.
bool IsInTheWay(const Pool& pool) {
  const int cpu = sched_getcpu();
  return cpu >= 0 && cpu == pool.cpu.load(std::memory_order_relaxed);
}

void* RunWorker(void* argument) {
  auto* pool = static_cast<Pool*>(argument);
  uint32_t seen = pool->epoch.load(std::memory_order_acquire);
  for (;;) {
    bool may_spin = true;
    if (Join(pool)) {
      may_spin = !IsInTheWay(*pool);
      if (may_spin) pool->was_helped.store(true, std::memory_order_relaxed);
      Work(pool);
      Leave(pool);
    }
    if (!may_spin || !SpinWhile(pool->epoch, seen)) {
      pool->sleepers.fetch_add(
          1);  // before the kernel compares the epoch: the owner looks in the other order
      SleepWhile(&pool->epoch, seen);
      pool->sleepers.fetch_sub(1);
    }
    seen = pool->epoch.load(std::memory_order_acquire);
  }
  return nullptr;
}

bool StartWorker(Pool* pool) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool made = pthread_create(&thread, &attributes, RunWorker, pool) == 0;
  pthread_attr_destroy(&attributes);
  if (!made) return false;
  char name[24];
  std::snprintf(name, sizeof name, "anyop-%d", ++pool->workers);
  pthread_setname_np(thread, name);
  return true;
}

// Brings the number of workers up to what is wanted, or to what can be had.
void StartWorkers(Pool* pool, int wanted) {
  if (pool->workers >= wanted || pool->failed) return;
  sigset_t blocked, before;  // signals are the program's: its own threads take them
  sigfillset(&blocked);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
    sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  while (pool->workers < wanted && !pool->failed) pool->failed = !StartWorker(pool);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

constexpr int kMisses = 4;

// Whether sleeping workers are woken when a job begins. After some that nobody came to in time,
// they are for one job in so many, and else once the first piece says that the job is long.
bool WakesAtOnce(Pool* pool) {
  constexpr int kJobs = 32;
  if (pool->missed < kMisses || ++pool->unwoken >= kJobs) {
    pool->unwoken = 0;
    return true;
  }
  return false;
}

// True where the job turned out to be worth a wake-up.
bool WorkThenWake(Pool* pool, int helpers) {
  constexpr std::chrono::microseconds kWorthIt(50);
  const Time begin = Clock::now();
  WorkOnce(pool);
  const auto took = Clock::now() - begin;
  if (took * (pool->pieces - 1) < kWorthIt) return false;
  Wake(&pool->epoch, helpers);
  return true;
}

struct Job {
  int64_t count, grain;
  AnyopBody body;
  void* context;
};

// Of so many threads at most; how many it can do with.
int Begin(Pool* pool, const Job& job, int threads) {
  constexpr int64_t kPiecesPerThread = 4;  // evens out what differs in cost or in luck with the CPU
  const int64_t grains = job.count / job.grain;
  threads = static_cast<int>(std::min<int64_t>(threads, grains));
  pool->body = job.body;
  pool->context = job.context;
  pool->count = job.count;
  pool->grain = job.grain;
  pool->pieces = std::min(grains, threads * kPiecesPerThread);
  pool->next.store(0, std::memory_order_relaxed);
  return threads;
}

// The team that does a job of the calling thread's, if any.
const Team* TeamFor(Pool* pool, int threads) {
  const Team* team = pool->team.load(std::memory_order_acquire);
  if (!team) return nullptr;
  const int size = team->Size();
  const bool is_chosen = g_threads.load(std::memory_order_relaxed) || Default().is_chosen;
  if (size <= 1 || (size < threads && is_chosen)) return nullptr;
  if (pool->without_team == 0) return team;
  --pool->without_team;
  return nullptr;
}

void WorkInTeam(void* argument) {
  auto* pool = static_cast<Pool*>(argument);
  const bool is_owner = pool->team.load(std::memory_order_relaxed)->Size() > 0;
  if (is_owner || pool->places.fetch_sub(1, std::memory_order_relaxed) > 0) Work(pool);
  if (is_owner) pool->left_work = Clock::now();
}

// The owner, and those of the team that come first; the others have nothing to do, but a team
// begins and ends as a whole: another size would have the runtime end threads, and start new ones
// for its next loop.
void RunOnTeam(Pool* pool, const Team& team, const Job& job, int threads) {
  constexpr std::chrono::microseconds kPatience(100);
  constexpr int kLeast = 4, kMost = 4096;
  pool->places.store(Begin(pool, job, threads) - 1, std::memory_order_relaxed);
  const Time begin = Clock::now();
  team.parallel(WorkInTeam, pool, 0, 0);
  const auto worked = pool->left_work - begin, waited = Clock::now() - pool->left_work;
  const bool was_late = waited > kPatience + worked / 2;
  pool->pause = was_late ? std::clamp(2 * pool->pause, kLeast, kMost) : pool->pause / 2;
  pool->without_team = was_late ? pool->pause : 0;
}

void RunOnWorkers(Pool* pool, const Job& job, int threads) {
  StartWorkers(pool, threads - 1);
  const int helpers = Begin(pool, job, std::min(threads, pool->workers + 1)) - 1;
  pool->was_helped.store(false, std::memory_order_relaxed);
  pool->cpu.store(sched_getcpu(), std::memory_order_relaxed);
  pool->state.store(kOpen | static_cast<uint32_t>(helpers) << kLimitShift,
                    std::memory_order_release);
  pool->epoch.fetch_add(1);
  bool woken = pool->sleepers.load() > 0;
  if (woken && WakesAtOnce(pool))
    Wake(&pool->epoch, helpers);
  else if (woken)
    woken = WorkThenWake(pool, helpers);
  Work(pool);
  // Who has not come by now has nothing left to do, and who is inside is waited for.
  uint32_t state = pool->state.fetch_and(kCountMask, std::memory_order_acquire) & kCountMask;
  while (state != 0) {
    if (!SpinWhile(pool->state, state)) SleepWhile(&pool->state, state);
    state = pool->state.load(std::memory_order_acquire);
  }
  if (pool->was_helped.load(std::memory_order_relaxed))
    pool->missed = 0;
  else if (woken)
    pool->missed = std::min(pool->missed + 1, kMisses);
}

}  // namespace

int NumThreads() {
  const int threads = g_threads.load(std::memory_order_relaxed);
  return threads ? threads : Default().threads;
}

void SetNumThreads(int n) {
  g_threads.store(std::clamp(n, 1, kMaxThreads), std::memory_order_relaxed);
}

void UseTeamOf(const char* library) {
  Pool* pool = GetPool();
  if (!pool || pool->team.load(std::memory_order_relaxed)) return;
  pool->team.store(TeamOf(library), std::memory_order_release);
}

const char* PoolError() {
  const Setting& setting = Default();
  return setting.error[0] ? setting.error : nullptr;
}

void Parallel(int64_t count, int64_t grain, AnyopBody body, void* context) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int threads = NumThreads();
  if (threads > 1 && count / grain > 1) {
    Pool* pool = GetPool();
    if (pool && !pool->busy.exchange(true, std::memory_order_acquire)) {
      const Job job = {count, grain, body, context};
      const Team* team = TeamFor(pool, threads);
      team ? RunOnTeam(pool, *team, job, threads) : RunOnWorkers(pool, job, threads);
      std::exception_ptr thrown;
      if (__builtin_expect(pool->has_thrown.exchange(false), 0)) std::swap(thrown, pool->thrown);
      pool->busy.store(false, std::memory_order_release);
      if (thrown) std::rethrow_exception(std::move(thrown));
      return;
    }
  }
  body(context, 0, count);
}

}  // namespace anyop
