/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon with a keeper is killed or stopped. The next daemon has what outlives sessions: detached objects, published
 * names and objects in transit, with the same refs and the same bytes. */
#include "tests/integration/faults/recovery.h"

TestSuite(recovery, .timeout = SUITE_SECONDS(240));

/* ---- objects that survive ---- */

static const struct {
    const char *id;
    size_t bytes;
    uint32_t flags;
} objects[] = {
    {"inline", 100, 0},
    {"inline snapshot", 20 * KIB, RDT_PUT_SNAPSHOT},
    {"handed over", MIB, RDT_PUT_SNAPSHOT}, /* a region that the client filled */
    {"live", 3 * MIB + 5, 0},
    {"snapshot", 9 * MIB, RDT_PUT_SNAPSHOT},
};
#define OBJECTS (sizeof objects / sizeof objects[0])

static void check_objects(int signal)
{
    struct rdt_ref refs[OBJECTS], stale;
    struct rdt_stat stat;
    char uuid[33];

    begin();
    memcpy(uuid, node.uuid, sizeof uuid);
    rdt *conn = node_client(&node, "producer");
    for (unsigned i = 0; i < OBJECTS; i++)
        refs[i] = put_detached(conn, objects[i].id, objects[i].bytes, objects[i].flags, i);
    stale = put_one(conn, &VECTOR(RDT_U8, 3, "abc"), "of the session");
    for (unsigned round = 0; round < 3; round++) {
        again(signal);
        leave(conn);
        conn = node_client(&node, "reader");
        cr_assert_str_eq(node.uuid, uuid);
        for (unsigned i = 0; i < OBJECTS; i++)
            must_have(conn, &refs[i], objects[i].id, objects[i].bytes, i);
        wait_until(LONG, rdt_stat(conn, &stale, &stat, NULL) != RDT_OK);
        must_ok(rdt_stat(conn, &refs[0], &stat, &err));
        cr_assert(stat.detached && stat.ttl_left_ns > 500 * SEC && stat.ttl_left_ns <= 600 * SEC);
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(conn, &refs[i], false, &err));
    rdt_close(conn);
    node_expect_idle(&node);
    again(signal);
    conn = node_client(&node, "reader");
    for (unsigned i = 0; i < OBJECTS; i++)
        must_refuse(RDT_FREED, "ended before the last restart", rdt_stat(conn, &refs[i], &stat, &err));
    rdt_close(conn);
    end();
}

Test(recovery, detached_objects_survive_a_killed_daemon)
{
    check_objects(SIGKILL);
}

Test(recovery, detached_objects_survive_a_stopped_daemon)
{
    check_objects(SIGTERM);
}

/* Puts an object that outlives this process in memory that it imports. */
static int leave_import(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "leaving");
    int fd = memfd_create("left", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint8_t *addr;

    must(fd >= 0 && ftruncate(fd, (off_t)(6 * MIB)) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    addr = mmap(NULL, 6 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(addr != MAP_FAILED);
    fill_pattern(addr, 6 * MIB, 7);
    must_ok(rdt_import(conn, fd, addr, 6 * MIB, &err));
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = "left",
                                      .id_bytes = 4,
                                      .metadata = "left",
                                      .metadata_bytes = 5,
                                      .flags = RDT_PUT_DETACHED};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, 6 * MIB, addr), 1, &options);
    actor_send(self, &ref, sizeof ref);
    actor_await(self);
    (void)arg;
    return 0;
}

Test(recovery, imported_memory_of_an_ended_client_is_charged_by_the_next_daemon_too)
{
    struct actor actor;
    struct rdt_ref ref;

    begin();
    actor_start(&actor, leave_import, NULL);
    actor_recv(&actor, &ref, sizeof ref);
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, node_now(&node).memory_bytes == 6 * MIB);
    for (unsigned round = 0; round < 2; round++) {
        again(SIGKILL);
        wait_until(LONG, node_now(&node).memory_bytes == 6 * MIB);
        rdt *conn = node_client(&node, "reader");
        must_have(conn, &ref, "left", 6 * MIB, 7);
        rdt_close(conn);
    }
    rdt *conn = node_client(&node, "reader");
    must_ok(rdt_free(conn, &ref, false, &err));
    wait_until(LONG, node_now(&node).memory_bytes == 0);
    rdt_close(conn);
    end();
}

