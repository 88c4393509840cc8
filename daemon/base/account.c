/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/account.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {
#define X(NAME, name, what) #name,
    USAGE_MAP(X)
#undef X
};

static const char *const nouns[] = {
#define X(NAME, name, what) what,
    USAGE_MAP(X)
#undef X
};

/* The heap for one of each, which is charged with it: its structs, and their places in tables and queues; of what
 * waits also the entry of the id or name that nobody has put, and the account of its owner. Objects are charged
 * by their own size (object_put.c). A session has none, so that one with nothing shows nothing: max_clients bounds them. */
static const uint16_t heap_each[USAGE_COUNT] = {
    [USAGE_REGIONS] = 512, [USAGE_TRANSFERS] = 2048, [USAGE_WAITERS] = 2048, [USAGE_NAMES] = 512,
    [USAGE_GROUPS] = 1024, [USAGE_ORPHANS] = 128,    [USAGE_HOLDS] = 192};

#define HEAP_FREED_BYTES (UINT64_C(24) << 20) /* more than a message has: malloc keeps what the next message needs */

const char *usage_name(enum usage what)
{
    return names[what];
}

static void init(struct account *account, struct accounts *accounts, const uint64_t *limits)
{
    account->accounts = accounts;
    account->limits = limits;
    account->refs = 1;
    for (unsigned i = 0; i < USAGE_COUNT; i++)
        list_init(&account->waiting[i]);
    list_init(&account->in_turn);
    list_init(&account->owners_in_turn);
    list_init(&account->share.link);
    list_init(&account->share.waiting);
}

struct account *account_owner(struct account *account)
{
    return account->client != 0 && account->parent ? account->parent : account;
}

struct account *account_person(struct account *account)
{
    struct account *owner = account_owner(account);

    return owner->parent && owner->parent->parent ? owner->parent : owner;
}

static bool is_person(const struct account *account)
{
    return account->accounts && account->parent == &account->accounts->node;
}

void accounts_init(struct accounts *accounts)
{
    memset(accounts, 0, sizeof *accounts);
    map_init(&accounts->by_owner);
    map_init(&accounts->by_person);
    list_init(&accounts->in_turn);
    init(&accounts->node, NULL, accounts->limits.node);
}

void accounts_fini(struct accounts *accounts)
{
    map_fini(&accounts->by_owner);
    map_fini(&accounts->by_person);
}

static size_t make_key(const struct owner *owner, uint8_t *key_p)
{
    size_t tenant = strlen(owner->tenant);

    memcpy(key_p, &owner->uid, 4);
    memcpy(key_p + 4, owner->tenant, tenant);
    return 4 + tenant;
}

static struct account *find(const struct map *map, const struct owner *owner)
{
    uint8_t key[sizeof((struct account *)0)->key];

    return map_get(map, key, make_key(owner, key));
}

static struct account *create(struct accounts *accounts, struct map *map, const struct owner *owner, const uint64_t *limits)
{
    struct account *account = calloc(1, sizeof *account);

    if (!account)
        return NULL;
    init(account, accounts, limits);
    account->owner = *owner;
    if (map_put(map, account->key, make_key(owner, account->key), account))
        return account;
    free(account);
    return NULL;
}

/* Nobody can have more than the node has, and that is all that limits a person. */
static struct account *get_person(struct accounts *accounts, const struct owner *owner)
{
    struct owner person = *owner;
    struct account *account;

    if (accounts->person_of)
        person.uid = accounts->person_of(accounts->person_arg, owner->uid);
    account = find(&accounts->by_person, &person);
    if (account)
        return account_ref(account);
    account = create(accounts, &accounts->by_person, &person, accounts->limits.node);
    if (account)
        account->parent = &accounts->node;
    return account;
}

struct account *account_get(struct accounts *accounts, const struct owner *owner)
{
    struct account *account = find(&accounts->by_owner, owner), *person;

    if (account)
        return account_ref(account);
    person = get_person(accounts, owner);
    account = person ? create(accounts, &accounts->by_owner, owner, accounts->limits.owner) : NULL;
    if (!account) {
        account_unref(person);
        return NULL;
    }
    account->parent = person;
    event(accounts->events, RDT__PB__LIST_KIND__LIST_KIND_OWNERS, "new", account);
    return account;
}

struct account *accounts_find(const struct accounts *accounts, const struct owner *owner)
{
    return find(&accounts->by_owner, owner);
}

