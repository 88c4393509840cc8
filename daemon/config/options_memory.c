/* The default of memory_limit: half of the smaller of RAM and the limits of the daemon's control groups. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/options_keys.h"

/* Returns UINT64_MAX if there is no such file, or it contains "max". Version 1 states "no limit" by a
 * number far above any RAM. */
static uint64_t read_limit(const char *dir, const char *name)
{
    char path[PATH_MAX], text[32] = "";
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    char *line = fgets(text, sizeof text, file);
    fclose(file);
    if (!line || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* The least limit of the group and of all groups above it. In a container the path may name groups that
 * are not mounted there; the walk then ends at the root of the mount, which is the container's group. */
static uint64_t least_upward(const char *mount, char *group, const char *name)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        char dir[PATH_MAX];
        uint64_t limit = UINT64_MAX;
        if (snprintf(dir, sizeof dir, "%s%s", mount, group) < (int)sizeof dir)
            limit = read_limit(dir, name);
        if (limit < least)
            least = limit;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* Lines are "0::/path" for version 2 and "4:cpu,memory:/path" for version 1. */
static uint64_t line_limit(char *line, const char *mount)
{
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return UINT64_MAX;
    *group++ = 0;
    controllers++;
    if (controllers[0] == 0)
        return least_upward(mount, group, "memory.max");
    char *rest;
    for (char *word = strtok_r(controllers, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (strcmp(word, "memory") == 0) {
            char v1[PATH_MAX];
            snprintf(v1, sizeof v1, "%s/memory", mount);
            return least_upward(v1, group, "memory.limit_in_bytes");
        }
    }
    return UINT64_MAX;
}

uint64_t option_cgroup_limit_bytes(const char *groups, const char *mount)
{
    uint64_t least = UINT64_MAX;
    FILE *file = fopen(groups, "re");
    if (!file)
        return least;
    char line[PATH_MAX];
    while (fgets(line, sizeof line, file)) {
        uint64_t limit = line_limit(line, mount);
        if (limit < least)
            least = limit;
    }
    fclose(file);
    return least;
}

uint64_t options_effective_memory_limit(const struct options *options)
{
    if (options->memory_limit_bytes != 0)
        return options->memory_limit_bytes;
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t ram = pages > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_MAX;
    uint64_t group = option_cgroup_limit_bytes("/proc/self/cgroup", "/sys/fs/cgroup");
    return (group < ram ? group : ram) / 2;
}
