/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions of clients: their records, the answers that they may ask for again, and their holds. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/objects/remote_hold.h"
#include "daemon/persist/recovery_impl.h"

/* ---- the effects of requests ----
 *
 * Those of a session that no other record tells: PUBLISHes whose versions are no longer the newest ones, and HOLDs that began
 * holds in transit. If the answer to such a request is lost with the daemon, the session sends the request again, and must get
 * the same answer. A session has few requests without an answer, so only the last ones of each kind are remembered: a publish
 * of many names may be as many effects. */

#define MOST 64u /* of one session and kind */

struct published { /* by the record's flags: enum published_kind */
    struct ring {
        struct journal_slot *slots[MOST]; /* NULL: none */
        unsigned next;
    } rings[PUBLISHED_KINDS];
};

static struct account *account_of(struct recovery *recovery, uint64_t session)
{
    struct client *client = map_get_u64(&recovery->sessions, session);

    return client ? client->account : NULL;
}

/* Notes that the session has this record. false: no memory. */
static bool add_published(struct recovery *recovery, struct journal_slot *slot)
{
    uint64_t session = slot->numbers[NUMBER_PUBLISHED_SESSION];
    struct published *published = map_get_u64(&recovery->published, session);
    struct journal_slot **at;
    struct ring *ring;

    if (!published) {
        published = calloc(1, sizeof *published);
        if (!published || !map_put_u64(&recovery->published, session, published)) {
            free(published);
            return false;
        }
    }
    ring = &published->rings[slot->flags < PUBLISHED_KINDS ? slot->flags : PUBLISHED_NAME];
    at = &ring->slots[ring->next++ % MOST];
    if (*at)
        recovery_remove_record(recovery, account_of(recovery, session), *at);
    *at = slot;
    recovery_charge(account_of(recovery, session), slot);
    return true;
}

/* key: the version or generation that the request's answer had. */
static struct journal_slot *write_effect(struct recovery *recovery, uint64_t session, uint64_t request,
                                         enum published_kind kind, uint64_t key)
{
    const uint64_t numbers[JOURNAL_NUMBERS] = {[NUMBER_PUBLISHED_SESSION] = session, [NUMBER_PUBLISHED_REQUEST] = request};
    struct journal_slot *slot;

    if (request == 0 || !map_get_u64(&recovery->sessions, session))
        return NULL;
    slot = journal_begin(recovery->journal, 0);
    if (slot)
        journal_commit(recovery->journal, slot, RECORD_PUBLISHED, key, kind, numbers);
    return slot;
}

struct journal_slot *recovery_write_published(struct recovery *recovery, const struct journal_slot *name)
{
    return write_effect(recovery, name->numbers[NUMBER_NAME_SESSION], name->numbers[NUMBER_NAME_REQUEST], PUBLISHED_NAME,
                        name->key);
}

static void remember(struct recovery *recovery, struct journal_slot *slot)
{
    if (slot && !add_published(recovery, slot))
        journal_remove(recovery->journal, slot);
}

void recovery_remember_published(struct recovery *recovery, const struct journal_slot *name)
{
    remember(recovery, recovery_write_published(recovery, name));
}

void recovery_remember_request(struct recovery *recovery, const struct client *client, uint64_t request, uint64_t generation)
{
    remember(recovery, write_effect(recovery, client->id, request, PUBLISHED_HAND_ON, generation));
}

static void forget_published(struct recovery *recovery, uint64_t session)
{
    struct published *published = map_remove_u64(&recovery->published, session);

    for (unsigned i = 0; published && i < PUBLISHED_KINDS * MOST; i++)
        if (published->rings[i / MOST].slots[i % MOST])
            recovery_remove_record(recovery, account_of(recovery, session), published->rings[i / MOST].slots[i % MOST]);
    free(published);
}

void recovery_fini_published(struct recovery *recovery)
{
    struct published *published;
    size_t cursor = 0;

    while ((published = map_next(&recovery->published, &cursor)))
        free(published);
    map_fini(&recovery->published);
}

bool restore_published(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct client *client = map_get_u64(&restoring->recovery->sessions, slot->numbers[NUMBER_PUBLISHED_SESSION]);
    uint64_t request = slot->numbers[NUMBER_PUBLISHED_REQUEST];
    uint64_t version =
        client ? (uintptr_t)map_get_u64(&client->session.answers, request) : 0; /* perhaps from the name's own record */

    if (!client) /* the session ended a moment before the earlier daemon did */
        return false;
    if (slot->key == 0 || request == 0 || (version != 0 && version != slot->key)) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid");
        return false;
    }
    if (!add_published(restoring->recovery, slot)) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for it");
        return false;
    }
    if (version == 0)
        (void)map_put_u64(&client->session.answers, request, (void *)(uintptr_t)slot->key);
    return true;
}

/* ---- sessions ---- */

bool recovery_keep_session(struct recovery *recovery, struct client *client, const struct session_image *image)
{
    Rdt__Pb__JournalSession record = RDT__PB__JOURNAL_SESSION__INIT;

    if (!recovery->journal || recovery->frozen)
        return false;
    record.token_sha256 = (ProtobufCBinaryData){sizeof image->token_sha256, (uint8_t *)image->token_sha256};
    record.uid = client->account->owner.uid;
    record.tenant = client->account->owner.tenant;
    record.gid = client->gid;
    record.pid = client->pid;
    record.started = image->started;
    record.name = client->name;
    record.tensor_runs = client->tensor_runs;
    client->session.record = recovery_add_record(recovery, client->account, RECORD_SESSION, client->id, &record.base, 0, NULL);
    if (!client->session.record)
        return false;
    if (!map_put_u64(&recovery->sessions, client->id, client)) {
        recovery_remove_record(recovery, client->account, client->session.record);
        client->session.record = NULL;
        return false;
    }
    client->session.lasting = &recovery->lasting;
    recovery->counts.sessions++;
    return true;
}

