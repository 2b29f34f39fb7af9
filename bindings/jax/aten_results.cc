// SPDX-License-Identifier: Apache-2.0
// Sees to it that every result of a call of ATen is in XLA's buffer, as the program expects it.
#include <algorithm>
#include <string>

#include "xla_aten_call.h"

namespace anyop::xla {
namespace {

bool HasSizesOf(const AnyopTensor& a, const AnyopTensor& b) {
  return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

bool IsRowMajor(const AnyopTensor& t) {
  int64_t stride = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.strides && t.shape[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.shape[d];
  }
  return true;
}

bool IsEmpty(const AnyopTensor& t) {
  return std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim;
}

std::string SizesOf(const AnyopTensor& t) {
  std::string text = "(";
  for (int32_t d = 0; d < t.ndim; ++d) text += (d ? ", " : "") + std::to_string(t.shape[d]);
  return text + ")";
}

bool IsDtypeOf(const AnyopTensor& a, const AnyopTensor& b) {
  return a.dtype_code == b.dtype_code && a.dtype_bits == b.dtype_bits;
}

}  // namespace

int32_t AtenSite::Write(AnyopAtenValue* found) {
  const std::string_view token = Token();
  if (token == "t") return WriteTensor(found);
  if (token == "[") return WriteList(found);
  int64_t number = 0;
  bool good = token == "_" || (token == "n" && found->tag == kAnyopAtenNone);
  if (token.substr(0, 1) == "i")
    good = ReadInt(token.substr(1), &number) && number == found->as.i &&
           (found->tag == kAnyopAtenInt || found->tag == kAnyopAtenBool);
  return good ? int32_t{kAnyopOk}
              : Fail(kAnyopInternalError, "gave another result than torch's meta kernel said");
}

int32_t AtenSite::WriteList(AnyopAtenValue* found) {
  if (found->tag != kAnyopAtenList) return Broken();
  for (int64_t k = 0; k < found->more.count; ++k) {
    if (const int32_t status = Write(&found->as.list[k])) return status;
  }
  return Token() == "]" ? int32_t{kAnyopOk}
                        : Fail(kAnyopInternalError,
                               "gave another number of results than torch's meta kernel said");
}

int32_t AtenSite::WriteTensor(AnyopAtenValue* found) {
  AnyopAtenValue place;
  if (const int32_t status = Take(call_.results, &next_result_, 0, &place)) return status;
  if (found->tag != kAnyopAtenTorch)
    return Fail(kAnyopInternalError, "gave no tensor where torch's meta kernel said one");
  const AnyopTensor& to = place.as.memory->tensor;
  AnyopTensor from;
  uint32_t flags = 0;
  if (const int32_t status = AnyopAtenView(&found->as.tensor, &from, &flags)) return status;
  if (!HasSizesOf(from, to)) {
    const std::string why = "gave a result of shape " + SizesOf(from) +
                            " where torch's meta kernel said " + SizesOf(to);
    return Fail(kAnyopInternalError, why.c_str());
  }
  if (IsEmpty(to)) return kAnyopOk;
  // JAX without 64 bits has 32 where torch has 64; an int that does not fit is an error.
  const bool narrows = from.dtype_code == to.dtype_code && from.dtype_bits == 2 * to.dtype_bits &&
                       from.dtype_bits >= 64;
  if (!IsDtypeOf(from, to) && !narrows)
    return Fail(kAnyopInternalError,
                "gave a result of another dtype than torch's meta kernel said");
  if (from.data != to.data) return Copy(place, *found, narrows && from.dtype_code <= 1);
  return IsRowMajor(from)
             ? int32_t{kAnyopOk}
             : Fail(kAnyopInternalError, "changed the layout of the place of a result");
}

int32_t AtenSite::Copy(const AnyopAtenValue& to, const AnyopAtenValue& from, bool narrows) {
  AnyopAtenValue arguments[] = {to, from};
  Outcome same(1);
  if (const int32_t status = Call("copy_", arguments, 2, &same)) return status;
  if (!narrows) return kAnyopOk;
  Outcome widened(1), equal(1);
  if (const int32_t status = Call("type_as", arguments, 2, &widened)) return status;
  arguments[0] = widened.values[0];
  if (const int32_t status = Call("equal", arguments, 2, &equal)) return status;
  if (equal.values[0].as.i) return kAnyopOk;
  return Fail(kAnyopValueError,
              "a result has numbers that 32 bits do not hold; use "
              "jax.config.update(\"jax_enable_x64\", True)");
}

}  // namespace anyop::xla
