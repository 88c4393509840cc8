/* SPDX-License-Identifier: Apache-2.0 */
/* TRACE: a page of the ring of transfers' stages, and the differences between the clocks of other nodes and this one's. */
#include <unistd.h>

#include "daemon/calls/call.h"

#define PAGE_MIN 256u  /* records of an answer, if there are so many */
#define PAGE_MAX 1024u /* of them, and those of the same nanosecond as the last one */
#define CLOCKS_MAX 256u

static bool may_see(const struct call *call, const struct trace_record *record)
{
    const struct owner *owner = &call->account->owner;

    return call->admin || (record->uid == owner->uid && record->tenant == trace_tenant(owner->tenant));
}

static char *text_of(struct arena *arena, const char *text, size_t room)
{
    char *copy = arena_text(arena, text, room);

    return copy ? copy : (char *)"";
}

static Rdt__Pb__TraceRecord *row(struct arena *arena, const struct trace_record *record)
{
    Rdt__Pb__TraceRecord *out = arena_message(arena, &rdt__pb__trace_record__descriptor);

    if (!out)
        return NULL;
    out->at_ns = record->at_ns;
    out->transfer = record->transfer;
    out->node = record->node;
    out->generation = record->generation;
    out->bytes = record->bytes;
    out->stage = (char *)record->stage;
    out->direction = (char *)record->direction;
    out->path = text_of(arena, record->path, sizeof record->path);
    out->peer = text_of(arena, record->peer, sizeof record->peer);
    out->id.data = (uint8_t *)record->id;
    out->id.len = strnlen(record->id, sizeof record->id);
    return out;
}

static void add_clocks(struct call *call, Rdt__Pb__TraceReply *reply)
{
    Rdt__Pb__TraceClock **clocks = arena_alloc(call->request.arena, CLOCKS_MAX * sizeof *clocks);

    reply->clocks = clocks;
    if (!clocks || !call->rpc->peers)
        return;
    list_each (const struct peer, peer, peers_all(call->rpc->peers), link) {
        Rdt__Pb__TraceClock *clock;
        char uuid[33];
        if (peer->clock_rtt_ns == 0 || reply->n_clocks == CLOCKS_MAX ||
            !(clock = arena_message(call->request.arena, &rdt__pb__trace_clock__descriptor)))
            continue;
        node_hex(peer->uuid, uuid);
        clock->node = text_of(call->request.arena, uuid, sizeof uuid);
        clock->offset_ns = peer->clock_offset_ns;
        clock->rtt_ns = peer->clock_rtt_ns;
        clocks[reply->n_clocks++] = clock;
    }
}

enum rdt_status rpc_trace(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Trace *message = request;
    const struct trace *trace = &call->rpc->transfers->past.trace;
    Rdt__Pb__TraceReply reply = RDT__PB__TRACE_REPLY__INIT;
    Rdt__Pb__TraceRecord **rows = arena_alloc(call->request.arena, PAGE_MAX * sizeof *rows);
    char uuid[33], host[65] = "";

    if (!rows)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    reply.records = rows;
    reply.now_ns = uv_hrtime();
    /* The pages are of the caller's own records, and begin with the time of one: others' records change neither. */
    for (uint64_t at = trace_oldest(trace); at < trace->n && reply.n_records < PAGE_MAX; at++) {
        const struct trace_record *record = &trace->records[at % TRACE_RECORDS];
        if ((message->last_ns > 0 && reply.now_ns - record->at_ns > message->last_ns) || record->at_ns < message->after ||
            !may_see(call, record))
            continue;
        if (reply.n_records >= PAGE_MIN && record->at_ns > rows[reply.n_records - 1]->at_ns) {
            reply.next = record->at_ns;
            break;
        }
        if (!(rows[reply.n_records] = row(call->request.arena, record)))
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
        reply.n_records++;
    }
    if (message->after == 0)
        add_clocks(call, &reply);
    node_hex(call->rpc->node->uuid, uuid);
    reply.node = uuid;
    (void)gethostname(host, sizeof host - 1);
    reply.name = call->rpc->node->address[0] ? (char *)call->rpc->node->address : host;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
