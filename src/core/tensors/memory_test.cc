// SPDX-License-Identifier: Apache-2.0
// Footprints, overflow, and overlap compared with marking every byte.
#include "tensors/memory.h"

#include <random>
#include <set>
#include <vector>

#include "tests/check.h"

namespace {

using anyop::Extent;
using anyop::Footprint;

AnyopTensor Tensor(std::vector<int64_t>* shape, std::vector<int64_t>* strides) {
  static float memory[1 << 14];
  return {memory + (1 << 13), 1, 0, static_cast<int32_t>(shape->size()), 2, 32, 1, shape->data(),
          strides->data(),    0};
}

TEST(FootprintOfDenseAndStrided) {
  std::vector<int64_t> shape = {2, 3}, strides = {3, 1};
  Footprint f = {};
  AnyopTensor t = Tensor(&shape, &strides);
  CHECK(MeasureFootprint(t, 4, &f) == Extent::kFits);
  CHECK(f.dense && f.numel == 6 && f.low == 0 && f.end == 6);
  strides = {-3, 2};
  CHECK(MeasureFootprint(t, 4, &f) == Extent::kFits);
  CHECK(!f.dense && f.numel == 6 && f.low == -3 && f.end == 5);
  shape = {2, 0};
  CHECK(MeasureFootprint(t, 4, &f) == Extent::kFits && f.numel == 0);
}

TEST(FootprintRefusesNegativeAndOverflow) {
  std::vector<int64_t> shape = {-1}, strides = {1};
  Footprint f = {};
  AnyopTensor t = Tensor(&shape, &strides);
  CHECK(MeasureFootprint(t, 4, &f) == Extent::kNegativeSize);
  shape = {int64_t{1} << 31, int64_t{1} << 31, 4};
  strides = {0, 0, 0};
  t = Tensor(&shape, &strides);
  CHECK(MeasureFootprint(t, 4, &f) == Extent::kOverflow);
  shape = {int64_t{1} << 61};
  strides = {1};
  t = Tensor(&shape, &strides);
  CHECK(MeasureFootprint(t, 8, &f) == Extent::kOverflow);
  shape = {3};
  strides = {INT64_MAX};
  CHECK(MeasureFootprint(t, 1, &f) == Extent::kOverflow);
}

// The short way of what is row-major says what the long one does.
TEST(FootprintIsTheSameBothWays) {
  std::mt19937_64 random(2);
  const int64_t sizes[] = {-1, 0, 1, 1, 2, 3, 5, int64_t{1} << 31, int64_t{1} << 61};
  int dense = 0, overflows = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<int64_t> shape, strides(random() % 5);
    for (size_t d = 0; d < strides.size(); ++d) shape.push_back(sizes[random() % 9]);
    uint64_t step = 1;
    for (size_t d = strides.size(); d--; step *= static_cast<uint64_t>(shape[d]))
      strides[d] = static_cast<int64_t>(random() % 8 ? step : random() % 7 - 2);
    const AnyopTensor t = Tensor(&shape, &strides);
    Footprint a = {}, b = {};
    const Extent extent = MeasureFootprint(t, 8, &a);
    CHECK(extent == MeasureStrided(t, 8, &b));
    overflows += extent == Extent::kOverflow;
    if (extent != Extent::kFits) continue;
    CHECK(a.numel == b.numel && a.low == b.low && a.end == b.end && a.dense == b.dense);
    dense += a.dense && a.numel > 1;
  }
  CHECK(dense > 1000);
  CHECK(overflows > 1000);
}

TEST(SelfOverlapIsNeverMissed) {
  std::mt19937 random(1);
  int found = 0, cautious = 0;
  for (int round = 0; round < 4000; ++round) {
    const int ndim = static_cast<int>(random() % 4);
    std::vector<int64_t> shape, strides;
    for (int d = 0; d < ndim; ++d) {
      shape.push_back(static_cast<int64_t>(random() % 4));
      strides.push_back(static_cast<int64_t>(random() % 9) - 2);
    }
    AnyopTensor t = Tensor(&shape, &strides);
    std::multiset<int64_t> at = {0};
    for (int d = 0; d < ndim; ++d) {
      std::multiset<int64_t> next;
      for (int64_t a : at) {
        for (int64_t i = 0; i < shape[d]; ++i) next.insert(a + i * strides[d]);
      }
      at = next;
    }
    const bool overlaps = std::set<int64_t>(at.begin(), at.end()).size() < at.size();
    if (overlaps) CHECK(anyop::OverlapsItself(t));
    found += overlaps;
    cautious += !overlaps && anyop::OverlapsItself(t);
  }
  CHECK(found > 300);
  CHECK(cautious < 400);
}

