/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "gloo": moves host memory between the ranks of a group, by Gloo's TCP pairs. It owns the table of operations,
 * the groups and their threads; mesh.h wraps Gloo itself.
 *
 * Gloo's calls block, and cannot be cancelled without closing pairs. So for each other rank a party has a thread that sends
 * and one that receives (party.c), and a head before each chunk says which chunk follows. An operation that is not matched yet
 * is unknown to Gloo and ends at once when it is cancelled; a matched one ends when its bytes have moved, or when group_close
 * has the party's main thread end everything.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backends/common/address.h"
#include "backends/common/configured.h"
#include "backends/common/only_transport.h"
#include "backends/gloo/gloo.h"

#define OFFER_BYTES_PER_RANK 140u /* a length, a sockaddr_storage and a number */

/* ---- groups ---- */

static enum rdt_status group_create(void *arg, const struct rdt_group_desc *desc, void *group_ctx, void **group_p,
                                    struct rdt_error *err)
{
    struct mesh_id id = {.epoch = desc->epoch};
    struct gloo *gloo = arg;
    struct party *party;
    char why[MESH_WHY_BYTES];

    if (desc->size > RDT_GROUP_OFFER_MAX_BYTES / OFFER_BYTES_PER_RANK)
        return rdt_error_set(err, RDT_LIMIT, "a group of %u ranks is too large: an offer has room for the addresses of %u",
                             desc->size, (unsigned)(RDT_GROUP_OFFER_MAX_BYTES / OFFER_BYTES_PER_RANK));
    party = calloc(1, sizeof *party);
    if (party) {
        party->sides = calloc(desc->size, sizeof *party->sides);
        party->blobs = calloc(desc->size, sizeof *party->blobs);
        party->blob_bytes = calloc(desc->size, sizeof *party->blob_bytes);
    }
    if (!party || !party->sides || !party->blobs || !party->blob_bytes) {
        if (party) {
            free(party->sides);
            free(party->blobs);
            free(party->blob_bytes);
        }
        free(party);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a group of %u ranks", desc->size);
    }
    party->gloo = gloo;
    party->ctx = group_ctx;
    party->rank = desc->rank;
    party->size = desc->size;
    memcpy(id.token, desc->token, sizeof id.token);
    if (!mesh_create(gloo->device, &id, desc->rank, desc->size, &party->mesh, why)) {
        free(party->sides);
        free(party->blobs);
        free(party->blob_bytes);
        free(party);
        return rdt_error_set(err, RDT_TRANSPORT, "%s", why);
    }
    (void)pthread_mutex_init(&party->mutex, NULL);
    (void)pthread_cond_init(&party->close, NULL);
    for (uint32_t i = 0; i < party->size; i++) {
        party->sides[i].party = party;
        party->sides[i].rank = i;
        queue_init(&party->sides[i].sends);
        queue_init(&party->sides[i].receives);
        (void)pthread_cond_init(&party->sides[i].more, NULL);
    }
    *group_p = party;
    return RDT_OK;
}

static void group_destroy(void *arg)
{
    struct party *party = arg;

    if (party->started)
        (void)pthread_join(party->main, NULL); /* the thread has reported the end of the group, and only has to return */
    mesh_discard(party->mesh);
    for (uint32_t i = 0; i < party->size; i++) {
        (void)pthread_cond_destroy(&party->sides[i].more);
        free(party->blobs[i]);
    }
    (void)pthread_cond_destroy(&party->close);
    (void)pthread_mutex_destroy(&party->mutex);
    free(party->sides);
    free(party->blobs);
    free(party->blob_bytes);
    free(party);
}

static enum rdt_status group_offer(void *arg, uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    struct party *party = arg;
    char why[MESH_WHY_BYTES];

    return mesh_offer(party->mesh, blob, RDT_GROUP_OFFER_MAX_BYTES, bytes_p, why) ? RDT_OK
                                                                                  : rdt_error_set(err, RDT_LIMIT, "%s", why);
}

static enum rdt_status group_connect(void *arg, const void *const *blobs, const size_t *bytes, struct rdt_error *err)
{
    struct party *party = arg;

    for (uint32_t i = 0; i < party->size; i++) {
        party->blobs[i] = malloc(bytes[i] + 1);
        if (!party->blobs[i])
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the offers of %u ranks", party->size);
        memcpy(party->blobs[i], blobs[i], bytes[i]);
        party->blob_bytes[i] = bytes[i];
    }
    if (thread_create(&party->main, party_main, party) != 0)
        return rdt_error_set(err, RDT_SYSTEM, "cannot start a thread");
    party->started = true;
    return RDT_OK;
}