struct account *account_get_client(struct accounts *accounts, const struct owner *owner, uint64_t client)
{
    struct account *account = calloc(1, sizeof *account);

    if (!account)
        return NULL;
    init(account, accounts, accounts->limits.client);
    account->owner = *owner;
    account->client = client;
    account->parent = account_get(accounts, owner);
    if (!account->parent) {
        free(account);
        return NULL;
    }
    return account;
}

struct account *account_ref(struct account *account)
{
    account->refs++;
    return account;
}

void account_unref(struct account *account)
{
    struct account *parent;

    if (!account)
        return;
    assert(account->refs > 0);
    if (--account->refs > 0 || !account->accounts)
        return;
    parent = account->parent;
    if (is_person(account)) {
        (void)map_remove(&account->accounts->by_person, account->key, 4 + strlen(account->owner.tenant));
    } else if (account->client == 0) {
        (void)map_remove(&account->accounts->by_owner, account->key, 4 + strlen(account->owner.tenant));
        event(account->accounts->events, RDT__PB__LIST_KIND__LIST_KIND_OWNERS, "gone", account);
    }
    free(account);
    if (parent && parent->accounts)
        account_unref(parent);
}

/* ---- charging ---- */

/* The first request that waits in the account for that. */
static struct account_wait *first_waiting(const struct account *at, enum usage what, const void *on)
{
    list_each (struct account_wait, wait, &at->waiting[what], link)
        if (wait->on == on && !wait->postponed)
            return wait;
    return NULL;
}

/* NULL: the present request comes before all that wait. */
static const struct account_wait *must_wait_behind(const struct account *at, enum usage what, const void *on)
{
    const struct account_wait *trying = at->accounts ? at->accounts->trying : NULL;

    if (!at->accounts || (trying && trying->at == at && trying->what == what && trying->on == on))
        return NULL;
    return first_waiting(at, what, on);
}

bool account_waits_for(const struct account *account, enum usage what, const void *on)
{
    return must_wait_behind(account->client ? account->parent : account, what, on);
}

/* What the administrator raises when the node has no room. */
static const char *const node_remedies[USAGE_COUNT] = {[USAGE_FDS] = "its limit of open files (LimitNOFILE)",
                                                       [USAGE_OBJECTS] = "max_objects",
                                                       [USAGE_SESSIONS] = "max_clients",
                                                       [USAGE_HEAP] = "the memory of the machine or of its control group "
                                                                      "(MemoryMax of a systemd unit)",
                                                       [USAGE_STORED_BYTES] = "storage_max",
                                                       [USAGE_MAPPINGS] = "the kernel's vm.max_map_count",
                                                       [USAGE_MAPPED_BYTES] = "its limit of address space (LimitAS)",
                                                       [USAGE_ORPHANS] = "the kernel's fs.inotify.max_user_watches"};

/* What is left of the limit, for the person that asks. */
static uint64_t limit_for(const struct account *at, const struct account *below, enum usage what, uint64_t n)
{
    uint64_t limit = at->limits ? at->limits[what] : 0;
    bool is_node = below && below->accounts && at == &below->accounts->node;

    return is_node && below->used[what] + n > limit / 64 ? limit - limit / 8 : limit;
}

const char *account_whose(struct account *account, char text_p[ACCOUNT_WHOSE_BYTES])
{
    uint32_t uid = account->owner.uid, person = account_person(account)->owner.uid;

    text_p[0] = '\0';
    if (uid != person)
        (void)snprintf(text_p, ACCOUNT_WHOSE_BYTES, " (uid %u counts as one user with uid %u, by /etc/subuid)", uid, person);
    return text_p;
}

bool account_is_full(const struct account *account, enum usage what, char text_p[ACCOUNT_FULL_BYTES])
{
    uint64_t used = account->used[what], limit = account->limits ? account->limits[what] : 0;
    const char *remedy = account->accounts ? NULL : node_remedies[what];

    if (limit == 0 || used < limit - limit / 6)
        return false;
    (void)snprintf(text_p, ACCOUNT_FULL_BYTES, "%llu of at most %llu %s are used: raise %s%s", (unsigned long long)used,
                   (unsigned long long)limit, nouns[what], remedy ? remedy : "owner_max_", remedy ? "" : names[what]);
    return true;
}

/* of: who asks. */
static void set_limit_error(const struct account *at, struct account *of, enum usage what, uint64_t n, bool queue,
                            struct rdt_error *err)
{
    unsigned long long used = at->used[what], limit = at->limits ? at->limits[what] : 0, more = n;
    char who[96], whose[ACCOUNT_WHOSE_BYTES];

