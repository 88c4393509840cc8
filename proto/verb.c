/* SPDX-License-Identifier: Apache-2.0 */
/* The table of requests, expanded from proto/messages.h. */
#include "proto/verb.h"

#include <stddef.h>
#include <strings.h>

#include "proto/messages.h"
#include "rdt.pb-c.h"

static const struct verb verbs[] = {
#define X(number, NAME, request, reply, properties, unmet) \
    [number] = {number, #NAME, &rdt__pb__##request##__descriptor, &rdt__pb__##reply##__descriptor, properties, unmet},
    RDT_MESSAGE_MAP(X)
#undef X
};

const struct verb *verb_find(unsigned type)
{
    return type < sizeof verbs / sizeof verbs[0] && verbs[type].name ? &verbs[type] : NULL;
}

const struct verb *verb_named(const char *name, unsigned properties)
{
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (verbs[i].properties & properties && strcasecmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}
