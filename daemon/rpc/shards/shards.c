/* SPDX-License-Identifier: Apache-2.0 */
/* Names and their versions: parts are added to a version until it is complete, or fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/rpc/shards/shards_impl.h"

#define MAX_FILLING 16u      /* versions of one name that are not complete */
#define MAX_IDLE_NAMES 1024u /* names that are kept only to say why their last version failed */
#define FAILURE_LINES_NS UINT64_C(1000000000)

/* ---- names ---- */

void shards_init(struct shards *shards, struct rpc *rpc)
{
    *shards = (struct shards){.rpc = rpc, .failures.every_ns = FAILURE_LINES_NS};
    map_init(&shards->names);
}

struct shard_name *shard_name_find(const struct shards *shards, const struct owner *owner, const struct rdt_ref *ref)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];

    return map_get(&shards->names, key, owner_key(key, owner, (const uint8_t *)ref->id, ref->id_bytes));
}

static struct shard_name *name_get(struct shards *shards, const struct owner *owner, const struct rdt_ref *ref)
{
    struct shard_name *name = shard_name_find(shards, owner, ref);

    if (name)
        return name;
    name = calloc(1, sizeof *name);
    if (!name)
        return NULL;
    name->shards = shards;
    list_init(&name->versions);
    name->key_bytes = (uint8_t)owner_key(name->key, owner, (const uint8_t *)ref->id, ref->id_bytes);
    name->id_bytes = ref->id_bytes;
    if (map_put(&shards->names, name->key, name->key_bytes, name))
        return name;
    free(name);
    return NULL;
}

unsigned shard_name_n_filling(const struct shard_name *name)
{
    unsigned n = 0;

    list_for_each (node, &name->versions)
        n += container_of(node, struct version, link)->state == VERSION_FILLING;
    return n;
}

static void name_settle(struct shard_name *name)
{
    struct shards *shards = name->shards;

    if (!list_empty(&name->versions) || (name->failure[0] && map_count(&shards->names) <= MAX_IDLE_NAMES))
        return;
    (void)map_remove(&shards->names, name->key, name->key_bytes);
    free(name);
}

/* ---- versions ---- */

static void settle(struct deadline *deadline);
static void on_manifest_gone(struct object_waiter *waiter, struct object *object, const struct rdt_error *why);
static void on_checked(struct version *version, uint8_t *packed, size_t bytes, struct rdt_error *err);

/* Charges the owner for the version, and allocates what it needs. */
static enum rdt_status version_grow(struct version *version, struct rdt_error *err)
{
    uint64_t bytes = sizeof *version + version->of * sizeof(struct part *);
    enum rdt_status status = version_charge(version, &version->heap_bytes, bytes, err);

    if (status == RDT_OK && !(version->parts = calloc(version->of, sizeof(struct part *))))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a version");
    return status == RDT_OK ? version_check_init(version, on_checked, err) : status;
}

static enum rdt_status version_new(struct shard_name *name, const struct shard_part *part, struct account *account,
                                   struct version **version_p, struct rdt_error *err)
{
    struct version *version = calloc(1, sizeof *version);
    enum rdt_status status;

    if (!version)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a version");
    version->of = part->of;
    version->account = account_ref(account);
    status = version_grow(version, err);
    if (status != RDT_OK) {
        account_give(account, USAGE_HEAP, version->heap_bytes + version->check_bytes);
        account_unref(account);
        free(version->parts);
        free(version);
        return status;
    }
    version->name = name;
    version->step = part->step;
    version->visibility = part->visibility;
    version->began_ns = uv_hrtime();
    version->settle.on_passed = settle;
    version->manifest.on_event = on_manifest_gone;
    list_init(&version->manifest.link);
    version->uses_claim = directory_names_use(name->shards->rpc->directory_names, &account->owner,
                                              (const uint8_t *)shard_name_id(name), name->id_bytes);
    version_holder_init(version);
    list_append(&name->versions, &version->link);
    *version_p = version;
    return RDT_OK;
}

/* The claim on the name is no longer needed: the name is published, or the version has failed. */
static void end_claim(struct version *version)
{
    const struct shard_name *name = version->name;

    if (version->uses_claim)
        directory_names_unuse(name->shards->rpc->directory_names, &version->account->owner,
                              (const uint8_t *)shard_name_id(name), name->id_bytes);
    version->uses_claim = false;
}

void version_free(struct version *version)
{
    struct shard_name *name = version->name;

    if (name->current == version)
        name->current = NULL;
    list_remove(&version->link);
    end_claim(version);
    object_waiter_remove(&version->manifest);
    for (uint32_t i = 0; i < version->of; i++)
        if (version->parts[i])
            object_waiter_remove(&version->parts[i]->gone);
    deadline_unset(name->shards->rpc->deadlines, &version->settle);
    version_holder_fini(version);
    for (uint32_t i = 0; i < version->of; i++)
        free(version->parts[i]);
    version_check_fini(version);
    account_give(version->account, USAGE_HEAP, version->heap_bytes);
    account_unref(version->account);
    free(version->parts);
    free(version);
    name_settle(name);
}

