/* The transport "gloo": host memory between the ranks of a group, by Gloo's TCP pairs. Owns the table, the groups and their threads;
 * Gloo itself is behind mesh.h.
 *
 * Gloo knows only calls that block, and cannot take one back without closing pairs. So each pair of ranks has a thread that sends and one
 * that receives, and a chunk is two messages: its head (slot 0) says which one comes, then its bytes (slot 1) go straight to the memory
 * of the receive that waits for it, or, if that was cancelled meanwhile, to nowhere. What was not matched yet is thus ours alone and ends
 * at once when it is cancelled; what was ends with its bytes. Only group_close, by its thread, ends the rest: it closes the pairs.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backends/gloo/mesh.h"
#include "rdt_backend.h"

#define HEAD_SLOT 0
#define BYTES_SLOT 1
#define OFFER_BYTES_A_RANK 140u        /* a length, a sockaddr_storage and a number */
#define MOST_BYTES ((uint64_t)1 << 32) /* of one chunk: more is no head of ours */

struct gloo {
    struct rdt_host host;
    struct mesh_device *device;
};

struct head {
    uint64_t transfer, chunk, bytes;
};

struct queue { /* of ops, by priv[0] */
    struct rdt_op *first, **last;
};

struct side { /* another rank: the conn */
    struct party *party;
    uint32_t rank;
    struct queue sends, receives; /* not begun */
    struct rdt_op *sending, *receiving;
    pthread_cond_t more;
    pthread_t sender, receiver;
};

struct party { /* one rank of a group */
    struct gloo *gloo;
    void *ctx;
    uint32_t rank, size;
    struct mesh *mesh;
    struct side *sides; /* [size] */
    uint8_t **blobs;
    size_t *blob_bytes;
    pthread_mutex_t mutex; /* of all below, and of the queues */
    pthread_cond_t close;
    pthread_t main;
    bool started, closing, failed;
};

/* ---- queues; the mutex is held ---- */

static struct rdt_op **next_of(struct rdt_op *op)
{
    return (struct rdt_op **)&op->priv[0];
}

