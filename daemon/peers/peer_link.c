/* SPDX-License-Identifier: Apache-2.0 */
/* One connection to another node: its states, frames and pings. peer_wire.c moves the bytes through TCP
 * and TLS.
 *
 * It refuses anything before TLS is up, a first frame that is not a hello, frames of the rooms above
 * before both ends have agreed on the connection, and more than QUEUE_MAX_BYTES that the other end does
 * not read, or has not begun to read in peer_timeout. When all links together have queued more than they may, the one with
 * most is refused. It logs nothing: on_end says why. */
#include "daemon/peers/peer_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/peers/peer_wire.h"
#include "proto/plain_text.h"

#define QUEUE_MAX_BYTES ((size_t)64 << 20)
#define CLOCK_OLD_NS UINT64_C(60000000000)
#define SMALL_MESSAGE_BYTES ((size_t)64 << 10) /* for a decoded ping or goodbye */
#define LATE_NS UINT64_C(100000000)            /* when a timer is later than this, the loop itself was delayed */

static const struct sm_state states[] = {
    [LINK_CONNECTING] = {"connecting", 1u << LINK_SECURING | 1u << LINK_ENDED},
    [LINK_SECURING] = {"securing", 1u << LINK_MEETING | 1u << LINK_ENDED},
    [LINK_MEETING] = {"meeting", 1u << LINK_UP | 1u << LINK_ENDED},
    [LINK_UP] = {"up", 1u << LINK_ENDED},
    [LINK_ENDED] = {"ended", 0},
};

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* ---- its end ---- */

static void handle_gone(struct peer_link *link)
{
    if (--link->n_handles)
        return;
    list_remove(&link->sending.queue);
    link->config->queues->bytes -= link->sending.queued_bytes;
    link->config->events->on_freed(link->config->arg);
    peer_wire_fini(link);
    frame_reader_fini(&link->receiving.reader);
    frame_writer_fini(&link->writer);
    arena_fini(&link->meeting.arena);
    free(link);
}

static void on_handle_closed(uv_handle_t *handle)
{
    handle_gone(handle->data);
}

static void close_handles(struct peer_link *link)
{
    list_remove(&link->young);
    peer_wire_close(link);
    uv_close((uv_handle_t *)&link->timer, on_handle_closed);
    uv_close((uv_handle_t *)&link->turn, on_handle_closed);
}

static void end(struct peer_link *link, const struct rdt_error *why)
{
    if (peer_link_state(link) == LINK_ENDED)
        return;
    close_handles(link);
    sm_move(&link->sm, LINK_ENDED);
    link->config->events->on_end(link, why);
}

/* Best effort: what the socket does not accept at once is lost. */
static void say_goodbye(struct peer_link *link, const char *reason)
{
    Rdt__Pb__Goodbye goodbye = RDT__PB__GOODBYE__INIT;

    if (peer_link_state(link) != LINK_MEETING && peer_link_state(link) != LINK_UP)
        return;
    goodbye.reason = (char *)reason;
    if (peer_link_send(link, RDT_PEER_GOODBYE, &goodbye.base, NULL) == RDT_OK)
        peer_wire_push_out(link);
}

void peer_link_close(struct peer_link *link, const char *reason)
{
    if (peer_link_state(link) == LINK_ENDED)
        return;
    if (reason)
        say_goodbye(link, reason);
    close_handles(link);
    sm_move(&link->sm, LINK_ENDED);
}

/* ---- time ---- */

static void arm(struct peer_link *link, uint64_t due_ns, uv_timer_cb on_timer)
{
    uint64_t now = uv_hrtime();
    uint64_t wait_ns = due_ns > now ? due_ns - now : 0;

    link->timer_due_ns = due_ns;
    /* libuv counts from the start of the iteration, which may be long ago. */
    uv_update_time(link->config->loop);
    uv_timer_start(&link->timer, on_timer, wait_ns / 1000000 + 1, 0);
}

static void on_deadline(uv_timer_t *timer)
{
    static const char *const missing[] = {
        [LINK_CONNECTING] = "no connection to",
        [LINK_SECURING] = "no TLS handshake with",
        [LINK_MEETING] = "no hello or no answer to ours from",
    };
    struct peer_link *link = timer->data;
    struct rdt_error why;

    rdt_error_set(&why, RDT_PEER_LOST, "%s %s within %.1f s", missing[peer_link_state(link)], link->remote,
                  seconds(link->config->connect_timeout_ns));
    peer_wire_fail(link, &why);
}

static void send_ping(struct peer_link *link, uint64_t now)
{
    Rdt__Pb__LinkPing ping = RDT__PB__LINK_PING__INIT;

    ping.sequence = ++link->ping.sequence;
    link->ping.sent_ns = now;
    link->ping.next_ns = now + link->config->ping_interval_ns;
    /* if memory or room is short, the next ping serves as well */
    (void)peer_link_send(link, RDT_PEER_PING, &ping.base, NULL);
}

