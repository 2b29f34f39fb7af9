// SPDX-License-Identifier: Apache-2.0
// What has nothing but Python's buffer protocol: bytearray, memoryview, array.array, ctypes. A
// memoryview holds the buffer until the call ends, and whoever keeps the memory behind it.
#include <dlfcn.h>

#include <cstring>

#include "frameworks/loans.h"
#include "frameworks/numpy.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

extern const Framework row;
const Source source = {&row, nullptr, true};

// Python's Py_buffer, in the stable ABI since 3.11 and unchanged since 3.0; its functions exist
// in 3.10 too.
struct Buffer {
  void* data;
  PyObject* object;
  Py_ssize_t bytes, item_bytes;
  int readonly, ndim;
  char* format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void* internal;
};
constexpr int kStrided = 0x0010 | 0x0008 | 0x0004;  // PyBUF_STRIDES | PyBUF_ND | PyBUF_FORMAT

template <typename Function>
Function PythonFunction(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// A view's buffer, which ends before the view does.
class ReadBuffer : NoCopy {
 public:
  explicit ReadBuffer(PyObject* view) {
    static const auto get = PythonFunction<int (*)(PyObject*, Buffer*, int)>("PyObject_GetBuffer");
    is_good_ = !get(view, &buffer_, kStrided);
  }
  ~ReadBuffer() {
    static const auto release = PythonFunction<void (*)(Buffer*)>("PyBuffer_Release");
    if (is_good_) release(&buffer_);
  }
  explicit operator bool() const { return is_good_; }
  const Buffer* operator->() const { return &buffer_; }

 private:
  Buffer buffer_ = {};
  bool is_good_;
};

// DLPack's code of one character of the struct module, in native order; -1: it has none.
int CodeOf(const char* format) {
  if (!format) return kDLUInt;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  const bool is_complex = *format == 'Z';  // NumPy's and ctypes'
  if (is_complex) ++format;
  if (!format[0] || format[1]) return -1;
  if (is_complex) return std::strchr("fd", *format) ? kDLComplex : -1;
  if (*format == '?') return kDLBool;
  if (std::strchr("efd", *format)) return kDLFloat;
  if (std::strchr("bhilqn", *format)) return kDLInt;
  return std::strchr("BHILQN", *format) ? kDLUInt : -1;
}

Way View(Loans* loans, const Source*, PyObject* object, bool writes, AnyopTensor* tensor) {
  loans->NoteCode();
  PyObject* view = loans->Keep(PyMemoryView_FromObject(object));
  if (!view) return Way::kRefused;
  loans->owner = view;
  const ReadBuffer buffer(view);
  if (!buffer) return Way::kRefused;
  const int code = CodeOf(buffer->format);
  const auto bits = static_cast<uint8_t>(
      static_cast<size_t>(buffer->item_bytes) <= 16 ? buffer->item_bytes * 8 : 0);
  const int ndim = buffer->ndim;
  *tensor = {buffer->data, kDLCPU, 0,       ndim,    static_cast<uint8_t>(code),
             bits,         1,      nullptr, nullptr, 0};
  if (code < 0 || AnyopDtypeOf(tensor) == kAnyopNoDtype)
    return loans->Reject(PyExc_TypeError, std::string("has the buffer format ") +
                                              (buffer->format ? buffer->format : "B") +
                                              ", which no operator takes");
  if (writes && buffer->readonly) return loans->Reject(PyExc_ValueError, kReadOnly);
  auto* shape = loans->arena->Take<int64_t>(int64_t{2} * ndim);
  for (int d = 0; d < ndim; ++d) {
    shape[d] = buffer->shape[d];
    if (buffer->strides[d] % buffer->item_bytes && shape[d] > 1)
      return loans->Reject(PyExc_ValueError, "has strides that are no multiples of its elements");
    shape[ndim + d] = buffer->strides[d] / buffer->item_bytes;
  }
  tensor->shape = shape;
  tensor->strides = shape + ndim;
  return Way::kPlain;
}

bool IsReadOnly(PyObject* view) {
  const ReadBuffer buffer(view);
  return !buffer || buffer->readonly;
}

const Framework row = [] {
  Framework f;
  f.name = "buffer";
  f.home = &numpy_framework;
  f.view_holds = true;
  f.view = View;
  f.allocate = AllocateArray;
  f.is_read_only = IsReadOnly;
  return f;
}();

}  // namespace

Found FindBuffer(PyObject* object) {
  if (Ref(PyMemoryView_FromObject(object))) return {true, &source};
  return ClearOrdinary() ? kNotMine : Found{true, nullptr};
}

}  // namespace anyop