static void *group_conn(void *arg, uint32_t rank)
{
    return &((struct party *)arg)->sides[rank];
}

static void group_close(void *arg)
{
    struct party *party = arg;

    (void)pthread_mutex_lock(&party->mutex);
    party->closing = true;
    (void)pthread_cond_signal(&party->close);
    (void)pthread_mutex_unlock(&party->mutex);
    if (!party->started)
        party->gloo->host.group_closed(party->ctx);
}

/* ---- operations ---- */

static uint32_t sides(void *conn, const char *memory_kind)
{
    (void)conn;
    return strcasecmp(memory_kind, "host") == 0 ? RDT_TWO_SIDED : 0;
}

static enum rdt_status post(struct side *side, struct queue *queue, struct rdt_op *op, struct rdt_error *err)
{
    struct party *party = side->party;
    enum rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&party->mutex);
    if (party->closing || party->failed)
        status = rdt_error_set(err, RDT_TRANSPORT, "the group is being taken down");
    else
        queue_add(queue, op);
    (void)pthread_cond_broadcast(&side->more);
    (void)pthread_mutex_unlock(&party->mutex);
    return status;
}

static enum rdt_status post_send(void *arg, struct rdt_op *op, struct rdt_error *err)
{
    return post(arg, &((struct side *)arg)->sends, op, err);
}

static enum rdt_status post_recv(void *arg, struct rdt_op *op, struct rdt_error *err)
{
    return post(arg, &((struct side *)arg)->receives, op, err);
}

/* A matched operation is not affected: its bytes are being moved. */
static void cancel(void *arg, struct rdt_op *op)
{
    struct side *side = arg;
    struct party *party = side->party;
    struct rdt_op *found;

    (void)pthread_mutex_lock(&party->mutex);
    found = queue_take(&side->sends, op, NULL);
    if (!found)
        found = queue_take(&side->receives, op, NULL);
    (void)pthread_mutex_unlock(&party->mutex);
    if (found)
        party->gloo->host.op_done(found, RDT_CANCELLED, NULL);
}

/* ---- the transport ---- */

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    const char *listen = configured_text(host, "listen_host"), *interfaces = configured_text(host, "interfaces");
    char interface[64] = "", why[MESH_WHY_BYTES];
    enum rdt_status status;
    struct gloo *gloo;

    if (strcmp(configured_text(host, "trusted_network"), "yes") != 0)
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "Gloo neither authenticates nor encrypts; set trusted_network = yes if only trusted machines reach its "
            "interfaces");
    status = configured_peers(host, err);
    if (status != RDT_OK)
        return status;
    if (!listen[0])
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "Gloo listens at the address of the peer link, and there is none: set listen");
    (void)snprintf(interface, sizeof interface, "%.*s", (int)strcspn(interfaces, ", "), interfaces);
    if (!interface[0] &&
        address_is_wildcard(listen)) /* Gloo would listen at every address, and offer one that no peer can reach */
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "Gloo needs one address: set interfaces, or set listen to an address of this node");
    gloo = calloc(1, sizeof *gloo);
    if (!gloo)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transport");
    gloo->host = *host;
    if (!mesh_device_create(interface, listen, &gloo->device, why)) {
        free(gloo);
        return rdt_error_set(err, RDT_UNSUPPORTED, "Gloo cannot listen at %s: %s", interface[0] ? interface : listen, why);
    }
    *transport_p = gloo;
    return RDT_OK;
}

static void transport_close(void *arg)
{
    struct gloo *gloo = arg;

    mesh_device_destroy(gloo->device);
    free(gloo);
}

static const char *transport_version(void *transport)
{
    (void)transport;
    /* The version of Debian's package: Gloo itself does not report one, and later ones use another protocol. "heads 3" is the
     * version of what this transport adds: heads, and the group's token as the first bytes of a connection. */
    return "0.5.0 of 2022, heads 3";
}

static const char *const memory_kinds[] = {"host", NULL};

static const struct rdt_transport_ops transport_ops = {
    .struct_size = sizeof transport_ops,
    .name = "gloo",
    .memory_kinds = memory_kinds,
    .speed = 20,
    .open = transport_open,
    .close = transport_close,
    .version = transport_version,
    .sides = sides,
    .post_send = post_send,
    .post_recv = post_recv,
    .cancel = cancel,
    .group_create = group_create,
    .group_offer = group_offer,
    .group_connect = group_connect,
    .group_conn = group_conn,
    .group_close = group_close,
    .group_destroy = group_destroy,
};

ONLY_TRANSPORT(NULL, transport_ops)
