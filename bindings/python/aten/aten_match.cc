// SPDX-License-Identifier: Apache-2.0
// Twice over the overloads: by torch's rules, then by anyop's, so that what anyop takes beside
// never changes what torch would choose.
#include "aten/aten_call.h"
#include "objects.h"

namespace anyop {
namespace {

// Why an overload does not fit.
struct Misfit {
  enum Kind { kNone, kTooMany, kUnknown, kMissing, kWrong, kSpoilt } kind = kNone;
  uint32_t at = 0;  // a parameter; kUnknown: an argument
};

// The arguments by parameter, nullptr where there is none.
Misfit Sort(const AtenOverload& o, const AtenGiven& given, const Given** sorted, uint32_t* count) {
  if (given.num_positional > o.op->num_positional || given.count > o.num_params)
    return {Misfit::kTooMany, 0};
  uint32_t end = given.num_positional;
  for (uint32_t i = 0; i < end; ++i) sorted[i] = &given.values[i];
  if (given.count > end) {
    for (uint32_t i = end; i < o.num_params; ++i) sorted[i] = nullptr;
    for (uint32_t k = given.num_positional; k < given.count; ++k) {
      const uint32_t i = FindKeyword(o.names.data(), o.num_params, given.names[k]);
      if (i == o.num_params || i < given.num_positional || sorted[i]) return {Misfit::kUnknown, k};
      sorted[i] = &given.values[k];
      if (i >= end) end = i + 1;
    }
  }
  *count = end;
  if (end < o.num_required) {
    while (o.op->params[end].has_default) ++end;
    return {Misfit::kMissing, end};
  }
  return {};
}

Misfit Try(const AtenOverload& o, AtenLoans* loans, const AtenGiven& given, bool strict,
           AtenMatch* match) {
  const Given* sorted[kMaxAtenArguments];
  Misfit misfit = Sort(o, given, sorted, &match->count);
  if (misfit.kind) return misfit;
  const aten::Param* params = o.op->params.data();
  bool spoils = false;
  for (uint32_t i = 0; i < match->count; ++i) {
    if (const Given* value = sorted[i]) {
      match->objects[i] = value->object;
      const AtenRules rules = {strict, &spoils};
      if (!Fit(loans, *o.op, params[i], *value, rules, &match->values[i]))
        return {Misfit::kWrong, i};
    } else {
      if (!params[i].has_default) return {Misfit::kMissing, i};
      match->objects[i] = nullptr;
      match->values[i] = {};
      match->values[i].tag = kAnyopAtenDefault;
    }
  }
  match->overload = &o;
  return {spoils ? Misfit::kSpoilt : Misfit::kNone, 0};
}

std::string Reason(const AtenOverload& o, const AtenGiven& given, const AtenMatch& match,
                   const Misfit& misfit) {
  const auto& params = o.op->params;
  if (misfit.kind == Misfit::kTooMany)
    return "got " + std::to_string(given.num_positional) + " positional arguments of " +
           std::to_string(given.count) + ", expected at most " +
           std::to_string(o.op->num_positional);
  if (misfit.kind == Misfit::kUnknown)
    return "there is no argument '" + TextOf(given.names[misfit.at], "?") +
           "', or it is given twice";
  if (misfit.kind == Misfit::kMissing) return params[misfit.at].name + " is missing";
  return params[misfit.at].name + " is " + ObjectText(Py_TYPE(match.objects[misfit.at])) +
         ", expected " + params[misfit.at].type_text;
}

// No other overload steps in where torch would spoil a value.
bool RaiseSpoilt(const aten::Op& op) {
  return Raise(PyExc_TypeError,
               "%s: an argument has a fraction where an integer is expected, or is no code of a "
               "dtype, layout or memory format: %s",
               op.full_name.c_str(), op.schema.c_str());
}

bool RaiseMisfits(const AtenPacket& packet, AtenLoans* loans, const AtenGiven& given,
                  AtenMatch* match) {
  constexpr size_t kMaxShown = 10;
  std::string text = packet.name + ": the arguments fit no overload";
  for (size_t i = 0; i < packet.overloads.size() && i < kMaxShown; ++i) {
    const AtenOverload& o = packet.overloads[i];
    const Misfit misfit = Try(o, loans, given, false, match);
    if (PyErr_Occurred()) return false;
    text += "\n  " + o.op->schema + "\n    " + Reason(o, given, *match, misfit);
  }
  if (packet.overloads.size() > kMaxShown)
    text += "\n  and " + std::to_string(packet.overloads.size() - kMaxShown) + " more";
  if (loans->has_tracers)
    text +=
        "\n  an array that JAX traces can be a tensor here, but no number: numbers are part of the "
        "program (jax.jit's static_argnames)";
  return Raise(PyExc_TypeError, text);
}

}  // namespace

bool Match(const AtenPacket& packet, AtenLoans* loans, const AtenGiven& given, AtenMatch* match) {
  for (const bool strict : {true, false}) {
    for (const AtenOverload& overload : packet.overloads) {
      const Misfit misfit = Try(overload, loans, given, strict, match);
      if (misfit.kind == Misfit::kNone) return true;
      if (misfit.kind == Misfit::kSpoilt) return RaiseSpoilt(*overload.op);
      if (__builtin_expect(PyErr_Occurred() != nullptr, 0)) return false;
    }
  }
  return RaiseMisfits(packet, loans, given, match);
}

}  // namespace anyop