/* Two tensors of one object lie in one region of the client, which other objects use as well. */
Test(recovery, objects_that_share_a_region_come_back_in_one_region)
{
    struct rdt_tensor tensors[2];

    begin();
    rdt *conn = node_client(&node, "producer");
    uint8_t *memory = alloc_memory(conn, 4 * MIB);
    fill_pattern(memory, 4 * MIB, 1);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_DETACHED};
    tensors[0] = VECTOR(RDT_U8, MIB, memory + MIB);
    tensors[1] = MATRIX(RDT_F32, 64, 64, memory + 3 * MIB);
    struct rdt_ref first = put_as(conn, tensors, 2, &options);
    struct rdt_ref second = put_as(conn, tensors, 1, &options);
    again(SIGKILL);
    rdt *producer = conn; /* its memory stays mapped */
    conn = node_client(&node, "reader");
    struct node_status status = node_now(&node);
    cr_assert_eq(status.regions, 1u);
    rdt_object *object = fetch_one(conn, &first, RDT_FETCH_AUTO);
    must_go_by("local/share", object);
    fill_pattern(memory, 4 * MIB, 1); /* it is the same memory: the producer has it mapped still */
    cr_assert_eq(memcmp(tensor_of(object, 0).data, memory + MIB, MIB), 0);
    cr_assert_eq(memcmp(tensor_of(object, 1).data, memory + 3 * MIB, 64 * 64 * 4), 0);
    memory[MIB] ^= 1;
    cr_assert_eq(memcmp(tensor_of(object, 0).data, memory + MIB, MIB), 0, "a live object stays live");
    rdt_release(object);
    must_ok(rdt_free(conn, &first, false, &err));
    must_ok(rdt_free(conn, &second, false, &err));
    rdt_close(producer);
    rdt_close(conn);
    end();
}

Test(recovery, imported_memory_comes_back_from_the_clients_own_file)
{
    int fd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(ftruncate(fd, MIB) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    begin();
    rdt *conn = node_client(&node, "producer");
    void *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(memory != MAP_FAILED);
    must_ok(rdt_import(conn, fd, memory, MIB - 4096, &err));
    fill_pattern(memory, MIB - 4096, 5);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_DETACHED};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, MIB - 4096, memory), 1, &options);
    again(SIGKILL);
    rdt_close(conn);
    conn = node_client(&node, "reader");
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB - 4096, 5));
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(conn);
    close(fd);
    end();
}

/* ---- names ---- */