TEST(OverlapOfManyAgreesWithPairs) {
  anyop::Operator op = {};
  op.params.resize(2);
  op.params[0].flags = kAnyopMutated;
  std::vector<int64_t> shape = {1}, strides = {1};
  AnyopTensor t = Tensor(&shape, &strides);
  std::mt19937 random(2);
  int overlaps = 0;
  for (int round = 0; round < 2000; ++round) {
    anyop::Arena arena;
    anyop::Spans spans(&arena);
    struct Piece {
      uintptr_t begin, end;
      bool writes;
    };
    std::vector<Piece> pieces;
    const int count = 2 + static_cast<int>(random() % 30);
    for (int i = 0; i < count; ++i) {
      const uintptr_t begin = 1000 + random() % 4000;
      pieces.push_back({begin, begin + random() % 40, random() % 3 == 0});
      spans.Add({begin, pieces.back().end, &t, static_cast<uint16_t>(pieces.back().writes ? 0 : 1),
                 pieces.back().writes});
    }
    bool expected = false;
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < i; ++j) {
        const Piece &a = pieces[i], &b = pieces[j];
        expected |= (a.writes || b.writes) && a.begin < b.end && b.begin < a.end &&
                    a.begin != a.end && b.begin != b.end;
      }
    }
    const anyop::Span *written = nullptr, *other = nullptr;
    const bool found = spans.FindOverlap(op, nullptr, op.last_order, &written, &other);
    if (found) CHECK(written->writes && written != other);
    CHECK(found || !expected);
    overlaps += expected;
  }
  CHECK(overlaps > 200);
}

TEST(ResultMayBeExactlyAnInputThatAllowsIt) {
  anyop::Operator op = {};
  op.params.resize(2);
  op.params[0].flags = kAnyopInplace;
  op.params[1].flags = kAnyopOutput;
  std::vector<int64_t> shape = {2, 2}, strides = {2, 1}, transposed = {1, 2};
  AnyopTensor x = Tensor(&shape, &strides), same = x, turned = Tensor(&shape, &transposed);
  for (const AnyopTensor* out : {&same, &turned}) {
    anyop::Arena arena;
    anyop::Spans spans(&arena);
    const auto at = reinterpret_cast<uintptr_t>(x.data);
    spans.Add({at, at + 16, &x, 0, false});
    spans.Add({at, at + 16, out, 1, true});
    const anyop::Span *written, *other;
    CHECK_EQ(spans.FindOverlap(op, nullptr, op.last_order, &written, &other), out == &turned);
  }
}

// Lists g (read), p and m (written); p[k] may be exactly g[k].
struct Lists {
  anyop::Operator op = {};
  std::vector<int64_t> sizes = std::vector<int64_t>(4), step = {1};
  std::vector<AnyopTensor> tensors[3];
  AnyopTensorList args[3];

  explicit Lists(std::mt19937* random) {
    const auto upto = [&](uintptr_t n) { return static_cast<uintptr_t>((*random)()) % n; };
    op.params.resize(3);
    op.params[0].flags = kAnyopList | kAnyopInplace;
    op.params[1].flags = op.params[2].flags = kAnyopList | kAnyopMutated;
    for (int64_t& size : sizes) size = static_cast<int64_t>(1 + upto(4));
    const size_t count = 1 + upto(16);
    for (size_t k = 0; k < count; ++k) {
      const uintptr_t g = 4096 + 64 * k, shift = upto(40) ? 0 : upto(3) * 4;
      const uintptr_t places[] = {g, upto(2) ? g + shift : g + (1 << 12),
                                  upto(20) ? g + (1 << 16) : g - 60};
      for (int list = 0; list < 3; ++list) {
        AnyopTensor t = Tensor(&step, &step);
        t.data = reinterpret_cast<void*>(places[list]);
        t.shape = &sizes[upto(30) ? k % 4 : upto(4)];
        tensors[list].push_back(t);
      }
    }
    if (count > 1 && !upto(8)) std::swap(tensors[1][0], tensors[1][1]);
    for (uint32_t p = 0; p < 3; ++p) {
      op.params[p].offset = p * 16;
      args[p] = {tensors[p].data(), static_cast<int64_t>(count)};
    }
  }
};

