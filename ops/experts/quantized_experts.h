// SPDX-License-Identifier: Apache-2.0
// fused_moe of 8-bit weights on the CPU, for fused_moe_w8a8 and fused_moe_fp8_block: tokens are
// quantised once, then gathered expert by expert, multiplied, activated and quantised again (by
// ../quant/quantize_row.h), and multiplied; each token's rows are added in the order of its slots.
#pragma once

#include <algorithm>
#include <limits>

#include "../quant/quantize_row.h"
#include "gates.h"
#include "slots.h"
#include "token_sums.h"

namespace anyop {
namespace cpu {

// A tensor without gaps, of the dtype of another one.
struct Matrix {
  int64_t shape[2], strides[2];
  AnyopTensor tensor;

  Matrix(const AnyopTensor* like, void* data, int64_t rows, int64_t columns)
      : shape{rows, columns}, strides{columns, 1}, tensor(*like) {
    tensor.data = data;
    tensor.ndim = 2, tensor.shape = shape, tensor.strides = strides;
  }
  Matrix(const Matrix&) = delete;
};

// Rows of numbers become rows of codes, with scales.
struct Quantized {
  const AnyopTensor *from, *given, *codes, *scales;  // given: the scales, or NULL: from the rows
  int64_t D, group;                                  // of codes
  Gates gates;                                       // where from holds float32 sums of gates
};

[[maybe_unused]] ANYOP_CPU_CLONES void QuantizeTokens(const Quantized* work, int64_t begin,
                                                      int64_t end) {
  const Rows from(work->from);
  const QuantizedRows to(work->codes, work->given, work->scales, work->D, work->group);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<float> in(from.dtype(), from[row], work->D);
    to.Write(row, [](float v) { return v; }, in);
  }
}

[[maybe_unused]] ANYOP_CPU_CLONES void QuantizeHidden(const Quantized* work, int64_t begin,
                                                      int64_t end) {
  const Rows from(work->from);
  const Gates& gates = work->gates;
  const QuantizedRows to(work->codes, work->given, work->scales, work->D, work->group);
  WithGate<float>(gates, [&](auto form) {
    for (int64_t row = begin; row < end; ++row) {
      RowReader<float> gate(kAnyopFloat32, from[row] + gates.gate * 4, gates.I);
      RowReader<float> up(kAnyopFloat32, from[row] + gates.up * 4, gates.I);
      to.Write(row, [form](float g, float u) { return form.Factor(g) * form.Up(u); }, gate, up);
    }
  });
}

}  // namespace cpu

namespace {

// Product: what multiplies rows of 8 bits by an expert's weight, to float32. Product::kGroup:
// columns that share a scale.
template <typename Args, typename Product>
class QuantizedExperts {
 public:
  QuantizedExperts(const Args* args, AnyopCall* call, const AnyopTensor* x_scale)
      : a_(*args), call_(call), x_scale_(x_scale), slots_(args->T * args->K) {
    const bool gated = std::strcmp(args->activation.data, "relu2") != 0;
    const int64_t I = gated ? args->A / 2 : args->A;
    constexpr double kNone = std::numeric_limits<double>::infinity();
    gates_ = {kAnyopFloat32, args->activation.data, 1, kNone, gated, I, args->A, 0, gated ? I : 0};
    groups_ = GroupsOf(a_.H), hidden_groups_ = GroupsOf(I);
    in_codes_ = AnyopDtypeOf(args->x) == AnyopDtypeOf(args->w13);
  }

  int32_t Run() {
    if (!Sort() || !Allocate()) return NoMemory();
    Product first(call_, a_.w13, most_, a_.A, a_.H), second(call_, a_.w2, most_, a_.H, gates_.I);
    if (!first.has_memory() || !second.has_memory()) return NoMemory();
    QuantizeX();
    for (int64_t e = 0; e < a_.E; ++e)
      for (int64_t begin = offsets_[e]; begin < offsets_[e + 1]; begin += most_) {
        const int64_t rows = std::min(most_, offsets_[e + 1] - begin);
        if (const int32_t status = RunRows(first, second, e, begin, rows)) return status;
      }
    WithElement(AnyopDtypeOf(a_.out), [&](auto zero) {
      using Element = decltype(zero);
      if constexpr (sizeof(Element) <= 4)
        SumTokensOf(call_, results_, slots_, inverse_, static_cast<const float*>(a_.weights->data),
                    a_.T, a_.K, a_.H, static_cast<Element*>(a_.out->data));
    });
    return kAnyopOk;
  }

