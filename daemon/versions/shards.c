/* SPDX-License-Identifier: Apache-2.0 */
/* Names and their versions: parts are added to a version until it is complete, or fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/sm.h"
#include "daemon/base/text.h"
#include "daemon/versions/shards_impl.h"
#include "proto/grow.h"

#define MAX_FILLING 16u      /* versions of one name that are not complete */
#define AT_ONCE 16u          /* parts of a version that ends in one turn of the loop */
#define MAX_IDLE_NAMES 1024u /* names of a person that are kept only to say why their last version failed */
#define FAILURE_LINES_NS UINT64_C(1000000000)
#define GIVEN_UP_NS UINT64_C(60000000000)      /* how long ranks that come later are told */
#define MAX_AT_OTHERS 8u                       /* ranks that a sentence names */
#define PART_BYTES (sizeof(struct part) + 64u) /* of the heap, with its entry in by_piece */

/* ---- names ---- */

void shards_init(struct shards *shards)
{
    shards->failures.every_ns = FAILURE_LINES_NS;
    map_init(&shards->names);
    map_init(&shards->watched);
    list_init(&shards->ended);
}

static struct shard_name *name_get(struct shards *shards, struct account *account, const struct rdt_ref *ref)
{
    struct shard_name *name = shard_name_find(shards, &account->owner, ref);

    if (name)
        return name;
    name = calloc(1, sizeof *name);
    if (!name)
        return NULL;
    name->shards = shards;
    list_init(&name->versions);
    name->key_bytes = (uint8_t)owner_key(name->key, &account->owner, (const uint8_t *)ref->id, ref->id_bytes);
    name->id_bytes = ref->id_bytes;
    if (map_put(&shards->names, name->key, name->key_bytes, name)) {
        name->owner = account_ref(account_owner(account));
        return name;
    }
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

/* An idle name has no version, and is kept to say why its last one failed. A person has only so many: otherwise one of them
 * could leave no room for the failures of others. */
static void name_set_idle(struct shard_name *name, bool idle)
{
    struct account *person = account_person(name->owner);

    if (name->idle == idle)
        return;
    name->idle = idle;
    person->n_idle_names += idle ? 1 : -1u;
}

/* ---- publishers without a part ---- */

static uint64_t given_up_bytes(uint32_t of)
{
    return sizeof(struct given_up) + of * sizeof(uint16_t);
}

static void forget_given_up(struct shard_name *name)
{
    if (name->given_up)
        account_give(name->owner, USAGE_HEAP, given_up_bytes(name->given_up->of));
    free(name->given_up);
    name->given_up = NULL;
}

/* Not 0. That of publisher 0, which brings a whole part, does not tell one from the next. */
static uint16_t mark_of(uint64_t publisher)
{
    return (uint16_t)(publisher % UINT16_MAX + 1);
}

/* Notes it in place of the one before. version may be NULL: nobody has begun the step. LIMIT, NO_MEMORY. */
static enum rdt_status note_given_up(struct shard_name *name, const struct version *version, uint64_t step, uint32_t rank,
                                     uint32_t of, const char *why, struct rdt_error *err)
{
    struct given_up *given_up;
    enum rdt_status status;

    forget_given_up(name);
    status = account_take(name->owner, USAGE_HEAP, given_up_bytes(of), err);
    if (status != RDT_OK)
        return status;
    given_up = calloc(1, given_up_bytes(of));
    if (!given_up) {
        account_give(name->owner, USAGE_HEAP, given_up_bytes(of));
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to note that a rank gave up");
    }
    given_up->step = step;
    given_up->rank = rank;
    given_up->of = of;
    given_up->at_ns = uv_hrtime();
    text_copy(given_up->why, sizeof given_up->why, why);
    for (uint32_t i = 0; version && i < version->of && i < of; i++)
        given_up->told[i] = version->ranks[i].begun ? mark_of(version->ranks[i].publisher) : 0;
    name->given_up = given_up;
    return RDT_OK;
}

/* OWNER_DIED: another rank has given this step up, and this one has not been told yet, or had said this before it was. */
static enum rdt_status tell_given_up(struct shard_name *name, const struct shard_part *from, struct rdt_error *err)
{
    struct given_up *given_up = name->given_up;
    uint16_t mark = mark_of(from->publisher);

