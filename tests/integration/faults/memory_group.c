/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon, or a client, in a control group whose memory runs out. The kernel kills a process that touches more memory than
 * its group may have, so the daemon refuses what does not fit before it touches a page. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/keeper.h"
#include "tests/support/memory_group.h"
#include "tests/support/raw.h"

TestSuite(memory_group, .timeout = 240);

#define MIB ((size_t)1 << 20)
#define GROUP_BYTES (256 * MIB)
#define ROOMY "--memory-limit=1GiB" /* more than the group has */

static struct memory_group group;
static struct test_node node;
static rdt *bystander;
static struct rdt_ref theirs;

static void begin(const char *const *flags)
{
    memory_group_create(&group, GROUP_BYTES);
    node_start(&node, &(struct node_options){.flags = flags, .memory_group = group.dir});
    bystander = node_client(&node, "bystander");
    theirs = put_pattern(bystander, "theirs", 3 * MIB, 1);
}

static void others_are_well(void)
{
    fetch_pattern(bystander, &theirs, 3 * MIB, 1, NULL);
    must_ok(rdt_ping(bystander, LONG, &err));
}

static void end(const char *const *declared)
{
    others_are_well();
    must_say(memory_group_kills(&group) == 0, "the kernel has killed a process of the group");
    must_ok(rdt_free(bystander, &theirs, false, &err));
    rdt_close(bystander);
    node_end(&node, declared);
    memory_group_remove(&group);
}

static const char *const too_small[] = {"memory_limit", NULL};

/* ---- the daemon's group ---- */

Test(memory_group, start_says_that_the_limits_do_not_fit)
{
    begin((const char *[]){ROOMY, NULL});
    cr_assert(node_log_has(&node, "memory_limit is 1073741824 bytes"));
    cr_assert(node_log_has(&node, "MemoryMax"));
    end(too_small);
}

Test(memory_group, memory_that_does_not_fit_is_refused)
{
    void *addr;

    begin((const char *[]){ROOMY, NULL});
    for (unsigned i = 0; i < 5; i++) {
        must_refuse(RDT_NO_MEMORY, "control group", rdt_alloc(bystander, 400 * MIB, &addr, &err));
        must_refuse(RDT_NO_MEMORY, "MemoryMax",
                    rdt_alloc(bystander, GROUP_BYTES, &addr, &err)); /* nothing is left for the daemon */
        others_are_well();
    }
    must_ok(rdt_alloc(bystander, 128 * MIB, &addr, &err));
    memset(addr, 1, 128 * MIB);
    must_ok(rdt_dealloc(bystander, addr, &err));
    memory_group_limit(&group, 2 * GROUP_BYTES); /* the remedy, without a restart */
    must_ok(rdt_alloc(bystander, GROUP_BYTES, &addr, &err));
    memset(addr, 1, GROUP_BYTES);
    must_ok(rdt_dealloc(bystander, addr, &err));
    end(too_small);
}

enum { GREEDY = 6, ROUNDS = 8, EACH = 70 };

struct outcome {
    unsigned well, refused;
};

static int take_what_there_is(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "greedy");
    struct outcome outcome = {0};

    actor_step(self);
    actor_await(self);
    for (unsigned i = 0; i < ROUNDS; i++) {
        void *addr;
        struct rdt_error why = {0};
        enum rdt_status status = rdt_alloc(conn, EACH * MIB + i * 4096, &addr, &why);

        must_say(status == RDT_OK || status == RDT_NO_MEMORY, "%s: %s", rdt_status_name(status), why.msg);
        if (status != RDT_OK) {
            outcome.refused++;
            continue;
        }
        outcome.well++;
        memset(addr, 1, EACH * MIB);
        must_ok(rdt_dealloc(conn, addr, &err));
    }
    actor_send(self, &outcome, sizeof outcome);
    rdt_close(conn);
    return 0;
}

/* Each alone would fit: what others are about to take counts, too. */
Test(memory_group, many_at_once_get_no_more_than_there_is)
{
    struct outcome sum = {0}, one;
    struct actor actors[GREEDY];

    memory_group_create(&group, GROUP_BYTES);
    node_start(&node,
               &(struct node_options){.flags = (const char *[]){ROOMY, "--worker-threads=4", NULL}, .memory_group = group.dir});
    for (unsigned i = 0; i < GREEDY; i++) {
        actor_start(&actors[i], take_what_there_is, NULL);
        actor_await(&actors[i]);
    }
    bystander = node_client(&node, "bystander");
    theirs = put_pattern(bystander, "theirs", 3 * MIB, 1);
    for (unsigned i = 0; i < GREEDY; i++)
        actor_step(&actors[i]);
    for (unsigned i = 0; i < GREEDY; i++) {
        actor_recv(&actors[i], &one, sizeof one);
        sum.well += one.well;
        sum.refused += one.refused;
        actor_wait(&actors[i]);
    }
    cr_assert_gt(sum.well, 0);
    cr_assert_gt(sum.refused, 0, "nothing was refused: the test proves nothing");
    end(too_small);
}

