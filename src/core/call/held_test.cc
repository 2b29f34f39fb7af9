// SPDX-License-Identifier: Apache-2.0
// Handles by their C API: each call is answered as AnyopInvoke answers it, whatever changed since
// the call before.
#include "anyop/held.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace {

constexpr int kCount = 20;  // more than overlap is judged in pairs of

// One list of multi_tensor_axpby; each tensor has memory of its own, so that sanitizers see its
// end.
struct List {
  explicit List(float first) {
    for (int k = 0; k < kCount; ++k) {
      sizes[k][0] = 3, sizes[k][1] = k % 4 + 1;
      tensors[k] = {nullptr, 1, 0, 2, 2, 32, 1, sizes[k], nullptr, 0};
      Move(k, first + static_cast<float>(k));
    }
  }
  float* At(int k) { return static_cast<float*>(tensors[k].data); }
  int64_t Numel(int k) const { return sizes[k][0] * sizes[k][1]; }
  // To new memory of its size, full of value.
  void Move(int k, float value) {
    auto now = std::make_unique<float[]>(static_cast<size_t>(Numel(k)));
    for (int64_t i = 0; i < Numel(k); ++i) now[static_cast<size_t>(i)] = value;
    tensors[k].data = now.get();
    memory[k].swap(now);
  }

  int64_t sizes[kCount][2];
  AnyopTensor tensors[kCount];
  std::unique_ptr<float[]> memory[kCount];
};

// out = 2 x + 3 y
struct Case {
  List x{1}, y{100}, out{0};
  float factors[2] = {2, 3};
  AnyopTensor a = {&factors[0], 1, 0, 0, 2, 32, 1, nullptr, nullptr, 0};
  AnyopTensor b = {&factors[1], 1, 0, 0, 2, 32, 1, nullptr, nullptr, 0};
  int64_t count = kCount;  // of x

  // By a handle, or without.
  int32_t Call(AnyopHeld* held) {
    AnyopValue values[7] = {};
    List* const lists[] = {&x, &y, &out};
    for (int i = 0; i < 3; ++i) {
      values[i].kind = kAnyopTensorsValue;
      values[i].as.tensors = {lists[i]->tensors, i ? kCount : count};
    }
    values[3].kind = values[4].kind = kAnyopTensorValue;
    values[3].as.tensor = &a, values[4].as.tensor = &b;
    if (held) return AnyopInvokeHeld(held, values, 7, nullptr);
    return AnyopInvoke(AnyopFindOperator("multi_tensor_axpby"), values, 7, nullptr);
  }

  bool IsRight() {
    for (int k = 0; k < kCount; ++k) {
      for (int64_t i = 0; i < out.Numel(k); ++i) {
        if (out.At(k)[i] != 2 * x.At(k)[i] + 3 * y.At(k)[i]) return false;
      }
    }
    return true;
  }
  bool Works(AnyopHeld* held) {
    for (int k = 0; k < kCount; ++k)
      std::memset(out.At(k), 0, 4 * static_cast<size_t>(out.Numel(k)));
    return Call(held) == kAnyopOk && IsRight();
  }
  // Twice, as a call without a handle: what was refused once leaves nothing behind.
  void Refused(AnyopHeld* held, int32_t status, const char* part) {
    for (int turn = 0; turn < 2; ++turn) {
      CHECK_EQ(Call(held), status);
      const std::string text = AnyopLastError();
      CHECK(text.find(part) != std::string::npos);
      CHECK_EQ(Call(nullptr), status);
      CHECK_EQ(text, AnyopLastError());
    }
  }
};

