/* SPDX-License-Identifier: Apache-2.0 */
/* struct rdt_object: what a fetch brought. It owns its hold at the daemon and its references to mappings. Under the
 * connection's lock. */
#ifndef CLIENT_FETCHED_H
#define CLIENT_FETCHED_H

#include "proto/layout.h"
#include "rdt.pb-c.h"
#include "session/connection.h"
#include "targets.h"

struct rdt_object {
    struct rdt *conn;
    struct list link; /* conn->objects */
    struct rdt_object_info info;
    uint64_t hold; /* 0: nothing is held */
    size_t shared; /* how many calls of rdt_release it outlives: it was handed out so many times more */
    struct layout *layout;
    void **data; /* [layout->count] address of element [0, 0, ...] */
    struct mapping **mappings;
    uint32_t n_mappings;
    uint8_t *inline_data;
    uint8_t *metadata;
    size_t metadata_bytes;
    Rdt__Pb__Boxes *boxes;   /* NULL: the tensors are no boxes of larger ones, or slices */
    uint32_t *first_box_dim; /* with boxes: [layout->count] the index of a tensor's first dimension there */
    bool partial;            /* it has slices of the tensors, or no bytes */
    bool pickles_trusted;    /* see rdt_object_pickles_trusted */
    bool to_copy;            /* the daemon shares the object only for being copied into the targets */
    struct targets *targets; /* if not NULL, it owns layout and data */
};

enum fetched_content {
    FETCHED_TENSORS,
    FETCHED_IN_TARGETS, /* the tensors lie in direct targets, and the object is created without them */
    FETCHED_METADATA,   /* the layout without the tensors' bytes */
};

/* The fds of an answer, which came in its frame, or also in frames before it. */
struct answer_fds {
    const int *fds; /* [n] */
    size_t n;
};

/* FETCH_FDS: keeps the fds of the frame until the answer comes. Errors: PROTOCOL, NO_MEMORY. */
enum rdt_status fetched_fds_early(rdt *conn, uint64_t handle, struct frame *frame, struct rdt_error *err);

/* FETCH_DONE: *fds_p are all fds of the answer, borrowed until connection_close_early, or until the frame's fds are closed.
 * Errors: NO_MEMORY; then *fds_p are none. */
enum rdt_status fetched_fds_all(rdt *conn, uint64_t handle, struct frame *frame, struct answer_fds *fds_p,
                                struct rdt_error *err);

/* Creates the object from the daemon's event and its fds. sliced: the tensors are slices of the object's. Takes the hold on
 * success only. Errors: PROTOCOL, NO_MEMORY, SYSTEM, a mapper's. */
enum rdt_status fetched_create(rdt *conn, const Rdt__Pb__FetchDone *done, const struct answer_fds *fds,
                               enum fetched_content content, bool sliced, rdt_object **object_p, struct rdt_error *err);

/* One of the objects of an answer to LOAD_MANY, all of it borrowed. */
struct fetched_row {
    const struct rdt_ref *ref; /* by which it was fetched */
    uint64_t generation, hold;
    const struct layout *all; /* of all objects of the answer; its own are [first, first + count) */
    uint32_t first, count;
    uint32_t inline_bytes; /* 0: it lies in the mapping; NULL: it has no bytes */
    const uint8_t *inline_data;
    struct mapping *mapping;
    const uint8_t *metadata;
    uint32_t metadata_bytes;
    uint64_t transfer;
    int64_t elapsed_ns;
    bool mutable_shared, pickles_trusted;
};

/* Creates the object, which is one allocation, with a reference to the mapping. Takes the hold on success only. Errors:
 * NO_MEMORY, PROTOCOL (a tensor lies outside of its bytes). */
enum rdt_status fetched_create_row(rdt *conn, const struct fetched_row *row, rdt_object **object_p, struct rdt_error *err);

/* Maps one region of an answer, with one reference for the caller. *mapping_p is NULL for an empty region. The region's fd
 * stays in *fds. */
enum rdt_status fetched_map(rdt *conn, const Rdt__Pb__SharedRegion *shared, const struct answer_fds *fds,
                            struct mapping **mapping_p, struct rdt_error *err);

/* Makes the targets, which have the bytes now, the object's tensors, and releases the hold: with `later` by
 * connection_send_later, else at once. */
void fetched_move_to(rdt_object *object, struct targets *take_targets, bool later);

void fetched_destroy(rdt_object *object); /* object may be NULL */

/* Releases the hold that an answer brought and for which no object exists. */
void fetched_release_unseen(rdt *conn, const Rdt__Pb__FetchDone *done);

#endif
