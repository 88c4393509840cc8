/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for memory on devices that cannot be fulfilled, and imports that are not what they claim to be. Each is refused with
 * a sentence that names the fault, and nothing else is affected. */
#include <pthread.h>

#include "client/call.h"
#include "tests/integration/devices/device_fixture.h"
#include "tests/integration/hostile/mute_fs.h"
#include "tests/support/raw.h"

TestSuite(device_hostile, .timeout = 100);

static const char *const declared[] = {"(pid ", NULL}; /* what the daemon logs about such a client */

static void refuses(struct raw *raw, enum rdt_status expected, const char *text)
{
    char said[256];
    enum rdt_status status = raw_error(raw, said);

    must_say(status == expected && strstr(said, text), "%s: %s", rdt_status_name(status), said);
}

static void works(rdt *conn)
{
    struct rdt_ref ref = put_on(conn, "FAKE-0", BYTES, 41, NULL);

    expect(conn, &ref, "host", NULL, BYTES, 41, "local/copy", "host", "");
}

/* ---- imports ---- */

static int chunk_fd(void)
{
    int fd = memfd_create("chunk", MFD_CLOEXEC);

    must(fd >= 0 && ftruncate(fd, 4096) == 0);
    return fd;
}

Test(device_hostile, import_columns_of_other_lengths_are_refused)
{
    uint64_t sizes[65];
    uint8_t handle[64] = "fakeipc";
    int fd = chunk_fd(), fds[64];
    struct raw raw;

    begin();
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 64; i++)
        fds[i] = fd;
    for (unsigned i = 0; i < 65; i++)
        sizes[i] = 4096;
#define REFUSED(of_kind, n_sizes, n_fds, says)                           \
    do {                                                                 \
        Rdt__Pb__Import message = RDT__PB__IMPORT__INIT;                 \
        message.memory = (char *)"fake";                                 \
        message.device = (char *)"FAKE-0";                               \
        message.kind = (Rdt__Pb__RegionKind)(of_kind);                   \
        message.bytes = 4096;                                            \
        message.handle = (ProtobufCBinaryData){64, handle};              \
        message.chunk_bytes = sizes;                                     \
        message.n_chunk_bytes = n_sizes;                                 \
        (void)raw_send(&raw, RDT_MSG_IMPORT, &message.base, fds, n_fds); \
        refuses(&raw, RDT_INVALID, says);                                \
    } while (0)
    REFUSED(RDT__PB__REGION_KIND__REGION_KIND_LEGACY_IPC, 1, 64, "1 chunk sizes for 64 fds");
    REFUSED(RDT__PB__REGION_KIND__REGION_KIND_LEGACY_IPC, 64, 1, "64 chunk sizes for 1 fds");
    REFUSED(RDT__PB__REGION_KIND__REGION_KIND_LEGACY_IPC, 64, 64, "a legacy handle comes without chunks");
    REFUSED(RDT__PB__REGION_KIND__REGION_KIND_VMM, 65, 64, "65 chunk sizes for 64 fds");
    REFUSED(RDT__PB__REGION_KIND__REGION_KIND_VMM, 0, 0, "its 0 chunks");
    REFUSED(99, 1, 64, "1 chunk sizes for 64 fds");
    REFUSED(99, 64, 64, "no handles of kind 99");
    REFUSED(RDT__PB__REGION_KIND__REGION_KIND_MEMFD, 1, 1, "not by a memfd");
    raw_close(&raw);
    (void)close(fd);
    works(a);
    end(declared);
}

static Rdt__Pb__Import import_message(uint64_t number, uint32_t first, bool more, const uint64_t *sizes)
{
    Rdt__Pb__Import message =
        MESSAGE(import, .memory = (char *)"fake", .device = (char *)"FAKE-0", .kind = RDT__PB__REGION_KIND__REGION_KIND_VMM,
                .number = number, .first_chunk = first, .more = more, .bytes = more ? 0 : 4096,
                .chunk_bytes = (uint64_t *)(uintptr_t)sizes, .n_chunk_bytes = 2);
    return message;
}

