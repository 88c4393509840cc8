/* SPDX-License-Identifier: Apache-2.0 */
/* Deltas of tensors as both ends know them: how a delta is applied, and the note that tells other nodes of one.
 *
 * An object may carry in its metadata the note DELTA_NOTE and a packed message Delta: "my tensors are those of the object
 * `base`, changed by the deltas in the object `delta`". A node that has a replica of the base then makes its replica from
 * that and the deltas instead of receiving it (daemon/transfers/pull/pull_delta.c). Anybody may write such a note, and anything
 * into a delta, so nothing in them is trusted: who applies one compares the result with a hash that it trusts. */
#ifndef PROTO_DELTA_H
#define PROTO_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/rdt_status.h"

#define DELTA_NOTE "rdtdelt1"
#define DELTA_NOTE_BYTES 8u
#define DELTA_NOTE_MAX_BYTES 1024u /* with its message */
#define DELTA_MAGIC "rdtdelta"
#define DELTA_VERSION 1u

struct delta_header { /* rdt_delta.h describes it */
    char magic[8];
    uint32_t version, elem_bytes;
    uint64_t elems, changed, gap_bytes, hash;
};
_Static_assert(sizeof(struct delta_header) == 48, "rdt_delta.h says so");

enum { DELTA_GAP_U16 = 254, DELTA_GAP_U64 = 255 };

/* A delta that is being applied. Its bytes are borrowed. They may be changed meanwhile by whoever can write them: then the
 * result is wrong, but nothing outside the tensor and the delta is touched. */
struct delta {
    struct delta_header header;
    size_t bytes;                /* of the whole delta */
    const uint8_t *at, *gap_end; /* the gaps that have not been applied */
    const uint8_t *values;       /* of the next changed element */
    uint64_t next, done;         /* the element after the last changed one; how many were changed */
};

/* Where the values begin in a delta with so many bytes of gaps. */
uint64_t delta_values_at(uint64_t gap_bytes);

bool delta_elem_bytes_ok(size_t bytes);

/* Begins to apply the delta at the start of bytes [most], for a tensor of elems elements. INVALID: there is none, or one of
 * another tensor. */
enum rdt_status delta_open(const void *bytes, size_t most, uint64_t elems, size_t elem_bytes, struct delta *delta_p,
                           struct rdt_error *err);

/* Whether the gaps name as many elements as the header says, all of them in the tensor, before any was applied. */
bool delta_fits(const struct delta *delta);

/* Changes up to `most` elements of the target. AGAIN: there are more. INVALID: the gaps do not fit the tensor. */
enum rdt_status delta_apply_some(struct delta *delta, void *target, uint64_t most);

#endif
