/* SPDX-License-Identifier: Apache-2.0 */
#include "room.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "client/session/clock.h"
#include "proto/messages.h"
#include "proto/wire_limits.h"

#define RETRY_NS (INT64_C(5) * 1000000) /* until a mapper that had to wait is asked again */

struct late {         /* an answer that waits */
    struct list link; /* conn->room.answers */
    struct frame frame;
    struct connection_early
        early;                 /* the fds of an answer with more than fit into one frame; those of the frame are among them */
    struct mapping **mappings; /* [n_mappings] a reference to each that it names without an fd, so that none of them ends */
    size_t n_mappings;
    unsigned n_fds; /* of those in conn->room.n_fds */
    uint8_t payload[];
};

static unsigned fds_of(const struct frame *frame, const struct connection_early *early)
{
    return early->n > 0 ? (unsigned)early->n : frame->nfds;
}

uint32_t room_most_fds(void)
{
    struct rlimit limit;
    rlim_t most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 : 0;

    return most < RDT_MAX_ANSWER_FDS ? (uint32_t)most : RDT_MAX_ANSWER_FDS;
}

static bool is_short(const struct rdt_error *why)
{
    return why->status == RDT_SYSTEM && why->sys_errno == ENOMEM;
}

static bool can_give_up(const rdt *conn)
{
    /* An active loan may be idle by now: its REGION_BACK may lie in the socket. */
    return conn->state == CONNECTION_UP &&
           (memory_has_cached(&conn->memory) || !list_empty(&conn->loans_idle) || !list_empty(&conn->loans_active));
}

static void destroy(rdt *conn, struct late *late)
{
    conn->room.n_fds -= late->n_fds;
    for (size_t i = 0; i < late->n_mappings; i++)
        memory_unref(&conn->memory, late->mappings[i]);
    frame_close_fds(&late->frame);
    connection_close_early(&late->early);
    list_remove(&late->link);
    free(late->mappings);
    free(late);
}

void room_forget(rdt *conn)
{
    list_drain (struct late, late, &conn->room.answers, link)
        destroy(conn, late);
    list_drain (struct late, late, &conn->room.again, link)
        destroy(conn, late);
    expiry_remove(&conn->calls.expiries, &conn->room.retry);
}

/* Handles the answers again; some may wait again. */
static void handle_again(rdt *conn)
{
    list_splice(&conn->room.again, &conn->room.answers);
    list_drain (struct late, late, &conn->room.again, link) {
        list_remove(&late->link); /* if the connection is lost meanwhile, room_forget drops only the others */
        conn->calls.early = late->early;
        late->early = (struct connection_early){0};
        conn->room.n_fds -= late->n_fds;
        late->n_fds = 0;
        conn->on.event(conn, &late->frame);
        destroy(conn, late);
    }
}

void room_retry(rdt *conn)
{
    handle_again(conn);
}

/* ---- the reply ---- */

static void on_frame(rdt *conn, struct pending *pending, struct frame *frame)
{
    conn->room.asked = false;
    conn->room.made = true;
    /* An error is that of an older daemon, which does not know the request: then the answers fail. */
    handle_again(conn);
    conn->room.made = false;
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    conn->room.asked = false;
    room_forget(conn);
}

static void on_resumed(rdt *conn, struct pending *pending)
{
    on_lost(conn, pending, NULL);
}

/* ---- asking ---- */

static bool ask(rdt *conn)
{
    static const struct pending_ops ops = {on_frame, on_lost, on_resumed};
    Rdt__Pb__DropCached request = RDT__PB__DROP_CACHED__INIT;

    if (conn->room.asked)
        return true;
    conn->room.pending = (struct pending){.id = connection_id(conn), .ops = &ops};
    if (connection_send(conn, RDT_MSG_DROP_CACHED, conn->room.pending.id, &request.base, true, NULL) != RDT_OK)
        return false;
    pending_add(&conn->calls.pending, &conn->room.pending);
    return conn->room.asked = true;
}

/* The object of the answer, which could not be made, may have been the only user of a mapping, as of one that it took out of
 * the cache: such a one is retired by now. */
static void keep_mappings(rdt *conn, const Rdt__Pb__FetchDone *done, struct late *late)
{
    for (size_t i = 0; i < done->n_regions; i++) {
        const Rdt__Pb__SharedRegion *shared = done->regions[i];
        struct mapping *mapping;

        if (shared->fd_index >= 0)
            continue;
        mapping = memory_find(&conn->memory, shared->region, shared->generation, false);
        if (mapping)
            memory_ref(mapping);
        else
            mapping = memory_take_retired_again(&conn->memory, shared->region, shared->generation);
        if (mapping)
            late->mappings[late->n_mappings++] = mapping;
    }
}

static bool retry_later(rdt *conn)
{
    struct expiry *retry = &conn->room.retry;

    if (retry->place > 0)
        return true;
    if (!expiry_reserve(&conn->calls.expiries, 1))
        return false;
    retry->at_ns = clock_now_ns() + RETRY_NS;
    expiry_add(&conn->calls.expiries, retry);
    return true;
}

bool room_await(rdt *conn, const Rdt__Pb__FetchDone *done, struct frame *frame, const struct rdt_error *why)
{
    /* An answer may also lack a mapping that came with one that waits (Fetch.fds_once). */
    bool busy = why->status == RDT_AGAIN, depends = !list_empty(&conn->room.answers) && why->status == RDT_PROTOCOL;
    unsigned n_fds = fds_of(frame, &conn->calls.early);
    struct late *late;

    if (conn->room.n_fds + n_fds > room_most_fds())
        return false;
    if (done->status != RDT_OK || !(busy || (depends && (!conn->room.made || conn->room.retry.place > 0)) ||
                                    (is_short(why) && !conn->room.made && (conn->room.asked || can_give_up(conn)))))
        return false;
    late = malloc(sizeof *late + frame->length);
    if (!late)
        return false;
    late->mappings = calloc(done->n_regions + 1, sizeof(struct mapping *));
    if (!late->mappings || !(busy ? retry_later(conn) : depends || ask(conn))) {
        free(late->mappings);
        free(late);
        return false;
    }
    late->n_mappings = 0;
    late->n_fds = n_fds;
    conn->room.n_fds += n_fds;
    keep_mappings(conn, done, late);
    late->frame = *frame;
    late->frame.payload = memcpy(late->payload, frame->payload, frame->length);
    late->early = conn->calls.early;
    conn->calls.early = (struct connection_early){0};
    for (unsigned i = 0; i < frame->nfds; i++)
        late->frame.fds[i] = frame_take_fd(frame, i);
    if (late->early.n > 0)
        late->frame.nfds = 0;
    list_append(&conn->room.answers, &late->link);
    return true;
}

bool room_make(rdt *conn, int64_t deadline_ns, const struct rdt_error *why)
{
    enum rdt_status status = RDT_OK;
    bool asked;

    connection_lock(conn);
    asked = is_short(why) && (conn->room.asked || can_give_up(conn)) && ask(conn);
    while (asked && conn->room.asked && status == RDT_OK)
        status = connection_step(conn, deadline_ns);
    connection_unlock(conn);
    return asked && status == RDT_OK;
}
