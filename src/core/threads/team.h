// SPDX-License-Identifier: Apache-2.0
// Threads of the OpenMP runtime that another library of the process uses. Behind each of its loops
// they look busily for the next one, for milliseconds: a thread of ours would have to share a CPU
// with them, and they take a loop of ours at once.
#pragma once

#include <pthread.h>

namespace anyop {

struct Team {
  // GOMP_parallel of GCC's runtime, which LLVM's and Intel's have, too: work(argument) in each
  // thread of the team, the caller's among them; 0 threads: as many as max_threads says.
  void (*parallel)(void (*work)(void*), void* argument, unsigned threads, unsigned flags);
  // omp_get_max_threads: how many the calling thread's team has.
  int (*max_threads)();
  // The runtime keeps a team for each thread that begins loops: only this thread's is used.
  pthread_t owner;

  // Of the calling thread; 0 where it is another's.
  int Size() const { return pthread_equal(pthread_self(), owner) ? max_threads() : 0; }
};

// The calling thread's team in the runtime that a library ("libtorch_cpu.so") was linked with.
// Never freed. nullptr where that library is not loaded or has no such runtime, and where its
// threads sleep between loops (OMP_WAIT_POLICY=passive).
const Team* TeamOf(const char* library);

}  // namespace anyop
