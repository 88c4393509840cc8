/* SPDX-License-Identifier: Apache-2.0 */
/* A version that is not complete yet: its parts are fetched while it grows, and held, as long as no complete one needs the
 * room. When it is complete, it is fetched as any other (follow_fetch.c), and finds them on this node. When it fails, they are
 * dropped. Followers never see any of this.
 *
 *            GROWING: these parts are there            GROWING: it is complete               it is whole here
 *     now ────────────────────────────────► now.parts ─────────────────────────► before.parts ───────────────► dropping
 *                                              │  GROWING: it has failed                                           ▲
 *                                              └───────────────────────────────────────────────────────────────────┘
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/follows/follow_impl.h"
#include "daemon/versions/shards.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "wire_ref.h"

#define MOST_UNDER_WAY 8u

struct ahead_part {
    struct list link; /* in set->wanted, ->parts, or ahead->dropping */
    uint64_t growth;  /* of its set */
    struct rdt_ref ref;
    uint64_t bytes;        /* that the name's node says */
    uint64_t id;           /* in ahead->by_id, and of its fetch */
    bool under_way;        /* it is being fetched */
    struct object *object; /* with a hold; NULL: it is not here, or need not be held */
};

static void set_init(struct ahead_set *set)
{
    *set = (struct ahead_set){0};
    list_init(&set->wanted);
    list_init(&set->parts);
}

void follow_ahead_init(struct follow *follow, follow_fetch fetch)
{
    struct follow_ahead *ahead = &follow->ahead;

    ahead->fetch = fetch;
    set_init(&ahead->now);
    set_init(&ahead->before);
    list_init(&ahead->dropping);
    map_init(&ahead->by_id);
}

/* ---- dropping ---- */

static void drop_set(struct follow *follow, struct ahead_set *set)
{
    list_splice(&follow->ahead.dropping, &set->wanted);
    list_splice(&follow->ahead.dropping, &set->parts);
    account_give(follow->account, USAGE_FOLLOWED_BYTES, set->charged);
    set_init(set);
}

static void drop_part(struct follow *follow, struct ahead_part *part)
{
    struct follow_ahead *ahead = &follow->ahead;
    struct fetch *fetch = part->under_way ? map_get_u64(&follow->client.transfers.fetches, part->id) : NULL;
    struct rdt_error why;

    (void)map_remove_u64(&ahead->by_id, part->id); /* the answer is passed over */
    ahead->n_under_way -= part->under_way;
    if (fetch) {
        (void)rdt_error_set(&why, RDT_CANCELLED, "the version did not become complete");
        fetch_fail(fetch, &why);
    }
    if (part->object)
        object_drop(part->object);
    list_remove(&part->link);
    account_give(follow->account, USAGE_HEAP, sizeof *part);
    free(part);
}

static bool drop_some(struct follow *follow, uint64_t until_ns)
{
    while (!list_empty(&follow->ahead.dropping)) {
        drop_part(follow, container_of(list_first(&follow->ahead.dropping), struct ahead_part, link));
        if (uv_hrtime() >= until_ns)
            return list_empty(&follow->ahead.dropping);
    }
    return true;
}

bool follow_ahead_end_some(struct follow *follow, uint64_t until_ns)
{
    drop_set(follow, &follow->ahead.now);
    drop_set(follow, &follow->ahead.before);
    if (!drop_some(follow, until_ns))
        return false;
    map_fini(&follow->ahead.by_id);
    map_init(&follow->ahead.by_id);
    return true;
}

/* ---- what the name's node says ---- */

static void take_parts(struct follow *follow, const Rdt__Pb__GrowingReply *reply)
{
    struct follow_ahead *ahead = &follow->ahead;

    for (size_t i = 0; i < reply->n_parts && i < reply->n_bytes && ahead->n_known < SHARDS_MAX_PIECES; i++) {
        struct ahead_part *part;
        struct rdt_ref ref;

        ahead->n_known++;
        if (wire_ref_to(reply->parts[i], &ref, NULL) != RDT_OK || ref.is_name || ref.generation == 0 ||
            node_is_here(follow->follows->node, ref.node, ref.address) ||
            account_take(follow->account, USAGE_HEAP, sizeof *part, NULL) != RDT_OK)
            continue; /* it is fetched when the version is complete, if at all */
        part = calloc(1, sizeof *part);
        if (part)
            *part = (struct ahead_part){
                .growth = ahead->now.growth, .ref = ref, .bytes = reply->bytes[i], .id = FOLLOW_AHEAD_BIT | ++ahead->last_id};
        if (!part || !map_put_u64(&ahead->by_id, part->id, part)) {
            free(part);
            account_give(follow->account, USAGE_HEAP, sizeof *part);
            continue;
        }
        list_append(&ahead->now.wanted, &part->link);
    }
}

/* Nobody will ask for that version; 0: it has failed. */
static bool is_past(const struct follow *follow, uint64_t version)
{
    return version == 0 || version < follow->newest || (version == follow->newest && follow_is_settled(follow));
}

