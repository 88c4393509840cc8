/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of the entry of a peer, for every other file of this room. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/events.h"
#include "daemon/base/node.h"
#include "daemon/peers/peer_impl.h"

static const uint8_t nobody[16];

bool peer_is_known(const struct peer *peer)
{
    return memcmp(peer->uuid, nobody, sizeof nobody) != 0;
}

bool peer_has_been_met(const struct peer *peer)
{
    return peer->dial->table.listed || peer->dial->proof >= PROOF_HELLO;
}

bool peer_can_be_dialled(const struct peer *peer)
{
    return peer->address[0] || peer->dial->hint.text[0];
}

bool account_is_admin(const struct account *account)
{
    return !account || account->owner.uid == 0 || account->owner.uid == geteuid();
}

void peer_describe(const struct peer *peer, char *text_p)
{
    char hex[33];

    if (!peer_is_known(peer)) {
        snprintf(text_p, 128, "node %s", peer->name);
        return;
    }
    node_hex(peer->uuid, hex);
    snprintf(text_p, 128, "node %s (%.8s)", peer->name, hex);
}

struct peer_source {
    uint8_t source[16];
    unsigned n;
};

/* Without memory the source is not counted: connections from there are as those of others. */
static void count_source(struct peer *peer, const uint8_t source[16])
{
    struct map *by_source = &peer->peers->by_source;
    struct peer_source *counted = map_get(by_source, source, 16);

    if (!counted) {
        counted = calloc(1, sizeof *counted);
        if (!counted)
            return;
        memcpy(counted->source, source, sizeof counted->source);
        if (!map_put(by_source, counted->source, sizeof counted->source, counted)) {
            free(counted);
            return;
        }
    }
    counted->n++;
    peer->dial->where.counted[peer->dial->where.n_counted++] = counted;
}

void peer_settle_sources(struct peer *peer)
{
    struct peer_dial *dial = peer->dial;

    while (dial->where.n_counted > 0) {
        struct peer_source *counted = dial->where.counted[--dial->where.n_counted];
        if (--counted->n > 0)
            continue;
        (void)map_remove(&peer->peers->by_source, counted->source, sizeof counted->source);
        free(counted);
    }
    if (!dial->table.listed && peer->state != PEER_UP)
        return;
    if (dial->where.numeric)
        count_source(peer, dial->where.host);
    for (unsigned i = 0; i < dial->where.n_sources; i++)
        count_source(peer, dial->where.sources[i]);
}

bool peers_know_source(const struct peers *peers, const uint8_t source[16])
{
    return map_get(&peers->by_source, source, 16);
}

void peer_emit(const struct peer *peer, const char *what)
{
    event(peer->peers->callbacks.events, RDT__PB__LIST_KIND__LIST_KIND_PEERS, what, peer);
}
