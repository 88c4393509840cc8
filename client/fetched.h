/* What a fetch brought: struct rdt_object. Owns its hold at the daemon and its references to mappings. Under the
 * lock. */
#ifndef CLIENT_FETCHED_H
#define CLIENT_FETCHED_H

#include "connection.h"
#include "proto/layout.h"
#include "rdt.pb-c.h"
#include "targets.h"

struct rdt_object {
    struct rdt *conn;
    struct chain link; /* conn->objects */
    struct rdt_object_info info;
    uint64_t hold; /* 0: nothing is held */
    struct layout *layout;
    void **data; /* [layout->count] address of element [0, 0, ...] */
    struct mapping **mappings;
    uint32_t n_mappings;
    uint8_t *inline_data;
    uint8_t *metadata;
    size_t metadata_bytes;
    bool to_copy;            /* it is there to be copied into targets */
    struct targets *targets; /* NULL, or what layout and data are borrowed from */
};

/* From the daemon's event and the fds of its frame. With placed false its tensors are somewhere that the caller
 * knows (direct targets): they are left out. Takes the hold on success only. PROTOCOL, NO_MEMORY, SYSTEM. */
enum rdt_status fetched_create(rdt *conn, const Rdt__Pb__FetchDone *done, struct frame *frame, bool placed,
                               rdt_object **object_p, struct rdt_error *err);

/* One region of an answer, mapped, with a reference; NULL for an empty one, which has nothing to map. Takes its fd. */
enum rdt_status fetched_map(rdt *conn, const Rdt__Pb__SharedRegion *shared, struct frame *frame, struct mapping **mapping_p,
                            struct rdt_error *err);

/* The bytes are in the targets now: the object's tensors are these, and nothing of the daemon's is needed any more, which it
 * hears at once or later (connection_send_later). */
void fetched_move_to(rdt_object *object, struct targets *take_targets, bool later);

void fetched_destroy(rdt_object *object); /* NULL is fine */

/* Gives back what an answer brought and nobody has. */
void fetched_release_unseen(rdt *conn, const Rdt__Pb__FetchDone *done);

#endif
