// SPDX-License-Identifier: Apache-2.0
// Divides a convolution into parts, whole images or rows of one, that one thread each computes by
// oneDNN. Its kernels want the weights in blocks: they are copied once in a call.
#include "dnnl_convolution.h"

#include <atomic>

#include "../linear/dnnl_plans.h"

namespace anyop::dnnl {
namespace {

enum Task : int64_t { kForward, kOfImages, kOfWeights };

// Some images, or rows of one image, of x and of the results; `before`: rows of zeros above them.
struct Extent {
  int64_t N, height, out_height, before;
};

// What a primitive is made for: a convolution of a part, or, `copies`, the copy of its weights into
// blocks, or out of them. The layout of the blocks is the one that oneDNN likes best for `model`.
struct ConvolutionKind {
  int64_t task, copies, type, width, channels, out_width, K, R, S, stride, padding, dilation;
  Extent model, part;
};

class ConvolutionPlan : public Plan<ConvolutionKind> {
 public:
  bool Make(const Library& library, const ConvolutionKind& kind) {
    Begin(library, kind);
    const Desc any = Weights(true), plain = Weights(false);
    PrimitiveDesc model = nullptr;
    bool made = any && plain && Describe(kind.model, any, &model);
    if (made) {
      const int what = of_weights() ? kQueryWeightsGradient : kQueryWeights;
      const DescTag* blocks = library.primitive_desc_query_md(model, what, 0);
      block_bytes_ = library.memory_desc_get_size(blocks);
      made = kind.copies ? Copy(blocks, plain) : Compute(blocks);
    }
    if (model) library.primitive_desc_destroy(model);
    for (Desc desc : {any, plain})
      if (desc) library.memory_desc_destroy(desc);
    return made;
  }

  size_t block_bytes() const { return block_bytes_; }

 private:
  bool of_weights() const { return kind().task == kOfWeights; }
  bool of_images() const { return kind().task == kOfImages; }

  Desc Images(const Extent& at, bool results) const {
    const int64_t height = results ? at.out_height : at.height;
    const int64_t width = results ? kind().out_width : kind().width;
    const int64_t channels = results ? kind().K : kind().channels;
    const bool sums = results && kind().task == kForward;
    const Dims sizes = {at.N, channels, height, width};
    const Dims strides = {height * width * channels, 1, width * channels, channels};
    return Strided(sizes, strides, sums ? kFloat32 : type());
  }

  // K, channels, R, S, as they lie or as the primitive likes them.
  Desc Weights(bool any) const {
    const ConvolutionKind& k = kind();
    const Dims sizes = {k.K, k.channels, k.R, k.S};
    const Dims strides = {k.R * k.S * k.channels, 1, k.S * k.channels, k.channels};
    const int of = of_weights() ? kFloat32 : type();
    return any ? AnyWeights(of) : Strided(sizes, strides, of);
  }

  Desc AnyWeights(int of) const {
    const Dims sizes = {kind().K, kind().channels, kind().R, kind().S};
    Desc desc = nullptr;
    const int status = library().memory_desc_create_with_tag(&desc, 4, sizes, of, kAnyLayout);
    return status == kOk ? desc : nullptr;
  }

  Desc Strided(const Dims sizes, const Dims strides, int of) const {
    Desc desc = nullptr;
    const int status = library().memory_desc_create_with_strides(&desc, 4, sizes, of, strides);
    return status == kOk ? desc : nullptr;
  }

  int type() const { return static_cast<int>(kind().type); }

  // The descriptor of the kind's convolution for such images; false where there is no fast kernel.
  bool Describe(const Extent& at, const DescTag* weights, PrimitiveDesc* found) const {
    const Desc x = Images(at, false), y = Images(at, true);
    const Attr attr = MakeAttr();
    const bool made = x && y && attr && Find(at, x, y, weights, attr, found) && IsFast(*found);
    if (attr) library().primitive_attr_destroy(attr);
    for (Desc desc : {x, y})
      if (desc) library().memory_desc_destroy(desc);
    return made;
  }