static uint64_t publish(rdt *conn, const char *name, size_t bytes, uint32_t seed, const struct rdt_publish_options *options)
{
    char *memory = malloc(bytes);
    uint64_t version;

    fill_pattern(memory, bytes, seed);
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, bytes, memory), 1, &put);
    must_ok(rdt_publish(conn, name, &ref, options, &version, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    free(memory);
    return version;
}

Test(recovery, names_keep_their_versions_and_go_on_from_there)
{
    struct rdt_publish_options lease = RDT_INIT(lease), living = RDT_INIT(living);
    rdt_object *object;

    lease.lease = true;
    living.ttl_ns = 100 * SEC;
    begin();
    rdt *conn = node_client(&node, "trainer");
    cr_assert_eq(publish(conn, "weights", 2 * MIB, 1, NULL), 1u);
    cr_assert_eq(publish(conn, "weights", 2 * MIB, 2, NULL), 2u);
    cr_assert_eq(publish(conn, "small", 10, 3, &living), 1u);
    cr_assert_eq(publish(conn, "leased", 10, 4, &lease), 1u);
    cr_assert_eq(publish(conn, "ended", 10, 5, NULL), 1u);
    cr_assert_eq(publish(conn, "ended", 10, 5, NULL), 2u);
    cr_assert_eq(publish(conn, "ended", 10, 5, NULL), 3u);
    struct rdt_ref ref = name_ref("ended");
    must_ok(rdt_unpublish(conn, &ref, &err));
    for (unsigned round = 0; round < 2; round++) {
        again(round == 0 ? SIGKILL : SIGTERM);
        leave(conn);
        conn = node_client(&node, "sampler");
        ref = name_ref("weights");
        object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
        cr_assert(holds_pattern(tensor_of(object, 0).data, 2 * MIB, 2));
        cr_assert_eq(info_of(object).version, 2u);
        rdt_release(object);
        ref = name_ref("small");
        object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
        cr_assert(holds_pattern(tensor_of(object, 0).data, 10, 3));
        rdt_release(object);
        ref = name_ref("leased");
        wait_until(LONG, try_fetch(conn, &ref, RDT_FETCH_AUTO, 10 * MSEC, &object, NULL) != RDT_OK);
    }
    cr_assert_eq(publish(conn, "weights", MIB, 6, NULL), 3u);
    cr_assert_gt(publish(conn, "ended", 10, 5, NULL), 3u, "no version is given twice");
    for (unsigned i = 0; i < 3; i++) {
        ref = name_ref(((const char *[]){"weights", "small", "ended"})[i]);
        must_ok(rdt_unpublish(conn, &ref, &err));
    }
    rdt_close(conn);
    node_expect_idle(&node);
    end();
}

/* ---- holds in transit ---- */

Test(recovery, object_in_transit_is_there_for_who_takes_it_over)
{
    char payload[] = "in transit";

    begin();
    rdt *conn = node_client(&node, "producer");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, sizeof payload, payload), NULL);
    must_ok(rdt_hand_on(conn, &ref, 100 * SEC, &err));
    again(SIGKILL);
    rdt_close(conn);
    conn = node_client(&node, "receiver");
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    cr_assert_str_eq(tensor_of(object, 0).data, payload);
    rdt_release(object);
    rdt_close(conn);
    end();
}

/* ---- other nodes ---- */

Test(recovery, refs_on_other_nodes_lead_to_the_next_daemon)
{
    struct test_node far;
    char flag[200], address[65];
    const char *flags[] = {flag, NULL};
    rdt_object *object;

    keeper_start(&keeper);
    free_address(0, "127.0.0.1", address);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    node_start(&node, &(struct node_options){.flags = flags, .listen = address});
    memcpy(state_dir, node.state_dir, sizeof state_dir);
    node_start(&far, &(struct node_options){.name = "far", .listen = "127.0.0.1:0"});
    rdt *conn = node_client(&node, "producer");
    rdt *reader = node_client(&far, "reader");
    struct rdt_ref snapshot = put_detached(conn, "snapshot", 2 * MIB, RDT_PUT_SNAPSHOT, 1);
    struct rdt_ref live = put_detached(conn, "live", 100, 0, 2);
    must_have(reader, &snapshot, "snapshot", 2 * MIB, 1);
    node_kill(&node, SIGKILL);
    node_start(&node, &(struct node_options){.flags = flags, .listen = address, .state_dir = state_dir, .awaited = true});
    rdt_close(conn);
    wait_until(LONG, try_fetch(reader, &live, RDT_FETCH_AUTO, LONG, &object, NULL) == RDT_OK);
    rdt_release(object);
    must_have(reader, &live, "live", 100, 2);
    must_have(reader, &snapshot, "snapshot", 2 * MIB, 1);
    rdt_close(reader);
    node_stop(&far);
    end();
}

