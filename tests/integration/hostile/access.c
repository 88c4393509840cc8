/* SPDX-License-Identifier: Apache-2.0 */
/* Access of other users: what they see, what they get, and what they cannot do with it. Needs root to become another user. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/call.h"
#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define STRANGER 12345
#define OVERFLOW 65534
#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn;

/* In an actor: its working folder is the socket's, which may lie behind folders of root's. */
static void become(uid_t uid)
{
    must(chdir(node.dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0);
    must(prctl(PR_SET_DUMPABLE, 1) == 0); /* else its own /proc is root's */
}

static enum rdt_status connect_here(rdt **conn_p, struct rdt_error *err)
{
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s", .name = "stranger", .timeout_ns = LONG};
    return rdt_connect(&options, conn_p, err);
}

static rdt *come_as(uid_t uid)
{
    rdt *client = NULL;

    become(uid);
    must_ok(connect_here(&client, &err));
    return client;
}

/* ---- an object of the owner's alone ---- */

/* Asks for an object by its id and by another id that nobody has put: all answers are the same but for the id. */
static void hides_that_it_exists(rdt *stranger, const struct rdt_ref *ref)
{
    struct rdt_ref other = *ref;
    const struct rdt_ref *refs[2] = {ref, &other};
    char says[2][6][300];
    rdt_object *object = NULL;
    rdt_request *hold = NULL;
    struct rdt_stat stat;

    other.id[0] = (char)(other.id[0] + 1);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_error errs[6];
        do { /* again if librdt had to say it, because the machine stood still */
            must_be(RDT_TIMED_OUT, try_fetch(stranger, refs[i], RDT_FETCH_AUTO, 50 * MSEC, &object, &errs[0]));
            must_be(RDT_TIMED_OUT, rdt_wait_put(stranger, refs[i], 50 * MSEC, &errs[1]));
            must_be(RDT_TIMED_OUT, rdt_hold(stranger, refs[i], 50 * MSEC, &hold, &errs[2]));
        } while (check_is_late(&errs[0]) || check_is_late(&errs[1]) || check_is_late(&errs[2]));
        must_be(RDT_NOT_FOUND, rdt_stat(stranger, refs[i], &stat, &errs[3]));
        must_be(RDT_NOT_FOUND, rdt_free(stranger, refs[i], true, &errs[4]));
        must_be(RDT_NOT_FOUND, rdt_wait_freed(stranger, refs[i], LONG, &errs[5]));
        for (unsigned k = 0; k < 6; k++)
            for (char *c = strcpy(says[i][k], errs[k].msg); *c; c++)
                if (c[0] == '"' && c[1] == refs[i]->id[0] && c[2] == '"')
                    c[1] = '_';
    }
    for (unsigned k = 0; k < 6; k++)
        must_say(strcmp(says[0][k], says[1][k]) == 0, "%u: %s | %s", k, says[0][k], says[1][k]);
    must_say(strstr(says[0][0], "does not show it"), "%s", says[0][0]);
}

/* With the generation of somebody's object and another id, the answer is that of an object that has ended: a guess
 * does not tell whether there is one. */
static void hides_the_id_of(rdt *stranger, const struct rdt_ref *ref)
{
    struct rdt_ref other = *ref;
    struct rdt_stat stat;

    other.id[0] = (char)(other.id[0] + 1);
    must_refuse(RDT_FREED, "was freed", rdt_stat(stranger, &other, &stat, &err));
    must_refuse(RDT_FREED, "was freed", rdt_free(stranger, &other, true, &err));
    must_refuse(RDT_FREED, "was freed", rdt_wait_put(stranger, &other, LONG, &err));
    must_ok(rdt_wait_freed(stranger, &other, LONG, &err));
}