  bool Find(const Extent& at, Desc x, Desc y, const DescTag* weights, Attr attr,
            PrimitiveDesc* found) const {
    const ConvolutionKind& k = kind();
    const auto behind = [&](int64_t size, int64_t results, int64_t window, int64_t before) {
      return (results - 1) * k.stride + (window - 1) * k.dilation + 1 - size - before;
    };
    const Dims strides = {k.stride, k.stride}, dilations = {k.dilation - 1, k.dilation - 1};
    const Dims before = {at.before, k.padding};
    const Dims after = {behind(at.height, at.out_height, k.R, at.before),
                        behind(k.width, k.out_width, k.S, k.padding)};
    const Library& l = library();
    if (!of_images() && !of_weights())
      return l.convolution_forward_primitive_desc_create(found, l.engine, kInference, kDirect, x,
                                                         weights, nullptr, y, strides, dilations,
                                                         before, after, attr) == kOk;
    PrimitiveDesc forward = nullptr;  // a hint that the gradients need
    const Desc any = AnyWeights(type());
    int status = l.convolution_forward_primitive_desc_create(&forward, l.engine, kTraining, kDirect,
                                                             x, any, nullptr, y, strides, dilations,
                                                             before, after, nullptr);
    if (any) l.memory_desc_destroy(any);
    if (status != kOk) return false;
    status = of_images() ? l.convolution_backward_data_primitive_desc_create(
                               found, l.engine, kDirect, x, weights, y, strides, dilations, before,
                               after, forward, attr)
                         : l.convolution_backward_weights_primitive_desc_create(
                               found, l.engine, kDirect, x, weights, nullptr, y, strides, dilations,
                               before, after, forward, attr);
    l.primitive_desc_destroy(forward);
    return status == kOk;
  }

  bool Compute(const DescTag* blocks) {
    PrimitiveDesc desc = nullptr;
    bool made = Describe(kind().part, blocks, &desc) && Create(desc);
    const Desc x = Images(kind().part, false), y = Images(kind().part, true);
    made = made && x && y && Add(of_images() ? kSourceGradient : kSource, x) &&
           Add(of_weights() ? kWeightsGradient : kWeights, blocks) &&
           Add(kind().task == kForward ? kResult : kResultGradient, y) && AddScratch(desc);
    for (Desc made_desc : {x, y})
      if (made_desc) library().memory_desc_destroy(made_desc);
    if (desc) library().primitive_desc_destroy(desc);
    return made;
  }

  bool Copy(const DescTag* blocks, const DescTag* plain) {
    const DescTag *from = of_weights() ? blocks : plain, *to = of_weights() ? plain : blocks;
    const Attr attr = MakeAttr();
    PrimitiveDesc desc = nullptr;
    const Library& l = library();
    const bool made =
        attr && l.reorder_primitive_desc_create(&desc, from, l.engine, to, l.engine, attr) == kOk &&
        Create(desc) && Add(kSource, from) && Add(kResult, to) && AddScratch(desc);
    if (attr) l.primitive_attr_destroy(attr);
    if (desc) l.primitive_desc_destroy(desc);
    return made;
  }

  size_t block_bytes_ = 0;
};

using ConvolutionPlans = Plans<ConvolutionPlan>;

// What is computed at once: some images, or rows of one, of the results or of x.
struct Part {
  Extent extent;
  int64_t image, x_row, out_row;
};

class Parts {
 public:
  // of_x: rows of x are divided, else those of the results. Parts stay in a cache, but have enough
  // places to read all weights for.
  static Parts Small(const Windows& w, int64_t K, bool of_x) {
    const int64_t places = w.out_height * w.out_width;
    const int64_t size = std::max(places * K, w.height * w.width * w.channels);
    Parts parts(w, of_x);
    parts.images_ = std::max<int64_t>(1, std::max(kNumbers / size, kPlaces / places));
    if (parts.images_ == 1) parts.Cut(std::min(size / kNumbers, places / kPlaces));
    return parts;
  }

  // At most `most`, each of many places.
  static Parts Large(const Windows& w, int64_t most) {
    const int64_t places = w.out_height * w.out_width;
    const int64_t wanted = std::clamp<int64_t>(w.N * places / kManyPlaces, 1, most);
    Parts parts(w, false);
    parts.images_ = (w.N + wanted - 1) / wanted;
    if (parts.images_ == 1) parts.Cut(wanted / w.N);
    return parts;
  }

  // Whole images.
  void Uncut() { blocks_ = 1; }

  // Parts of all kinds, but for windows that reach out over several blocks.
  template <typename Visit>
  bool AllOf(const Visit& visit) const {
    const int64_t last = count() - blocks_;
    bool all = true;
    for (int64_t first : {int64_t{0}, last})
      for (int64_t block : {int64_t{0}, std::min<int64_t>(1, blocks_ - 1),
                            std::max<int64_t>(blocks_ - 2, 0), blocks_ - 1})
        all = all && visit((*this)[first + block].extent);
    return all;
  }

