// SPDX-License-Identifier: Apache-2.0
// NumPy by its own memory, frameworks by DLPack's exchange functions, everything else by __dlpack__
// or a buffer.
#include "operators/borrow.h"

#include <dlfcn.h>

#include "dtype.h"
#include "frameworks/cupy.h"
#include "frameworks/dlpack.h"
#include "frameworks/numpy.h"
#include "frameworks/torch.h"
#include "gil.h"
#include "memory.h"
#include "operators/scalar.h"
#include "router/choose/device_below.h"

namespace anyop {
namespace {

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
using GetBuffer = int (*)(PyObject*, Buffer*, int);

template <typename Function>
Function PythonFunction(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

void ReleaseBuffer(void* held) {
  static const auto release = PythonFunction<void (*)(Buffer*)>("PyBuffer_Release");
  auto* buffer = static_cast<Buffer*>(held);
  release(buffer);
  delete buffer;
}

void LetGoManaged(void* held) {
  auto* managed = static_cast<DLManagedTensorVersioned*>(held);
  if (managed->deleter) managed->deleter(managed);
}

// The dtype of one character of the struct module, in native order.
int BufferDtype(const char* format, Py_ssize_t item_bytes) {
  if (!format) return kAnyopUInt8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (!format[0] || format[1]) return kAnyopNoDtype;
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

bool IsNumpyLike(const Source& source) {
  return source.origin == Origin::kNumpy || source.origin == Origin::kDlpack ||
         source.origin == Origin::kBuffer;
}

}  // namespace

Borrowed::~Borrowed() {
  if (!held_.empty()) {
    // What is let go may run Python code (a producer's deleter), which must not meet, or lose, the
    // call's error.
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    for (const Held& held : held_) held.let_go(held.held);
    PyErr_Restore(kind, value, trace);
  }
  for (; __builtin_expect(made_ != 0, 0); made_ &= made_ - 1) {
    mode_.glue->release(ReleaseResult(static_cast<uint32_t>(__builtin_ctzll(made_))));
  }
  for (uint32_t o = 0; o < num_outputs_; ++o) Py_XDECREF(results_[o]);
}

// The first tensor decides whose framework the call is in.
bool Borrowed::SetFirst(Frame* frame, PyObject* object, const Source* source) {
  first_ = source;
  first_object_ = object;
  if (source->origin != Origin::kDlpack && source->origin != Origin::kBuffer)
    first_type_ = Py_TYPE(object);
  if (source->origin == Origin::kTorch) {
    way_ = ReadTorchMode(&mode_);
    if (mode_.glue && !mode_.below) {
      frame->torch_input = TorchInput;
      frame->take_result = TakeResult;
    }
  }
  if (source->origin == Origin::kPaddle) way_ = ReadPaddleMode(&paddle_records_);
  if (source->origin == Origin::kForeign) way_ = Way::kDispatch;
  if (way_ != Way::kDispatch) return true;
  PyErr_Clear();
  return false;
}

// Tensors of two frameworks in one call: whose allocator, stream and rules would hold?
bool Borrowed::FitsFirst(const Operator& op, const Param& p, PyObject* object,
                         const Source* source) {
  if (source->adapter ? source->adapter == first_->adapter
                      : source->origin == first_->origin && source->api == first_->api)
    return true;
  if (IsNumpyLike(*source) && IsNumpyLike(*first_)) return true;
  return Refuse(op, p, PyExc_TypeError,
                "is " + ObjectText(Py_TYPE(object)) + ", expected a " +
                    TypeText(Py_TYPE(first_object_)) + " as the tensors before it");
}

bool Borrowed::Take(Frame* frame, const Param& p, PyObject* object, AnyopTensor* tensor) {
  const Operator& op = *frame->op;
  const Source* source = first_;
  if (__builtin_expect(first_type_ != Py_TYPE(object), 0)) {
    source = FindSource(object, &why_);
    if (!source) return !PyErr_Occurred() && Refuse(op, p, PyExc_TypeError, why_);
    if (first_ && source->origin >= Origin::kExchange) NoteCode(frame);  // of a foreign type's
    if (first_ ? !FitsFirst(op, p, object, source) : !SetFirst(frame, object, source)) return false;
  }
  const bool writes = p.flags & (kAnyopOutput | kAnyopMutated);
  if (!first_tensor_) first_tensor_ = tensor;
  if (__builtin_expect(source->origin == Origin::kTorch, 1))
    return TakeTorch(frame, p, source, object, writes, tensor);
  if (source->origin == Origin::kPaddle)
    return TakePaddle(frame, p, source, object, writes, tensor);
  if (source->origin == Origin::kForeign) {
    way_ = Way::kDispatch;
    return false;
  }
  const bool taken = source->origin == Origin::kNumpy
                         ? BorrowArray(&frame->arena, object, writes, tensor, &why_)
                         : TakeFrom(frame, source, object, writes, tensor, &why_);
  if (__builtin_expect(taken, 1)) return true;
  if (why_.empty()) return false;  // an error of the object's own is set
  PyErr_Clear();
  const bool value = why_.rfind("is read-only", 0) == 0 || why_.rfind("has strides", 0) == 0;
  return Refuse(op, p, value ? PyExc_ValueError : PyExc_TypeError, why_);
}

bool Borrowed::TakeFrom(Frame* frame, const Source* source, PyObject* object, bool writes,
                        AnyopTensor* tensor, std::string* why) {
  if (source->origin == Origin::kDlpack || source->origin == Origin::kCupy)
    return TakeDlpack(frame, source, object, writes, tensor, why);
  if (source->origin == Origin::kBuffer) return TakeBuffer(frame, object, writes, tensor, why);
  if (__builtin_expect(
          source->api->dltensor_from_py_object_no_sync(object, reinterpret_cast<DLTensor*>(tensor)),
          0)) {
    *why = "is " + ObjectText(Py_TYPE(object)) + " without plain memory; expected a dense one";
    return false;
  }
  return true;
}

bool Borrowed::TakeTorch(Frame* frame, const Param& p, const Source* source, PyObject* object,
                         bool writes, AnyopTensor* tensor) {
  const Way way = ViewTorchTensor(source, object, writes, &mode_, tensor);
  if (__builtin_expect(way != Way::kPlain, 0)) {
    way_ = way;
    if (way == Way::kDispatch) PyErr_Clear();
    if (way == Way::kDispatch) return false;
  }
  const char* problem = AnyopTorchRefusal(mode_.flags);
  if (__builtin_expect(problem != nullptr, 0))
    return Refuse(*frame->op, p, PyExc_ValueError, problem);
  if (writes) NoteWritten(object);
  return true;
}

bool Borrowed::TakePaddle(Frame* frame, const Param& p, const Source* source, PyObject* object,
                          bool writes, AnyopTensor* tensor) {
  const Way way = ViewPaddleTensor(source, object, paddle_records_, tensor, &why_);
  if (!why_.empty()) return Refuse(*frame->op, p, PyExc_TypeError, why_);
  if (way != Way::kPlain) way_ = way;
  if (way == Way::kDispatch) return false;
  if (writes) NoteWritten(object);
  return true;
}

void Borrowed::NoteWritten(PyObject* object) {
  if (num_written_ < 8)
    written_[num_written_++] = object;
  else
    more_written_.push_back(object);
}

bool Borrowed::TakeDlpack(Frame* frame, const Source* source, PyObject* object, bool writes,
                          AnyopTensor* tensor, std::string* why) {
  NoteCode(frame);
  // The call runs on CuPy's own current stream: there is nothing to wait for.
  const Ref stream(source->origin == Origin::kCupy ? PyLong_FromLong(-1) : nullptr);
  PyObject* capsule = NewCapsule(object, stream.get());
  if (!capsule) return false;
  Keep(capsule);
  if (!ReadCapsule(capsule, writes, tensor, why)) return false;
  constexpr int kCuda = 2, kCudaManaged = 13;  // DLDeviceType
  if (source->origin == Origin::kCupy && tensor->device_type == kCudaManaged)
    tensor->device_type = kCuda;  // kernels read it as any other
  return true;
}

bool Borrowed::TakeBuffer(Frame* frame, PyObject* object, bool writes, AnyopTensor* tensor,
                          std::string* why) {
  NoteCode(frame);  // a class's own __buffer__
  static const auto get = PythonFunction<GetBuffer>("PyObject_GetBuffer");
  auto* buffer = new Buffer{};
  if (get(object, buffer, kStrided)) {
    delete buffer;
    return false;
  }
  LetGoLater(ReleaseBuffer, buffer);
  const int dtype = BufferDtype(buffer->format, buffer->item_bytes);
  if (dtype == kAnyopNoDtype || DlpackTypeOf(dtype).bits / 8 != buffer->item_bytes) {
    *why = std::string("has the buffer format ") + (buffer->format ? buffer->format : "B") +
           ", which no operator takes";
    return false;
  }
  if (writes && buffer->readonly) {
    *why = "is read-only, and the operator would write it";
    return false;
  }
  // ctypes leaves strides NULL though they were asked for; the core fills them.
  auto* strides = buffer->strides ? frame->arena.Take<int64_t>(buffer->ndim) : nullptr;
  for (int d = 0; strides && d < buffer->ndim; ++d) {
    if (buffer->strides[d] % buffer->item_bytes && buffer->shape[d] > 1) {
      *why = "has strides that are no multiples of its elements";
      return false;
    }
    strides[d] = buffer->strides[d] / buffer->item_bytes;
  }
  const DlpackType type = DlpackTypeOf(dtype);
  *tensor = {buffer->data, 1,         0, buffer->ndim,
             type.code,    type.bits, 1, reinterpret_cast<int64_t*>(buffer->shape),
             strides,      0};
  return true;
}

bool Borrowed::TakeList(Frame* frame, const Param& p, uint32_t i) {
  PyObject* object = arguments_[i];
  if (!PyList_Check(object) && !PyTuple_Check(object)) {
    return Refuse(*frame->op, p, PyExc_TypeError,
                  "is " + ObjectText(Py_TYPE(object)) + ", expected a list of tensors");
  }
  // Holds the elements, whatever happens to the list meanwhile.
  PyObject* items = PySequence_Tuple(object);
  if (!items) return false;
  Keep(items);
  arguments_[i] = items;
  const Py_ssize_t count = PyTuple_Size(items);
  auto* tensors = frame->arena.Take<AnyopTensor>(count + 1);
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* item = PyTuple_GetItem(items, k);
    if (item == Py_None && p.Is(kAnyopOptionalElements)) {
      tensors[k] = {};
      tensors[k].ndim = -1;
    } else if (!Take(frame, p, item, &tensors[k])) {
      return false;
    } else if (tensors[k].ndim < 0) {  // would look like None
      return Refuse(*frame->op, p, PyExc_ValueError,
                    "has an element with a negative number of dimensions");
    }
  }
  frame->Field<AnyopTensorList>(p) = {tensors, count};
  return true;
}

template <typename Visit>
bool Borrowed::Each(Frame* frame, const Visit& visit) const {
  const auto& params = frame->op->params;
  for (uint32_t i = 0; i < params.size(); ++i) {
    const Param& p = params[i];
    if (!p.IsTensor() || !(frame->given >> i & 1)) continue;
    if (!p.IsList()) {
      if (!visit(p, arguments_[i], &frame->tensors[i])) return false;
      continue;
    }
    const auto& list = frame->Field<AnyopTensorList>(p);
    for (int64_t k = 0; k < list.count; ++k) {
      PyObject* item = PyTuple_GetItem(arguments_[i], static_cast<Py_ssize_t>(k));
      if (item != Py_None && !visit(p, item, const_cast<AnyopTensor*>(&list.data[k]))) return false;
    }
  }
  return true;
}

bool Borrowed::TakeAgain(Frame* frame) {
  num_written_ = 0;
  more_written_.clear();
  first_type_ = nullptr;
  return Each(frame, [&](const Param& p, PyObject* object, AnyopTensor* tensor) {
    std::string why;
    const Source* source = FindSource(object, &why);
    const bool is_held =
        source && (source->origin == Origin::kDlpack || source->origin == Origin::kCupy ||
                   source->origin == Origin::kBuffer);
    return is_held || Take(frame, p, object, tensor);
  });
}

void Borrowed::Keep(PyObject* object) {
  held_.push_back({[](void* held) { Py_DECREF(static_cast<PyObject*>(held)); }, object});
}

void Borrowed::HoldOne(PyObject* object) {
  std::string why;
  const Source* source = FindSource(object, &why);
  if (!source) return;
  if (source->origin == Origin::kNumpy) {
    if (PyObject* pin = PinArray(object)) Keep(pin);
  } else if (source->api && source->api->managed_tensor_from_py_object_no_sync) {
    DLManagedTensorVersioned* managed = nullptr;
    if (source->api->managed_tensor_from_py_object_no_sync(object, &managed)) PyErr_Clear();
    LetGoLater(LetGoManaged, managed);
  }
}

// By the glue, all at once.
void Borrowed::HoldTorch(Frame* frame) {
  uint64_t count = 0;
  const auto each = [&](const auto& visit) {
    Each(frame, [&](const Param&, PyObject* object, AnyopTensor*) { return visit(object), true; });
  };
  each([&](PyObject*) { ++count; });
  void** impls = frame->arena.Take<void*>(static_cast<int64_t>(count));
  count = 0;
  each([&](PyObject* object) { impls[count++] = TorchTensorImpl(object); });
  LetGoLater(mode_.glue->let_go, mode_.glue->hold(impls, count));
}

void Borrowed::Hold(Frame* frame) {
  frame->hold = nullptr;
  auto* self = static_cast<Borrowed*>(frame->binding);
  PyObject *kind, *value, *trace;  // a kernel's, where it asks for more
  PyErr_Fetch(&kind, &value, &trace);
  if (self->mode_.glue) {
    self->HoldTorch(frame);
  } else {
    self->Each(frame, [&](const Param&, PyObject* object, AnyopTensor*) {
      self->HoldOne(object);
      return true;
    });
  }
  PyErr_Restore(kind, value, trace);
}

bool Borrowed::AskStream(Frame* frame) const {
  const AnyopTensor& first = *first_tensor_;
  if (first_->origin == Origin::kCupy) return CupyStream(first.device_id, &frame->stream);
  if (first.device_type == kFrameworkDevice && HasDeviceBelow()) return true;  // the core asks it
  if (!first_->api ||
      !first_->api->current_work_stream(static_cast<DLDeviceType>(first.device_type),
                                        first.device_id, &frame->stream))
    return true;
  if (!PyErr_Occurred())
    PyErr_Format(PyExc_RuntimeError, "%s: the framework names no current stream on device %s:%d",
                 frame->op->name.c_str(), DeviceName(first.device_type).c_str(), first.device_id);
  return false;
}

void Borrowed::ReleaseGil(Frame* frame) {
  static_cast<Borrowed*>(frame->binding)->thread_ = PyEval_SaveThread();
}

void Borrowed::TakeGil(Frame* frame) {
  PyEval_RestoreThread(static_cast<Borrowed*>(frame->binding)->thread_);
}

int32_t Borrowed::AllocateByGlue(Frame* frame, uint32_t output, AnyopTensor* tensor) {
  frame->torch_result = [](Frame* f, uint32_t o) {
    return TorchTensorImpl(static_cast<Borrowed*>(f->binding)->results_[o]);
  };
  results_[output] = NewTorchTensor(mode_, tensor);
  return results_[output] ? kAnyopOk : kAnyopPending;
}

void* Borrowed::TorchInput(Frame* frame, uint32_t param) {
  return TorchTensorImpl(static_cast<Borrowed*>(frame->binding)->arguments_[param]);
}

// Python's lock may be another thread's: objects are made later.
void Borrowed::TakeResult(Frame* frame, uint32_t output, void* impl) {
  auto* self = static_cast<Borrowed*>(frame->binding);
  self->results_[output] = static_cast<PyObject*>(impl);
  self->made_ |= uint64_t{1} << output;
}

bool Borrowed::WrapAllMade() {
  for (; made_; made_ &= made_ - 1) {
    PyObject*& result = results_[__builtin_ctzll(made_)];
    result = WrapTorchTensor(mode_, result);
    if (!result) return made_ &= made_ - 1, false;
  }
  return true;
}

int32_t Borrowed::AllocateByExchange(uint32_t output, AnyopTensor* tensor) {
  auto set_error = [](void*, const char* kind, const char* message) {
    PyErr_SetString(std::strstr(message, "memory") ? PyExc_MemoryError : PyExc_RuntimeError,
                    message);
    (void)kind;
  };
  DLManagedTensorVersioned* managed = nullptr;
  if (first_->api->managed_tensor_allocator(reinterpret_cast<DLTensor*>(tensor), &managed, nullptr,
                                            set_error)) {
    if (!PyErr_Occurred()) PyErr_NoMemory();
    return kAnyopPending;
  }
  const DLTensor made = managed->dl_tensor;
  void* object = nullptr;
  if (first_->api->managed_tensor_to_py_object_no_sync(managed, &object)) return kAnyopPending;
  results_[output] = static_cast<PyObject*>(object);
  // The sizes that managed pointed to may be gone; ours in the frame say the same.
  tensor->data = static_cast<char*>(made.data) + made.byte_offset;
  return kAnyopOk;
}

// By NumPy, or by CuPy for its own arrays.
int32_t Borrowed::AllocateArray(Frame* frame, uint32_t output, AnyopTensor* tensor) {
  const char* name = frame->op->params[frame->op->num_inputs + output].name;
  std::string why;
  PyObject* array = nullptr;
  if (first_->origin == Origin::kCupy) {
    array = NewCupyArray(tensor);
  } else if (tensor->device_type != 1) {
    return Fail(frame, kAnyopValueError, "%s must be given: NumPy has no memory on %s", name,
                DeviceName(tensor->device_type).c_str());
  } else if (ImportNumpy(&why)) {
    array = NewArray(tensor, &why);
  }
  if (!array)
    return why.empty() ? int32_t{kAnyopPending}
                       : Fail(frame, kAnyopTypeError, "%s %s", name, why.c_str());
  results_[output] = array;
  return kAnyopOk;
}

// The framework's refusal to make a result, as an error of the operator's.
int32_t Borrowed::Refused(Frame* frame, uint32_t output, const AnyopTensor& tensor) {
  const bool memory = PyErr_ExceptionMatches(PyExc_MemoryError);
  if (!memory && !PyErr_ExceptionMatches(PyExc_ValueError)) return kAnyopPending;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Ref text(value ? PyObject_Str(value) : nullptr);
  const char* why = text ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
  if (!why) {
    PyErr_Restore(type, value, trace);
    return kAnyopPending;
  }
  const int32_t status =
      Fail(frame, memory ? kAnyopOutOfMemory : kAnyopValueError, "%s would have shape %s: %s",
           frame->op->params[frame->op->num_inputs + output].name,
           SizesText(tensor.ndim, tensor.shape).c_str(), why);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return status;
}

int32_t Borrowed::Allocate(Frame* frame, uint32_t output, AnyopTensor* tensor) {
  auto* self = static_cast<Borrowed*>(frame->binding);
  int32_t status;
  if (self->mode_.glue) {
    status = self->AllocateByGlue(frame, output, tensor);
  } else if (self->first_->origin == Origin::kPaddle &&
             NewPaddleTensor(self->first_, tensor, &self->results_[output], &status)) {
  } else {
    status = self->first_->api ? self->AllocateByExchange(output, tensor)
                               : self->AllocateArray(frame, output, tensor);
  }
  return __builtin_expect(status == kAnyopPending, 0) ? self->Refused(frame, output, *tensor)
                                                      : status;
}

}  // namespace anyop
