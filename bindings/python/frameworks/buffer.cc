// SPDX-License-Identifier: Apache-2.0
// A memoryview holds the buffer until the call ends, and whoever keeps the memory behind it.
#include "frameworks/buffer.h"

#include <dlfcn.h>

#include <cstring>

#include "frameworks/dlpack.h"
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
class ReadBuffer {
 public:
  explicit ReadBuffer(PyObject* view) {
    static const auto get = PythonFunction<int (*)(PyObject*, Buffer*, int)>("PyObject_GetBuffer");
    is_good_ = !get(view, &buffer_, kStrided);
  }
  ~ReadBuffer() {
    static const auto release = PythonFunction<void (*)(Buffer*)>("PyBuffer_Release");
    if (is_good_) release(&buffer_);
  }
  ReadBuffer(const ReadBuffer&) = delete;
  ReadBuffer& operator=(const ReadBuffer&) = delete;
  explicit operator bool() const { return is_good_; }
  const Buffer* operator->() const { return &buffer_; }

 private:
  Buffer buffer_ = {};
  bool is_good_;
};

// The dtype of one character of the struct module, in native order.
int DtypeOf(const char* format, Py_ssize_t item_bytes) {
  if (!format) return kAnyopUInt8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  const bool is_complex = format[0] == 'Z';  // NumPy's and ctypes'
  if (is_complex) ++format;
  if (!format[0] || format[1]) return kAnyopNoDtype;
  if (is_complex)
    return format[0] == 'f' ? kAnyopComplex64 : format[0] == 'd' ? kAnyopComplex128 : kAnyopNoDtype;
  if (format[0] == '?') return kAnyopBool;
  if (format[0] == 'e') return kAnyopFloat16;
  if (format[0] == 'f') return kAnyopFloat32;
  if (format[0] == 'd') return kAnyopFloat64;
  const bool is_signed = std::strchr("bhilqn", format[0]),
             is_unsigned = std::strchr("BHILQN", format[0]);
  if (!is_signed && !is_unsigned) return kAnyopNoDtype;
  switch (item_bytes) {
    case 1:
      return is_signed ? kAnyopInt8 : kAnyopUInt8;
    case 2:
      return is_signed ? kAnyopInt16 : kAnyopUInt16;
    case 4:
      return is_signed ? kAnyopInt32 : kAnyopUInt32;
    case 8:
      return is_signed ? kAnyopInt64 : kAnyopUInt64;
    default:
      return kAnyopNoDtype;
  }
}

Way View(Loans* loans, const Source*, PyObject* object, bool writes, AnyopTensor* tensor) {
  loans->NoteCode();
  PyObject* view = loans->Keep(PyMemoryView_FromObject(object));
  if (!view) return Way::kRefused;
  loans->owner = view;
  const ReadBuffer buffer(view);
  if (!buffer) return Way::kRefused;
  const int dtype = DtypeOf(buffer->format, buffer->item_bytes);
  if (dtype == kAnyopNoDtype || DlpackTypeOf(dtype).bits / 8 != buffer->item_bytes)
    return loans->Reject(PyExc_TypeError, std::string("has the buffer format ") +
                                              (buffer->format ? buffer->format : "B") +
                                              ", which no operator takes");
  if (writes && buffer->readonly) return loans->Reject(PyExc_ValueError, kReadOnly);
  const int ndim = buffer->ndim;
  auto* shape = loans->arena->Take<int64_t>(int64_t{2} * ndim);
  for (int d = 0; d < ndim; ++d) {
    shape[d] = buffer->shape[d];
    if (buffer->strides[d] % buffer->item_bytes && shape[d] > 1)
      return loans->Reject(PyExc_ValueError, "has strides that are no multiples of its elements");
    shape[ndim + d] = buffer->strides[d] / buffer->item_bytes;
  }
  const DlpackType type = DlpackTypeOf(dtype);
  *tensor = {buffer->data, 1, 0, ndim, type.code, type.bits, 1, shape, shape + ndim, 0};
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