void recovery_end_session(struct recovery *recovery, struct client *client)
{
    if (!client->session.record || recovery->frozen)
        return;
    forget_published(recovery, client->id);
    (void)map_remove_u64(&recovery->sessions, client->id);
    recovery_remove_record(recovery, client->account, client->session.record);
    client->session.record = NULL;
    recovery->counts.sessions--;
}

static bool image_from(const Rdt__Pb__JournalSession *record, uint64_t id, struct session_image *image_p, struct rdt_error *err)
{
    *image_p = (struct session_image){.id = id,
                                      .owner.uid = record->uid,
                                      .gid = record->gid,
                                      .pid = record->pid,
                                      .started = record->started,
                                      .tensor_runs = record->tensor_runs};
    if (record->token_sha256.len != sizeof image_p->token_sha256 || strlen(record->tenant) >= sizeof image_p->owner.tenant ||
        strlen(record->name) >= sizeof image_p->name) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid");
        return false;
    }
    memcpy(image_p->token_sha256, record->token_sha256.data, sizeof image_p->token_sha256);
    text_copy(image_p->owner.tenant, sizeof image_p->owner.tenant, record->tenant);
    text_copy(image_p->name, sizeof image_p->name, record->name);
    return true;
}

bool restore_session(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalSession *record = restore_unpack(&arena, slot, &rdt__pb__journal_session__descriptor, err);
    struct client *client = NULL;
    struct session_image image;

    if (record && restore_check_id(slot->key, err) && image_from(record, slot->key, &image, err) &&
        !map_get_u64(&recovery->sessions, slot->key)) {
        client = recovery->restore_session(recovery->restore_arg, &image);
        if (!client || !map_put_u64(&recovery->sessions, slot->key, client))
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the session, or another session has the same token");
    }
    if (client && err->status == RDT_OK) {
        client->session.record = slot;
        recovery_charge(client->account, slot);
        client->session.lasting = &recovery->lasting;
        recovery->counts.sessions++;
    }
    arena_fini(&arena);
    return client && err->status == RDT_OK;
}

/* ---- holds ---- */

/* The regions of a copy that the session holds; NULL: err says why. */
static struct region **regions_of(struct recovery *recovery, const Rdt__Pb__JournalHold *record, struct rdt_error *err)
{
    struct region **regions = malloc((record->n_regions + 1) * sizeof(struct region *));

    if (!regions)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the hold");
    for (size_t i = 0; regions && i < record->n_regions; i++) {
        regions[i] = map_get_u64(&recovery->kept_regions, record->regions[i]);
        if (!regions[i]) {
            (void)rdt_error_set(err, RDT_NOT_FOUND, "its region %llu is lost", (unsigned long long)record->regions[i]);
            free(regions);
            return NULL;
        }
    }
    return regions;
}

bool restore_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalHold *record = restore_unpack(&arena, slot, &rdt__pb__journal_hold__descriptor, err);
    struct client *client =
        record && restore_check_id(slot->key, err) ? map_get_u64(&restoring->recovery->sessions, record->session) : NULL;
    struct object *object = client ? index_get(&recovery->objects->by_generation, record->generation) : NULL;
    struct region **regions = NULL;
    struct hold *hold = NULL;

    if (client && record->generation != 0 && !object)
        (void)rdt_error_set(err, RDT_NOT_FOUND, "its object is lost");
    else if (client && record->generation == 0)
        regions = regions_of(recovery, record, err);
    if (object || regions) {
        hold = client_restore_hold(client, slot->key, object, regions, (uint32_t)record->n_regions);
        if (!hold)
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the hold, or there are two");
    }
    if (hold) {
        hold->record = slot;
        recovery_charge(client->account, slot);
        recovery->counts.holds++;
    }
    free(regions);
    arena_fini(&arena);
    return hold;
}

/* The hold has ended before it was taken again. */
static void forget(void *far)
{
    struct far_record *record = far;

    list_remove(&record->link);
    free(record);
}

bool recovery_await_far_hold(struct recovery *recovery, struct client *client, uint64_t request_id, const Rdt__Pb__Ref *ref)
{
    struct remote_hold *hold = remote_hold_find(client, request_id);
    size_t bytes = protobuf_c_message_get_packed_size(&ref->base);
    struct far_record *far = malloc(sizeof *far + bytes);

    if (!far)
        return false;
    *far = (struct far_record){.client = client, .request_id = request_id, .ref_bytes = bytes};
    if (ref->node.len == sizeof far->node)
        memcpy(far->node, ref->node.data, sizeof far->node);
    (void)protobuf_c_message_pack(&ref->base, far->ref);
    list_append(&recovery->far_holds, &far->link);
    hold->far = far;
    hold->release_far = forget;
    return true;
}

/* An object that was freed by force leaves the hold without one. */
bool restore_remote_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalRemoteHold *record = restore_unpack(&arena, slot, &rdt__pb__journal_remote_hold__descriptor, err);
    struct client *client = record ? map_get_u64(&restoring->recovery->sessions, record->session) : NULL;
    struct object *object = client ? index_get(&recovery->objects->by_generation, record->generation) : NULL;
    struct remote_hold *hold = NULL;

    if (client && remote_hold_take(client, slot->key, object, &hold, err) == RDT_OK) {
        hold->record = slot;
        recovery_charge(client->account, slot);
        recovery->counts.holds++;
        if (record->ref)
            (void)recovery_await_far_hold(recovery, client, slot->key, record->ref);
    }
    arena_fini(&arena);
    return hold;
}