// A handle that has been called once.
struct Handle {
  explicit Handle(Case* first) {
    CHECK_EQ(AnyopNewHeld(AnyopFindOperator("multi_tensor_axpby"), &held), int{kAnyopOk});
    CHECK(first->Works(held));
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { AnyopDeleteHeld(held); }
  AnyopHeld* held = nullptr;
};

TEST(TheSameTensorsAndMovedOnes) {
  Case c;
  const Handle handle(&c);
  CHECK(c.Works(handle.held));
  for (int turn = 0; turn < 3; ++turn) {
    for (int k = turn; k < kCount; ++k) {
      c.x.Move(k, static_cast<float>(7 * turn + k));
      if (k % 2) c.out.Move(k, 0);
    }
    CHECK(c.Works(handle.held));
  }
  Case other;  // and the one before is no more
  CHECK(other.Works(handle.held));
}

TEST(OtherSizes) {
  Case c;
  const Handle handle(&c);
  c.y.sizes[3][1] = 2;
  c.Refused(handle.held, kAnyopValueError, "[element 3]");
  for (List* list : {&c.x, &c.y, &c.out}) {
    list->sizes[3][0] = 5, list->sizes[3][1] = 7;
    list->Move(3, 4);
  }
  CHECK(c.Works(handle.held));
  c.count = kCount - 1;
  c.Refused(handle.held, kAnyopValueError, "expected 19");
  c.count = kCount;
  CHECK(c.Works(handle.held));
  for (List* list : {&c.x, &c.y, &c.out}) list->sizes[6][0] = -1;
  c.Refused(handle.held, kAnyopValueError, "no negative size");
}

TEST(OtherDtypesAndDevices) {
  Case c;
  const Handle handle(&c);
  c.y.tensors[2].dtype_code = 0;  // int32
  c.Refused(handle.held, kAnyopTypeError, "y has dtype int32, expected float32");
  c.y.tensors[2].dtype_code = 2;
  c.x.tensors[5].device_type = 2;
  c.Refused(handle.held, kAnyopValueError, "is on device");
  c.x.tensors[5].device_type = 1;
  CHECK(c.Works(handle.held));
}

TEST(MemoryThatCannotBe) {
  Case c;
  const Handle handle(&c);
  void* const before = c.x.tensors[4].data;
  c.x.tensors[4].data = nullptr;
  c.Refused(handle.held, kAnyopValueError, "x has no storage");
  c.x.tensors[4].data = static_cast<char*>(before) + 2;
  c.Refused(handle.held, kAnyopValueError, "no multiple of 4 bytes");
  c.x.tensors[4].data = before;
  CHECK(c.Works(handle.held));
}

TEST(OverlapThatAppearsLater) {
  Case c;
  const Handle handle(&c);
  void* const before = c.out.tensors[1].data;
  c.out.tensors[1].data = c.y.At(3) + 3;  // 6 of its 12 elements
  c.Refused(handle.held, kAnyopValueError, "out overlaps y in memory");
  for (int i = 0; i < 12; ++i) CHECK_EQ(c.y.At(3)[i], 103.0f);
  c.out.tensors[1].data = before;
  CHECK(c.Works(handle.held));
  c.a.data = c.out.At(2);  // of a tensor that is in no list
  c.Refused(handle.held, kAnyopValueError, "overlaps");
  c.a.data = &c.factors[0];
  CHECK(c.Works(handle.held));
  c.out.tensors[3].data = c.x.At(3);  // a result may be what it is made of
  CHECK_EQ(c.Call(handle.held), int{kAnyopOk});
  CHECK_EQ(c.x.At(3)[11], 2 * 4.0f + 3 * 103.0f);
}

TEST(TwoThreads) {
  Case first;
  const Handle handle(&first);
  int wrong[2] = {0, 0};
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Case mine;
      for (int turn = 0; turn < 300; ++turn) {
        mine.x.Move(turn % kCount, static_cast<float>(turn + t));
        wrong[t] += !mine.Works(handle.held);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong[0] + wrong[1], 0);
  CHECK(first.Works(handle.held));
}

TEST(NoHandle) {
  AnyopHeld* held = nullptr;
  CHECK_EQ(AnyopNewHeld(nullptr, &held), int{kAnyopValueError});
  CHECK_EQ(AnyopNewHeld(AnyopFindOperator("multi_tensor_axpby"), nullptr), int{kAnyopValueError});
  CHECK(!held && std::strstr(AnyopLastError(), "AnyopNewHeld: expected an operator"));
  AnyopValue value = {};
  CHECK_EQ(AnyopInvokeHeld(nullptr, &value, 1, nullptr), int{kAnyopValueError});
  CHECK(std::strstr(AnyopLastError(), "the handle is NULL"));
  AnyopDeleteHeld(nullptr);
}

}  // namespace