  int64_t count() const { return (w_.N + images_ - 1) / images_ * blocks_; }
  Part operator[](int64_t index) const {
    const int64_t image = index / blocks_ * images_, block = index % blocks_;
    Part part = {
        {std::min(images_, w_.N - image), w_.height, w_.out_height, w_.padding}, image, 0, 0};
    if (blocks_ == 1) return part;
    const int64_t window = w_.dilation * (w_.R - 1), pad = w_.padding, stride = w_.stride;
    const int64_t first = std::max<int64_t>(0, block * rows_ - shift_), last = End(block);
    Extent& at = part.extent;
    if (of_x_) {
      part.x_row = first, at.height = last - first;
      const int64_t above = std::max<int64_t>(0, first + pad - window);
      part.out_row = (above + stride - 1) / stride;
      at.out_height = std::min(w_.out_height, (last - 1 + pad) / stride + 1) - part.out_row;
    } else {
      part.out_row = first, at.out_height = last - first;
      part.x_row = std::clamp<int64_t>(first * stride - pad, 0, w_.height - 1);
      const int64_t below = (last - 1) * stride - pad + window + 1;
      at.height = std::clamp<int64_t>(below, part.x_row + 1, w_.height) - part.x_row;
    }
    at.before = pad + part.x_row - part.out_row * stride;
    return part;
  }

 private:
  static constexpr int64_t kNumbers = 128 << 10, kPlaces = 256, kManyPlaces = 1024;

  Parts(const Windows& w, bool of_x) : w_(w), of_x_(of_x) {}

  int64_t lines() const { return of_x_ ? w_.height : w_.out_height; }

  // Rows of x are cut into multiples of the stride, which oneDNN has kernels for. Where windows
  // leave rows out, one begins at the first row of each block.
  void Cut(int64_t blocks) {
    rows_ = (lines() + std::max<int64_t>(blocks, 1) - 1) / std::max<int64_t>(blocks, 1);
    if (of_x_) {
      rows_ = (rows_ + w_.stride - 1) / w_.stride * w_.stride;
      shift_ = w_.dilation * (w_.R - 1) + 1 >= w_.stride ? 0 : w_.padding % w_.stride;
    }
    blocks_ = (lines() + shift_ + rows_ - 1) / rows_;
  }

  int64_t End(int64_t block) const { return std::min(lines(), (block + 1) * rows_ - shift_); }

  const Windows& w_;
  bool of_x_;
  int64_t images_ = 1, blocks_ = 1, rows_ = 0, shift_ = 0;
};

// Multiplications.
double WorkOf(const Windows& w, int64_t K) {
  return static_cast<double>(w.rows()) * static_cast<double>(w.length()) * static_cast<double>(K);
}

// Everything that the parts of a call share.
class Call {
 public:
  Call(AnyopCall* call, const Library& library, const Windows& w, int64_t K, Task task)
      : call_(call), library_(library), w_(w), K_(K) {
    const int64_t type = w.dtype == kAnyopBFloat16 ? kBFloat16 : kFloat32;
    const Extent whole = {1, w.height, w.out_height, w.padding};
    kind_ = {task, 0,   type,     w.width,   w.channels, w.out_width, K,
             w.R,  w.S, w.stride, w.padding, w.dilation, whole,       whole};
  }

  // Chooses the layout of the blocks: one that all parts have a fast kernel for, which may be whole
  // images then; false where there is none. oneDNN's choice depends on the height.
  bool Settle(Parts* parts) {
    for (int cut = 0; cut < 2; ++cut) {
      const Part middle = (*parts)[std::min<int64_t>(1, parts->count() - 1)];
      for (const Extent& model : {middle.extent, (*parts)[0].extent, kind_.part}) {
        kind_.model = model;
        const auto has_kernel = [&](const Extent& extent) {
          ConvolutionKind kind = kind_;
          kind.part = extent;
          return extent.out_height > 0 && plans().Get(kind);
        };
        if (parts->AllOf(has_kernel)) return true;
      }
      parts->Uncut();
    }
    return false;
  }

  // Memory for the weights in blocks; nullptr where there is no fast kernel, or none.
  char* Blocks(int64_t count) {
    const ConvolutionPlan* plan = plans().Get(Copying());
    if (!plan) return nullptr;
    bytes_ = (static_cast<int64_t>(plan->block_bytes()) + 63) / 64 * 64;
    return static_cast<char*>(call_->workspace(call_, count * bytes_));
  }
  int64_t block_bytes() const { return bytes_; }
  // Of a thread: how many it may have of the size of the weights.
  int64_t MostParts() const {
    return std::clamp<int64_t>((int64_t{64} << 20) / (w_.length() * K_ * 4), 1, 16);
  }

  bool Copy(const void* from, void* to) const {
    const void* data[] = {from, to};
    return plans().Run(Copying(), data, 2);
  }

  bool Run(const Part& part, const void* x, const void* weights, const void* y) const {
    ConvolutionKind kind = kind_;
    kind.part = part.extent;
    const void* data[] = {x, weights, y};
    return plans().Run(kind, data, 3);
  }

  // run(index, part), which says whether it could, for all parts.
  template <typename One>
  bool ForEach(const Parts& parts, const One& run) const {
    constexpr double kGrain = 1e6;  // multiplications, some 20 us
    const double work = WorkOf(w_, K_) / static_cast<double>(parts.count());
    std::atomic<bool> ran{true};
    ParallelFor(call_, parts.count(), static_cast<int64_t>(kGrain / work) + 1,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end && ran.load(); ++i)
                    if (!run(i, parts[i])) ran.store(false);
                });
    return ran.load();
  }

