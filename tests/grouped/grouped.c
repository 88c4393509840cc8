/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "grouped": the connections of the test transport, which exist only within groups. It has
 * the faults of the test transport, and two more: a group that cannot be connected, and one that never
 * becomes connected.
 *
 * It has the two operations of broadcasts that earlier versions called. They end the daemon.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/loopback/loopback.h"

struct party {          /* one rank of a group; under transport->lock */
    struct party *next; /* transport->groups */
    struct transport *transport;
    void *ctx;
    uint32_t rank, size;
    struct conn **conns; /* [size], NULL where it has ended or is this rank */
    bool listed, connected, ready_told, failed_told, closing;
};

static void look_at_groups(struct transport *transport, struct group_news *news)
{
    struct party **at = &transport->groups;

    while (*at && news->n_ready < GROUP_NEWS_MAX && news->n_failed < GROUP_NEWS_MAX && news->n_closed < GROUP_NEWS_MAX) {
        struct party *party = *at;
        bool left = false, failed = false;

        for (uint32_t i = 0; i < party->size; i++) {
            if (!party->conns[i])
                continue;
            failed = failed || party->conns[i]->failed;
            if (party->closing && conn_end_if_due(party->conns[i])) {
                free(party->conns[i]);
                party->conns[i] = NULL;
            }
            left = left || party->conns[i];
        }
        if (party->connected && !party->ready_told && !party->closing) {
            party->ready_told = true;
            news->ready[news->n_ready++] = party->ctx;
        } else if (failed && !party->failed_told && !party->closing) {
            party->failed_told = true;
            news->failed[news->n_failed++] = party->ctx;
            news->why = "a rank closed its socket";
        }
        if (party->closing && !left) {
            news->closed[news->n_closed++] = party->ctx;
            *at = party->next;
            party->listed = false;
        } else {
            at = &party->next;
        }
    }
}

static enum rdt_status grouped_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    enum rdt_status status = loopback_transport_open(host, transport_p, err);

    if (status == RDT_OK) {
        struct transport *transport = *transport_p;
        (void)pthread_mutex_lock(&transport->lock);
        transport->look_at_groups = look_at_groups;
        (void)pthread_mutex_unlock(&transport->lock);
    }
    return status;
}

static void group_destroy(void *arg)
{
    struct party *party = arg, **at = &party->transport->groups;

    (void)pthread_mutex_lock(&party->transport->lock);
    while (party->listed && *at != party)
        at = &(*at)->next;
    if (party->listed)
        *at = party->next;
    (void)pthread_mutex_unlock(&party->transport->lock);
    for (uint32_t i = 0; party->conns && i < party->size; i++)
        if (party->conns[i])
            loopback_connection_destroy(party->conns[i]);
    free(party->conns);
    free(party);
}

static enum rdt_status group_create(void *arg, const struct rdt_group_desc *desc, void *group_ctx, void **group_p,
                                    struct rdt_error *err)
{
    struct transport *transport = arg;
    struct party *party = calloc(1, sizeof *party);
    enum rdt_status status = RDT_OK;

    if (party)
        party->conns = calloc(desc->size, sizeof(struct conn *));
    if (!party || !party->conns) {
        free(party);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a group");
    }
    party->transport = transport;
    party->ctx = group_ctx;
    party->rank = desc->rank;
    party->size = desc->size;
    for (uint32_t i = 0; status == RDT_OK && i < desc->size; i++) {
        void *conn = NULL;
        if (i == desc->rank)
            continue;
        status = loopback_connection_create(transport, desc->members[i].node_uuid, NULL, &conn, err);
        if (status == RDT_OK) {
            party->conns[i] = conn;
            (void)pthread_mutex_lock(&transport->lock);
            party->conns[i]->group = party;
            (void)pthread_mutex_unlock(&transport->lock);
        }
    }
    if (status != RDT_OK) {
        group_destroy(party);
        return status;
    }
    (void)pthread_mutex_lock(&transport->lock);
    party->next = transport->groups;
    transport->groups = party;
    party->listed = true;
    (void)pthread_mutex_unlock(&transport->lock);
    *group_p = party;
    return RDT_OK;
}

