/* SPDX-License-Identifier: Apache-2.0 */
/* What a kind of device does for the core and for bindings: memory, copies, streams, events,
   errors. C ABI, no other header.

   A vendor fills one AnyopDevice and registers it, or brings a library that exports
   AnyopDeviceEntry (docs/vendor.md). Functions that return int32_t return an AnyopStatus; the text
   of a failure is last_error() of the same thread. No function throws, none but those named
   synchronize, copy and free waits for the device, and each may be called from any thread. A stream
   or event is the device's own handle (CUDA: cudaStream_t, cudaEvent_t); NULL is the default
   stream, which is one like the others: none waits for it. `anyop device-check` holds a device to
   what is said here. */
#ifndef ANYOP_DEVICE_H_
#define ANYOP_DEVICE_H_

#include "anyop/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised only when an old core could not use a new device; fields are appended without that. */
#define ANYOP_DEVICE_ABI_VERSION 1u

#define ANYOP_DEVICE_API __attribute__((visibility("default")))

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

/* Tensors of a platform that DLPack has no name for: kDLExtDev. */
#define ANYOP_DEVICE_TYPE_EXTENSION 12

typedef enum AnyopDeviceFlag {
  kAnyopDeviceHostAccessible = 1, /* the CPU reads and writes its memory, by the same addresses */
} AnyopDeviceFlag;

typedef struct AnyopDeviceProperties {
  uint32_t size;  /* set by the caller */
  uint32_t flags; /* AnyopDeviceFlag */
  int64_t total_bytes;
  int32_t compute_units; /* CUDA: multiprocessors */
  int32_t major, minor;  /* generation of the chip; CUDA: compute capability */
  /* Priorities of streams: a smaller number is more urgent. Equal where there are none. */
  int32_t least_priority, greatest_priority;
  int32_t reserved;
  char name[128]; /* "NVIDIA H200" */
} AnyopDeviceProperties;
ANYOP_STATIC_ASSERT(offsetof(AnyopDeviceProperties, total_bytes) == 8);
ANYOP_STATIC_ASSERT(offsetof(AnyopDeviceProperties, name) == 40);
ANYOP_STATIC_ASSERT(sizeof(AnyopDeviceProperties) == 168);

typedef enum AnyopEventFlag {
  kAnyopEventNoTiming = 1, /* elapsed_ms may refuse it */
} AnyopEventFlag;

/* A file of kernels, as the device's own compiler or loader takes it. */
typedef struct AnyopDeviceImage {
  uint32_t size; /* set by the caller */
  uint32_t reserved;
  const char* name; /* of the file, for errors */
  const void* data; /* a NUL lies behind */
  int64_t bytes;
  const char* options; /* of a compiler that runs now; NULL: none */
} AnyopDeviceImage;
ANYOP_STATIC_ASSERT(sizeof(AnyopDeviceImage) == 40 && offsetof(AnyopDeviceImage, data) == 16);

/* How a kernel of an image is started. */
typedef struct AnyopDeviceLaunch {
  uint32_t size; /* set by the caller */
  uint32_t num_values;
  const void* const* values; /* the address of each argument, in the kernel's order */
  const uint32_t* bytes; /* of each; 0: an address in memory of the device's, which may be NULL */
  int64_t grid[3];       /* blocks */
  int64_t block[3];      /* threads of a block */
  int64_t shared_bytes;  /* memory of a block, asked for at the start */
} AnyopDeviceLaunch;
ANYOP_STATIC_ASSERT(sizeof(AnyopDeviceLaunch) == 80 && offsetof(AnyopDeviceLaunch, grid) == 24);

