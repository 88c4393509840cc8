/* SPDX-License-Identifier: Apache-2.0 */
/* Versions whose parts or names end at moments that do not suit. */
#include <unistd.h>

#include "daemon/persist/journal.h"
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/keeper.h"

TestSuite(shards_freed, .timeout = 120);

#define KEEPER_JOURNAL 1u
#define RECORD_NAME 11u
#define COMMITTED 0x74696d63u
#define END_AT 16u       /* where the header of the journal says how long it is */
#define FIRST_SLOT 4160u /* behind the headers of the file and of an extent */
#define LEAST_SLOT 128u

#define HALF_BYTES ((size_t)1 << 16) /* large enough for readers to share it */

/* A reader still has the part, so nobody is told of its end (shards_ends.c) before the last part comes. Then all ranks are
 * told, and nothing with a hole becomes visible. */
static void freed_part_fails_the_version(unsigned node)
{
    struct rdt_stat stat = {0};

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true});
    rdt *near = on(0);
    rdt *far = on(node);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref a = put_half(far, 0, HALF_BYTES);
    struct rdt_ref b = put_half(near, 1, HALF_BYTES);
    rdt_object *object = fetch_one(far, &a, RDT_FETCH_SHARE);
    rdt_request *request = start_part(far, &name, 1, 0, 2, &a);
    wait_until(LONG, rdt_stat(far, &a, &stat, NULL) == RDT_OK && stat.holds == 3); /* with the producer's and the version's */
    must_ok(rdt_free(far, &a, true, &err));
    must_ok(rdt_stat(far, &b, &stat, &err)); /* by the same link, so the name's node has heard of the free */
    must_refuse(RDT_FREED, "the part of rank 0 was freed", rdt_publish_part(near, &name, 1, 1, 2, &b, NULL, LONG, NULL, &err));
    must_refuse(RDT_FREED, "the part of rank 0 was freed", rdt_wait(far, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    rdt_release(object);
    must_be(RDT_NOT_PUT, rdt_wait_put(near, &name, 0, &err));
    must_ok(rdt_free(near, &b, false, &err));
    must(publish((rdt *const[]){near, far}, 2, &name, 1, 2, true) == 1); /* and all is right afterwards */
    must_ok(rdt_unpublish(near, &name, &err));
    end_shards(near, far);
}

Test(shards_freed, part_of_the_names_node_fails_the_version)
{
    freed_part_fails_the_version(0);
}

Test(shards_freed, part_of_another_node_fails_the_version)
{
    freed_part_fails_the_version(1);
}

/* Removes the records of all names, as if the daemon had been killed before it wrote them, or after their versions were
 * overtaken. Returns how many there were. */
static unsigned remove_names(const struct test_keeper *keeper)
{
    int journal = keeper_look(keeper, KEEPER_JOURNAL, NULL);
    struct journal_slot slot;
    uint64_t end = 0;
    unsigned n = 0;

    must(journal >= 0 && pread(journal, &end, sizeof end, END_AT) == sizeof end);
    for (uint64_t at = FIRST_SLOT; at + sizeof slot <= end; at += LEAST_SLOT) {
        must(pread(journal, &slot, sizeof slot, (off_t)at) == sizeof slot);
        if (slot.commit != COMMITTED || slot.kind != RECORD_NAME)
            continue;
        slot.commit = 0;
        must(pwrite(journal, &slot.commit, sizeof slot.commit, (off_t)at) == sizeof slot.commit);
        n++;
    }
    (void)close(journal);
    return n;
}

/* The next daemon holds the version's parts again, and finds that nobody holds the version. */
Test(shards_freed, version_that_lost_its_name_with_the_daemon_ends_with_its_parts)
{
    static char flag[200];
    static const char *flags[] = {flag, "--backoff-max=500ms", NULL};
    struct cluster_options options = {.stream = true, .no_ucx = true, .same_socket = true};
    struct test_keeper keeper = {0};
    rdt *conns[2];

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    options.flags_of[0] = flags;
    cluster_start(&c, 2, &options);
    struct rdt_ref name = name_on(0, "policy", 0);
    for (unsigned i = 0; i < 2; i++)
        conns[i] = on(i);
    must(publish(conns, 2, &name, 1, 4, true) == 1);
    must(objects_on(0) == 3 && objects_on(1) == 2);
    node_kill(&c.node[0], SIGKILL);
    must(remove_names(&keeper) == 1);
    cluster_restart(&c, 0);
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    must(publish(conns, 2, &name, 1, 4, true) == 2);
    must_ok(rdt_unpublish(conns[0], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    for (unsigned i = 0; i < 2; i++) {
        rdt_close(conns[i]);
        node_stop(&c.node[i]);
    }
    keeper_stop(&keeper, SIGTERM);
}

/* A part whose bytes are still being written is published when they are there: at the name's node, and at another. */
Test(shards_freed, part_waits_until_its_bytes_are_there)
{
    int64_t shape[2] = {ROWS / 2, COLUMNS}, global[2] = {ROWS, COLUMNS};
    rdt_request *requests[2];
    struct rdt_ref name, refs[2];
    rdt *conns[2];
    float *w[2];

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true});
    name = name_on(0, "policy", 0);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_PENDING};
    for (uint32_t i = 0; i < 2; i++) {
        int64_t start[2] = {i * (ROWS / 2), 0};
        struct rdt_shard shard = {"w", global, start};
        conns[i] = on(i);
        w[i] = alloc_memory(conns[i], ROWS / 2 * COLUMNS * sizeof *w[i]);
        options.shards = &shard;
        must_ok(rdt_put(conns[i], &(struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = w[i]}, 1, &options,
                        &refs[i], &err));
        must_refuse(RDT_TIMED_OUT, "still being put",
                    rdt_publish_part(conns[i], &name, 1, i, 2, &refs[i], NULL, 200 * MSEC, NULL, &err));
        requests[i] = start_part(conns[i], &name, 1, i, 2, &refs[i]);
        struct rdt_stat stat = stat_of(conns[i], &refs[i]);
        must(stat.waiters == 1);
    }
    for (uint32_t i = 0; i < 2; i++) {
        must(rdt_request_status(requests[i], NULL) == RDT_AGAIN);
        must_ok(rdt_ready(conns[i], &refs[i], &err));
    }
    for (uint32_t i = 0; i < 2; i++) {
        must_ok(rdt_wait(conns[i], &requests[i], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
        must_ok(rdt_free(conns[i], &refs[i], false, &err));
        must_ok(rdt_dealloc(conns[i], w[i], &err));
    }
    must_ok(rdt_unpublish(conns[0], &name, &err));
    for (uint32_t i = 0; i < 2; i++)
        rdt_close(conns[i]);
    cluster_end(&c, told);
}