void follow_ahead_on_answer(struct follow *follow, uint8_t flags, uint64_t id, const ProtobufCMessage *message)
{
    const Rdt__Pb__GrowingReply *reply = (const Rdt__Pb__GrowingReply *)message;
    struct follow_ahead *ahead = &follow->ahead;

    if (id != ahead->asked_id || follow->sm.state == FOLLOW_ENDED)
        return;
    ahead->asked_id = 0;
    ahead->off = flags & FRAME_ERROR || reply->growth == 0 || (reply->n_parts == 0 && !reply->ended);
    follow_look(follow);
    if (ahead->off)
        return;
    if (ahead->now.growth != reply->growth) {
        drop_set(follow, &ahead->now);
        ahead->now.growth = reply->growth;
        ahead->n_known = 0;
    }
    if (!reply->ended) {
        take_parts(follow, reply);
        ahead->off = ahead->n_known == SHARDS_MAX_PIECES; /* a version has no more */
        return;
    }
    if (is_past(follow, reply->version)) {
        drop_set(follow, &ahead->now);
        return;
    }
    drop_set(follow, &ahead->before);
    ahead->before.growth = ahead->now.growth;
    ahead->before.version = reply->version;
    ahead->before.charged = ahead->now.charged;
    ahead->before.moved = ahead->now.moved;
    list_splice(&follow->ahead.dropping, &ahead->now.wanted); /* the version fetches them itself */
    list_splice(&ahead->before.parts, &ahead->now.parts);
    set_init(&ahead->now);
}

static void ask(struct follow *follow)
{
    const struct follows_above *above = &follow->follows->above;
    struct follow_ahead *ahead = &follow->ahead;

    ahead->asked_id = FOLLOW_AHEAD_BIT | ++ahead->last_id;
    if (above->growing(above->arg, &follow->client, ahead->asked_id, &follow->name, ahead->now.growth, ahead->n_known))
        return; /* perhaps it has been answered */
    ahead->asked_id = 0;
    ahead->off = true;
}

/* ---- fetching ---- */

void follow_ahead_on_object(struct follow *follow, const Rdt__Pb__FetchDone *done, struct hold *hold)
{
    struct ahead_part *part = map_get_u64(&follow->ahead.by_id, done->handle);

    if (part) {
        struct follow_ahead *ahead = &follow->ahead;
        struct ahead_set *set = part->growth == ahead->before.growth ? &ahead->before : &ahead->now;

        part->under_way = false;
        ahead->n_under_way--;
        if (done->status == RDT_OK && done->snapshot && hold && hold->object && hold->object->bytes == part->bytes)
            object_hold(part->object = hold->object);
        if (part->object && strncmp(done->path, "local/", 6) != 0)
            set->moved += done->bytes_moved;
        follow_look(follow);
    }
    if (hold)
        client_release(hold);
}

static void fetch_next(struct follow *follow)
{
    struct follow_ahead *ahead = &follow->ahead;
    struct ahead_part *part = container_of(list_first(&ahead->now.wanted), struct ahead_part, link);

    if (account_take(follow->account, USAGE_FOLLOWED_BYTES, part->bytes, NULL) != RDT_OK) {
        list_splice(&ahead->dropping, &ahead->now.wanted); /* there is no room beside the versions that are whole */
        return;
    }
    ahead->now.charged += part->bytes;
    list_remove(&part->link);
    list_append(&ahead->now.parts, &part->link);
    part->under_way = true;
    ahead->n_under_way++;
    if (ahead->fetch(follow, &part->ref, part->id, false, NULL) != RDT_OK) {
        part->under_way = false;
        ahead->n_under_way--;
    }
}

/* A version that is complete comes first: parts of the next one would take the room that it needs. The one for which memory
 * was missing is named anew. */
static bool may_fetch(const struct follow *follow)
{
    return follow->sm.state == FOLLOW_SEEKING && !follow->arriving && follow->failed.why.status != RDT_NO_MEMORY;
}

bool follow_ahead_work(struct follow *follow, uint64_t until_ns)
{
    struct follow_ahead *ahead = &follow->ahead;

    if (!drop_some(follow, until_ns))
        return false;
    while (may_fetch(follow) && !list_empty(&ahead->now.wanted) && ahead->n_under_way < MOST_UNDER_WAY) {
        fetch_next(follow);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    if (ahead->asked_id == 0 && !ahead->off)
        ask(follow);
    return true;
}

/* Whether what is here of a version that was complete is of another one than the newest that is known. */
static bool has_another(const struct follow *follow)
{
    return follow->ahead.before.version != 0 && follow->ahead.before.version != follow->newest;
}

bool follow_ahead_has_others(const struct follow *follow)
{
    return has_another(follow) || !list_empty(&follow->ahead.now.parts);
}

bool follow_ahead_yield(struct follow *follow)
{
    struct ahead_set *now = &follow->ahead.now;
    bool has_others = follow_ahead_has_others(follow);

    if (has_another(follow))
        drop_set(follow, &follow->ahead.before);
    list_splice(&follow->ahead.dropping, &now->parts);
    account_give(follow->account, USAGE_FOLLOWED_BYTES, now->charged);
    now->charged = now->moved = 0;
    return has_others;
}

/* ---- the version is complete ---- */

uint64_t follow_ahead_lend(struct follow *follow, uint64_t version)
{
    struct ahead_set *set = &follow->ahead.before;
    uint64_t charged = set->version == version ? set->charged : 0;

    account_give(follow->account, USAGE_FOLLOWED_BYTES, charged);
    set->charged -= charged;
    return charged;
}

void follow_ahead_take_back(struct follow *follow, uint64_t charged)
{
    account_add(follow->account, USAGE_FOLLOWED_BYTES, charged);
    follow->ahead.before.charged += charged;
}

uint64_t follow_ahead_moved(const struct follow *follow, uint64_t version)
{
    return follow->ahead.before.version == version ? follow->ahead.before.moved : 0;
}

void follow_ahead_settle(struct follow *follow)
{
    uint64_t version = follow->ahead.before.version;

    if (version != 0 && version != follow->newest + 1 && /* that one may be on the way */
        (version != follow->newest || follow_is_settled(follow)))
        drop_set(follow, &follow->ahead.before);
}
