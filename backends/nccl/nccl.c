/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "nccl": the table of operations, and groups as the core sees them. See nccl.h.
 *
 * Opening the transport only loads the library and the driver; it uses NCCL and GPUs from the first group on.
 *
 * The transport cannot cancel operations. NCCL does not take back what it was handed, and if both ends dropped queued
 * operations, neither would know how far the other has come, and their next operations would meet the wrong counterparts. So
 * an abort waits until both ends have done what they posted, or the core takes the group down.
 *
 * Memory is not registered (ncclCommRegister). Registration would save NCCL a copy, but if one rank's operation is on
 * registered memory, those of all ranks must be, or the result is undefined. The target of a fetch may be a client's own
 * allocation, known by a legacy handle, which NCCL cannot register, and the other rank does not know which it is.
 */
#include "backends/nccl/nccl.h"
#include "backends/common/configured.h"
#include "backends/common/only_transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NODE_RANKS_MAX 64u /* NCCL's own limit: each rank of a node needs a GPU */

/* ---- groups ---- */

/* Bounds the ranks of one node, because NCCL's memory grows with the number of ranks, and a peer determines that number. */
static enum rdt_status check_nodes(const struct rdt_group_desc *desc, struct rdt_error *err)
{
    for (uint32_t i = 0; i < desc->size; i++) {
        unsigned n = 1;
        for (uint32_t k = 0; k < i; k++)
            n += memcmp(desc->members[k].node_uuid, desc->members[i].node_uuid, sizeof desc->members[i].node_uuid) == 0;
        if (n > NODE_RANKS_MAX)
            return rdt_error_set(err, RDT_LIMIT,
                                 "rank %u is the %uth of one node, but NCCL allows %u, each with a GPU of its own", i, n,
                                 NODE_RANKS_MAX);
    }
    return RDT_OK;
}

static enum rdt_status group_create(void *arg, const struct rdt_group_desc *desc, void *group_ctx, void **group_p,
                                    struct rdt_error *err)
{
    struct nccl *nccl = arg;
    const char *device = desc->members[desc->rank].device;
    struct party *party;
    enum rdt_status status;

    if (!device[0])
        return rdt_error_set(err, RDT_INVALID,
                             "nccl moves GPU memory only: the member of rank %u, like every other, needs a GPU (its UUID)",
                             desc->rank);
    status = check_nodes(desc, err);
    if (status != RDT_OK)
        return status;
    party = calloc(1, sizeof *party);
    if (party)
        party->sides = calloc(desc->size, sizeof *party->sides);
    if (!party || !party->sides) {
        free(party);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a group of %u ranks", desc->size);
    }
    status = worker_get(nccl, device, &party->worker, err);
    if (status != RDT_OK) {
        free(party->sides);
        free(party);
        return status;
    }
    party->nccl = nccl;
    party->ctx = group_ctx;
    party->rank = desc->rank;
    party->size = desc->size;
    party->bootstrap_fd = -1;
    ring_init(&party->ring);
    for (uint32_t i = 0; i < desc->size; i++)
        party->sides[i] = (struct side){party, i};
    *group_p = party;
    return RDT_OK;
}

static void group_destroy(void *arg)
{
    struct party *party = arg;

    bootstrap_close(party->bootstrap_fd, true);
    free(party->sides);
    free(party);
}

/* Rank 0 offers the id by which all ranks find one another. Creating one takes NCCL 0.2 ms, and 10 ms the first time, and
 * opens a listening socket with a thread (see bootstrap.h). */
static enum rdt_status group_offer(void *arg, uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    struct party *party = arg;
    int error, lowest;

    *bytes_p = 0;
    if (party->rank != 0)
        return RDT_OK;
    lowest = bootstrap_lowest_fd();
    error = party->nccl->api->ncclGetUniqueId(&party->id);
    if (error != NCCL_SUCCESS)
        return rdt_error_set(err, RDT_TRANSPORT, "ncclGetUniqueId: %s", party->nccl->api->ncclGetErrorString(error));
    bootstrap_close(party->bootstrap_fd, true);
    party->bootstrap_fd = bootstrap_find(&party->id, lowest);
    memcpy(blob, &party->id, sizeof party->id);
    *bytes_p = sizeof party->id;
    return RDT_OK;
}

static enum rdt_status group_connect(void *arg, const void *const *blobs, const size_t *bytes, struct rdt_error *err)
{
    struct party *party = arg;

