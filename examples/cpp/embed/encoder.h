// SPDX-License-Identifier: Apache-2.0
// A BERT encoder whose every step is one anyop operator: from token numbers to a vector.
#ifndef EMBED_ENCODER_H_
#define EMBED_ENCODER_H_

#include <anyop/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "safetensors.h"

namespace embed {

class Encoder {
 public:
  // Reads all weights; throws InputError naming the first that cannot be used.
  Encoder(const Config& config, const std::string& path);

  // The vector (D) of unit length of one text. May be called from several threads.
  std::vector<float> Embed(const std::vector<int64_t>& ids) const;

 private:
  struct Pair {
    anyop::Tensor weight, bias;
  };
  struct Layer {
    Pair qkv;  // query, key and value as one matrix
    Pair attended, attended_norm, inner, outer, outer_norm;
  };

  Pair ReadPair(const std::string& name, int64_t rows, int64_t columns = 0);
  Pair ReadQkv(const std::string& prefix);
  Layer ReadLayer(const std::string& prefix);
  anyop::Tensor Norm(const Pair& pair, const anyop::Tensor& x, const anyop::Tensor& y) const;
  anyop::Tensor Attend(const Layer& layer, const anyop::Tensor& x) const;
  anyop::Tensor FeedForward(const Layer& layer, const anyop::Tensor& x) const;
  anyop::Tensor Pool(const anyop::Tensor& x) const;

  Config config_;
  Safetensors file_;
  std::string prefix_;  // "bert." where the names of the weights begin so
  anyop::Tensor words_, positions_;
  Pair norm_;
  std::vector<Layer> layers_;
};

}  // namespace embed

#endif  // EMBED_ENCODER_H_
