/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/persist/keeper_link: what the keeper is told arrives in the order in which it was said. */
#include <criterion/criterion.h>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/deadline.h"
#include "daemon/persist/keeper_link.h"
#include "tests/support/check.h"
#include "tests/support/keeper.h"

TestSuite(keeper_link, .timeout = 60);

/* Drops are collected for some milliseconds. A region whose record could not be written is dropped, and may be stored again by
 * the next put that uses it. */
Test(keeper_link, what_is_stored_again_stays)
{
    const uint64_t ids[2] = {100, 101};
    struct test_keeper keeper = {0};
    struct deadlines deadlines;
    struct keeper_link link;
    uv_loop_t loop;
    unsigned n;
    int fds[2] = {memfd_create("one", MFD_CLOEXEC), memfd_create("other", MFD_CLOEXEC)};

    keeper_start(&keeper);
    must(uv_loop_init(&loop) == 0);
    deadlines_init(&deadlines, &loop);
    must_ok(keeper_link_open(&link, keeper.socket, &err));
    keeper_link_start(&link, &loop, &deadlines);
    keeper_link_store(&link, ids, fds, 2);
    keeper_link_drop(&link, ids[0]);
    keeper_link_drop(&link, ids[1]);
    keeper_link_store(&link, ids, fds, 1);
    keeper_link_close(&link);
    deadlines_close(&deadlines, NULL);
    must(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
    cr_assert_geq(keeper_look(&keeper, ids[0], &n), 0, "it was dropped after it had been stored again");
    cr_assert_eq(n, 1u);
    for (unsigned i = 0; i < 2; i++)
        (void)close(fds[i]);
    keeper_stop(&keeper, SIGTERM);
}
