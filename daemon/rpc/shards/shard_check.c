/* SPDX-License-Identifier: Apache-2.0 */
/* The check that the parts of a version cover every tensor once. A worker makes it, because there may be a hundred thousand
 * boxes. */
#include <stdlib.h>

#include "daemon/memory/region.h"
#include "daemon/rpc/shards/shards_impl.h"

struct shard_check {
    struct work work;
    struct version *version; /* NULL: it has ended meanwhile */
    struct shard_cover cover;
    bool running;
    struct rdt_error err; /* the result */
};

bool version_check_init(struct version *version)
{
    struct shard_check *check = calloc(1, sizeof *check);

    if (!check)
        return false;
    check->version = version;
    shard_cover_init(&check->cover);
    version->check = check;
    return true;
}

void version_check_fini(struct version *version)
{
    struct shard_check *check = version->check;

    version->check = NULL;
    if (!check)
        return;
    check->version = NULL;
    if (check->running) /* `done` frees it */
        return;
    shard_cover_fini(&check->cover);
    free(check);
}

struct shard_cover *version_cover(struct version *version)
{
    return &version->check->cover;
}

static void run(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);

    (void)shard_cover_check(&check->cover, &check->err);
    shard_cover_fini(&check->cover);
}

static void done(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);
    struct version *version = check->version;
    struct rdt_error err = check->err;

    free(check);
    if (!version)
        return;
    version->check = NULL;
    version_checked(version, &err);
}

void version_check_start(struct version *version)
{
    struct shard_check *check = version->check;

    if (check->running)
        return;
    check->running = true;
    check->work.run = run;
    check->work.done = done;
    work_submit(version->name->shards->rpc->regions->pool, &check->work);
}
