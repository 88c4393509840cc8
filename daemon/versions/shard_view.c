/* SPDX-License-Identifier: Apache-2.0 */
/* The description of the versions of a name, for the reply of SHARDS. */
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/versions/shards_impl.h"

static void list_lost(const struct version *version, Rdt__Pb__ShardsReply *reply)
{
    reply->lost = calloc(version->of, sizeof *reply->lost);
    for (uint32_t i = 0; reply->lost && i < version->of; i++)
        if (version_lacks(version, i))
            reply->lost[reply->n_lost++] = i;
}

enum rdt_status shards_view(const struct shards *shards, const struct owner *owner, const struct rdt_ref *ref,
                            Rdt__Pb__ShardsReply *reply, struct rdt_error *err)
{
    const struct shard_name *name = shard_name_find(shards, owner, ref);
    uint64_t now_ns = uv_hrtime();

    rdt__pb__shards_reply__init(reply);
    if (!name)
        return RDT_OK;
    reply->pending = calloc(shard_name_n_filling(name) + 1u, sizeof *reply->pending);
    reply->failure = strdup(name->failure);
    reply->failure_age_ns = name->failure[0] ? (int64_t)(now_ns - name->failed_ns) : 0;
    if (version_is_current(name->current)) {
        reply->age_ns = (int64_t)(now_ns - name->current->began_ns);
        list_lost(name->current, reply);
    }
    if (!reply->pending || !reply->failure)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to list the versions of \"%s\"", ref->id);
    list_each (const struct version, version, &name->versions, link) {
        Rdt__Pb__PendingVersion *row = version->state == VERSION_FILLING ? malloc(sizeof *row) : NULL;
        if (!row)
            continue;
        rdt__pb__pending_version__init(row);
        row->step = version->step;
        row->of = version->of;
        row->age_ns = (int64_t)(now_ns - version->began_ns);
        row->pieces = version->n_pieces;
        row->tensors = version->growth.n_tensors;
        row->bytes = version->growth.bytes;
        row->ranks = calloc(version->of, sizeof *row->ranks);
        row->growing = calloc(version->of, sizeof *row->growing);
        for (uint32_t i = 0; row->ranks && row->growing && i < version->of; i++)
            if (rank_is_whole(&version->ranks[i]))
                row->ranks[row->n_ranks++] = i;
            else if (version->ranks[i].begun)
                row->growing[row->n_growing++] = i;
        reply->pending[reply->n_pending++] = row;
    }
    return RDT_OK;
}

void shards_each(const struct shards *shards, void (*each)(void *arg, const struct shard_state *state), void *arg)
{
    const struct shard_name *name;
    uint64_t now_ns = uv_hrtime();
    size_t cursor = 0;

    while ((name = map_next(&shards->names, &cursor)))
        list_each (const struct version, version, &name->versions, link) {
            struct shard_state state = {.owner = &version->account->owner,
                                        .id = shard_name_id(name),
                                        .id_bytes = name->id_bytes,
                                        .step = version->step,
                                        .age_ns = now_ns - version->began_ns,
                                        .of = version->of,
                                        .n_parts = version->n_parts,
                                        .complete = version->state == VERSION_COMPLETE};
            if (state.complete && (version != name->current || !version_is_current(version)))
                continue;
            for (uint32_t i = 0; i < version->of && !state.grows; i++)
                state.grows = version->ranks[i].begun && !rank_is_whole(&version->ranks[i]);
            version_list_ranks(version, state.ranks, sizeof state.ranks);
            each(arg, &state);
        }
}

unsigned shards_n_filling(const struct shards *shards)
{
    const struct shard_name *name;
    unsigned n = 0;
    size_t cursor = 0;

    while ((name = map_next(&shards->names, &cursor)))
        n += shard_name_n_filling(name);
    return n;
}

void shards_view_fini(Rdt__Pb__ShardsReply *reply)
{
    for (size_t i = 0; i < reply->n_pending; i++) {
        free(reply->pending[i]->ranks);
        free(reply->pending[i]->growing);
        free(reply->pending[i]);
    }
    free(reply->pending);
    free(reply->lost);
    if (reply->failure != protobuf_c_empty_string)
        free(reply->failure);
}