// What the order of a call before says is never believed.
TEST(OverlapIsFoundWhateverTheCallBeforeWas) {
  anyop::Operator op = {};
  op.params.resize(1);
  op.params[0].flags = kAnyopMutated;
  std::vector<int64_t> one = {1};
  const AnyopTensor t = Tensor(&one, &one);
  std::mt19937 random(4);
  int overlaps = 0;
  for (int round = 0; round < 3000; ++round) {
    anyop::Arena arena;
    anyop::Spans spans(&arena);
    const int count = 13 + static_cast<int>(random() % 3);
    std::set<uintptr_t> places;
    for (int i = 0; i < count; ++i) {
      const uintptr_t begin = 4 * (1000 + random() % 400);
      places.insert(begin);
      spans.Add({begin, begin + 4, &t, 0, true});
    }
    const anyop::Span *written, *other;
    const bool expected = static_cast<int>(places.size()) < count;
    CHECK_EQ(spans.FindOverlap(op, nullptr, op.last_order, &written, &other), expected);
    overlaps += expected;
  }
  CHECK(overlaps > 300 && overlaps < 2700);
}

struct Place {
  int list;
  size_t k;
  const AnyopTensor* t;
  char* begin() const { return static_cast<char*>(t->data); }
  char* end() const { return begin() + 4 * t->shape[0]; }
};

TEST(ElementsOfAWrittenListMayBeThoseOfAReadOne) {
  std::mt19937 random(3);
  int overlaps = 0, allowed = 0;
  for (int round = 0; round < 4000; ++round) {
    const Lists lists(&random);
    anyop::Arena arena;
    anyop::Spans spans(&arena);
    std::vector<Place> places;
    for (int p = 0; p < 3; ++p) {
      for (size_t k = 0; k < lists.tensors[p].size(); ++k) {
        const Place at = {p, k, &lists.tensors[p][k]};
        spans.Add({reinterpret_cast<uintptr_t>(at.begin()), reinterpret_cast<uintptr_t>(at.end()),
                   at.t, static_cast<uint16_t>(p), p > 0});
        places.push_back(at);
      }
    }
    bool expected = false;
    for (const Place& a : places) {
      for (const Place& b : places) {
        if (a.t == b.t || !(a.list || b.list) || a.end() <= b.begin() || b.end() <= a.begin())
          continue;
        const bool may =
            a.list + b.list == 1 && a.k == b.k && a.begin() == b.begin() && a.end() == b.end();
        expected |= !may;
        allowed += may;
      }
    }
    const auto* args = reinterpret_cast<const char*>(lists.args);
    const anyop::Span *written = nullptr, *other = nullptr;
    CHECK_EQ(spans.FindOverlap(lists.op, args, lists.op.last_order, &written, &other), expected);
    if (written) {
      CHECK(written->writes && written->begin < other->end && other->begin < written->end);
      const int64_t k = anyop::ElementOf(lists.op, args, *written);
      CHECK_EQ(written->tensor, &lists.tensors[written->param][static_cast<size_t>(k)]);
    }
    overlaps += expected;
  }
  CHECK(overlaps > 500 && overlaps < 3500);
  CHECK(allowed > 1000);
}

TEST(DenseIsAnyOrderWithoutGaps) {
  struct Case {
    std::vector<int64_t> shape, strides;
    bool dense;
  };
  for (Case c : {Case{{2, 3, 4}, {12, 4, 1}, true}, Case{{2, 3, 4}, {12, 1, 3}, true},
                 Case{{2, 3, 4}, {1, 2, 6}, true}, Case{{2, 1, 4}, {4, 99, 1}, true},
                 Case{{2, 3, 4}, {13, 4, 1}, false}, Case{{2, 3}, {1, 1}, false},
                 Case{{2, 3}, {0, 1}, false}, Case{{2, 3}, {-3, 1}, false},
                 Case{{2, 3}, {4, 1}, false}, Case{{}, {}, true}}) {
    CHECK_EQ(anyop::IsDense(Tensor(&c.shape, &c.strides)), c.dense);
  }
}

}  // namespace
