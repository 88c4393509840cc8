/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a process still keeps by a descriptor or a mapping when its region has ended. Either its pages are freed at
 * once, or its bytes stay charged until the last process has let go of it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "client/rdt_info.h"
#include "tests/integration/limits/limits.h"

TestSuite(region_orphans, .timeout = 120);

static uint64_t orphaned_bytes(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.orphaned_bytes;
}

/* The client's fd of new memory of its own. */
static int keep_fd(struct raw *raw, uint64_t bytes, uint64_t *region_p)
{
    uint64_t generation;
    int fd;

    *region_p = raw_alloc(raw, bytes, &fd, &generation);
    must(fd >= 0);
    return fd;
}

static rlim_t files_limit(void)
{
    struct rlimit limit;

    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit.rlim_max;
}

static uint64_t pages_bytes(int fd)
{
    struct stat st;

    must(fstat(fd, &st) == 0);
    return (uint64_t)st.st_blocks * 512;
}

static void release(struct raw *raw, uint64_t region)
{
    Rdt__Pb__ReleaseRegion message = RDT__PB__RELEASE_REGION__INIT;

    message.region = region;
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_RELEASE_REGION, &message.base, NULL, 0), &rdt__pb__region_released__descriptor),
        NULL);
}

static void keeps_no_page(uint64_t bytes)
{
    struct raw raw;
    uint64_t region;
    int fds[4]; /* together more than there may be */

    begin((const char *[]){"--memory-limit=16MiB", NULL});
    greeted(&raw);
    for (unsigned i = 0; i < 4; i++) {
        fds[i] = keep_fd(&raw, bytes, &region);
        cr_assert_eq(pages_bytes(fds[i]), bytes);
        release(&raw, region);
        wait_until(LONG, pages_bytes(fds[i]) == 0);
    }
    raw_close(&raw);
    cr_assert_eq(orphaned_bytes(), 0);
    for (unsigned i = 0; i < 4; i++)
        (void)close(fds[i]);
    end(NULL);
}

Test(region_orphans, released_memory_keeps_no_page_though_its_fd_is_kept)
{
    keeps_no_page(6 * MIB);
}

Test(region_orphans, small_memory_keeps_no_page_either)
{
    keeps_no_page(8192);
}

/* The kernel removes no page of sealed memory, and who can write memory can seal it. */
static void stays_charged(int seal)
{
    void *memory = NULL;
    struct raw raw;
    uint64_t region;
    int fd;

    begin((const char *[]){"--memory-limit=16MiB", "--owner-max-bytes=12MiB", NULL});
    greeted(&raw);
    fd = keep_fd(&raw, 9 * MIB, &region);
    must(fcntl(fd, F_ADD_SEALS, seal) == 0);
    release(&raw, region);
    raw_close(&raw);
    wait_until(LONG, orphaned_bytes() == 9 * MIB);
    cr_assert_eq(pages_bytes(fd), 9 * MIB);
    cr_assert_eq(used(0, "bytes"), 9 * MIB);
    must_refuse(RDT_LIMIT, "owner_max_bytes", rdt_alloc(conn, 4 * MIB, &memory, &err));
    must(close(fd) == 0);
    wait_until(LONG, orphaned_bytes() == 0);
    must_ok(rdt_alloc(conn, 12 * MIB, &memory, &err));
    end(NULL);
}

Test(region_orphans, memory_that_its_client_has_sealed_against_new_writers_stays_charged)
{
    stays_charged(F_SEAL_FUTURE_WRITE);
}

Test(region_orphans, no_client_seals_memory_against_the_daemon)
{
    struct raw raw;
    uint64_t region;
    int fd;

    begin(NULL);
    greeted(&raw);
    fd = keep_fd(&raw, MIB, &region);
    cr_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EBUSY, "the daemon has it mapped from its beginning");
    must(close(fd) == 0);
    release(&raw, region);
    raw_close(&raw);
    end(NULL);
}

/* Such memory cannot be sealed before it is unmapped, and to unmap it would be to wait for its client. */
Test(region_orphans, memory_that_is_sealed_against_seals_stays_mapped_and_charged)
{
    struct raw raw;
    uint64_t region;
    int fd;

    begin(NULL);
    greeted(&raw);
    fd = keep_fd(&raw, 9 * MIB, &region);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0);
    release(&raw, region);
    wait_until(LONG, pages_bytes(fd) == 0);
    wait_until(LONG, used(0, "mappings") == 1 && used(0, "mapped_bytes") == 9 * MIB);
    raw_close(&raw);
    must(close(fd) == 0);
    end((const char *[]){"stays mapped and charged", NULL});
}

