/* SPDX-License-Identifier: Apache-2.0 */
/* Followed names and their followers. */
#include "daemon/follows/follow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/directory/directory_names.h"
#include "daemon/follows/follow_impl.h"

void follows_init(struct follows *follows)
{
    map_init(&follows->names);
    list_init(&follows->followers);
    list_init(&follows->ended);
}

void follows_drain(struct follows *follows)
{
    struct follow *follow;
    size_t cursor = 0;

    follows->draining = true;
    while ((follow = map_next(&follows->names, &cursor)))
        follow_stop(follow);
}

void follows_clear(struct follows *follows)
{
    list_drain (struct follow, follow, &follows->ended, link) {
        slice_stop(&follow->work);
        (void)follow_end_some(follow, UINT64_MAX);
    }
    map_fini(&follows->names);
}

/* ---- followed names ---- */

static size_t make_key(uint8_t key[FOLLOW_KEY_MAX_BYTES], const struct owner *user, const struct rdt_ref *name)
{
    struct owner owner = owner_of_ref(name, user);
    size_t n = owner_key(key, user, (const uint8_t *)"", 0), address = strlen(name->address) + 1;

    memcpy(key + n, name->node, sizeof name->node);
    n += sizeof name->node;
    memcpy(key + n, name->address, address);
    n += address;
    return n + owner_key(key + n, &owner, (const uint8_t *)name->id, name->id_bytes);
}

static enum rdt_status create(struct follows *follows, struct account *account, const struct rdt_ref *name, const uint8_t *key,
                              size_t key_bytes, struct follow **follow_p, struct rdt_error *err)
{
    struct follow *follow;
    enum rdt_status status = account_take(account, USAGE_HEAP, sizeof *follow, err);

    if (status != RDT_OK)
        return status;
    follow = calloc(1, sizeof *follow);
    if (follow) {
        memcpy(follow->key, key, key_bytes);
        follow->key_bytes = (uint16_t)key_bytes;
    }
    if (!follow || !map_put(&follows->names, follow->key, key_bytes, follow)) {
        free(follow);
        account_give(account, USAGE_HEAP, sizeof *follow);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to follow \"%s\"", name->id);
    }
    follow->follows = follows;
    follow->account = account_ref(account);
    follow->name = *name;
    follow->name.after = 0;
    list_init(&follow->link);
    list_init(&follow->dying);
    list_init(&follow->followers);
    list_init(&follow->waiters);
    list_init(&follow->telling);
    follow_fetch_init(follow);
    *follow_p = follow;
    return RDT_OK;
}

/* Its last follower has gone. */
static void end(struct follow *follow)
{
    struct follows *follows = follow->follows;

    (void)map_remove(&follows->names, follow->key, follow->key_bytes);
    version_unref(follow->arriving);
    version_unref(follow->whole);
    follow->arriving = follow->whole = NULL;
    deadline_unset(follows->deadlines, &follow->pause);
    sm_move(&follow->sm, FOLLOW_ENDED);
    list_append(&follows->ended, &follow->link);
    follow_look(follow);
}

/* ---- followers ---- */

struct follower *follower_find(const struct client *client, uint64_t number)
{
    list_each (struct follower, follower, &client->followers, by_client)
        if (follower->number == number)
            return follower;
    return NULL;
}

static void note_committed(struct follower *follower, uint64_t version, const struct rdt_ref *ref)
{
    follower->committed = version;
    follower->committed_generation = ref ? ref->generation : 0;
    if (ref)
        memcpy(follower->committed_node, ref->node, sizeof follower->committed_node);
}

static enum rdt_status check_client(const struct client *client, struct rdt_error *err)
{
    unsigned n = 0;

    list_for_each (node, &client->followers)
        n++;
    if (n >= FOLLOWERS_OF_CLIENT)
        return rdt_error_set(err, RDT_LIMIT,
                             "this client has %u followers, the most that one may have: close some, or follow from another "
                             "connection",
                             n);
    return RDT_OK;
}

