/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcasts: each rank passes the chunks that it receives on to other ranks, by the same threads and pairs as sends.
 *
 * Gloo's own broadcast is not used, for three reasons. It ignores the results of its waits, so that an aborted broadcast goes
 * on, and passes on bytes that never arrived. It cannot be cancelled before the root sends. And all ranks must call it in the
 * same order, whereas here the head says which broadcast a chunk belongs to. Besides, it passes a message on only when all of
 * it has arrived; here each chunk is passed on while the next one arrives.
 *
 * The ranks, counted from the root, form a chain, in which each rank sends every byte once, so that a large object takes about
 * as long for all ranks as for one. More than CHAIN_MAX ranks form a binary tree, which is less deep.
 */
#include <stdio.h>
#include <stdlib.h>

#include "backends/gloo/gloo.h"

#define CHAIN_MAX 16u
#define BYTES_SLOT 1

static uint32_t fan_out(const struct party *party)
{
    return party->size <= CHAIN_MAX ? 1 : 2;
}

/* Returns the place of a rank, counted from the root. */
static uint32_t place_of(const struct party *party, uint32_t rank, uint32_t root)
{
    return (rank + party->size - root) % party->size;
}

static uint32_t rank_at(const struct party *party, uint32_t place, uint32_t root)
{
    return (place + root) % party->size;
}

static uint32_t count_below(const struct party *party, uint32_t place)
{
    uint64_t first = (uint64_t)place * fan_out(party) + 1, n = 0;

    while (n < fan_out(party) && first + n < party->size)
        n++;
    return (uint32_t)n;
}

static struct relay *relay_new(const struct party *party, const struct head *head)
{
    uint32_t n = count_below(party, place_of(party, party->rank, (uint32_t)head->root - 1));
    struct relay *relay = calloc(1, sizeof *relay + n * sizeof relay->links[0]);

    if (!relay)
        return NULL;
    relay->head = *head;
    relay->n = relay->left = n;
    return relay;
}

/* Queues the chunk for the ranks below this one. The caller holds the mutex. */
static void pass_on(struct party *party, struct relay *relay)
{
    uint32_t root = (uint32_t)relay->head.root - 1, place = place_of(party, party->rank, root);

    relay->next = party->relays;
    party->relays = relay;
    for (uint32_t i = 0; i < relay->n; i++) {
        struct side *side = &party->sides[rank_at(party, place * fan_out(party) + 1 + i, root)];
        relay->links[i] = (struct relay_link){.relay = relay};
        *side->last_relay = &relay->links[i];
        side->last_relay = &relay->links[i].next;
        (void)pthread_cond_broadcast(&side->more);
    }
}

/* Sends and relayed chunks take turns, so that neither waits for all of the other. */
struct relay_link *relay_take(struct side *side)
{
    struct relay_link *link = side->relays;

    if (!link || (side->relay_was_last && side->sends.first)) {
        side->relay_was_last = false;
        return NULL;
    }
    side->relay_was_last = true;
    side->relays = link->next;
    if (!side->relays)
        side->last_relay = &side->relays;
    return link;
}

static void relay_free(struct party *party, struct relay *relay, enum rdt_status status)
{
    if (relay->op)
        party->gloo->host.op_done(relay->op, status, NULL);
    free(relay->own);
    free(relay);
}

void relay_sent(struct party *party, struct relay_link *link)
{
    struct relay *relay = link->relay, **at = &party->relays;
    bool last;

    (void)pthread_mutex_lock(&party->mutex);
    last = --relay->left == 0;
    while (last && *at != relay)
        at = &(*at)->next;
    if (last)
        *at = relay->next;
    (void)pthread_mutex_unlock(&party->mutex);
    if (last)
        relay_free(party, relay, RDT_OK);
}

void relay_end(struct party *party)
{
    while (party->relays) {
        struct relay *relay = party->relays;
        party->relays = relay->next;
        relay_free(party, relay, RDT_CANCELLED);
    }
}

