/* SPDX-License-Identifier: Apache-2.0 */
/* Who makes images of Triton kernels that are not there: AnyopCall::context of their kernels. */
#ifndef ANYOP_FORMS_IMAGE_MAKER_H_
#define ANYOP_FORMS_IMAGE_MAKER_H_

#include <stddef.h>
#include <stdint.h>

typedef struct AnyopImageMaker {
  uint32_t size;
  /* Writes the path of the file for a kind of call (anyop/forms/triton_image.h), or why there is
     none. 0: a path. */
  int32_t (*make)(const struct AnyopImageMaker* maker, const char* kind, char* text, size_t bytes);
} AnyopImageMaker;

#endif /* ANYOP_FORMS_IMAGE_MAKER_H_ */
