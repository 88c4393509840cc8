/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a client writes without end. A write(2) whose bytes come from a file system that does not answer keeps the
 * lock of the memfd, and whoever removes pages from that memfd or seals it waits for the lock. */
#include <pthread.h>

#include "tests/integration/hostile/mute_fs.h"
#include "tests/integration/hostile/protocol_fixture.h"

enum { REGIONS_MAX = 8 };

struct plan {
    struct mute_fs fs;
    unsigned n_regions;
    uint64_t bytes; /* of each */
    bool keep_mapped;
};

struct writing {
    int fd;
    const void *page; /* a page of the mute file, whose fault does not return */
};

static void *write_for_ever(void *arg)
{
    const struct writing *writing = arg;

    (void)!pwrite(writing->fd, writing->page, 4096, 0);
    return NULL;
}

/* Allocates regions, starts writing to each, and releases them when all writes are under way. */
static int write_and_release(struct actor *self, void *arg)
{
    static struct writing writing[REGIONS_MAX];
    const struct plan *plan = arg;
    uint64_t regions[REGIONS_MAX], generation;
    char path[96];
    struct raw raw;

    (void)snprintf(path, sizeof path, "%s/file", plan->fs.folder);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    must(file >= 0);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < plan->n_regions; i++) {
        off_t place = (off_t)i * (MUTE_BYTES / REGIONS_MAX);
        pthread_t thread;
        regions[i] = raw_alloc(&raw, plan->bytes, &writing[i].fd, &generation);
        writing[i].page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, place);
        must(writing[i].page != MAP_FAILED && pthread_create(&thread, NULL, write_for_ever, &writing[i]) == 0);
    }
    actor_await(self);
    for (unsigned i = 0; i < plan->n_regions; i++) {
        Rdt__Pb__ReleaseRegion release = MESSAGE(release_region, .region = regions[i], .keep_mapped = plan->keep_mapped);
        (void)raw_send(&raw, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0);
        must(raw_next(&raw));
    }
    actor_step(self);
    (void)pause();
    return 0;
}

static void begin_writing(struct plan *plan, struct actor *actor, const char *const *flags)
{
    if (!mute_mount(&plan->fs))
        cr_skip_test("FUSE cannot be mounted here: /dev/fuse or the right to mount is missing");
    begin(&(struct node_options){.flags = flags});
    actor_start(actor, write_and_release, plan);
    wait_until(20 * SEC, plan->fs.counts->reads >= plan->n_regions);
    actor_step(actor);
    actor_await(actor);
}

static void end_writing(struct plan *plan, struct actor *actor)
{
    mute_end(&plan->fs);
    actor_kill(actor, SIGKILL);
    end();
}

Test(hostile_write, end_of_small_memory_delays_nobody, .timeout = 120)
{
    struct plan plan = {.n_regions = 1, .bytes = 4096};
    struct actor actor;

    begin_writing(&plan, &actor, NULL);
    for (unsigned i = 0; i < 5; i++)
        others_are_well();
    end_writing(&plan, &actor);
}

/* More regions than there are worker threads. */
Test(hostile_write, end_of_large_memory_delays_nobody, .timeout = 120)
{
    struct plan plan = {.n_regions = 4, .bytes = MIB};
    struct actor actor;

    begin_writing(&plan, &actor, NULL);
    for (unsigned i = 0; i < 5; i++) {
        void *memory = alloc_memory(bystander, MIB);
        others_are_well();
        must_ok(rdt_dealloc(bystander, memory, &err));
    }
    end_writing(&plan, &actor);
}

Test(hostile_write, cached_memory_whose_room_others_want_delays_nobody, .timeout = 120)
{
    static const char *const little[] = {"--memory-limit=16MiB", "--cache-max=8MiB", NULL};
    struct plan plan = {.n_regions = 2, .bytes = 4 * MIB, .keep_mapped = true};
    struct actor actor;

    begin_writing(&plan, &actor, little);
    (void)alloc_memory(bystander, 12 * MIB);
    others_are_well();
    end_writing(&plan, &actor);
}

/* A client that wants the room is refused in time, and gets it when the room is free. */
Test(hostile_write, memory_that_does_not_end_stays_charged, .timeout = 120)
{
    static const char *const little[] = {"--memory-limit=16MiB", NULL};
    struct plan plan = {.n_regions = 2, .bytes = 4 * MIB};
    struct actor actor;
    void *memory = NULL;

    begin_writing(&plan, &actor, little);
    must_be(RDT_NO_MEMORY, rdt_alloc(bystander, 12 * MIB, &memory, &err));
    others_are_well();
    mute_end(&plan.fs);
    wait_until(20 * SEC, rdt_alloc(bystander, 12 * MIB, &memory, NULL) == RDT_OK);
    actor_kill(&actor, SIGKILL);
    end();
}

