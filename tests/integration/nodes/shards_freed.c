/* SPDX-License-Identifier: Apache-2.0 */
/* Versions whose parts or names end at moments that do not suit. */
#include <unistd.h>

#include "daemon/recovery/journal.h"
#include "tests/integration/nodes/shards_fixture.h"
#include "tests/support/keeper.h"

TestSuite(shards_freed, .timeout = 120);

#define KEEPER_JOURNAL 1u
#define RECORD_NAME 3u
#define COMMITTED 0x74696d63u
#define END_AT 16u       /* where the header of the journal says how long it is */
#define FIRST_SLOT 4160u /* behind the headers of the file and of an extent */
#define LEAST_SLOT 128u

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
    struct test_keeper keeper;
    struct rdt_ref name;
    rdt *conns[2];

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    options.flags_of[0] = flags;
    cluster_start(&c, 2, &options);
    name = name_on(0, "policy", 0);
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
