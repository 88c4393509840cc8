/* SPDX-License-Identifier: Apache-2.0 */
/* From a member of a structure to the structure. It is in proto/ because every part may include proto/. */
#ifndef RDT_CONTAINER_OF_H
#define RDT_CONTAINER_OF_H

#include <stddef.h>

/* The `type` whose `member` is at `pointer`. */
#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

#endif
