// SPDX-License-Identifier: Apache-2.0
// A condition of one operator: its words bound to parameters, sizes and groups, and asked of a
// call.
#pragma once

#include <string>
#include <vector>

#include "call/call.h"
#include "operator/sizes.h"
#include "router/read/route_file.h"

namespace anyop {

// What a condition may ask of a call whose inputs are checked.
struct Facts {
  const Frame* frame;
  const Sizes* sizes;
  const uint8_t* dtypes;  // by parameter; kAnyopNoDtype where absent
  uint64_t copied;        // parameters of which the kernel gets a copy
  int device_type;
  int device_id;
  const struct Declined* declined = nullptr;  // who was asked already, and did nothing
};

class CallCondition {
 public:
  // False when the operator has not what a term names; *at is that term, *error says what there is.
  static bool Bind(const Operator& op, const std::vector<Term>& terms, CallCondition* bound,
                   const Term** at, std::string* error);

  bool Always() const { return clauses_.empty(); }
  // kYes or kNo for all calls on devices of this capability, where it alone decides; else kMaybe.
  enum class Decided { kNo, kMaybe, kYes };
  Decided Decide(int capability) const;
  const std::string& text() const { return text_; }
  // Kinds of device for which it may hold: bit DLDeviceType.
  uint64_t devices() const { return devices_; }
  // All but the device.
  bool Holds(const Facts& facts) const;
  // "D<=8192, and D is 16384" of the first word that does not hold; empty when all do.
  std::string Failing(const Facts& facts) const;

 private:
  enum class Subject : uint8_t {
    kDtype,
    kSize,
    kRankOfGroup,
    kNumelOfGroup,
    kRank,
    kNumel,
    kContiguous,
    kAddress,
    kGiven,
    kArgument,
    kCapability
  };
  struct Clause {
    Subject subject;
    int index;  // of a parameter, symbol or group
    Compare compare;
    int64_t modulo;
    int64_t number;
    uint64_t dtypes;
    std::string text;
  };

  static bool BindDtype(const Operator& op, const Term& term, Clause* clause, std::string* error);
  template <typename T>
  static bool Compares(const Clause& clause, T value);
  static bool BindNumber(const Operator& op, const Term& term, Clause* clause, std::string* error);
  static bool Value(const Clause& clause, const Facts& facts, int64_t* value);
  // Of an argument that is no tensor; false where it is absent.
  static bool Argument(const Clause& clause, const Facts& facts, double* value);
  static bool HoldsClause(const Clause& clause, const Facts& facts);

  std::string text_;
  std::vector<Clause> clauses_;
  uint64_t devices_ = ~uint64_t{0};
};

// "D%8" of D%8=0, and the whole word.
std::string SubjectText(const Term& term);
std::string TermText(const Term& term);
// "dtype=float32 D<=8192"
std::string ConditionText(const std::vector<Term>& terms);

// "cuda", and back; "device type 13" and -1 for what has no name.
std::string DeviceName(int device_type);
int DeviceFromName(std::string_view name);

}  // namespace anyop