struct version *version_restore(struct shards *shards, const struct shard_part *first, struct object *manifest)
{
    struct shard_name *name = name_get(shards, &manifest->account->owner, &first->name);
    struct version *version;

    if (!name)
        return NULL;
    if (version_new(name, first, manifest->account, &version, NULL) != RDT_OK) {
        name_settle(name);
        return NULL;
    }
    version->state = VERSION_COMPLETE;
    version_check_fini(version);
    if (!object_wait_freed(manifest, &version->manifest)) {
        version_free(version);
        return NULL;
    }
    if (manifest->published)
        name->current = version;
    return version;
}

static void answer_all(struct version *version, const struct rdt_error *err, uint64_t number)
{
    Rdt__Pb__PublishPartReply reply = RDT__PB__PUBLISH_PART_REPLY__INIT;

    reply.version = number;
    for (uint32_t i = 0; i < version->of; i++) {
        struct part *part = version->parts[i];
        struct call *call = part ? part->call : NULL;
        if (!call)
            continue;
        part->call = NULL;
        call->on_end = NULL;
        if (err)
            call_fail(call, err);
        else
            call_reply(call, &reply.base, NULL, 0);
    }
}

/* No reader has seen the version. Its publishers are told. */
static void version_fail(struct version *version, const struct rdt_error *why)
{
    struct shard_name *name = version->name;
    struct rdt_error err;

    (void)rdt_error_set(&err, why->status, "step %llu of \"%.*s\" did not become a version (%u of %u parts had come): %s",
                        (unsigned long long)version->step, name->id_bytes, shard_name_id(name), version->n_parts, version->of,
                        why->msg);
    log_warn_rarely(&name->shards->failures, "versions of many parts", err.msg);
    text_copy(name->failure, sizeof name->failure, err.msg);
    name->failed_ns = uv_hrtime();
    name->shards->rpc->counts->shard_failures++;
    answer_all(version, &err, 0);
    version_free(version);
}

static void on_manifest_gone(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    version_free(container_of(waiter, struct version, manifest));
}

/* The publisher's session or link ended, its request was cancelled, or its time-out has passed. */
static void on_publisher_end(struct call *call)
{
    struct part *part = call->waiting;
    char ranks[128], lacks[256];
    struct rdt_error why;

    version_list_ranks(part->version, ranks, sizeof ranks);
    if (ranks[0] == '\0')
        (void)snprintf(lacks, sizeof lacks, "%s in time: all %u parts are there, but their boxes are still being checked",
                       call->verb->unmet, part->version->of);
    else
        (void)snprintf(lacks, sizeof lacks, "%s in time: %u of %u parts are there, %s ranks %s", call->verb->unmet,
                       part->version->n_parts, part->version->of,
                       part->version->n_parts < part->version->of ? "but not those of" : "but no answer about those of", ranks);
    free(call->why);
    call->why = strdup(lacks); /* if it was the deadline */
    part->call = NULL;
    call->waiting = NULL;
    (void)rdt_error_set(&why, RDT_OWNER_DIED, "the publisher of rank %u stopped waiting for the others, or ended", part->rank);
    version_fail(part->version, &why);
}

/* ---- the fence ---- */

static void overtake(struct version *version)
{
    struct rdt_error why;

    list_each_safe (struct version, other, &version->name->versions, link) {
        if (other->state != VERSION_FILLING || other->step > version->step)
            continue;
        (void)rdt_error_set(&why, RDT_FREED, "step %llu became complete first", (unsigned long long)version->step);
        version_fail(other, &why);
    }
}

static void on_checked(struct version *version, uint8_t *packed, size_t bytes, struct rdt_error *err)
{
    struct shard_name *name = version->name;
    uint64_t number = 0;
    enum rdt_status status;

    if (err->status == RDT_OK && version->why.status != RDT_OK) /* a part was lost meanwhile */
        *err = version->why;
    status = err->status;
    if (status == RDT_OK)
        status = directory_names_check(name->shards->rpc->directory_names, &version->account->owner,
                                       (const uint8_t *)shard_name_id(name), name->id_bytes, err);
    if (status == RDT_OK)
        status = version_check_held(version, err);
    if (status == RDT_OK)
        status = version_publish(version, packed, bytes, &number, err);
    if (status != RDT_OK) {
        version_fail(version, err);
        return;
    }
    version_check_fini(version); /* ends its charge */
    version->state = VERSION_COMPLETE;
    end_claim(version);
    name->current = version;
    name->shards->rpc->counts->shard_versions++;
    log_debug("step %llu of \"%.*s\" is complete: version %llu, %u parts", (unsigned long long)version->step, name->id_bytes,
              shard_name_id(name), (unsigned long long)number, version->of);
    answer_all(version, NULL, number);
    overtake(version);
}

static void settle(struct deadline *deadline)
{
    struct version *version = container_of(deadline, struct version, settle);

    if (version->state != VERSION_FILLING)
        return;
    if (version->why.status != RDT_OK) {
        struct rdt_error why = version->why;
        version_fail(version, &why);
    } else if (version->n_held == version->of) {
        version_check_start(version);
    }
}

/* ---- a part ---- */

