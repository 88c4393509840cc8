/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_lookup and rdt_lease_end: many ids of this user, in one message for a few thousand. */
#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "client/options.h"
#include "client/rdt_many.h"
#include "client/session/clock.h"
#include "client/session/connection.h"
#include "proto/wire_limits.h"
#include "rdt.pb-c.h"
#include "wire_ref.h"

#define AT_ONCE 4096u /* ids in a message */
#define NODES_MOST_NS INT64_C(60000000000)

static enum rdt_status fill(const struct rdt_key *keys, size_t n, Rdt__Pb__Lookup *message, struct rdt_error *err)
{
    message->ids.data = malloc(n * RDT_MAX_ID_BYTES + 1);
    message->id_bytes = calloc(n + 1, sizeof *message->id_bytes);
    if (!message->ids.data || !message->id_bytes)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to look for %zu ids", n);
    message->n_id_bytes = n;
    for (size_t i = 0; i < n; i++) {
        message->id_bytes[i] = (uint32_t)keys[i].id_bytes;
        memcpy(message->ids.data + message->ids.len, keys[i].id, keys[i].id_bytes);
        message->ids.len += keys[i].id_bytes;
    }
    return RDT_OK;
}

static void make_ref(const struct rdt_node_info *node, const struct rdt_key *key, uint64_t generation, struct rdt_ref *ref_p)
{
    *ref_p = (struct rdt_ref){.generation = generation, .uid = node->uid, .id_bytes = (uint8_t)key->id_bytes};
    memcpy(ref_p->node, node->node, sizeof ref_p->node);
    memcpy(ref_p->address, node->address, sizeof ref_p->address);
    memcpy(ref_p->tenant, node->tenant, sizeof ref_p->tenant);
    memcpy(ref_p->id, key->id, key->id_bytes);
}

static void place_ref(const Rdt__Pb__LookupNode *node, struct rdt_ref *ref_p)
{
    memcpy(ref_p->node, node->node.data, sizeof ref_p->node);
    memset(ref_p->address, 0, sizeof ref_p->address);
    memcpy(ref_p->address, node->address, strnlen(node->address, sizeof ref_p->address - 1));
}

/* Whether the answer, which came for n ids, can be read. */
static bool is_whole(const Rdt__Pb__LookupReply *reply, size_t n, bool prefix)
{
    if (reply->n_generation > n || (!prefix && reply->n_generation != n) ||
        (reply->n_at > 0 && reply->n_at != reply->n_generation))
        return false;
    for (size_t i = 0; i < reply->n_at; i++)
        if (reply->at[i] > reply->n_nodes)
            return false;
    for (size_t i = 0; i < reply->n_nodes; i++)
        if (reply->nodes[i]->node.len != sizeof(((struct rdt_ref *)0)->node))
            return false;
    return true;
}

static void tell_unasked(const struct rdt_lookup_options *options, const Rdt__Pb__LookupReply *reply)
{
    struct rdt_error why;

    for (size_t i = 0; options->on_unasked && i < reply->n_unasked; i++) {
        (void)wire_error(reply->unasked[i]->status, 0, reply->unasked[i]->why, &why);
        options->on_unasked(options->arg, reply->unasked[i]->name, &why);
    }
}

/* *n_looked_p: how many were looked for, which are fewer than n if the prefix ends. */
static enum rdt_status look(rdt *conn, const struct rdt_node_info *node, const struct rdt_key *keys, size_t n,
                            const struct rdt_lookup_options *options, struct rdt_ref *refs_p, size_t *n_looked_p,
                            struct rdt_error *err)
{
    Rdt__Pb__Lookup message = RDT__PB__LOOKUP__INIT;
    const Rdt__Pb__LookupReply *reply;
    ProtobufCMessage *answer = NULL;
    enum rdt_status status = fill(keys, n, &message, err);

