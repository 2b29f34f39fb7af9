// SPDX-License-Identifier: Apache-2.0
// What config.json and the files beside it say about a BERT.
#ifndef EMBED_CONFIG_H_
#define EMBED_CONFIG_H_

#include <cstdint>
#include <string>

namespace embed {

enum class Activation { kGelu, kTanhGelu, kRelu };
enum class Pooling { kMean, kFirstToken };

struct Config {
  int64_t D;  // features
  int64_t H;  // heads
  int64_t M;  // features in the middle of the feed-forward part
  int64_t V;  // words
  int64_t P;  // positions
  int64_t layers;
  int64_t types;
  int64_t limit;  // tokens of a text
  double eps;
  Activation activation;
  Pooling pooling;
};

// Throws InputError naming the first setting that is missing or not supported.
Config ReadConfig(const std::string& folder);

}  // namespace embed

#endif  // EMBED_CONFIG_H_