/* A client's memory that lacks pages costs nobody anything, until the daemon touches it. */
Test(memory_group, pages_that_a_client_left_out_are_refused)
{
    size_t bytes = 150 * MIB, n = 1;
    rdt_object *object;
    struct stat st;

    begin((const char *[]){ROOMY, NULL});
    struct rdt_ref ref = put_pattern(bystander, "large", bytes, 2);
    int fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    uint8_t *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    must(addr != MAP_FAILED);
    must_ok(rdt_import(bystander, fd, addr, bytes, &err));
    struct rdt_tensor into = bytes_at(addr, bytes);
    const struct rdt_tensor *targets = &into;
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .targets = &targets, .target_counts = &n, .timeout_ns = LONG};
    must_refuse(RDT_NO_MEMORY, "control group", rdt_fetch(bystander, &ref, 1, &options, &object, &err));
    must(fstat(fd, &st) == 0 && st.st_blocks == 0);
    must_ok(rdt_dealloc(bystander, addr, &err));
    must(munmap(addr, bytes) == 0 && close(fd) == 0);
    must_ok(rdt_free(bystander, &ref, false, &err));
    end(too_small);
}

/* ---- heap ---- */

static uint64_t resident_bytes(void)
{
    char path[64], line[256];
    unsigned long long kib = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)node.pid);
    FILE *file = fopen(path, "re");
    must(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %llu", &kib) == 1)
            break;
    (void)fclose(file);
    return kib * 1024;
}

/* Puts objects whose metadata is a MiB until one is refused; returns how many there are. */
static unsigned put_metadata(rdt *client, struct rdt_ref *refs, unsigned most, struct rdt_error *why)
{
    static char metadata[MIB];
    enum rdt_status status;
    unsigned n = 0;
    struct rdt_put_options options = {.struct_size = sizeof options, .metadata = metadata, .metadata_bytes = sizeof metadata};

    do
        status = rdt_put(client, NULL, 0, &options, &refs[n], why);
    while (status == RDT_OK && ++n < most);
    return n;
}

static void free_all(rdt *client, const struct rdt_ref *refs, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        must_ok(rdt_free(client, &refs[i], false, &err));
}

/* The heap has its share of the group, whatever the limits of owners are. When it is free again, the system gets it. */
Test(memory_group, metadata_has_its_share_of_the_group)
{
    static struct rdt_ref refs[GROUP_BYTES / MIB];
    struct rdt_error why = {0};

    begin(NULL);
    rdt *greedy = node_client(&node, "greedy");
    unsigned n = put_metadata(greedy, refs, GROUP_BYTES / MIB, &why);
    cr_assert(why.status == RDT_LIMIT && strstr(why.msg, "MemoryMax"), "%u: %s", n, why.msg);
    cr_assert(n >= 40 && n <= 64, "%u: the heap has a quarter, and the last eighth is for others", n);
    rdt *modest = node_client(&node, "modest");
    must_ok(rdt_ping(modest, LONG, &err));
    others_are_well();
    free_all(greedy, refs, n);
    wait_until(LONG, resident_bytes() < 48 * MIB);
    rdt_close(modest);
    rdt_close(greedy);
    end(NULL);
}

/* Where memory_limit leaves nothing for it, the heap is refused as well. */
Test(memory_group, metadata_that_does_not_fit_is_refused)
{
    static struct rdt_ref refs[GROUP_BYTES / MIB];
    struct rdt_error why = {0};
    void *addr;

    begin((const char *[]){ROOMY, NULL});
    rdt *greedy = node_client(&node, "greedy");
    must_ok(rdt_alloc(greedy, 205 * MIB, &addr, &err));
    unsigned n = put_metadata(greedy, refs, GROUP_BYTES / MIB, &why);
    cr_assert(why.status == RDT_NO_MEMORY && strstr(why.msg, "MemoryMax"), "%u: %s", n, why.msg);
    must_ok(rdt_dealloc(greedy, addr, &err));
    rdt_close(greedy); /* with the memory that the daemon cached for it */
    wait_until(LONG, put_metadata(bystander, refs, 1, &why) == 1);
    must_ok(rdt_free(bystander, &refs[0], false, &err));
    end(too_small);
}

