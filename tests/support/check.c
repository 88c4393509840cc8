/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/check.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/actor.h"

#define MARGIN_BYTES ((size_t)4096)

void check_fail(const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (actor_is_one()) {
        (void)fprintf(stderr, "%s:%d: in an actor: %s\n", file, line, text);
        (void)fflush(NULL);
        _exit(CHECK_FAILED);
    }
    (void)fprintf(stderr, "%s:%d: %s\n", file, line, text);
    cr_assert_fail("%s:%d: %s", file, line, text);
    abort();
}

bool check_is_late(const struct rdt_error *err)
{
    if (err->status != RDT_TIMED_OUT)
        return false;
    return strncmp(err->msg, "rdtd did not answer", strlen("rdtd did not answer")) == 0 ||
           strstr(err->msg, "rdtd did not say how it ended within") || strstr(err->msg, ", and rdtd has not said why");
}

void check_says(const char *file, int line, const struct rdt_error *err, enum rdt_status expected, const char *text)
{
    if (err->status != expected)
        check_fail(file, line, "the error carries %s, the call answered %s", rdt_status_name(err->status),
                   rdt_status_name(expected));
    if (!strstr(err->msg, text))
        check_fail(file, line, "the sentence \"%s\" does not say \"%s\"", err->msg, text);
}

void need_root(void)
{
    if (geteuid() != 0)
        cr_skip_test("needs root, to become another user or to trace a process");
}

int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SEC + now.tv_nsec;
}

uint64_t cpu_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)(now.tv_sec * SEC + now.tv_nsec);
}

int64_t patience(int64_t ns)
{
    const char *variant = getenv("RDT_VARIANT");

    if (!variant)
        return ns;
    return ns * (strcmp(variant, "tsan") == 0 ? 10 : strcmp(variant, "asan") == 0 ? 4 : 1);
}

void wait_pause(unsigned *round)
{
    (void)poll(NULL, 0, *round < 10 ? 1 : 10);
    ++*round;
}

static uint8_t pattern_byte(size_t i, uint32_t seed)
{
    uint64_t x = (uint64_t)(i >> 3) * 0x9e3779b97f4a7c15u + (uint64_t)seed * 0xbf58476d1ce4e5b9u;

    x ^= x >> 29;
    return (uint8_t)(x >> (8 * (i & 7)));
}

void fill_pattern(void *addr, size_t bytes, uint32_t seed)
{
    uint8_t *at = addr;

    for (size_t i = 0; i < bytes; i++)
        at[i] = pattern_byte(i, seed);
}

bool holds_pattern(const void *addr, size_t bytes, uint32_t seed)
{
    const uint8_t *at = addr;

    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern_byte(i, seed))
            return false;
    return true;
}

bool is_filled_with(const void *addr, size_t bytes, uint8_t byte)
{
    const uint8_t *at = addr;

    for (size_t i = 0; i < bytes; i++)
        if (at[i] != byte)
            return false;
    return true;
}

void canary_create(struct canary *canary, size_t bytes)
{
    canary->base = malloc(bytes + 2 * MARGIN_BYTES);
    must(canary->base);
    memset(canary->base, CANARY_BYTE, bytes + 2 * MARGIN_BYTES);
    canary->addr = canary->base + MARGIN_BYTES;
    canary->bytes = bytes;
}

bool canary_alive(const struct canary *canary)
{
    return is_filled_with(canary->base, MARGIN_BYTES, CANARY_BYTE) &&
           is_filled_with(canary->addr + canary->bytes, MARGIN_BYTES, CANARY_BYTE);
}

bool canary_untouched(const struct canary *canary)
{
    return is_filled_with(canary->base, canary->bytes + 2 * MARGIN_BYTES, CANARY_BYTE);
}

void canary_destroy(struct canary *canary)
{
    free(canary->base);
    *canary = (struct canary){0};
}

int harness_fds;

/* The driver of a GPU opens descriptors when it is initialised and for each context; the fake's are memfds. */
static bool is_of_driver(int dir, const char *name)
{
    char to[40] = "";

    return readlinkat(dir, name, to, sizeof to - 1) > 0 &&
           (strncmp(to, "/dev/nvidia", 11) == 0 || strncmp(to, "/memfd:fake-nvidia", 18) == 0);
}

unsigned fds_of(int pid)
{
    char path[64];
    unsigned n = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", pid ? pid : (int)getpid());
    DIR *dir = opendir(path);
    must_say(dir, "cannot read %s", path);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.' && !is_of_driver(dirfd(dir), entry->d_name);
    (void)closedir(dir);
    return pid ? n : n - 1 - (unsigned)harness_fds; /* the folder's own */
}

size_t rss_of(int pid)
{
    char path[64];
    unsigned long total, resident;

    (void)snprintf(path, sizeof path, "/proc/%d/statm", pid ? pid : (int)getpid());
    FILE *file = fopen(path, "re");
    must_say(file, "cannot read %s", path);
    must(fscanf(file, "%lu %lu", &total, &resident) == 2);
    (void)fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

unsigned long inode_at(const void *addr)
{
    unsigned long lo, hi, inode = 0, found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];

    must(maps);
    while (found == 0 && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &lo, &hi, &inode) == 3 && lo <= (uintptr_t)addr && (uintptr_t)addr < hi)
            found = inode;
    (void)fclose(maps);
    return found;
}

bool is_mapped(const void *addr)
{
    unsigned long lo, hi;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];

    must(maps);
    while (!found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%lx-%lx", &lo, &hi) == 2 && lo <= (uintptr_t)addr && (uintptr_t)addr < hi;
    (void)fclose(maps);
    return found;
}
