// SPDX-License-Identifier: Apache-2.0
// Weights of a safetensors file for programs in C: no exception leaves this file.
#include "weights.h"

#include <exception>
#include <string>
#include <vector>

#include "safetensors.h"

struct Weights {
  embed::Safetensors file;
  std::vector<anyop::Tensor> read;
};

namespace {

thread_local std::string last_error;

template <typename Function>
auto Guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    last_error = error.what();
    return nullptr;
  }
}

}  // namespace

Weights* OpenWeights(const char* path) {
  return Guarded([&] { return new Weights{embed::Safetensors(path), {}}; });
}

const AnyopTensor* ReadWeight(Weights* weights, const char* name) {
  return Guarded([&] {
    weights->read.push_back(weights->file.Read(name));
    return const_cast<const AnyopTensor*>(weights->read.back().get());
  });
}

const char* WeightsError(void) { return last_error.c_str(); }

void CloseWeights(Weights* weights) { delete weights; }
