// SPDX-License-Identifier: Apache-2.0
// A BERT encoder whose every step is one anyop operator: from token numbers to a vector.
//
// Sizes: T tokens, H heads, D features, M features in the middle of the feed-forward part.
#include "encoder.h"

#include <anyop/ops.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "input.h"

namespace embed {

using anyop::Tensor;

namespace {

// The first rows of a matrix, in the same memory.
Tensor FirstRows(const Tensor& x, int64_t rows) {
  return Tensor::View(x.data<float>(), {rows, x.size(1)});
}

// Heads (1, H, T, D/H) as they lie in rows of stride elements; nothing is copied.
Tensor Heads(float* first, int64_t T, int64_t H, int64_t D, int64_t stride) {
  return Tensor::View(first, {1, H, T, D / H}, {T * stride, D / H, stride, 1});
}

}  // namespace

Encoder::Encoder(const Config& config, const std::string& path) : config_(config), file_(path) {
  const std::string words = "embeddings.word_embeddings.weight";
  if (!file_.Has(words) && file_.Has("bert." + words)) prefix_ = "bert.";
  words_ = file_.Read(prefix_ + words, {config.V, config.D});
  const Tensor types =
      file_.Read(prefix_ + "embeddings.token_type_embeddings.weight", {config.types, config.D});
  // Every token has type 0 here, so its vector is added to the positions once and for all.
  positions_ = anyop::add(
      file_.Read(prefix_ + "embeddings.position_embeddings.weight", {config.P, config.D}),
      FirstRows(types, 1));
  norm_ = ReadPair("embeddings.LayerNorm", config.D);
  for (int64_t i = 0; i < config.layers; ++i) {
    layers_.push_back(ReadLayer("encoder.layer." + std::to_string(i) + "."));
  }
}

// A matrix and its bias, or without columns the two vectors of a norm.
Encoder::Pair Encoder::ReadPair(const std::string& name, int64_t rows, int64_t columns) {
  std::vector<int64_t> shape = {rows};
  if (columns > 0) shape.push_back(columns);
  return {file_.Read(prefix_ + name + ".weight", shape),
          file_.Read(prefix_ + name + ".bias", {rows})};
}

Encoder::Pair Encoder::ReadQkv(const std::string& prefix) {
  const int64_t D = config_.D;
  const Pair qkv = {Tensor::New(kAnyopFloat32, {3 * D, D}), Tensor::New(kAnyopFloat32, {3 * D})};
  int64_t part = 0;
  for (const char* name : {"query", "key", "value"}) {
    const Pair pair = ReadPair(prefix + "attention.self." + name, D, D);
    std::copy_n(pair.weight.data<float>(), D * D, qkv.weight.data<float>() + part * D * D);
    std::copy_n(pair.bias.data<float>(), D, qkv.bias.data<float>() + part * D);
    ++part;
  }
  return qkv;
}

Encoder::Layer Encoder::ReadLayer(const std::string& prefix) {
  const int64_t D = config_.D, M = config_.M;
  return {ReadQkv(prefix),
          ReadPair(prefix + "attention.output.dense", D, D),
          ReadPair(prefix + "attention.output.LayerNorm", D),
          ReadPair(prefix + "intermediate.dense", M, D),
          ReadPair(prefix + "output.dense", D, M),
          ReadPair(prefix + "output.LayerNorm", D)};
}

std::vector<float> Encoder::Embed(const std::vector<int64_t>& ids) const {
  const auto T = static_cast<int64_t>(ids.size());
  const Tensor x = anyop::embedding(Tensor::View(ids.data(), {T}), words_);
  Tensor tokens = Norm(norm_, x, FirstRows(positions_, T));
  for (const Layer& layer : layers_) tokens = FeedForward(layer, Attend(layer, tokens));
  const Tensor pooled = Pool(tokens);
  const float* vector = anyop::l2_normalize(pooled, 1e-12, pooled).data<float>();
  if (!std::all_of(vector, vector + config_.D, [](float v) { return std::isfinite(v); })) {
    throw InputError("the model gives a vector that is not finite: its weights are damaged");
  }
  return {vector, vector + config_.D};
}

// norm(x + y), in the memory of x.
Tensor Encoder::Norm(const Pair& pair, const Tensor& x, const Tensor& y) const {
  const Tensor sum = anyop::add(x, y, 1.0, x);
  return anyop::layer_norm(sum, pair.weight, pair.bias, config_.eps, 0, std::nullopt, sum);
}

// norm(x + attention(x))
Tensor Encoder::Attend(const Layer& layer, const Tensor& x) const {
  const int64_t T = x.size(0), D = config_.D, H = config_.H;
  const Tensor qkv = anyop::linear(x, layer.qkv.weight, layer.qkv.bias);
  auto part = [&](int64_t i) { return Heads(qkv.data<float>() + i * D, T, H, D, 3 * D); };
  const Tensor heads = Tensor::New(kAnyopFloat32, {T, D});
  anyop::attention(part(0), part(1), part(2), {}, std::nullopt, false, 0, -1, -1, 0.0, {}, {},
                   Heads(heads.data<float>(), T, H, D, D));
  const Tensor attended = anyop::linear(heads, layer.attended.weight, layer.attended.bias);
  return Norm(layer.attended_norm, x, attended);
}

// norm(x + outer(activation(inner(x))))
Tensor Encoder::FeedForward(const Layer& layer, const Tensor& x) const {
  const Tensor inner = anyop::linear(x, layer.inner.weight, layer.inner.bias);
  if (config_.activation == Activation::kRelu) {
    anyop::relu(inner, inner);
  } else {
    anyop::gelu(inner, config_.activation == Activation::kGelu ? "none" : "tanh", inner);
  }
  return Norm(layer.outer_norm, x, anyop::linear(inner, layer.outer.weight, layer.outer.bias));
}

// The mean of all tokens, or the first one: (1, D).
Tensor Encoder::Pool(const Tensor& x) const {
  const int64_t T = x.size(0);
  const auto used = std::make_unique<bool[]>(static_cast<size_t>(T));  // no vector: it packs bits
  std::fill_n(used.get(), config_.pooling == Pooling::kMean ? T : 1, true);
  return anyop::masked_mean(Tensor::View(x.data<float>(), {1, T, config_.D}),
                            Tensor::View(used.get(), {1, T}));
}

}  // namespace embed
