/* SPDX-License-Identifier: Apache-2.0 */
/* The check that the parts of a version cover every tensor once, and the manifest. A worker notes the boxes of one part after
 * the other, of which a part may have 131,072, and makes the manifest, because there may be a million of them. */
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/region.h"
#include "daemon/versions/shards_impl.h"
#include "proto/grow.h"
#include "proto/wire_limits.h"

/* A part whose boxes have not been noted. */
struct adding {
    struct list link; /* in check->adding */
    uint32_t number, rank;
    struct layout *layout; /* NULL: there are only keys of other parts */
    uint64_t charged;
    size_t box_bytes, other_bytes;
    uint8_t packed[]; /* Boxes [box_bytes], then the keys of other parts [other_bytes], each with its zero */
};

struct shard_check {
    struct work work;
    struct version *version; /* NULL: it has ended meanwhile. Then the check itself is what is charged: */
    struct account *account; /* a reference; NULL: nothing */
    uint64_t charged;        /* bytes */
    const struct version_check_events *events;
    struct shard_cover cover;
    struct work_pool *pool; /* NULL: there are no boxes */
    uint64_t charged_cover; /* bytes of `cover` that are charged */
    struct list adding;     /* struct adding.link */
    struct adding *at;      /* the one that the worker has; NULL: it makes the manifest */
    bool running;           /* a worker has it */
    bool wanted;            /* version_check_start was called */
    /* the result */
    struct rdt_error err;
    struct shard_manifest manifest;
    uint8_t *to;            /* where the worker copies its tensor to; NULL: the tensor has no memory yet */
    struct shard_row *rows; /* [n] of the parts so far. A worker reads them when no more can come */
    uint32_t n;
    size_t room;
};

enum rdt_status version_check_init(struct version *version, const struct version_check_events *events, struct rdt_error *err)
{
    struct shard_check *check;
    enum rdt_status status = version_charge(version, &version->check_bytes, sizeof *check, err);

    if (status != RDT_OK)
        return status;
    check = calloc(1, sizeof *check);
    if (!check)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a version");
    check->version = version;
    check->events = events;
    list_init(&check->adding);
    shard_cover_init(&check->cover, version->shards->max_tensors);
    version->check = check;
    return RDT_OK;
}

static void adding_free(struct adding *adding)
{
    list_remove(&adding->link);
    free(adding->layout);
    free(adding);
}

/* Everything that may be large. Any thread. */
static void free_contents(struct shard_check *check)
{
    list_drain (struct adding, adding, &check->adding, link)
        adding_free(adding);
    free(check->rows);
    free(check->manifest.metadata);
    if (check->manifest.tensor)
        work_free(check->pool, check->manifest.tensor, check->manifest.tensor_bytes);
}

static void run_fini(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);

    shard_cover_fini(&check->cover);
    free_contents(check);
}

static void done_fini(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);

    account_give(check->account, USAGE_HEAP, check->charged);
    account_unref(check->account);
    free(check);
}

/* No worker has it, and its version has ended. */
static void begin_fini(struct shard_check *check)
{
    check->work = (struct work){.run = run_fini, .done = done_fini};
    if (check->pool) {
        work_submit(check->pool, &check->work);
    } else {
        run_fini(&check->work);
        done_fini(&check->work);
    }
}

void version_check_fini(struct version *version)
{
    struct shard_check *check = version->check;

    version->check = NULL;
    if (check) { /* what a worker still has stays charged until it is freed */
        check->version = NULL;
        check->account = account_ref(version->account);
        check->charged = version->check_bytes;
        if (!check->running) /* otherwise `done` does */
            begin_fini(check);
    } else {
        account_give(version->account, USAGE_HEAP, version->check_bytes);
    }
    version->check_bytes = 0;
}

static uint64_t adding_bytes(const struct adding *adding)
{
    return sizeof *adding + adding->box_bytes + adding->other_bytes + (adding->layout ? layout_heap_bytes(adding->layout) : 0);
}

static struct adding *adding_new(const struct shard_part *part, uint32_t number)
{
    size_t other_bytes = 0, at = part->box_bytes;
    struct adding *adding;

    for (size_t i = 0; i < part->n_others; i++)
        other_bytes += strlen(part->others[i]) + 1;
    adding = malloc(sizeof *adding + part->box_bytes + other_bytes);
    if (!adding)
        return NULL;
    *adding = (struct adding){.number = number, .rank = part->rank, .box_bytes = part->box_bytes, .other_bytes = other_bytes};
    list_init(&adding->link);
    if (part->layout && !(adding->layout = layout_dup(part->layout))) {
        free(adding);
        return NULL;
    }
    if (part->box_bytes > 0)
        memcpy(adding->packed, part->boxes, part->box_bytes);
    for (size_t i = 0; i < part->n_others; i++) {
        size_t bytes = strlen(part->others[i]) + 1;
        memcpy(adding->packed + at, part->others[i], bytes);
        at += bytes;
    }
    adding->charged = adding_bytes(adding);
    return adding;
}