static void takes(struct raw *raw, const Rdt__Pb__Import *message, const int *fds)
{
    ProtobufCMessage *reply =
        raw_reply(raw, raw_send(raw, RDT_MSG_IMPORT, &message->base, fds, 2), &rdt__pb__region_reply__descriptor);

    protobuf_c_message_free_unpacked(reply, NULL);
}

Test(device_hostile, chunks_that_do_not_follow_are_refused_and_dropped)
{
    static const uint64_t sizes[2] = {4096, 4096};
    int fds[2] = {chunk_fd(), chunk_fd()};
    Rdt__Pb__Import message;
    struct raw raw;

    begin();
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 4;
         i++) { /* without a first message; of another import; after a gap; of an import that was dropped */
        if (i == 1 || i == 2) {
            message = import_message(7, 0, true, sizes);
            takes(&raw, &message, fds);
        }
        message = import_message(i == 1 ? 8 : 7, i == 2 ? 3 : 2, false, sizes);
        (void)raw_send(&raw, RDT_MSG_IMPORT, &message.base, fds, 2);
        refuses(&raw, RDT_INVALID, "does not follow");
    }
    message = import_message(7, 0, true, sizes);
    takes(&raw, &message, fds);
    message = import_message(9, 0, true, sizes); /* another import begins */
    takes(&raw, &message, fds);
    message = import_message(9, 2, false, sizes);
    takes(&raw, &message, fds);
    must(atomic_load(&gpu.control->imports) == 1);
    message = import_message(10, 0, true, sizes);
    takes(&raw, &message, fds);
    message = import_message(0, 0, false, sizes); /* an import in one message does not affect those that are incomplete */
    message.bytes = 3 * 4096;
    (void)raw_send(&raw, RDT_MSG_IMPORT, &message.base, fds, 2);
    refuses(&raw, RDT_INVALID, "2 chunks");
    message = import_message(10, 2, false, sizes);
    message.bytes = 4 * 4096;
    takes(&raw, &message, fds);
    raw_close(&raw);
    (void)close(fds[0]);
    (void)close(fds[1]);
    works(a);
    end(declared);
}

#define IMPORTS 20u

struct importer {
    pthread_t thread;
    uint32_t seed;
    struct fake_memory_own own;
    struct rdt_error err;
};

static void *import_often(void *arg)
{
    struct importer *me = arg;
    struct rdt_shared shared = fake_device_chunks(&me->own, "FAKE-1");

    for (unsigned i = 0; i < IMPORTS && me->err.status == RDT_OK; i++) {
        struct rdt_tensor tensor = bytes_at(me->own.addr, me->own.bytes);
        const int64_t shape[1] = {(int64_t)me->own.bytes};
        struct rdt_put_options options = RDT_INIT(options);
        struct rdt_ref ref;
        rdt_object *object;

        tensor.shape = shape;
        if (rdt_import_shared(a, &shared, me->own.addr, &me->err) != RDT_OK ||
            rdt_put(a, &tensor, 1, &options, &ref, &me->err) != RDT_OK ||
            fetch_to(a, &ref, "host", NULL, &object, &me->err) != RDT_OK)
            return NULL;
        if (!holds_pattern(tensor_of(object, 0).data, me->own.bytes, me->seed))
            (void)rdt_error_set(&me->err, RDT_INTERNAL, "import %u of thread %u shows other memory", i, me->seed);
        rdt_release(object);
        if (rdt_free(a, &ref, false, &me->err) == RDT_OK &&
            rdt_wait_freed_range(a, me->own.addr, me->own.bytes, LONG, &me->err) == RDT_OK)
            (void)rdt_dealloc(a, me->own.addr, &me->err);
    }
    return NULL;
}

