// SPDX-License-Identifier: Apache-2.0
// The pool of entry points and the schemas in torch's words.
#include "trampolines.h"

#include <set>
#include <string>

#include "operator/registry.h"
#include "signature.h"
#include "tests/check.h"

namespace {

constexpr anyop::torch::Form kFunctional = {false, false}, kDestination = {true, false},
                             kRecorded = {false, true}, kDestinationRecorded = {true, true};

TEST(SignaturesAreTorchs) {
  using anyop::torch::Kinds, anyop::torch::Signature;
  const anyop::Operator& norm = *anyop::FindOperator("rms_norm");
  const std::string inputs =
      "Tensor x, Tensor? weight=None, float eps=1e-6, *, float weight_offset=0.0, ScalarType? "
      "dtype=None";
  CHECK_EQ(Signature(norm, kFunctional), "rms_norm(" + inputs + ", str? use=None) -> Tensor");
  CHECK_EQ(Signature(norm, kRecorded),
           "rms_norm.autograd(" + inputs + ", str? use=None) -> Tensor");
  CHECK_EQ(Signature(norm, kDestination),
           "rms_norm.out(" + inputs + ", Tensor(out0!) out, str? use=None) -> ()");
  CHECK_EQ(Signature(norm, kDestinationRecorded),
           "rms_norm.out_autograd(" + inputs + ", Tensor(out0!) out, str? use=None) -> ()");
  CHECK_EQ(Signature(*anyop::FindOperator("gelu"), kDestination),
           std::string("gelu.out(Tensor x, *, str approximate='none', Tensor(out0!) out, str? "
                       "use=None) -> ()"));
  CHECK_EQ(Signature(*anyop::FindOperator("gelu"), kFunctional),
           std::string("gelu(Tensor x, *, str approximate='none', str? use=None) -> Tensor"));
  const anyop::Operator& several = *anyop::FindOperator("topk");
  CHECK_EQ(Signature(several, kDestination),
           std::string("topk.out(Tensor x, int k, bool largest=True, *, Tensor(out0!) values, "
                       "Tensor(out1!) indices, str? use=None) -> ()"));
  CHECK_EQ(Kinds(norm, kFunctional), std::string("tTffIS"));
  CHECK_EQ(Kinds(norm, kDestination), std::string("tTffItS"));
  CHECK_EQ(Kinds(*anyop::FindOperator("gelu"), kFunctional), std::string("tsS"));
  CHECK_EQ(Kinds(several, kDestinationRecorded), std::string("tibttS"));
  CHECK_EQ(Kinds(*anyop::FindOperator("merge_states"), kFunctional), std::string());
  const anyop::Operator& optional = *anyop::FindOperator("rms_norm_backward");
  CHECK_EQ(Kinds(optional, kFunctional), std::string("ttTffiS"));
  CHECK(anyop::torch::HasMask(optional) && !anyop::torch::HasMask(several));
  CHECK_EQ(Signature(optional, kFunctional),
           std::string("rms_norm_backward(Tensor grad_out, Tensor x, Tensor? weight=None, float "
                       "eps=1e-6, *, float weight_offset=0.0, int results=-1, str? use=None) -> "
                       "(Tensor? grad_x, Tensor? grad_weight)"));
  CHECK(anyop::torch::NeedsListsOrText(*anyop::FindOperator("gelu")));
  CHECK(!anyop::torch::NeedsListsOrText(norm));
}

// Each address is one operator's, the next one after the last is refused, and those given stay.
TEST(ThePoolEndsAndSlotsStay) {
  using anyop::torch::kNumTrampolines;
  using anyop::torch::TrampolineFor;
  static char operators[kNumTrampolines];
  auto op = [&](int i) { return reinterpret_cast<const anyop::Operator*>(&operators[i]); };
  std::set<anyop::torch::BoxedKernel> seen;
  for (int i = 0; i < kNumTrampolines / 2; ++i) {
    seen.insert(TrampolineFor(op(i), kFunctional));
    seen.insert(TrampolineFor(op(i), kDestination));
  }
  CHECK(seen.size() == kNumTrampolines && !seen.count(nullptr));
  CHECK(TrampolineFor(op(kNumTrampolines - 1), kFunctional) == nullptr);
  CHECK(TrampolineFor(op(7), kDestination) == TrampolineFor(op(7), kDestination));
  CHECK(seen.count(TrampolineFor(op(7), kFunctional)) == 1);
}

}  // namespace
