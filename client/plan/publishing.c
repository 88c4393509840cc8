/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_publishing: packs tensors into memory of the daemon, and publishes each piece of it when it is full.
 *
 *     rdt_publishing_begin   PUBLISH_PART, its part grows            ─┐
 *     rdt_publishing_add     PUT, PUBLISH_PART of each full piece     ├ all wait for the version, and fail with it
 *     rdt_publishing_end     PUBLISH_PART, that was all              ─┘
 *
 * A tensor of at least a quarter of a piece is a piece by itself, so that little of the memory of a piece stays empty. Pieces
 * begin with FIRST_BYTES, so that a small version takes little memory, and grow with the version, because each costs an object,
 * a region and a request, and a version has only so many. Their sizes follow from the tensors' alone: a version with the same
 * tensors as the one before the last uses its memory again (loans.h), of which the daemon keeps 256 regions.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/call.h"
#include "client/options.h"
#include "client/put.h"
#include "client/rdt_plan.h"
#include "client/repeat.h"
#include "client/request.h"
#include "client/session/clock.h"
#include "client/session/interrupt.h"
#include "client/shards.h"
#include "client/tensor.h"
#include "proto/boxes.h"
#include "proto/grow.h"
#include "proto/state_table.h"
#include "proto/wire_limits.h"
#include "rdt.pb-c.h"

#define FIRST_BYTES (UINT64_C(1) << 20)
#define MIDDLE_BYTES \
    (UINT64_C(64) << 20)                /* pieces grow up to this with an eighth of the version, and from 4 GiB on by a 64th */
#define MOST_GROWTH 8u                  /* a piece takes at most so many times the bytes of those before it */
#define COPY_BYTES (UINT64_C(64) << 20) /* what is copied between two looks at the clock */
#define MAX_BOX_BYTES ((size_t)1 << 20) /* of a piece: each tensor of a million tiny ones takes more there than its bytes */

struct added { /* a tensor in the memory of a piece */
    struct rdt_shard shard;
    uint32_t dtype, ndim;
    uint64_t offset;
    int64_t dims[]; /* [3][ndim]: shape, global shape, start; behind them the key */
};

struct packing { /* a piece that is not full */
    struct put_room room;
    uint64_t used;
    struct added **tensors; /* [n] */
    size_t n, allocated;
    uint32_t n_dims;
    size_t box_bytes; /* of the metadata, about */
};

struct piece {
    struct rdt_ref ref;
    rdt_request *request;
};

/*   rdt_publishing_begin ---> PUBLISHING --- rdt_publishing_end succeeds -----> PUBLISHED
 *                                   `-------- rdt_publishing_give_up ---------> GIVEN_UP
 *
 * One that has failed (why) is PUBLISHING until it is given up or destroyed. */
enum publishing_state { PUBLISHING, PUBLISHED, GIVEN_UP };

/* Every allowed move. */
static const struct sm_state states[] = {
    [PUBLISHING] = {"publishing", 1u << PUBLISHED | 1u << GIVEN_UP},
    [PUBLISHED] = {"published", 0},
    [GIVEN_UP] = {"given up", 0},
};

struct rdt_publishing {
    rdt *conn;
    struct rdt_ref name;
    struct rdt_publishing_options options;
    uint64_t step, publisher, version;
    uint32_t rank, of;
    enum publishing_state state;
    struct rdt_error why; /* status not OK: no later call succeeds */
    rdt_request *lease;   /* what rdt_publishing_begin has sent; NULL: it is complete, or was given up */
    rdt_request *closing; /* what rdt_publishing_end has sent; NULL: nothing yet */
    struct piece *pieces; /* [n_pieces] */
    size_t n_pieces, room;
    size_t n_let_go; /* pieces that are the version's alone */
    struct packing packing;
    uint64_t bytes;
    size_t n_tensors;
    char **left; /* [n_left] */
    size_t n_left, room_left;
};