Test(device_hostile, threads_that_import_at_once_get_their_own_memory)
{
    struct importer threads[3] = {0};

    begin();
    for (unsigned i = 0; i < 3; i++) { /* in three messages, in two, in one */
        threads[i].seed = i + 1;
        fake_device_malloc(&threads[i].own, i == 0 ? 150 : i == 1 ? 100 : 3, 4 * KIB);
        fill_pattern(threads[i].own.addr, threads[i].own.bytes, i + 1);
        must(pthread_create(&threads[i].thread, NULL, import_often, &threads[i]) == 0);
    }
    for (unsigned i = 0; i < 3; i++)
        must(pthread_join(threads[i].thread, NULL) == 0);
    for (unsigned i = 0; i < 3; i++) {
        must_say(threads[i].err.status == RDT_OK, "thread %u: %s", i, threads[i].err.msg);
        fake_device_free(&threads[i].own);
    }
    end(NULL);
}

/* librdt has no list of the kinds: it passes on what its caller describes. */
Test(device_hostile, unknown_kind_of_handle_is_refused_by_the_daemon)
{
    struct fake_memory_own own;

    begin();
    fake_device_malloc(&own, 1, 4 * KIB);
    struct rdt_shared shared = fake_device_handle(&own, "FAKE-0");
    shared.kind = (enum rdt_shared_kind)99;
    must_refuse(RDT_INVALID, "rdtd knows no handles of kind 99", rdt_import_shared(a, &shared, own.addr, &err));
    shared.fds = own.fds;
    shared.n_fds = 1;
    must_refuse(RDT_INVALID, "either as chunks or by a handle", rdt_import_shared(a, &shared, own.addr, &err));
    fake_device_free(&own);
    works(a);
    end(NULL);
}

Test(device_hostile, import_that_fails_half_way_leaves_nothing_behind)
{
    struct fake_memory_own own;
    int fds[100];

    begin();
    fake_device_malloc(&own, 100, 4 * KIB);
    struct rdt_shared shared = fake_device_chunks(&own, "FAKE-1");
    memcpy(fds, shared.fds, sizeof fds);
    fds[99] = -1; /* in the second message */
    shared.fds = fds;
    unsigned before = fds_of(node.pid);
    must_refuse(RDT_SYSTEM, "fd -1", rdt_import_shared(a, &shared, own.addr, &err));
    wait_until(LONG, fds_of(node.pid) == before);
    fds[99] = own.fds[99];
    must_ok(rdt_import_shared(a, &shared, own.addr, &err));
    must_ok(rdt_dealloc(a, own.addr, &err));
    fake_device_free(&own);
    works(a);
    end(NULL);
}

#define SLOW_IMPORTS 5u  /* more than there are worker threads */
#define MANY_IMPORTS 40u /* more than a user has threads (daemon/base/owner_work.h) */

struct slow_plan {
    struct mute_fs fs;
    uint64_t chunk_bytes;
    unsigned n; /* imports */
    bool fits;
};

/* Imports chunks whose close does not return, and releases what was imported. */
static int import_and_release(struct actor *self, void *arg)
{
    struct slow_plan *plan = arg;
    uint64_t sizes[2] = {plan->chunk_bytes, plan->chunk_bytes}, regions[MANY_IMPORTS];
    char path[96];
    struct raw raw;
    int fds[2];

    (void)snprintf(path, sizeof path, "%s/file", plan->fs.folder);
    fds[0] = fds[1] = open(path, O_RDWR | O_CLOEXEC);
    must(fds[0] >= 0);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < plan->n; i++) {
        Rdt__Pb__Import message = import_message(0, 0, false, sizes);
        (void)raw_send(&raw, RDT_MSG_IMPORT, &message.base, fds, 2);
    }
    for (unsigned i = 0; i < plan->n && plan->fits; i++) {
        Rdt__Pb__RegionReply *reply; /* the workers end in any order */
        must(raw_next(&raw) && raw.frame.flags == FRAME_REPLY);
        reply = rdt__pb__region_reply__unpack(NULL, raw.frame.length, raw.frame.payload);
        must(reply);
        regions[i] = reply->region;
        rdt__pb__region_reply__free_unpacked(reply, NULL);
    }
    for (unsigned i = 0; i < plan->n && plan->fits; i++) {
        Rdt__Pb__ReleaseRegion release = MESSAGE(release_region, .region = regions[i]);
        (void)raw_send(&raw, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0);
        must(raw_next(&raw));
    }
    actor_step(self);
    (void)pause();
    return 0;
}

