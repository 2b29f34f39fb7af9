// SPDX-License-Identifier: Apache-2.0
// Workspace of steps that run one after the other in one call: each step gets what the one before
// it had. Without it every product's workspace would live until the kernel returns.
#ifndef ANYOP_OPS_LOSS_REUSED_WORKSPACE_H_
#define ANYOP_OPS_LOSS_REUSED_WORKSPACE_H_

#include "anyop/kernel.h"

namespace anyop {

// A call whose k-th piece of workspace of a step is the k-th of the step before, where that is
// large enough. On a stream, a step must be behind the one before it on the same stream.
class ReusedWorkspace {
 public:
  explicit ReusedWorkspace(AnyopCall* outer) : inner_(*outer), outer_(outer) {
    inner_.size = sizeof inner_;
    inner_.choice = AnyopChoice(outer);
    inner_.workspace = Take;
  }
  ReusedWorkspace(const ReusedWorkspace&) = delete;
  ReusedWorkspace& operator=(const ReusedWorkspace&) = delete;

  // The call of the next step; the memory of the one before is free.
  AnyopCall* NextStep() {
    taken_ = 0;
    return &inner_;
  }

 private:
  static constexpr int kPieces = 16;  // of a step; what is more is never reused
  struct Piece {
    void* data;
    int64_t bytes;
  };

  // inner_ is the first member, so that its address is that of the whole.
  static void* Take(AnyopCall* call, int64_t bytes) {
    auto* self = reinterpret_cast<ReusedWorkspace*>(call);
    if (self->taken_ == kPieces) return self->outer_->workspace(self->outer_, bytes);
    Piece& piece = self->pieces_[self->taken_++];
    if (!piece.data || piece.bytes < bytes)
      piece = {self->outer_->workspace(self->outer_, bytes), bytes};
    return piece.data;
  }

  AnyopCall inner_;
  AnyopCall* outer_;
  Piece pieces_[kPieces] = {};
  int taken_ = 0;
};

}  // namespace anyop

#endif  // ANYOP_OPS_LOSS_REUSED_WORKSPACE_H_