static void move(rdt_publishing *publishing, enum publishing_state to)
{
    sm_check(states, GIVEN_UP + 1, publishing->state, to, NULL, NULL);
    publishing->state = to;
}

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the tensors of a version");
}

/* ---- failing ---- */

static void fill_message(const struct rdt_publishing *publishing, Rdt__Pb__PublishPart *message_p)
{
    rdt__pb__publish_part__init(message_p);
    message_p->step = publishing->step;
    message_p->rank = publishing->rank;
    message_p->growing = publishing->of;
    message_p->publisher = publishing->publisher;
    message_p->visibility = (Rdt__Pb__Visibility)publishing->options.visibility;
}

/* Whether the name's daemon may not know that the version cannot become complete. */
static bool daemon_may_wait(const struct rdt_publishing *publishing)
{
    switch (publishing->lease ? rdt_request_status(publishing->lease, NULL) : RDT_AGAIN) {
    case RDT_AGAIN:
    case RDT_RESTARTED:
    case RDT_PEER_LOST:
    case RDT_SHUTTING_DOWN:
    case RDT_OWNER_DIED: /* perhaps because it ended itself: then the next one does not know who has been told */
        return true;
    default:
        return false; /* it has said so itself */
    }
}

static enum rdt_status tell_others(struct rdt_publishing *publishing, const char *sentence, struct rdt_error *err)
{
    Rdt__Pb__PublishPart message;

    fill_message(publishing, &message);
    return request_give_up_part(publishing->conn, &publishing->name, &message, RDT_OWNER_DIED, sentence, err);
}

/* Notes that the version has failed, and tells the other ranks, which may begin the step later. */
static enum rdt_status fail(struct rdt_publishing *publishing, const struct rdt_error *why, struct rdt_error *err)
{
    if (publishing->why.status == RDT_OK) {
        publishing->why = *why;
        if (daemon_may_wait(publishing))
            (void)tell_others(publishing, why->msg, NULL); /* a lost connection has the same effect */
    }
    if (err)
        *err = publishing->why;
    return publishing->why.status;
}

/* ---- beginning ---- */

static enum rdt_status begin(struct rdt_publishing *publishing, struct rdt_error *err)
{
    Rdt__Pb__PublishPart message;

    fill_message(publishing, &message);
    return request_publish_part(publishing->conn, &publishing->name, &message, RDT_FOREVER, &publishing->lease, err);
}

enum rdt_status rdt_publishing_begin(rdt *conn, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                     const struct rdt_publishing_options *options, rdt_publishing **publishing_p,
                                     struct rdt_error *err)
{
    struct rdt_publishing_options own;
    struct rdt_publishing *publishing;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_check_out(publishing_p, "publishing_p", err);
    if (status == RDT_OK)
        status = options_check_ref(name, err);
    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK && (unsigned)own.visibility > RDT_VISIBLE_TO_ALL)
        status = rdt_error_set(err, RDT_INVALID, "visibility %d is unknown", (int)own.visibility);
    if (status == RDT_OK && (of == 0 || rank >= of))
        status = rdt_error_set(err, RDT_INVALID, "rank %u of %u: a version has at least one part, with ranks from 0", rank, of);
    if (status == RDT_OK && !(conn->can.abilities & CONNECTION_GROWS_PARTS))
        status = rdt_error_set(err, RDT_UNSUPPORTED,
                               "rdtd %s does not know versions that are published tensor by tensor: update it, or publish the "
                               "version whole",
                               conn->node.daemon_version);
    if (status != RDT_OK)
        return status;
    publishing = calloc(1, sizeof *publishing);
    if (!publishing)
        return no_memory(err);
    *publishing = (struct rdt_publishing){.conn = conn, .name = *name, .options = own, .step = step, .rank = rank, .of = of};
    if (getrandom(&publishing->publisher, sizeof publishing->publisher, GRND_NONBLOCK) != (ssize_t)sizeof publishing->publisher)
        publishing->publisher = (uint64_t)clock_now_ns() ^ (uint64_t)conn->pid << 40;
    publishing->publisher |= 1; /* 0 is none */
    status = begin(publishing, err);
    if (status == RDT_OK)
        *publishing_p = publishing;
    else
        free(publishing);
    return status;
}