  // Elements in front of a part.
  int64_t InX(const Part& p) const {
    return (p.image * w_.height + p.x_row) * w_.width * w_.channels;
  }
  int64_t FirstResult(const Part& p) const {
    return (p.image * w_.out_height + p.out_row) * w_.out_width;
  }

  ConvolutionPlans& plans() const { return ConvolutionPlans::OfThisThread(library_); }

 private:
  ConvolutionKind Copying() const {
    ConvolutionKind kind = kind_;
    kind.copies = 1;  // kind.part is one whole image
    return kind;
  }

  AnyopCall* call_;
  const Library& library_;
  const Windows& w_;
  int64_t K_, bytes_ = 0;
  ConvolutionKind kind_;
};

const char* At(const void* data, int64_t element, AnyopDtype dtype) {
  return static_cast<const char*>(data) + element * SizeOf(dtype);
}

}  // namespace

bool IsWorth(const Windows& windows, int64_t K) {
  constexpr int64_t kMost = int64_t{1} << 28;  // of an image and of the weights
  constexpr double kLeast = 1e6;               // multiplications
  const Windows& w = windows;
  const int64_t x = w.height * w.width * w.channels, y = w.out_height * w.out_width * K;
  const int64_t most = std::max({x, y, w.length() * K, w.stride, w.padding, w.dilation});
  return w.dtype == kAnyopFloat32 && most < kMost && WorkOf(w, K) >= kLeast;
}

bool Convolve(AnyopCall* call, const Library& library, const Windows& windows, int64_t K,
              const void* weights, float* out, Store store, const void* context) {
  Call shared(call, library, windows, K, kForward);
  Parts parts = Parts::Small(windows, K, false);
  char* blocks = shared.Settle(&parts) ? shared.Blocks(1) : nullptr;
  if (!blocks || !shared.Copy(weights, blocks)) return false;
  return shared.ForEach(parts, [&](int64_t, const Part& part) {
    const int64_t first = shared.FirstResult(part);
    const int64_t rows = part.extent.N * part.extent.out_height * windows.out_width;
    KeptMemory& tile = shared.plans().tile();
    const size_t bytes = static_cast<size_t>(rows * K) * sizeof(float);
    float* sums = out ? out + first * K : static_cast<float*>(tile.Get(bytes));
    const char* x = At(windows.data, shared.InX(part), windows.dtype);
    const bool ran = sums && shared.Run(part, x, blocks, sums);
    if (ran) store(context, first, rows, sums);
    tile.Shrink();
    return ran;
  });
}

bool GradientOfImages(AnyopCall* call, const Library& library, const Windows& windows, int64_t K,
                      const void* weights, const void* grad, void* grad_x) {
  Call shared(call, library, windows, K, kOfImages);
  Parts parts = Parts::Small(windows, K, true);
  char* blocks = shared.Settle(&parts) ? shared.Blocks(1) : nullptr;
  if (!blocks || !shared.Copy(weights, blocks)) return false;
  return shared.ForEach(parts, [&](int64_t, const Part& part) {
    return part.extent.out_height > 0 &&
           shared.Run(part, At(grad_x, shared.InX(part), windows.dtype), blocks,
                      At(grad, shared.FirstResult(part) * K, windows.dtype));
  });
}

bool GradientOfWeights(AnyopCall* call, const Library& library, const Windows& windows, int64_t K,
                       const void* grad, float* grad_weight) {
  Call shared(call, library, windows, K, kOfWeights);
  if (windows.are_images()) return false;  // a product is faster: 0.8 of oneDNN's time on Zen 3
  Parts parts = Parts::Large(windows, shared.MostParts());
  char* sums = shared.Settle(&parts) ? shared.Blocks(parts.count()) : nullptr;
  const auto run = [&](int64_t index, const Part& part) {
    return shared.Run(part, At(windows.data, shared.InX(part), windows.dtype),
                      sums + index * shared.block_bytes(),
                      At(grad, shared.FirstResult(part) * K, windows.dtype));
  };
  if (!sums || !shared.ForEach(parts, run)) return false;
  const int64_t count = shared.block_bytes() / static_cast<int64_t>(sizeof(float));
  ParallelFor(call, count, 16384, [&](int64_t begin, int64_t end) {
    auto* total = reinterpret_cast<float*>(sums);
    for (int64_t more = 1; more < parts.count(); ++more)
      for (int64_t i = begin; i < end; ++i) total[i] += total[more * count + i];
  });
  return shared.Copy(sums, grad_weight);
}

}  // namespace anyop::dnnl
