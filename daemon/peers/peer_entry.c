/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of the entry of a peer, for every other file of this room. */
#include <stdio.h>
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
    return peer->dial->listed || peer->dial->proof >= PROOF_HELLO;
}

bool peer_can_be_dialled(const struct peer *peer)
{
    return peer->address[0] || peer->dial->hint[0];
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

void peer_emit(const struct peer *peer, const char *what)
{
    event(peer->peers->callbacks.events, RDT__PB__LIST_KIND__LIST_KIND_PEERS, what, peer);
}
