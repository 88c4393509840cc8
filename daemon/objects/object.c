/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of an object, its holds, pins and waiters, and its end. */
#include "daemon/objects/object.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/shapes.h"
#include "daemon/base/sm.h"
#include "daemon/objects/client.h"
#include "daemon/objects/object_table_impl.h"

#define SHAPE_BYTES 3u /* the least that the shapes take for each tensor */

static const struct sm_state states[] = {
    [OBJECT_AWAITED] = {"awaited", 1u << OBJECT_FILLING | 1u << OBJECT_LIVE | 1u << OBJECT_GONE},
    [OBJECT_FILLING] = {"filling", 1u << OBJECT_LIVE | 1u << OBJECT_DRAINING},
    [OBJECT_LIVE] = {"live", 1u << OBJECT_DRAINING | 1u << OBJECT_GONE},
    [OBJECT_DRAINING] = {"draining", 1u << OBJECT_GONE},
    [OBJECT_GONE] = {"gone", 0},
};

static const struct sm_state key_states[] = {
    [KEY_NONE] = {"without a key", 1u << KEY_OWN | 1u << KEY_TAKES},
    [KEY_OWN] = {"under its key", 1u << KEY_LOST | 1u << KEY_TAKES | 1u << KEY_NONE},
    [KEY_TAKES] = {"about to take its key", 1u << KEY_OWN | 1u << KEY_NONE},
    [KEY_LOST] = {"replaced under its key", 1u << KEY_NONE},
};

void object_set_key(struct object *object, enum object_key key)
{
    uint8_t state = object->access.key;

    sm_move_byte(key_states, sizeof key_states / sizeof key_states[0], &state, key);
    object->access.key = state;
}

/* A replica of another node's object is not listed as an object of this node, so its changes are no
 * events. */
void object_event(const struct object *object, const char *what)
{
    if (object->kind != OBJECT_REPLICA)
        event(object->table->events, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS, what, object);
}

void object_set_state(struct object *object, enum object_state state)
{
    sm_move_byte(states, sizeof states / sizeof states[0], &object->state, state);
    if (state == OBJECT_LIVE || (state == OBJECT_GONE && object->record))
        object_lasting_changed(object);
    object_event(object, state == OBJECT_LIVE ? "put" : states[state].name);
}

bool object_lasts(const struct object *object)
{
    return object->state == OBJECT_LIVE && object_is_reachable(object) && object->kind != OBJECT_REPLICA &&
           (object_outlives_session(object) || object->survives.published || object->survives.in_transit ||
            (object->producer && object->producer->session.lasting));
}

void object_lasting_changed(struct object *object)
{
    const struct lasting *lasting = object->table->lasting;

    if (lasting && object->kind != OBJECT_REPLICA)
        lasting->on_object(lasting->arg, object);
}

bool object_visible_to(const struct object *object, const struct owner *requester)
{
    if (owner_equal(&object->account->owner, requester))
        return true;
    switch (object->access.visibility) {
    case RDT__PB__VISIBILITY__VISIBILITY_ALL:
        return true;
    case RDT__PB__VISIBILITY__VISIBILITY_TENANT:
        return strcmp(object->account->owner.tenant, requester->tenant) == 0;
    default:
        return false;
    }
}

void object_drop_uses(struct region_use *uses, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct region *region = uses[i].region;
        region_use_remove(&uses[i]);
        region_unref(region);
    }
    free(uses);
}

void object_charges(const struct object *object, uint64_t *want)
{
    memset(want, 0, USAGE_COUNT * sizeof *want);
    want[USAGE_OBJECTS] = object->kind != OBJECT_REPLICA;
    want[USAGE_HEAP] = object->heap_bytes;
    want[USAGE_BYTES] = slab_bytes(object_piece(object));
}

uint8_t *object_base(struct object *object, uint32_t place, struct rdt_error *err)
{
    return object->memory.chunk ? slab_addr(object_piece(object)) : region_addr(object->memory.uses[place].region, err);
}

enum rdt_status object_place(struct object *object, uint32_t place, struct memory_place *place_p, struct rdt_error *err)
{
    if (!object->memory.chunk)
        return memory_place_of(object->memory.uses[place].region, place_p, err);
    *place_p = (struct memory_place){.base = slab_addr(object_piece(object))};
    return RDT_OK;
}

struct account *object_slow_owner(const struct object *object, const struct layout *layout)
{
    if (object->memory.n_regions == 0) /* in a chunk, or a replica that has no memory yet */
        return NULL;
    for (uint32_t i = 0; i < layout->count; i++)
        if (layout_bytes(layout, i) > 0 && region_is_by_fd(object->memory.uses[layout->region[i]].region))
            return object->memory.uses[layout->region[i]].region->account;
    return NULL;
}