static enum rdt_status send_piece(struct rdt_publishing *publishing, size_t i, struct rdt_error *err)
{
    struct piece *piece = &publishing->pieces[i];
    Rdt__Pb__PublishPart message;
    Rdt__Pb__Ref wire;
    enum rdt_status status = call_wire_ref(publishing->conn, &piece->ref, &wire, err);

    if (status != RDT_OK)
        return status;
    fill_message(publishing, &message);
    message.piece = (uint32_t)i + 1;
    message.object = &wire;
    return request_publish_part(publishing->conn, &publishing->name, &message, RDT_FOREVER, &piece->request, err);
}

static void end_requests(struct rdt_publishing *publishing)
{
    rdt_request_destroy(publishing->closing);
    rdt_request_destroy(publishing->lease);
    publishing->closing = publishing->lease = NULL;
    for (size_t i = 0; i < publishing->n_pieces; i++) {
        rdt_request_destroy(publishing->pieces[i].request);
        publishing->pieces[i].request = NULL;
    }
}

/* The daemon has restarted, and the version was lost. The pieces are still there, and this session has them: the only rank
 * publishes them again. Of several, some would learn it in other ways or not at all, and have failed: all begin the step again.
 * RESTARTED */
static enum rdt_status begin_again(struct rdt_publishing *publishing, struct rdt_error *err)
{
    enum rdt_status status;

    if (publishing->of > 1)
        return rdt_error_set(err, RDT_RESTARTED,
                             "the daemon of this node restarted before step %llu of \"%s\" was complete: let all ranks publish "
                             "it again",
                             (unsigned long long)publishing->step, publishing->name.id);
    end_requests(publishing);
    publishing->publisher += 2; /* the earlier requests do not belong to it */
    status = begin(publishing, err);
    for (size_t i = 0; i < publishing->n_pieces && status == RDT_OK; i++)
        status = send_piece(publishing, i, err);
    return status;
}

/* Whether the version can still become complete. Reads what the daemon has said about it. */
static enum rdt_status check(struct rdt_publishing *publishing, struct rdt_error *err)
{
    struct rdt_error why = {0};
    enum rdt_status status;
    rdt *conn;

    if (!publishing)
        return rdt_error_set(err, RDT_INVALID, "publishing is NULL");
    conn = publishing->conn;
    status = connection_check(conn, err);
    if (status != RDT_OK)
        return status;
    if (publishing->state == PUBLISHED)
        return rdt_error_set(err, RDT_INVALID, "step %llu of \"%s\" is complete already: begin the next one",
                             (unsigned long long)publishing->step, publishing->name.id);
    if (publishing->state == GIVEN_UP)
        return rdt_error_set(err, RDT_INVALID, "step %llu of \"%s\" was given up: begin another one",
                             (unsigned long long)publishing->step, publishing->name.id);
    if (publishing->why.status != RDT_OK)
        return fail(publishing, &publishing->why, err);
    connection_lock(conn);
    if (!conn->waiters.polling)
        connection_poll(conn);
    connection_unlock(conn);
    status = rdt_request_status(publishing->lease, &why);
    if (status == RDT_RESTARTED)
        status = begin_again(publishing, &why) == RDT_OK ? RDT_AGAIN : why.status;
    return status == RDT_AGAIN ? RDT_OK : fail(publishing, &why, err);
}

/* ---- pieces ---- */