void peer_link_probe(struct peer_link *link)
{
    send_ping(link, uv_hrtime());
    link->ping.asked = link->ping.sequence;
}

/* Whether the socket has accepted anything within peer_timeout. A node that pings and never reads would otherwise keep its
 * queue here for ever. */
static bool accepts_bytes(struct peer_link *link, uint64_t now)
{
    size_t unsent = link->sending.busy ? uv_stream_get_write_queue_size((uv_stream_t *)&link->tcp) : 0;

    if (unsent == 0 || unsent != link->sending.unsent_bytes || now > link->timer_due_ns + LATE_NS) {
        link->sending.unsent_bytes = unsent;
        link->sending.unsent_since_ns = now;
    }
    return now - link->sending.unsent_since_ns < link->config->peer_timeout_ns;
}

static void on_tick(uv_timer_t *timer)
{
    struct peer_link *link = timer->data;
    uint64_t now = uv_hrtime(), silence_due;

    /* While this process was stopped or busy it read nothing, so the silence is not the peer's. Bytes of
     * the peer may be waiting. */
    if (now > link->timer_due_ns + LATE_NS) {
        link->last_byte_ns += now - link->timer_due_ns;
        if (link->last_byte_ns > now)
            link->last_byte_ns = now;
    }
    silence_due = link->last_byte_ns + link->config->peer_timeout_ns;
    if (now >= silence_due) {
        struct rdt_error why;

        peer_wire_no_answer(link, &why);
        end(link, &why);
        return;
    }
    if (!accepts_bytes(link, now)) {
        struct rdt_error why;
        char who[128];

        peer_wire_describe(link, who);
        rdt_error_set(&why, RDT_PEER_LOST, "%s does not read: it has taken none of the %zu bytes that wait for it in %.1f s",
                      who, peer_link_queued_bytes(link), seconds(link->config->peer_timeout_ns));
        end(link, &why);
        return;
    }
    if (now >= link->ping.next_ns)
        send_ping(link, now);
    arm(link, link->ping.next_ns < silence_due ? link->ping.next_ns : silence_due, on_tick);
}

void peer_link_up(struct peer_link *link)
{
    uint64_t now = uv_hrtime();

    sm_move(&link->sm, LINK_UP);
    link->last_byte_ns = now;
    send_ping(link, now);
    arm(link, link->ping.next_ns, on_tick);
}

/* ---- frames ---- */

static void on_turn(uv_idle_t *turn)
{
    struct peer_link *link = turn->data;

    uv_idle_stop(turn);
    if (!link->failed)
        peer_wire_continue(link);
    if (link->failed)
        end(link, &link->failure);
    else
        peer_wire_pump(link);
}

static void does_not_read(struct peer_link *link, const char *besides)
{
    struct rdt_error why;
    char who[128];

    peer_wire_describe(link, who);
    (void)rdt_error_set(&why, RDT_LIMIT, "%s does not read: %zu bytes are waiting for it%s", who, peer_link_queued_bytes(link),
                        besides);
    peer_wire_fail(link, &why);
}

/* Ends the links with most until that many bytes fit. false: that is this link, or its queue alone is too long. */
static bool make_room(struct peer_link *link, size_t bytes)
{
    struct peer_link_queues *queues = link->config->queues;
    size_t max = QUEUE_MAX_BYTES < queues->max_bytes ? QUEUE_MAX_BYTES : queues->max_bytes;

    if (peer_link_queued_bytes(link) + bytes > max) {
        does_not_read(link, "");
        return false;
    }
    while (queues->bytes + bytes > queues->max_bytes) {
        struct peer_link *most = NULL;

        list_each (struct peer_link, one, &queues->links, sending.queue)
            if (!one->failed && (!most || one->sending.queued_bytes > most->sending.queued_bytes))
                most = one;
        if (!most)
            break;
        does_not_read(most, ", more than for any other node, and all together are more than may wait");
        if (most == link)
            return false;
        queues->bytes -= most->sending.queued_bytes; /* the link ends in the next iteration */
        most->sending.queued_bytes = 0;
        frame_writer_fini(&most->writer);
        frame_writer_init(&most->writer);
    }
    return true;
}

