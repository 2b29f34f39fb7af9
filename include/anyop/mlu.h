/* SPDX-License-Identifier: Apache-2.0 */
/* For kernels in BANG C: the queue of CNRT on which a call runs. C. */
#ifndef ANYOP_MLU_H_
#define ANYOP_MLU_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <string.h>

#include "anyop/device.h"
#include "anyop/forms/device_image.h" /* AnyopImageDevice */

/* The call's stream is a queue. CNRT's default queue is one of each thread, and so the device has a
   queue of its own for its default stream, NULL: its plugin is asked for that. NULL: the call has
   failed, and says why. */
static inline void* AnyopMluQueue(AnyopCall* call) {
  Dl_info info;
  void* (*ask)(void) = NULL;
  const AnyopDevice* device = AnyopImageDevice(call->device_type);
  if (call->stream) return call->stream;
  if (device && !strcmp(device->name, "mlu") && dladdr((const void*)device->count, &info)) {
    void* plugin = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    void* found = plugin ? dlsym(plugin, "AnyopMluDefaultQueue") : NULL;
    memcpy(&ask, &found, sizeof ask);
    if (plugin) dlclose(plugin);
  }
  void* queue = ask ? ask() : NULL;
  if (!queue) call->fail(call, kAnyopDeviceError, "the device mlu has no default queue");
  return queue;
}

#endif /* ANYOP_MLU_H_ */
