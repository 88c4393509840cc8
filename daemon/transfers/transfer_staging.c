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
    struct region *region = transfer->target ? transfer->target->uses[index].region : transfer->received;

    *base_p = region_addr(region, NULL); /* It was mapped while memory was reserved. */
    return region;
}

struct chunk_ground transfer_ground(const struct transfer *transfer)
{
    return (struct chunk_ground){.packed = transfer->packed,
                                 .layout = transfer->target ? transfer->target->layout : transfer->packed,
                                 .region_at = region_at,
                                 .owner = transfer,
                                 .transport = transfer->pull.connection->transport,
                                 .max_pieces = transfer->pull.max_pieces,
                                 .faults_allowed = transfer->pull.one_sided};
}

uint64_t transfer_chunk_bytes(const struct transfer *transfer)
{
    const struct options *options = transfer->transfers->options;

    if (transfer->pull.broadcast.chunk_bytes > 0)
        return transfer->pull.broadcast.chunk_bytes;
    if (transfer->pull.replica && !transfer->pull.one_sided &&
        options->fanout_min_bytes > 0) /* Other nodes may read each chunk as soon as it is here. */
        return fanout_chunk_bytes(transfer->stream_bytes, options->chunk_bytes);
    return options->chunk_bytes;
}

enum rdt_status transfer_plan(struct transfer *transfer, struct rdt_error *err)
{
    uint64_t chunk_bytes = transfer_chunk_bytes(transfer);
    struct chunk_ground ground;
    enum rdt_status status;

    if (transfer->pull.plan)
        return RDT_OK;
    if (transfer->pull.one_sided || transfer->pull.single)
        status = chunk_plan_create_single(transfer->packed, transfer->stream_bytes, chunk_bytes, &transfer->pull.plan, err);
    else
        status = chunk_plan_create(transfer->packed, transfer->stream_bytes, chunk_bytes, &transfer->pull.plan, err);
    if (status != RDT_OK)
        return status;
    transfer->pull.max_pieces = transfer->pull.staged_here ? 0
                                : transfer->pull.one_sided || transfer->pull.broadcast.collective
                                    ? 1
                                    : plugin_conn_pieces(&transfer->pull.connection->conn, "host");
    ground = transfer_ground(transfer);
    transfer->pull.staging.need = 0;
    for (uint32_t i = 0; i < transfer->pull.plan->n && !transfer->pull.staged_here; i++)
        if (!chunk_is_in_place(&transfer->pull.plan->chunks[i], &ground))
            transfer->pull.staging.need += align_up(transfer->pull.plan->chunks[i].bytes);
    return RDT_OK;
}

bool transfer_staging_is_small(const struct transfer *transfer)
{
    return transfer->pull.staging.need <= SMALL_BYTES;
}

static void on_staging(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    transfer->pull.staging.region = region;
    transfer->pull.staging.on_ready(transfer, region, err);
}

enum rdt_status transfer_reserve_staging(struct transfer *transfer, region_ready on_ready, struct rdt_error *err)
{
    struct staging *staging = &transfer->pull.staging;
    struct regions *regions = transfer->transfers->regions;
    enum rdt_status status = RDT_OK;
    uint64_t need = staging->need;

    if (need > (staging->region ? staging->region->bytes : staging->heap_bytes)) { /* An earlier attempt needed less. */
        transfer_free_staging(transfer);
        staging->need = need;
    }
    if (need > 0 && !staging->region && !staging->heap) {
        if (transfer_staging_is_small(transfer)) {
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

uint8_t *transfer_take_staging(struct transfer *transfer, uint64_t bytes)
{
    struct staging *staging = &transfer->pull.staging;
    uint8_t *base = staging->region ? region_addr(staging->region, NULL) : staging->heap;
    uint8_t *at = base + staging->used;

    staging->used += align_up(bytes);
    return at;
}

void transfer_free_staging(struct transfer *transfer)
{
    struct staging *staging = &transfer->pull.staging;

    region_unref(staging->region);
    if (staging->heap)
        regions_uncharge(transfer->transfers->regions, staging->heap_bytes);
    free(staging->heap);
    *staging = (struct staging){0};
}

struct device_part chunk_part(const struct chunk *chunk, const struct layout *packed)
{
    struct device_part part = {.first = chunk->first, .bytes = chunk->bytes};

    if (chunk->count == 1) {
        part.at = chunk->offset - packed->offset[chunk->first];
        return part;
    }
    part.bytes = 0;
    for (uint32_t i = chunk->first; i < chunk->first + chunk->count; i++)
        part.bytes += layout_bytes(packed, i);
    return part;
}
