// SPDX-License-Identifier: Apache-2.0
// Primitives of oneDNN that a thread keeps, with the memory objects that carry the pointers, in a
// small table: to make one costs up to a millisecond, to find it 10 ns.
#pragma once

#include <cstring>
#include <new>

#include "dnnl.h"
#include "kept_memory.h"

namespace anyop::dnnl {

// The calling thread's OpenMP setting is 1 for as long as this lives; no other thread's changes.
// oneDNN reads it when a primitive is made and when it runs.
class OneThread {
 public:
  explicit OneThread(const Library& library) : library_(library) {
    if (before_ != 1) library_.set_omp_threads(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (before_ != 1) library_.set_omp_threads(before_);
  }

 private:
  const Library& library_;
  const int before_ = library_.get_omp_threads();
};

// A primitive with its arguments. KindOf: words that say everything that it is made for.
template <typename KindOf>
class Plan {
 public:
  using Kind = KindOf;
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (int i = 0; i < count_; ++i) library_->memory_destroy(given_[i].memory);
    if (primitive_) library_->primitive_destroy(primitive_);
  }

  bool IsFor(const Kind& kind) const {
    return library_ && std::memcmp(&kind_, &kind, sizeof kind) == 0;
  }

  // Whether it could be made: what oneDNN has no kernel for is kept, too.
  bool is_ready() const { return is_ready_; }
  void SetReady(bool ready) { is_ready_ = ready; }

  // The pointers in the order of Add.
  bool Run(Stream stream, const void* const* data, int count, KeptMemory& scratch) const {
    void* pad = scratch_bytes_ ? scratch.Get(scratch_bytes_) : nullptr;
    if ((scratch_bytes_ && !pad) || count + 1 != count_) return false;
    for (int i = 0; i < count; ++i)
      library_->memory_set_data_handle(given_[i].memory, const_cast<void*>(data[i]));
    library_->memory_set_data_handle(given_[count].memory, pad);
    return library_->primitive_execute(primitive_, stream, count_, given_) == kOk;
  }

 protected:
  void Begin(const Library& library, const Kind& kind) {
    library_ = &library;
    kind_ = kind;
  }

  const Library& library() const { return *library_; }
  const Kind& kind() const { return kind_; }

  // Scratch memory is ours: the library's belongs to the thread that made the primitive.
  Attr MakeAttr() const {
    Attr attr = nullptr;
    if (library_->primitive_attr_create(&attr) != kOk) return nullptr;
    library_->primitive_attr_set_scratchpad_mode(attr, kScratchpadUser);
    return attr;
  }

  // Its reference kernels are loops for any case.
  bool IsFast(const PrimitiveDescTag* desc) const {
    const char* name = "";
    library_->primitive_desc_query(desc, kQueryImplementation, 0, &name);
    return std::strncmp(name, "ref", 3) != 0;
  }

  bool Create(const PrimitiveDescTag* desc) {
    return library_->primitive_create(&primitive_, desc) == kOk;
  }

  bool Add(int argument, const DescTag* desc) {
    given_[count_].argument = argument;
    if (library_->memory_create(&given_[count_].memory, desc, library_->engine, nullptr) != kOk)
      return false;
    ++count_;
    return true;
  }

  // The last one.
  bool AddScratch(const PrimitiveDescTag* desc) {
    const DescTag* pad = library_->primitive_desc_query_md(desc, kQueryScratchpad, 0);
    scratch_bytes_ = library_->memory_desc_get_size(pad);
    return Add(kScratchpad, pad);
  }

 private:
  static constexpr int kMost = 5;

  const Library* library_ = nullptr;
  Kind kind_{};
  Primitive primitive_ = nullptr;
  Given given_[kMost];
  int count_ = 0;
  bool is_ready_ = false;
  size_t scratch_bytes_ = 0;
};

// The calling thread's plans: one has one place, and goes when another kind needs that.
template <typename Made>
class Plans {
 public:
  using Kind = typename Made::Kind;
  explicit Plans(const Library& library) : library_(library) {
    if (library.stream_create(&stream_, library.engine, kInOrder) != kOk) stream_ = nullptr;
  }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;
  ~Plans() {
    for (Made* plan : plans_) delete plan;
    if (stream_) library_.stream_destroy(stream_);
  }

  static Plans& OfThisThread(const Library& library) {
    thread_local Plans plans(library);
    return plans;
  }

  bool Run(const Kind& kind, const void* const* data, int count) {
    const OneThread one_thread(library_);
    const Made* plan = stream_ ? Find(kind) : nullptr;
    const bool ran = plan && plan->Run(stream_, data, count, scratch_);
    scratch_.Shrink();
    return ran;
  }

  // nullptr where oneDNN has no fast kernel.
  const Made* Get(const Kind& kind) {
    const OneThread one_thread(library_);
    return Find(kind);
  }

  KeptMemory& tile() { return tile_; }
  KeptMemory& row() { return row_; }

 private:
  static constexpr size_t kPlaces = 128;

  const Made* Find(const Kind& kind) {
    Made*& place = plans_[Hash(kind) % kPlaces];
    if (!place || !place->IsFor(kind)) {
      const Unforked critical;
      delete place;
      place = new (std::nothrow) Made;
      if (place) place->SetReady(place->Make(library_, kind));
    }
    return place && place->is_ready() ? place : nullptr;
  }

  static size_t Hash(const Kind& kind) {
    uint64_t words[sizeof(Kind) / 8], hash = 0;
    std::memcpy(words, &kind, sizeof words);
    for (const uint64_t word : words) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }

  const Library& library_;
  Stream stream_ = nullptr;
  KeptMemory scratch_, tile_, row_;
  Made* plans_[kPlaces] = {};
};

}  // namespace anyop::dnnl
