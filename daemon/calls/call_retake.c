/* SPDX-License-Identifier: Apache-2.0 */
/* Takes again the holds of restored sessions on objects of other nodes, which those nodes keep for hold_grace. A node that
 * does not answer is asked again until restart_grace has passed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/calls/call.h"
#include "daemon/persist/recovery.h"

#define BATCH 256u /* holds asked for in one turn of the loop */
#define LOST_LINES_NS UINT64_C(1000000000)
#define PAUSE_NS 50000000ll /* before the next ones, if no node could be asked */

/* A node from which holds of an earlier daemon are taken again. It keeps them until there are no more to take. */
struct retaking {
    uint8_t node[16];
    size_t n_left;
};

static void count(struct rpc *rpc, struct far_record *record)
{
    struct retaking *retaking = map_get(&rpc->retakes.nodes, record->node, sizeof record->node);

    if (!retaking) {
        retaking = calloc(1, sizeof *retaking);
        if (retaking)
            memcpy(retaking->node, record->node, sizeof retaking->node);
        if (!retaking || !map_put(&rpc->retakes.nodes, retaking->node, sizeof retaking->node, retaking)) {
            free(retaking); /* the node is told too early, and the hold may be lost */
            return;
        }
    }
    retaking->n_left++;
    record->taker = rpc;
}

static void count_down(struct rpc *rpc, const struct far_record *record)
{
    struct retaking *retaking = map_get(&rpc->retakes.nodes, record->node, sizeof record->node);
    struct peer *peer = rpc->peers ? peers_known(rpc->peers, record->node) : NULL;

    if (!retaking || --retaking->n_left > 0)
        return;
    (void)map_remove(&rpc->retakes.nodes, retaking->node, sizeof retaking->node);
    free(retaking);
    if (peer && peer->state == PEER_UP)
        holds_settled(rpc->holds, peer);
}

/* The client has ended its hold, or the hold is taken or lost. */
static void forget(void *far)
{
    struct far_record *record = far;

    list_remove(&record->link);
    if (record->taker)
        count_down(record->taker, record);
    free(record);
}

static struct far_record *record_of(const struct client *client, uint64_t request_id)
{
    const struct remote_hold *hold = remote_hold_find(client, request_id);

    return hold && hold->far && hold->release_far == forget ? hold->far : NULL;
}

/* Thousands of holds may depend on a node that does not come back. */
static void lose(struct rpc *rpc, struct client *client, uint64_t request_id, const struct rdt_error *why)
{
    char who[256];

    (void)snprintf(who, sizeof who,
                   "client %llu (%s): its hold %llu on an object of another node could not be taken again after the restart",
                   (unsigned long long)client->id, client->name, (unsigned long long)request_id);
    log_warn_rarely(&rpc->retakes.lost, who, why->msg);
    remote_hold_lose(remote_hold_find(client, request_id), why);
}

/* Returns whether a node was asked. */
static bool ask(struct rpc *rpc, struct far_record *record)
{
    Rdt__Pb__Ref *wire = rdt__pb__ref__unpack(NULL, record->ref_bytes, record->ref);
    struct call *call = wire ? call_create(rpc, record->client, NULL, RDT_MSG_HOLD, 0) : NULL;
    Rdt__Pb__Hold message = RDT__PB__HOLD__INIT;
    uint64_t now_ns = uv_hrtime();
    struct rdt_error err = {0};
    bool asked = false;
    struct rdt_ref ref;

    if (!call)
        list_append(&rpc->retakes.holds, &record->link);
    if (call) {
        call->hold.retakes = record->request_id;
        message.ref = wire;
        message.timeout_ns = rpc->retakes.until_ns > now_ns ? (int64_t)(rpc->retakes.until_ns - now_ns) : 1;
        asked = call_object_ref(wire, &ref, &err) == RDT_OK &&
                call_forward(call, &ref, &message.base, message.timeout_ns, &err) == RDT_OK;
        if (!asked)
            call_fail(call, &err);
    }
    if (wire)
        rdt__pb__ref__free_unpacked(wire, NULL);
    return asked;
}

static void schedule(struct rpc *rpc, int64_t ns)
{
    if (!rpc->intake.draining && !list_empty(&rpc->retakes.holds))
        (void)deadline_set(rpc->deadlines, &rpc->retakes.deadline, ns);
}

static void on_turn(struct deadline *deadline)
{
    struct rpc *rpc = container_of(deadline, struct rpc, retakes.deadline);
    unsigned n_asked = 0;
    struct list waiting;

    list_init(&waiting);
    list_splice(&waiting, &rpc->retakes.holds);
    for (unsigned i = 0; i < BATCH && !list_empty(&waiting); i++) {
        struct far_record *record = container_of(list_first(&waiting), struct far_record, link);
        list_remove(&record->link);
        n_asked += ask(rpc, record);
    }
    list_splice(&waiting, &rpc->retakes.holds); /* those that failed are asked last */
    list_splice(&rpc->retakes.holds, &waiting);
    schedule(rpc, n_asked > 0 ? 0 : PAUSE_NS);
}

static void on_peer_up(struct rpc *rpc, struct peer *peer)
{
    schedule(rpc, 0);
    if (rpc->recovery->journal && !map_get(&rpc->retakes.nodes, peer->uuid, sizeof peer->uuid))
        holds_settled(rpc->holds, peer);
}

static bool on_answer(struct call *call)
{
    struct far_record *record = record_of(call->client, call->hold.retakes);

    if (!record)
        return false;
    forget(record);
    remote_hold_find(call->client, call->hold.retakes)->far = NULL;
    return true;
}

static bool may_still_succeed(enum rdt_status status)
{
    return status == RDT_PEER_LOST || status == RDT_TIMED_OUT || status == RDT_SHUTTING_DOWN || status == RDT_AGAIN ||
           status == RDT_DISCONNECTED || status == RDT_LIMIT || status == RDT_NO_MEMORY;
}

static void on_failure(struct call *call, const struct rdt_error *err)
{
    struct far_record *record = record_of(call->client, call->hold.retakes);
    struct rpc *rpc = call->rpc;

    if (!record || call->client->conn.gone)
        return;
    if (!may_still_succeed(err->status) || uv_hrtime() >= rpc->retakes.until_ns) {
        lose(rpc, call->client, call->hold.retakes, err);
        return;
    }
    list_append(&rpc->retakes.holds, &record->link);
    if (rpc->retakes.deadline.index == 0)
        schedule(rpc, PAUSE_NS);
}

static const struct retake_events events = {on_peer_up, on_answer, on_failure};

void retakes_start(struct rpc *rpc)
{
    struct list *records = &rpc->recovery->far_holds;

    rpc->retakes.events = &events;
    rpc->retakes.deadline.on_passed = on_turn;
    rpc->retakes.lost.every_ns = LOST_LINES_NS;
    rpc->retakes.until_ns = uv_hrtime() + rpc->options->restart_grace_ns;
    while (rpc->recovery->journal && !list_empty(records)) {
        struct far_record *record = container_of(list_first(records), struct far_record, link);
        struct remote_hold *hold = remote_hold_find(record->client, record->request_id);
        list_remove(&record->link);
        hold->release_far = forget;
        count(rpc, record);
        list_append(&rpc->retakes.holds, &record->link);
    }
    schedule(rpc, 0);
}

void retakes_clear(struct rpc *rpc)
{
    struct retaking *retaking;
    size_t cursor = 0;

    while ((retaking = map_next(&rpc->retakes.nodes, &cursor)))
        free(retaking);
    map_fini(&rpc->retakes.nodes);
}