    message.prefix = options->prefix;
    message.lease_ns = options->lease_ns;
    message.nodes_ns = options->nodes_ns;
    if (status == RDT_OK)
        status = call(conn, RDT_MSG_LOOKUP, &message.base, CALL_TIMEOUT_NS + options->nodes_ns, &answer, err);
    free(message.ids.data);
    free(message.id_bytes);
    if (status != RDT_OK)
        return status;
    reply = (const Rdt__Pb__LookupReply *)answer;
    if (!is_whole(reply, n, options->prefix))
        status = rdt_error_set(err, RDT_PROTOCOL, "rdtd answered LOOKUP for %zu of %zu ids", reply->n_generation, n);
    *n_looked_p = status == RDT_OK ? reply->n_generation : 0;
    for (size_t i = 0; i < *n_looked_p; i++) {
        if (reply->generation[i])
            make_ref(node, &keys[i], reply->generation[i], &refs_p[i]);
        if (reply->generation[i] && reply->n_at && reply->at[i])
            place_ref(reply->nodes[reply->at[i] - 1], &refs_p[i]);
    }
    if (status == RDT_OK)
        tell_unasked(options, reply);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

/* ---- ends ---- */

/* Which node has the ref: 0 for this one, i for nodes[i - 1], to which it is added. Lookups find on few nodes. */
static uint32_t place_of(const struct rdt_node_info *node, const struct rdt_ref *ref, ProtobufCBinaryData *nodes, size_t *n_p)
{
    static const uint8_t nobody[16];

    if (memcmp(ref->node, nobody, sizeof nobody) == 0 || memcmp(ref->node, node->node, sizeof node->node) == 0)
        return 0;
    for (size_t i = *n_p; i > 0; i--)
        if (memcmp(nodes[i - 1].data, ref->node, sizeof ref->node) == 0)
            return (uint32_t)i;
    nodes[(*n_p)++] = (ProtobufCBinaryData){sizeof ref->node, (uint8_t *)ref->node};
    return (uint32_t)*n_p;
}

static void end_free(Rdt__Pb__LeaseEnd *message)
{
    free(message->generation);
    free(message->at);
    free(message->nodes);
}

/* false: no memory. end_free in any case. */
static bool end_fill(const struct rdt_node_info *node, const struct rdt_ref *refs, size_t n, Rdt__Pb__LeaseEnd *message)
{
    uint32_t *place = calloc(n + 1, sizeof *place);
    bool filled;

    rdt__pb__lease_end__init(message);
    message->generation = calloc(n + 1, sizeof *message->generation);
    message->at = calloc(n + 1, sizeof *message->at);
    message->nodes = calloc(n + 1, sizeof *message->nodes);
    filled = place && message->generation && message->at && message->nodes;
    for (size_t i = 0; filled && i < n; i++)
        place[i] = refs[i].generation ? place_of(node, &refs[i], message->nodes, &message->n_nodes) : UINT32_MAX;
    for (uint32_t k = 0; filled && k <= message->n_nodes; k++) /* those of one node together: rdtd sends them in one message */
        for (size_t i = 0; i < n; i++)
            if (place[i] == k) {
                message->at[message->n_generation] = k;
                message->generation[message->n_generation++] = refs[i].generation;
            }
    message->n_at = message->n_nodes > 0 ? message->n_generation : 0;
    free(place);
    return filled;
}

static enum rdt_status end(rdt *conn, const struct rdt_node_info *node, const struct rdt_ref *refs, size_t n,
                           struct rdt_error *err)
{
    Rdt__Pb__LeaseEnd message;
    enum rdt_status status = end_fill(node, refs, n, &message)
                                 ? call(conn, RDT_MSG_LEASE_END, &message.base, CALL_TIMEOUT_NS, NULL, err)
                                 : rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to end %zu leases", n);

    end_free(&message);
    return status;
}

/* Ends, without waiting, the leases that earlier messages of a look-up have begun. */
static void end_begun(rdt *conn, const struct rdt_node_info *node, const struct rdt_ref *refs, size_t count)
{
    Rdt__Pb__LeaseEnd message;

    for (size_t first = 0; first < count; first += AT_ONCE) {
        if (end_fill(node, refs + first, count - first < AT_ONCE ? count - first : AT_ONCE, &message)) {
            connection_lock(conn);
            call_end_leases(conn, &message);
            connection_unlock(conn);
        }
        end_free(&message);
    }
}

/* ---- public calls ---- */

enum rdt_status rdt_lookup(rdt *conn, const struct rdt_key *keys, size_t count, const struct rdt_lookup_options *given,
                           struct rdt_ref *refs_p, size_t *n_p, struct rdt_error *err)
{
    struct rdt_lookup_options options = {.struct_size = 0};
    struct rdt_node_info node;
    size_t found = 0, n_looked = AT_ONCE, first = 0;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_copy(&options, sizeof options, given, err);
    if (status == RDT_OK && count > 0 && (!keys || !refs_p))
        status = rdt_error_set(err, RDT_INVALID, "keys or refs_p is NULL, and count is %zu", count);
    if (status == RDT_OK && options.lease_ns < 0)
        status = rdt_error_set(err, RDT_INVALID, "lease_ns is negative");
    if (status == RDT_OK && (options.nodes_ns < 0 || options.nodes_ns > NODES_MOST_NS))
        status = rdt_error_set(err, RDT_INVALID, "nodes_ns is %.3f s: other nodes can be asked for up to a minute",
                               (double)options.nodes_ns / 1e9);
    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        refs_p[i] = (struct rdt_ref){.generation = 0};
        if (!keys[i].id || keys[i].id_bytes == 0 || keys[i].id_bytes > RDT_MAX_ID_BYTES)
            status =
                rdt_error_set(err, RDT_INVALID, "key %zu has %zu bytes, not 1 to %u", i, keys[i].id_bytes, RDT_MAX_ID_BYTES);
    }
    if (status == RDT_OK)
        connection_copy_node(conn, &node);
    for (; status == RDT_OK && first < count && n_looked == AT_ONCE; first += AT_ONCE)
        status = look(conn, &node, keys + first, count - first < AT_ONCE ? count - first : AT_ONCE, &options, refs_p + first,
                      &n_looked, err);
    if (status != RDT_OK) {
        if (options.lease_ns > 0)
            end_begun(conn, &node, refs_p, first < count ? first : count);
        return status;
    }
    for (size_t i = 0; i < count; i++)
        found += refs_p[i].generation != 0;
    if (n_p)
        *n_p = found;
    return RDT_OK;
}

enum rdt_status rdt_lease_end(rdt *conn, const struct rdt_ref *refs, size_t count, struct rdt_error *err)
{
    struct rdt_error why;
    enum rdt_status status = connection_check(conn, err);
    struct rdt_node_info node;

    if (status == RDT_OK && count > 0 && !refs)
        return rdt_error_set(err, RDT_INVALID, "refs is NULL, and count is %zu", count);
    if (status == RDT_OK)
        connection_copy_node(conn, &node);
    for (size_t first = 0; status == RDT_OK && first < count; first += AT_ONCE) {
        status = end(conn, &node, refs + first, count - first < AT_ONCE ? count - first : AT_ONCE, &why);
        if (status == RDT_RESTARTED) /* they may have ended; otherwise they do when their time has passed */
            status = RDT_OK;
        else if (status != RDT_OK && err)
            *err = why;
    }
    return status;
}