static void imports_delay_nobody(struct slow_plan *plan)
{
    struct actor actor;

    if (!mute_mount(&plan->fs))
        cr_skip_test("FUSE cannot be mounted here: /dev/fuse or the right to mount is missing");
    begin();
    actor_start(&actor, import_and_release, plan);
    actor_await(&actor);
    wait_until(LONG, plan->fs.counts->flushes >= plan->n);
    works(a);
    works(b);
    mute_end(&plan->fs);
    actor_kill(&actor, SIGKILL);
    end(declared);
}

Test(device_hostile, refused_imports_whose_close_does_not_return_delay_nobody)
{
    imports_delay_nobody(&(struct slow_plan){.chunk_bytes = 2 * MUTE_BYTES, .n = SLOW_IMPORTS});
}

Test(device_hostile, end_of_imports_whose_close_does_not_return_delays_nobody)
{
    imports_delay_nobody(&(struct slow_plan){.chunk_bytes = 4096, .n = SLOW_IMPORTS, .fits = true});
}

/* Memory that the daemon allocated is freed without the threads of its user, all of which hang, or requests of others would
 * wait for it. */
Test(device_hostile, user_whose_threads_hang_keeps_no_memory_of_a_device)
{
    struct slow_plan plan = {.chunk_bytes = 2 * MUTE_BYTES, .n = MANY_IMPORTS};
    struct actor actor;
    rdt_object *object;

    if (!mute_mount(&plan.fs))
        cr_skip_test("FUSE cannot be mounted here: /dev/fuse or the right to mount is missing");
    begin_with((const char *const[]){"--pool-idle=100ms", NULL});
    void *addr;
    struct rdt_ref live = put_on(a, "FAKE-0", BYTES, 42, &addr);
    struct rdt_tensor tensor = bytes_at(addr, BYTES);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, RDT_PUT_SNAPSHOT);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    rdt_release(object);
    must_ok(rdt_ping(b, LONG, &err)); /* it keeps the memory mapped */
    actor_start(&actor, import_and_release, &plan);
    actor_await(&actor);
    wait_until(LONG, plan.fs.counts->flushes >= 32);
    must_ok(rdt_free(a, &ref, false, &err));
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    rdt_close(b);
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 1);
    node_connect(&node, &b);
    must_ok(rdt_free(a, &live, false, &err));
    mute_end(&plan.fs);
    actor_kill(&actor, SIGKILL);
    end(declared);
}

/* ---- sizes ---- */

Test(device_hostile, allocation_larger_than_the_device_is_refused)
{
    static const size_t sizes[] = {SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 60, 65 << 20};
    struct raw raw;
    void *addr;

    begin();
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake", .device = "FAKE-0"};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        must_refuse(RDT_LIMIT, "FAKE-0", rdt_alloc_with(a, sizes[i], &options, &addr, &err));
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    Rdt__Pb__Alloc message = MESSAGE(alloc, .memory = (char *)"fake", .device = (char *)"FAKE-0");
    for (uint64_t less = 0; less < 200000; less += 65535) { /* sizes whose rounding up overflows to 0 */
        message.bytes = UINT64_MAX - less;
        (void)raw_send(&raw, RDT_MSG_ALLOC, &message.base, NULL, 0);
        refuses(&raw, RDT_LIMIT, "FAKE-0");
    }
    raw_close(&raw);
    works(a);
    end(declared);
}

/* ---- puts that are pending ---- */

Test(device_hostile, ready_for_an_object_that_nobody_put_is_answered)
{
    struct raw raw;

    begin();
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){6, (uint8_t *)"nobody"});
    Rdt__Pb__Ready ready = MESSAGE(ready, .ref = &ref);
    (void)raw_send(&raw, RDT_MSG_READY, &ready.base, NULL, 0);
    refuses(&raw, RDT_NOT_FOUND, "nobody");
    raw_close(&raw);
    works(a);
    end(declared);
}