static int try_everything(struct actor *self, void *arg)
{
    rdt *stranger = come_as(STRANGER);
    struct rdt_ref ref, bare;
    struct rdt_stat stat;
    rdt_object *object = NULL;

    actor_recv(self, &ref, sizeof ref);
    for (unsigned mode = 0; mode < 3; mode++)
        must_be(RDT_DENIED, try_fetch(stranger, &ref, (enum rdt_fetch_mode)mode, LONG, &object, &err));
    must_be(RDT_DENIED, rdt_wait_put(stranger, &ref, LONG, &err));
    must_be(RDT_DENIED, rdt_hold(stranger, &ref, LONG, &(rdt_request *){NULL}, &err));
    must_be(RDT_DENIED, rdt_wait_freed(stranger, &ref, LONG, &err));
    must_be(RDT_DENIED, rdt_stat(stranger, &ref, &stat, &err));
    must_be(RDT_DENIED, rdt_free(stranger, &ref, false, &err));
    must_be(RDT_DENIED, rdt_free(stranger, &ref, true, &err));
    hides_the_id_of(stranger, &ref);
    ref.generation = 0; /* the object with that name of that owner */
    hides_that_it_exists(stranger, &ref);
    bare = ref_named("w"); /* the stranger's own name space has none */
    must_be(RDT_NOT_FOUND, rdt_stat(stranger, &bare, &stat, &err));
    must_be(RDT_TIMED_OUT, try_fetch(stranger, &bare, RDT_FETCH_AUTO, 50 * MSEC, &object, &err));
    must_ok(rdt_put(stranger, NULL, 0,
                    &(struct rdt_put_options){.struct_size = sizeof(struct rdt_put_options), .id = "w", .id_bytes = 1}, &bare,
                    &err));
    must(bare.uid == STRANGER);
    must_ok(rdt_stat(stranger, &bare, &stat, &err));
    must(stat.tensors == 0);
    must(!object);
    actor_step(self);
    actor_await(self);
    rdt_close(stranger);
    return 0;
}

/* A client waits for an id of another owner before an object exists, and again while a hidden object exists. It gets the
 * first object that it may see. */