static void packing_fini(struct rdt_publishing *publishing, struct packing *packing)
{
    for (size_t i = 0; i < packing->n; i++)
        free(packing->tensors[i]);
    free(packing->tensors);
    if (packing->room.addr)
        put_room_drop(publishing->conn, &packing->room);
    *packing = (struct packing){0};
}

/* However many tensors come, this rank must not have more pieces than its share of those of a version: a sixteenth of the
 * share fills pieces of the first size, the next sixteenth those of twice the size, and so on. */
static uint64_t next_piece_bytes(const struct rdt_publishing *publishing)
{
    uint64_t bytes = FIRST_BYTES, n = publishing->n_pieces;
    uint64_t share = publishing->of < RDT_MAX_VERSION_PIECES ? RDT_MAX_VERSION_PIECES / publishing->of : 1;

    while (bytes < MIDDLE_BYTES ? bytes * 16 <= publishing->bytes : bytes * 128 <= publishing->bytes)
        bytes *= 2;
    for (uint64_t used = share; used <= n * 16 && bytes < publishing->bytes * MOST_GROWTH; used += share)
        bytes *= 2;
    return bytes;
}

/* Puts the tensors of the packing. */
static enum rdt_status put(struct rdt_publishing *publishing, struct packing *packing, struct rdt_ref *ref_p,
                           struct rdt_error *err)
{
    struct layout *layout = layout_create((uint32_t)packing->n, packing->n_dims);
    struct rdt_shard *shards = calloc(packing->n + 1, sizeof *shards);
    const struct rdt_put_options options = {.struct_size = sizeof options,
                                            .visibility = publishing->options.visibility,
                                            .timeout_ns = publishing->options.timeout_ns,
                                            .shards = shards};
    uint32_t at = 0;
    enum rdt_status status = layout && shards ? RDT_OK : no_memory(err);

    for (uint32_t i = 0; i < packing->n && status == RDT_OK; i++) {
        const struct added *tensor = packing->tensors[i];

        layout->dtype[i] = tensor->dtype;
        layout->ndim[i] = tensor->ndim;
        layout->first_dim[i] = at;
        layout->region[i] = 0;
        layout->offset[i] = tensor->offset;
        for (uint32_t d = 0; d < tensor->ndim; d++)
            layout->shape[at++] = (uint64_t)tensor->dims[d];
        layout_set_row_major(layout, i);
        shards[i] = tensor->shard;
    }
    if (status == RDT_OK)
        status = put_room_put(publishing->conn, &packing->room, layout, &options, ref_p, err);
    free(layout);
    free(shards);
    return status;
}

/* Publishes the object as the next piece. Takes the ref. */
static enum rdt_status add_piece(struct rdt_publishing *publishing, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct piece *pieces = array_grow(publishing->pieces, publishing->n_pieces, &publishing->room, sizeof *pieces);
    enum rdt_status status;

    if (!pieces) {
        (void)rdt_drop(publishing->conn, ref, NULL);
        return no_memory(err);
    }
    publishing->pieces = pieces;
    pieces[publishing->n_pieces] = (struct piece){.ref = *ref};
    status = send_piece(publishing, publishing->n_pieces, err);
    if (status == RDT_OK)
        publishing->n_pieces++;
    else
        (void)rdt_drop(publishing->conn, ref, NULL);
    return status;
}

/* Makes the packing a piece. An error ends the version, because the tensors are no longer anywhere else. */
static enum rdt_status flush(struct rdt_publishing *publishing, struct packing *packing, struct rdt_error *err)
{
    struct rdt_error why = {0};
    struct rdt_ref ref;
    enum rdt_status status = put(publishing, packing, &ref, &why);

    if (status == RDT_OK)
        status = add_piece(publishing, &ref, &why);
    packing_fini(publishing, packing);
    return status == RDT_OK ? RDT_OK : fail(publishing, &why, err);
}

/* ---- adding ---- */

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

