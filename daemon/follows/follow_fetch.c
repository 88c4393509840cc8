/* SPDX-License-Identifier: Apache-2.0 */
/* How a followed name gets its versions: it seeks the next one, makes room for it, holds its parts, and fetches all objects.
 * All of that is done in slices of the loop (follow->work). The answers, which come to the client of the name, only note what
 * they say, because who brings them may be in the middle of a transfer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/follows/follow_impl.h"
#include "daemon/objects/remote_hold.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "wire_ref.h"

#define MOST_UNDER_WAY 32u        /* fetches of parts at a time: their memory is reserved one by one */
#define FIRST_PAUSE_NS 2000000ull /* after a failure; each next one in a row is twice as long */
#define LAST_PAUSE_NS 2000000000ull
#define LONG_PAUSE_NS 250000000ull /* from here on, followers are told that there is no memory */
#define FULL_PAUSE_NS 200000000ll  /* until room is looked for again: other names of the user may have given some back */
#define INDEX_BITS 20u             /* of a fetch's handle, below the serial number of the attempt */
#define NAME_INDEX ((1u << INDEX_BITS) - 1u) /* of the fetch of the name; those of objects are their index + 1 */
_Static_assert(FOLLOW_MAX_OBJECTS < NAME_INDEX, "a handle has the index of any object");

static const struct sm_state states[] = {
    [FOLLOW_SEEKING] = {"seeking", 1u << FOLLOW_FULL | 1u << FOLLOW_PAUSING | 1u << FOLLOW_ENDED},
    [FOLLOW_FULL] = {"full", 1u << FOLLOW_SEEKING | 1u << FOLLOW_HOLDING | 1u << FOLLOW_FETCHING | 1u << FOLLOW_PAUSING |
                                 1u << FOLLOW_ENDED},
    [FOLLOW_HOLDING] = {"holding", 1u << FOLLOW_FETCHING | 1u << FOLLOW_PAUSING | 1u << FOLLOW_ENDED},
    [FOLLOW_FETCHING] = {"fetching", 1u << FOLLOW_SEEKING | 1u << FOLLOW_PAUSING | 1u << FOLLOW_ENDED},
    [FOLLOW_PAUSING] = {"pausing", 1u << FOLLOW_SEEKING | 1u << FOLLOW_ENDED},
    [FOLLOW_ENDED] = {"ended", 0},
};

void follow_tell(struct follow *follow)
{
    list_splice(&follow->telling, &follow->waiters);
    follow_look(follow);
}

/* ---- the end of an attempt ---- */

/* Ends the fetches and the hold of the present attempt: answers that still come are passed over. */
static void stop(struct follow *follow)
{
    struct rdt_error why;
    struct follow_version *version = follow->arriving;
    struct remote_hold *hold = remote_hold_find(&follow->client, follow->serial);
    uint64_t first = follow->serial << INDEX_BITS;

    follow->serial++;
    follow->asked = false;
    follow->noted.why.status = RDT_OK; /* another failure of this attempt may have come before it */
    (void)rdt_error_set(&why, RDT_CANCELLED, "the attempt has ended");
    for (uint32_t i = version ? version->next : 0; i > 0 && follow->n_under_way > 0; i--) { /* the last ones are under way */
        struct fetch *fetch = map_get_u64(&follow->client.transfers.fetches, first + i);
        if (fetch) {
            follow->n_under_way--;
            fetch_fail(fetch, &why);
        }
    }
    follow->n_under_way = 0;
    if (hold)
        remote_hold_end(hold);
}

/* Makes room, if the present version has been copied by a follower, or no follower lacks it, and none is about to copy it. */
static bool drop_whole(struct follow *follow)
{
    struct follow_version *whole = follow->whole;

    if (!whole || whole->refs > 1 || (!whole->committed && follow_needed(follow, version_ref_of(whole), whole->number)))
        return false;
    version_unref(whole);
    follow->whole = NULL;
    return true;
}

