/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon makes again from the journal of an earlier one: sessions, regions, objects, names, versions of many parts,
 * holds and groups. The earlier one may have gone wild, so the records are whole and say anything.
 *
 *   | kind 1 | key 1 | flags 1 | three numbers 1 each | size 2 | payload | ...
 *
 * Restoring must end, and must leave nothing behind. What is restored is restored again by the daemon after it.
 */
#include <fcntl.h>
#include <libgen.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/config/options.h"
#include "daemon/objects/detached.h"
#include "daemon/objects/object.h"
#include "daemon/objects/transit.h"
#include "daemon/persist/persist.h"
#include "daemon/persist/recovery_impl.h"
#include "daemon/versions/shards.h"
#include "tests/fuzz/harness/fuzz.h"

#define REGION_BYTES 65536u
#define HOUR_NS UINT64_C(3600000000000)

int __real_uv_run(uv_loop_t *its_loop, uv_run_mode mode); /* uv_run is for harness/daemon.c */

static uv_loop_t loop;
static struct plugins *plugins;
static struct work_pool *pool;
static struct owner_work *owner_work;

/* ---- what stays from input to input ---- */

static void set_up(void)
{
    static struct options options; /* the plug-ins borrow it */
    static char backend[640];
    char exe[512] = {0};
    struct rdt_error err = {0};

    if (plugins)
        return;
    log_threshold = LOG_LEVEL_ERROR;
    fuzz_must(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);
    (void)snprintf(backend, sizeof backend, "%s/backends/rdt_host.so",
                   dirname(dirname(dirname(exe)))); /* BUILD/tests/fuzz/TARGET */
    options = (struct options){.backend_dir = (char *)"", .backends = backend, .interfaces = (char *)""};
    fuzz_must(uv_loop_init(&loop) == 0 && plugins_create(&loop, &options, &plugins, &err) == RDT_OK);
    fuzz_must(work_pool_create(&loop, 1, &pool, &err) == RDT_OK && owner_work_create(&loop, 1, &owner_work, &err) == RDT_OK);
}

static void run_marker(struct work *work)
{
    (void)work;
}

static bool marked;

static void done_marker(struct work *work)
{
    (void)work;
    marked = true;
}

/* Turns the loop until the pool has freed what it was given. */
static void settle(const struct regions *regions)
{
    while (regions->freeing.n > 0)
        (void)__real_uv_run(&loop, UV_RUN_ONCE);
    struct work marker = {.run = run_marker, .done = done_marker};
    marked = false;
    work_submit(pool, &marker);
    while (!marked)
        (void)__real_uv_run(&loop, UV_RUN_ONCE);
}

/* ---- a daemon's tables ---- */

struct session {
    struct client client;
    struct list link;
};

struct world {
    struct node node;
    struct accounts accounts;
    struct account own;
    struct regions regions;
    struct slabs slabs;
    struct object_table objects;
    struct names names;
    struct deadlines deadlines;
    struct recovery recovery;
    struct storage storage; /* without a directory */
    Rdt__Pb__StatusReply counts;
    struct directory_names directory_names; /* knows no name */
    struct shards shards;                   /* it asks no other node */
    struct list sessions;
};

static bool drop_holds(void *arg, struct object *object, uint64_t until_ns)
{
    return names_object_freed(arg, object, until_ns);
}

static void send_nothing(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id,
                         const ProtobufCMessage *message, const int *take_fds, unsigned n_fds)
{
    (void)client, (void)type, (void)flags, (void)request_id, (void)message;
    for (unsigned i = 0; i < n_fds; i++)
        (void)close(take_fds[i]);
}

static struct client *restore_session_here(void *arg, const struct session_image *image)
{
    struct world *world = arg;
    struct session *session = calloc(1, sizeof *session);

