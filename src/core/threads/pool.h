// SPDX-License-Identifier: Apache-2.0
// The one thread pool of the process. It serves one job at a time; whoever comes second works
// alone.
#pragma once

#include "anyop/kernel.h"
#include "threads/cpu_limit.h"

namespace anyop {

// How many threads, the caller's among them, a job is divided between. At first ANYOP_NUM_THREADS
// or, without it, the number of CPUs the process may use.
int NumThreads();

// n from 1 to kMaxThreads; what lies outside is taken as the nearest. Safe while jobs run: they
// keep their number.
void SetNumThreads(int n);

// From now on jobs of the calling thread run on the OpenMP threads of a library (threads/team.h),
// where these are more than one, and as many as were asked for by ANYOP_NUM_THREADS or
// SetNumThreads. A forked child has workers of its own again.
void UseTeamOf(const char* library);

// What is wrong with ANYOP_NUM_THREADS, nullptr when nothing is.
const char* PoolError();

// Runs body over [0, count) in pieces that begin at multiples of grain and hold at least grain,
// except for a count below it. Returns when all is done. Runs serially inside another job, beside
// another job, and where there are no threads to be had. Safe from any thread and after a fork.
// Never throws.
void Parallel(int64_t count, int64_t grain, AnyopBody body, void* context);

}  // namespace anyop
