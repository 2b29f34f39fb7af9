// SPDX-License-Identifier: Apache-2.0
// Arrays are read in place: 143 ns for three, against 255 by the buffer protocol and 355 by
// __dlpack__.
#include "frameworks/numpy.h"

#include <atomic>
#include <mutex>

#include "frameworks/loans.h"
#include "router/rules/call_condition.h"
#include "tensors/dtype.h"
#include "tensors/memory.h"

namespace anyop {
namespace {

// The beginnings of PyArray_Descr and PyArrayObject, which NumPy 1 and 2 share.
struct Descr {
  PyObject base;
  PyObject* type;
  char kind;
  char character;
  char byteorder;
  char former_flags;
  int type_num;
};
struct Array {
  PyObject base;
  char* data;
  int ndim;
  int64_t* shape;
  int64_t* strides;  // in bytes
  PyObject* owner;
  Descr* descr;
  int flags;
};
constexpr int kWriteable = 0x0400;

// NumPy's function table: NPY_TYPES numbers below.
constexpr int kSlotNew = 93, kSlotSetBase = 282;
using NewFunction = PyObject* (*)(PyTypeObject*, int, int64_t*, int, int64_t*, void*, int, int,
                                  PyObject*);
using SetBaseFunction = int (*)(PyObject* array, PyObject* owner);  // takes the reference
std::atomic<NewFunction> new_array{nullptr};
SetBaseFunction set_base;
PyTypeObject* array_type;

constexpr uint8_t kNone = kAnyopNoDtype;
constexpr int kNumBuiltin = 24;
constexpr uint8_t kBuiltin[kNumBuiltin] = {
    kAnyopBool,    kAnyopInt8,  kAnyopUInt8,     kAnyopInt16,
    kAnyopUInt16,  kAnyopInt32, kAnyopUInt32,    kAnyopInt64,
    kAnyopUInt64,  kAnyopInt64, kAnyopUInt64,    kAnyopFloat32,
    kAnyopFloat64, kNone,       kAnyopComplex64, kAnyopComplex128,
    kNone,         kNone,       kNone,           kNone,
    kNone,         kNone,       kNone,           kAnyopFloat16};

// DlpackTypeOf without a call into the other library.
struct Types {
  DlpackType type[kAnyopNumDtypes];
  Types() {
    for (int i = 0; i < kAnyopNumDtypes; ++i) type[i] = DlpackTypeOf(i);
  }
  const DlpackType& operator[](int dtype) const { return type[dtype]; }
};
const Types types;

// Types of ml_dtypes get their numbers at run time. Written once under the lock, then only read.
struct Extension {
  const char* name;
  int dtype;  // kAnyopNoDtype: ATen's only
  DlpackType type;
  std::atomic<int> number;  // NumPy's; 0: not known yet
};
std::mutex extension_lock;
Extension extensions[] = {{"bfloat16", kAnyopBFloat16, {4, 16}, {0}},
                          {"float8_e4m3fn", kAnyopFloat8E4M3FN, {10, 8}, {0}},
                          {"float8_e5m2", kAnyopFloat8E5M2, {12, 8}, {0}},
                          {"float8_e4m3fnuz", kAnyopNoDtype, {11, 8}, {0}},
                          {"float8_e5m2fnuz", kAnyopNoDtype, {13, 8}, {0}},
                          {"float8_e8m0fnu", kAnyopNoDtype, {14, 8}, {0}}};

// The number NumPy gave to ml_dtypes' type; 0 when ml_dtypes is not loaded (or, with import,
// missing).
int ExtensionNumber(Extension* extension, bool import) {
  if (const int known = extension->number.load(std::memory_order_acquire)) return known;
  const Ref imported(import ? PyImport_ImportModule("ml_dtypes") : nullptr);
  PyErr_Clear();
  const Ref type = Attribute(LoadedModule("ml_dtypes"), extension->name);
  if (!type) return 0;
  const Ref descr(PyObject_CallMethod(LoadedModule("numpy"), "dtype", "O", type.get()));
  if (!descr) {
    PyErr_Clear();
    return 0;
  }
  std::lock_guard<std::mutex> lock(extension_lock);
  extension->number.store(reinterpret_cast<Descr*>(descr.get())->type_num,
                          std::memory_order_release);
  return extension->number.load();
}

// False where no operator takes the type.
bool TypeOf(const Descr* descr, bool all_types, DlpackType* type) {
  if (descr->type_num >= 0 && descr->type_num < kNumBuiltin) {
    const int dtype = kBuiltin[descr->type_num];
    if (__builtin_expect(dtype == kNone, 0)) return false;
    *type = types[dtype];
    return true;
  }
  for (Extension& extension : extensions) {
    if (ExtensionNumber(&extension, false) != descr->type_num) continue;
    *type = extension.type;
    return all_types || extension.dtype != kAnyopNoDtype;
  }
  return false;
}

// -1, or 0 without ml_dtypes, where NumPy has none.
int TypeNumber(DlpackType type) {
  if (type.code == 0 && type.bits == 64) return 7;  // long before long long
  for (int i = 0; i < kNumBuiltin; ++i) {
    if (kBuiltin[i] == kNone) continue;
    const DlpackType& builtin = types[kBuiltin[i]];
    if (builtin.code == type.code && builtin.bits == type.bits) return i;
  }
  for (Extension& extension : extensions) {
    if (extension.type.code == type.code && extension.type.bits == type.bits)
      return ExtensionNumber(&extension, true);
  }
  return -1;
}

std::string DescrText(Descr* descr) {
  const Ref text(PyObject_Str(reinterpret_cast<PyObject*>(descr)));
  return TextOf(text.get(), "an unknown dtype");
}

// Reads NumPy's function table; once. False with *why set when this NumPy is not understood.
bool InitNumpy(std::string* why) {
  if (new_array.load(std::memory_order_acquire)) return true;
  PyObject* module = LoadedModule("numpy._core._multiarray_umath");
  if (!module) module = LoadedModule("numpy.core._multiarray_umath");
  const Ref capsule = Attribute(module, "_ARRAY_API");
  void** table =
      capsule ? static_cast<void**>(PyCapsule_GetPointer(capsule.get(), nullptr)) : nullptr;
  const Ref type = Attribute(LoadedModule("numpy"), "ndarray");
  if (!table || !type) {
    PyErr_Clear();
    *why = "is an array of a NumPy whose C API was not found; expected NumPy 1.21 or newer";
    return false;
  }
  std::lock_guard<std::mutex> lock(extension_lock);
  array_type = reinterpret_cast<PyTypeObject*>(
      type.get());  // kept alive by the module, which is never unloaded
  set_base = reinterpret_cast<SetBaseFunction>(table[kSlotSetBase]);
  new_array.store(reinterpret_cast<NewFunction>(table[kSlotNew]), std::memory_order_release);
  return true;
}

Found Find(PyTypeObject* type, std::string* why) {
  PyObject* numpy = LoadedModule("numpy");
  const Ref array = Attribute(numpy, "ndarray");
  if (!IsSubtype(type, array)) return kNotMine;
  const Ref masked = Attribute(Attribute(numpy, "ma").get(), "MaskedArray");
  if (IsSubtype(type, masked)) {
    *why = "is a masked array, whose mask would be ignored; expected a plain array";
    return {true, nullptr};
  }
  if (!InitNumpy(why)) return {true, nullptr};
  return Remember(type, Is(type, array), {&numpy_framework, nullptr, true});
}

// What an array of that dtype is refused for.
Way RefuseDescr(Loans* loans, Descr* descr) {
  return loans->Reject(PyExc_TypeError,
                       "has the NumPy dtype " + DescrText(descr) + ", which no operator takes");
}
Way RefuseOrder(Loans* loans, Descr* descr) {
  return loans->Reject(PyExc_TypeError, "is in foreign byte order (" + DescrText(descr) +
                                            "), expected native order");
}
Way RefuseStrides(Loans* loans, int ndim, const int64_t* strides, int64_t item) {
  return loans->Reject(PyExc_ValueError, "has strides " + SizesText(ndim, strides) +
                                             " in bytes, expected multiples of its " +
                                             std::to_string(item) + "-byte elements");
}

Way View(Loans* loans, const Source*, PyObject* object, bool writes, AnyopTensor* tensor) {
  auto* array = reinterpret_cast<Array*>(object);
  DlpackType type;
  if (__builtin_expect(!TypeOf(array->descr, loans->all_types, &type), 0))
    return RefuseDescr(loans, array->descr);
  constexpr char kForeign = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '>' : '<';
  if (__builtin_expect(array->descr->byteorder == kForeign, 0))
    return RefuseOrder(loans, array->descr);
  if (__builtin_expect(writes && !(array->flags & kWriteable), 0))
    return loans->Reject(PyExc_ValueError, kReadOnly);
  const int64_t item = type.bits / 8;
  const int shift = __builtin_ctz(static_cast<unsigned>(item));
  // x.shape = ... frees NumPy's, which may happen while the call still reads its arguments.
  const int ndim = array->ndim;
  auto* shape = loans->arena->Take<int64_t>(int64_t{2} * ndim);
  int64_t* strides = shape + ndim;
  for (int d = 0; d < ndim; ++d) {
    shape[d] = array->shape[d];
    if (__builtin_expect((array->strides[d] & (item - 1)) && shape[d] > 1, 0))
      return RefuseStrides(loans, ndim, array->strides, item);
    strides[d] = array->strides[d] >> shift;
  }
  *tensor = {array->data, 1, 0, ndim, type.code, type.bits, 1, shape, strides, 0};
  return Way::kPlain;
}

// NumPy refuses to resize an array to which something refers weakly, whatever refcheck says.
void Hold(Loans* loans, const Source*, PyObject* object) {
  for (;;) {
    PyObject* owner = reinterpret_cast<Array*>(object)->owner;
    if (!owner || !PyType_IsSubtype(Py_TYPE(owner), array_type)) break;
    object = owner;
  }
  if (!loans->Keep(PyWeakref_NewRef(object, nullptr))) PyErr_Clear();
}

}  // namespace

bool ImportNumpy(std::string* why) {
  if (new_array.load(std::memory_order_acquire)) return true;
  const Ref numpy(PyImport_ImportModule("numpy"));
  if (numpy) return InitNumpy(why);
  PyErr_Clear();
  *why =
      "would be a NumPy array, and NumPy is not installed; install it or pass the result as an "
      "argument";
  return false;
}

int32_t AllocateArray(Loans* loans, AnyopTensor* tensor, PyObject** object) {
  if (tensor->device_type != 1) {
    loans->why = "must be given: NumPy has no memory on " + DeviceName(tensor->device_type);
    return kAnyopValueError;
  }
  if (!ImportNumpy(&loans->why)) return kAnyopTypeError;
  const int dtype = AnyopDtypeOf(tensor);
  const int number = TypeNumber({tensor->dtype_code, tensor->dtype_bits});
  if (number <= 0 && dtype != kAnyopBool) {
    loans->why = std::string("would be a NumPy array of ") + DtypeName(dtype) +
                 ", which needs the package ml_dtypes: pip install ml_dtypes";
    return kAnyopTypeError;
  }
  *object = new_array.load(std::memory_order_acquire)(array_type, tensor->ndim, tensor->shape,
                                                      number, nullptr, nullptr, 0, 0, nullptr);
  if (!*object) return kAnyopPending;
  auto* array = reinterpret_cast<Array*>(*object);
  tensor->data = array->data;
  tensor->shape = array->shape;
  return kAnyopOk;
}

PyObject* NewArrayOver(const AnyopTensor& tensor, PyObject* owner, bool writeable,
                       std::string* why) {
  constexpr int kMaxDims = 64;  // NumPy's own limit since 2.0
  if (tensor.ndim > kMaxDims) {
    *why = "has more than 64 dimensions, which NumPy does not take";
    return nullptr;
  }
  const int number = TypeNumber({tensor.dtype_code, tensor.dtype_bits});
  if (number < 0 || (number == 0 && tensor.dtype_code != 6)) {
    *why = number < 0 ? "has a dtype that NumPy has not"
                      : "has a dtype for which NumPy needs the package ml_dtypes: pip install "
                        "ml_dtypes";
    return nullptr;
  }
  int64_t strides[kMaxDims];
  for (int d = 0; d < tensor.ndim; ++d) strides[d] = tensor.strides[d] * (tensor.dtype_bits / 8);
  void* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  PyObject* array = new_array.load(std::memory_order_acquire)(
      array_type, tensor.ndim, tensor.shape, number, tensor.data ? strides : nullptr,
      tensor.data ? data : nullptr, 0, writeable ? kWriteable : 0, nullptr);
  if (!array || !tensor.data) return array;  // without memory there is nothing to keep
  Py_INCREF(owner);
  if (!set_base(array, owner)) return array;
  Py_DECREF(array);
  return nullptr;
}

const Framework numpy_framework = [] {
  Framework f;
  f.name = "numpy";
  f.find = Find;
  f.view = View;
  f.hold = Hold;
  f.allocate = AllocateArray;
  f.is_read_only = [](PyObject* array) {
    return !(reinterpret_cast<Array*>(array)->flags & kWriteable);
  };
  return f;
}();

const Listed listed(&numpy_framework);

}  // namespace anyop
