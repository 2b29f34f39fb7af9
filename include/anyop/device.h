/* SPDX-License-Identifier: Apache-2.0 */
/* What a kind of device does for the core and for bindings: memory, copies, streams, events,
 errors. C ABI, no other
 * header.

   A vendor fills one AnyopDevice and registers it. Functions that return int32_t return an
 AnyopStatus; the text of a failure is last_error() of the same thread. No function throws, none but
 those named synchronize, copy and free waits for the device, and each may be called from any
 thread. A stream or event is the device's own handle (CUDA: cudaStream_t, cudaEvent_t); NULL is the
 default stream. */
#ifndef ANYOP_DEVICE_H_
#define ANYOP_DEVICE_H_

#include "anyop/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised only when an old core could not use a new device; fields are appended without that. */
#define ANYOP_DEVICE_ABI_VERSION 1u

/* What enter changed, for leave. */
typedef struct AnyopDeviceScope {
  void* previous;
  int32_t changed; /* 0: nothing was, and leave need not be called */
  int32_t reserved;
} AnyopDeviceScope;
ANYOP_STATIC_ASSERT(sizeof(AnyopDeviceScope) == 16);

/* Versions as the vendor counts them (CUDA: 13000 is 13.0); 0: not there, or not known. */
typedef struct AnyopDeviceVersions {
  uint32_t size; /* set by the caller */
  int32_t driver;
  int32_t runtime;
  int32_t minimum_driver; /* the runtime works with no older one */
} AnyopDeviceVersions;
ANYOP_STATIC_ASSERT(sizeof(AnyopDeviceVersions) == 16);

typedef enum AnyopCopyKind {
  kAnyopHostToDevice = 1,
  kAnyopDeviceToHost = 2,
  kAnyopDeviceToDevice = 3,
} AnyopCopyKind;

/* Append-only. The core reads no field beyond size, and takes no device without those up to
   last_error. Others may be NULL: what needs them then fails by name. */
typedef struct AnyopDevice {
  uint32_t size;
  uint32_t abi_version; /* ANYOP_DEVICE_ABI_VERSION where it was compiled */
  const char* name;     /* "cuda" */
  int32_t device_type;  /* DLDeviceType of its tensors */
  int32_t reserved;

  /* Makes a device current to this thread, without effect on others and without making a context on
     the one that was current; leave undoes it. Cheap when it is current already. */
  int32_t (*enter)(int32_t device, AnyopDeviceScope* scope);
  int32_t (*leave)(const AnyopDeviceScope* scope);
  const char* (*last_error)(void); /* never NULL */

  int32_t (*versions)(AnyopDeviceVersions* versions);
  int32_t (*count)(int32_t* count); /* 0 without an error when there is no device */
  int32_t (*get_current)(int32_t* device);
  int32_t (*set_current)(int32_t device);

  /* Memory of a device, at least 64-byte aligned. 0 bytes give NULL, and NULL is freed without
     effect. */
  int32_t (*allocate)(int32_t device, int64_t bytes, void** memory);
  int32_t (*free)(int32_t device, void* memory);
  /* In the order of a stream: usable by work behind it; may be captured into a graph. */
  int32_t (*allocate_on)(int32_t device, void* stream, int64_t bytes, void** memory);
  int32_t (*free_on)(int32_t device, void* stream, void* memory);

  /* Copies; kind is an AnyopCopyKind. copy waits until it is done. */
  int32_t (*copy)(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind);
  int32_t (*copy_on)(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
                     int32_t kind);

  /* New streams do not wait for the default stream. */
  int32_t (*create_stream)(int32_t device, void** stream);
  int32_t (*destroy_stream)(int32_t device, void* stream);
  int32_t (*synchronize_stream)(int32_t device, void* stream);
  int32_t (*synchronize_device)(int32_t device);

  int32_t (*create_event)(int32_t device, void** event);
  int32_t (*destroy_event)(int32_t device, void* event);
  int32_t (*record_event)(int32_t device, void* event, void* stream);
  int32_t (*wait_event)(int32_t device, void* stream,
                        void* event); /* the stream waits, no thread */
  int32_t (*synchronize_event)(int32_t device, void* event);
  int32_t (*elapsed_ms)(int32_t device, void* begin, void* end, float* milliseconds);
} AnyopDevice;
ANYOP_STATIC_ASSERT(offsetof(AnyopDevice, enter) == 24 && offsetof(AnyopDevice, last_error) == 40);
ANYOP_STATIC_ASSERT(offsetof(AnyopDevice, elapsed_ms) == 200 && sizeof(AnyopDevice) == 208);

/* Adds a kind of device, for the life of the process; the struct must live as long. One device_type
   has one device: the same struct again is no error, another one is. */
__attribute__((visibility("default"))) int32_t AnyopRegisterDevice(const AnyopDevice* device);

/* The device of a DLDeviceType, NULL when none is registered. Calls nothing of the vendor's. */
__attribute__((visibility("default"))) const AnyopDevice* AnyopFindDevice(int32_t device_type);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ANYOP_DEVICE_H_ */
