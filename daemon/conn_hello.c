/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn_hello.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/plain_text.h"

void conn_refuse(struct conn *conn, const struct frame *frame, const struct rdt_error *err)
{
    char who[80];

    client_send_error(&conn->client, frame->type, frame->request_id, err);
    (void)snprintf(who, sizeof who, "client %llu (pid %d, uid %u)", (unsigned long long)conn->client.id, (int)conn->client.pid,
                   conn->client.account->owner.uid);
    log_warn_rarely(&conn->conns->refusals, who, err->msg);
    conn->draining = true;
    (void)deadline_set(conn->rpc->deadlines, &conn->hello, HELLO_TIMEOUT_NS); /* the client has this time to read the answer */
}

void conn_hello(struct conn *conn, struct frame *frame)
{
    struct rpc *rpc = conn->rpc;
    struct client *client = &conn->client;
    Rdt__Pb__HelloReply reply = RDT__PB__HELLO_REPLY__INIT;
    ProtobufCMessage *message = NULL;
    const Rdt__Pb__Hello *hello;
    struct rdt_error err = conn->refusal;
    struct arena arena;

    frame_close_fds(frame);
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    if (err.status == RDT_OK && frame->type != RDT_MSG_HELLO)
        (void)rdt_error_set(&err, RDT_PROTOCOL, "the first message must be HELLO");
    if (err.status == RDT_OK)
        (void)arena_unpack(&arena, &rdt__pb__hello__descriptor, frame->payload, frame->length, "HELLO", &message, &err);
    hello = (const Rdt__Pb__Hello *)message;
    if (err.status == RDT_OK && (hello->protocol_min > RDT_PROTOCOL_MAX || hello->protocol_max < RDT_PROTOCOL_MIN))
        (void)rdt_error_set(&err, RDT_PROTOCOL,
                            "the library speaks protocols %u to %u, this daemon %u to %u: install the same version of both",
                            hello->protocol_min, hello->protocol_max, RDT_PROTOCOL_MIN, RDT_PROTOCOL_MAX);
    if (err.status == RDT_OK && rpc->draining)
        (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (err.status != RDT_OK) {
        conn_refuse(conn, frame, &err);
        arena_fini(&arena);
        return;
    }
    (void)snprintf(client->name, sizeof client->name, "%s", hello->client_name);
    text_clean(client->name, strlen(client->name));
    client->tensor_runs = hello->tensor_runs;
    conn->greeted = true;
    client_start_caches(client, rpc->regions);
    deadline_unset(rpc->deadlines, &conn->hello);
    list_append(&rpc->clients, &client->link);
    rpc->n_clients++;
    event(&rpc->events, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, "connected", client);
    log_trace("client %llu (%s, pid %d, uid %u) connects", (unsigned long long)client->id, client->name, (int)client->pid,
              client->account->owner.uid);
    reply.protocol = RDT_PROTOCOL_MAX;
    reply.daemon_version = (char *)RDTD_VERSION;
    reply.node_uuid = (ProtobufCBinaryData){16, (uint8_t *)rpc->node->uuid};
    reply.boot_id = (ProtobufCBinaryData){16, (uint8_t *)rpc->node->boot_id};
    reply.node_address = (char *)rpc->node->address;
    reply.session_id = client->id;
    reply.tenant = client->account->owner.tenant;
    reply.uid = client->account->owner.uid;
    reply.max_frame_bytes = RDT_MAX_FRAME_BYTES;
    reply.max_frame_fds = RDT_MAX_FRAME_FDS;
    reply.inline_max_bytes = RDT_INLINE_MAX_BYTES;
    reply.tensor_runs = true;
    reply.sealed_max_bytes = regions_take_max(rpc->regions, rpc->options->sealed_max_bytes);
    reply.busy_poll_ns = rpc->options->busy_poll_ns;
    reply.loans = rpc->regions->cached_max_bytes > 0 && client->cache.regions;
    client->send(client, RDT_MSG_HELLO, FRAME_REPLY, frame->request_id, &reply.base, NULL, 0);
    arena_fini(&arena);
}