static void on_pause(struct deadline *deadline)
{
    struct follow *follow = container_of(deadline, struct follow, pause);

    if (follow->sm.state == FOLLOW_FULL) { /* there may be a newer version by now */
        follow->again = true;
        (void)follow_ahead_yield(follow);
    }
    if (follow->sm.state == FOLLOW_PAUSING || follow->sm.state == FOLLOW_FULL)
        sm_move(&follow->sm, FOLLOW_SEEKING);
    follow_look(follow);
}

/* The version cannot be had at any time. */
static bool is_hopeless(const struct rdt_error *why)
{
    return why->status == RDT_UNSUPPORTED || why->status == RDT_INVALID;
}

/* Nothing else is kept for the followers of this name. */
static bool is_alone(const struct follow *follow)
{
    return !follow->whole && list_empty(&follow->dying) && !follow_ahead_has_others(follow);
}

/* Followers are told: waiting does not help, or not soon. Where the version before takes the memory, its commit does, and the
 * processes that have committed it release it soon after. */
static bool is_told(const struct follow *follow, const struct rdt_error *why)
{
    return is_hopeless(why) || why->status == RDT_LIMIT || why->status == RDT_DENIED ||
           (why->status == RDT_NO_MEMORY && is_alone(follow) && follow->pause_ns >= LONG_PAUSE_NS);
}

static void set_failure(struct follow *follow, const struct rdt_error *why, bool tell)
{
    follow->failed.why = *why;
    follow->failed.number = tell ? ++follow->failed.n : 0;
    if (tell)
        follow_tell(follow);
}

static void fail(struct follow *follow, const struct rdt_error *why, bool tell)
{
    uint64_t pause_ns = follow->pause_ns ? follow->pause_ns : FIRST_PAUSE_NS;

    stop(follow);
    version_unref(follow->arriving);
    follow->arriving = NULL;
    follow->again = !is_hopeless(why); /* then the next version may be better */
    log_debug("the followed name \"%s\" tries again in %.3f s: %s", follow->name.id, (double)pause_ns / 1e9, why->msg);
    sm_move(&follow->sm, FOLLOW_PAUSING);
    follow->pause_ns = 2 * pause_ns < LAST_PAUSE_NS ? 2 * pause_ns : LAST_PAUSE_NS;
    follow->pause.on_passed = on_pause;
    set_failure(follow, why, tell);
    if (!deadline_set(follow->follows->deadlines, &follow->pause, (int64_t)pause_ns))
        on_pause(&follow->pause);
}

static void fail_version(struct follow *follow, struct rdt_error *why)
{
    rdt_error_prefix(why, "version %llu of \"%s\"", (unsigned long long)follow->newest, follow->name.id);
    if (is_hopeless(why))
        follow->hopeless = follow->newest_ref;
    fail(follow, why, is_told(follow, why));
    follow->again = true; /* the node of the name may count anew */
}

/* The same for an answer, in the next slice. The first failure counts. */
static void note_failure(struct follow *follow, const struct rdt_error *why, bool of_version)
{
    if (follow->noted.why.status == RDT_OK) {
        follow->noted.why = *why;
        follow->noted.of_version = of_version;
    }
    follow_look(follow);
}

static void take_noted(struct follow *follow)
{
    struct rdt_error why = follow->noted.why;

    follow->noted.why.status = RDT_OK;
    if (follow->noted.of_version)
        fail_version(follow, &why);
    else /* the name has ended, or cannot be found */
        fail(follow, &why, why.status == RDT_FREED || why.status == RDT_OWNER_DIED || is_told(follow, &why));
}

/* ---- SEEKING ---- */

static enum rdt_status fetch_as(struct follow *follow, const struct rdt_ref *ref, uint64_t handle, bool meta_only,
                                struct rdt_error *err)
{
    Rdt__Pb__Fetch message = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    struct transfer *transfer = NULL;
    Rdt__Pb__Ref wire;
    enum rdt_status status;

    wire_ref_from(ref, &wire);
    item.ref = &wire;
    item.handle = handle;
    message.items = items;
    message.n_items = 1;
    message.meta_only = meta_only;
    message.timeout_ns = -1;
    message.memory = (char *)"host";
    status = fetch_start(follow->follows->transfers, &follow->client, &message, &item, NULL, &transfer, err);
    if (status == RDT_OK && transfer)
        transfer_go(transfer, NULL);
    return status;
}