enum rdt_status follower_start(struct follows *follows, struct client *client, uint64_t number, const struct rdt_ref *name,
                               uint64_t committed, const struct rdt_ref *committed_ref, struct rdt_error *err)
{
    struct account *account = account_owner(client->account);
    uint8_t key[FOLLOW_KEY_MAX_BYTES];
    size_t key_bytes = make_key(key, &account->owner, name);
    struct follow *follow = map_get(&follows->names, key, key_bytes);
    struct follower *follower = follower_find(client, number);
    enum rdt_status status;

    if (follower && follower->follow != follow)
        return rdt_error_set(err, RDT_INVALID, "the number %llu is that of a follower of another name",
                             (unsigned long long)number);
    if (follower) {
        note_committed(follower, committed, committed_ref);
        return RDT_OK;
    }
    status = check_client(client, err);
    if (status == RDT_OK)
        status = account_take(client->account, USAGE_HOLDS, 1, err);
    if (status != RDT_OK)
        return status;
    follower = calloc(1, sizeof *follower);
    status = follower ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory to follow \"%s\"", name->id);
    if (status == RDT_OK && !follow)
        status = create(follows, account, name, key, key_bytes, &follow, err);
    if (status != RDT_OK) {
        free(follower);
        account_give(client->account, USAGE_HOLDS, 1);
        return status;
    }
    follower->follow = follow;
    follower->client = client;
    follower->number = number;
    if (follow->failed.why.status == RDT_FREED || follow->failed.why.status == RDT_OWNER_DIED)
        follower->told = follow->failed.number; /* that is over: the name is awaited anew */
    note_committed(follower, committed, committed_ref);
    list_append(&follows->followers, &follower->link);
    list_append(&client->followers, &follower->by_client);
    list_append(&follow->followers, &follower->by_follow);
    follow->n_followers++;
    follows->counts->followers++;
    if (follow->newest > 0) /* the others may have it without this node's help, and this one may lack it */
        follow_seek_again(follow);
    follow_look(follow);
    return RDT_OK;
}

void follower_end(struct follower *follower)
{
    struct follow *follow = follower->follow;
    struct prepare_waiter *waiter = follower->waiter;
    struct rdt_error why;

    if (waiter) {
        prepare_waiter_remove(waiter);
        (void)rdt_error_set(&why, RDT_CANCELLED, "the follower has ended");
        waiter->on_event(waiter, &why);
    }
    follow->follows->counts->followers--;
    version_unref(follower->taken);
    account_give(follower->client->account, USAGE_HOLDS, 1);
    list_remove(&follower->link);
    list_remove(&follower->by_client);
    list_remove(&follower->by_follow);
    free(follower);
    if (--follow->n_followers == 0)
        end(follow);
    else
        follow_look(follow); /* there may be room now */
}

bool followers_client_gone(struct client *client, uint64_t until_ns)
{
    list_drain (struct follower, follower, &client->followers, by_client) {
        follower_end(follower);
        if (uv_hrtime() >= until_ns)
            return list_empty(&client->followers);
    }
    return true;
}

/* ---- versions for followers ---- */

static struct follow_version *newer(const struct follower *follower)
{
    struct follow_version *whole = follower->follow->whole;

    return whole && !whole->lost && !follower_has(follower, version_ref_of(whole), whole->number) ? whole : NULL;
}

static void take(struct follower *follower, struct follow_version *version)
{
    if (follower->taken == version)
        return;
    version_unref(follower->taken);
    follower->taken = version_ref(version);
    follow_look(follower->follow);
}

enum rdt_status follower_prepare(struct follower *follower, struct prepare_waiter *waiter, struct prepared *prepared_p,
                                 struct rdt_error *err)
{
    struct follow *follow = follower->follow;
    struct follow_version *version = newer(follower);

    if (follower->taken && follower->taken->lost) {
        version_unref(follower->taken);
        follower->taken = NULL;
    }
    if (!version && follower->taken) /* the newest one has made room for the next */
        version = follower->taken;
    if (version) {
        take(follower, version);
        *prepared_p = (struct prepared){.ref = version_ref_of(version),
                                        .version = version->number,
                                        .bytes = version->bytes,
                                        .bytes_moved = version->bytes_moved,
                                        .fetch_ns = version->whole_ns - version->seen_ns,
                                        .objects = version->n_objects > 1 ? version->n_objects - 1 : 1};
        return RDT_OK;
    }
    if (follower->told < follow->failed.number) {
        follower->told = follow->failed.number;
        *err = follow->failed.why;
        return err->status;
    }
    if (follower->waiter && waiter)
        return rdt_error_set(err, RDT_BUSY, "another thread waits for the next version of this follower");
    if (waiter) {
        waiter->follower = follower;
        follower->waiter = waiter;
        list_append(&follow->waiters, &waiter->link);
    }
    return RDT_AGAIN;
}