/* Only that hold keeps the object: its producer has freed it. */
Test(recovery, hold_on_an_object_of_another_node_is_taken_again)
{
    struct test_node owner;
    char flag[200], address[65];
    const char *flags[] = {flag, NULL};
    struct rdt_request *hold = NULL;
    rdt_object *object;

    keeper_start(&keeper);
    free_address(0, "127.0.0.1", address);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    node_start(&owner, &(struct node_options){.name = "owner", .listen = "127.0.0.1:0"});
    node_start(&node, &(struct node_options){.flags = flags, .listen = address});
    memcpy(state_dir, node.state_dir, sizeof state_dir);
    memcpy(socket_path, node.socket, sizeof socket_path);
    rdt *producer = node_client(&owner, "producer");
    rdt *reader = node_client(&node, "reader");
    struct rdt_ref ref = put_one(producer, &VECTOR(RDT_U8, 5, "held"), "held");
    must_ok(rdt_hold(reader, &ref, LONG, &hold, &err));
    must_ok(rdt_free(producer, &ref, false, &err));
    for (unsigned round = 0; round < 2; round++) {
        node_kill(&node, SIGKILL);
        node_start(&node,
                   &(struct node_options){
                       .flags = flags, .listen = address, .state_dir = state_dir, .socket = socket_path, .awaited = true});
        must_ok(rdt_ping(reader, LONG, &err));
        object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
        cr_assert_str_eq(tensor_of(object, 0).data, "held");
        rdt_release(object);
    }
    (void)stat_of(producer, &ref);
    rdt_request_destroy(hold);
    rdt_close(reader);
    rdt_close(producer);
    node_stop(&owner);
    end();
}

/* ---- the keeper ---- */

Test(recovery, new_keeper_gets_everything_from_the_daemon)
{
    begin();
    rdt *conn = node_client(&node, "producer");
    struct rdt_ref ref = put_detached(conn, "before", 2 * MIB, RDT_PUT_SNAPSHOT, 1);
    keeper_stop(&keeper, SIGKILL);
    wait_until(LONG, node_log_has(&node, "lost the keeper"));
    (void)put_detached(conn, "meanwhile", 2 * MIB, RDT_PUT_SNAPSHOT, 2);
    keeper_start(&keeper);
    wait_until(LONG, node_log_has(&node, "answers again and has everything"));
    again(SIGKILL);
    rdt_close(conn);
    conn = node_client(&node, "reader");
    must_have(conn, &ref, "before", 2 * MIB, 1);
    ref = ref_named("meanwhile");
    must_have(conn, &ref, "meanwhile", 2 * MIB, 2);
    rdt_close(conn);
    end();
}

/* The keeper does not read, so descriptors for it wait in the daemon. Clients that put and free do not wait. */
Test(recovery, frozen_keeper_holds_up_nobody_and_gets_everything_when_it_goes_on)
{
    enum { MANY = 700 };
    static struct rdt_ref refs[MANY];
    char id[16];

    begin();
    rdt *conn = node_client(&node, "producer");
    kill(keeper.program.pid, SIGSTOP);
    for (unsigned i = 0; i < MANY; i++) {
        (void)snprintf(id, sizeof id, "object%u", i);
        refs[i] = put_detached(conn, id, 64 * KIB, RDT_PUT_SNAPSHOT, i);
    }
    for (unsigned i = 0; i < MANY; i += 2)
        must_ok(rdt_free(conn, &refs[i], false, &err));
    must_ok(rdt_ping(conn, LONG, &err));
    kill(keeper.program.pid, SIGCONT);
    wait_until(LONG, fds_of(node.pid) < node.fds + MANY / 2 + 20); /* nothing waits any more */
    again(SIGKILL);
    rdt_close(conn);
    conn = node_client(&node, "reader");
    struct node_status status = node_now(&node);
    cr_assert_eq(status.objects, MANY / 2);
    for (unsigned i = 1; i < MANY; i += 2) {
        (void)snprintf(id, sizeof id, "object%u", i);
        must_have(conn, &refs[i], id, 64 * KIB, i);
    }
    rdt_close(conn);
    end();
}

static void must_not_start(const char *text)
{
    char flag[200];
    int status;

    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    cr_assert_not(node_try_start(
        &node, &(struct node_options){.flags = (const char *[]){flag, NULL}, .state_dir = state_dir[0] ? state_dir : NULL},
        &status));
    cr_assert_neq(status, 0);
    must_say(node_log_has(&node, text), "the log does not say \"%s\"", text);
}

