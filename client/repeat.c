/* SPDX-License-Identifier: Apache-2.0 */
#include "repeat.h"

#include <stdlib.h>
#include <string.h>

#include "proto/messages.h"
#include "rdt.pb-c.h"
#include "request.h"
#include "session/clock.h"

struct repeat *repeat_create(const rdt *conn, uint16_t type, const ProtobufCMessage *message, bool always)
{
    bool wanted = conn->session.kept || always;
    size_t bytes = wanted ? protobuf_c_message_get_packed_size(message) : 0;
    struct repeat *repeat = wanted ? malloc(sizeof *repeat + bytes) : NULL;

    if (!repeat)
        return NULL;
    repeat->refs = 1;
    repeat->type = type;
    repeat->start_ns = clock_now_ns();
    repeat->bytes = bytes;
    (void)protobuf_c_message_pack(message, repeat->payload);
    return repeat;
}

void repeat_ref(struct repeat *repeat)
{
    if (repeat)
        repeat->refs++;
}

void repeat_unref(struct repeat *repeat)
{
    if (repeat && --repeat->refs == 0)
        free(repeat);
}

enum rdt_status repeat_allowed(const struct verb *verb, uint64_t sent_on, struct rdt_error *err)
{
    if (sent_on == 0 || verb->properties & VERB_REPEATABLE)
        return RDT_OK;
    return rdt_error_set(
        err, RDT_RESTARTED,
        "rdtd restarted before it answered %s, and may have carried it out: check, and repeat it if it has not", verb->name);
}

/* ---- times ---- */

/* Returns the message's member of that name; NULL: it has none. */
static int64_t *time_of(ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);

    return field && field->type == PROTOBUF_C_TYPE_SINT64 ? (int64_t *)(void *)((uint8_t *)message + field->offset) : NULL;
}

/* 0 and -1 are not time-outs, and stay. One that is over becomes the shortest one, so that the daemon answers. */
static void set_times(ProtobufCMessage *message, int64_t start_ns)
{
    int64_t *timeout_ns = time_of(message, "timeout_ns"), *age_ns = time_of(message, "age_ns");
    int64_t passed_ns = clock_now_ns() - start_ns;

    if (timeout_ns && *timeout_ns > 0)
        *timeout_ns = *timeout_ns > passed_ns ? *timeout_ns - passed_ns : 1;
    if (age_ns)
        *age_ns = passed_ns > 0 ? passed_ns : 1;
}

/* ---- sending ---- */

enum rdt_status repeat_message(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, int64_t start_ns,
                               const int *fds, unsigned n_fds, struct rdt_error *err)
{
    ProtobufCMessage *copy = malloc(message->descriptor->sizeof_message); /* a shallow one, for its times */
    enum rdt_status status;

    if (!copy)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to repeat a request");
    memcpy(copy, message, message->descriptor->sizeof_message);
    set_times(copy, start_ns);
    status = connection_send_fds(conn, type, id, copy, fds, n_fds, err);
    free(copy);
    return status;
}

static enum rdt_status unpack(const struct repeat *repeat, ProtobufCMessage **message_p, struct rdt_error *err)
{
    *message_p =
        repeat ? protobuf_c_message_unpack(verb_find(repeat->type)->request, NULL, repeat->bytes, repeat->payload) : NULL;
    if (*message_p)
        return RDT_OK;
    return rdt_error_set(err, RDT_RESTARTED, "rdtd restarted, and there was no memory to repeat the request: repeat it");
}

void repeat_ask_for_version(Rdt__Pb__PublishPart *message)
{
    message->again = true;
    message->of = message->growing = 0;
    if (message->timeout_ns < 0 || message->timeout_ns > REPEAT_ASK_NS)
        message->timeout_ns = REPEAT_ASK_NS;
}

enum rdt_status repeat_send(rdt *conn, const struct repeat *repeat, uint64_t id, bool again, struct rdt_error *err)
{
    ProtobufCMessage *message;
    enum rdt_status status = unpack(repeat, &message, err);

    if (status != RDT_OK)
        return status;
    set_times(message, repeat->start_ns);
    if (again && repeat->type == RDT_MSG_PUBLISH_PART)
        repeat_ask_for_version((Rdt__Pb__PublishPart *)message);
    status = connection_send(conn, repeat->type, id, message, false, err);
    protobuf_c_message_free_unpacked(message, NULL);
    return status;
}

/* Moves the items that are still fetched to the front of the message, and returns how many there are. Items and requests are in
 * the order of their handles. */
static size_t keep_running(rdt *conn, const struct repeat *repeat, Rdt__Pb__Fetch *fetch)
{
    struct list *link = conn->requests.next;
    size_t n = 0;

    for (size_t i = 0; i < fetch->n_items; i++) {
        Rdt__Pb__FetchItem *item = fetch->items[i];

        for (; link != &conn->requests; link = link->next) {
            rdt_request *request = container_of(link, rdt_request, link);

            if (request->repeat != repeat || request->state != REQUEST_RUNNING || request->pending.id < item->handle)
                continue;
            if (request->pending.id > item->handle)
                break;
            request->sent_on = conn->socket.n;
            fetch->items[i] = fetch->items[n];
            fetch->items[n++] = item;
            link = link->next;
            break;
        }
    }
    return n;
}

/* The message was not sent, so each of its requests finds out by itself. */
static void forget_sent(rdt *conn, const struct repeat *repeat)
{
    list_each (rdt_request, request, &conn->requests, link)
        if (request->repeat == repeat)
            request->sent_on = 0;
}

enum rdt_status repeat_fetch(rdt *conn, rdt_request *request, struct rdt_error *err)
{
    ProtobufCMessage *message;
    enum rdt_status status = unpack(request->repeat, &message, err);
    Rdt__Pb__Fetch *fetch = (Rdt__Pb__Fetch *)message;
    size_t n_items;

    if (status != RDT_OK)
        return status;
    n_items = fetch->n_items;
    fetch->n_items = keep_running(conn, request->repeat, fetch);
    fetch->fds_once = false; /* the batch that would keep the mappings has ended */
    set_times(message, request->repeat->start_ns);
    status = connection_send(conn, RDT_MSG_FETCH, 0, message, false, err);
    if (status != RDT_OK)
        forget_sent(conn, request->repeat);
    fetch->n_items = n_items; /* all of them are freed */
    protobuf_c_message_free_unpacked(message, NULL);
    return status;
}

bool repeat_uncopied(rdt *conn, rdt_request *request)
{
    ProtobufCMessage *message;
    Rdt__Pb__Fetch *fetch;
    size_t n_items, i = 0;
    enum rdt_status status;

    if (!request->repeat || unpack(request->repeat, &message, NULL) != RDT_OK)
        return false;
    fetch = (Rdt__Pb__Fetch *)message;
    n_items = fetch->n_items;
    while (fetch->items[i]->handle != request->pending.id)
        i++;
    fetch->n_items = 1;
    fetch->items += i;
    fetch->fds_once = fetch->copies_on_devices = false;
    set_times(message, request->repeat->start_ns);
    request->sent_on = repeat_socket(conn);
    status = connection_send(conn, RDT_MSG_FETCH, 0, message, false, NULL);
    fetch->items -= i;
    fetch->n_items = n_items;
    protobuf_c_message_free_unpacked(message, NULL);
    return status == RDT_OK;
}
