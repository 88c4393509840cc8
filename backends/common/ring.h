/* SPDX-License-Identifier: Apache-2.0 */
/* A doubly linked circular list. An element that is in no list is a ring by itself, so ring_remove may always
 * be called. */
#ifndef BACKENDS_RING_H
#define BACKENDS_RING_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/container_of.h"

struct ring {
    struct ring *next, *prev;
};

static inline void ring_init(struct ring *ring)
{
    ring->next = ring->prev = ring;
}

static inline bool ring_empty(const struct ring *ring)
{
    return ring->next == ring;
}

static inline void ring_append(struct ring *head, struct ring *element)
{
    element->next = head;
    element->prev = head->prev;
    head->prev->next = element;
    head->prev = element;
}

static inline void ring_remove(struct ring *element)
{
    element->next->prev = element->prev;
    element->prev->next = element->next;
    ring_init(element);
}

#endif