enum rdt_status peer_link_send(struct peer_link *link, enum rdt_peer_message type, const ProtobufCMessage *message,
                               struct rdt_error *err)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    enum rdt_status status;
    uint8_t *payload;

    if (bytes > RDT_MAX_FRAME_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the message has %zu bytes: at most %u can be sent to another node", bytes,
                             RDT_MAX_FRAME_BYTES);
    if (!make_room(link, bytes))
        return rdt_error_set(err, RDT_LIMIT, "%s", link->failure.msg);
    status = frame_writer_push(&link->writer, (uint16_t)type, 0, 0, (uint32_t)bytes, NULL, 0, &payload);
    if (status != RDT_OK) { /* the other end would wait for a message that is lost, so the link ends */
        struct rdt_error why;
        char who[128];

        peer_wire_describe(link, who);
        (void)rdt_error_set(&why, RDT_PEER_LOST, "%s: a message of %zu bytes could not be sent: %s", who, bytes,
                            rdt_status_sentence(status));
        peer_wire_fail(link, &why);
        return rdt_error_set(err, status, "%s", why.msg);
    }
    protobuf_c_message_pack(message, payload);
    peer_wire_count_queue(link);
    if (!link->sending.busy)
        peer_wire_want_turn(link);
    return RDT_OK;
}

enum rdt_status peer_link_decode(const struct frame *frame, struct arena *arena, struct peer_message *message_p,
                                 struct rdt_error *err)
{
    static const ProtobufCMessageDescriptor *const descriptors[] = {
#define X(number, NAME, message) [number] = &rdt__pb__##message##__descriptor,
        RDT_PEER_MESSAGE_MAP(X)
#undef X
    };
    const ProtobufCMessageDescriptor *descriptor =
        frame->type < sizeof descriptors / sizeof descriptors[0] ? descriptors[frame->type] : NULL;
    ProtobufCMessage *body;
    enum rdt_status status;

    if (!descriptor)
        return rdt_error_set(err, RDT_PROTOCOL, "a message of unknown type %u", frame->type);
    status = arena_unpack(arena, descriptor, frame->payload, frame->length, descriptor->short_name, &body, err);
    if (status == RDT_OK)
        *message_p = (struct peer_message){.type = (enum rdt_peer_message)frame->type, .body = body, .arena = arena};
    return status;
}

/* The answer was sent about half a round trip after the ping. Clocks drift apart, so any new estimate replaces an old one. */
static void note_clock(struct peer *peer, uint64_t sent_ns, uint64_t its_clock_ns)
{
    uint64_t now_ns = sent_ns + peer->rtt_ns;

    if (its_clock_ns == 0 ||
        (peer->clock_rtt_ns > 0 && peer->rtt_ns > peer->clock_rtt_ns && now_ns - peer->clock_ns < CLOCK_OLD_NS))
        return;
    peer->clock_offset_ns = (int64_t)(its_clock_ns - sent_ns - peer->rtt_ns / 2);
    peer->clock_rtt_ns = peer->rtt_ns + 1;
    peer->clock_ns = now_ns;
}

static enum rdt_status take_ping(struct peer_link *link, const struct frame *frame, struct rdt_error *err)
{
    struct peer_message message;
    enum rdt_status status;
    struct arena arena;
    bool answered = false;

    arena_init(&arena, SMALL_MESSAGE_BYTES);
    status = peer_link_decode(frame, &arena, &message, err);
    if (status == RDT_OK && message.type == RDT_PEER_PING) {
        Rdt__Pb__LinkPing pong = *(const Rdt__Pb__LinkPing *)message.body;
        pong.clock_ns = uv_hrtime();
        status = peer_link_send(link, RDT_PEER_PONG, &pong.base, err);
        if (link->peer && status == RDT_OK)
            link->peer->answered_ns = uv_hrtime();
    } else if (status == RDT_OK) {
        const Rdt__Pb__LinkPing *ping = message.body;
        if (link->peer && ping->sequence == link->ping.sequence) {
            link->peer->rtt_ns = uv_hrtime() - link->ping.sent_ns;
            note_clock(link->peer, link->ping.sent_ns, ping->clock_ns);
            link->peer->confirmed_ns = link->ping.sent_ns;
        }
        answered = link->ping.asked > 0 && ping->sequence >= link->ping.asked;
    }
    arena_fini(&arena);
    if (answered) {
        link->ping.asked = 0;
        link->config->events->on_answer(link);
    }
    return status;
}

static enum rdt_status take_goodbye(struct peer_link *link, const struct frame *frame, struct rdt_error *err)
{
    struct peer_message message;
    enum rdt_status status;
    struct rdt_error why;
    struct arena arena;
    char who[128], reason[160] = "";

    arena_init(&arena, SMALL_MESSAGE_BYTES);
    status = peer_link_decode(frame, &arena, &message, err);
    if (status == RDT_OK) { /* the reason appears in errors, which people read on terminals */
        (void)snprintf(reason, sizeof reason, "%s", ((const Rdt__Pb__Goodbye *)message.body)->reason);
        text_clean(reason, strlen(reason));
    }
    arena_fini(&arena);
    if (status != RDT_OK)
        return status;