Test(recovery, daemon_without_the_keeper_that_it_should_have_does_not_start)
{
    (void)snprintf(keeper.socket, sizeof keeper.socket, "%s/nobody", getenv("TMPDIR"));
    must_not_start("nobody does not answer (start rdtd-keeper, or set keeper to nothing)");
}

Test(recovery, two_daemons_cannot_use_one_keeper)
{
    begin();
    struct test_node first = node;
    state_dir[0] = '\0';
    must_not_start("serves another daemon");
    node = first;
    end();
}

/* Another node's objects are not given away, and not given up either. */
Test(recovery, journal_of_another_node_is_refused)
{
    char own[160];

    begin();
    rdt *conn = node_client(&node, "producer");
    struct rdt_ref ref = put_detached(conn, "mine", 100, 0, 1);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    memcpy(own, state_dir, sizeof own);
    state_dir[0] = '\0';
    for (unsigned i = 0; i < 7; i++) /* as often as a supervisor tries it: these starts have not crashed */
        must_not_start("has the objects of node");
    memcpy(state_dir, own, sizeof own);
    start();
    conn = node_client(&node, "reader");
    must_have(conn, &ref, "mine", 100, 1);
    rdt_close(conn);
    end();
}

/* Changes the journal that the keeper has. */
static void forge(off_t at, const void *bytes, size_t n)
{
    int fd = keeper_look(&keeper, KEEPER_JOURNAL, NULL);

    must(fd >= 0 && pwrite(fd, bytes, n, at) == (ssize_t)n);
    close(fd);
}

#define JOURNAL_VERSION_AT 8
#define JOURNAL_ATTEMPTS_AT 56 /* struct header: magic, version, header_bytes, end, node_uuid, generations, names_version */

static void put_kept(struct rdt_ref *ref_p)
{
    rdt *conn = node_client(&node, "producer");

    *ref_p = put_detached(conn, "kept", 100, 0, 1);
    rdt_close(conn);
}

static void must_have_kept(const struct rdt_ref *ref)
{
    rdt *conn = node_client(&node, "reader");

    must_have(conn, ref, "kept", 100, 1);
    must_ok(rdt_free(conn, ref, false, &err));
    rdt_close(conn);
}

Test(recovery, journal_that_cannot_be_read_is_set_aside)
{
    static const struct {
        off_t at;
        const char *bytes, *says;
    } cases[] = {{JOURNAL_VERSION_AT, "\x63", "it has version 99, and this rdtd reads versions 1 to 4. It is set aside"},
                 {0, "xxxxxxxx", "it does not begin like a journal. It is set aside"},
                 {4096, "xxxxxxxx", "it is damaged at byte 4096. It is set aside"}};
    struct rdt_ref ref;

    begin();
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_kept(&ref);
        node_kill(&node, SIGKILL);
        forge(cases[i].at, cases[i].bytes, strlen(cases[i].bytes));
        start();
        must_say(node_log_has(&node, cases[i].says), "the log does not say \"%s\"", cases[i].says);
        node_expect_idle(&node);
        put_kept(&ref); /* the new journal is used */
        node_kill(&node, SIGKILL);
        cr_assert_geq(keeper_look(&keeper, 2, NULL), 0, "it is kept for who looks into it");
        start();
        must_have_kept(&ref);
    }
    end();
}

#define JOURNAL_VERSIONS_AT 48
#define JOURNAL_IDS_AT 64
#define JOURNAL_READING_AT 96