    if (bytes[0] != sizeof party->id)
        return rdt_error_set(err, RDT_PROTOCOL, "the offer of rank 0 is not an nccl offer: it has %zu bytes", bytes[0]);
    memcpy(&party->id, blobs[0], sizeof party->id);
    party->connected = true;
    worker_connect(party->worker, party);
    return RDT_OK;
}

static void *group_conn(void *arg, uint32_t rank)
{
    return &((struct party *)arg)->sides[rank];
}

static void group_close(void *arg)
{
    struct party *party = arg;

    if (party->connected)
        worker_close(party->worker, party);
    else
        party->nccl->host.group_closed(party->ctx);
}

/* ---- operations ---- */

static uint32_t sides(void *conn, const char *memory_kind)
{
    (void)conn;
    return strcasecmp(memory_kind, "cuda") == 0 ? RDT_TWO_SIDED : 0;
}

static enum rdt_status post_send(void *arg, struct rdt_op *op, struct rdt_error *err)
{
    return worker_post(((struct side *)arg)->party->worker, arg, op, true, err);
}

static enum rdt_status post_recv(void *arg, struct rdt_op *op, struct rdt_error *err)
{
    return worker_post(((struct side *)arg)->party->worker, arg, op, false, err);
}

/* All operations of this rank stand in the one queue of its GPU, on whichever GPU their memory lies. */
static const char *queue(void *arg, const char *memory_kind, const char *device)
{
    (void)device;
    return strcasecmp(memory_kind, "cuda") == 0 ? worker_uuid(((struct side *)arg)->party->worker) : NULL;
}

/* ---- the transport ---- */

/* NCCL reads its interfaces from the environment only; a value that is set already takes precedence. "=" stands for exactly
 * these names; without it NCCL would take them as prefixes. */
static enum rdt_status set_interfaces(const char *interfaces, struct rdt_error *err)
{
    char text[256];

    if (!interfaces[0] || getenv("NCCL_SOCKET_IFNAME"))
        return RDT_OK;
    if (snprintf(text, sizeof text, "=%s", interfaces) >= (int)sizeof text || setenv("NCCL_SOCKET_IFNAME", text, 1))
        return rdt_error_set(err, RDT_LIMIT, "cannot set NCCL_SOCKET_IFNAME to the interfaces");
    return RDT_OK;
}

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    struct cuda_driver *driver;
    const struct nccl_api *api;
    struct nccl *nccl;
    enum rdt_status status = nccl_api_open(&api, err);

    if (status == RDT_OK)
        status = cuda_driver_await(&driver, CUDA_WAIT_S, err);
    if (status != RDT_OK)
        return status;
    if (strcmp(configured_text(host, "trusted_network"), "yes") != 0)
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "NCCL neither authenticates nor encrypts; set trusted_network = yes if only trusted machines reach its "
            "interfaces");
    status = configured_peers(host, err);
    if (status == RDT_OK)
        status = set_interfaces(configured_text(host, "interfaces"), err);
    if (status != RDT_OK)
        return status;
    nccl = calloc(1, sizeof *nccl);
    if (!nccl)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transport");
    nccl->host = *host;
    nccl->driver = driver;
    nccl->api = api;
    ring_init(&nccl->workers);
    *transport_p = nccl;
    return RDT_OK;
}

static void transport_close(void *arg)
{
    struct nccl *nccl = arg;

    for (struct worker *worker; (worker = worker_first(nccl)) != NULL;)
        worker_end(worker);
    free(nccl);
}

static const char *transport_version(void *arg)
{
    return ((struct nccl *)arg)->api->version;
}

static const char *const memory_kinds[] = {"cuda", NULL};

static const struct rdt_transport_ops transport_ops = {
    .struct_size = sizeof transport_ops,
    .name = "nccl",
    .memory_kinds = memory_kinds,
    .speed = 120,
    .open = transport_open,
    .close = transport_close,
    .version = transport_version,
    .sides = sides,
    .post_send = post_send,
    .post_recv = post_recv,
    .queue = queue,
    .group_create = group_create,
    .group_offer = group_offer,
    .group_connect = group_connect,
    .group_conn = group_conn,
    .group_close = group_close,
    .group_destroy = group_destroy,
};

ONLY_TRANSPORT(NULL, transport_ops)