static void queue_init(struct queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void queue_add(struct queue *queue, struct rdt_op *op)
{
    op->priv[0] = NULL;
    *queue->last = op;
    queue->last = next_of(op);
}

/* The op itself, or (NULL) the one that the head is of. NULL: it is not there. */
static struct rdt_op *queue_take(struct queue *queue, const struct rdt_op *op, const struct head *head)
{
    for (struct rdt_op **at = &queue->first; *at; at = next_of(*at)) {
        struct rdt_op *found = *at;
        if (op ? found != op : found->transfer != head->transfer || found->chunk != head->chunk)
            continue;
        *at = *next_of(found);
        if (queue->last == next_of(found))
            queue->last = at;
        return found;
    }
    return NULL;
}

static void queue_end(struct queue *queue, const struct rdt_host *host)
{
    while (queue->first) {
        struct rdt_op *op = queue->first;
        queue->first = *next_of(op);
        host->op_done(op, RDT_CANCELLED, NULL);
    }
    queue_init(queue);
}

/* ---- threads ---- */

/* The mutex is not held. Once, unless it is closed anyway. */
static void fail(struct party *party, const char *what, uint32_t rank, const char *why)
{
    char text[MESH_WHY_BYTES + 64];
    bool tell;

    (void)pthread_mutex_lock(&party->mutex);
    tell = !party->closing && !party->failed;
    party->failed = true;
    (void)pthread_mutex_unlock(&party->mutex);
    (void)snprintf(text, sizeof text, "%s rank %u: %s", what, rank, why);
    if (tell)
        party->gloo->host.group_failed(party->ctx, RDT_TRANSPORT, text);
}

static void *send_thread(void *arg)
{
    struct side *side = arg;
    struct party *party = side->party;
    char why[MESH_WHY_BYTES];

    (void)pthread_mutex_lock(&party->mutex);
    for (;;) {
        struct rdt_op *op;
        struct head head;
        while (!party->closing && !party->failed && !side->sends.first)
            (void)pthread_cond_wait(&side->more, &party->mutex);
        if (party->closing || party->failed)
            break;
        op = side->sending = queue_take(&side->sends, side->sends.first, NULL);
        (void)pthread_mutex_unlock(&party->mutex);
        head = (struct head){op->transfer, op->chunk, op->piece.bytes};
        if (!mesh_send(party->mesh, side->rank, HEAD_SLOT, &head, sizeof head, why) ||
            !mesh_send(party->mesh, side->rank, BYTES_SLOT, op->piece.addr, op->piece.bytes, why)) {
            fail(party, "sending to", side->rank, why);
            return NULL; /* the op ends when the pairs are closed */
        }
        (void)pthread_mutex_lock(&party->mutex);
        side->sending = NULL;
        (void)pthread_mutex_unlock(&party->mutex);
        party->gloo->host.op_done(op, RDT_OK, NULL);
        (void)pthread_mutex_lock(&party->mutex);
    }
    (void)pthread_mutex_unlock(&party->mutex);
    return NULL;
}

/* false: nothing more comes from there. */
static bool receive_one(struct side *side, char why[MESH_WHY_BYTES])
{
    struct party *party = side->party;
    struct head head;
    struct rdt_op *op;
    void *nowhere = NULL;
    bool good, fits;

    if (!mesh_recv(party->mesh, side->rank, HEAD_SLOT, &head, sizeof head, why))
        return false;
    if (head.bytes == 0 || head.bytes > MOST_BYTES) {
        (void)snprintf(why, MESH_WHY_BYTES, "a chunk of %llu bytes", (unsigned long long)head.bytes);
        return false;
    }
    (void)pthread_mutex_lock(&party->mutex);
    op = side->receiving = queue_take(&side->receives, NULL, &head);
    (void)pthread_mutex_unlock(&party->mutex);
    fits = op && op->piece.bytes == head.bytes;
    if (!fits && !(nowhere = malloc(head.bytes))) {
        (void)snprintf(why, MESH_WHY_BYTES, "no memory for %llu bytes that nobody wants", (unsigned long long)head.bytes);
        return false;
    }
    good = mesh_recv(party->mesh, side->rank, BYTES_SLOT, fits ? op->piece.addr : nowhere, head.bytes, why);
    free(nowhere);
    if (!good)
        return false;
    (void)pthread_mutex_lock(&party->mutex);
    side->receiving = NULL;
    (void)pthread_mutex_unlock(&party->mutex);
    if (op)
        party->gloo->host.op_done(op, fits ? RDT_OK : RDT_TRANSPORT,
                                  fits ? NULL : "the peer's chunk has another length than the one posted for it");
    return true;
}

static void *receive_thread(void *arg)
{
    struct side *side = arg;
    char why[MESH_WHY_BYTES];

    while (receive_one(side, why))
        ;
    fail(side->party, "receiving from", side->rank, why);
    return NULL;
}

static bool start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

static bool is_closing(struct party *party)
{
    bool closing;

    (void)pthread_mutex_lock(&party->mutex);
    closing = party->closing;
    (void)pthread_mutex_unlock(&party->mutex);
    return closing;
}

static bool connect_all(struct party *party, char why[MESH_WHY_BYTES])
{
    for (uint32_t i = 0; i < party->size; i++) {
        if (i == party->rank)
            continue;
        if (is_closing(party))
            return false;
        if (!mesh_connect(party->mesh, i, party->blobs[i], party->blob_bytes[i], why)) {
            fail(party, "connecting with", i, why);
            return false;
        }
    }
    return true;
}

/* Connects, starts the sides, does what all ranks do together, and at the end ends everything. */
static void *main_thread(void *arg)
{
    struct party *party = arg;
    char why[MESH_WHY_BYTES];
    uint32_t senders = 0, receivers = 0;
    bool good = connect_all(party, why);

    for (uint32_t i = 0; good && i < party->size; i++) {
        if (i != party->rank) {
            good = start_thread(&party->sides[i].sender, send_thread, &party->sides[i]);
            senders += good;
        }
        if (good && i != party->rank) {
            good = start_thread(&party->sides[i].receiver, receive_thread, &party->sides[i]);
            receivers += good;
        }
        if (!good)
            fail(party, "starting a thread for", i, "the system refused");
    }
    if (good && !is_closing(party))
        party->gloo->host.group_ready(party->ctx);

    (void)pthread_mutex_lock(&party->mutex);
    while (!party->closing)
        (void)pthread_cond_wait(&party->close, &party->mutex);
    for (uint32_t i = 0; i < party->size; i++)
        (void)pthread_cond_broadcast(&party->sides[i].more);
    (void)pthread_mutex_unlock(&party->mutex);

    mesh_close(party->mesh);
    for (uint32_t i = 0; i < party->size; i++) {
        if (i == party->rank)
            continue;
        if (senders > 0) {
            senders--;
            (void)pthread_join(party->sides[i].sender, NULL);
        }
        if (receivers > 0) {
            receivers--;
            (void)pthread_join(party->sides[i].receiver, NULL);
        }
    }
    for (uint32_t i = 0; i < party->size; i++) {
        struct side *side = &party->sides[i];
        if (side->sending)
            party->gloo->host.op_done(side->sending, RDT_CANCELLED, NULL);
        if (side->receiving)
            party->gloo->host.op_done(side->receiving, RDT_CANCELLED, NULL);
        queue_end(&side->sends, &party->gloo->host);
        queue_end(&side->receives, &party->gloo->host);
    }
    party->gloo->host.group_closed(party->ctx);
    return NULL;
}

/* ---- groups ---- */

static enum rdt_status group_create(void *arg, const struct rdt_group_desc *desc, void *group_ctx, void **group_p,
                                    struct rdt_error *err)
{
    struct gloo *gloo = arg;
    struct party *party;
    char why[MESH_WHY_BYTES];

    if (desc->size > RDT_GROUP_OFFER_MAX_BYTES / OFFER_BYTES_A_RANK)
        return rdt_error_set(err, RDT_LIMIT, "%u ranks: the addresses of at most %u fit into an offer", desc->size,
                             (unsigned)(RDT_GROUP_OFFER_MAX_BYTES / OFFER_BYTES_A_RANK));
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
    if (!mesh_create(gloo->device, desc->rank, desc->size, &party->mesh, why)) {
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
        (void)pthread_join(party->main, NULL); /* it has said that the group is closed */
    else
        mesh_close(party->mesh);
    mesh_destroy(party->mesh);
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
    if (!start_thread(&party->main, main_thread, party))
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

/* One that is matched goes on: its bytes are on the way. */
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

static bool is_any(const char *address)
{
    return strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0 || strcmp(address, "[::]") == 0;
}

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    const char *trusted = host->config(host->ctx, "trusted_network"), *listen = host->config(host->ctx, "listen_host");
    const char *interfaces = host->config(host->ctx, "interfaces");
    char interface[64] = "", why[MESH_WHY_BYTES];
    struct gloo *gloo;

    if (!trusted || strcmp(trusted, "yes") != 0)
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "Gloo neither authenticates nor encrypts; set trusted_network = yes if only trusted machines reach its "
            "interfaces");
    if (!listen || listen[0] == '\0')
        return rdt_error_set(err, RDT_UNSUPPORTED, "there is no peer link: set listen and key_file");
    if (interfaces && interfaces[0])
        (void)snprintf(interface, sizeof interface, "%.*s", (int)strcspn(interfaces, ", "), interfaces);
    if (!interface[0] && is_any(listen))
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "Gloo needs one address: set interfaces, or listen to an address of this node");
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
    return "0.5.0 of 2022"; /* of what Debian calls 0.5.0: Gloo itself has no version to ask for, and later ones speak otherwise */
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

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "gloo",
    .version = "0.1.0",
    .transport = &transport_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