/* The same with a keeper: the group is charged for the pages of the journal, too, in which each object has a record. */
Test(memory_group, record_that_does_not_fit_is_refused)
{
    static struct rdt_ref refs[GROUP_BYTES / MIB];
    struct test_keeper keeper = {0};
    struct rdt_error why = {0};
    unsigned n;
    char flag[192];
    rdt *greedy;
    void *addr;

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    begin((const char *[]){ROOMY, flag, NULL});
    greedy = node_client(&node, "greedy");
    must_ok(rdt_alloc(greedy, 205 * MIB, &addr, &err));
    n = put_metadata(greedy, refs, GROUP_BYTES / MIB, &why);
    cr_assert(n > 0 && why.status == RDT_NO_MEMORY && strstr(why.msg, "MemoryMax"), "%u: %s", n, why.msg);
    free_all(greedy, refs, n);
    wait_until(LONG, put_metadata(greedy, refs, 1, &why) == 1);
    free_all(greedy, refs, 1);
    must_ok(rdt_dealloc(greedy, addr, &err));
    rdt_close(greedy);
    end(too_small);
    keeper_stop(&keeper, SIGTERM);
}

/* Nor at a start: the files stay, and another start that has room finds them. */
Test(memory_group, stored_objects_that_do_not_fit_are_left_on_the_disk)
{
    enum { N = 96 };
    static uint8_t metadata[MIB];
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .flags = RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED | RDT_PUT_STORED,
                                      .metadata = metadata,
                                      .metadata_bytes = sizeof metadata};
    char flag[200], state_dir[160];
    struct rdt_ref ref;

    (void)snprintf(flag, sizeof flag, "--storage-dir=%s/store", getenv("TMPDIR"));
    const char *const flags[] = {flag, NULL};
    memory_group_create(&group, 8 * N * MIB);
    node_start(&node, &(struct node_options){.flags = flags, .memory_group = group.dir});
    (void)snprintf(state_dir, sizeof state_dir, "%s", node.state_dir);
    rdt *conn = node_client(&node, "producer");
    for (unsigned i = 0; i < N; i++) {
        ref = put_as(conn, &VECTOR(RDT_U8, 3, "abc"), 1, &options);
        must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    }
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    memory_group_limit(&group, N * MIB);
    node_start(&node, &(struct node_options){.flags = flags, .memory_group = group.dir, .state_dir = state_dir});
    must_say(memory_group_kills(&group) == 0, "the kernel has killed a process of the group");
    cr_assert(node_log_has(&node, "is ignored: ") && node_log_has(&node, "MemoryMax"));
    cr_assert_lt(node_now(&node).objects, N);
    node_kill(&node, SIGKILL);
    memory_group_limit(&group, 8 * N * MIB);
    node_start(&node, &(struct node_options){.flags = flags, .memory_group = group.dir, .state_dir = state_dir});
    cr_assert_eq(node_now(&node).objects, N);
    node_kill(&node, SIGKILL);
    memory_group_remove(&group);
}

/* Little messages are free of charge only as long as all clients together cannot fill the group with them. */
Test(memory_group, messages_of_many_clients_do_not_fill_it)
{
    enum { CLIENTS = 1000, BYTES = 240000 };
    static struct raw raws[CLIENTS];
    static uint8_t part[BYTES];

    begin(NULL);
    for (unsigned i = 0; i < CLIENTS; i++) {
        raw_connect(&raws[i], node.socket);
        raw_hello(&raws[i]);
        must(raw_frame(&raws[i], BYTES + 1, RDT_MSG_PING, 0, 0, 7, part, BYTES, NULL, 0));
        if (i % 100 == 99)
            others_are_well();
    }
    others_are_well();
    for (unsigned i = 0; i < CLIENTS; i++)
        raw_close(&raws[i]);
    end(NULL);
}

/* ---- a client's group ---- */

/* Fills memory of the daemon's, which is the daemon's to pay for, and then more memory of its own than its group has. */
static int use_up_its_group(struct actor *self, void *arg)
{
    static const size_t bytes = 40 * MIB;
    struct rdt_ref ref = ref_named("theirs");

    memory_group_enter(group.dir);
    rdt *conn = node_client(&node, "poor");
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    memset(alloc_memory(conn, 2 * bytes), 1, 2 * bytes);
    must_ok(rdt_ping(conn, LONG, &err));
    actor_step(self);
    uint8_t *own = mmap(NULL, 4 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(own != MAP_FAILED);
    memset(own, 1, 4 * bytes);
    rdt_release(object);
    return 0;
}

Test(memory_group, client_that_uses_up_its_own_dies_alone)
{
    struct actor poor;

    memory_group_create(&group, 64 * MIB);
    node_start(&node, &(struct node_options){0});
    bystander = node_client(&node, "bystander");
    theirs = put_pattern(bystander, "theirs", 3 * MIB, 1);
    actor_start(&poor, use_up_its_group, NULL);
    actor_await(&poor);
    cr_assert_eq(actor_result(&poor), 128 + SIGKILL);
    cr_assert_eq(memory_group_kills(&group), 1);
    others_are_well();
    must_ok(rdt_free(bystander, &theirs, false, &err));
    rdt_close(bystander);
    node_end(&node, NULL);
    memory_group_remove(&group);
}
