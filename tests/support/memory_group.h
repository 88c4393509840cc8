/* SPDX-License-Identifier: Apache-2.0 */
/* A control group with a memory limit for a daemon or an actor: of version 2 if the test's own group or its parent
 * delegates the memory controller, else of version 1. It must be empty when it is removed. */
#ifndef TESTS_SUPPORT_MEMORY_GROUP_H
#define TESTS_SUPPORT_MEMORY_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct memory_group {
    char dir[512]; /* for node_options.memory_group */
    bool v2;
};

/* Skips the test where no such group can be created, and prints why. */
void memory_group_create(struct memory_group *group, uint64_t limit_bytes);
void memory_group_limit(const struct memory_group *group, uint64_t limit_bytes);

/* The calling process enters the group; for forked children. */
void memory_group_enter(const char *dir);

/* How many of its processes the kernel has killed because its memory was used up. */
uint64_t memory_group_kills(const struct memory_group *group);

void memory_group_remove(const struct memory_group *group);

#endif
