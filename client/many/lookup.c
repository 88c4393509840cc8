/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_lookup and rdt_lease_end: many ids of this user on this node, in one message for a few thousand. */
#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "client/rdt_many.h"
#include "client/session/clock.h"
#include "client/session/connection.h"
#include "proto/wire_limits.h"
#include "rdt.pb-c.h"

#define AT_ONCE 4096u /* ids in a message */

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

/* *n_looked_p: how many were looked for, which are fewer than n if the prefix ends. */
static enum rdt_status look(rdt *conn, const struct rdt_node_info *node, const struct rdt_key *keys, size_t n, bool prefix,
                            int64_t lease_ns, struct rdt_ref *refs_p, size_t *n_looked_p, struct rdt_error *err)
{
    Rdt__Pb__Lookup message = RDT__PB__LOOKUP__INIT;
    const Rdt__Pb__LookupReply *reply;
    ProtobufCMessage *answer = NULL;
    enum rdt_status status = fill(keys, n, &message, err);

    message.prefix = prefix;
    message.lease_ns = lease_ns;
    if (status == RDT_OK)
        status = call(conn, RDT_MSG_LOOKUP, &message.base, CALL_TIMEOUT_NS, &answer, err);
    free(message.ids.data);
    free(message.id_bytes);
    if (status != RDT_OK)
        return status;
    reply = (const Rdt__Pb__LookupReply *)answer;
    if (reply->n_generation > n || (!prefix && reply->n_generation != n))
        status = rdt_error_set(err, RDT_PROTOCOL, "rdtd answered LOOKUP for %zu of %zu ids", reply->n_generation, n);
    *n_looked_p = status == RDT_OK ? reply->n_generation : 0;
    for (size_t i = 0; i < *n_looked_p; i++)
        if (reply->generation[i])
            make_ref(node, &keys[i], reply->generation[i], &refs_p[i]);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

/* Ends the leases that earlier messages of a look-up have begun. */
static void end_begun(rdt *conn, const struct rdt_ref *refs, size_t count)
{
    uint64_t *generation = malloc(AT_ONCE * sizeof *generation);

    for (size_t first = 0, n = 0; generation && first < count; first += AT_ONCE, n = 0) {
        for (size_t i = first; i < count && i - first < AT_ONCE; i++)
            if (refs[i].generation != 0)
                generation[n++] = refs[i].generation;
        connection_lock(conn);
        call_end_leases(conn, generation, n);
        connection_unlock(conn);
    }
    free(generation);
}

enum rdt_status rdt_lookup(rdt *conn, const struct rdt_key *keys, size_t count, bool prefix, int64_t lease_ns,
                           struct rdt_ref *refs_p, size_t *n_p, struct rdt_error *err)
{
    struct rdt_node_info node;
    size_t found = 0, n_looked = AT_ONCE, first = 0;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && count > 0 && (!keys || !refs_p))
        status = rdt_error_set(err, RDT_INVALID, "keys or refs_p is NULL, and count is %zu", count);
    if (status == RDT_OK && lease_ns < 0)
        status = rdt_error_set(err, RDT_INVALID, "lease_ns is negative");
    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        refs_p[i] = (struct rdt_ref){.generation = 0};
        if (!keys[i].id || keys[i].id_bytes == 0 || keys[i].id_bytes > RDT_MAX_ID_BYTES)
            status =
                rdt_error_set(err, RDT_INVALID, "key %zu has %zu bytes, not 1 to %u", i, keys[i].id_bytes, RDT_MAX_ID_BYTES);
    }
    if (status == RDT_OK)
        connection_copy_node(conn, &node);
    for (; status == RDT_OK && first < count && n_looked == AT_ONCE; first += AT_ONCE)
        status = look(conn, &node, keys + first, count - first < AT_ONCE ? count - first : AT_ONCE, prefix, lease_ns,
                      refs_p + first, &n_looked, err);
    if (status != RDT_OK) {
        if (lease_ns > 0)
            end_begun(conn, refs_p, first < count ? first : count);
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
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && count > 0 && !refs)
        return rdt_error_set(err, RDT_INVALID, "refs is NULL, and count is %zu", count);
    for (size_t first = 0; status == RDT_OK && first < count; first += AT_ONCE) {
        size_t n = count - first < AT_ONCE ? count - first : AT_ONCE;
        Rdt__Pb__LeaseEnd message = RDT__PB__LEASE_END__INIT;

        message.generation = calloc(n, sizeof *message.generation);
        if (!message.generation)
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to end %zu leases", n);
        for (size_t i = 0; i < n; i++)
            if (refs[first + i].generation != 0)
                message.generation[message.n_generation++] = refs[first + i].generation;
        status = call(conn, RDT_MSG_LEASE_END, &message.base, CALL_TIMEOUT_NS, NULL, err);
        free(message.generation);
    }
    return status;
}
