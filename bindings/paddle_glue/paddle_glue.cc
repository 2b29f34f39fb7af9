// SPDX-License-Identifier: Apache-2.0
// The one file that includes Paddle's headers: built once per Paddle version at first need, or
// shipped.
#include "paddle_glue.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/memory/malloc.h"

// Of libpaddle; the headers they stand in are not installed, or would cost seconds.
struct _object;
namespace paddle::pybind {
paddle::Tensor& CastPyArg2Tensor(_object* object, long position);
_object* ToPyObject(const paddle::Tensor& value, bool none_if_empty);
}  // namespace paddle::pybind
namespace paddle::imperative {
enum class AmpLevel : int;
struct Tracer {
  bool HasGrad() const;
  AmpLevel GetAmpLevel() const;
};
const std::shared_ptr<Tracer>& GetCurrentTracer();
}  // namespace paddle::imperative

namespace {

using phi::DataType;

struct Type {
  DataType paddle;
  uint8_t code, bits;
};
constexpr Type kTypes[] = {
    {DataType::FLOAT32, 2, 32},     {DataType::BFLOAT16, 4, 16},
    {DataType::FLOAT16, 2, 16},     {DataType::FLOAT64, 2, 64},
    {DataType::INT64, 0, 64},       {DataType::INT32, 0, 32},
    {DataType::BOOL, 6, 8},         {DataType::UINT8, 1, 8},
    {DataType::INT8, 0, 8},         {DataType::INT16, 0, 16},
    {DataType::COMPLEX64, 5, 64},   {DataType::COMPLEX128, 5, 128},
    {DataType::UINT16, 1, 16},      {DataType::UINT32, 1, 32},
    {DataType::UINT64, 1, 64},      {DataType::FLOAT8_E4M3FN, 10, 8},
    {DataType::FLOAT8_E5M2, 12, 8},
};

int32_t ThreadState() {
  const auto& tracer = paddle::imperative::GetCurrentTracer();
  if (!tracer) return kAnyopPaddleElsewhere;
  return (tracer->HasGrad() ? kAnyopPaddleRecords : 0) |
         (static_cast<int>(tracer->GetAmpLevel()) ? kAnyopPaddleElsewhere : 0);
}

// Whether the allocation reaches as far as the tensor's last element.
bool StorageHolds(const phi::DenseTensor& dense, int64_t element_bytes) {
  const phi::DDim &sizes = dense.dims(), &strides = dense.strides();
  int64_t last = 0;
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return true;
    last += (sizes[i] - 1) * strides[i];
  }
  const uint64_t end = dense.meta().offset + static_cast<uint64_t>((last + 1) * element_bytes);
  return end <= dense.Holder()->size();
}

bool SetPlace(const phi::Place& place, AnyopTensor* tensor) {
  const auto type = place.GetType();
  tensor->device_id = 0;
  if (type == phi::AllocationType::CPU) {
    tensor->device_type = 1;
  } else if (type == phi::AllocationType::GPU) {
    tensor->device_type = 2;
    tensor->device_id = place.GetDeviceId();
  } else {
    return false;
  }
  return true;
}

int32_t ViewDense(const phi::DenseTensor& dense, AnyopTensor* tensor) {
  const auto& holder = dense.Holder();
  if (!holder || dense.layout() == phi::DataLayout::ONEDNN) return kAnyopPaddleNotDense;
  if (!SetPlace(holder->place(), tensor)) return kAnyopPaddleOtherPlace;
  const Type* type = kTypes;
  while (type != std::end(kTypes) && type->paddle != dense.dtype()) ++type;
  const bool known = type != std::end(kTypes);
  tensor->dtype_code = known ? type->code : 3;  // 3: opaque, which nobody takes
  tensor->dtype_bits = known ? type->bits : 8;
  tensor->dtype_lanes = 1;
  if (!StorageHolds(dense, tensor->dtype_bits / 8)) return kAnyopPaddleShortStorage;
  void* data = holder->ptr();
  tensor->data = data ? static_cast<char*>(data) + dense.meta().offset : nullptr;
  tensor->ndim = dense.dims().size();
  tensor->shape = const_cast<int64_t*>(dense.dims().Get());
  tensor->strides = const_cast<int64_t*>(dense.strides().Get());
  tensor->byte_offset = 0;
  return kAnyopPaddleViewed;
}

paddle::Tensor& TensorOf(void* object) {
  return paddle::pybind::CastPyArg2Tensor(static_cast<_object*>(object), 0);
}

int32_t View(void* object, AnyopTensor* tensor) {
  try {
    const auto& impl = TensorOf(object).impl();
    if (!impl || !phi::DenseTensor::classof(impl.get())) return kAnyopPaddleNotDense;
    return ViewDense(static_cast<const phi::DenseTensor&>(*impl), tensor);
  } catch (...) {
    return kAnyopPaddleNotDense;
  }
}

void Written(void* object) {
  try {
    TensorOf(object).bump_inplace_version();
  } catch (...) {  // it was viewed, so it is dense and has a version
  }
}

int32_t NewTensor(AnyopTensor* tensor, void** object, char* error, int64_t error_bytes) {
  const Type* type = kTypes;
  while (type != std::end(kTypes) &&
         (type->code != tensor->dtype_code || type->bits != tensor->dtype_bits))
    ++type;
  if (type == std::end(kTypes) || tensor->device_type != 1) return kAnyopNotImplemented;
  try {
    int64_t bytes = tensor->dtype_bits / 8;
    for (int32_t i = 0; i < tensor->ndim; ++i) bytes *= tensor->shape[i];
    auto holder = paddle::memory::AllocShared(phi::CPUPlace(), static_cast<size_t>(bytes));
    tensor->data = holder->ptr();
    const phi::DenseTensorMeta meta(type->paddle, phi::DDim(tensor->shape, tensor->ndim));
    const paddle::Tensor made(std::make_shared<phi::DenseTensor>(holder, meta));
    *object = paddle::pybind::ToPyObject(made, false);
    return *object ? int32_t{kAnyopOk} : int32_t{kAnyopPending};
  } catch (const std::exception& e) {
    std::snprintf(error, static_cast<size_t>(error_bytes), "%s", e.what());
  } catch (...) {
    std::snprintf(error, static_cast<size_t>(error_bytes), "Paddle could not make the result");
  }
  return kAnyopOutOfMemory;
}

const AnyopPaddleGlue glue = {
    sizeof(AnyopPaddleGlue),
    ANYOP_PADDLE_GLUE_VERSION,
    ANYOP_PADDLE_VERSION,
    ThreadState,
    View,
    Written,
    NewTensor,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const AnyopPaddleGlue* AnyopPaddleGlueEntry() {
  return &glue;
}