static enum rdt_status copy(const struct layout *layout, const void *data, uint8_t *to, uint64_t bytes, struct rdt_error *err)
{
    for (uint64_t from = 0; from < bytes; from += COPY_BYTES) {
        uint64_t part = bytes - from < COPY_BYTES ? bytes - from : COPY_BYTES;

        if (interrupt_ask())
            return rdt_error_set(err, RDT_CANCELLED, "the call was interrupted while the tensor was copied");
        layout_gather(layout, 0, data, from, part, to + from);
    }
    return RDT_OK;
}

static struct added *added_new(const struct layout *layout, const struct rdt_shard *shard, uint64_t offset)
{
    size_t ndim = layout->ndim[0], bytes = ndim * sizeof(int64_t), key_bytes = strlen(shard->key) + 1;
    struct added *added = malloc(sizeof *added + 3 * bytes + key_bytes);
    char *key;

    if (!added)
        return NULL;
    key = (char *)(added->dims + 3 * ndim);
    memcpy(key, shard->key, key_bytes);
    *added = (struct added){.dtype = layout->dtype[0], .ndim = (uint32_t)ndim, .offset = offset};
    added->shard = (struct rdt_shard){key, added->dims + ndim, added->dims + 2 * ndim};
    memcpy(added->dims, layout->shape, bytes);
    memcpy(added->dims + ndim, shard->global_shape ? (const void *)shard->global_shape : layout->shape, bytes);
    if (shard->start)
        memcpy(added->dims + 2 * ndim, shard->start, bytes);
    else
        memset(added->dims + 2 * ndim, 0, bytes);
    return added;
}

/* Copies the tensor into the packing, which has room for it. */
static enum rdt_status pack(struct packing *packing, const struct layout *layout, const struct rdt_shard *shard,
                            struct rdt_error *err)
{
    uint64_t offset = align_up(packing->used), bytes = layout_bytes(layout, 0);
    struct added **tensors = array_grow(packing->tensors, packing->n, &packing->allocated, sizeof *tensors), *added;
    struct layout from = *layout;
    uint64_t none = 0;
    enum rdt_status status;

    packing->tensors = tensors ? tensors : packing->tensors;
    added = tensors ? added_new(layout, shard, offset) : NULL;
    if (!added)
        return no_memory(err);
    from.offset = &none; /* of the layout they are addresses */
    status = copy(&from, (const void *)(uintptr_t)layout->offset[0], packing->room.addr + offset, bytes, err);
    if (status != RDT_OK) {
        free(added);
        return status;
    }
    packing->tensors[packing->n++] = added;
    packing->n_dims += layout->ndim[0];
    packing->used = offset + bytes;
    return RDT_OK;
}

/* Checks the tensor and its box. *layout_p is the caller's to free. */
static enum rdt_status read_tensor(const struct rdt_publishing *publishing, const struct rdt_tensor *tensor,
                                   const struct rdt_shard *shard, struct layout **layout_p, size_t *box_bytes_p,
                                   struct rdt_error *err)
{
    const struct rdt_put_options options = {.shards = shard};
    struct shards_packed packed = {0};
    const struct mapping *mapping;
    uint64_t lo, hi;
    enum rdt_status status = tensor_layout(tensor, 1, layout_p, err);

    if (status != RDT_OK)
        return status;
    status = shards_pack(&options, *layout_p, &packed, err);
    *box_bytes_p = packed.box_bytes;
    shards_packed_fini(&packed);
    if (status == RDT_OK && layout_elems(*layout_p, 0) > 0)
        status = layout_extent(*layout_p, 0, &lo, &hi, err);
    else
        lo = hi = 0;
    connection_lock(publishing->conn);
    mapping = status == RDT_OK && hi > lo ? memory_at(&publishing->conn->memory, lo, hi) : NULL;
    if (mapping && mapping->mapper)
        status = rdt_error_set(err, RDT_INVALID, "tensor 0: it lies on a device: copy it to host memory first");
    connection_unlock(publishing->conn);
    return status;
}