/* Earlier daemons took versions from other nodes and from etcd that no journal may have. */
Test(recovery, numbers_out_of_range_in_the_journal_end_no_start)
{
    const uint64_t beyond = (UINT64_C(1) << 61) + 1, ids[3] = {beyond, beyond, beyond};
    struct rdt_ref ref, name;
    uint64_t version;

    begin();
    put_kept(&ref);
    node_kill(&node, SIGKILL);
    forge(JOURNAL_VERSIONS_AT, &beyond, sizeof beyond);
    forge(JOURNAL_IDS_AT, ids, sizeof ids);
    start();
    cr_assert(node_log_has(&node, "a name had version 2305843009213693953, which is out of range"));
    cr_assert(node_log_has(&node, "the ids in the journal's header are out of range"));
    rdt *conn = node_client(&node, "publisher");
    struct rdt_publish_options options = {.struct_size = sizeof options, .ttl_ns = 60 * SEC};
    must_ok(rdt_publish(conn, "w", &ref, &options, &version, &err));
    rdt_close(conn);
    again(SIGKILL);
    conn = node_client(&node, "reader");
    name = name_ref("w");
    must_have(conn, &name, "kept", 100, 1);
    must_ok(rdt_unpublish(conn, &name, &err));
    rdt_close(conn);
    must_have_kept(&ref);
    end();
}

/* The record that was being restored when the last start ended is lost; no other is. */
Test(recovery, record_that_ends_the_daemon_costs_its_object_only)
{
    const uint32_t attempts = 1;
    static uint8_t page[4 * 65536];
    struct rdt_ref ref, poison;
    struct rdt_stat stat;
    uint64_t offset = 0;

    begin();
    put_kept(&ref);
    rdt *conn = node_client(&node, "producer");
    poison = put_detached(conn, "the-poison", 100, 0, 2);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    int fd = keeper_look(&keeper, KEEPER_JOURNAL, NULL);
    must(pread(fd, page, sizeof page, 4096) == (ssize_t)sizeof page);
    close(fd);
    uint8_t *found = memmem(page, sizeof page, "the-poison", 10);
    must(found);
    while (offset == 0 && --found > page) /* back to the beginning of its slot */
        if (memcmp(found, "cmit", 4) == 0)
            offset = 4096 + (uint64_t)(found - page);
    must(offset > 0);
    forge(JOURNAL_READING_AT, &offset, sizeof offset);
    forge(JOURNAL_ATTEMPTS_AT, &attempts, sizeof attempts);
    start();
    cr_assert(node_log_has(&node, "the last start ended while it restored record"));
    conn = node_client(&node, "reader");
    must_be(RDT_FREED, rdt_stat(conn, &poison, &stat, &err));
    rdt_close(conn);
    must_have_kept(&ref);
    end();
}

/* The next daemon may use less memory than the earlier one: everything is there, and nobody gets more. */
Test(recovery, lower_memory_limit_costs_no_object)
{
    enum { SMALL = 200 };
    struct rdt_ref refs[SMALL], big;
    char flag[200];
    static uint8_t bytes[9000];
    void *memory;

    begin();
    rdt *conn = node_client(&node, "producer");
    for (unsigned i = 0; i < SMALL; i++)
        refs[i] = put_detached(conn, (char[]){'s', (char)('a' + i / 26), (char)('a' + i % 26), 0}, 9000, 0, i);
    big = put_detached(conn, "big", 6 * MIB, 0, 1);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    node_start(&node, &(struct node_options){.flags = (const char *[]){flag, "--memory-limit=4MiB", NULL},
                                             .state_dir = state_dir,
                                             .socket = socket_path,
                                             .awaited = true});
    cr_assert(node_log_has(&node, "and memory_limit is 4194304: they stay, and nobody gets new memory"));
    conn = node_client(&node, "reader");
    must_have(conn, &big, "big", 6 * MIB, 1);
    for (unsigned i = 0; i < SMALL; i++)
        must_have(conn, &refs[i], (char[]){'s', (char)('a' + i / 26), (char)('a' + i % 26), 0}, 9000, i);
    must_be(RDT_NO_MEMORY, rdt_alloc(conn, MIB, &memory, &err));
    must_ok(rdt_free(conn, &big, false, &err));
    for (unsigned i = 0; i < SMALL; i++)
        must_ok(rdt_free(conn, &refs[i], false, &err));
    (void)put_one(conn, &VECTOR(RDT_U8, sizeof bytes, bytes), "there is room again");
    rdt_close(conn);
    end();
}