static enum rdt_status fetch(struct follow *follow, const struct rdt_ref *ref, uint64_t index, bool meta_only,
                             struct rdt_error *err)
{
    return fetch_as(follow, ref, follow->serial << INDEX_BITS | index, meta_only, err);
}

static void get_home(const struct follow *follow, uint8_t boot_id_p[16])
{
    const struct peers *peers = follow->follows->transfers->peers;

    if (!peers || !peers_boot(peers, follow->newest_ref.node, boot_id_p))
        memset(boot_id_p, 0, 16);
}

/* While parts of a version came from others, the node of the name may have restarted without a keeper, and counts anew: a
 * question for a version above the newest one would wait there for ever. */
static bool home_has_changed(const struct follow *follow)
{
    static const uint8_t unknown[16];
    uint8_t now[16];

    get_home(follow, now);
    return memcmp(follow->home, unknown, sizeof unknown) != 0 && memcmp(follow->home, now, sizeof now) != 0;
}

static void seek(struct follow *follow)
{
    struct rdt_ref ref = follow->name;
    struct rdt_error err;

    follow->serial++;
    follow->asked = true;
    follow->ahead.off = false;
    ref.after = follow->again || home_has_changed(follow) ? 0 : follow->newest;
    if (fetch(follow, &ref, NAME_INDEX, true, &err) != RDT_OK)
        fail(follow, &err, is_told(follow, &err));
}

void follow_seek_again(struct follow *follow)
{
    struct fetch *waiting = map_get_u64(&follow->client.transfers.fetches, follow->serial << INDEX_BITS | NAME_INDEX);
    struct rdt_error why;

    if (follow->whole && follow_same_object(&follow->newest_ref, version_ref_of(follow->whole)))
        return; /* that is the newest */
    if (follow->sm.state != FOLLOW_SEEKING)
        return; /* it will seek */
    follow->again = true;
    stop(follow);
    (void)rdt_error_set(&why, RDT_CANCELLED, "another version is wanted");
    if (waiting)
        fetch_fail(waiting, &why);
    follow_look(follow);
}

