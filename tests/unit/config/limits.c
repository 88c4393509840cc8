/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/config/limits: the meaning of a limit of 0. */
#include <criterion/criterion.h>
#include <sys/resource.h>

#include "daemon/config/limits.h"

Test(limits, zero_is_derived_and_numbers_stand)
{
    struct options options = {.max_clients = 1000, .max_objects = 800, .storage_max_bytes = 4096};
    struct account_limits limits;

    options.client_max[USAGE_REGIONS] = 9;
    options.owner_max[USAGE_FDS] = 17;
    limits_derive(&options, 100000, &limits);
    cr_assert_eq(limits.client[USAGE_REGIONS], 9u);
    cr_assert_eq(limits.owner[USAGE_REGIONS], 0u);
    cr_assert_eq(limits.client[USAGE_OBJECTS], 700u);
    cr_assert_eq(limits.owner[USAGE_OBJECTS], 800u);
    cr_assert_eq(limits.node[USAGE_FDS], 100000u - 3280u, "connections have theirs");
    cr_assert_eq(limits.node[USAGE_OBJECTS], 800u);
    cr_assert_eq(limits.node[USAGE_STORED_BYTES], 4096u);
    cr_assert_gt(limits.owner[USAGE_ORPHANS], 0u, "a part of what the kernel watches");
    cr_assert_geq(limits.node[USAGE_ORPHANS], 3 * limits.owner[USAGE_ORPHANS], "and all users together have less than that");
    cr_assert_gt(limits.node[USAGE_MAPPINGS], 0u, "a part of what the kernel lets a process map");
    cr_assert_lt(limits.node[USAGE_MAPPED_BYTES], UINT64_C(1) << 47, "less than a process's address space");
    cr_assert_lt(limits.client[USAGE_MAPPED_BYTES], limits.owner[USAGE_MAPPED_BYTES]);
    cr_assert_eq(limits.node[USAGE_FOLLOWED_BYTES], options_effective_memory_limit(&options));
    cr_assert_eq(limits.owner[USAGE_FOLLOWED_BYTES], limits.node[USAGE_FOLLOWED_BYTES]);
    cr_assert_eq(limits.owner[USAGE_FDS], 17u);
    cr_assert_leq(limits.client[USAGE_FDS], limits.node[USAGE_FDS] * 7 / 8 + 1);
    cr_assert_eq(limits.node[USAGE_SESSIONS], 1000u + LIMITS_MORE_CONNECTIONS);
    cr_assert_eq(limits.node[USAGE_HEAP], options_heap_limit());
    cr_assert_eq(limits.owner[USAGE_HEAP], options_heap_limit());
    cr_assert_lt(limits.node[USAGE_HEAP] + options_effective_memory_limit(&options), 4 * options_heap_limit());
    options.owner_max[USAGE_HEAP] = options.client_max[USAGE_HEAP] = UINT64_MAX;
    options.max_clients = 1000000;
    limits_derive(&options, 1024, &limits);
    cr_assert_eq(limits.client[USAGE_HEAP], options_heap_limit(), "no more than there is");
    cr_assert_leq(limits.uncounted_bytes * 4 * options.max_clients, options_heap_limit(), "all clients together");
    cr_assert_eq(limits.node[USAGE_FDS], 512u, "few files: half of them");
}

Test(limits, little_address_space_leaves_what_the_daemon_needs)
{
    struct options options = {.max_clients = 1000, .max_objects = 800};
    struct account_limits limits;

    for (uint64_t mib = 1024; mib <= 4096; mib *= 2) {
        struct rlimit space = {mib << 20, RLIM_INFINITY};
        cr_assert_eq(setrlimit(RLIMIT_AS, &space), 0);
        limits_derive(&options, 1024, &limits);
        space.rlim_cur = RLIM_INFINITY; /* sanitizers need more */
        cr_assert_eq(setrlimit(RLIMIT_AS, &space), 0);
        cr_assert_leq(limits.node[USAGE_MAPPED_BYTES], (mib - 512) << 20, "of %u MiB", (unsigned)mib);
        cr_assert_geq(limits.node[USAGE_MAPPED_BYTES], mib << 19);
    }
}
