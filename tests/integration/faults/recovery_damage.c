/* SPDX-License-Identifier: Apache-2.0 */
/* Journals that a faulty daemon has left: records with wrong bytes under right checksums, wrong numbers, kinds and keys,
 * records that are cut off or there twice, and damage anywhere in the file. The next daemon starts without what it cannot
 * use, or refuses to start and says why. It never crashes. (fuzz/restore and fuzz/journal give the readers far more.) */
#include "client/rdt_plan.h"
#include "daemon/persist/journal.h"
#include "rdt_persist.pb-c.h"
#include "tests/integration/faults/recovery.h"

TestSuite(recovery_damage, .timeout = SUITE_SECONDS(200));

#define ROUNDS 60
#define MOST_KEPT 64u
#define MOST_RECORDS 256u
#define FILE_BYTES ((off_t)16 << 30)
#define END_AT 16
#define RECORD_REGION 1u
#define RECORD_OBJECT 10u
#define OBJECT_IS_FORCED 4u

static struct {
    uint64_t id;
    int fd;
} kept[MOST_KEPT]; /* what the keeper had when the daemon was killed, except the journal */
static unsigned n_kept;
static uint8_t *pristine; /* [pristine_bytes]: the journal */
static uint64_t pristine_bytes, dice = 5;

/* ---- a daemon with one of everything ---- */

/* Its session is in the journal, and its process lives. */
static int populate(struct actor *self, void *arg)
{
    struct rdt_ref small, large, part[2], name = name_ref("policy");
    rdt *conn = node_client(&node, "holder");
    rdt_request *hold, *parts[2];
    void *memory;

    small = put_detached(conn, "small", 100, 0, 1);
    large = put_detached(conn, "large", 100 * KIB, RDT_PUT_SNAPSHOT, 2);
    (void)put_detached(conn, "live", 50 * KIB, 0, 3);
    must_ok(rdt_publish(conn, "weights", &small, NULL, NULL, &err));
    must_ok(rdt_publish(conn, "weights", &large, NULL, NULL, &err));
    struct rdt_publish_options lease = {.struct_size = sizeof lease, .lease = true};
    must_ok(rdt_publish(conn, "leased", &large, &lease, NULL, &err));
    rdt_object *object = fetch_one(conn, &large, RDT_FETCH_SHARE);
    must(object);
    must_ok(rdt_hold_start(conn, &small, LONG, &hold, &err));
    must_ok(rdt_wait(conn, &hold, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_alloc(conn, 64 * KIB, &memory, &err));
    struct rdt_put_options pending = {.struct_size = sizeof pending, .flags = RDT_PUT_PENDING};
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, 64 * KIB, memory), 1, &pending, &small, &err));
    for (uint32_t i = 0; i < 2; i++) {
        part[i] = put_half(conn, i, 10000);
        must_ok(rdt_publish_part_start(conn, &name, 1, i, 2, &part[i], NULL, LONG, &parts[i], &err));
    }
    must_ok(rdt_wait(conn, parts, 2, 2, LONG, NULL, NULL, &err));
    actor_step(self);
    for (;;)
        (void)pause();
}

/* ---- the journal ---- */

static void take_from_keeper(void)
{
    struct keeper_message message;
    int link = keeper_dial(&keeper), fds[KEEPER_MAX_IDS], journal = -1;
    unsigned n;

    must(keeper_greet(link, &message) == KEEPER_READY);
    keeper_send(link, KEEPER_FETCH, NULL, NULL, 0);
    do {
        must(keeper_recv(link, &message, fds, &n));
        for (unsigned i = 0; i < n; i++) {
            if (message.ids[i] == KEEPER_JOURNAL) {
                journal = fds[i];
                continue;
            }
            must(n_kept < MOST_KEPT);
            kept[n_kept].id = message.ids[i];
            kept[n_kept++].fd = fds[i];
        }
    } while (n > 0);
    close(link);
    must(journal >= 0 && pread(journal, &pristine_bytes, sizeof pristine_bytes, END_AT) == sizeof pristine_bytes);
    pristine = malloc(pristine_bytes);
    must(pristine && pread(journal, pristine, pristine_bytes, 0) == (ssize_t)pristine_bytes);
    close(journal);
}