    if (!given_up || given_up->step != from->step || given_up->of != from->of)
        return RDT_OK;
    if (from->publisher == 0 || given_up->told[from->rank] != mark) {
        given_up->over = given_up->over || given_up->rank == from->rank;
        if (given_up->over || given_up->told[from->rank] || uv_hrtime() - given_up->at_ns > GIVEN_UP_NS)
            return RDT_OK;
    }
    given_up->told[from->rank] = mark;
    return rdt_error_set(err, RDT_OWNER_DIED, "%s", given_up->why);
}

/* ---- the end of names ---- */

static void name_settle(struct shard_name *name)
{
    struct shards *shards = name->shards;

    if (!list_empty(&name->versions))
        return;
    if (name->failure[0] && (name->idle || account_person(name->owner)->n_idle_names < MAX_IDLE_NAMES)) {
        name_set_idle(name, true);
        return;
    }
    name_set_idle(name, false);
    (void)map_remove(&shards->names, name->key, name->key_bytes);
    forget_given_up(name);
    account_unref(name->owner);
    free(name);
}

/* ---- versions ---- */

/* Every allowed move. shards.h draws them. */
static const struct sm_state states[] = {
    [VERSION_FILLING] = {"filling", 1u << VERSION_COMPLETE | 1u << VERSION_ENDED},
    [VERSION_COMPLETE] = {"complete", 1u << VERSION_ENDED},
    [VERSION_ENDED] = {"ended", 0},
};

static void set_state(struct version *version, enum version_state state)
{
    sm_move_byte(states, sizeof states / sizeof states[0], &version->state, state);
}

static void settle(struct deadline *deadline);
static void on_manifest_gone(struct object_waiter *waiter, struct object *object, const struct rdt_error *why);
static const struct version_check_events check_events;

/* Charges the owner for the version, and allocates what it needs. */
static enum rdt_status version_grow(struct version *version, struct rdt_error *err)
{
    uint64_t bytes = sizeof *version + version->of * sizeof *version->ranks;
    enum rdt_status status = version_charge(version, &version->heap_bytes, bytes, err);