/* Otherwise the daemon would keep what the client has written there since, for nobody. */
static void ends_with_its_last_process(bool released)
{
    struct raw raw;
    uint64_t region;
    void *at;
    int fd;

    begin(NULL);
    greeted(&raw);
    fd = keep_fd(&raw, 9 * MIB, &region);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0);
    at = mmap(NULL, 9 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(at != MAP_FAILED);
    must(close(fd) == 0);
    if (released)
        release(&raw, region);
    raw_close(&raw);
    wait_until(LONG, used(0, "mappings") == 1 && used(0, "mapped_bytes") == 9 * MIB && used(0, "fds") > 0);
    wait_until(LONG, released || orphaned_bytes() == 9 * MIB);
    memset(at, 1, 9 * MIB);
    must(munmap(at, 9 * MIB) == 0);
    wait_until(LONG, used(0, "mappings") == 0 && used(0, "mapped_bytes") == 0);
    wait_until(LONG, orphaned_bytes() == 0 && used(0, "bytes") == 0);
    end((const char *[]){"stays mapped and charged", NULL});
}

Test(region_orphans, released_memory_that_is_sealed_against_seals_ends_with_its_last_process)
{
    ends_with_its_last_process(true);
}

Test(region_orphans, abandoned_memory_that_is_sealed_against_seals_ends_with_its_last_process)
{
    ends_with_its_last_process(false);
}

Test(region_orphans, memory_that_is_being_freed_has_a_row_of_its_own)
{
    struct rdt_daemon_status status = {.struct_size = sizeof status};
    struct raw raw;
    uint64_t region;
    int fd;

    begin(NULL);
    greeted(&raw);
    fd = keep_fd(&raw, 128 * MIB, &region);
    release(&raw, region);
    do { /* it has no region, so that all of it is being freed, or is orphaned */
        must_ok(rdt_daemon_status(conn, &status, &err));
        cr_assert_eq(status.memory_bytes, status.freeing_bytes + status.orphaned_bytes);
    } while (status.memory_bytes > 0);
    raw_close(&raw);
    (void)close(fd);
    end(NULL);
}

/* A second mapping that librdt knows nothing of. */
static void *map_again(const void *addr, size_t bytes)
{
    void *again = mremap((void *)(uintptr_t)addr, 0, bytes, MREMAP_MAYMOVE);

    must(again != MAP_FAILED);
    return again;
}