/* This end's name, and a token for each rank. */
static enum rdt_status group_offer(void *arg, uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    const struct party *party = arg;
    size_t bytes = NAME_BYTES + party->size * (size_t)TOKEN_BYTES;

    if (bytes > RDT_GROUP_OFFER_MAX_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "%u ranks", party->size);
    memset(blob, 0, bytes);
    memcpy(blob, party->transport->name, NAME_BYTES);
    for (uint32_t i = 0; i < party->size; i++)
        if (party->conns[i])
            memcpy(blob + NAME_BYTES + i * (size_t)TOKEN_BYTES, party->conns[i]->token, TOKEN_BYTES);
    *bytes_p = bytes;
    return RDT_OK;
}

static enum rdt_status group_connect(void *arg, const void *const *blobs, const size_t *bytes, struct rdt_error *err)
{
    struct party *party = arg;
    struct transport *transport = party->transport;
    struct faults faults = faults_now(transport);

    for (uint32_t i = 0; i < party->size; i++)
        if (bytes[i] != NAME_BYTES + party->size * (size_t)TOKEN_BYTES || !memchr(blobs[i], 0, NAME_BYTES) ||
            *(const char *)blobs[i] == '\0')
            return rdt_error_set(err, RDT_PROTOCOL, "the offer of rank %u is not one of grouped", i);
    if (faults.refuse_group)
        return rdt_error_set(err, RDT_TRANSPORT, "a refusal was asked for");
    (void)pthread_mutex_lock(&transport->lock);
    for (uint32_t i = 0; i < party->size; i++) {
        struct conn *conn = party->conns[i];
        if (!conn)
            continue;
        memcpy(conn->peer_name, blobs[i], NAME_BYTES);
        memcpy(conn->peer_token, (const uint8_t *)blobs[i] + NAME_BYTES + party->rank * (size_t)TOKEN_BYTES, TOKEN_BYTES);
        conn->connected = true;
        wire_connect(conn);
    }
    party->connected = !faults.hang_group;
    (void)pthread_mutex_unlock(&transport->lock);
    loopback_wake(transport);
    return RDT_OK;
}

static void *group_conn(void *arg, uint32_t rank)
{
    return ((struct party *)arg)->conns[rank];
}

static enum rdt_status post_broadcast(void *group, uint32_t root, struct rdt_op *op, struct rdt_error *err)
{
    abort();
}

static void cancel_broadcast(void *group, struct rdt_op *op)
{
    abort();
}

static void group_close(void *arg)
{
    struct party *party = arg;

    for (uint32_t i = 0; i < party->size; i++)
        if (party->conns[i])
            loopback_disconnect(party->conns[i]);
    (void)pthread_mutex_lock(&party->transport->lock);
    party->closing = true;
    (void)pthread_mutex_unlock(&party->transport->lock);
    loopback_wake(party->transport);
}

static const char *const memory_kinds[] = {"host", "fake", NULL};

static struct rdt_transport_ops transport_ops = {
    .struct_size = sizeof transport_ops,
    .name = "grouped",
    .memory_kinds = memory_kinds,
    .speed = 9,
    .open = grouped_open,
    .close = loopback_transport_close,
    .version = loopback_transport_version,
    .register_memory = loopback_register_memory,
    .unregister_memory = loopback_unregister_memory,
    .sides = loopback_sides,
    .post_send = loopback_post_send,
    .post_recv = loopback_post_recv,
    .cancel = loopback_cancel,
    .queue = loopback_queue,
    .moves = loopback_moves,
    .group_create = group_create,
    .group_offer = group_offer,
    .group_connect = group_connect,
    .group_conn = group_conn,
    .group_close = group_close,
    .group_destroy = group_destroy,
    .post_broadcast = post_broadcast,
    .cancel_broadcast = cancel_broadcast,
};

static const struct rdt_config_key config_keys[] = {
    {"sided", "two", "two: what its connections claim to be"},
    {"version", "1.0", "of its library, as peers are told"},
    {"ordered", "no", "as loopback's"},
    {"devices", "no", "yes: it moves memory of the fake device too"},
    {"fault_file", "",
     "file of key=value lines, the faults of loopback and refuse_group, refuse_registration, hang_group; read before every "
     "operation"},
    {NULL, NULL, NULL},
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "grouped",
    .version = "0.1.0",
    .config_keys = config_keys,
    .transport = &transport_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