struct account *object_reads_owner(const struct object *object)
{
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        if (region_may_wait(object->memory.uses[i].region))
            return object->memory.uses[i].region->account;
    return NULL;
}

static const uint8_t *shapes(const struct object *object)
{
    return object_metadata(object) + object->tail.metadata_bytes;
}

uint32_t object_n_tensors(const struct object *object)
{
    if (object->state == OBJECT_AWAITED)
        return 0;
    return object->memory.layout ? object->memory.layout->count : shapes_count(shapes(object));
}

enum rdt_status object_layout(const struct object *object, const Rdt__Pb__Slice *slice, struct layout **layout_p,
                              struct rdt_error *err)
{
    struct layout *whole;
    enum rdt_status status;

    if (object->memory.layout)
        return layout_slice(object->memory.layout, slice, layout_p, err);
    whole = shapes_unpack(shapes(object));
    if (!whole)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors");
    if (!slice) {
        *layout_p = whole;
        return RDT_OK;
    }
    status = layout_slice(whole, slice, layout_p, err);
    free(whole);
    return status;
}

uint64_t object_producer_id(const struct object *object)
{
    return object->producer ? object->producer->id : object->ended_producer;
}

struct object *object_new(struct object_table *table, struct account *account, const uint8_t *key, size_t key_bytes,
                          size_t id_bytes, const struct object_put *put, struct object_content *content)
{
    /* Without content the list of tensors is an empty one: two zeros. */
    size_t shapes_bytes = content ? content->shapes_bytes : 2, metadata_bytes = put ? put->metadata_bytes : 0;
    bool separate = content && content->separate;
    struct object *object = calloc(1, offsetof(struct object, tail_data) + key_bytes +
                                          (separate ? sizeof content->separate : metadata_bytes + shapes_bytes));

    if (!object)
        return NULL;
    object->table = table;
    object->account = account_ref(account);
    memcpy(object->tail_data, key, key_bytes);
    object->tail.key_bytes = (uint8_t)key_bytes;
    object->tail.id_bytes = (uint8_t)id_bytes;
    object->tail.metadata_bytes = (uint32_t)metadata_bytes;
    object->tail.box_bytes = put ? put->box_bytes : 0;
    if (separate)
        memcpy(object->tail_data + key_bytes, &content->separate, sizeof content->separate);
    else if (metadata_bytes > 0)
        memcpy(object->tail_data + key_bytes, put->metadata, metadata_bytes);
    if (!separate && content && shapes_bytes > 0)
        shapes_pack(put->layout, object->tail_data + key_bytes + metadata_bytes);
    object->since_ns = uv_hrtime();
    object->state = OBJECT_AWAITED;
    return object;
}

void object_discard(struct object *object)
{
    if (object->cached)
        cache_forget(object);
    object_drop_uses(object->memory.uses, object->memory.n_regions);
    slab_free(object_piece(object));
    account_unref(object->account);
    free(object);
}

/* ---- its end ---- */

void object_unname(struct object *object)
{
    struct object_table *table = object->table;
    struct object *hidden_entry = object->users ? object->users->hidden_entry : NULL;

    if (!object_is_reachable(object))
        return;
    if (hidden_entry) {
        object->users->hidden_entry = NULL;
        object_users_settle(object);
        map_replace(&table->by_name, hidden_entry->tail_data, hidden_entry->tail.key_bytes, hidden_entry);
        object_set_key(hidden_entry, KEY_OWN);
    } else if (object->access.key == KEY_OWN) {
        map_remove(&table->by_name, object->tail_data, object->tail.key_bytes);
    }
    object_set_key(object, KEY_NONE);
    object_lasting_changed(object);
    if (table->on_ended && object->generation != 0)
        table->on_ended(table->on_ended_arg, object);
}

void object_forget_end(struct object_table *table, struct tombstone *tombstone)
{
    fair_remove(&table->ended, &tombstone->entry);
    (void)map_remove_u64(&table->by_ended, tombstone->generation);
    free(tombstone);
}

/* Without memory for it, a later fetch gets FREED. */
static void remember_end(struct object *object)
{
    struct object_table *table = object->table;
    struct tombstone *tombstone = calloc(1, sizeof *tombstone);
    struct fair_entry *lost;

    if (!tombstone || !map_put_u64(&table->by_ended, object->generation, tombstone)) {
        free(tombstone);
        return;
    }
    tombstone->generation = object->generation;
    tombstone->end = (enum object_end)object->end;
    lost = fair_add(&table->ended, &tombstone->entry, &account_person(object->account)->owner);
    if (lost)
        object_forget_end(table, container_of(lost, struct tombstone, entry));
}