/* Takes memory for a piece. */
static enum rdt_status take_room(struct rdt_publishing *publishing, struct packing *packing, uint64_t bytes,
                                 struct rdt_error *err)
{
    if (packing->room.addr)
        return RDT_OK;
    return put_room_take(publishing->conn, publishing->options.visibility, bytes, publishing->options.timeout_ns,
                         &packing->room, err);
}

static enum rdt_status add_alone(struct rdt_publishing *publishing, const struct layout *layout, const struct rdt_shard *shard,
                                 struct rdt_error *err)
{
    struct packing packing = {0};
    enum rdt_status status = take_room(publishing, &packing, layout_bytes(layout, 0), err);

    if (status == RDT_OK)
        status = pack(&packing, layout, shard, err);
    if (status == RDT_OK)
        return flush(publishing, &packing, err);
    packing_fini(publishing, &packing);
    return status;
}

static enum rdt_status add_packed(struct rdt_publishing *publishing, const struct layout *layout, const struct rdt_shard *shard,
                                  size_t box_bytes, struct rdt_error *err)
{
    struct packing *packing = &publishing->packing;
    bool full = packing->room.addr && (align_up(packing->used) + layout_bytes(layout, 0) > packing->room.bytes ||
                                       packing->box_bytes + box_bytes > MAX_BOX_BYTES);
    enum rdt_status status = full && packing->n > 0 ? flush(publishing, packing, err) : RDT_OK;

    if (full && packing->n == 0) /* its first tensor could not be copied, and pieces have grown since */
        packing_fini(publishing, packing);
    if (status == RDT_OK)
        status = take_room(publishing, packing, next_piece_bytes(publishing), err);
    if (status == RDT_OK)
        status = pack(packing, layout, shard, err);
    packing->box_bytes += status == RDT_OK ? box_bytes : 0;
    return status;
}

/* Lets the sentence name the tensor by its key instead of its number. */
static void name_tensor(const char *key, struct rdt_error *err)
{
    static const char number[] = "tensor 0: ";

    if (err && strncmp(err->msg, number, sizeof number - 1) == 0)
        memmove(err->msg, err->msg + sizeof number - 1, strlen(err->msg + sizeof number - 1) + 1);
    rdt_error_prefix(err, "tensor \"%s\"", key);
}

enum rdt_status rdt_publishing_add(rdt_publishing *publishing, const struct rdt_tensor *tensor, const struct rdt_shard *shard,
                                   struct rdt_error *err)
{
    struct layout *layout = NULL;
    size_t box_bytes;
    uint64_t bytes;
    enum rdt_status status = check(publishing, err);

    if (status != RDT_OK)
        return status;
    if (!tensor || !shard || !shard->key)
        return rdt_error_set(err, RDT_INVALID, "a tensor of a version needs a key");
    status = read_tensor(publishing, tensor, shard, &layout, &box_bytes, err);
    if (status == RDT_OK) {
        bytes = layout_bytes(layout, 0);
        if (bytes >= next_piece_bytes(publishing) / 4)
            status = add_alone(publishing, layout, shard, err);
        else
            status = add_packed(publishing, layout, shard, box_bytes, err);
        publishing->bytes += status == RDT_OK ? bytes : 0;
        publishing->n_tensors += status == RDT_OK;
    }
    free(layout);
    if (status != RDT_OK && publishing->why.status == RDT_OK)
        name_tensor(shard->key, err);
    return status;
}

enum rdt_status rdt_publishing_leave(rdt_publishing *publishing, const char *key, struct rdt_error *err)
{
    char **left;
    enum rdt_status status = check(publishing, err);