void follow_stop(struct follow *follow)
{
    struct fetch *waiting = map_get_u64(&follow->client.transfers.fetches, follow->serial << INDEX_BITS | NAME_INDEX);
    struct rdt_error why;

    stop(follow);
    (void)follow_ahead_end_some(follow, UINT64_MAX);
    (void)rdt_error_set(&why, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (waiting)
        fetch_fail(waiting, &why);
}

/* The newest version of the name, as its node says. */
static void on_named(struct follow *follow, const Rdt__Pb__FetchDone *done)
{
    struct rdt_error err;
    struct rdt_ref ref;

    follow->asked = false;
    if (done->status != RDT_OK) {
        (void)wire_error(done->status, done->sys_errno, done->message, &err);
        note_failure(follow, &err, false);
        return;
    }
    follow->newest = done->version;
    if (wire_ref_to(done->ref, &ref, &err) != RDT_OK) {
        note_failure(follow, &err, false);
        return;
    }
    if (!follow_same_object(&follow->newest_ref, &ref)) {
        follow->newest_ref = ref;
        follow->newest_ns = uv_hrtime();
    }
    get_home(follow, follow->home);
    follow_ahead_settle(follow);
    follow->again = false;
    if (!follow->arriving || !follow_same_object(version_ref_of(follow->arriving), &ref)) { /* it did not wait for room */
        version_unref(follow->arriving);
        follow->arriving = NULL;
        if (follow_is_settled(follow)) {
            follow_look(follow);
            return;
        }
        if (version_create(follow, done, &ref, &follow->arriving, &err) != RDT_OK) {
            note_failure(follow, &err, true);
            return;
        }
        follow->arriving->seen_ns = follow->newest_ns;
    }
    sm_move(&follow->sm, FOLLOW_FULL);
    follow_look(follow);
}

/* ---- FULL ---- */

static void hold(struct follow *follow);

static void make_room(struct follow *follow)
{
    struct follow_version *version = follow->arriving;
    uint64_t ahead = follow_ahead_lend(follow, version->number);
    struct rdt_error err;

    if (account_take(follow->account, USAGE_FOLLOWED_BYTES, version->bytes, &err) == RDT_OK) {
        deadline_unset(follow->follows->deadlines, &follow->pause);
        version->charged = version->bytes;
        hold(follow);
        return;
    }
    follow_ahead_take_back(follow, ahead);
    rdt_error_prefix(&err, "version %llu of \"%s\"", (unsigned long long)version->number, follow->name.id);
    if (drop_whole(follow))
        return; /* when its bytes have been given back, there may be room */
    if (follow->failed.why.status != RDT_LIMIT || strcmp(follow->failed.why.msg, err.msg) != 0 ||
        (follow->failed.number == 0 && is_alone(follow)))
        set_failure(follow, &err, is_alone(follow)); /* or its own versions are in the way */
    follow->pause.on_passed = on_pause;
    if (follow->pause.index == 0) /* others may make it look for room more often */
        (void)deadline_set(follow->follows->deadlines, &follow->pause, FULL_PAUSE_NS);
}

/* false: until_ns has passed. */
static bool read_and_make_room(struct follow *follow, uint64_t until_ns)
{
    struct rdt_error err;
    enum rdt_status status = version_read_some(follow->arriving, until_ns, &err);

    if (status == RDT_AGAIN)
        return false;
    if (status == RDT_OK)
        make_room(follow);
    else
        fail_version(follow, &err);
    return true;
}

/* ---- HOLDING ---- */

static void hold(struct follow *follow)
{
    const struct follows *follows = follow->follows;
    struct follow_version *version = follow->arriving;
    const struct rdt_ref *ref = version_ref_of(version);
    struct remote_hold *held;
    struct rdt_error err;
    enum rdt_status status = RDT_OK;

    if (!version->is_manifest) {
        sm_move(&follow->sm, FOLLOW_FETCHING);
        follow_look(follow);
        return;
    }
    sm_move(&follow->sm, FOLLOW_HOLDING);
    follow->asked = true;
    if (node_is_here(follows->node, ref->node, ref->address)) {
        struct object *object;
        status = object_table_find(follows->objects, ref, &follow->account->owner, &object, &err);
        if (status == RDT_AGAIN)
            status = rdt_error_set(&err, RDT_FREED, "it has been replaced");
        if (status == RDT_OK)
            status = remote_hold_take(&follow->client, follow->serial, object, &held, &err);
        if (status == RDT_OK)
            sm_move(&follow->sm, FOLLOW_FETCHING);
        follow->asked = false;
        follow_look(follow);
    } else {
        status = follows->above.hold(follows->above.arg, &follow->client, follow->serial, ref, &err);
    }
    if (status != RDT_OK)
        fail_version(follow, &err);
}

static void on_hold(struct follow *follow, uint8_t flags, uint64_t id, const ProtobufCMessage *message)
{
    struct remote_hold *late;
    struct rdt_error err;

    if (id != follow->serial || follow->sm.state != FOLLOW_HOLDING) { /* the end of the name's client ends it, too */
        late = flags & FRAME_ERROR ? NULL : remote_hold_find(&follow->client, id);
        if (late)
            remote_hold_end(late);
        return;
    }
    follow->asked = false;
    if (flags & FRAME_ERROR) {
        const Rdt__Pb__ErrorReply *reply = (const Rdt__Pb__ErrorReply *)message;
        (void)wire_error(reply->status, reply->sys_errno, reply->message, &err);
        note_failure(follow, &err, true);
        return;
    }
    sm_move(&follow->sm, FOLLOW_FETCHING);
    follow_look(follow);
}

/* ---- FETCHING ---- */

static void become_whole(struct follow *follow)
{
    struct follow_version *before = follow->whole;

    stop(follow);
    follow->whole = follow->arriving;
    follow->arriving = NULL;
    follow->whole->whole_ns = uv_hrtime();
    follow->whole->bytes_moved += follow_ahead_moved(follow, follow->whole->number);
    if (follow->whole->bytes_moved > follow->whole->bytes) /* it has joined a fetch that was under way */
        follow->whole->bytes_moved = follow->whole->bytes;
    follow->follows->counts->followed_versions++;
    follow->follows->counts->followed_moved += follow->whole->bytes_moved;
    follow->failed.why = (struct rdt_error){0};
    follow->failed.number = 0;
    follow->pause_ns = 0;
    log_debug("version %llu of the followed name \"%s\" is here: %llu bytes, of which %llu came from other nodes",
              (unsigned long long)follow->whole->number, follow->name.id, (unsigned long long)follow->whole->bytes,
              (unsigned long long)follow->whole->bytes_moved);
    sm_move(&follow->sm, FOLLOW_SEEKING);
    follow_ahead_settle(follow);
    version_unref(before);
    follow_tell(follow);
}

/* Starts further fetches, a few at a time. */
static bool fetch_some(struct follow *follow, uint64_t until_ns)
{
    struct follow_version *version = follow->arriving;
    struct rdt_error err;

    while (follow->sm.state == FOLLOW_FETCHING && version->next < version->n_objects && follow->n_under_way < MOST_UNDER_WAY) {
        uint32_t i = version->next++;

        follow->n_under_way++;
        if (fetch(follow, &version->objects[i].ref, i + 1, false, &err) != RDT_OK) {
            follow->n_under_way--;
            fail_version(follow, &err);
            return true;
        }
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

static void on_object(struct follow *follow, uint32_t i, const Rdt__Pb__FetchDone *done, struct hold *hold)
{
    struct follow_version *version = follow->arriving;
    struct rdt_error err = {0};

    follow->n_under_way--;
    if (done->status != RDT_OK)
        (void)wire_error(done->status, done->sys_errno, done->message, &err);
    else
        (void)version_take(version, i, done, hold, &err);
    if (err.status != RDT_OK)
        note_failure(follow, &err, true);
    else
        follow_look(follow);
}

/* ---- the client of the name ---- */

static void on_answer(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id, const ProtobufCMessage *message,
                      const int *take_fds, unsigned n_fds)
{
    struct follow *follow = container_of(client, struct follow, client);
    const Rdt__Pb__FetchDone *done = (const Rdt__Pb__FetchDone *)message;
    struct hold *hold;
    uint64_t index;

    for (unsigned i = 0; i < n_fds; i++)
        (void)close(take_fds[i]); /* there are none: it maps nothing */
    if (type == RDT_MSG_HOLD && flags & FRAME_REPLY)
        on_hold(follow, flags, request_id, message);
    if (type == RDT_MSG_GROWING && flags & FRAME_REPLY)
        follow_ahead_on_answer(follow, flags, request_id, message);
    if (type != RDT_EVENT_FETCH_DONE)
        return;
    hold = done->hold ? map_get_u64(&client->holds.by_id, done->hold) : NULL;
    index = done->handle & NAME_INDEX;
    if (done->handle & FOLLOW_AHEAD_BIT) {
        follow_ahead_on_object(follow, done, hold);
    } else if (done->handle >> INDEX_BITS != follow->serial || follow->sm.state == FOLLOW_ENDED) {
        if (hold)
            client_release(hold);
    } else if (index == NAME_INDEX) {
        on_named(follow, done);
    } else {
        on_object(follow, (uint32_t)index - 1, done, hold);
    }
}

static size_t no_bytes(const struct client *client)
{
    return 0;
}

static uint64_t all_received(const struct client *client)
{
    return 0;
}

static void want_turn(struct client *client)
{
    follow_look(container_of(client, struct follow, client));
}

static void end_never(struct client *client, const char *why) {}

void prepare_waiter_remove(struct prepare_waiter *waiter)
{
    if (!waiter->follower)
        return;
    list_remove(&waiter->link);
    waiter->follower->waiter = NULL;
    waiter->follower = NULL;
}

static bool tell_some(struct follow *follow, uint64_t until_ns)
{
    list_drain (struct prepare_waiter, waiter, &follow->telling, link) {
        prepare_waiter_remove(waiter);
        waiter->on_event(waiter, NULL);
        if (uv_hrtime() >= until_ns)
            return list_empty(&follow->telling);
    }
    return true;
}

/* The next version found no memory: the one before may give its own, or parts of the one after. */
static void make_memory(struct follow *follow)
{
    if (follow->failed.why.status != RDT_NO_MEMORY || (!drop_whole(follow) && !follow_ahead_yield(follow)))
        return;
    follow->pause_ns = 0;
    deadline_unset(follow->follows->deadlines, &follow->pause);
    on_pause(&follow->pause);
}

void follow_lose(struct follow_version *version, const struct follow_object *object)
{
    struct follow *follow = version->follow;

    if (version->lost)
        return;
    version->lost = true;
    if (version != follow->whole)
        return;
    (void)rdt_error_set(&follow->failed.why, RDT_FREED, "object \"%s\" of version %llu of \"%s\" was freed by force",
                        object->ref.id, (unsigned long long)version->number, follow->name.id);
    follow->failed.number = 0;
    follow_look(follow);
}

/* Does what can be done now; what it waits for calls follow_look. */
static bool work_some(struct slice *slice, uint64_t until_ns)
{
    struct follow *follow = container_of(slice, struct follow, work);

    if (follow->sm.state == FOLLOW_ENDED)
        return follow_end_some(follow, until_ns);
    if (!client_work(&follow->client, until_ns) || !tell_some(follow, until_ns))
        return false;
    if (follow->follows->draining)
        return true;
    if (follow->noted.why.status != RDT_OK)
        take_noted(follow);
    if (follow->whole && follow->whole->lost) {
        version_unref(follow->whole);
        follow->whole = NULL;
    }
    if (follow->sm.state == FOLLOW_PAUSING)
        make_memory(follow);
    if (follow->sm.state == FOLLOW_SEEKING && !follow->asked)
        seek(follow);
    if (follow->sm.state == FOLLOW_FULL && !read_and_make_room(follow, until_ns))
        return false;
    if (follow->sm.state == FOLLOW_FETCHING && !fetch_some(follow, until_ns))
        return false;
    if (follow->sm.state == FOLLOW_FETCHING && follow->arriving->n_here == follow->arriving->n_objects)
        become_whole(follow);
    if (!follow_ahead_work(follow, until_ns))
        return false;
    list_drain (struct follow_version, version, &follow->dying, link) {
        if (!version_drop_some(version, until_ns))
            return false;
        if (follow->sm.state == FOLLOW_FULL)
            follow_look(follow);
    }
    return true;
}

void follow_fetch_init(struct follow *follow)
{
    struct client *client = &follow->client;

    client_init(client, UINT64_MAX / 2 + ++follow->follows->next_client);
    client->account = account_ref(follow->account);
    (void)snprintf(client->name, sizeof client->name, "follow %.56s", follow->name.id);
    client->transfers.maps_nothing = true;
    client->conn.send = on_answer;
    client->conn.queued_bytes = no_bytes;
    client->conn.bytes_received = all_received;
    client->conn.want_turn = want_turn;
    client->conn.end = end_never;
    client->owner_work = NULL;
    sm_init(&follow->sm, states, sizeof states / sizeof states[0], FOLLOW_SEEKING);
    follow->work.run = work_some;
    follow->again = true;
    follow_ahead_init(follow, fetch_as);
}

/* ---- the end ---- */

static void free_all(struct follow *follow)
{
    struct account *account = follow->account;

    list_remove(&follow->link);
    account_unref(follow->client.account);
    account_give(account, USAGE_HEAP, sizeof *follow);
    account_unref(account);
    free(follow);
}

bool follow_end_some(struct follow *follow, uint64_t until_ns)
{
    const struct follows_above *above = &follow->follows->above;

    if (!follow_ahead_end_some(follow, until_ns) ||
        !transfers_client_gone(follow->follows->transfers, &follow->client, until_ns) ||
        !above->holder_gone(above->arg, &follow->client, until_ns) || !client_fini(&follow->client, until_ns))
        return false;
    list_drain (struct follow_version, version, &follow->dying, link)
        if (!version_drop_some(version, until_ns))
            return false;
    free_all(follow);
    return true;
}