enum rdt_status relay_post(void *arg, uint32_t root, struct rdt_op *op, struct rdt_error *err)
{
    struct party *party = arg;
    struct head head = {op->transfer, op->chunk, op->piece.bytes, (uint64_t)root + 1};
    struct relay *relay = root == party->rank ? relay_new(party, &head) : NULL;
    enum rdt_status status = RDT_OK;

    if (root >= party->size)
        return rdt_error_set(err, RDT_INVALID, "rank %u is not one of the %u ranks of the group", root, party->size);
    if (root == party->rank && !relay)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to send to %u ranks", party->size - 1);
    op->priv[1] = (void *)(uintptr_t)head.root;
    (void)pthread_mutex_lock(&party->mutex);
    if (party->closing || party->failed) {
        status = rdt_error_set(err, RDT_TRANSPORT, "the group is being taken down");
    } else if (relay) {
        relay->op = op;
        pass_on(party, relay);
    } else {
        queue_add(&party->broadcasts, op);
    }
    (void)pthread_mutex_unlock(&party->mutex);
    if (status != RDT_OK)
        free(relay);
    return status;
}

/* A matched operation is not affected, nor is one of the root. */
void relay_cancel(void *arg, struct rdt_op *op)
{
    struct party *party = arg;
    struct rdt_op *found;

    (void)pthread_mutex_lock(&party->mutex);
    found = queue_take(&party->broadcasts, op, NULL);
    (void)pthread_mutex_unlock(&party->mutex);
    if (found)
        party->gloo->host.op_done(found, RDT_CANCELLED, NULL);
}

/* Returns whether chunks of the broadcast reach this rank by that side. */
static bool comes_from(const struct side *side, const struct head *head)
{
    const struct party *party = side->party;
    uint32_t root = (uint32_t)head->root - 1, place;

    if (head->root > party->size || root == party->rank)
        return false;
    place = place_of(party, party->rank, root);
    return rank_at(party, (place - 1) / fan_out(party), root) == side->rank;
}

bool relay_receive(struct side *side, const struct head *head, char why[MESH_WHY_BYTES])
{
    struct party *party = side->party;
    struct relay *relay;
    struct rdt_op *op, *misfit = NULL;
    bool last;

    if (!comes_from(side, head)) {
        (void)snprintf(why, MESH_WHY_BYTES, "it sent a chunk of a broadcast that should come from another rank");
        return false;
    }
    relay = relay_new(party, head);
    if (!relay) {
        (void)snprintf(why, MESH_WHY_BYTES, "no memory to pass a broadcast on");
        return false;
    }
    (void)pthread_mutex_lock(&party->mutex);
    op = side->receiving = queue_take(&party->broadcasts, NULL, head);
    (void)pthread_mutex_unlock(&party->mutex);
    if (op && op->piece.bytes != head->bytes) {
        misfit = op;
        op = NULL;
    }
    if (!op && !(relay->own = malloc(head->bytes))) { /* the ranks below need the chunk all the same */
        free(relay);
        (void)snprintf(why, MESH_WHY_BYTES, "no memory for %llu bytes that are only to be passed on",
                       (unsigned long long)head->bytes);
        return false;
    }
    if (!mesh_recv(party->mesh, side->rank, BYTES_SLOT, op ? op->piece.addr : relay->own, head->bytes, why)) {
        free(relay->own);
        free(relay);
        return false; /* party_main ends the operation */
    }
    (void)pthread_mutex_lock(&party->mutex);
    side->receiving = NULL;
    relay->op = op;
    last = relay->n == 0;
    if (!last)
        pass_on(party, relay);
    (void)pthread_mutex_unlock(&party->mutex);
    if (misfit)
        party->gloo->host.op_done(misfit, RDT_TRANSPORT,
                                  "the root's chunk has another length than the operation that was posted for it");
    if (last)
        relay_free(party, relay, RDT_OK);
    return true;
}
