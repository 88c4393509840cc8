/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/memory_room.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#define MEMORY_RESERVE 16 /* of a group's limit, this part is not for memory of clients */
#define HEAP_RESERVE 32   /* and this part not for heap either */
#define KNOWN_FOR_NS UINT64_C(100000000)
#define NO_LIMIT (UINT64_C(1) << 60) /* version 1 states "no limit" by a number that is larger than any memory */

/* ---- files of the kernel ---- */

/* Returns false if the file cannot be read. */
static bool read_text(const char *dir, const char *name, char *text_p, size_t size)
{
    char path[PATH_MAX];
    ssize_t n = -1;
    int fd = -1;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text_p, size - 1);
        (void)close(fd);
    }
    text_p[n > 0 ? n : 0] = '\0';
    return n >= 0;
}

/* Returns UINT64_MAX if there is no such file, or it contains "max". */
static uint64_t read_number(const char *dir, const char *name)
{
    char text[32];

    if (!read_text(dir, name, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* The number after a word at the beginning of a line; 0: there is no such line. */
static uint64_t number_of(const char *text, const char *word)
{
    size_t length = strlen(word);

    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, word, length) == 0 && (line[length] == ' ' || line[length] == ':'))
            return strtoull(line + length + 1, NULL, 10);
    return 0;
}

static uint64_t available_bytes(void)
{
    char text[2048];
    uint64_t kib = read_text("/proc", "meminfo", text, sizeof text) ? number_of(text, "MemAvailable") : 0;

    return kib ? kib * 1024 : UINT64_MAX;
}

/* ---- control groups ---- */

static uint64_t group_limit(const char *dir, bool v2)
{
    uint64_t limit = read_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t high = v2 ? read_number(dir, "memory.high") : UINT64_MAX; /* above it the kernel makes the process wait */

    limit = high < limit ? high : limit;
    return limit < NO_LIMIT ? limit : UINT64_MAX;
}

/* Bytes that the group counts as used, and that the kernel takes back when it needs room. */
static uint64_t group_cache(const char *dir, bool v2)
{
    char text[8192];

    if (!read_text(dir, "memory.stat", text, sizeof text))
        return 0;
    return number_of(text, v2 ? "inactive_file" : "total_inactive_file") +
           number_of(text, v2 ? "active_file" : "total_active_file");
}

static uint64_t group_room(const char *dir, bool v2, uint64_t wanted, unsigned reserve)
{
    uint64_t limit = group_limit(dir, v2), used, cache = 0;

    if (limit == UINT64_MAX)
        return limit;
    used = read_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (used == UINT64_MAX) /* the kernel does not report it */
        return used;
    limit -= limit / reserve;
    if (used > limit || limit - used < wanted)
        cache = group_cache(dir, v2);
    used -= cache < used ? cache : used;
    return used < limit ? limit - used : 0;
}

struct looking {
    uint64_t wanted, least;
    unsigned reserve;
    bool room;    /* reads the room of the groups; false: their limits */
    char *name_p; /* NULL: the caller does not need it */
};

/* Reads the group and all groups above it. In a container the path may name groups that are not mounted there; the walk then
 * ends at the root of the mount, which is the container's group. */
static void look_upward(struct looking *looking, const char *mount, char *group, bool v2)
{
    for (;;) {
        char dir[PATH_MAX];
        uint64_t bytes = UINT64_MAX;
        char *slash = strrchr(group, '/');

        if (snprintf(dir, sizeof dir, "%s%s%s", mount, v2 ? "" : "/memory", group) < (int)sizeof dir)
            bytes = looking->room ? group_room(dir, v2, looking->wanted, looking->reserve) : group_limit(dir, v2);
        if (bytes < looking->least) {
            looking->least = bytes;
            if (looking->name_p) /* of a long name the end, which says most */
                (void)snprintf(looking->name_p, 128, "%.127s",
                               !*group               ? "/"
                               : strlen(group) < 128 ? group
                                                     : group + strlen(group) - 127);
        }
        if (!slash)
            return;
        *slash = '\0';
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

/* Lines are "0::/path" for version 2 and "4:cpu,memory:/path" for version 1. */
static uint64_t look(struct looking *looking, const char *groups, const char *mount)
{
    char line[PATH_MAX];
    FILE *file = fopen(groups, "re");

    looking->least = UINT64_MAX;
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        line[strcspn(line, "\n")] = '\0';
        *group++ = '\0';
        if (!controllers[1] || has_word(controllers + 1, "memory"))
            look_upward(looking, mount, group, !controllers[1]);
    }
    if (file)
        (void)fclose(file);
    return looking->least;
}

uint64_t memory_group_limit_bytes(const char *groups, const char *mount)
{
    return look(&(struct looking){0}, groups, mount);
}

uint64_t memory_group_room_bytes(const char *groups, const char *mount, uint64_t wanted, unsigned reserve, char name_p[128])
{
    return look(&(struct looking){.wanted = wanted, .reserve = reserve, .room = true, .name_p = name_p}, groups, mount);
}

/* ---- taking ---- */

void memory_room_init(struct memory_room *room)
{
    *room = (struct memory_room){0};
    (void)pthread_mutex_init(&room->mutex, NULL);
    (void)pthread_cond_init(&room->changed, NULL);
}

void memory_room_fini(struct memory_room *room)
{
    (void)pthread_cond_destroy(&room->changed);
    (void)pthread_mutex_destroy(&room->mutex);
}

/* How many bytes fit now. If fewer than `wanted`, err says why. */
static uint64_t look_for_room(uint64_t wanted, unsigned reserve, struct rdt_error *err)
{
    char name[128] = "";
    uint64_t available = available_bytes();
    uint64_t in_groups = memory_group_room_bytes("/proc/self/cgroup", "/sys/fs/cgroup", wanted, reserve, name);

    if (in_groups < wanted && in_groups <= available)
        rdt_error_set(err, RDT_NO_MEMORY,
                      "%" PRIu64 " bytes do not fit: the control group %s of the daemon has room for %" PRIu64
                      ": free objects, or raise its limit (MemoryMax of a systemd unit)",
                      wanted, name, in_groups);
    else if (available < wanted)
        rdt_error_set(err, RDT_NO_MEMORY,
                      "%" PRIu64 " bytes do not fit: the system has %" PRIu64
                      " available: free objects, or end processes that use memory",
                      wanted, available);
    return in_groups < available ? in_groups : available;
}

/* Some of the bytes that other threads are taking have been touched already, and count twice. No request is refused for that:
 * it waits until those threads have finished. */
static enum rdt_status await_room(struct memory_room *room, uint64_t bytes, bool may_wait, struct rdt_error *err)
{
    for (;;) {
        uint64_t fits = look_for_room(bytes, MEMORY_RESERVE, err), taking = room->taking_bytes;

        if (fits < bytes)
            return RDT_NO_MEMORY;
        if (fits - bytes >= taking || !may_wait) {
            room->known_bytes = fits - bytes > taking ? (fits - bytes - taking) / 16 : 0;
            room->known_ns = uv_hrtime();
            return RDT_OK;
        }
        (void)pthread_cond_wait(&room->changed, &room->mutex);
    }
}

enum rdt_status memory_room_take(struct memory_room *room, uint64_t bytes, bool may_wait, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&room->mutex);
    if (bytes <= room->known_bytes && uv_hrtime() - room->known_ns < KNOWN_FOR_NS)
        room->known_bytes -= bytes;
    else
        status = await_room(room, bytes, may_wait, err);
    if (status == RDT_OK)
        room->taking_bytes += bytes;
    (void)pthread_mutex_unlock(&room->mutex);
    return status;
}

void memory_room_taken(struct memory_room *room, uint64_t bytes)
{
    (void)pthread_mutex_lock(&room->mutex);
    room->taking_bytes -= bytes;
    (void)pthread_cond_broadcast(&room->changed);
    (void)pthread_mutex_unlock(&room->mutex);
}

enum rdt_status memory_room_fits_heap(void *arg, uint64_t bytes, struct rdt_error *err)
{
    struct memory_room *room = arg;
    uint64_t now = uv_hrtime(), fits;

    if (bytes > room->heap_bytes || now - room->heap_ns >= KNOWN_FOR_NS) {
        fits = look_for_room(bytes, HEAP_RESERVE, err);
        if (fits < bytes)
            return RDT_NO_MEMORY;
        room->heap_bytes = bytes + (fits - bytes) / 16;
        room->heap_ns = now;
    }
    room->heap_bytes -= bytes;
    return RDT_OK;
}