    if (status != RDT_OK)
        return status;
    if (!key || key[0] == '\0' || strnlen(key, RDT_MAX_KEY_BYTES + 1) > RDT_MAX_KEY_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the key is empty or longer than %u bytes", RDT_MAX_KEY_BYTES);
    left = array_grow(publishing->left, publishing->n_left, &publishing->room_left, sizeof *left);
    publishing->left = left ? left : publishing->left;
    if (!left || !(left[publishing->n_left] = strdup(key)))
        return no_memory(err);
    publishing->n_left++;
    return RDT_OK;
}

void rdt_publishing_info(const rdt_publishing *publishing, struct rdt_publishing_info *info_p)
{
    *info_p = (struct rdt_publishing_info){.step = publishing->step,
                                           .version = publishing->version,
                                           .tensors = publishing->n_tensors,
                                           .pieces = publishing->n_pieces + publishing->n_let_go,
                                           .bytes = publishing->bytes};
}

/* ---- the end ---- */

/* Ends the requests, and drops the holds on the pieces, which the version has by now, or nobody needs. */
static void let_go(struct rdt_publishing *publishing)
{
    rdt *conn = publishing->conn;

    rdt_cork(conn);
    end_requests(publishing);
    for (size_t i = 0; i < publishing->n_pieces; i++)
        (void)rdt_drop(conn, &publishing->pieces[i].ref, NULL);
    publishing->n_let_go = publishing->state == PUBLISHED ? publishing->n_pieces : 0;
    publishing->n_pieces = 0;
    rdt_uncork(conn);
    packing_fini(publishing, &publishing->packing);
}

/* A rank without tensors has one piece, which is empty. */
static enum rdt_status put_nothing(struct rdt_publishing *publishing, struct rdt_error *err)
{
    const struct rdt_put_options options = {
        .struct_size = sizeof options, .visibility = publishing->options.visibility, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref ref;
    enum rdt_status status;

    if (publishing->of == 1)
        return rdt_error_set(err, RDT_INVALID, "step %llu of \"%s\" cannot be published: no tensor was added",
                             (unsigned long long)publishing->step, publishing->name.id);
    status = rdt_put(publishing->conn, NULL, 0, &options, &ref, err);
    return status == RDT_OK ? add_piece(publishing, &ref, err) : status;
}

static enum rdt_status close_part(struct rdt_publishing *publishing, int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__PublishPart message;

    fill_message(publishing, &message);
    message.pieces = (uint32_t)publishing->n_pieces;
    message.others = publishing->left;
    message.n_others = publishing->n_left;
    return request_publish_part(publishing->conn, &publishing->name, &message, timeout_ns, &publishing->closing, err);
}

/* Waits for the answers to all requests, which are the same unless one was refused by itself. */
static enum rdt_status wait_for_all(struct rdt_publishing *publishing, struct rdt_error *err)
{
    size_t n = 0;
    rdt_request **requests = malloc((publishing->n_pieces + 2) * sizeof *requests);
    struct rdt_error closing;
    enum rdt_status status;

    if (!requests)
        return no_memory(err);
    for (size_t i = 0; i < publishing->n_pieces; i++)
        requests[n++] = publishing->pieces[i].request;
    requests[n++] = publishing->closing;
    requests[n++] = publishing->lease;
    status = rdt_wait(publishing->conn, requests, n, RDT_WAIT_ALL, RDT_FOREVER, NULL, NULL, err);
    free(requests);
    if (status == RDT_OWNER_DIED && /* perhaps this one: at its deadline, the answers to the others come first */
        rdt_wait(publishing->conn, &publishing->closing, 1, 1, CLOCK_NO_WAIT_NS, NULL, NULL, &closing) == RDT_TIMED_OUT &&
        rdt_request_status(publishing->closing, NULL) == RDT_TIMED_OUT) {
        status = RDT_TIMED_OUT;
        if (err)
            *err = closing;
    }
    return status;
}

/* After the end of a daemon: whether the version had become complete, although the answers were lost. RESTARTED: it had not.
 * Other errors: nobody could say. */
static enum rdt_status find_version(struct rdt_publishing *publishing, struct rdt_error *err)
{
    rdt_request *request = NULL;
    Rdt__Pb__PublishPart message;
    Rdt__Pb__Ref wire;
    enum rdt_status status = call_wire_ref(publishing->conn, &publishing->pieces[0].ref, &wire, err);

