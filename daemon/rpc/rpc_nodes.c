/* SPDX-License-Identifier: Apache-2.0 */
/* NODES: the node table, and the state of the link to each node. */
#include "daemon/rpc/rpc_nodes.h"

#include "daemon/base/node.h"

#define NODES_MAX 8192u /* of one answer */

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

static bool add_peer(const struct call *call, Rdt__Pb__NodesReply *reply, const struct peer *peer)
{
    const struct directory *directory = call->rpc->directory;
    enum directory_source source = directory_source_of(directory, peer);
    uint64_t now = uv_hrtime();
    Rdt__Pb__NodeInfo *info = add_node(reply, call->arena, peer->name, peer->address, peer->uuid);

    if (!info)
        return false;
    info->source = (char *)directory_source_name(source);
    info->state = (char *)peer_state_name(peer->state);
    info->state_age_ns = (int64_t)(now - peer->since_ns);
    info->listed_age_ns = source < DIRECTORY_SOURCES ? (int64_t)(now - directory->providers[source].confirmed_ns) : INT64_C(-1);
    info->error = (char *)(peer->state == PEER_UP ? "" : peer_why_away(peer, call->admin));
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

enum rdt_status rpc_nodes(struct call *call, const void *request, struct rdt_error *err)
{
    const struct rpc *rpc = call->rpc;
    Rdt__Pb__NodesReply reply = RDT__PB__NODES_REPLY__INIT;
    Rdt__Pb__NodeInfo *self;
    bool whole = true;

    reply.nodes = arena_alloc(call->arena, NODES_MAX * sizeof *reply.nodes);
    reply.providers = nodes_providers(rpc->directory, call->arena, &reply.n_providers);
    self = reply.nodes ? add_node(&reply, call->arena, rpc->node->address, rpc->node->address, rpc->node->uuid) : NULL;
    if (!self || !reply.providers)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the list of nodes");
    self->source = (char *)"self";
    self->state = (char *)"here";
    self->state_age_ns = (int64_t)(uv_hrtime() - rpc->started_ns);
    self->listed_age_ns = -1;
    if (rpc->peers)
        list_for_each (node, peers_all(rpc->peers))
            if (whole && reply.n_nodes < NODES_MAX)
                whole = add_peer(call, &reply, container_of(node, struct peer, link));
    if (!whole)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the list of nodes");
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
