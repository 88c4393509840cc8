/* SPDX-License-Identifier: Apache-2.0 */
/* The check that the parts of a version cover every tensor once, and the manifest. A worker makes both, because there may be a
 * million boxes. */
#include <stdlib.h>

#include "daemon/memory/region.h"
#include "daemon/versions/shards_impl.h"

struct shard_check {
    struct work work;
    struct version *version; /* NULL: it has ended meanwhile */
    version_checked on_checked;
    struct shard_cover cover;
    uint32_t of;
    bool running;
    /* the result */
    struct rdt_error err;
    uint8_t *manifest; /* [manifest_bytes] */
    size_t manifest_bytes;
    struct shard_row rows[]; /* [of] */
};

enum rdt_status version_check_init(struct version *version, version_checked on_checked, struct rdt_error *err)
{
    struct shard_check *check;
    size_t bytes = sizeof *check + version->of * sizeof check->rows[0];
    enum rdt_status status = version_charge(version, &version->check_bytes, bytes, err);

    if (status != RDT_OK)
        return status;
    check = calloc(1, bytes);
    if (!check)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a version");
    check->version = version;
    check->on_checked = on_checked;
    check->of = version->of;
    shard_cover_init(&check->cover);
    version->check = check;
    return RDT_OK;
}

void version_check_fini(struct version *version)
{
    struct shard_check *check = version->check;

    version->check = NULL;
    account_give(version->account, USAGE_HEAP, version->check_bytes);
    version->check_bytes = 0;
    if (!check)
        return;
    check->version = NULL;
    if (check->running) /* `done` frees it */
        return;
    shard_cover_fini(&check->cover);
    free(check);
}

enum rdt_status version_check_add(struct version *version, const struct shard_part *part, const struct layout *layout,
                                  const Rdt__Pb__Boxes *boxes, struct rdt_error *err)
{
    struct shard_check *check = version->check;
    uint64_t before = check->cover.bytes;
    enum rdt_status status = shard_cover_add(&check->cover, part->rank, layout, boxes, err);

    if (status == RDT_OK)
        status = shard_cover_expect(&check->cover, part->rank, part->others, part->n_others, err);
    if (status == RDT_OK && check->cover.manifest_bytes > RDT_MAX_METADATA_BYTES)
        status = rdt_error_set(err, RDT_LIMIT,
                               "its manifest would have more than the limit of %u bytes, which %u parts have reached: publish "
                               "fewer or larger tensors",
                               RDT_MAX_METADATA_BYTES, version->n_parts);
    if (status == RDT_OK)
        status = version_charge(version, &version->check_bytes, check->cover.bytes - before, err);
    check->rows[part->rank] = (struct shard_row){part->object, part->part->bytes};
    return status;
}

static void run(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);

    if (shard_cover_check(&check->cover, &check->err) == RDT_OK)
        (void)shard_manifest_pack(&check->cover, check->rows, check->of, &check->manifest, &check->manifest_bytes, &check->err);
    shard_cover_fini(&check->cover);
}

static void done(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);
    struct version *version = check->version;

    if (version) {
        version->check = NULL;
        check->on_checked(version, check->manifest, check->manifest_bytes, &check->err);
    }
    free(check->manifest);
    free(check);
}

void version_check_start(struct version *version)
{
    struct shard_check *check = version->check;

    if (check->running)
        return;
    check->running = true;
    check->work.run = run;
    check->work.done = done;
    work_submit(version->shards->regions->pool, &check->work);
}