static int wait_early(struct actor *self, void *arg)
{
    rdt *stranger = come_as(STRANGER);
    struct rdt_ref ref = ref_named("early");
    rdt_object *object;
    rdt_request *request, *hold;

    ref.any_owner = 0;
    ref.uid = 0;
    request = start_one(stranger, &ref, LONG);
    must_ok(rdt_hold_start(stranger, &ref, LONG, &hold, &err));
    must_ok(rdt_ping(stranger, LONG, &err));
    actor_step(self);
    actor_await(self); /* the hidden one is there */
    must_be(RDT_TIMED_OUT, rdt_wait(stranger, &request, 1, 1, 50 * MSEC, NULL, NULL, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(stranger, &hold, 1, 1, 50 * MSEC, NULL, NULL, &err));
    must_be(RDT_TIMED_OUT, try_fetch(stranger, &ref, RDT_FETCH_AUTO, 50 * MSEC, &object, &err));
    rdt_request *late = start_one(stranger, &ref, LONG);
    must_ok(rdt_ping(stranger, LONG, &err));
    actor_step(self);
    must_ok(rdt_wait(stranger, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_wait(stranger, &hold, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_wait(stranger, &late, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    rdt_request_destroy(hold);
    rdt_request_destroy(late);
    rdt_close(stranger);
    return 0;
}

Test(access, owners_object_is_denied_to_others)
{
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, try_everything, NULL);
    conn = node_client(&node, "owner");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    actor_send(&actor, &ref, sizeof ref);
    actor_await(&actor);
    struct rdt_ref mine = ref_named("w"); /* two objects of one name, one in each owner's space */
    struct rdt_stat stat = stat_of(conn, &mine);
    cr_assert_eq(stat.ref.generation, ref.generation);
    cr_assert_eq(stat.holds, 1);
    actor_step(&actor);
    actor_wait(&actor);
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(access, waiter_gets_the_first_object_that_it_may_see)
{
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, wait_early, NULL);
    conn = node_client(&node, "owner");
    struct rdt_ref ref = ref_named("early");
    rdt_request *mine = start_one(conn, &ref, LONG); /* waits beside the stranger, and gets what the stranger does not */
    actor_await(&actor);
    ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "early");
    must_ok(rdt_wait(conn, &mine, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(mine);
    actor_step(&actor);
    actor_await(&actor);
    must_ok(rdt_free(conn, &ref, true, &err));
    ref = put_one(conn, &VECTOR(RDT_U8, 5, "again"), "early"); /* hidden as well: they wait through it */
    must_ok(rdt_free(conn, &ref, true, &err));
    (void)put_shown(conn, &VECTOR(RDT_U8, 5, "shown"), "early", RDT_VISIBLE_TO_ALL);
    actor_wait(&actor);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- shown to others ---- */

static int read_shown(struct actor *self, void *arg)
{
    rdt *stranger = come_as(STRANGER);
    struct rdt_ref refs[3];

    actor_recv(self, refs, sizeof refs);
    for (unsigned i = 0; i < 2; i++) { /* to the tenant, to all */
        rdt_object *object = fetch_one(stranger, &refs[i], RDT_FETCH_AUTO);
        must_go_by("local/share", object);
        must(!info_of(object).writable);
        must(holds_pattern(tensor_of(object, 0).data, MIB, i));
        rdt_release(object);
        object = fetch_one(stranger, &refs[i], RDT_FETCH_COPY);
        must(holds_pattern(tensor_of(object, 0).data, MIB, i));
        rdt_release(object);
        must_ok(rdt_wait_put(stranger, &refs[i], LONG, &err));
        /* To read is not to free. */
        must_be(RDT_DENIED, rdt_free(stranger, &refs[i], false, &err));
        must_be(RDT_DENIED, rdt_free(stranger, &refs[i], true, &err));
    }
    must_be(RDT_DENIED, try_fetch(stranger, &refs[2], RDT_FETCH_AUTO, LONG, &(rdt_object *){NULL}, &err));
    rdt_close(stranger);
    return 0;
}

Test(access, objects_shown_to_tenant_or_all_are_shared_read_only)
{
    static const enum rdt_visibility visibility[] = {RDT_VISIBLE_TO_TENANT, RDT_VISIBLE_TO_ALL, RDT_VISIBLE_TO_OWNER};
    struct rdt_ref refs[3];
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, read_shown, NULL);
    conn = node_client(&node, "owner");
    for (unsigned i = 0; i < 3; i++) {
        char *addr = alloc_memory(conn, MIB);
        fill_pattern(addr, MIB, i);
        refs[i] = put_shown(conn, &VECTOR(RDT_U8, MIB, addr), NULL, visibility[i]);
    }
    actor_send(&actor, refs, sizeof refs);
    actor_wait(&actor);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- the fd itself ---- */

/* FETCH by hand, to keep the fd. */
static int fetch_fd(struct raw *raw, const struct rdt_ref *ref, uint64_t *bytes_p)
{
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items = &item;
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;

    wire.id.data = (uint8_t *)(uintptr_t)ref->id;
    wire.id.len = ref->id_bytes;
    wire.generation = ref->generation;
    item.handle = 77;
    item.ref = &wire;
    Rdt__Pb__Fetch fetch =
        MESSAGE(fetch, .items = &items, .n_items = 1, .mode = RDT__PB__FETCH_MODE__FETCH_MODE_SHARE, .timeout_ns = -1);
    uint64_t id = raw_send(raw, RDT_MSG_FETCH, &fetch.base, NULL, 0);
    protobuf_c_message_free_unpacked(raw_reply(raw, id, &rdt__pb__empty__descriptor), NULL);
    must(raw_next(raw) && raw->frame.type == RDT_EVENT_FETCH_DONE && raw->frame.flags == FRAME_EVENT);
    Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, raw->frame.length, raw->frame.payload);
    must(done);
    must_say(done->status == RDT_OK, "%s", done->message);
    must(done->n_regions == 1 && raw->frame.nfds == 1 && !done->regions[0]->writable);
    *bytes_p = done->regions[0]->bytes;
    rdt__pb__fetch_done__free_unpacked(done, NULL);
    int fd = frame_take_fd(&raw->frame, 0);
    must(fd >= 0);
    return fd;
}

static int misuse_fd(struct actor *self, void *arg)
{
    struct rdt_ref ref;
    struct raw raw;
    uint64_t bytes;
    char path[64], byte = 1;

    become(STRANGER);
    actor_recv(self, &ref, sizeof ref);
    raw_connect(&raw, "s");
    raw_hello(&raw);
    int fd = fetch_fd(&raw, &ref, &bytes);
    must(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    void *addr = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    must(addr != MAP_FAILED && holds_pattern(addr, bytes, 1));
    must(mprotect(addr, bytes, PROT_READ | PROT_WRITE) == -1);
    must(write(fd, &byte, 1) == -1);
    must(pwrite(fd, &byte, 1, 0) == -1);
    must(ftruncate(fd, 0) == -1);
    must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);
    must(fchmod(fd, 0666) == -1);
    must(madvise(addr, bytes, MADV_REMOVE) == -1);
    for (unsigned i = 0; i < 3; i++) {
        static const int flags[] = {O_RDWR, O_WRONLY, O_RDWR | O_TRUNC};
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        must(open(path, flags[i] | O_CLOEXEC) == -1 && errno == EACCES);
    }
    must(holds_pattern(addr, bytes, 1));
    raw_close(&raw);
    return 0;
}

Test(access, readers_fd_is_read_only_for_good)
{
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, misuse_fd, NULL);
    conn = node_client(&node, "owner");
    char *addr = alloc_memory(conn, MIB);
    fill_pattern(addr, MIB, 1);
    struct rdt_ref ref = put_shown(conn, &VECTOR(RDT_U8, MIB, addr), "w", RDT_VISIBLE_TO_ALL);
    actor_send(&actor, &ref, sizeof ref);
    actor_wait(&actor);
    cr_assert(holds_pattern(addr, MIB, 1));
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- a region that holds more than the object ---- */

static int read_parts(struct actor *self, void *arg)
{
    rdt *stranger = come_as(STRANGER);
    struct rdt_ref refs[4];
    rdt_object *object;

    actor_recv(self, refs, sizeof refs);
    for (unsigned i = 0; i < 3; i++) {
        object = fetch_one(stranger, &refs[i], RDT_FETCH_AUTO);
        must_go_by("local/copy", object);
        must(holds_pattern(tensor_of(object, 0).data, 4096, 1));
        rdt_release(object);
        must_be(RDT_NO_PATH, try_fetch(stranger, &refs[i], RDT_FETCH_SHARE, LONG, &object, &err));
    }
    object = fetch_one(stranger, &refs[3], RDT_FETCH_AUTO);
    must_go_by("local/share", object);
    rdt_release(object);
    rdt_close(stranger);
    return 0;
}

Test(access, region_with_other_bytes_is_copied_not_shared)
{
    static const int64_t half[] = {32, 64}, holes[] = {128, 1};
    struct rdt_tensor holed = {.dtype = RDT_U8, .ndim = 2, .shape = half, .strides = holes}, halves[2];
    struct rdt_ref refs[4];
    rdt_object *object;
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, read_parts, NULL);
    conn = node_client(&node, "owner");
    char *addr = alloc_memory(conn, 8192);
    fill_pattern(addr, 4096, 1);
    refs[0] = put_shown(conn, &VECTOR(RDT_U8, 4096, addr), NULL, RDT_VISIBLE_TO_ALL);
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(ftruncate(fd, 4096) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    char *imported = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must_ok(rdt_import(conn, fd, imported, 4096, &err));
    close(fd);
    fill_pattern(imported, 4096, 1);
    refs[1] = put_shown(conn, &VECTOR(RDT_U8, 4096, imported), NULL, RDT_VISIBLE_TO_ALL);
    /* Tensors that reach from end to end, but with holes. */
    addr = alloc_memory(conn, 12288);
    fill_pattern(addr, 4096, 1);
    holed.data = addr + 4096;
    halves[0] = VECTOR(RDT_U8, 4096, addr);
    halves[1] = holed;
    struct rdt_put_options options = {.struct_size = sizeof options, .visibility = RDT_VISIBLE_TO_ALL};
    must_ok(rdt_put(conn, halves, 2, &options, &refs[2], &err));
    /* Two halves, the second one first: all of it. */
    addr = alloc_memory(conn, 8192);
    halves[0] = VECTOR(RDT_U8, 4096, addr + 4096);
    halves[1] = VECTOR(RDT_U8, 4096, addr);
    must_ok(rdt_put(conn, halves, 2, &options, &refs[3], &err));
    actor_send(&actor, refs, sizeof refs);
    actor_wait(&actor);
    rdt *neighbour = node_client(&node, "neighbour"); /* the same user may see it all */
    for (unsigned i = 0; i < 4; i++) {
        object = fetch_one(neighbour, &refs[i], RDT_FETCH_AUTO);
        must_go_by("local/share", object);
        rdt_release(object);
    }
    rdt_close(neighbour);
    rdt_close(conn);
    munmap(imported, 4096);
    node_end(&node, NULL);
}

/* ---- lists, and things of other clients ---- */

static uint64_t count_rows(rdt *client, Rdt__Pb__ListKind kind)
{
    Rdt__Pb__ListReply *reply;
    Rdt__Pb__List list = MESSAGE(list, .kind = kind);

    must_ok(call(client, RDT_MSG_LIST, &list.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
    uint64_t n = reply->n_objects + reply->n_regions + reply->n_clients + reply->n_transfers;
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return n;
}

static int look_around(struct actor *self, void *arg)
{
    rdt *stranger = come_as(STRANGER);
    void *addr;

    actor_await(self);
    must(count_rows(stranger, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS) == 1); /* the one for all */
    must(count_rows(stranger, RDT__PB__LIST_KIND__LIST_KIND_REGIONS) == 0);
    must(count_rows(stranger, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS) == 1); /* itself */
    must(count_rows(stranger, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS) == 0);
    must_ok(rdt_alloc(stranger, 4096, &addr, &err));
    (void)put_one(stranger, &VECTOR(RDT_U8, 4096, addr), "mine");
    must(count_rows(stranger, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS) == 2);
    must(count_rows(stranger, RDT__PB__LIST_KIND__LIST_KIND_REGIONS) == 1);
    actor_step(self);
    actor_await(self);
    rdt_close(stranger);
    return 0;
}

Test(access, lists_show_what_is_visible)
{
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, look_around, NULL);
    conn = node_client(&node, "owner");
    char *addr = alloc_memory(conn, 4096);
    (void)put_one(conn, &VECTOR(RDT_U8, 4096, addr), "secret");
    struct rdt_ref ref = put_shown(conn, &VECTOR(RDT_U8, 4096, addr), "shown", RDT_VISIBLE_TO_ALL);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);
    actor_step(&actor);
    actor_await(&actor);
    /* Root is the operator: it sees all and may free all, but is no reader of others' bytes. */
    cr_assert_eq(count_rows(conn, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS), 3);
    struct rdt_ref theirs = ref_named("mine");
    theirs.any_owner = 0;
    theirs.uid = STRANGER;
    struct rdt_stat stat = stat_of(conn, &theirs);
    must_be(RDT_TIMED_OUT, try_fetch(conn, &theirs, RDT_FETCH_AUTO, 50 * MSEC, &(rdt_object *){NULL}, &err));
    must_ok(rdt_free(conn, &theirs, true, &err));
    must_be(RDT_NOT_FOUND, rdt_stat(conn, &theirs, &stat, &err));
    actor_step(&actor);
    actor_wait(&actor);
    rdt_release(object);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- the trace ---- */

/* All pages of the trace; how many records there are, each later than the one before. */
static unsigned trace_of(rdt *client, unsigned *n_pages_p)
{
    Rdt__Pb__Trace trace = RDT__PB__TRACE__INIT;
    uint64_t last = 0;
    unsigned n = 0;

    *n_pages_p = 0;
    do {
        Rdt__Pb__TraceReply *reply;
        must_ok(call(client, RDT_MSG_TRACE, &trace.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
        for (size_t i = 0; i < reply->n_records; last = reply->records[i++]->at_ns)
            must(reply->records[i]->at_ns >= last && reply->records[i]->at_ns >= trace.after);
        must(reply->next == 0 || reply->next > last);
        n += (unsigned)reply->n_records;
        trace.after = reply->next;
        ++*n_pages_p;
        rdt__pb__trace_reply__free_unpacked(reply, NULL);
    } while (trace.after != 0);
    return n;
}

static void move_often(rdt *client, const char *id)
{
    struct rdt_ref ref = put_one(client, &VECTOR(RDT_U8, 16, "sixteen bytes .."), id);

    for (unsigned i = 0; i < 400; i++)
        rdt_release(fetch_one(client, &ref, RDT_FETCH_COPY));
}

static int trace_alone(struct actor *self, void *arg)
{
    rdt *stranger = come_as(STRANGER);
    unsigned n_pages, n;

    (void)arg;
    actor_await(self);
    must(trace_of(stranger, &n_pages) == 0);
    must_say(n_pages == 1, "%u pages show how much others have moved", n_pages);
    move_often(stranger, "mine");
    n = trace_of(stranger, &n_pages);
    must_say(n >= 800 && n_pages >= 3, "%u records in %u pages", n, n_pages);
    actor_step(self);
    actor_await(self);
    must(trace_of(stranger, &n_pages) == n);
    must_say(n_pages == (n + 255) / 256, "%u pages of %u records", n_pages, n);
    rdt_close(stranger);
    return 0;
}

Test(access, trace_does_not_show_how_much_others_move)
{
    struct actor actor;
    unsigned n_pages;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, trace_alone, NULL);
    conn = node_client(&node, "owner");
    move_often(conn, "one");
    actor_step(&actor);
    actor_await(&actor);
    move_often(conn, "other");
    actor_step(&actor);
    actor_wait(&actor);
    must(trace_of(conn, &n_pages) >= 2400); /* the operator sees all */
    rdt_close(conn);
    node_end(&node, NULL);
}

/* Numbers of another session's things, guessed. */
Test(access, numbers_of_other_sessions_are_not_found)
{
    Rdt__Pb__Release release = RDT__PB__RELEASE__INIT;
    Rdt__Pb__ReleaseRegion region = RDT__PB__RELEASE_REGION__INIT;
    Rdt__Pb__WaitFreed wait = RDT__PB__WAIT_FREED__INIT;
    Rdt__Pb__Cancel cancel = RDT__PB__CANCEL__INIT;
    Rdt__Pb__ListReply *listed;

    node_start(&node, NULL);
    conn = node_client(&node, "owner");
    rdt *other = node_client(&node, "other");
    char *addr = alloc_memory(conn, 4096);
    fill_pattern(addr, 4096, 1);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 4096, addr), "w");
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    rdt_request *parked = start_one(conn, &(struct rdt_ref){.any_owner = 1, .id_bytes = 1, .id = "z"}, 0);
    Rdt__Pb__List list = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_REGIONS);
    must_ok(call(conn, RDT_MSG_LIST, &list.base, LONG, (ProtobufCMessage **)(void *)&listed, &err));
    must(listed->n_regions > 0);
    uint64_t first = listed->regions[0]->region - 1;
    rdt__pb__list_reply__free_unpacked(listed, NULL);
    for (uint64_t i = 0; i < 20; i++) {
        release.hold = i + 1;
        must_refuse(RDT_NOT_FOUND, "no hold", call(other, RDT_MSG_RELEASE, &release.base, LONG, NULL, &err));
        region.region = first + i;
        must_refuse(RDT_NOT_FOUND, "no region", call(other, RDT_MSG_RELEASE_REGION, &region.base, LONG, NULL, &err));
        wait.region = first + i + 1;
        wait.generation = 1;
        wait.bytes = 10;
        must_refuse(RDT_NOT_FOUND, "no region", call(other, RDT_MSG_WAIT_FREED, &wait.base, LONG, NULL, &err));
        cancel.handle = i;
        must_ok(call(other, RDT_MSG_CANCEL, &cancel.base, LONG, NULL, &err));
    }
    struct rdt_stat stat = stat_of(conn, &ref);
    cr_assert_eq(stat.holds, 2);
    must_be(RDT_AGAIN, rdt_request_status(parked, &err));
    rdt_release(object);
    rdt_request_destroy(parked);
    rdt_close(other);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- users that the kernel cannot map ---- */

static int come_unmapped(struct actor *self, void *arg)
{
    const bool *allowed = arg;
    rdt *client = NULL;

    become(OVERFLOW);
    if (*allowed) {
        must_ok(connect_here(&client, &err));
        must_ok(rdt_ping(client, LONG, &err));
        rdt_close(client);
    } else {
        must_refuse(RDT_DENIED, "allow_overflow_uid", connect_here(&client, &err));
        must(!client);
    }
    return 0;
}

Test(access, overflow_uid_is_refused_unless_allowed)
{
    const char *flags[] = {"--allow-overflow-uid=yes", NULL};
    const char *declared[] = {"allow_overflow_uid", NULL};

    need_root();
    for (unsigned i = 0; i < 2; i++) {
        bool allowed = i == 1;
        struct actor actor;
        node_start(&node, &(struct node_options){.flags = allowed ? flags : NULL});
        actor_start(&actor, come_unmapped, &allowed);
        actor_wait(&actor);
        node_end(&node, declared);
    }
}