 private:
  // At least one, whose scale counts for nothing.
  static int64_t GroupsOf(int64_t D) {
    return std::max<int64_t>(1, D / Product::kGroup + (D % Product::kGroup != 0));
  }
  int32_t NoMemory() {
    return call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
  }
  void* Memory(int64_t bytes) { return call_->workspace(call_, bytes + 64); }
  float* Floats(int64_t count) { return static_cast<float*>(Memory(count * 4)); }
  char* Codes(int64_t count) { return static_cast<char*>(Memory(count)); }

  bool Sort() {
    order_ = static_cast<int32_t*>(Memory((2 * slots_ + a_.E + 1) * 4));
    if (!order_) return false;
    inverse_ = order_ + slots_, offsets_ = inverse_ + slots_;
    SortSlots({a_.ids, a_.expert_map, a_.E}, slots_, a_.E, 1, order_, inverse_, offsets_);
    return true;
  }

  // Blocks of rows: 4 Mi sums of the first product, at least 256 rows.
  bool Allocate() {
    int64_t count = 0;
    for (int64_t e = 0; e < a_.E; ++e)
      count = std::max<int64_t>(count, offsets_[e + 1] - offsets_[e]);
    most_ = std::min(count, std::max<int64_t>(256, (int64_t{4} << 20) / (a_.A + 1)));
    if (in_codes_) {
      codes_ = static_cast<char*>(a_.x->data);
      if (x_scale_ && a_.H) scales_ = static_cast<float*>(x_scale_->data);
    } else {
      codes_ = Codes(a_.T * a_.H);
    }
    if (!scales_) {
      scales_ = Floats(a_.T * groups_);
      if (scales_) std::fill_n(scales_, a_.T * groups_, 1.0f);
    }
    tokens_ = Codes(most_ * a_.H), token_scales_ = Floats(most_ * groups_);
    sums_ = Floats(most_ * a_.A);
    hidden_ = Codes(most_ * gates_.I), hidden_scales_ = Floats(most_ * hidden_groups_);
    results_ = Floats(offsets_[a_.E] * a_.H);
    return (codes_ || in_codes_) &&  // x without elements may lie nowhere
           scales_ && tokens_ && token_scales_ && sums_ && hidden_ && hidden_scales_ && results_;
  }

  void QuantizeX() {
    if (in_codes_ || a_.H == 0) return;
    const cpu::Matrix codes(a_.w13, codes_, a_.T, a_.H), scales(a_.weights, scales_, a_.T, groups_);
    const cpu::Quantized work = {a_.x, x_scale_,        &codes.tensor, &scales.tensor,
                                 a_.H, Product::kGroup, gates_};
    cpu::RunRows(call_, &work, a_.T, a_.H, cpu::QuantizeTokens);
  }

  // Some rows of one expert, from the gathered tokens to its results.
  int32_t RunRows(Product& first, Product& second, int64_t e, int64_t begin, int64_t rows) {
    const cpu::Matrix codes(a_.w13, codes_, a_.T, a_.H), scales(a_.weights, scales_, a_.T, groups_);
    const auto gather = [&](const AnyopTensor& from, void* to) {
      GatherTokensOf(call_, &from, order_ + begin, rows, slots_, a_.K, static_cast<char*>(to));
    };
    gather(codes.tensor, tokens_);
    gather(scales.tensor, token_scales_);
    if (const int32_t status =
            first.Run(rows, tokens_, token_scales_, a_.w13, a_.w13_scale, e, sums_))
      return status;
    const cpu::Matrix sums(a_.weights, sums_, rows, a_.A);
    const cpu::Matrix hidden(a_.w13, hidden_, rows, gates_.I);
    const cpu::Matrix hidden_scales(a_.weights, hidden_scales_, rows, hidden_groups_);
    const cpu::Quantized work = {
        &sums.tensor, nullptr,         &hidden.tensor, &hidden_scales.tensor,
        gates_.I,     Product::kGroup, gates_};
    if (gates_.I == 0)
      std::fill_n(hidden_scales_, rows, 0.0f);
    else
      cpu::RunRows(call_, &work, rows, a_.A, cpu::QuantizeHidden);
    return second.Run(rows, hidden_, hidden_scales_, a_.w2, a_.w2_scale, e,
                      results_ + begin * a_.H);
  }

  const Args& a_;
  AnyopCall* call_;
  const AnyopTensor* x_scale_;
  int64_t slots_, groups_, hidden_groups_, most_ = 0;
  bool in_codes_;  // x is quantised
  cpu::Gates gates_;
  int32_t *order_ = nullptr, *inverse_ = nullptr, *offsets_ = nullptr;
  char *codes_ = nullptr, *tokens_ = nullptr, *hidden_ = nullptr;
  float *scales_ = nullptr, *token_scales_ = nullptr, *sums_ = nullptr, *hidden_scales_ = nullptr,
        *results_ = nullptr;
};

}  // namespace
}  // namespace anyop