/* Append-only. The core reads no field beyond size, and takes no device without those up to
   last_error. Others may be NULL: what needs them then fails by name. A PyTorch device needs all
   but versions, copy_between_on, device_of and those of images. */
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
  /* The stream waits, no thread. The event may be one of another device of the platform. It is what
     was recorded last before this call that is waited for; without any, nothing is. */
  int32_t (*wait_event)(int32_t device, void* stream, void* event);
  int32_t (*synchronize_event)(int32_t device, void* event);
  int32_t (*elapsed_ms)(int32_t device, void* begin, void* end, float* milliseconds);

  /* What follows came with anyop 0.2. */
  int32_t (*properties)(int32_t device, AnyopDeviceProperties* properties);
  int32_t (*memory_info)(int32_t device, int64_t* free_bytes, int64_t* total_bytes);

  /* Memory of the host that copies of any device of the platform read and write while the caller
     goes on. Of other host memory, copy_on reads what it needs before it returns, and has written
     what it writes. */
  int32_t (*allocate_host)(int32_t device, int64_t bytes, void** memory);
  int32_t (*free_host)(int32_t device, void* memory);
  int32_t (*is_host)(const void* memory, int32_t* yes); /* anywhere inside such memory */
  /* Whose memory this is, anywhere inside; -1: no device's. */
  int32_t (*device_of)(const void* memory, int32_t* device);

  /* Fills bytes with the lowest byte of value. */
  int32_t (*set_on)(int32_t device, void* stream, void* memory, int32_t value, int64_t bytes);
  /* Between two devices of the platform, in the order of a stream of device. */
  int32_t (*copy_between_on)(int32_t device, void* stream, void* to, int32_t to_device,
                             const void* from, int32_t from_device, int64_t bytes);

  /* A priority beyond the properties' is taken as the nearest one there is. */
  int32_t (*create_stream_with)(int32_t device, int32_t priority, void** stream);
  int32_t (*query_stream)(int32_t device, void* stream, int32_t* done); /* all that was put in */
  /* Calls function(context) on a thread of the device's, behind what is in the stream; what comes
     behind it waits. The function may call no function of the device but last_error. */
  int32_t (*launch_host)(int32_t device, void* stream, void (*function)(void* context),
                         void* context);

  int32_t (*create_event_with)(int32_t device, uint32_t flags, void** event); /* AnyopEventFlag */
  /* Whether what was recorded last is done; yes when nothing was. */
  int32_t (*query_event)(int32_t device, void* event, int32_t* done);

  /* Kernels in images (docs/forms.md). Both handles are the device's, and stay until the process
     ends. What an image or a device lacks is kAnyopNotImplemented: no such kernel, no such type. */
  int32_t (*load_image)(int32_t device, const AnyopDeviceImage* image, void** loaded);
  int32_t (*find_kernel)(int32_t device, void* loaded, const char* entry, void** kernel);
  int32_t (*launch_kernel)(int32_t device, void* stream, void* kernel,
                           const AnyopDeviceLaunch* launch);
} AnyopDevice;
ANYOP_STATIC_ASSERT(offsetof(AnyopDevice, enter) == 24 && offsetof(AnyopDevice, last_error) == 40);
ANYOP_STATIC_ASSERT(offsetof(AnyopDevice, elapsed_ms) == 200);
ANYOP_STATIC_ASSERT(offsetof(AnyopDevice, properties) == 208);
ANYOP_STATIC_ASSERT(offsetof(AnyopDevice, load_image) == 312 && sizeof(AnyopDevice) == 336);

/* What a plugin's library exports, as AnyopDeviceEntry. abi_version is the highest that the core
   reads; a plugin that has tables of several gives the fitting one, and NULL when it has none. */
typedef const AnyopDevice* (*AnyopDeviceFunction)(uint32_t abi_version);

/* Adds a kind of device, for the life of the process; the struct must live as long. The same struct
   again is no error. A name is taken once: letters, digits, '_', '-' and '.', 63 at most. So is a
   device_type, but for ANYOP_DEVICE_TYPE_EXTENSION: of those that share it, AnyopUseDevice says
   whose the process's tensors are. "host" and, where it was built in, "cuda" are there always. */
ANYOP_DEVICE_API int32_t AnyopRegisterDevice(const AnyopDevice* device);

/* Opens a plugin and registers its device, which *device then is (NULL: not asked for). It is never
   closed; opening it again is no error. */
ANYOP_DEVICE_API int32_t AnyopLoadDevice(const char* path, const AnyopDevice** device);

/* The device of a DLDeviceType, NULL when there is none. Of ANYOP_DEVICE_TYPE_EXTENSION: the one in
   use. Calls nothing of the vendor's. */
ANYOP_DEVICE_API const AnyopDevice* AnyopFindDevice(int32_t device_type);

/* NULL when there is none; then AnyopLastError names those there are. */
ANYOP_DEVICE_API const AnyopDevice* AnyopFindDeviceByName(const char* name);

/* Tensors of its device_type are this device's from now on. Registered devices only; once and for
   all: another one of that type is refused then. */
ANYOP_DEVICE_API int32_t AnyopUseDevice(const AnyopDevice* device);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ANYOP_DEVICE_H_ */