static struct version *find_step(const struct shard_name *name, uint64_t step)
{
    list_each (struct version, version, &name->versions, link)
        if (version->step == step && version->state == VERSION_FILLING)
            return version;
    return NULL;
}

bool version_is_current(const struct version *version)
{
    return version && version->manifest.object && version->manifest.object->published;
}

static enum rdt_status check_part(const struct shard_name *name, const struct version *version, const struct shard_part *part,
                                  struct rdt_error *err)
{
    unsigned long long step = part->step;

    if (version_is_current(name->current) && part->step <= name->current->step)
        return rdt_error_set(
            err, RDT_INVALID,
            "step %llu of \"%s\" cannot be published: step %llu is complete, and steps must grow (unpublish the name to "
            "begin again)",
            step, part->name.id, (unsigned long long)name->current->step);
    if (!version && shard_name_n_filling(name) >= MAX_FILLING)
        return rdt_error_set(err, RDT_LIMIT, "%u steps of \"%s\" are incomplete already: complete or cancel them first",
                             MAX_FILLING, part->name.id);
    if (version && version->of != part->of)
        return rdt_error_set(err, RDT_INVALID, "rank %u says that step %llu of \"%s\" has %u parts, but others say %u",
                             part->rank, step, part->name.id, part->of, version->of);
    if (version && version->visibility != part->visibility)
        return rdt_error_set(err, RDT_INVALID, "the publishers of step %llu of \"%s\" ask for different visibilities", step,
                             part->name.id);
    if (version && version->parts[part->rank])
        return rdt_error_set(err, RDT_EXISTS, "rank %u has published its part of step %llu of \"%s\" already", part->rank, step,
                             part->name.id);
    return RDT_OK;
}

/* Notes the boxes of the part, which may come from another node and are therefore checked. */
static enum rdt_status cover_part(struct version *version, const struct shard_part *from, struct rdt_error *err)
{
    static const Rdt__Pb__Boxes none = RDT__PB__BOXES__INIT;
    const Rdt__Pb__Boxes *boxes = from->part->boxes ? from->part->boxes : &none;
    struct layout *layout;
    enum rdt_status status = layout_from_wire(from->part->tensors, &layout, err);

    if (status != RDT_OK)
        return status;
    status = boxes_fit(boxes, layout, err);
    if (status == RDT_OK)
        status = version_check_add(version, from, layout, boxes, err);
    free(layout);
    return status;
}

static enum rdt_status part_new(struct version *version, const struct shard_part *from, struct part **part_p,
                                struct rdt_error *err)
{
    struct part *part;
    enum rdt_status status = version_charge(version, &version->heap_bytes, sizeof *part, err);

    if (status != RDT_OK)
        return status;
    part = calloc(1, sizeof *part);
    if (!part)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a part");
    *part = (struct part){.version = version, .rank = from->rank, .ref = from->object};
    version->parts[part->rank] = part;
    version->n_parts++;
    *part_p = part;
    return RDT_OK;
}

enum rdt_status shards_add(struct shards *shards, struct call *call, const struct shard_part *from, struct rdt_error *err)
{
    struct shard_name *name;
    struct version *version;
    struct part *part = NULL;
    enum rdt_status status;

    if (from->of == 0 || from->of > SHARDS_MAX_RANKS || from->rank >= from->of)
        return rdt_error_set(err, RDT_INVALID, "rank %u of %u: a version has 1 to %u parts, with ranks from 0", from->rank,
                             from->of, SHARDS_MAX_RANKS);
    name = name_get(shards, &call->account->owner, &from->name);
    if (!name)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    version = find_step(name, from->step);
    status = check_part(name, version, from, err);
    if (status == RDT_OK && !version)
        status = version_new(name, from, call->account, &version, err);
    if (status == RDT_OK)
        status = call_defer(call, from->timeout_ns, NULL, err);
    if (status != RDT_OK) {
        if (version && version->n_parts == 0)
            version_free(version);
        else if (!version)
            name_settle(name);
        return status;
    }
    status = part_new(version, from, &part, err);
    if (status == RDT_OK)
        status = cover_part(version, from, err);
    if (status == RDT_OK)
        status = version_hold_part(version, part, from->here, err);
    if (status != RDT_OK) { /* the caller fails the call; the others are told here */
        struct rdt_error why = *err;
        version_fail(version, &why);
        return status;
    }
    part->call = call;
    call->waiting = part;
    call->on_end = on_publisher_end;
    if (version->n_held == version->of)
        version_check_start(version);
    return RDT_OK;
}

void shards_clear(struct shards *shards)
{
    struct rdt_error why;
    struct shard_name *name;
    size_t cursor = 0;

    (void)rdt_error_set(&why, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    while ((name = map_next(&shards->names, &cursor))) {
        bool last = list_empty(&name->versions);

        name->failure[0] = '\0';
        if (last)
            name_settle(name);
        while (!last) { /* the name ends with its last version */
            struct version *version = container_of(list_first(&name->versions), struct version, link);
            last = version->link.next == &name->versions;
            answer_all(version, &why, 0);
            version_free(version);
        }
    }
    map_fini(&shards->names);
}
