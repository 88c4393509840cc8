/* SPDX-License-Identifier: Apache-2.0 */
/* TRACE: a page of the ring of transfers' stages, and the differences between the clocks of other nodes and this one's. */
#include <unistd.h>

#include "daemon/rpc/rpc_call.h"

#define EXAMINED_MAX 256u /* records for one answer, because the loop serves nobody else meanwhile */
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
    Rdt__Pb__TraceClock **clocks = arena_alloc(call->arena, CLOCKS_MAX * sizeof *clocks);

    reply->clocks = clocks;
    if (!clocks || !call->rpc->peers)
        return;
    list_each (const struct peer, peer, peers_all(call->rpc->peers), link) {
        Rdt__Pb__TraceClock *clock;
        char uuid[33];
        if (peer->clock_rtt_ns == 0 || reply->n_clocks == CLOCKS_MAX ||
            !(clock = arena_message(call->arena, &rdt__pb__trace_clock__descriptor)))
            continue;
        node_hex(peer->uuid, uuid);
        clock->node = text_of(call->arena, uuid, sizeof uuid);
        clock->offset_ns = peer->clock_offset_ns;
        clock->rtt_ns = peer->clock_rtt_ns;
        clocks[reply->n_clocks++] = clock;
    }
}

enum rdt_status rpc_trace(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Trace *message = request;
    const struct trace *trace = &call->rpc->transfers->trace;
    Rdt__Pb__TraceReply reply = RDT__PB__TRACE_REPLY__INIT;
    Rdt__Pb__TraceRecord **rows = arena_alloc(call->arena, EXAMINED_MAX * sizeof *rows);
    uint64_t at = trace_oldest(trace), last;
    char uuid[33], host[65] = "";

    if (!rows)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    at = message->after > at && message->after <= trace->n ? message->after : at;
    last = trace->n - at > EXAMINED_MAX ? at + EXAMINED_MAX : trace->n;
    reply.records = rows;
    reply.now_ns = uv_hrtime();
    for (; at < last; at++) {
        const struct trace_record *record = &trace->records[at % TRACE_RECORDS];
        if ((message->last_ns > 0 && reply.now_ns - record->at_ns > message->last_ns) || !may_see(call, record))
            continue;
        if (!(rows[reply.n_records] = row(call->arena, record)))
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
        reply.n_records++;
    }
    reply.next = last < trace->n ? last : 0;
    if (message->after == 0)
        add_clocks(call, &reply);
    node_hex(call->rpc->node->uuid, uuid);
    reply.node = uuid;
    (void)gethostname(host, sizeof host - 1);
    reply.name = call->rpc->node->address[0] ? (char *)call->rpc->node->address : host;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