    link->ended_there = true;
    peer_wire_describe(link, who);
    rdt_error_set(&why, RDT_PEER_LOST, "%s %s: %s", who,
                  peer_link_state(link) == LINK_UP ? "said goodbye" : "refuses this node", reason);
    end(link, &why);
    return RDT_OK;
}

static enum rdt_status take_hello(struct peer_link *link, const struct frame *frame, struct rdt_error *err)
{
    struct peer_message message;
    enum rdt_status status = peer_link_decode(frame, &link->meeting.arena, &message, err);

    link->meeting.hello_seen = true;
    if (status != RDT_OK)
        return status;
    link->meeting.hello = message.body;
    return link->config->events->on_hello(link, err);
}

void peer_link_forget_hello(struct peer_link *link)
{
    link->meeting.hello = NULL;
    arena_fini(&link->meeting.arena);
}

static enum rdt_status take_frame(struct peer_link *link, const struct frame *frame, struct rdt_error *err)
{
    if (frame->type == RDT_PEER_GOODBYE)
        return take_goodbye(link, frame, err);
    if (!link->meeting.hello_seen && frame->type == RDT_PEER_HELLO)
        return take_hello(link, frame, err);
    if (!link->meeting.hello_seen)
        return rdt_error_set(err, RDT_PROTOCOL, "the first message has type %u and is not a hello", frame->type);
    if (frame->type == RDT_PEER_HELLO)
        return rdt_error_set(err, RDT_PROTOCOL, "a second hello");

    if (peer_link_state(link) == LINK_MEETING) {
        if (link->meeting.accepted_ns)
            return rdt_error_set(err, RDT_PROTOCOL, "message %u arrived before this node accepted the connection", frame->type);
        link->config->events->on_confirmed(link);
        if (peer_link_state(link) == LINK_ENDED)
            return RDT_OK;
    }
    if (frame->type == RDT_PEER_PING || frame->type == RDT_PEER_PONG)
        return take_ping(link, frame, err);
    return link->config->events->on_frame(link, frame, err);
}

void peer_link_refuse(struct peer_link *link, const struct rdt_error *why)
{
    if (peer_link_state(link) == LINK_ENDED)
        return;
    if (why->status == RDT_DISCONNECTED)
        link->ended_there = true;
    else
        say_goodbye(link, why->msg);
    end(link, why);
}

/* ---- its start ---- */

static const struct peer_wire_events wire_events = {
    .on_turn = on_turn, .on_frame = take_frame, .on_refused = peer_link_refuse, .on_lost = end, .on_handle_gone = handle_gone};

/* NULL: out of memory. */
static struct peer_link *create(const struct peer_link_config *config, enum peer_link_state first)
{
    struct peer_link *link = calloc(1, sizeof *link);

    if (!link)
        return NULL;
    link->config = config;
    link->upper = &wire_events;
    list_init(&link->node);
    list_init(&link->young);
    list_init(&link->dialling.lookups);
    list_append(&config->queues->links, &link->sending.queue);
    sm_init(&link->sm, states, sizeof states / sizeof states[0], first);
    arena_init(&link->meeting.arena, RDT_MAX_DECODED_BYTES);
    frame_reader_init(&link->receiving.reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&link->writer);
    uv_timer_init(config->loop, &link->timer);
    uv_idle_init(config->loop, &link->turn);
    uv_tcp_init(config->loop, &link->tcp);
    link->timer.data = link->turn.data = link->tcp.data = link;
    link->n_handles = 3;
    arm(link, uv_hrtime() + config->connect_timeout_ns, on_deadline);
    return link;
}

enum rdt_status peer_link_dial(const struct peer_link_config *config, const char *host, uint16_t port, struct account *account,
                               struct peer_link **link_p, struct rdt_error *err)
{
    struct peer_link *link = create(config, LINK_CONNECTING);

    if (!link)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a connection to %s", host);
    snprintf(link->host, sizeof link->host, "%s", host);
    link->port = port;
    peer_wire_dial(link, account);
    *link_p = link;
    return RDT_OK;
}

void peer_link_look_up_too(struct peer_link *link, struct account *account)
{
    peer_wire_look_up_too(link, account);
}

enum rdt_status peer_link_accept(const struct peer_link_config *config, uv_stream_t *listener, struct peer_link **link_p,
                                 struct rdt_error *err)
{
    struct peer_link *link = create(config, LINK_SECURING);

    if (!link)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a connection");
    link->meeting.accepted_ns = uv_hrtime();
    peer_wire_accept(link, listener);
    *link_p = link;
    return RDT_OK;
}

size_t peer_link_queued_bytes(const struct peer_link *link)
{
    return link->writer.queued_bytes + link->sending.out_bytes;
}