/* On a worker. */
static enum rdt_status note_boxes(struct shard_check *check, const struct adding *adding, struct rdt_error *err)
{
    const Rdt__Pb__Boxes *boxes = NULL;
    struct arena arena;
    enum rdt_status status = RDT_OK;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    if (adding->layout)
        status = boxes_read(&arena, adding->packed, adding->box_bytes, adding->layout, &boxes, err);
    if (status == RDT_OK && adding->layout)
        status = shard_cover_add(&check->cover, adding->number, adding->rank, adding->layout, boxes, err);
    if (status == RDT_OK)
        status = shard_cover_expect(&check->cover, adding->rank, (const char *)adding->packed + adding->box_bytes,
                                    adding->other_bytes, err);
    arena_fini(&arena);
    return status;
}

static void finish(struct shard_check *check)
{
    if (shard_cover_check(&check->cover, &check->err) == RDT_OK)
        (void)shard_manifest_pack(&check->cover, check->rows, check->n, &check->manifest, &check->err);
    shard_cover_fini(&check->cover);
}

static void copy_tensor(struct shard_check *check)
{
    memcpy(check->to, check->manifest.tensor, check->manifest.tensor_bytes);
    free(check->manifest.tensor);
    check->manifest.tensor = NULL;
}

static void run(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);

    if (check->at)
        (void)note_boxes(check, check->at, &check->err);
    else if (check->to)
        copy_tensor(check);
    else
        finish(check);
}

static void done(struct work *work);

static void submit(struct shard_check *check)
{
    check->running = true;
    check->work = (struct work){.run = run, .done = done};
    work_submit(check->pool, &check->work);
}

static void go_on(struct shard_check *check)
{
    if (check->running || (list_empty(&check->adding) && !check->wanted))
        return;
    check->at = list_empty(&check->adding) ? NULL : container_of(list_first(&check->adding), struct adding, link);
    submit(check);
}

/* The worker has noted the boxes of a part: charges what it has allocated instead of what the part had. */
static void noted(struct shard_check *check)
{
    struct version *version = check->version;
    uint32_t number = check->at->number;

    account_give(version->account, USAGE_HEAP, check->at->charged);
    version->check_bytes -= check->at->charged;
    adding_free(check->at);
    if (check->err.status == RDT_OK)
        (void)version_charge(version, &version->check_bytes, check->cover.bytes - check->charged_cover, &check->err);
    check->charged_cover = check->cover.bytes;
    if (check->err.status == RDT_OK) {
        go_on(check);
    } else {
        struct rdt_error err = check->err;
        check->events->on_refused(version, number, &err); /* ends the version, and frees the check */
    }
}

/* The tensor of the manifest has memory, which only the loop can allocate: a worker copies it there. */
static void on_memory(void *arg, struct region *region, const struct rdt_error *why)
{
    struct shard_check *check = arg;

    check->manifest.region = region;
    if (why)
        check->err = *why;
    else
        check->to = region_addr(region, &check->err);
    if (check->to && check->version)
        submit(check);
    else
        done(&check->work);
}

static void allocate(struct shard_check *check)
{
    struct version *version = check->version;
    struct region *region;
    enum rdt_status status = region_alloc(version->shards->regions, "host", "", check->manifest.tensor_bytes, REGION_SNAPSHOT,
                                          version->account, 0, &region, on_memory, check, &check->err);

    check->running = true;
    if (status == RDT_OK)
        on_memory(check, region, NULL);
    else if (status != RDT_AGAIN)
        done(&check->work);
}

static void done(struct work *work)
{
    struct shard_check *check = container_of(work, struct shard_check, work);
    struct version *version = check->version;

    check->running = false;
    if (!version) {
        region_unref(check->manifest.region);
        begin_fini(check);
    } else if (check->at) {
        noted(check);
    } else if (check->err.status == RDT_OK && check->manifest.tensor) {
        allocate(check);
    } else {
        version->check = NULL;
        check->events->on_checked(version, &check->manifest, &check->err);
        region_unref(check->manifest.region);
        free_contents(check);
        free(check);
    }
}

enum rdt_status version_check_add(struct version *version, const struct shard_part *part, struct rdt_error *err)
{
    struct shard_check *check = version->check;
    struct shard_row *rows = array_grow(check->rows, check->n, &check->room, sizeof *rows);
    struct adding *adding;
    enum rdt_status status;

    check->rows = rows ? rows : check->rows;
    adding = rows ? adding_new(part, check->n) : NULL;
    if (!adding)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of rank %u", part->rank);
    status = version_charge(version, &version->check_bytes, sizeof *rows + adding->charged, err);
    if (status != RDT_OK) {
        adding_free(adding);
        return status;
    }
    check->pool = version->shards->regions->pool;
    list_append(&check->adding, &adding->link);
    if (part->layout)
        check->rows[check->n++] = (struct shard_row){part->object, part->bytes, part->rank, part->piece};
    go_on(check);
    return RDT_OK;
}

void version_check_start(struct version *version)
{
    if (version->check->wanted)
        return;
    version->check->wanted = true;
    go_on(version->check);
}
