/* SPDX-License-Identifier: Apache-2.0 */
/* Prints size and place of every public struct and field, and every enumerator; tests/abi/layout.txt is what it said. */
#include <stdio.h>

#include "anyop/anyop.h"
#include "anyop/aten_call.h"
#include "anyop/aten_route.h"
#include "anyop/device.h"
#include "anyop/device_below.h"
#include "anyop/device_memory.h"

#define STRUCT(type) printf("%s: %zu bytes\n", #type, sizeof(type))
#define FIELD(type, field) \
  printf("  %s.%s at %zu, %zu bytes\n", #type, #field, offsetof(type, field), sizeof(((type*)0)->field))
#define VALUE(name) printf("%s = %d\n", #name, (int)(name))

int main(void) {
#include "layout_items.h"
  return 0;
}
