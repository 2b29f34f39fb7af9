// SPDX-License-Identifier: Apache-2.0
// What config.json and the files beside it say about a BERT.
#include "config.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "input.h"

namespace embed {
namespace {

using nlohmann::json;

const std::map<std::string, Activation> kActivations = {
    {"gelu", Activation::kGelu},
    {"gelu_new", Activation::kTanhGelu},
    {"gelu_pytorch_tanh", Activation::kTanhGelu},
    {"relu", Activation::kRelu},
};

// A setting of any value as text, whatever bytes it has.
std::string Text(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

[[noreturn]] void Refuse(const std::string& key, const json& found, const std::string& expected) {
  throw InputError("config.json: " + key + " is " + Text(found) + ", expected " + expected);
}

json Value(const json& raw, const char* key, const json& absent = json()) {
  return raw.is_object() && raw.contains(key) ? raw[key] : absent;
}

void RefuseUnless(const json& raw, const char* key, const json& supported, const json& absent) {
  const json found = Value(raw, key, absent);
  if (found != supported) Refuse(key, found, Text(supported));
}

int64_t Positive(const json& raw, const char* key, const json& absent = json()) {
  const json found = Value(raw, key, absent);
  if (!found.is_number_unsigned() || found < 1 || found > INT32_MAX) {
    Refuse(key, found, "a positive integer");
  }
  return found;
}

Activation ReadActivation(const json& raw) {
  const json name = Value(raw, "hidden_act");
  const auto found = kActivations.find(name.is_string() ? name.get<std::string>() : "");
  if (found == kActivations.end()) Refuse("hidden_act", name, "gelu, gelu_new or relu");
  return found->second;
}

double ReadEps(const json& raw) {
  const json eps = Value(raw, "layer_norm_eps", 1e-12);
  if (!eps.is_number() || !(eps >= 0 && eps < 1)) {
    Refuse("layer_norm_eps", eps, "a number in [0, 1)");
  }
  return eps;
}

int64_t ReadLimit(const std::string& folder) {
  const std::string path = folder + "/sentence_bert_config.json";
  const json limit = HasFile(path) ? Value(ReadJson(path), "max_seq_length") : json();
  if (limit.is_null()) return 256;  // where the folder does not say
  if (!limit.is_number_unsigned() || limit < 1 || limit > INT32_MAX) {
    throw InputError(path + ": max_seq_length is " + Text(limit) + ", expected a positive integer");
  }
  return limit;
}

// Which parts follow the transformer: only pooling and normalisation are known.
void RefuseOtherModules(const std::string& folder) {
  const std::string path = folder + "/modules.json";
  if (!HasFile(path)) return;
  for (const json& module : ReadJson(path)) {
    const json type = Value(module, "type");
    const std::string name = type.is_string() ? type.get<std::string>() : Text(module);
    const std::string kind = name.substr(name.rfind('.') + 1);
    if (kind != "Transformer" && kind != "Pooling" && kind != "Normalize") {
      throw InputError(path + ": " + Text(kind) +
                       " is not supported, only Transformer, Pooling and Normalize");
    }
  }
}

// How the vectors of tokens become one: the mean where the folder does not say.
Pooling ReadPooling(const std::string& folder) {
  const std::string path = folder + "/1_Pooling/config.json";
  if (!HasFile(path)) return Pooling::kMean;
  const json raw = ReadJson(path);
  std::vector<std::string> modes;
  if (raw.is_object() && raw.contains("pooling_mode")) {
    modes.push_back(raw["pooling_mode"].is_string() ? raw["pooling_mode"] : json("?"));
  } else if (raw.is_object()) {
    for (const auto& [key, on] : raw.items()) {
      if (on == true && key.rfind("pooling_mode_", 0) == 0) modes.push_back(key.substr(13));
    }
  }
  if (modes.size() == 1) {
    if (modes[0] == "mean" || modes[0] == "mean_tokens") return Pooling::kMean;
    if (modes[0] == "cls" || modes[0] == "cls_token") return Pooling::kFirstToken;
  }
  throw InputError(path + ": pooling " + Text(modes) + " is not supported, only cls and mean");
}

}  // namespace

Config ReadConfig(const std::string& folder) {
  const json raw = ReadJson(folder + "/config.json");
  if (!raw.is_object()) throw InputError("config.json is not an object");
  RefuseUnless(raw, "model_type", "bert", json());
  RefuseUnless(raw, "position_embedding_type", "absolute", "absolute");
  RefuseUnless(raw, "is_decoder", false, false);
  RefuseOtherModules(folder);
  Config config = {};
  config.D = Positive(raw, "hidden_size");
  config.H = Positive(raw, "num_attention_heads");
  config.M = Positive(raw, "intermediate_size");
  config.V = Positive(raw, "vocab_size");
  config.P = Positive(raw, "max_position_embeddings");
  config.layers = Positive(raw, "num_hidden_layers");
  config.types = Positive(raw, "type_vocab_size", 2);
  config.limit = std::min(ReadLimit(folder), config.P);
  config.eps = ReadEps(raw);
  config.activation = ReadActivation(raw);
  config.pooling = ReadPooling(folder);
  if (config.D % config.H != 0) Refuse("hidden_size", config.D, "a multiple of the heads");
  return config;
}

}  // namespace embed
