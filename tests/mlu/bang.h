// SPDX-License-Identifier: Apache-2.0
// A false BANG C for tests/builder/mlu_compile_test.py: what scale.mlu calls of it, on the CPU. A
// launch is a function of the host in the queue; its tasks run one after another.
#pragma once

#include <cnrt.h>

#include <cstdint>
#include <cstring>
#include <functional>

#define __mlu_global__
#define __nram__ static thread_local

enum Direction { GDRAM2NRAM, NRAM2GDRAM };

inline thread_local int taskId = 0, taskDim = 0;

inline void __memcpy(void* to, const void* from, int64_t bytes, Direction) {
  memcpy(to, from, static_cast<size_t>(bytes));
}

inline void __bang_mul_scalar(float* out, const float* x, float y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] * y;
}

inline void RunTasks(void* context) {
  auto* work = static_cast<std::function<void()>*>(context);
  (*work)();
  delete work;
}

// Kernel<<<dim, type, queue>>>(arguments) becomes FalseLaunch(Kernel, dim, type, queue)(arguments).
template <typename Kernel>
auto FalseLaunch(Kernel kernel, cnrtDim3_t dim, cnrtFunctionType_t, cnrtQueue_t queue) {
  return [=](auto... arguments) {
    auto* work = new std::function<void()>([=] {
      taskDim = static_cast<int>(dim.x);
      for (taskId = 0; taskId < taskDim; ++taskId) kernel(arguments...);
    });
    false_last_error = cnrtInvokeHostFunc(queue, RunTasks, work);
  };
}
