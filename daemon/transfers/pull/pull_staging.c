/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for chunks that cannot be received at their final place: runs of small tensors, where the transport takes no
 * lists of pieces or the pieces are too small, and memory that may fault. It is one range for the whole transfer,
 * counted under memory_limit, and reserved before the owner is asked to send, because all receives must be posted
 * before the first chunk can arrive. No client ever sees it, so the region cache keeps it afterwards. */
#include <stdlib.h>

#include "daemon/transfers/fanout.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/transfer_impl.h"

#define SMALL_BYTES (128ull << 10) /* Up to this size the memory comes from the heap, without waiting. */

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) / LAYOUT_ALIGN_BYTES * LAYOUT_ALIGN_BYTES;
}

static struct region *region_at(const void *owner, uint32_t index, uint8_t **base_p)
{
    const struct transfer *transfer = owner;
    struct region *region = transfer->move.target ? transfer->move.target->uses[index].region : transfer->move.received;

    *base_p = region_is_by_fd(region) ? NULL : region_addr(region, NULL); /* It was mapped while memory was reserved. */
    return region;
}

struct chunk_ground pull_ground(const struct transfer *transfer)
{
    return (struct chunk_ground){.packed = transfer->move.packed,
                                 .layout = transfer->move.target ? transfer->move.target->layout : transfer->move.packed,
                                 .region_at = region_at,
                                 .owner = transfer,
                                 .transport = transfer->pull.path.connection->transport,
                                 .max_pieces = transfer->pull.chunks.max_pieces,
                                 .faults_allowed = transfer->pull.path.one_sided};
}

uint64_t pull_chunk_bytes(const struct transfer *transfer)
{
    const struct options *options = transfer->transfers->options;

    if (transfer->pull.replica && !transfer->pull.path.one_sided &&
        options->fanout_min_bytes > 0) /* Other nodes may read each chunk as soon as it is here. */
        return fanout_chunk_bytes(transfer->move.stream_bytes, options->chunk_bytes);
    return options->chunk_bytes;
}

enum rdt_status pull_plan_chunks(struct transfer *transfer, struct rdt_error *err)
{
    uint64_t chunk_bytes = pull_chunk_bytes(transfer);
    struct chunk_ground ground;
    enum rdt_status status;

    if (transfer->pull.chunks.plan)
        return RDT_OK;
    if (transfer->pull.path.one_sided || transfer->pull.path.single)
        status = chunk_plan_create_single(transfer->move.packed, transfer->move.stream_bytes, chunk_bytes,
                                          &transfer->pull.chunks.plan, err);
    else
        status = chunk_plan_create(transfer->move.packed, transfer->move.stream_bytes, chunk_bytes, &transfer->pull.chunks.plan,
                                   err);
    if (status != RDT_OK)
        return status;
    transfer->pull.chunks.max_pieces = transfer->pull.path.staged ? 0
                                       : transfer->pull.path.one_sided
                                           ? 1
                                           : plugin_conn_pieces(&transfer->pull.path.connection->conn, "host");
    ground = pull_ground(transfer);
    transfer->pull.chunks.staging.need = 0;
    for (uint32_t i = 0; i < transfer->pull.chunks.plan->n && !transfer->pull.path.staged; i++)
        if (!chunk_is_in_place(&transfer->pull.chunks.plan->chunks[i], &ground))
            transfer->pull.chunks.staging.need += align_up(transfer->pull.chunks.plan->chunks[i].bytes);
    return RDT_OK;
}

static bool staging_is_small(const struct transfer *transfer)
{
    return transfer->pull.chunks.staging.need <= SMALL_BYTES;
}

static void on_staging(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    transfer->pull.chunks.staging.region = region;
    transfer->pull.chunks.staging.on_ready(transfer, region, err);
}

enum rdt_status pull_reserve_staging(struct transfer *transfer, region_ready on_ready, struct rdt_error *err)
{
    struct staging *staging = &transfer->pull.chunks.staging;
    struct regions *regions = transfer->transfers->regions;
    enum rdt_status status = RDT_OK;
    uint64_t need = staging->need;

    if (need > (staging->region ? staging->region->bytes : staging->heap_bytes)) { /* An earlier attempt needed less. */
        pull_free_staging(transfer);
        staging->need = need;
    }
    if (need > 0 && !staging->region && !staging->heap) {
        if (staging_is_small(transfer)) {
            status = regions_charge(regions, staging->need, err);
            if (status == RDT_OK && !(staging->heap = aligned_alloc(LAYOUT_ALIGN_BYTES, staging->need))) {
                regions_uncharge(regions, staging->need);
                status =
                    rdt_error_set(err, RDT_NO_MEMORY, "no memory to receive %llu bytes", (unsigned long long)staging->need);
            }
            staging->heap_bytes = staging->heap ? staging->need : 0;
        } else {
            staging->on_ready = on_ready;
            status = region_alloc(regions, "host", "", staging->need, REGION_STAGING, transfer->account, 0, &staging->region,
                                  on_staging, transfer, err);
        }
        if (status != RDT_OK && status != RDT_AGAIN)
            rdt_error_prefix(err, "to receive tensors that are too small to be received one by one");
    }
    if (status == RDT_OK && staging->region && !region_addr(staging->region, err))
        status = err ? err->status : RDT_SYSTEM;
    return status;
}

uint8_t *pull_take_staging(struct transfer *transfer, uint64_t bytes)
{
    struct staging *staging = &transfer->pull.chunks.staging;
    uint8_t *base = staging->region ? region_addr(staging->region, NULL) : staging->heap;
    uint8_t *at = base + staging->used;

    staging->used += align_up(bytes);
    return at;
}

void pull_free_staging(struct transfer *transfer)
{
    struct staging *staging = &transfer->pull.chunks.staging;

    region_unref(staging->region);
    if (staging->heap)
        regions_uncharge(transfer->transfers->regions, staging->heap_bytes);
    free(staging->heap);
    *staging = (struct staging){0};
}
