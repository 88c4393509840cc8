/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a client writes without end. A write(2) whose bytes come from a file system that does not answer keeps the
 * lock of the memfd, and whoever removes pages from that memfd or seals it waits for the lock. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

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
    int file;

    (void)snprintf(path, sizeof path, "%s/file", plan->fs.folder);
    file = open(path, O_RDONLY | O_CLOEXEC);
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
        Rdt__Pb__ReleaseRegion release = RDT__PB__RELEASE_REGION__INIT;
        release.region = regions[i];
        release.keep_mapped = plan->keep_mapped;
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
    wait_until(20 * SEC, plan->fs.n_reads >= plan->n_regions);
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
