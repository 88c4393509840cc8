/* SPDX-License-Identifier: Apache-2.0 */
/* The holds on the parts of a version. They belong to a client without a connection (version->holder), so that holds on other
 * nodes are taken and released like those of any client. */
#include <stdio.h>

#include "daemon/objects/remote_hold.h"
#include "daemon/peers/holds.h"
#include "daemon/versions/shards_impl.h"
#include "proto/frame.h"

static void set_held(struct part *part, bool held)
{
    struct version *version = part->version;

    if (part->held == held)
        return;
    part->held = held;
    version->n_held += held ? 1 : -1u;
    version->ranks[part->rank].n_held += held ? 1 : -1u;
    if (held && version->state == VERSION_FILLING)
        version_growth_add(version, part);
}

/* A version that is not complete can no longer become complete. */
static void lose_part(struct part *part, enum rdt_status status, const char *why)
{
    struct version *version = part->version;

    if (!part->held)
        return;
    set_held(part, false);
    if (version->state != VERSION_FILLING)
        return;
    (void)rdt_error_set(&version->why, status, "the part of rank %u, object \"%s\", is lost: %s", part->rank, part->ref.id,
                        why);
    /* not inside this call: the caller still uses the object or the client */
    (void)deadline_set(version->shards->deadlines, &version->settle, 0);
}

static void on_part_gone(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    lose_part(container_of(waiter, struct part, gone), RDT_FREED, "it was freed by force");
}

static void on_hold_answer(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id,
                           const ProtobufCMessage *message, const int *take_fds, unsigned n_fds)
{
    struct version *version = container_of(client, struct version, holder);
    struct part *part = request_id >= 1 && request_id <= version->n_pieces ? version->parts[request_id - 1] : NULL;

    if (type == RDT_EVENT_HOLD_LOST && part) {
        const Rdt__Pb__ErrorReply *reply = (const Rdt__Pb__ErrorReply *)message;
        lose_part(part, (enum rdt_status)reply->status, reply->message);
    }
    if (type != RDT_MSG_HOLD || !(flags & FRAME_REPLY) || client->conn.gone || !part)
        return;
    if (flags & FRAME_ERROR) {
        const Rdt__Pb__ErrorReply *reply = (const Rdt__Pb__ErrorReply *)message;
        (void)rdt_error_set(&version->why, (enum rdt_status)reply->status, "the part of rank %u cannot be held: %s", part->rank,
                            reply->message);
    } else {
        set_held(part, true);
    }
    /* not inside this call: the caller, which brings the answer, still uses the client */
    (void)deadline_set(version->shards->deadlines, &version->settle, 0);
}

static size_t no_bytes(const struct client *client)
{
    return 0;
}

static uint64_t all_received(const struct client *client)
{
    return 0;
}

static void no_turn(struct client *client) {}

void version_holder_init(struct version *version)
{
    struct client *holder = &version->holder;

    client_init(holder, 0);
    holder->account = account_ref(version->account);
    (void)snprintf(holder->name, sizeof holder->name, "step %llu of %.*s", (unsigned long long)version->step,
                   version->name->id_bytes < 32 ? version->name->id_bytes : 32, shard_name_id(version->name));
    holder->conn.send = on_hold_answer;
    holder->conn.queued_bytes = no_bytes;
    holder->conn.bytes_received = all_received;
    holder->conn.want_turn = no_turn;
}

bool version_holder_fini(struct version *version, uint64_t until_ns)
{
    const struct shards_above *above = &version->shards->above;

    if (!above->holder_gone(above->arg, &version->holder, until_ns) || !client_fini(&version->holder, until_ns))
        return false;
    account_unref(version->holder.account);
    return true;
}

enum rdt_status version_hold_part(struct version *version, struct part *part, struct object *here, struct rdt_error *err)
{
    const struct shards_above *above = &version->shards->above;
    struct remote_hold *hold;
    enum rdt_status status;

    if (here) {
        part->gone.on_event = on_part_gone;
        if (!object_wait_freed(here, &part->gone))
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to hold the part of rank %u", part->rank);
        status = remote_hold_take(&version->holder, part->number + 1, here, &hold, err);
        set_held(part, status == RDT_OK);
        return status;
    }
    return above->hold(above->arg, &version->holder, part->number + 1, &part->ref, err);
}

enum rdt_status version_retake_part(struct version *version, struct part *part, const Rdt__Pb__Ref *ref, struct rdt_error *err)
{
    struct remote_hold *hold;
    enum rdt_status status = remote_hold_take(&version->holder, part->number + 1, NULL, &hold, err);

    if (status == RDT_OK && !recovery_await_far_hold(version->shards->recovery, &version->holder, part->number + 1, ref))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    set_held(part, status == RDT_OK);
    return status;
}

enum rdt_status version_check_held(const struct version *version, struct rdt_error *err)
{
    uint64_t freed = version->holder.holds.freed; /* the others are held: otherwise version->why says so */

    return freed && freed <= version->n_pieces
               ? rdt_error_set(err, RDT_FREED, "the part of rank %u was freed", version->parts[freed - 1]->rank)
               : RDT_OK;
}

bool version_lacks(const struct version *version, uint32_t rank)
{
    const struct shard_rank *of = &version->ranks[rank];

    return !rank_is_whole(of) ||
           ((version->state == VERSION_COMPLETE || version->n_parts == version->of) && of->n_held < of->n_pieces);
}

void version_list_ranks(const struct version *version, char *text_p, size_t size)
{
    unsigned n = 0;
    size_t at = 0;

    text_p[0] = '\0';
    for (uint32_t i = 0; i < version->of; i++) {
        if (!version_lacks(version, i) || n++ >= 16)
            continue;
        at += (size_t)snprintf(text_p + at, size - at, "%s%u", at > 0 ? " " : "", i);
    }
    if (n > 16)
        (void)snprintf(text_p + at, size - at, " ... (%u in all)", n);
}
