// SPDX-License-Identifier: Apache-2.0
// Writes every argument as text, so that a test sees what a binding handed over.
#include "probe/ops/kinds.h"

#include <cstdio>
#include <cstring>
#include <string>

namespace {

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

template <typename Optional>
std::string Text(const Optional& value) {
  return value.has ? Text(static_cast<double>(value.value)) : "None";
}

// Reads by the NUL behind the text, and says so when the count differs.
std::string Text(const AnyopString& value) {
  if (!value.data) return "None";
  const bool agree = std::strlen(value.data) == static_cast<size_t>(value.count);
  return agree ? value.data : "no NUL behind";
}

std::string Item(int64_t value) { return std::to_string(value); }
std::string Item(double value) { return Text(value); }
std::string Item(const AnyopString& value) { return Text(value); }

template <typename List>
std::string TextOf(const List& list) {
  if (!list.data) return "None";
  std::string text = "[";
  for (int64_t i = 0; i < list.count; ++i) text += (i ? "," : "") + Item(list.data[i]);
  return text + "]";
}

}  // namespace

int32_t probe_kinds_cpu(const KindsArgs* a, AnyopCall* call) {
  const std::string text =
      "i=" + Item(a->i) + " f=" + Text(a->f) + " b=" + Item(a->b) + " s=" + Text(a->s) +
      " dtype=" + Item(a->dtype) + " oi=" + Text(a->oi) + " of=" + Text(a->of) +
      " os=" + Text(a->os) + " od=" + Text(a->od) + " il=" + TextOf(a->il) +
      " fl=" + TextOf(a->fl) + " bl=" + TextOf(a->bl) + " sl=" + TextOf(a->sl) +
      " pair=" + TextOf(a->pair) + " ol=" + TextOf(a->ol) + " dl=" + TextOf(a->dl);
  if (static_cast<int64_t>(text.size()) > a->N) {
    return call->fail(call, kAnyopValueError, "out has no room for the text");
  }
  std::memset(a->out->data, ' ', static_cast<size_t>(a->N));
  std::memcpy(a->out->data, text.data(), text.size());
  return kAnyopOk;
}