    if (at->client)
        (void)snprintf(who, sizeof who, "client %llu", (unsigned long long)at->client);
    else if (at->owner.tenant[0])
        (void)snprintf(who, sizeof who, "uid %u of tenant \"%s\"", at->owner.uid, at->owner.tenant);
    else
        (void)snprintf(who, sizeof who, "uid %u", at->owner.uid);
    if (!at->parent && !at->accounts && used + more > limit)
        (void)rdt_error_set(err, RDT_LIMIT, "this daemon has %llu %s of at most %llu, and %llu more %s wanted%s%s", used,
                            nouns[what], limit, more, more == 1 ? "is" : "are", node_remedies[what] ? ": raise " : "",
                            node_remedies[what] ? node_remedies[what] : "");
    else if (!at->parent && !at->accounts)
        (void)rdt_error_set(err, RDT_LIMIT,
                            "this daemon has %llu %s of at most %llu, and the last %llu are for users that have few%s: release "
                            "some%s%s",
                            used, nouns[what], limit, limit / 8, account_whose(of, whose),
                            node_remedies[what] ? ", or raise " : "", node_remedies[what] ? node_remedies[what] : "");
    else if (queue && limit > 0)
        (void)rdt_error_set(err, RDT_LIMIT,
                            "other requests of %s already wait for %s and come first: give this request a timeout, so that it "
                            "waits behind them, release some, or raise %s_max_%s, which is %llu",
                            who, nouns[what], at->client ? "client" : "owner", names[what], limit);
    else if (queue)
        (void)rdt_error_set(err, RDT_LIMIT,
                            "other requests of %s already wait for %s and come first: give this request a timeout, so that it "
                            "waits behind them, or release some",
                            who, nouns[what]);
    else
        (void)rdt_error_set(
            err, RDT_LIMIT, "%s has %llu %s of at most %llu, and %llu more %s wanted: release some, or raise %s_max_%s", who,
            used, nouns[what], limit, more, more == 1 ? "is" : "are", at->client ? "client" : "owner", names[what]);
}

static enum rdt_status check(struct account *account, enum usage what, uint64_t n, struct rdt_error *err)
{
    if (n == 0 || (account->accounts && account->accounts->unlimited))
        return RDT_OK;
    for (struct account *at = account, *below = NULL; at; below = at, at = at->parent) {
        uint64_t limit = limit_for(at, below, what, n);
        bool room = limit == 0 || (n <= limit && at->used[what] <= limit - n);
        const struct account_wait *before = room ? must_wait_behind(at, what, NULL) : NULL;
        if (room && !before)
            continue;
        if (!room && at->parent && at->parent->limits && at->parent->limits[what] == limit)
            continue; /* the account above lacks room as well, and its error names the key that must be raised */
        set_limit_error(at, account, what, n, room, err);
        /* What exceeds the limit of an empty account will never fit, so nobody waits for it. */
        if (account->accounts && (limit == 0 || n <= limit)) {
            account->accounts->full = at->parent ? at : account->client ? account->parent : account;
            account->accounts->full_of = what;
            account->accounts->full_on = NULL;
            account->accounts->lack = (struct account_lack){is_person(at) ? at->parent : (struct account *)at, what,
                                                            room ? 0 : at->used[what] + n - limit, before && before->evicting};
        }
        return RDT_LIMIT;
    }
    if (what == USAGE_HEAP && account->accounts && account->accounts->heap_fits)
        return account->accounts->heap_fits(account->accounts->heap_arg, n, err);
    return RDT_OK;
}

enum rdt_status account_check(struct account *account, enum usage what, uint64_t n, struct rdt_error *err)
{
    enum rdt_status status = check(account, what, n, err);

    return status == RDT_OK ? check(account, USAGE_HEAP, n * heap_each[what], err) : status;
}

static void add(struct account *account, enum usage what, uint64_t n)
{
    for (struct account *at = account; at; at = at->parent)
        at->used[what] += n;
    if (what == USAGE_HEAP && account->accounts && account->accounts->node.used[what] > account->accounts->heap_peak)
        account->accounts->heap_peak = account->accounts->node.used[what];
}

void account_add(struct account *account, enum usage what, uint64_t n)
{
    add(account, what, n);
    if (heap_each[what] > 0)
        add(account, USAGE_HEAP, n * heap_each[what]);
}