    fuzz_must(session);
    client_init(&session->client, image->id);
    session->client.account = account_get_client(&world->accounts, &image->owner, image->id);
    session->client.owner_work = owner_work;
    session->client.conn.send = send_nothing;
    fuzz_must(session->client.account && memchr(image->name, '\0', sizeof image->name));
    list_append(&world->sessions, &session->link);
    return &session->client;
}

static bool holder_gone(void *arg, struct client *holder, uint64_t until_ns)
{
    (void)arg, (void)holder, (void)until_ns;
    return true;
}

static void world_init(struct world *world, struct journal *journal)
{
    *world = (struct world){.own = {.refs = 1}};
    memset(world->node.uuid, 7, sizeof world->node.uuid);
    list_init(&world->sessions);
    accounts_init(&world->accounts);
    deadlines_init(&world->deadlines, &loop);
    regions_init(&world->regions, plugins, pool, UINT64_C(1) << 40);
    world->regions.owner_work = owner_work;
    slabs_init(&world->slabs, &world->regions, NULL, "host", &world->own);
    object_table_init(&world->objects, &world->node, &world->accounts, &world->slabs, 100000);
    names_init(&world->names, &world->accounts, &world->deadlines);
    world->objects.deadlines = &world->deadlines;
    world->objects.drop_holds = drop_holds;
    world->objects.arg = &world->names;
    world->recovery = (struct recovery){.keeper = "",
                                        .node = &world->node,
                                        .accounts = &world->accounts,
                                        .plugins = plugins,
                                        .regions = &world->regions,
                                        .objects = &world->objects,
                                        .names = &world->names,
                                        .deadlines = &world->deadlines,
                                        .restore_session = restore_session_here,
                                        .restore_arg = world,
                                        .restore_manifest = shards_restore,
                                        .manifest_arg = &world->shards,
                                        .link = {.fd = -1},
                                        .journal = journal};
    world->storage.counts = &world->counts;
    world->shards = (struct shards){.node = &world->node,
                                    .deadlines = &world->deadlines,
                                    .regions = &world->regions,
                                    .objects = &world->objects,
                                    .published = &world->names,
                                    .recovery = &world->recovery,
                                    .directory_names = &world->directory_names,
                                    .above = {NULL, NULL, holder_gone}};
    map_init(&world->directory_names.claims);
    shards_init(&world->shards);
    map_init(&world->recovery.filling);
    map_init(&world->recovery.kept_regions);
    map_init(&world->recovery.sessions);
    map_init(&world->recovery.published);
    list_init(&world->recovery.far_holds);
    list_init(&world->recovery.node_holds);
    list_init(&world->recovery.groups);
}

static void end_session(struct world *world, struct session *session)
{
    struct client *client = &session->client;
    struct account *account = client->account;

    (void)world;
    fuzz_must(names_client_gone(client, UINT64_MAX));
    while (!list_empty(&client->objects))
        object_producer_ended(container_of(list_first(&client->objects), struct object, by_producer));
    fuzz_must(client_fini(client, UINT64_MAX));
    account_unref(account);
    list_remove(&session->link);
    free(session);
}

/* As the daemon ends: nothing that is recorded changes any more. */
static void world_fini(struct world *world)
{
    struct recovery *recovery = &world->recovery;

    recovery->frozen = true;
    while (!list_empty(&recovery->groups))
        recovery_free_group(container_of(list_first(&recovery->groups), struct kept_group, link));
    while (!list_empty(&recovery->node_holds))
        recovery_free_node_hold(container_of(list_first(&recovery->node_holds), struct node_hold_record, link));
    while (!list_empty(&world->sessions))
        end_session(world, container_of(list_first(&world->sessions), struct session, link));
    object_notifies_end(&world->objects);
    detached_end_all(&world->objects);
    cache_end_all(&world->objects);
    transit_end_all(&world->objects);
    shards_clear(&world->shards);
    names_clear(&world->names);
    fuzz_must(world->objects.by_generation.used == 0);
    names_fini(&world->names);
    slabs_fini(&world->slabs);
    settle(&world->regions);
    fuzz_must(world->regions.by_id.used == 0 && world->regions.bytes == 0);
    object_table_fini(&world->objects);
    regions_fini(&world->regions);
    deadlines_close(&world->deadlines, NULL);
    accounts_fini(&world->accounts);
    map_fini(&world->directory_names.claims);
    map_fini(&recovery->filling);
    map_fini(&recovery->kept_regions);
    map_fini(&recovery->sessions);
    recovery_fini_published(recovery);
    client_save_hold_ids(NULL);
    (void)__real_uv_run(&loop, UV_RUN_NOWAIT);
}