Test(region_orphans, snapshot_that_is_kept_mapped_counts_until_it_is_unmapped)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *bytes = malloc(6 * MIB);
    struct rdt_ref ref;
    rdt_object *object;
    void *kept, *memory = NULL;

    begin((const char *[]){"--memory-limit=16MiB", "--owner-max-bytes=12MiB", NULL});
    fill_pattern(bytes, 6 * MIB, 3);
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, 6 * MIB, bytes), 1, &options, &ref, &err));
    object = fetch_one(other, &ref, RDT_FETCH_SHARE);
    must_go_by("local/share", object);
    kept = map_again(tensor_of(object, 0).data, 6 * MIB);
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    wait_until(LONG, used(0, "bytes") == 6 * MIB); /* it is too late to be on its way back */
    cr_assert_eq(orphaned_bytes(), 6 * MIB);
    cr_assert(holds_pattern(kept, 6 * MIB, 3));
    must_refuse(RDT_LIMIT, "owner_max_bytes", rdt_alloc(conn, 7 * MIB, &memory, &err));
    must_refuse(RDT_LIMIT, "6291456 bytes of memory", rdt_alloc(other, 7 * MIB, &memory, &err));
    must_ok(rdt_alloc(conn, 6 * MIB, &memory, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    cr_assert_eq(munmap(kept, 6 * MIB), 0);
    wait_until(LONG, orphaned_bytes() == 0);
    must_ok(rdt_alloc(conn, 12 * MIB, &memory, &err));
    free(bytes);
    end(NULL);
}

Test(region_orphans, memory_of_an_ended_client_counts_until_its_fd_is_closed)
{
    const struct rdt_alloc_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    struct raw raw;
    uint64_t region;
    void *memory = NULL;
    int fd;

    begin((const char *[]){"--memory-limit=16MiB", NULL});
    greeted(&raw);
    fd = keep_fd(&raw, 9 * MIB, &region);
    raw_close(&raw);
    wait_until(LONG, orphaned_bytes() == 9 * MIB);
    cr_assert_eq(pages_bytes(fd), 9 * MIB, "its process may look there");
    must_refuse(RDT_NO_MEMORY, "memory_limit", rdt_alloc(conn, 9 * MIB, &memory, &err));
    must_refuse(
        RDT_TIMED_OUT, "memory_limit",
        rdt_alloc_with(conn, 9 * MIB, &(struct rdt_alloc_options){sizeof options, .timeout_ns = 200 * MSEC}, &memory, &err));
    (void)close(fd);
    must_ok(rdt_alloc_with(conn, 9 * MIB, &options, &memory, &err)); /* those who wait get an answer */
    wait_until(LONG, orphaned_bytes() == 0);
    end(NULL);
}

/* The kernel watches a limited number of files for the daemon. One user must not take all of them. */
Test(region_orphans, user_with_too_many_gets_no_new_regions_until_they_end)
{
    enum { MOST = 3 };
    void *memory = NULL;
    int fds[MOST];
    struct raw raw;
    uint64_t region;

    begin((const char *[]){"--owner-max-orphans=3", NULL});
    greeted(&raw);
    for (unsigned i = 0; i < MOST; i++)
        fds[i] = keep_fd(&raw, 4096, &region);
    raw_close(&raw);
    wait_until(LONG, used(0, "orphans") == MOST);
    must_refuse(RDT_LIMIT, "owner_max_orphans", rdt_alloc(conn, MIB, &memory, &err));
    (void)close(fds[0]);
    wait_until(LONG, used(0, "orphans") == MOST - 1);
    must_ok(rdt_alloc(conn, MIB, &memory, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    for (unsigned i = 1; i < MOST; i++)
        (void)close(fds[i]);
    wait_until(LONG, used(0, "orphans") == 0);
    end(NULL);
}

#define LITTLE 9000u /* more ends of files than the kernel queues for a reader that does not read */

Test(region_orphans, memory_counts_when_the_kernel_has_lost_ends_of_files)
{
    static int little[LITTLE];
    struct rlimit fds = {LITTLE + 200, 0};
    uint64_t region;
    struct raw raw;
    void *memory = NULL;
    char *queued = read_file("/proc/sys/fs/inotify/max_queued_events", NULL);
    unsigned long n_queued = strtoul(queued, NULL, 10);
    int large;

    free(queued);
    fds.rlim_max = files_limit();
    if (n_queued >= 2 * LITTLE || fds.rlim_max < 2 * (rlim_t)LITTLE)
        cr_skip_test("this needs 18000 descriptors, and a kernel that keeps fewer than 18000 events");
    must(setrlimit(RLIMIT_NOFILE, &fds) == 0);
    begin((const char *[]){"--memory-limit=256MiB", NULL});
    greeted(&raw);
    large = keep_fd(&raw, 128 * MIB, &region);
    for (unsigned i = 0; i < LITTLE; i++)
        little[i] = keep_fd(&raw, 4096, &region);
    raw_close(&raw);
    wait_until(LONG, orphaned_bytes() == 128 * MIB + LITTLE * (uint64_t)4096);
    node_freeze(&node);
    for (unsigned i = 0; i < LITTLE; i++)
        must(close(little[i]) == 0);
    node_thaw(&node);
    wait_until(LONG, orphaned_bytes() <= 128 * MIB);
    cr_assert_eq(orphaned_bytes(), 128 * MIB, "the process has it still");
    must_refuse(RDT_NO_MEMORY, "memory_limit", rdt_alloc(conn, 140 * MIB, &memory, &err));
    must(close(large) == 0);
    wait_until(LONG, orphaned_bytes() == 0);
    end(NULL);
}

static unsigned watchers(void)
{
    char path[64], what[64] = "";
    unsigned n = 0;
    DIR *dir;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)node.pid);
    dir = opendir(path);
    must(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, what, sizeof what - 1);
        if (length > 0) {
            what[length] = '\0';
            n += strstr(what, "inotify") != NULL;
        }
    }
    (void)closedir(dir);
    return n;
}

/* Closing the inotify descriptor blocks the loop for ten milliseconds and more, at each snapshot that ends as the last one. */
Test(region_orphans, inotify_descriptor_stays_open_for_the_next_orphan)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *bytes = calloc(1, MIB);
    struct rdt_ref ref;

    begin(NULL);
    options.flags = RDT_PUT_SNAPSHOT;
    for (unsigned i = 0; i < 3; i++) {
        must_ok(rdt_put(conn, &VECTOR(RDT_U8, MIB, bytes), 1, &options, &ref, &err));
        must_ok(rdt_free(conn, &ref, false, &err));
        wait_until(LONG, orphaned_bytes() == 0);
        must_ok(rdt_ping(conn, LONG, &err));
        cr_assert_eq(watchers(), 1);
    }
    free(bytes);
    end(NULL);
}