enum rdt_status account_take(struct account *account, enum usage what, uint64_t n, struct rdt_error *err)
{
    enum rdt_status status = account_check(account, what, n, err);

    if (status == RDT_OK)
        account_add(account, what, n);
    return status;
}

enum rdt_status account_take_all(struct account *account, const uint64_t *want, struct rdt_error *err)
{
    uint64_t heap = want[USAGE_HEAP];
    enum rdt_status status = RDT_OK;

    for (unsigned i = 0; i < USAGE_COUNT && status == RDT_OK; i++) {
        heap += want[i] * heap_each[i];
        if (i != USAGE_HEAP)
            status = check(account, (enum usage)i, want[i], err);
    }
    if (status == RDT_OK)
        status = check(account, USAGE_HEAP, heap, err);
    if (status != RDT_OK)
        return status;
    for (unsigned i = 0; i < USAGE_COUNT; i++)
        account_add(account, (enum usage)i, want[i]);
    return RDT_OK;
}

static void note_freed(struct accounts *accounts)
{
    uint64_t used = accounts->node.used[USAGE_HEAP];

    if (accounts->heap_peak < used + HEAP_FREED_BYTES || !accounts->on_heap_freed)
        return;
    accounts->heap_peak = used;
    accounts->on_heap_freed(accounts->heap_freed_arg);
}

static void subtract(struct account *account, enum usage what, uint64_t n)
{
    uint64_t heap = n * heap_each[what];

    for (struct account *at = account; at; at = at->parent) {
        assert(at->used[what] >= n && at->used[USAGE_HEAP] >= heap);
        at->used[what] -= n;
        at->used[USAGE_HEAP] -= heap;
    }
    if ((heap > 0 || what == USAGE_HEAP) && account->accounts)
        note_freed(account->accounts);
}

void account_undo(struct account *account, const uint64_t *had)
{
    for (unsigned i = 0; i < USAGE_COUNT; i++)
        subtract(account, (enum usage)i, had[i]);
}

static void call_first(const struct account *at, enum usage what, const void *on)
{
    struct account_wait *wait = first_waiting(at, what, on);

    if (!wait || wait->called)
        return;
    wait->called = true;
    wait->on_room(wait);
}

/* The owner after that one in the order of turns, or the first; NULL: there is none. */
static const struct account *next_in_turn(const struct accounts *accounts, const struct account *after)
{
    const struct list *node = after ? after->in_turn.next : NULL;
    const struct account *person;

    if (after && node != &after->parent->owners_in_turn)
        return container_of(node, struct account, in_turn);
    node = after ? after->parent->in_turn.next : accounts->in_turn.next;
    if (node == &accounts->in_turn)
        return NULL;
    person = container_of(node, struct account, in_turn);
    return container_of(list_first(&person->owners_in_turn), struct account, in_turn);
}

/* Calls the next owner that waits, one at a time: the first to be called would otherwise not be the first to get room.
 * after NULL: starts with the first owner. The owner that a call has reached may take room that has become free since the
 * call began, although it is the first owner's turn; the first owner is called next.
 *
 * A request for much of the node's room delays later ones of its own client and owner, but no other owner. Small requests
 * of others take the room that becomes free, so the large one may reach its deadline although enough room has come and
 * gone. Reserving room for it would be worse. Others may have to take more before they release anything, so nobody could
 * continue while it waits, and it might wait for ever; and a request for room that its holders will not release would stop
 * all other owners without holding anything itself. */
static void call_next(struct accounts *accounts, const struct account *after, enum usage what, const void *on)
{
    const struct account *owner = next_in_turn(accounts, after);

    while (owner && !first_waiting(owner, what, on))
        owner = next_in_turn(accounts, owner);
    if (owner)
        call_first(owner, what, on);
}

void account_room_freed(struct accounts *accounts, enum usage what, const void *on)
{
    call_next(accounts, NULL, what, on);
}

void account_limits_changed(struct account *account)
{
    for (unsigned i = 0; i < USAGE_COUNT; i++)
        call_first(account, (enum usage)i, NULL);
}

void accounts_limits_changed(struct accounts *accounts)
{
    for (unsigned i = 0; i < USAGE_COUNT; i++)
        account_room_freed(accounts, (enum usage)i, NULL);
}