void follower_explain(const struct follower *follower, char *text_p, size_t size)
{
    const struct follow *follow = follower->follow;
    const struct follow_version *arriving = follow->arriving;
    struct owner owner = owner_of_ref(&follow->name, &follow->account->owner);
    char away[280] = "";

    if (arriving && follow->sm.state == FOLLOW_FETCHING)
        (void)snprintf(text_p, size, "%u of %u objects of version %llu have arrived%s%s", arriving->n_here, arriving->n_objects,
                       (unsigned long long)arriving->number,
                       follow->failed.why.status != RDT_OK ? "; the attempt before has failed: " : "",
                       follow->failed.why.status != RDT_OK ? follow->failed.why.msg : "");
    else if (follow->failed.why.status != RDT_OK)
        (void)snprintf(text_p, size, "the last attempt to get one has failed: %s", follow->failed.why.msg);
    else {
        if (follow->newest == 0 && ref_is_unplaced(&follow->name)) /* it is not known which node has the name */
            directory_names_explain(follow->follows->transfers->directory_names, &owner, (const uint8_t *)follow->name.id,
                                    follow->name.id_bytes, away, sizeof away);
        (void)snprintf(text_p, size, "no version above %llu is published%s", (unsigned long long)follower->committed, away);
    }
}

void follower_commit(struct follower *follower, uint64_t version, const struct rdt_ref *ref)
{
    struct follow *follow = follower->follow;
    struct follow_version *whole = follow->whole;

    if (follower->taken && follower->taken->number == version) { /* otherwise an earlier daemon has counted it */
        follow->follows->counts->follow_commits++;
        if (follower->taken && follow_same_object(version_ref_of(follower->taken), ref) && follower->taken->number == version &&
            follower->committed > 0 && version > follower->committed + 1)
            follow->follows->counts->follow_skipped += version - follower->committed - 1;
    }
    note_committed(follower, version, ref);
    if (whole && whole->number == version && follower_has(follower, version_ref_of(whole), whole->number))
        whole->committed = true;
    if (follower->taken && follower_has(follower, version_ref_of(follower->taken), follower->taken->number)) {
        version_unref(follower->taken);
        follower->taken = NULL;
    }
    follow_look(follow); /* there may be room now */
}

struct object *follows_held(struct follows *follows, const struct client *client, const struct rdt_ref *ref, bool *trusted_p)
{
    const struct follow_object *object;

    if (ref->is_name || ref->generation == 0)
        return NULL;
    list_each (const struct follower, follower, &client->followers, by_client) {
        object = follower->taken ? version_find(follower->taken, ref) : NULL;
        if (object && object->object->access.forced)
            follow_lose(follower->taken, object);
        if (!object || object->object->access.forced)
            continue;
        *trusted_p = object->trusted;
        return object->object;
    }
    return NULL;
}

void follower_view(const struct follower *follower, struct follower_view *view_p)
{
    static const char *const shown[] = {
        [FOLLOW_SEEKING] = "seeking",   [FOLLOW_FULL] = "full",       [FOLLOW_HOLDING] = "fetching",
        [FOLLOW_FETCHING] = "fetching", [FOLLOW_PAUSING] = "waiting", [FOLLOW_ENDED] = "seeking"};
    const struct follow *follow = follower->follow;
    const struct follow_version *version = newer(follower);
    bool behind = follow->newest_ref.generation != 0 && !follower_has(follower, &follow->newest_ref, follow->newest);

    if (!version)
        version = follower->taken;
    *view_p = (struct follower_view){.committed = follower->committed,
                                     .prepared = version ? version->number : 0,
                                     .newest = follow->newest,
                                     .lag = behind ? 1 : 0,
                                     .lag_ns = behind ? (int64_t)(uv_hrtime() - follow->newest_ns) : 0,
                                     .state = shown[follow->sm.state],
                                     .failure = follow->failed.why.status != RDT_OK ? follow->failed.why.msg : "",
                                     .name = &follow->name,
                                     .bytes = (follow->whole ? follow->whole->charged : 0) +
                                              (follow->arriving ? follow->arriving->charged : 0)};
    if (behind && follow->newest > follower->committed)
        view_p->lag = follow->newest - follower->committed;
}