    if (status == RDT_OK && !(version->ranks = calloc(version->of, sizeof *version->ranks)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a version");
    return status == RDT_OK ? version_check_init(version, &check_events, err) : status;
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
    version->shards = name->shards;
    status = version_grow(version, err);
    if (status != RDT_OK) {
        account_give(account, USAGE_HEAP, version->heap_bytes + version->check_bytes);
        account_unref(account);
        free(version->ranks);
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
    list_init(&version->waiters);
    map_init(&version->by_piece);
    version_growth_init(version);
    version->uses_claim = directory_names_use(name->shards->directory_names, &account->owner,
                                              (const uint8_t *)shard_name_id(name), name->id_bytes);
    version_holder_init(version);
    list_append(&name->versions, &version->link);
    name_set_idle(name, false);
    *version_p = version;
    return RDT_OK;
}

/* The claim on the name is no longer needed: the name is published, or the version has failed. */
static void end_claim(struct version *version)
{
    const struct shard_name *name = version->name;

    if (version->uses_claim)
        directory_names_unuse(name->shards->directory_names, &version->account->owner, (const uint8_t *)shard_name_id(name),
                              name->id_bytes);
    version->uses_claim = false;
}

static void add_waiter(struct version *version, struct part_waiter *waiter, struct part *part, uint32_t rank)
{
    waiter->version = version;
    waiter->rank = rank;
    waiter->part = part;
    if (part)
        part->waiter = waiter;
    list_append(&version->waiters, &waiter->link);
}

static void forget_waiter(struct part_waiter *waiter)
{
    if (waiter->part)
        waiter->part->waiter = NULL;
    waiter->part = NULL;
    waiter->version = NULL;
    list_remove(&waiter->link);
}

/* Answers the publishers; ENDED: releases the parts, too. Returns false if until_ns has passed before the end. */
static bool serve_parts(struct version *version, uint64_t until_ns)
{
    while (!list_empty(&version->waiters)) {
        struct part_waiter *waiter = container_of(list_first(&version->waiters), struct part_waiter, link);

        forget_waiter(waiter);
        waiter->on_settled(waiter, version->number, &version->why);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    while (version->state == VERSION_ENDED && version->next < version->n_pieces) {
        struct part *part = version->parts[version->next++];

        object_waiter_remove(&part->gone);
        free(part);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

static bool run_slice(struct slice *slice, uint64_t until_ns)
{
    struct version *version = container_of(slice, struct version, slice);

    if (!serve_parts(version, until_ns))
        return false;
    if (version->state != VERSION_ENDED)
        return true;
    if (!version_holder_fini(version, until_ns))
        return false;
    slice_stop(&version->slice); /* it may have been begun again meanwhile */
    list_remove(&version->link);
    account_give(version->account, USAGE_HEAP, version->heap_bytes);
    account_unref(version->account);
    map_fini(&version->by_piece);
    free(version->growth.held);
    free(version->parts);
    free(version->ranks);
    free(version);
    return true;
}

static void begin_slice(struct version *version)
{
    version->next = 0;
    version->slice.run = run_slice;
    slice_begin(version->of <= AT_ONCE && version->n_pieces <= AT_ONCE ? NULL : &version->shards->deadlines->slices,
                &version->slice);
}

void version_end(struct version *version)
{
    struct shard_name *name = version->name;

    if (name->current == version)
        name->current = NULL;
    if (version->state == VERSION_FILLING)
        version_growth_end(version);
    end_claim(version);
    object_waiter_remove(&version->manifest);
    deadline_unset(version->shards->deadlines, &version->settle);
    version_check_fini(version);
    version->holder.conn.gone = true;
    set_state(version, VERSION_ENDED);
    version->name = NULL;
    list_remove(&version->link);
    list_append(&version->shards->ended, &version->link);
    name_settle(name);
    begin_slice(version);
}

struct version *version_restore(struct shards *shards, const struct shard_part *first, struct object *manifest)
{
    struct shard_name *name = name_get(shards, manifest->account, &first->name);
    struct version *version;

    if (!name)
        return NULL;
    if (version_new(name, first, manifest->account, &version, NULL) != RDT_OK) {
        name_settle(name);
        return NULL;
    }
    set_state(version, VERSION_COMPLETE);
    version_check_fini(version);
    if (!object_wait_freed(manifest, &version->manifest)) {
        version_end(version);
        return NULL;
    }
    if (version_is_current(version))
        name->current = version;
    return version;
}

/* Steps grow until the name is unpublished. */
static bool is_past(const struct shard_name *name, uint64_t step)
{
    return version_is_current(name->current) && step <= name->current->step;
}

static bool some_part_grows(const struct version *version)
{
    for (uint32_t rank = 0; rank < version->of; rank++)
        if (version->ranks[rank].publisher != 0)
            return true;
    return false;
}

/* No reader has seen the version. Its publishers are told: of one that grows, those that begin later, too, because it is that
 * rank's fault. The publisher of a whole part says itself that nobody need wait for it (shards_give_up). */
static void version_fail(struct version *version, uint32_t rank, const struct rdt_error *why)
{
    struct shard_name *name = version->name;
    struct rdt_error err;

    (void)rdt_error_set(&err, why->status, "step %llu of \"%.*s\" did not become a version (%u of %u parts had come): %s",
                        (unsigned long long)version->step, name->id_bytes, shard_name_id(name), version->n_parts, version->of,
                        why->msg);
    log_warn_rarely(&name->shards->failures, "versions of many parts", err.msg);
    text_copy(name->failure, sizeof name->failure, err.msg);
    name->failed_ns = uv_hrtime();
    name->shards->counts->shard_failures++;
    if (version->of > 1 && !is_past(name, version->step) && some_part_grows(version))
        (void)note_given_up(name, version, version->step, rank, version->of, err.msg, NULL);
    version->why = err;
    version_end(version);
}

static void on_manifest_gone(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    version_end(container_of(waiter, struct version, manifest));
}

/* Names the ranks that a version lacks and that wait at other steps of its name, or bring their parts in pieces. Appends to
 * text_p. */
static void say_others(const struct version *version, char *text_p, size_t size)
{
    const struct version *filling[MAX_FILLING];
    size_t at = strlen(text_p);
    unsigned n_filling = 0, n = 0;

    list_each (const struct version, other, &version->name->versions, link)
        if (other->state == VERSION_FILLING && n_filling < MAX_FILLING) /* a name may have many complete ones */
            filling[n_filling++] = other;
    for (uint32_t rank = 0; rank < version->of && n < MAX_AT_OTHERS; rank++) {
        const struct shard_rank *of = &version->ranks[rank];

        if (of->begun && !rank_is_whole(of) && at < size) {
            at += (size_t)snprintf(text_p + at, size - at, "; rank %u has added %u pieces so far", rank, of->n_pieces);
            n++;
        }
        for (unsigned i = 0; i < n_filling && !of->begun; i++) {
            if (rank >= filling[i]->of || !filling[i]->ranks[rank].begun || at >= size)
                continue;
            at += (size_t)snprintf(text_p + at, size - at, "; rank %u is at step %llu", rank,
                                   (unsigned long long)filling[i]->step);
            n++;
        }
    }
}

void part_waiter_leave(struct part_waiter *waiter, char *lacks_p, size_t size)
{
    struct version *version = waiter->version;
    char ranks[128], others[256] = "";
    struct rdt_error why;
    bool whole;

    forget_waiter(waiter);
    lacks_p[0] = '\0';
    if (version->state != VERSION_FILLING)
        return;
    version_list_ranks(version, ranks, sizeof ranks);
    say_others(version, others, sizeof others);
    if (ranks[0] == '\0')
        (void)snprintf(lacks_p, size, "all %u parts are there, but their boxes are still being checked", version->of);
    else
        (void)snprintf(lacks_p, size, "%u of %u parts are there, %s ranks %s%s", version->n_parts, version->of,
                       version->n_parts < version->of ? "but not those of" : "but no answer about those of", ranks, others);
    whole = rank_is_whole(&version->ranks[waiter->rank]);
    (void)rdt_error_set(
        &why, RDT_OWNER_DIED, "the publisher of rank %u %s%s", waiter->rank,
        whole ? "stopped waiting for the others, or ended" : "ended, or gave up, before it had added all tensors", others);
    version_fail(version, waiter->rank, &why);
}

/* ---- the fence ---- */

static void overtake(struct version *version)
{
    struct rdt_error why;

    list_each_safe (struct version, other, &version->name->versions, link) {
        if (other->state != VERSION_FILLING || other->step > version->step)
            continue;
        (void)rdt_error_set(&why, RDT_FREED, "step %llu became complete first", (unsigned long long)version->step);
        version_fail(other, NO_RANK, &why);
    }
}

static void on_checked(struct version *version, struct shard_manifest *manifest, struct rdt_error *err)
{
    struct shard_name *name = version->name;
    uint64_t number = 0;
    enum rdt_status status;

    if (err->status == RDT_OK && version->why.status != RDT_OK) /* a part was lost meanwhile */
        *err = version->why;
    status = err->status;
    if (status == RDT_OK)
        status = directory_names_check(name->shards->directory_names, &version->account->owner,
                                       (const uint8_t *)shard_name_id(name), name->id_bytes, err);
    if (status == RDT_OK)
        status = version_check_held(version, err);
    if (status == RDT_OK)
        status = version_publish(version, manifest, &number, err);
    if (status != RDT_OK) {
        version_fail(version, NO_RANK, err);
        return;
    }
    version_check_fini(version); /* ends its charge */
    set_state(version, VERSION_COMPLETE);
    version->number = number;
    end_claim(version);
    forget_given_up(name);
    version_growth_end(version);
    name->current = version;
    name->shards->counts->shard_versions++;
    log_debug("step %llu of \"%.*s\" is complete: version %llu, %u parts", (unsigned long long)version->step, name->id_bytes,
              shard_name_id(name), (unsigned long long)number, version->of);
    begin_slice(version);
    overtake(version);
}

/* The publisher of the part is told what is wrong with it; the others, that their version has failed. */
static void on_refused(struct version *version, uint32_t number, const struct rdt_error *why)
{
    const struct part *part = number < version->n_pieces ? version->parts[number] : NULL;
    struct part_waiter *waiter = part ? part->waiter : NULL;

    if (waiter) {
        forget_waiter(waiter);
        waiter->on_settled(waiter, 0, why);
    }
    version_fail(version, part ? part->rank : NO_RANK, why);
}

static const struct version_check_events check_events = {.on_checked = on_checked, .on_refused = on_refused};

/* All parts are there, and none will come any more: their boxes are checked. */
static void check_if_whole(struct version *version)
{
    if (version->n_parts == version->of && version->n_held == version->n_pieces)
        version_check_start(version);
}

static void settle(struct deadline *deadline)
{
    struct version *version = container_of(deadline, struct version, settle);

    if (version->state != VERSION_FILLING)
        return;
    if (version->why.status != RDT_OK) {
        struct rdt_error why = version->why;
        version_fail(version, NO_RANK, &why);
    } else {
        check_if_whole(version);
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
    const struct shard_name *name = version ? version->name : NULL;

    return name && version->manifest.object &&
           names_lead_to(name->shards->published, &name->owner->owner, (const uint8_t *)shard_name_id(name), name->id_bytes,
                         version->manifest.object);
}

/* What the rank's publisher has said so far, and this. */
static enum rdt_status check_rank(const struct shard_rank *rank, const struct version *version, const struct shard_part *part,
                                  struct rdt_error *err)
{
    unsigned long long step = part->step;
    bool again = part->piece > 0 ? part->publisher == 0 || map_get_u64(&version->by_piece, part_key(part->rank, part->piece))
                                 : part->pieces > 0 && rank->of > 0;

    if (!rank->begun)
        return RDT_OK;
    if (rank->publisher != part->publisher && rank->publisher != 0)
        return rdt_error_set(err, RDT_EXISTS, "another publisher is adding the tensors of rank %u of step %llu of \"%s\"",
                             part->rank, step, part->name.id);
    if (again || rank->publisher != part->publisher)
        return rdt_error_set(err, RDT_EXISTS, "rank %u has published its part of step %llu of \"%s\" already", part->rank, step,
                             part->name.id);
    if (rank->last > (part->piece ? UINT32_MAX : part->pieces) || (rank->of > 0 && part->piece > rank->of))
        return rdt_error_set(err, RDT_INVALID, "rank %u says that its part of step %llu of \"%s\" has fewer pieces than it has",
                             part->rank, step, part->name.id);
    return RDT_OK;
}

static enum rdt_status check_part(const struct shard_name *name, const struct version *version, const struct shard_part *part,
                                  struct rdt_error *err)
{
    unsigned long long step = part->step;

    if (is_past(name, part->step))
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
    if (version && part->piece > 0 && version->n_pieces == SHARDS_MAX_PIECES)
        return rdt_error_set(err, RDT_LIMIT,
                             "step %llu of \"%s\" has %u pieces already: publish it with fewer ranks, or whole parts", step,
                             part->name.id, SHARDS_MAX_PIECES);
    return version ? check_rank(&version->ranks[part->rank], version, part, err) : RDT_OK;
}

/* ---- giving up ---- */

/* Whether nothing changes: the step is complete, or has failed for that publisher, or for another rank's fault. */
static bool gave_up_before(const struct shard_name *name, const struct shard_part *from)
{
    struct given_up *given_up = name->given_up;
    uint16_t mark = mark_of(from->publisher);

    if (is_past(name, from->step))
        return true;
    if (!given_up || given_up->step != from->step || given_up->of != from->of)
        return false;
    if (from->publisher != 0 && given_up->told[from->rank] == mark)
        return true;
    if (given_up->over || given_up->rank == from->rank || given_up->told[from->rank] ||
        uv_hrtime() - given_up->at_ns > GIVEN_UP_NS)
        return false;
    given_up->told[from->rank] = mark; /* it knows */
    return true;
}

/* The same while the step fills. A rank that has begun it again goes on. One that has not begun it at this daemon may have
 * begun it at an earlier one, which the others do not know, unless they have begun it again since. */
static bool gave_up_another(const struct shard_name *name, const struct version *version, const struct shard_part *from)
{
    const struct given_up *given_up = name->given_up;

    if (from->rank >= version->of || (from->publisher == 0 && version->ranks[from->rank].publisher == 0))
        return false;
    if (version->ranks[from->rank].begun)
        return version->ranks[from->rank].publisher != from->publisher;
    return gave_up_before(name, from) || (given_up && given_up->step == from->step && given_up->over);
}

enum rdt_status shards_give_up(struct shards *shards, struct account *account, const struct shard_part *from, const char *why,
                               struct rdt_error *err)
{
    struct shard_name *name;
    struct version *version;
    struct rdt_error said;
    enum rdt_status status = RDT_OK;

    if (from->of == 0 || from->of > SHARDS_MAX_RANKS || from->rank >= from->of)
        return rdt_error_set(err, RDT_INVALID, "rank %u of %u: a version has 1 to %u parts, with ranks from 0", from->rank,
                             from->of, SHARDS_MAX_RANKS);
    name = name_get(shards, account, &from->name);
    if (!name)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to note that a rank gave up");
    version = find_step(name, from->step);
    if (version ? gave_up_another(name, version, from) : gave_up_before(name, from)) {
        name_settle(name);
        return RDT_OK;
    }
    (void)rdt_error_set(&said, RDT_OWNER_DIED, "rank %u could not put its part of step %llu of \"%s\": %s", from->rank,
                        (unsigned long long)from->step, from->name.id, why);
    if (!version || !some_part_grows(version))
        status = note_given_up(name, version, from->step, from->rank, from->of, said.msg, err);
    if (status == RDT_OK && !version)
        name->given_up->told[from->rank] = mark_of(from->publisher);
    if (version) {
        struct shard_rank *rank = from->rank < version->of ? &version->ranks[from->rank] : NULL;
        if (rank && !rank->begun && from->publisher != 0) { /* it knows */
            rank->begun = true;
            rank->publisher = from->publisher;
        }
        version_fail(version, from->rank, &said);
    } else {
        text_copy(name->failure, sizeof name->failure, said.msg);
        name->failed_ns = uv_hrtime();
        shards->counts->shard_failures++;
        name_settle(name);
    }
    return status;
}

/* ---- adding a part ---- */

uint64_t shards_version_with(const struct shards *shards, const struct account *account, const struct shard_part *from)
{
    const struct shard_name *name = shard_name_find(shards, &account->owner, &from->name);
    const struct version *version = name && version_is_current(name->current) ? name->current : NULL;
    const struct part *part =
        version && version->step == from->step ? map_get_u64(&version->by_piece, part_key(from->rank, from->piece)) : NULL;
    const struct rdt_ref *here = &from->object;

    return part && part->ref.generation == here->generation && memcmp(part->ref.node, here->node, sizeof here->node) == 0
               ? version->number
               : 0;
}

enum rdt_status version_add_part(struct version *version, const struct shard_part *from, struct part **part_p,
                                 struct rdt_error *err)
{
    struct shard_rank *rank = &version->ranks[from->rank];
    struct part **parts, *part;
    enum rdt_status status = version_charge(version, &version->heap_bytes, PART_BYTES, err);

    if (status != RDT_OK)
        return status;
    parts = array_grow(version->parts, version->n_pieces, &version->room, sizeof *parts);
    version->parts = parts ? parts : version->parts;
    part = parts ? calloc(1, sizeof *part) : NULL;
    if (!part || !map_put_u64(&version->by_piece, part_key(from->rank, from->piece), part)) {
        free(part);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a part");
    }
    *part = (struct part){
        .version = version, .rank = from->rank, .piece = from->piece, .number = version->n_pieces, .ref = from->object};
    version->parts[version->n_pieces++] = part;
    part->bytes = from->bytes;
    version->growth.bytes += from->bytes;
    version->growth.n_tensors += from->layout ? from->layout->count : 0;
    rank->n_pieces++;
    rank->last = from->piece > rank->last ? from->piece : rank->last;
    *part_p = part;
    return RDT_OK;
}

/* Adds what the publisher says to its rank, and the object, if it brings one. */
static enum rdt_status take(struct version *version, const struct shard_part *from, struct part **part_p, struct rdt_error *err)
{
    struct shard_rank *rank = &version->ranks[from->rank];
    enum rdt_status status = RDT_OK;

    rank->begun = true;
    rank->publisher = from->publisher;
    rank->of = from->pieces > 0 ? from->pieces : rank->of;
    if (from->piece > 0)
        status = version_add_part(version, from, part_p, err);
    version->n_parts += status == RDT_OK && rank_is_whole(rank);
    if (status == RDT_OK && (*part_p || from->n_others > 0))
        status = version_check_add(version, from, err);
    if (status == RDT_OK && *part_p)
        status = version_hold_part(version, *part_p, from->here, err);
    return status;
}

enum rdt_status shards_add(struct shards *shards, struct account *account, const struct shard_part *from,
                           struct part_waiter *waiter, struct rdt_error *err)
{
    struct shard_name *name;
    struct version *version;
    struct part *part = NULL;
    enum rdt_status status;

    if (from->of == 0 || from->of > SHARDS_MAX_RANKS || from->rank >= from->of)
        return rdt_error_set(err, RDT_INVALID, "rank %u of %u: a version has 1 to %u parts, with ranks from 0", from->rank,
                             from->of, SHARDS_MAX_RANKS);
    if (from->pieces > SHARDS_MAX_PIECES || from->piece > SHARDS_MAX_PIECES)
        return rdt_error_set(err, RDT_INVALID, "a version has at most %u pieces", SHARDS_MAX_PIECES);
    name = name_get(shards, account, &from->name);
    if (!name)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    version = find_step(name, from->step);
    status = tell_given_up(name, from, err);
    if (status == RDT_OK)
        status = check_part(name, version, from, err);
    if (status == RDT_OK && !version)
        status = version_new(name, from, account, &version, err);
    if (status != RDT_OK) {
        if (!version)
            name_settle(name);
        return status;
    }
    status = take(version, from, &part, err);
    if (status != RDT_OK) { /* the caller tells this publisher; the others are told here */
        struct rdt_error why = *err;
        version_fail(version, from->rank, &why);
        return status;
    }
    add_waiter(version, waiter, part, from->rank);
    check_if_whole(version);
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
            version->why = why;
            version_end(version);
        }
    }
    list_drain (struct version, version, &shards->ended, link) {
        slice_stop(&version->slice);
        (void)run_slice(&version->slice, UINT64_MAX);
    }
    growth_clear(shards);
    map_fini(&shards->names);
}