    fill_message(publishing, &message);
    repeat_ask_for_version(&message);
    message.piece = 1;
    message.object = &wire;
    if (status == RDT_OK)
        status = request_publish_part(publishing->conn, &publishing->name, &message, REPEAT_ASK_NS, &request, err);
    if (status == RDT_OK)
        status = rdt_wait(publishing->conn, &request, 1, 1, RDT_FOREVER, NULL, NULL, err);
    if (status == RDT_OK)
        status = rdt_part_version(request, &publishing->version, err);
    rdt_request_destroy(request);
    return status;
}

/* Says that all pieces are there, and waits for the version. RESTARTED: the daemon has ended meanwhile, and there is none. */
static enum rdt_status try_end(struct rdt_publishing *publishing, int64_t deadline_ns, struct rdt_error *err)
{
    int64_t left_ns = clock_remaining_ns(deadline_ns);
    enum rdt_status status = close_part(publishing, left_ns < 0 ? RDT_FOREVER : left_ns, err);

    if (status == RDT_OK)
        status = wait_for_all(publishing, err);
    if (status == RDT_OK)
        status = rdt_part_version(publishing->lease, &publishing->version, err);
    return status == RDT_RESTARTED ? find_version(publishing, err) : status;
}

enum rdt_status rdt_publishing_end(rdt_publishing *publishing, int64_t timeout_ns, uint64_t *version_p, struct rdt_error *err)
{
    int64_t deadline_ns = clock_deadline_ns(timeout_ns);
    struct rdt_error why = {0};
    enum rdt_status status = check(publishing, err);

    if (status == RDT_OK && publishing->packing.n > 0)
        status = flush(publishing, &publishing->packing, err);
    if (status == RDT_OK && publishing->n_pieces == 0)
        status = put_nothing(publishing, err);
    if (status != RDT_OK)
        return status;
    status = try_end(publishing, deadline_ns, &why);
    while (status == RDT_RESTARTED && begin_again(publishing, &why) == RDT_OK)
        status = try_end(publishing, deadline_ns, &why);
    if (status != RDT_OK)
        return fail(publishing, &why, err);
    move(publishing, PUBLISHED);
    if (version_p)
        *version_p = publishing->version;
    let_go(publishing);
    return RDT_OK;
}

enum rdt_status rdt_publishing_give_up(rdt_publishing *publishing, const char *sentence, struct rdt_error *err)
{
    struct rdt_error why = {0};
    enum rdt_status status = check(publishing, &why);

    if (status == RDT_OK) {
        status = tell_others(publishing, sentence, &why);
    } else if (publishing && publishing->state == PUBLISHING && status != RDT_FORKED) {
        status = RDT_OK; /* it has failed already, and the others know */
    }
    if (status != RDT_OK && err)
        *err = why;
    if (status != RDT_OK)
        return status;
    let_go(publishing);
    move(publishing, GIVEN_UP);
    return RDT_OK;
}

void rdt_publishing_destroy(rdt_publishing *publishing)
{
    if (!publishing)
        return;
    if (publishing->state == PUBLISHING && !connection_is_forked(publishing->conn)) {
        (void)rdt_publishing_give_up(publishing, "its publisher gave it up", NULL);
        if (publishing->state == PUBLISHING)
            let_go(publishing);
    }
    for (size_t i = 0; i < publishing->packing.n; i++) /* of a forked child */
        free(publishing->packing.tensors[i]);
    free(publishing->packing.tensors);
    for (size_t i = 0; i < publishing->n_left; i++)
        free(publishing->left[i]);
    free(publishing->left);
    free(publishing->pieces);
    free(publishing);
}
