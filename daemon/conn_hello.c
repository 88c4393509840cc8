/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn_hello.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/conn_identity.h"
#include "daemon/conn_session.h"
#include "proto/plain_text.h"

/* Returns why the client is not served; status RDT_OK: it is. *hello_p is NULL if the message could not be read. */
static struct rdt_error check_hello(struct conn *conn, const struct frame *frame, struct arena *arena,
                                    const Rdt__Pb__Hello **hello_p)
{
    ProtobufCMessage *message = NULL;
    const Rdt__Pb__Hello *hello;
    struct rdt_error err = {0};

    if (conn->greeting.refusal && conn->greeting.refusal->status != RDT_LIMIT)
        return *conn->greeting.refusal;
    if (frame->type != RDT_MSG_HELLO)
        (void)rdt_error_set(&err, RDT_PROTOCOL, "the first message must be HELLO");
    if (err.status == RDT_OK)
        (void)arena_unpack(arena, &rdt__pb__hello__descriptor, frame->payload, frame->length, "HELLO", &message, &err);
    hello = (const Rdt__Pb__Hello *)message;
    if (err.status == RDT_OK && (hello->protocol_min > RDT_PROTOCOL_MAX || hello->protocol_max < RDT_PROTOCOL_MIN))
        (void)rdt_error_set(&err, RDT_PROTOCOL,
                            "the library speaks protocols %u to %u, this daemon %u to %u: install the same version of both",
                            hello->protocol_min, hello->protocol_max, RDT_PROTOCOL_MIN, RDT_PROTOCOL_MAX);
    if (err.status == RDT_OK && conn->rpc->intake.draining)
        (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    *hello_p = hello;
    return err;
}

/* Returns the waiting session that the client resumes. NULL: the client begins a new one, or err says why it may not resume
 * the session. */
static struct conn *find_session(struct conn *conn, const Rdt__Pb__Hello *hello, struct rdt_error *err)
{
    struct conn *session =
        conn_session_find(conn->conns, hello->session_token.data, hello->session_token.len, &conn->client.account->owner);

    if (session && session->sock >= 0) {
        (void)rdt_error_set(err, RDT_BUSY, "session %llu is in use: a token is for one connection at a time",
                            (unsigned long long)session->client.id);
        return NULL;
    }
    if (session && frame_reader_bytes(&conn->reader) > 0) {
        (void)rdt_error_set(err, RDT_PROTOCOL, "nothing may follow a HELLO with a session_token before its answer");
        return NULL;
    }
    if (session && conn_session_move(session, conn, err) != RDT_OK)
        return NULL;
    return session;
}

/* An older library takes what one frame carries. */
static void note_most_fds(struct client *client, const Rdt__Pb__Hello *hello)
{
    uint32_t most = hello->answer_fds < RDT_MAX_ANSWER_FDS ? hello->answer_fds : RDT_MAX_ANSWER_FDS;

    client->transfers.most_fds = (uint16_t)(most > RDT_MAX_FRAME_FDS ? most : RDT_MAX_FRAME_FDS);
}

static void begin_session(struct conn *conn, const Rdt__Pb__Hello *hello)
{
    struct client *client = &conn->client;

    (void)snprintf(client->name, sizeof client->name, "%s", hello->client_name);
    text_clean(client->name, strlen(client->name));
    client->tensor_runs = hello->tensor_runs;
    note_most_fds(client, hello);
    conn_serve(conn);
    event(&conn->rpc->events, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, "connected", client);
    log_trace("client %llu (%s, pid %d, uid %u) connects", (unsigned long long)client->id, client->name, (int)client->pid,
              client->account->owner.uid);
}

static void welcome(struct conn *conn, uint64_t request_id, const uint8_t *token, bool resumed)
{
    struct rpc *rpc = conn->rpc;
    struct client *client = &conn->client;
    Rdt__Pb__HelloReply reply = RDT__PB__HELLO_REPLY__INIT;

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
    reply.busy_poll_ns = rpc->options->busy_poll_ns;
    reply.loans = rpc->regions->caches.max_bytes > 0 && client->cache.regions;
    reply.immutable_loans = reply.detached_loans = reply.loans;
    reply.growing_parts = true;
    reply.hands_out = true;
    reply.resumed = resumed;
    if (token) {
        reply.session_token = (ProtobufCBinaryData){SESSION_TOKEN_BYTES, (uint8_t *)token};
        reply.restart_grace_ns = (int64_t)rpc->options->restart_grace_ns;
    }
    client->conn.send(client, RDT_MSG_HELLO, FRAME_REPLY, request_id, &reply.base, NULL, 0);
}

void conn_hello(struct conn *conn, struct frame *frame)
{
    const Rdt__Pb__Hello *hello = NULL;
    struct conn *session = NULL;
    uint8_t token[SESSION_TOKEN_BYTES];
    struct rdt_error err;
    struct arena arena;

    frame_close_fds(frame);
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    err = check_hello(conn, frame, &arena, &hello);
    if (err.status == RDT_OK && hello->session_token.len > 0)
        session = find_session(conn, hello, &err);
    if (err.status == RDT_OK && !session && conn->greeting.refusal)
        err = *conn->greeting.refusal; /* a limit; a session that is resumed already counts */
    if (err.status != RDT_OK) {
        conn_refuse(conn, frame, &err);
    } else if (session) {
        log_debug("client %llu (%s, pid %d) goes on with its session", (unsigned long long)session->client.id,
                  session->client.name, (int)session->client.pid);
        event(&conn->rpc->events, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, "resumed", &session->client);
        note_most_fds(&session->client, hello);
        welcome(session, frame->request_id, hello->session_token.data, true);
        conn_close(conn, "its socket serves an earlier session");
    } else {
        begin_session(conn, hello);
        welcome(conn, frame->request_id, conn_session_begin(conn, token) ? token : NULL, false);
    }
    arena_fini(&arena);
}
