/* SPDX-License-Identifier: Apache-2.0 */
/* The places of fields and values, as one version of the headers declares them. frozen.c and live.c include one version
 * each. */
#ifndef TESTS_ABI_LAYOUT_H
#define TESTS_ABI_LAYOUT_H

#include <stddef.h>

enum thing_kind { THING_FIELD, THING_END, THING_VALUE };

struct thing {
    enum thing_kind kind;
    const char *name;
    long offset; /* the offset of a field, the size of a struct, or the value of a constant */
    size_t bytes;
};

extern const struct thing frozen_things[], live_things[];
extern const size_t n_frozen_things, n_live_things;

#define FIELD(type, member) \
    {THING_FIELD, #type "." #member, (long)offsetof(struct type, member), sizeof((struct type *)0)->member},
#define END(type) {THING_END, #type, (long)sizeof(struct type), 0},
#define VALUE(constant) {THING_VALUE, #constant, (long)(constant), 0},

#endif