static void give_to_keeper(int journal)
{
    struct keeper_message message;
    int link = keeper_dial(&keeper);

    must(keeper_greet(link, &message) == KEEPER_READY);
    for (unsigned i = 0; i < n_kept; i++)
        keeper_send(link, KEEPER_STORE, &kept[i].id, &kept[i].fd, 1);
    keeper_send(link, KEEPER_STORE, &(uint64_t){KEEPER_JOURNAL}, &journal, 1);
    close(link);
}

static uint64_t roll(uint64_t n)
{
    return next_random(&dice) % n;
}

static uint64_t odd_number(uint64_t present)
{
    const uint64_t odd[] = {0, 1, present + 1, present - 1, present ^ UINT64_C(1) << roll(64), UINT64_MAX, (uint64_t)INT64_MAX};

    return odd[roll(sizeof odd / sizeof *odd)];
}

static void change_record(struct journal *journal, struct journal_slot *slot, const struct journal_slot *other)
{
    uint64_t numbers[JOURNAL_NUMBERS], key = slot->key;
    uint32_t kind = slot->kind, flags = slot->flags, bytes = slot->bytes;
    uint8_t *payload = malloc(bytes + 1);
    unsigned what = (unsigned)roll(7);

    must(payload);
    memcpy(payload, slot->payload, bytes);
    memcpy(numbers, slot->numbers, sizeof numbers);
    if (what == 0)
        key = roll(2) ? other->key : odd_number(key);
    else if (what == 1)
        kind = roll(2) ? other->kind : (uint32_t)roll(12);
    else if (what == 2)
        flags = (uint32_t)roll(256);
    else if (what == 3)
        numbers[roll(JOURNAL_NUMBERS)] = odd_number(numbers[0]);
    else if (what == 4)
        bytes = (uint32_t)roll(bytes + 1);
    for (uint64_t n = what >= 5 && bytes > 0 ? 1 + roll(4) : 0; n > 0; n--)
        payload[roll(bytes)] ^= (uint8_t)(1 << roll(8));
    struct journal_slot *fresh = journal_begin(journal, bytes);
    must(fresh);
    memcpy(fresh->payload, payload, bytes);
    journal_commit(journal, fresh, kind, key, flags, numbers);
    if (roll(8) > 0)
        journal_remove(journal, slot);
    free(payload);
}

/* A copy of the journal; its descriptor is to be closed. */
static struct journal *copy_journal(int *fd_p)
{
    int fd = memfd_create("journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct journal *journal;

    must(fd >= 0 && ftruncate(fd, FILE_BYTES) == 0 && pwrite(fd, pristine, pristine_bytes, 0) == (ssize_t)pristine_bytes);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    must_ok(journal_open(dup(fd), &journal, &err));
    *fd_p = fd;
    return journal;
}

/* The same, damaged. */
static int damaged_journal(void)
{
    struct journal_slot *slots[MOST_RECORDS];
    int fd;
    struct journal *journal = copy_journal(&fd);
    uint64_t cursor = 0;
    unsigned n = 0;

    while ((slots[n] = journal_next(journal, &cursor)))
        must(++n < MOST_RECORDS);
    must(n >= 15);
    for (uint64_t changes = 1 + roll(4); changes > 0; changes--) {
        uint64_t at = roll(n);
        if (slots[at])
            change_record(journal, slots[at], slots[(at + 1) % n] ? slots[(at + 1) % n] : slots[at]);
        slots[at] = NULL;
    }
    journal_close(journal);
    if (roll(4) == 0) {
        uint8_t byte = (uint8_t)roll(256);
        must(pwrite(fd, &byte, 1, (off_t)roll(roll(2) ? 256 : pristine_bytes)) == 1);
    }
    return fd;
}

/* ---- the next daemon ---- */

static bool starts(unsigned round)
{
    char flag[200];
    const char *flags[] = {flag, NULL};
    int status = 0;

    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    if (node_try_start(&node,
                       &(struct node_options){.flags = flags, .state_dir = state_dir, .socket = socket_path, .awaited = true},
                       &status))
        return true;
    if (status != 1)
        node_print_log(&node);
    must_say(status == 1, "round %u: the daemon ended with %d", round, status);
    return false;
}

static bool visit(rdt **conn_p)
{
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = node.socket, .timeout_ns = LONG};
    return rdt_connect(&options, conn_p, NULL) == RDT_OK;
}