/* ---- the journal ---- */

/* What the keeper holds under the id: memory of the right kind, or half of it. */
static void keep(struct map *held, uint64_t key)
{
    uint64_t id = KEEPER_FIRST_REGION + key;
    struct held *entry = map_get_u64(held, id) ? NULL : malloc(sizeof *entry);

    if (!entry)
        return;
    *entry = (struct held){.id = id, .fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    fuzz_must(entry->fd >= 0 && ftruncate(entry->fd, key & 1 ? REGION_BYTES : REGION_BYTES / 2) == 0);
    fuzz_must(fcntl(entry->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 && map_put_u64(held, id, entry));
}

static void keep_all(struct map *held, struct journal *journal)
{
    struct journal_slot *slot;
    uint64_t cursor = 0;

    map_init(held);
    while ((slot = journal_next(journal, &cursor)))
        if (slot->kind == RECORD_REGION)
            keep(held, slot->key);
}

static void drop_all(struct map *held)
{
    struct held *entry;
    size_t cursor = 0;

    while ((entry = map_next(held, &cursor))) {
        (void)close(entry->fd);
        free(entry);
    }
    map_fini(held);
}

static struct journal *write_journal(const uint8_t *at, const uint8_t *end)
{
    struct journal *journal;

    fuzz_must(journal_create(&journal, NULL) == RDT_OK);
    journal_state(journal)->generations = journal_state(journal)->oldest_generation = 1;
    while (at < end) {
        uint32_t kind = (uint32_t)fuzz_take(&at, end, 1) % (RECORD_NAME + 2);
        uint64_t key = fuzz_take(&at, end, 1), numbers[JOURNAL_NUMBERS];
        uint32_t flags = (uint32_t)fuzz_take(&at, end, 1);
        struct journal_slot *slot;
        size_t bytes;
        for (unsigned i = 0; i < JOURNAL_NUMBERS; i++) {
            uint64_t n = fuzz_take(&at, end, 1);
            numbers[i] = n == 255 ? UINT64_MAX : n == 254 ? uv_hrtime() + HOUR_NS : n == 253 ? REGION_BYTES : n;
        }
        bytes = fuzz_take(&at, end, 2);
        if (bytes > (size_t)(end - at))
            bytes = (size_t)(end - at);
        slot = journal_begin(journal, bytes);
        if (slot) {
            memcpy(slot->payload, at, bytes);
            journal_commit(journal, slot, kind, key, flags, numbers);
        }
        at += bytes;
    }
    return journal;
}

static struct recovery_counts restore(struct journal *journal)
{
    static struct world world;
    struct recovery *recovery = &world.recovery;
    struct rdt_error err = {0};
    struct recovery_counts counts;
    struct map held;

    world_init(&world, journal);
    keep_all(&held, journal);
    fuzz_must(persist_restore(recovery, &world.storage, true, &held, &err) == RDT_OK);
    counts = recovery->counts;
    drop_all(&held);
    world_fini(&world);
    return counts;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned most;
    struct journal *journal;
    struct recovery_counts first, second;

    set_up();
    journal = write_journal(data, data + bytes);
    first = restore(journal);
    second = restore(journal);
    fuzz_must(second.lost == 0);
    fuzz_must(first.sessions == second.sessions && first.objects == second.objects);
    fuzz_must(first.names == second.names && first.holds == second.holds);
    journal_close(journal);
    fuzz_check_fds(&most);
    return 0;
}