/* An object that was freed with force stays with its reader, while a later one has its id. Their generations have no order. */
Test(recovery, object_whose_id_a_later_one_has_comes_back_to_its_reader)
{
    enum { PAIRS = 12, BLOCK_BITS = 6 };
    struct rdt_ref old, newer[PAIRS], other;
    rdt_object *held[PAIRS];
    char id[] = "a";

    begin();
    rdt *conn = node_client(&node, "producer");
    rdt *reader = node_client(&node, "reader");
    for (unsigned i = 0; i < PAIRS; i++, id[0]++) {
        old = put_detached(conn, id, 100000, 0, i);
        held[i] = fetch_one(reader, &old, RDT_FETCH_SHARE);
        must_ok(rdt_free(conn, &old, true, &err));
        do {
            other = put_one(conn, &VECTOR(RDT_U8, 3, "abc"), "other");
            must_ok(rdt_free(conn, &other, true, &err));
        } while (other.generation >> BLOCK_BITS == old.generation >> BLOCK_BITS);
        newer[i] = put_detached(conn, id, 100000, 0, 100 + i);
    }
    again(SIGKILL);
    must_ok(rdt_ping(reader, LONG, &err));
    must_ok(rdt_ping(conn, LONG, &err));
    cr_assert_not(node_log_has(&node, "is lost"));
    for (unsigned i = 0; i < PAIRS; i++) {
        must_have(conn, &newer[i], (char[]){(char)('a' + i), 0}, 100000, 100 + i);
        cr_assert(holds_pattern(tensor_of(held[i], 0).data, 100000, i));
        rdt_release(held[i]);
        must_ok(rdt_free(conn, &newer[i], false, &err));
    }
    rdt_close(reader);
    rdt_close(conn);
    end();
}

/* An object that was replaced stays with its readers, holds and names, whatever the order of their generations. */
Test(recovery, replaced_objects_come_back_to_those_who_hold_them)
{
    enum { VERSIONS = 4, BLOCK_BITS = 6 };
    struct rdt_ref refs[VERSIONS], id = ref_named("key"), name = name_ref("name"), other;
    rdt_object *held;
    rdt_request *hold;

    begin();
    rdt *conn = node_client(&node, "producer");
    rdt *reader = node_client(&node, "reader");
    for (unsigned i = 0; i < VERSIONS; i++) {
        refs[i] = put_detached(conn, "key", 100000, RDT_PUT_REPLACE, i);
        if (i == 0)
            held = fetch_one(reader, &refs[0], RDT_FETCH_SHARE);
        else if (i == 1)
            must_ok(rdt_hold(reader, &refs[1], LONG, &hold, &err));
        else if (i == 2)
            must_ok(rdt_publish(conn, "name", &refs[2], NULL, NULL, &err));
        do {
            other = put_one(conn, &VECTOR(RDT_U8, 3, "abc"), "other");
            must_ok(rdt_free(conn, &other, true, &err));
        } while (other.generation >> BLOCK_BITS == refs[i].generation >> BLOCK_BITS);
    }
    for (unsigned round = 0; round < 3; round++) {
        again(round == 1 ? SIGTERM : SIGKILL);
        must_ok(rdt_ping(reader, LONG, &err));
        must_ok(rdt_ping(conn, LONG, &err));
        cr_assert_not(node_log_has(&node, "is lost"));
        must_have(reader, &id, "key", 100000, VERSIONS - 1);
        for (unsigned i = 0; i < VERSIONS; i++)
            must_have(conn, &refs[i], "key", 100000, i);
        must_have(conn, &name, "key", 100000, 2);
        cr_assert(holds_pattern(tensor_of(held, 0).data, 100000, 0));
    }
    rdt_release(held);
    rdt_request_destroy(hold);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_have(conn, &id, "key", 100000, VERSIONS - 1);
    must_ok(rdt_free(conn, &id, false, &err));
    wait_until(LONG, node_now(&node).objects == 0);
    rdt_close(reader);
    rdt_close(conn);
    end();
}

