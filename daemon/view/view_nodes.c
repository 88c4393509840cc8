/* SPDX-License-Identifier: Apache-2.0 */
/* NODES: the node table, and the state of the link to each node. The answer has only one page, which is built in turns of its
 * client. */
#include <stdlib.h>

#include "daemon/view/view.h"

#include "daemon/base/node.h"

#define NODES_MAX 8192u /* of one answer */
#define FIRST_NS 20000  /* for the first part, which is mostly all */

struct listing {
    struct client_task task;
    struct call *call;
    struct work_pool *pool;
    struct arena arena;
    Rdt__Pb__NodesReply reply;
    uint64_t last; /* number of the last peer in it */
};

static Rdt__Pb__NodeInfo *add_node(Rdt__Pb__NodesReply *reply, struct arena *arena, const char *name, const char *address,
                                   const uint8_t uuid[16])
{
    static const uint8_t unknown[16];
    Rdt__Pb__NodeInfo *info = arena_message(arena, &rdt__pb__node_info__descriptor);
    char *hex = arena_alloc(arena, 33);

    if (!info || !hex)
        return NULL;
    hex[0] = '\0';
    if (memcmp(uuid, unknown, sizeof unknown) != 0)
        node_hex(uuid, hex);
    info->name = (char *)name;
    info->address = (char *)address;
    info->node = hex;
    reply->nodes[reply->n_nodes++] = info;
    return info;
}

/* Copies its texts, because the peer may change before the answer is sent. */
static bool add_peer(struct listing *listing, const struct peer *peer)
{
    const struct call *call = listing->call;
    struct arena *arena = &listing->arena;
    const struct directory *directory = call->rpc->directory;
    int listed_by = peer_listed_by(peer);
    enum directory_source source = listed_by < 0 ? DIRECTORY_SOURCES : (enum directory_source)listed_by;
    uint64_t now = uv_hrtime();
    char *name = arena_text(arena, peer->name, sizeof peer->name),
         *address = arena_text(arena, peer->address, sizeof peer->address);
    char *error = arena_text(arena, peer->state == PEER_UP ? "" : peer_why_away(peer, call->admin), sizeof peer->last_error);
    Rdt__Pb__NodeInfo *info = name && address && error ? add_node(&listing->reply, arena, name, address, peer->uuid) : NULL;

    if (!info)
        return false;
    info->source = (char *)directory_source_name(source);
    info->state = (char *)peer_state_name(peer->state);
    info->state_age_ns = (int64_t)(now - peer->since_ns);
    info->listed_age_ns = source < DIRECTORY_SOURCES ? (int64_t)(now - directory->providers[source].confirmed_ns) : INT64_C(-1);
    info->error = error;
    return true;
}

Rdt__Pb__ProviderInfo **nodes_providers(const struct directory *directory, struct arena *arena, size_t *n_p)
{
    Rdt__Pb__ProviderInfo **rows = arena_messages(arena, &rdt__pb__provider_info__descriptor, DIRECTORY_SOURCES);

    *n_p = 0;
    for (unsigned i = 0; rows && i < DIRECTORY_SOURCES; i++) {
        const struct directory_provider *provider = &directory->providers[i];
        Rdt__Pb__ProviderInfo *info = rows[*n_p];
        if (!provider->active)
            continue;
        info->source = (char *)directory_source_name(provider->source);
        info->from = (char *)directory_source_from(directory, provider->source);
        for (const struct node_entry *entry = provider->nodes; entry; entry = entry->next)
            info->nodes++;
        info->age_ns = provider->confirmed_ns ? (int64_t)(uv_hrtime() - provider->confirmed_ns) : INT64_C(-1);
        info->errors = provider->errors;
        info->error = (char *)provider->error;
        ++*n_p;
    }
    return rows;
}

static void listing_free(struct listing *listing)
{
    work_free_arena(listing->pool, &listing->arena);
    free(listing);
}

static bool listing_step(struct client_task *task, uint64_t until_ns)
{
    struct listing *listing = (struct listing *)task;
    struct call *call = listing->call;
    const struct peers *peers = call->rpc->peers;
    const struct peer *peer;
    struct rdt_error err;
    bool whole = true;

    while (whole && listing->reply.n_nodes < NODES_MAX && (peer = peers ? peers_next(peers, listing->last) : NULL)) {
        whole = add_peer(listing, peer);
        listing->last = peer->number;
        if (whole && uv_hrtime() >= until_ns)
            return false;
    }
    listing->reply.providers =
        whole ? nodes_providers(call->rpc->directory, &listing->arena, &listing->reply.n_providers) : NULL;
    if (listing->reply.providers) {
        call_reply(call, &listing->reply.base, NULL, 0);
    } else {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the list of nodes");
        call_fail(call, &err);
    }
    listing_free(listing);
    return true;
}

static bool listing_drop(struct client_task *task)
{
    struct listing *listing = (struct listing *)task;

    call_drop(listing->call);
    listing_free(listing);
    return true;
}

enum rdt_status rpc_nodes(struct call *call, const void *request, struct rdt_error *err)
{
    const struct rpc *rpc = call->rpc;
    struct client *client = call->client;
    struct listing *listing = calloc(1, sizeof *listing);
    Rdt__Pb__NodeInfo *self = NULL;

    if (listing) {
        listing->task = (struct client_task){.step = listing_step, .drop = listing_drop};
        listing->call = call;
        listing->pool = rpc->regions->pool;
        arena_init(&listing->arena, RDT_MAX_DECODED_BYTES);
        rdt__pb__nodes_reply__init(&listing->reply);
        listing->reply.nodes = arena_alloc(&listing->arena, NODES_MAX * sizeof *listing->reply.nodes);
    }
    if (listing && listing->reply.nodes)
        self = add_node(&listing->reply, &listing->arena, rpc->node->address, rpc->node->address, rpc->node->uuid);
    if (!self) {
        if (listing)
            listing_free(listing);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the list of nodes");
    }
    self->source = (char *)"self";
    self->state = (char *)"here";
    self->state_age_ns = (int64_t)(uv_hrtime() - rpc->meters.started_ns);
    self->listed_age_ns = -1;
    if (!listing_step(&listing->task, uv_hrtime() + FIRST_NS)) {
        client->task = &listing->task;
        client->conn.want_turn(client);
    }
    return RDT_OK;
}