void account_give(struct account *account, enum usage what, uint64_t n)
{
    struct accounts *accounts;

    if (n == 0)
        return;
    accounts = account->accounts;
    subtract(account, what, n);
    if (!accounts || accounts->n_waiting == 0)
        return;
    if (account->client)
        call_first(account, what, NULL);
    account_room_freed(accounts, what, NULL); /* every owner may wait for room of the node */
    if (heap_each[what] == 0)
        return;
    if (account->client)
        call_first(account, USAGE_HEAP, NULL);
    account_room_freed(accounts, USAGE_HEAP, NULL);
}

void account_give_to_owner(struct account *client, const uint64_t *had)
{
    for (unsigned i = 0; client->client && i < USAGE_COUNT; i++) {
        uint64_t heap = had[i] * heap_each[i];
        assert(client->used[i] >= had[i] && client->used[USAGE_HEAP] >= heap);
        client->used[i] -= had[i];
        client->used[USAGE_HEAP] -= heap;
        if (had[i] > 0)
            call_first(client, (enum usage)i, NULL);
    }
}

void account_give_all(struct account *account, const uint64_t *had)
{
    for (unsigned i = 0; i < USAGE_COUNT; i++)
        account_give(account, (enum usage)i, had[i]);
}

/* ---- waiting for room ---- */

void account_node_is_full(struct account *account, enum usage what, const void *on)
{
    if (!account->accounts)
        return;
    account->accounts->full = account->client ? account->parent : account;
    account->accounts->full_of = what;
    account->accounts->full_on = on;
    account->accounts->lack = (struct account_lack){.what = what};
}

void account_node_lacks(struct account *account, enum usage what, uint64_t amount)
{
    account_node_is_full(account, what, NULL);
    if (account->accounts)
        account->accounts->lack = (struct account_lack){&account->accounts->node, what, amount, false};
}

void account_request_begin(struct accounts *accounts, const struct account_wait *wait)
{
    accounts->trying = wait;
    accounts->full = NULL;
}

static void call_another(struct account *at, enum usage what, const void *on)
{
    if (at->client)
        call_first(at, what, on);
    else
        call_next(at->accounts, NULL, what, on);
}

static void join_turns(struct account *owner)
{
    struct account *person = owner->parent;

    if (list_empty(&person->owners_in_turn))
        list_append(&owner->accounts->in_turn, &person->in_turn);
    list_append(&person->owners_in_turn, &owner->in_turn);
}

static void leave_turns(struct account *owner)
{
    list_remove(&owner->in_turn);
    if (list_empty(&owner->parent->owners_in_turn))
        list_remove(&owner->parent->in_turn);
}

static void stop_waiting(struct account_wait *wait)
{
    struct account *at = wait->at;
    struct accounts *accounts = at->accounts;

    wait->at = NULL;
    wait->called = wait->postponed = false;
    list_remove(&wait->link);
    accounts->n_waiting--;
    if (--at->n_waiting == 0 && at->client == 0)
        leave_turns(at);
    call_another(at, wait->what, wait->on);
    account_unref(at);
}

void account_wait_postpone(struct account_wait *wait)
{
    if (!wait->called || wait->postponed)
        return;
    wait->postponed = true;
    call_another(wait->at, wait->what, wait->on);
}

void account_request_end(struct accounts *accounts, struct account_wait *wait)
{
    accounts->trying = NULL;
    if (!wait || !accounts->full)
        return;
    if (wait->at == accounts->full && wait->what == accounts->full_of && wait->on == accounts->full_on) {
        if (wait->called && wait->at->client == 0)
            call_next(accounts, wait->at, wait->what, wait->on);
        wait->called = wait->postponed = false;
        return;
    }
    if (wait->at)
        stop_waiting(wait);
    else
        accounts->n_waited++;
    wait->at = account_ref(accounts->full);
    wait->what = accounts->full_of;
    wait->on = accounts->full_on;
    list_append(&wait->at->waiting[wait->what], &wait->link);
    accounts->n_waiting++;
    if (wait->at->n_waiting++ == 0 && wait->at->client == 0)
        join_turns(wait->at);
}

void account_wait_end(struct accounts *accounts, struct account_wait *wait)
{
    if (accounts->trying == wait) /* the request was answered during its own attempt */
        accounts->trying = NULL;
    if (wait->called && wait->at->client == 0) { /* it got its room: others are called before this owner and person again */
        list_remove(&wait->at->parent->in_turn);
        list_append(&accounts->in_turn, &wait->at->parent->in_turn);
        list_remove(&wait->at->in_turn);
        list_append(&wait->at->parent->owners_in_turn, &wait->at->in_turn);
    }
    if (wait->at)
        stop_waiting(wait);
}