/* Takes it out of the table. */
static void forget(struct object *object)
{
    struct object_table *table = object->table;

    object_unname(object);
    if (object->generation != 0) {
        index_remove(&table->by_generation, object->generation);
        if (object->end != OBJECT_END_FREED)
            remember_end(object);
    }
}

/* Frees metadata, shapes and layout on the worker pool, because they may have megabytes. */
static void free_large_memory(struct object *object)
{
    struct work_pool *pool = object->table->slabs->regions->pool;

    if (object->tail.separate)
        work_free(pool, (void *)object_metadata(object),
                  object->tail.metadata_bytes + (object->memory.layout ? 0 : SHAPE_BYTES * shapes_count(shapes(object))));
    if (object->memory.layout)
        work_free(pool, object->memory.layout, layout_heap_bytes(object->memory.layout));
}

static void object_destroy(struct object *object)
{
    uint64_t charged[USAGE_COUNT];

    forget(object);
    object_set_state(object, OBJECT_GONE);
    log_debug("obj %016llx is gone", (unsigned long long)object->generation);
    object_drop_uses(object->memory.uses, object->memory.n_regions);
    while (object->users && !list_empty(&object->users->freed_waiters)) {
        struct object_waiter *waiter = container_of(list_first(&object->users->freed_waiters), struct object_waiter, link);
        object_waiter_remove(waiter);
        waiter->on_event(waiter, NULL, NULL);
    }
    assert(!object->users);
    if (object->cached)
        cache_forget(object);
    object_charges(object, charged);
    account_give_all(object->account, charged);
    slab_free(object_piece(object));
    account_unref(object->account);
    free_large_memory(object);
    free(object);
}

/* Its holds or pins have changed. */
static void tell_keeper(struct object *object)
{
    if (object->kind == OBJECT_REPLICA && object->record)
        object->table->on_adopted(object->record);
    else if (object->cached)
        cache_settle(object);
}

static void settle(struct object *object)
{
    tell_keeper(object);
    if (object->holds > 0 || object->state == OBJECT_AWAITED)
        return;
    if (object->pins == 0) {
        object_destroy(object);
    } else if (object->state == OBJECT_LIVE) {
        object_unname(object);
        object_set_state(object, OBJECT_DRAINING);
    }
}

void object_hold(struct object *object)
{
    assert(object->state == OBJECT_FILLING || object->state == OBJECT_LIVE || object->state == OBJECT_DRAINING);
    object->holds++;
    tell_keeper(object);
}

void object_drop(struct object *object)
{
    assert(object->holds > 0);
    object->holds--;
    settle(object);
}

/* ---- holders and waiters ---- */

struct object_users *object_users_get(struct object *object)
{
    struct object_users *users = object->users ? object->users : calloc(1, sizeof *users);

    if (users && !object->users) {
        for (unsigned kind = 0; kind < HOLDER_KINDS; kind++)
            list_init(&users->holders[kind]);
        list_init(&users->waiters);
        list_init(&users->freed_waiters);
        object->users = users;
    }
    return users;
}

void object_users_settle(struct object *object)
{
    struct object_users *users = object->users;

    if (!users || users->n_waiters > 0 || users->peer_holds > 0 || users->hidden_entry)
        return;
    for (unsigned kind = 0; kind < HOLDER_KINDS; kind++)
        if (users->n_holders[kind] > 0)
            return;
    free(users);
    object->users = NULL;
}

bool object_hold_by(struct object *object, enum holder_kind kind, struct list *by_object)
{
    struct object_users *users = object_users_get(object);

    if (!users)
        return false;
    list_append(&users->holders[kind], by_object);
    users->n_holders[kind]++;
    object_hold(object);
    return true;
}

void object_drop_by(struct object *object, enum holder_kind kind, struct list *by_object)
{
    list_remove(by_object);
    object->users->n_holders[kind]--;
    object_users_settle(object);
    object_drop(object);
}

bool object_peer_hold(struct object *object)
{
    struct object_users *users = object_users_get(object);

    if (!users)
        return false;
    users->peer_holds++;
    object_hold(object);
    return true;
}

void object_peer_drop(struct object *object)
{
    assert(object->users && object->users->peer_holds > 0);
    object->users->peer_holds--;
    object_users_settle(object);
    object_drop(object);
}

const struct list *object_holders(const struct object *object, enum holder_kind kind)
{
    static const struct list nobody = {(struct list *)&nobody, (struct list *)&nobody};

    return object->users ? &object->users->holders[kind] : &nobody;
}

uint32_t object_n_holders(const struct object *object, enum holder_kind kind)
{
    return object->users ? object->users->n_holders[kind] : 0;
}

unsigned object_n_waiters(const struct object *object)
{
    return object->users ? object->users->n_waiters : 0;
}

unsigned object_peer_holds(const struct object *object)
{
    return object->users ? object->users->peer_holds : 0;
}

