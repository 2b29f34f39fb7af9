// SPDX-License-Identifier: Apache-2.0
// Sentence embeddings without Python: compares texts by meaning, or prints their vectors.
#include <anyop/tensor.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "config.h"
#include "encoder.h"
#include "input.h"
#include "tokenizer.h"

namespace {

using embed::Encoder;
using embed::Tokenizer;

constexpr char kUsage[] =
    "usage: embed [--vectors | --ids] MODEL [TEXT]...\n"
    "  MODEL      folder of a BERT: config.json, tokenizer.json, model.safetensors\n"
    "  TEXT       compared with the first one; without any, lines of standard input are read\n"
    "  --vectors  print the vector of each text\n"
    "  --ids      print the numbers of each text's tokens\n";

enum class Output { kCosines, kVectors, kIds };

std::vector<std::string> ReadLines() {
  std::vector<std::string> lines;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(line);
  return lines;
}

void PrintIds(const std::vector<int64_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    std::printf("%s%lld", i ? " " : "", static_cast<long long>(ids[i]));
  }
  std::printf("\n");
}

// Nine digits: each float32 is read back as it was.
void PrintVector(const std::vector<float>& vector) {
  for (size_t d = 0; d < vector.size(); ++d) std::printf("%s%.9g", d ? " " : "", vector[d]);
  std::printf("\n");
}

double Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;  // both are of unit length
  for (size_t d = 0; d < a.size(); ++d) sum += static_cast<double>(a[d]) * b[d];
  return sum;
}

void Run(Output output, const std::string& folder, const std::vector<std::string>& texts) {
  const embed::Config config = embed::ReadConfig(folder);
  const Tokenizer tokenizer(folder + "/tokenizer.json", config.limit, config.V);
  if (output == Output::kIds) {
    for (const std::string& text : texts) PrintIds(tokenizer.Encode(text).ids);
    return;
  }
  const Encoder encoder(config, folder + "/model.safetensors");
  std::vector<float> first;
  for (const std::string& text : texts) {
    const embed::Tokens tokens = tokenizer.Encode(text);
    if (tokens.count > tokens.ids.size()) {
      std::fprintf(stderr, "a text has %zu tokens, the model reads the first %zu\n", tokens.count,
                   tokens.ids.size());
    }
    const std::vector<float> vector = encoder.Embed(tokens.ids);
    if (first.empty()) first = vector;
    if (output == Output::kVectors) {
      PrintVector(vector);
    } else {
      std::printf("%6.3f  %s\n", Cosine(first, vector), text.c_str());
    }
  }
}

int Refuse(const char* text) {
  std::fprintf(stderr, "embed: %s\n", text);
  return 2;
}

}  // namespace

int main(int count, char** arguments) {
  Output output = Output::kCosines;
  int next = 1;
  if (next < count && std::strcmp(arguments[next], "--help") == 0)
    return std::fputs(kUsage, stdout) < 0;
  if (next < count && std::strcmp(arguments[next], "--vectors") == 0) output = Output::kVectors;
  if (next < count && std::strcmp(arguments[next], "--ids") == 0) output = Output::kIds;
  if (output != Output::kCosines) ++next;
  if (next >= count) return Refuse("no model is given (see --help)");
  if (arguments[next][0] == '-') return Refuse("unknown option (see --help)");
  const std::string folder = arguments[next++];
  try {
    const std::vector<std::string> texts(arguments + next, arguments + count);
    Run(output, folder, texts.empty() ? ReadLines() : texts);
  } catch (const embed::InputError& error) {
    return Refuse(error.what());
  } catch (const anyop::Error& error) {
    return Refuse(error.what());
  } catch (const std::bad_alloc&) {
    return Refuse("out of memory");
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