/* ---- imported memory ---- */

static uint8_t *import(rdt *client, int *fd_p)
{
    uint8_t *addr;

    *fd_p = memfd_create("of-a-client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(*fd_p >= 0 && ftruncate(*fd_p, (off_t)MIB) == 0 && fcntl(*fd_p, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    addr = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, *fd_p, 0);
    must(addr != MAP_FAILED);
    must_ok(rdt_import(client, *fd_p, addr, MIB, &err));
    return addr;
}

/* Starts the fetch of a snapshot into that memory, which the daemon writes. */
static rdt_request *fetch_into(rdt *client, const struct rdt_ref *ref, uint8_t *addr)
{
    const struct rdt_tensor target = VECTOR(RDT_U8, MIB, addr), *targets = &target;
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_request *request;
    size_t one = 1;

    options.targets = &targets;
    options.target_counts = &one;
    must_ok(rdt_fetch_start(client, ref, 1, &options, &request, &err));
    return request;
}

static struct rdt_ref put_snapshot(rdt *client, uint8_t seed)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *bytes = malloc(MIB);
    struct rdt_ref ref;

    fill_pattern(bytes, MIB, seed);
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(client, &VECTOR(RDT_U8, MIB, bytes), 1, &options, &ref, &err));
    free(bytes);
    return ref;
}

/* Writes to memory that it has imported, without end, and has the daemon write there, too. */
static int write_and_fetch(struct actor *self, void *arg)
{
    const struct plan *plan = arg;
    rdt *client = node_client(&node, "writer");
    struct rdt_ref ref = put_snapshot(client, 5);
    static struct writing writing[REGIONS_MAX];
    rdt_request *requests[REGIONS_MAX];
    uint8_t *into[REGIONS_MAX];
    char path[96];
    int file;

    (void)snprintf(path, sizeof path, "%s/file", plan->fs.folder);
    file = open(path, O_RDONLY | O_CLOEXEC);
    must(file >= 0);
    for (unsigned i = 0; i < plan->n_regions; i++) {
        pthread_t thread;
        into[i] = import(client, &writing[i].fd);
        writing[i].page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, (off_t)i * (MUTE_BYTES / REGIONS_MAX));
        must(writing[i].page != MAP_FAILED && pthread_create(&thread, NULL, write_for_ever, &writing[i]) == 0);
    }
    actor_await(self); /* all writes are under way */
    for (unsigned i = 0; i < plan->n_regions; i++)
        requests[i] = fetch_into(client, &ref, into[i]);
    must_ok(rdt_ping(client, LONG, &err));
    actor_step(self);
    actor_await(self); /* the bystander has copied */
    for (unsigned i = 0; i < plan->n_regions; i++)
        must_be(RDT_AGAIN, rdt_request_status(requests[i], NULL));
    actor_step(self);
    for (unsigned i = 0; i < plan->n_regions; i++) { /* the file system has ended, and the writes with it */
        must_ok(rdt_wait(client, &requests[i], 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_status(requests[i], &err));
        must(holds_pattern(into[i], MIB, 5));
        rdt_request_destroy(requests[i]);
    }
    rdt_close(client);
    return 0;
}

Test(hostile_write, copies_into_locked_imports_delay_no_others, .timeout = 120)
{
    struct plan plan = {.n_regions = 6}; /* more than there are worker threads */
    struct actor actor;
    struct rdt_ref ref;
    uint8_t *into;
    int fd;

    if (!mute_mount(&plan.fs))
        cr_skip_test("FUSE cannot be mounted here: /dev/fuse or the right to mount is missing");
    begin(&(struct node_options){0});
    actor_start(&actor, write_and_fetch, &plan);
    wait_until(20 * SEC, plan.fs.counts->reads >= plan.n_regions);
    actor_step(&actor);
    actor_await(&actor);
    ref = put_snapshot(bystander, 7);
    into = import(bystander, &fd);
    for (unsigned i = 0; i < 5; i++) {
        rdt_request *request = fetch_into(bystander, &ref, into);
        must_ok(rdt_wait(bystander, &request, 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_status(request, &err));
        cr_assert(holds_pattern(into, MIB, 7));
        memset(into, 0, MIB);
        rdt_request_destroy(request);
        others_are_well();
    }
    actor_step(&actor);
    actor_await(&actor);
    mute_end(&plan.fs);
    actor_wait(&actor);
    must_ok(rdt_dealloc(bystander, into, &err));
    must_ok(rdt_free(bystander, &ref, false, &err));
    must(munmap(into, MIB) == 0 && close(fd) == 0);
    end();
}
