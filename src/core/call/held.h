// SPDX-License-Identifier: Apache-2.0
// What a call found out about its lists, for the next one with the same handle: where nothing but
// addresses changed, these alone are looked at.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "call/call.h"
#include "operator/sizes.h"
#include "tensors/memory.h"

namespace anyop {

struct HeldTensor {
  AnyopTensor tensor;  // its sizes lie in Held::sizes; its memory is never touched
  int64_t begin;       // bytes from its address to the first that it touches, and behind the last
  int64_t end;         // as begin where it has no elements
  bool moved;          // lies elsewhere than in the call before
};

struct Held {
  explicit Held(const Operator* op);

  const Operator* const op;
  bool is_useful = true;             // no list may be copied or expanded
  std::atomic<bool> is_used{false};  // by a call
  bool is_known = false;             // what follows is that of a call in which nothing was wrong
  std::string rest;                  // all that checks of lists rely on beside the lists
  std::vector<HeldTensor> tensors;   // of all lists, one behind the other
  std::vector<int64_t> sizes;
  std::vector<Span> others;  // of tensors that are in no list
  uint64_t touched_bytes = 0;
  bool has_moved = false;  // a tensor with elements
  bool checks_overlap = false;
  bool writes_nothing = false;
  LastOrder order;

  // Forgets the tensors, and keeps what a tensor of a list is that has been checked.
  void Clear();
  void Add(const AnyopTensor& tensor, bool writes);
  // Behind the last of them.
  void Finish();
};

// A call's use of a handle, set in its frame. Where another thread's call uses it, this one goes
// without, and checks everything anew.
class UsedHeld {
 public:
  UsedHeld(Held* held, Frame* frame) {
    if (!held || held->is_used.exchange(true, std::memory_order_acquire)) return;
    held_ = frame->held = held;
  }
  UsedHeld(const UsedHeld&) = delete;
  UsedHeld& operator=(const UsedHeld&) = delete;
  ~UsedHeld() {
    if (held_) held_->is_used.store(false, std::memory_order_release);
  }

 private:
  Held* held_ = nullptr;
};

// The lists of a call with a handle, beside what the handle keeps of the call before.
class HeldLists {
 public:
  HeldLists(Frame* frame, const Operator& op) : frame_(frame), op_(op), held_(frame->held) {}

  // Whether nothing but addresses changed, and those are addresses where such tensors may lie.
  // Until Keep the handle knows nothing: a call that fails leaves none behind that would pass.
  bool Fit();

  // What checks of lists that fit would leave behind: of the last element, and the first tensor.
  void Bind(Sizes* sizes, uint8_t* dtypes, const AnyopTensor** first) const;

  // Of lists that fit and did not move: whether the other tensors are apart from them and from each
  // other. False where that must be looked at together.
  bool AreApartFrom(const Spans& others) const;
  void AddTo(Spans* spans) const;
  // All is as it should be: of lists that did not fit; of the others; for the next call.
  void KeepAll() const;
  int32_t Keep(const Spans& spans) const;

 private:
  // visit(i, p, list) for each list that was given.
  template <typename Visit>
  void EachList(const Visit& visit) const;
  const AnyopTensor* First() const;
  std::string Rest() const;
  bool FitTensor(const Param& p, AnyopTensor* t, HeldTensor* kept) const;

  Frame* const frame_;
  const Operator& op_;
  Held* const held_;
};

}  // namespace anyop
