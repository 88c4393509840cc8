/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that puts want stored, and for which files of the cache leave: each is stored when its owner has room, however that
 * came, and is given up when those files stay. */
#include <criterion/criterion.h>

#include "daemon/persist/storage_impl.h"
#include "tests/support/check.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (10 * MIB) /* of an owner */
#define FILES (9 * MIB)  /* of its objects in the cache */

static uv_loop_t loop;
static struct deadlines deadlines;
static struct accounts accounts;
static struct object_table table;
static struct names names;
static struct regions regions;
static struct storage storage;
static struct stored busy; /* the writer never gets to what is queued */
static Rdt__Pb__StatusReply counts;

static struct user {
    struct account *account;
    struct cache_owner cache;
    struct object object;
} users[2];

static void setup(void)
{
    must(uv_loop_init(&loop) == 0);
    deadlines_init(&deadlines, &loop);
    accounts_init(&accounts);
    accounts.limits.owner[USAGE_STORED_BYTES] = LIMIT;
    table = (struct object_table){.deadlines = &deadlines, .accounts = &accounts};
    table.cache.accounts = &accounts;
    list_init(&table.cache.pressed);
    storage = (struct storage){.directory = "",
                               .accounts = &accounts,
                               .regions = &regions,
                               .objects = &table,
                               .names = &names,
                               .counts = &counts,
                               .writing = &busy};
    storage_init(&storage);
    must_ok(work_pool_create(&loop, 1, &storage.writer, &err));
    for (unsigned i = 0; i < 2; i++) {
        struct user *user = &users[i];
        user->account = account_get(&accounts, &(struct owner){.uid = 1000 + i});
        account_add(user->account, USAGE_STORED_BYTES, FILES);
        user->cache = (struct cache_owner){.cache = &table.cache, .account = user->account};
        user->cache.sums.file_bytes = user->cache.sums.idle_file_bytes = FILES;
        user->account->cache_owner = &user->cache;
        list_init(&user->cache.pressed);
        user->object = (struct object){.generation = i + 1, .table = &table, .account = user->account, .bytes = 2 * MIB};
        user->object.state = OBJECT_LIVE;
        user->object.access.key = KEY_OWN;
        user->object.changes.promise = OBJECT_SEALED;
        must(index_put(&table.by_generation, i + 1, &user->object));
    }
}

static void on_closed(void *arg) {}

static void teardown(void)
{
    storage.writing = NULL;
    storage_freeze(&storage);
    for (unsigned i = 0; i < 2; i++) {
        struct stored *stored = stored_get(&storage, i + 1);
        if (stored) {
            account_give(stored->account, USAGE_STORED_BYTES, stored->bytes);
            account_unref(stored->account);
            stored_free(stored);
        }
        (void)index_remove(&table.by_generation, i + 1);
        account_give(users[i].account, USAGE_STORED_BYTES, users[i].account->used[USAGE_STORED_BYTES]);
        cr_assert_eq(users[i].account->used[USAGE_HEAP], 0u, "what waited is charged");
        users[i].account->cache_owner = NULL;
        account_unref(users[i].account);
    }
    cr_assert(map_count(&accounts.by_owner) == 0 && accounts.n_waiting == 0);
    index_fini(&table.by_generation);
    work_pool_close(storage.writer, on_closed, NULL);
    deadlines_close(&deadlines, NULL);
    must(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
    storage_fini(&storage);
    accounts_fini(&accounts);
}

TestSuite(storage_later, .init = setup, .fini = teardown, .timeout = 60);

static void store_soon(struct user *user)
{
    must_ok(storage_store_soon(&storage, &user->object, &err));
    cr_assert(!stored_get(&storage, user->object.generation), "there is no room");
}

static bool is_stored(const struct user *user)
{
    for (unsigned i = 0; i < 10; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    return stored_get(&storage, user->object.generation);
}

/* No file was removed: what was written is smaller than it might have been, or was not written at all. */
Test(storage_later, object_is_stored_when_there_is_room)
{
    store_soon(&users[0]);
    account_give(users[0].account, USAGE_STORED_BYTES, MIB / 2);
    cr_assert(!is_stored(&users[0]), "there is not room enough");
    account_give(users[0].account, USAGE_STORED_BYTES, MIB);
    cr_assert(is_stored(&users[0]));
}

Test(storage_later, user_without_room_holds_up_no_other)
{
    store_soon(&users[0]);
    store_soon(&users[1]);
    account_give(users[1].account, USAGE_STORED_BYTES, 2 * MIB);
    cr_assert(is_stored(&users[1]) && !is_stored(&users[0]));
}

/* Somebody holds the objects now whose files were to leave: whoever waits for those tries again, and learns that. */
Test(storage_later, object_is_given_up_when_no_file_leaves)
{
    store_soon(&users[0]);
    users[0].cache.want.at = NULL;
    users[0].cache.sums.idle_file_bytes = 0;
    account_limits_changed(users[0].account);
    cr_assert(!is_stored(&users[0]));
    cr_assert(counts.stores_failed == 1 && list_empty(&storage.later.waiting));
}

Test(storage_later, object_that_has_ended_is_forgotten)
{
    store_soon(&users[0]);
    (void)index_remove(&table.by_generation, users[0].object.generation);
    account_give(users[0].account, USAGE_STORED_BYTES, 2 * MIB);
    cr_assert(!is_stored(&users[0]));
    cr_assert(counts.stores_failed == 0 && list_empty(&storage.later.waiting));
}

Test(storage_later, daemon_that_ends_forgets_all)
{
    store_soon(&users[0]);
    store_soon(&users[1]);
}