void object_waiter_remove(struct object_waiter *waiter)
{
    struct object *object = waiter->object;

    if (!object)
        return;
    list_remove(&waiter->link);
    waiter->object = NULL;
    object->users->n_waiters--;
    object_users_settle(object);
    if (object->state == OBJECT_AWAITED && !object->users) {
        struct object *front =
            object->access.key == KEY_OWN ? NULL : map_get(&object->table->by_name, object->tail_data, object->tail.key_bytes);
        if (front) {
            front->users->hidden_entry = NULL;
            object_users_settle(front);
        }
        object_set_state(object, OBJECT_GONE);
        forget(object);
        object_discard(object);
    }
}

/* ---- pins ---- */

void object_pin(struct object *object)
{
    object->pins++;
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        region_pin(object->memory.uses[i].region);
    tell_keeper(object);
}

void object_unpin(struct object *object)
{
    assert(object->pins > 0);
    object->pins--;
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        region_unpin(object->memory.uses[i].region);
    settle(object);
}

enum rdt_status object_error_ended(enum object_end end, const char *id, int id_bytes, struct rdt_error *err)
{
    switch (end) {
    case OBJECT_END_OWNER_DIED:
        return rdt_error_set(err, RDT_OWNER_DIED, "object \"%.*s\" ended with the client that put it", id_bytes, id);
    case OBJECT_END_DROPPED:
        return rdt_error_set(
            err, RDT_FREED,
            "object \"%.*s\" was freed when its producer dropped its Ref or closed its connection: keep both, or put with "
            "detached=True and a ttl (RDT_PUT_DETACHED); a pickled Ref that takes longer to arrive needs put(grace=)",
            id_bytes, id);
    case OBJECT_END_EXPIRED:
        return rdt_error_set(err, RDT_FREED,
                             "object \"%.*s\" was freed: it was detached, and its time to live has passed. Put it with a "
                             "longer one",
                             id_bytes, id);
    case OBJECT_END_EVICTED:
        return rdt_error_set(
            err, RDT_FREED,
            "object \"%.*s\" was evicted from the cache, because its memory was wanted or the cache was flushed: put it again. "
            "A hold (rdt_hold, in Python hold) or a lease (rdt_lookup, lookup(lease_for=)) keeps an "
            "object there",
            id_bytes, id);
    case OBJECT_END_NO_ROOM:
        return rdt_error_set(
            err, RDT_OWNER_DIED,
            "object \"%.*s\" was freed: it lay in imported memory whose client has ended or released it, and that "
            "does not fit owner_max_bytes or memory_limit. Raise the limit, or keep the client connected",
            id_bytes, id);
    case OBJECT_END_FREED:
    default:
        return rdt_error_set(err, RDT_FREED, "object \"%.*s\" was freed", id_bytes, id);
    }
}

enum rdt_status object_why_ended(const struct object *object, struct rdt_error *err)
{
    int n = object->tail.id_bytes;
    const char *id = (const char *)object_id(object);

    return object_error_ended((enum object_end)object->end, id, n, err);
}

const char *object_state_name(const struct object *object)
{
    return states[object->state].name;
}

/* A process that has mapped device memory may write it. */
static bool may_show_device(const struct region *region, const struct owner *requester, const char **why_not_p)
{
    if (region->origin == REGION_SNAPSHOT || region->origin == REGION_REPLICA)
        *why_not_p = "it is a snapshot on a device, which others may see, too, and whoever maps memory there may write it";
    else if (!owner_equal(&region->account->owner, requester))
        *why_not_p = "it is on a device, whose memory cannot be shared read-only, and belongs to another owner";
    else
        return true;
    return false;
}

bool object_may_show(struct object *object, const struct owner *requester, const char **why_not_p)
{
    if (object->memory.chunk) {
        *why_not_p = "it is in the daemon's arena for small objects, which is never shared";
        return false;
    }
    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        const struct region *region = object->memory.uses[i].region;
        if (!region_is_host(region) && !may_show_device(region, requester, why_not_p))
            return false;
        if (owner_equal(&region->account->owner, requester) || region->origin == REGION_SNAPSHOT ||
            region->origin == REGION_REPLICA || region->origin == REGION_FILE)
            continue;
        if (region->origin == REGION_IMPORTED) {
            *why_not_p = "it lies in imported memory, which cannot be shared read-only, and belongs to another owner";
            return false;
        }
        if (!object->cover_known)
            object->cover_known = region_uses_cover(object->memory.uses, object->memory.n_regions, object->memory.layout);
        if (!object->memory.uses[i].covered) {
            *why_not_p = "its region holds other bytes of another owner, and sharing would show the whole region";
            return false;
        }
    }
    return true;
}