static void finish(void)
{
    for (unsigned i = 0; i < n_kept; i++)
        close(kept[i].fd);
    free(pristine);
    keeper_stop(&keeper, SIGTERM);
}

Test(recovery_damage, no_journal_crashes_the_next_daemon)
{
    unsigned rounds = getenv("ROUNDS") ? (unsigned)atoi(getenv("ROUNDS")) : ROUNDS, n_started = 0;
    struct actor actor;

    if (getenv("SEED"))
        dice = strtoull(getenv("SEED"), NULL, 10);
    begin();
    actor_start(&actor, populate, NULL);
    actor_await(&actor);
    actor_freeze(&actor); /* its session waits for it in each of the next daemons */
    node_kill(&node, SIGKILL);
    take_from_keeper();
    for (unsigned round = 0; round < rounds; round++) {
        int journal = damaged_journal();
        rdt *conn;

        give_to_keeper(journal);
        close(journal);
        if (!starts(round))
            continue;
        n_started++;
        if (!visit(&conn)) {
            node_print_log(&node);
            fail("round %u: the daemon has ended", round);
        }
        (void)put_detached(conn, "visitor's", 100, 0, 1);
        rdt_close(conn);
        if (round % 2)
            node_kill(&node, SIGKILL);
        else
            node_stop(&node);
    }
    must_say(n_started >= rounds / 2, "only %u daemons started", n_started);
    actor_kill(&actor, SIGKILL);
    finish();
}

Test(recovery_damage, region_of_too_many_descriptors_is_lost_alone)
{
    static uint64_t chunks[5000];
    Rdt__Pb__JournalRegion record = RDT__PB__JOURNAL_REGION__INIT;
    uint64_t numbers[JOURNAL_NUMBERS] = {1};
    int fd;

    begin();
    rdt *conn = node_client(&node, "producer");
    struct rdt_ref ref = put_detached(conn, "whole", 100, 0, 1);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    take_from_keeper();
    struct journal *journal = copy_journal(&fd);
    record.memory = (char *)"host";
    record.chunks = chunks;
    record.n_chunks = sizeof chunks / sizeof *chunks;
    struct journal_slot *slot = journal_begin(journal, rdt__pb__journal_region__get_packed_size(&record));
    (void)rdt__pb__journal_region__pack(&record, slot->payload);
    journal_commit(journal, slot, RECORD_REGION, 900, 0, numbers);
    journal_close(journal);
    give_to_keeper(fd);
    close(fd);
    must(starts(0));
    cr_assert(node_log_has(&node, "its record is invalid: no region has 5000 descriptors"));
    conn = node_client(&node, "reader");
    must_have(conn, &ref, "whole", 100, 1);
    rdt_close(conn);
    node_stop(&node);
    finish();
}

/* The daemon is killed after it has freed the object by force, and before it has taken the object from its names, of which
 * there may be very many. A reader keeps the object; the name has none, and nothing is lost. */
Test(recovery_damage, name_of_an_object_that_was_freed_by_force_is_not_lost)
{
    struct rdt_ref name = name_ref("weights");
    int fd;

    begin();
    rdt *conn = node_client(&node, "holder");
    struct rdt_ref ref = put_detached(conn, "forced", 100 * KIB, RDT_PUT_SNAPSHOT, 1);
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    node_kill(&node, SIGKILL);
    take_from_keeper();
    struct journal *journal = copy_journal(&fd);
    struct journal_slot *slot;
    for (uint64_t cursor = 0; (slot = journal_next(journal, &cursor));)
        if (slot->kind == RECORD_OBJECT)
            journal_set_flags(slot, slot->flags | OBJECT_IS_FORCED);
    journal_close(journal);
    give_to_keeper(fd);
    close(fd);
    must(starts(0));
    must_ok(rdt_ping(conn, LONG, &err));
    cr_assert(!node_log_has(&node, "is lost"));
    cr_assert_eq(rdt_unpublish(conn, &name, NULL), RDT_NOT_FOUND);
    cr_assert(holds_pattern(tensor_of(object, 0).data, 100 * KIB, 1));
    rdt_release(object);
    rdt_close(conn);
    node_stop(&node);
    finish();
}
