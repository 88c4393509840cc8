/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory_group.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/check.h"

#define MOUNT "/sys/fs/cgroup"

static bool write_value(const char *dir, const char *name, const char *value)
{
    char path[640];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "we");
    if (!file)
        return false;
    bool written = fputs(value, file) >= 0;
    return fclose(file) == 0 && written;
}

/* The test's own group: of version 1 if the memory controller belongs to it, else of version 2. */
static bool own_group(char dir_p[448], bool *v2_p)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[384];
    bool found = false;

    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        group[strcspn(group, "\n")] = '\0';
        *group++ = '\0';
        *v2_p = strcmp(controllers + 1, "") == 0;
        if (!*v2_p && strcmp(controllers + 1, "memory") != 0)
            continue;
        (void)snprintf(dir_p, 448, "%s%s%s", MOUNT, *v2_p ? "" : "/memory", strcmp(group, "/") == 0 ? "" : group);
        found = true;
        if (!*v2_p)
            break;
    }
    if (file)
        (void)fclose(file);
    return found;
}

static bool create_below(struct memory_group *group, const char *above)
{
    char limit[640];

    (void)snprintf(group->dir, sizeof group->dir, "%.440s/rdt-test.%d", above, (int)getpid());
    (void)snprintf(limit, sizeof limit, "%s/%s", group->dir, group->v2 ? "memory.max" : "memory.limit_in_bytes");
    if (mkdir(group->dir, 0755) != 0)
        return false;
    if (access(limit, W_OK) == 0)
        return true;
    (void)rmdir(group->dir);
    return false;
}

void memory_group_create(struct memory_group *group, uint64_t limit_bytes)
{
    char own[448];
    bool created;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("the memory of a sanitizer would fill the group");
#endif
    created = own_group(own, &group->v2) && create_below(group, own);
    if (!created && group->v2 && strlen(own) > strlen(MOUNT)) { /* a group with processes hands no controller on */
        *strrchr(own, '/') = '\0';
        created = create_below(group, own);
    }
    if (!created)
        cr_skip_test("no control group with the memory controller can be created below " MOUNT);
    memory_group_limit(group, limit_bytes);
    if (group->v2)
        (void)write_value(group->dir, "memory.swap.max", "0");
}

void memory_group_limit(const struct memory_group *group, uint64_t limit_bytes)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)limit_bytes);
    must(write_value(group->dir, group->v2 ? "memory.max" : "memory.limit_in_bytes", text));
}

void memory_group_enter(const char *dir)
{
    must(write_value(dir, "cgroup.procs", "0"));
}

uint64_t memory_group_kills(const struct memory_group *group)
{
    unsigned long long kills = 0;
    char path[640], line[128];

    (void)snprintf(path, sizeof path, "%s/%s", group->dir, group->v2 ? "memory.events" : "memory.oom_control");
    FILE *file = fopen(path, "re");
    must_say(file, "cannot read %s", path);
    while (fgets(line, sizeof line, file))
        (void)sscanf(line, "oom_kill %llu", &kills);
    (void)fclose(file);
    return kills;
}

void memory_group_remove(const struct memory_group *group)
{
    wait_until(10 * SEC, rmdir(group->dir) == 0);
}