/* The keeper knows who the node is. */
Test(recovery, node_whose_uuid_is_damaged_gets_it_from_the_keeper)
{
    char uuid[33], path[200];

    begin();
    rdt *conn = node_client(&node, "producer");
    memcpy(uuid, node.uuid, sizeof uuid);
    struct rdt_ref ref = put_detached(conn, "kept", 100, 0, 1);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    (void)snprintf(path, sizeof path, "%s/node_uuid", state_dir);
    FILE *file = fopen(path, "w");
    must(file && fputs("damaged", file) >= 0 && fclose(file) == 0);
    for (unsigned round = 0; round < 2; round++) {
        start();
        cr_assert_str_eq(node.uuid, uuid);
        node_kill(&node, SIGKILL);
    }
    start();
    must_have_kept(&ref);
    end();
}

/* The bytes of the journal's records are the owner's, and are given back with them. */
Test(recovery, journal_of_an_owner_is_charged_to_that_owner)
{
    enum { METADATA = 100000 };
    static char metadata[METADATA];
    struct rdt_ref refs[32];
    char flag[200];

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    node_start(&node, &(struct node_options){.flags = (const char *[]){flag, "--owner-max-heap=2MiB", NULL}});
    rdt *conn = node_client(&node, "producer");
    struct rdt_put_options options = {.struct_size = sizeof options, .metadata = metadata, .metadata_bytes = sizeof metadata};
    for (unsigned round = 0; round < 3; round++) {
        unsigned n = 0;
        while (n < 32 && rdt_put(conn, &VECTOR(RDT_U8, 3, "abc"), 1, &options, &refs[n], NULL) == RDT_OK)
            n++;
        must_refuse(RDT_LIMIT, "raise owner_max_heap", rdt_put(conn, &VECTOR(RDT_U8, 3, "abc"), 1, &options, &refs[n], &err));
        cr_assert(n >= 5 && n <= 10, "%u objects with %u bytes of metadata each, twice, are 2 MiB", n, METADATA);
        while (n > 0)
            must_ok(rdt_free(conn, &refs[--n], false, &err));
        must_ok(rdt_ping(conn, LONG, &err));
    }
    rdt_close(conn);
    end();
}

Test(recovery, journal_that_ends_the_daemon_again_and_again_is_set_aside)
{
    const uint32_t attempts = 5;

    begin();
    rdt *conn = node_client(&node, "producer");
    (void)put_detached(conn, "poison", 100, 0, 1);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    forge(JOURNAL_ATTEMPTS_AT, &attempts, sizeof attempts);
    start();
    cr_assert(node_log_has(&node, "5 starts in a row ended while they read the journal, so it is set aside"));
    node_expect_idle(&node);
    node_stop(&node);
    cr_assert_geq(keeper_look(&keeper, 2, NULL), 0, "it is kept for who looks into it");
    keeper_stop(&keeper, SIGTERM);
}

/* One record is damaged: only its object is lost, and the log says so. */
Test(recovery, damaged_record_costs_its_object_only)
{
    struct rdt_ref refs[2];
    struct rdt_stat stat;
    static uint8_t page[4 * 65536];

    begin();
    rdt *conn = node_client(&node, "producer");
    refs[0] = put_detached(conn, "the-damaged-one", 100, 0, 1);
    refs[1] = put_detached(conn, "the-whole-one", 100, 0, 2);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    int fd = keeper_look(&keeper, KEEPER_JOURNAL, NULL);
    must(pread(fd, page, sizeof page, 4096) == (ssize_t)sizeof page);
    uint8_t *found = memmem(page, sizeof page, "the-damaged-one", 15);
    must(found);
    must(pwrite(fd, "X", 1, 4096 + (found - page)) == 1);
    close(fd);
    start();
    cr_assert(node_log_has(&node, "1 records of the journal were damaged"));
    conn = node_client(&node, "reader");
    must_be(RDT_FREED, rdt_stat(conn, &refs[0], &stat, &err));
    must_have(conn, &refs[1], "the-whole-one", 100, 2);
    rdt_close(conn);
    end();
}
