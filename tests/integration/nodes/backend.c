/* SPDX-License-Identifier: Apache-2.0 */
/* Backends that are loaded and unloaded while the daemon serves: between nodes, while they are in use, and files and
 * callers that are refused. */
#include <criterion/criterion.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/cluster.h"

TestSuite(backend, .timeout = 120);

#define MIB ((size_t)1 << 20)
#define STRANGER 12345

static struct test_node node;
static rdt *admin;

static const char *in_tmp(const char *name)
{
    static char paths[8][256];
    static unsigned next;
    const char *dir = getenv("TMPDIR");

    (void)snprintf(paths[next % 8], sizeof paths[0], "%s/%s", dir ? dir : "/tmp", name);
    return paths[next++ % 8];
}

static void run_command(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void run_command(const char *fmt, ...)
{
    char command[4096];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    must_say(system(command) == 0, "%s", command);
}

static bool is_loaded(const struct test_node *at, const char *name)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    ProtobufCMessage *reply;
    rdt *conn = node_client(at, "onlooker");
    bool found = false;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_BACKENDS;
    must_ok(call(conn, RDT_MSG_LIST, &request.base, LONG, &reply, &err));
    const Rdt__Pb__ListReply *list = (const Rdt__Pb__ListReply *)reply;
    for (size_t i = 0; i < list->n_backends; i++)
        found = found || (strcmp(list->backends[i]->name, name) == 0 && list->backends[i]->available);
    protobuf_c_message_free_unpacked(reply, NULL);
    rdt_close(conn);
    return found;
}

static void load_loopback(rdt *conn)
{
    must_ok(rdt_backend_load(conn, build_path("tests/rdt_loopback.so"), NULL, LONG, &err));
}

/* ---- between nodes ---- */

static struct cluster c;
static rdt *owner, *reader;

static void begin_two(void)
{
    static const char *const flags[] = {"--chunk=64KiB", NULL};

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .flags = flags});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
}

static void end_two(const char *const *declared)
{
    rdt_close(owner);
    rdt_close(reader);
    for (unsigned i = 0; i < 2; i++)
        c.fds[i] += 8; /* the loaded plug-in has its own descriptors */
    cluster_end(&c, declared);
}

static bool connected(unsigned i)
{
    struct peer_view view;

    return peer_seen(&c.node[i], &c.node[!i], &view) && view.loopback;
}

static void fetch_over(const char *transport, size_t bytes, uint32_t seed)
{
    struct rdt_ref ref = put_pattern(owner, NULL, bytes, seed);

    fetch_pattern(reader, &ref, bytes, seed, transport);
    must_ok(rdt_free(owner, &ref, false, &err));
}

Test(backend, loaded_on_both_nodes_moves_bytes_at_once)
{
    begin_two();
    load_loopback(owner);
    load_loopback(reader);
    wait_until(20 * SEC, connected(0) && connected(1));
    fetch_over("loopback", MIB + 7, 1);
    end_two(NULL);
}

/* Unloaded and loaded anew, on either side, while the link stays up: the other node is told, and it serves again. */
Test(backend, unloaded_and_loaded_again_serves_again)
{
    struct rdt_ref ref;
    rdt_object *object;

    begin_two();
    load_loopback(owner);
    load_loopback(reader);
    for (unsigned round = 0; round < 6; round++) {
        rdt *side = round % 2 ? owner : reader;

        wait_until(20 * SEC, connected(0) && connected(1));
        fetch_over("loopback", 300000, round);
        wait_until(20 * SEC, rdt_backend_unload(side, round % 3 ? "loopback" : "LOOPBACK", LONG, NULL) == RDT_OK);
        must(!is_loaded(&c.node[round % 2 ? 0 : 1], "loopback"));
        wait_until(20 * SEC, !connected(0) && !connected(1));
        ref = put_pattern(owner, NULL, 300000, round);
        must_refuse(RDT_NO_PATH, round % 2 ? "loaded there" : "no path for the bytes",
                    try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
        must_ok(rdt_free(owner, &ref, false, &err));
        load_loopback(side);
    }
    wait_until(20 * SEC, connected(0) && connected(1));
    fetch_over("loopback", MIB, 9);
    end_two(NULL);
}

static void with_transport_of(const char *transport, rdt *conn, size_t bytes, struct rdt_ref *ref_p)
{
    void *memory = alloc_memory(conn, bytes);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);

    fill_pattern(memory, bytes, 3);
    struct rdt_put_options options = {.struct_size = sizeof options, .transport = transport};
    must_ok(rdt_put(conn, &tensor, 1, &options, ref_p, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
}

/* Running transfers keep the transport in use. Objects that prefer it do not, and can be fetched when it is loaded again. */
Test(backend, in_use_is_not_unloaded_and_says_by_what)
{
    static const char *const declared[] = {"taken down and rebuilt", NULL};
    struct rdt_ref ref;
    char delay[32];

    (void)snprintf(delay, sizeof delay, "delay_ms=%lld", (long long)(patience(SEC) / MSEC));
    begin_two();
    must_ok(rdt_backend_load(owner, build_path("tests/rdt_loopback.so"), (const char *[]){delay, NULL}, LONG, &err));
    must_ok(rdt_backend_load(reader, build_path("tests/rdt_loopback.so"), (const char *[]){delay, NULL}, LONG, &err));
    wait_until(20 * SEC, connected(0) && connected(1));
    with_transport_of("loopback", owner, 300000, &ref);
    rdt_request *request = start_one(reader, &ref, LONG);
    await_engine(&c.node[1]);
    must_refuse(RDT_BUSY, "transport loopback is in use: transfer ", rdt_backend_unload(reader, "loopback", LONG, &err));
    must_refuse(RDT_BUSY, "transport loopback is in use: a transfer to node",
                rdt_backend_unload(owner, "loopback", LONG, &err));
    rdt_object *object = await_object(reader, request);
    rdt_request_destroy(request);
    must(holds_pattern(tensor_of(object, 0).data, 300000, 3));
    rdt_release(object);

    wait_until(20 * SEC, rdt_backend_unload(owner, "loopback", LONG, NULL) == RDT_OK);
    load_loopback(owner);
    wait_until(20 * SEC, connected(0) && connected(1));
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("loopback", object);
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end_two(declared);
}

/* A fetch waits for a connection that is being rebuilt, and learns at once that the transport is unloaded. */
Test(backend, fetch_that_waits_for_one_that_is_unloaded_is_told)
{
    begin_two();
    load_loopback(owner);
    must_ok(rdt_backend_load(reader, build_path("tests/rdt_loopback.so"), (const char *[]){"disconnect_delay_ms=4000", NULL},
                             LONG, &err));
    wait_until(20 * SEC, connected(0) && connected(1));
    must_ok(rdt_backend_unload(owner, "loopback", LONG, &err));
    wait_until(20 * SEC, !connected(1)); /* the reader's end closes for a while yet */
    load_loopback(owner);
    struct rdt_ref ref = put_pattern(owner, NULL, 300000, 1);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .transport = "loopback", .timeout_ns = LONG};
    rdt_request *request = start_as(reader, &ref, &options);
    await_transfer(&c.node[1], "in", "connecting");
    must_ok(rdt_backend_unload(owner, "loopback", LONG, &err));
    must_refuse(RDT_NO_PATH, "it was unloaded there", rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(owner, &ref, false, &err));
    end_two(NULL);
}

/* A vendor's library that has threads and handlers of its own. */
Test(backend, ucx_leaves_and_comes_back)
{
    struct rdt_ref ref;

    cluster_start(&c, 2, &(struct cluster_options){0});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    for (unsigned round = 0; round < 3; round++) {
        struct peer_view view;

        ref = put_pattern(owner, NULL, MIB, round);
        fetch_pattern(reader, &ref, MIB, round, "ucx");
        must_ok(rdt_free(owner, &ref, false, &err));
        wait_until(20 * SEC, rdt_backend_unload(owner, "ucx", LONG, NULL) == RDT_OK);
        must(!is_loaded(&c.node[0], "ucx"));
        must_ok(rdt_backend_load(owner, build_path("backends/rdt_ucx.so"), NULL, LONG, &err));
        wait_until(20 * SEC, peer_seen(&c.node[0], &c.node[1], &view) && view.ucx && peer_seen(&c.node[1], &c.node[0], &view) &&
                                 view.ucx);
    }
    end_two(NULL);
}

/* ---- memory of its own ---- */

/* The frozen plug-in under other names: a memory kind and a transport that are nobody else's. */
static const char *build_odd(void)
{
    const char *so = in_tmp("rdt_odd.so"), *dir = in_tmp("odd");

    run_command("mkdir -p %s && cp tests/abi/v1/*.[ch] %s && sed -i 's/\"host\"/\"odd\"/; s/\"Frozen\"/\"odd\"/' %s/*.c && "
                "cc -std=c11 -D_GNU_SOURCE -shared -fPIC -pthread -o %s %s/*.c && chmod 755 %s",
                dir, dir, dir, so, dir, so);
    return so;
}

static uint64_t alloc_odd(rdt *conn, uint64_t *generation_p, enum rdt_status expected)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    ProtobufCMessage *reply = NULL;
    uint64_t region = 0;

    request.memory = (char *)"odd";
    request.bytes = 1000;
    must_be(expected, call(conn, RDT_MSG_ALLOC, &request.base, LONG, &reply, &err));
    if (reply) {
        region = ((const Rdt__Pb__RegionReply *)reply)->region;
        *generation_p = ((const Rdt__Pb__RegionReply *)reply)->generation;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return region;
}

static void begin(void)
{
    node_start(&node, NULL);
    admin = node_client(&node, "admin");
}

static void end(void)
{
    rdt_close(admin);
    node_end(&node, NULL);
}

Test(backend, memory_kind_with_regions_is_not_unloaded)
{
    Rdt__Pb__ReleaseRegion release = RDT__PB__RELEASE_REGION__INIT;
    uint64_t generation = 0;
    const char *so = build_odd();

    begin();
    (void)alloc_odd(admin, &generation, RDT_UNSUPPORTED);
    must_ok(rdt_backend_load(admin, so, (const char *[]){"directory=/tmp", NULL}, LONG, &err));
    rdt *user = node_client(&node, "user");
    release.region = alloc_odd(user, &generation, RDT_OK);
    must_refuse(RDT_BUSY, "memory kind odd is in use: region ", rdt_backend_unload(admin, "odd", LONG, &err));
    must_ok(call(user, RDT_MSG_RELEASE_REGION, &release.base, LONG, NULL, &err));
    wait_until(20 * SEC, rdt_backend_unload(admin, "odd", LONG, NULL) == RDT_OK);
    (void)alloc_odd(user, &generation, RDT_UNSUPPORTED);
    must_refuse(RDT_INVALID, "host cannot be unloaded", rdt_backend_unload(admin, "Host", LONG, &err));
    must_refuse(RDT_NOT_FOUND, "no backend \"odd\" is loaded; loaded: ", rdt_backend_unload(admin, "odd", LONG, &err));
    rdt_close(user);
    end();
}

/* ---- what is refused ---- */

#define TRANSPORT_SOURCE                                                                                                 \
    "#include \"rdt_backend.h\"\n#include <string.h>\n"                                                                  \
    "static enum rdt_status open_it(const struct rdt_host *h, void **p, struct rdt_error *e)"                            \
    "{ (void)h; *p = e; strcpy(e->msg, \"the device is on fire\"); return OPENS; }\n"                                    \
    "static void f(void *p) { (void)p; }\n"                                                                              \
    "static enum rdt_status create(void *t, const uint8_t u[16], void *c, void **p, struct rdt_error *e)"                \
    "{ (void)t, (void)u, (void)c, (void)e; *p = t; return RDT_OK; }\n"                                                   \
    "static enum rdt_status offer(void *c, uint8_t b[RDT_OFFER_MAX_BYTES], size_t *n, struct rdt_error *e)"              \
    "{ (void)c, (void)b, (void)e; *n = 1; return RDT_OK; }\n"                                                            \
    "static enum rdt_status conn(void *c, const void *b, size_t n, struct rdt_error *e)"                                 \
    "{ (void)c, (void)b, (void)n, (void)e; return RDT_OK; }\n"                                                           \
    "static uint32_t sides(void *c, const char *k) { (void)c, (void)k; return RDT_TWO_SIDED; }\n"                        \
    "static enum rdt_status post(void *c, struct rdt_op *o, struct rdt_error *e)"                                        \
    "{ (void)c, (void)o, (void)e; return RDT_UNSUPPORTED; }\n"                                                           \
    "static const char *const kinds[] = {\"host\", 0};\n"                                                                \
    "static const struct rdt_transport_ops ops = {sizeof ops, NAME, kinds, 1, open_it, f, .connection_create = create,"  \
    " .connection_destroy = f, .offer = offer, .connect = conn, SIDES .disconnect = f, .post_send = post, .post_recv = " \
    "post};\n"                                                                                                           \
    "const struct rdt_backend *rdt_backend_init(void) { static const struct rdt_backend b ="                             \
    " {ABI, sizeof b, NAME, \"1\", 0, 0, &ops}; return &b; }\n"

static const char *build_faulty(const char *abi, const char *name, const char *opens, const char *sides)
{
    const char *so = in_tmp("rdt_faulty.so"), *source = in_tmp("faulty.c");

    write_file(source, TRANSPORT_SOURCE);
    run_command(
        "rm -f %s && cc -D_GNU_SOURCE -shared -fPIC -Iproto -Ibackends -DABI=%s '-DNAME=\"%s\"' -DOPENS=%s '-DSIDES=%s' "
        "-o %s %s && chmod 755 %s",
        so, abi, name, opens, sides, so, source, so);
    return so;
}

#define refused(status, text, path) must_refuse(status, text, rdt_backend_load(admin, path, NULL, LONG, &err))

Test(backend, faulty_plugins_are_refused_by_their_fault)
{
    const char *good_sides = ".sides = sides,";

    begin();
    refused(RDT_UNSUPPORTED, "was built for ABI version 7", build_faulty("7", "f", "RDT_OK", good_sides));
    refused(RDT_INVALID, "transport: sides is missing", build_faulty("1", "f", "RDT_OK", ""));
    refused(RDT_EXISTS, "the name of its backend is taken by", build_faulty("1", "UcX", "RDT_OK", good_sides));
    refused(RDT_INVALID, "is a section of the configuration", build_faulty("1", "Limits", "RDT_OK", good_sides));
    refused(RDT_TRANSPORT, "the device is on fire", build_faulty("1", "f", "RDT_TRANSPORT", good_sides));
    refused(RDT_UNSUPPORTED, "is not available: the device is on fire", build_faulty("1", "f", "RDT_UNSUPPORTED", good_sides));
    must_refuse(
        RDT_INVALID, "no such key",
        rdt_backend_load(admin, build_faulty("1", "f", "RDT_OK", good_sides), (const char *[]){"speed=9", NULL}, LONG, &err));
    must(!is_loaded(&node, "f"));
    must_ok(rdt_backend_load(admin, in_tmp("rdt_faulty.so"), NULL, LONG, &err));
    must(is_loaded(&node, "f"));
    refused(RDT_EXISTS, "is taken by", in_tmp("rdt_faulty.so"));
    must_ok(rdt_backend_unload(admin, "f", LONG, &err));
    end();
}

Test(backend, files_that_are_no_backends_do_no_harm)
{
    const char *so = build_path("tests/rdt_loopback.so"), *cut = in_tmp("rdt_cut.so");
    struct stat st;

    begin();
    refused(RDT_NOT_FOUND, "there is no such file", "/nonexistent/rdt_x.so");
    refused(RDT_INVALID, "is not the absolute path", "nonexistent.so");
    refused(RDT_INVALID, "is not a regular file", "/dev/null");
    refused(RDT_INVALID, "is not a regular file", "/");
    write_file(in_tmp("text.so"), "text");
    refused(RDT_INVALID, "cannot be loaded", in_tmp("text.so"));
    refused(RDT_INVALID, "is not a backend: it exports no rdt_backend_init", build_path("librdt.so"));
    must(stat(so, &st) == 0);
    for (unsigned part = 1; part < 16; part++) { /* truncated at any place: the loader would touch pages that do not exist */
        run_command("rm -f %s && head -c %ld %s >%s", cut, (long)(st.st_size * part / 16), so, cut);
        if (rdt_backend_load(admin, cut, NULL, LONG, NULL) == RDT_OK) /* all but what debuggers want was there */
            must_ok(rdt_backend_unload(admin, "loopback", LONG, &err));
        must(part > 4 || !is_loaded(&node, "loopback"));
    }
    load_loopback(admin);
    must_ok(rdt_backend_unload(admin, "loopback", LONG, &err));
    end();
}

/* Each way by which somebody else could put his code there. */
Test(backend, files_that_others_can_write_are_refused)
{
    const char *dir = in_tmp("dir"), *so = in_tmp("dir/rdt_loopback.so"), *link = in_tmp("link.so");

    begin();
    run_command("mkdir %s && cp %s %s && chmod 755 %s %s", dir, build_path("tests/rdt_loopback.so"), so, dir, so);
    must(chmod(so, 0775) == 0);
    refused(RDT_DENIED, "can be written by others", so);
    must(chmod(so, 0757) == 0);
    refused(RDT_DENIED, "can be written by others", so);
    must(chmod(so, 0755) == 0 && chmod(dir, 0777) == 0);
    refused(RDT_DENIED, "its directory ", so);
    must(symlink(so, link) == 0);
    refused(RDT_DENIED, "its directory ", link);
    must(chmod(dir, 01777) == 0); /* like /tmp: others may create files there, but cannot replace this one */
    must_ok(rdt_backend_load(admin, so, NULL, LONG, &err));
    must_ok(rdt_backend_unload(admin, "loopback", LONG, &err));
    must(chmod(dir, 0755) == 0);
    if (geteuid() == 0) {
        must(chown(so, STRANGER, STRANGER) == 0);
        refused(RDT_DENIED, "belongs to uid 12345", so);
        must(chown(so, 0, 0) == 0 && chown(dir, STRANGER, STRANGER) == 0);
        refused(RDT_DENIED, "belongs to uid 12345", so);
        must(chown(dir, 0, 0) == 0);
    }
    must_ok(rdt_backend_load(admin, link, NULL, LONG, &err));
    must_ok(rdt_backend_unload(admin, "loopback", LONG, &err));
    end();
}

static int try_as_stranger(struct actor *self, void *arg)
{
    rdt *stranger;

    must(chdir(node.dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s"};
    must_ok(rdt_connect(&options, &stranger, &err));
    must_refuse(RDT_DENIED, "only root or the daemon's own user may send BACKEND_LOAD, not uid 12345",
                rdt_backend_load(stranger, build_path("tests/rdt_loopback.so"), NULL, LONG, &err));
    must_refuse(RDT_DENIED, "only root or the daemon's own user may send BACKEND_UNLOAD",
                rdt_backend_unload(stranger, "host", LONG, &err));
    rdt_close(stranger);
    return 0;
}

Test(backend, other_users_may_not)
{
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, try_as_stranger, NULL);
    actor_wait(&actor);
    admin = node_client(&node, "admin");
    must(is_loaded(&node, "host"));
    must(!is_loaded(&node, "loopback"));
    end();
}

/* ---- events ---- */

static void expect_event(rdt *watcher, const char *what, const char *name)
{
    struct rdt_event event;

    must_ok(rdt_next_event(watcher, LONG, &event, &err));
    must_say(event.kind == RDT_KIND_BACKENDS && strcmp(event.what, what) == 0 && strcmp(event.name, name) == 0,
             "event %d %s %s instead of %s %s", (int)event.kind, event.what, event.name, what, name);
}

Test(backend, watchers_hear_of_every_change)
{
    begin();
    rdt *watcher = node_client(&node, "watcher");
    must_ok(rdt_watch(watcher, RDT_KIND_BACKENDS, &err));
    load_loopback(admin);
    expect_event(watcher, "loaded", "loopback");
    must(rdt_backend_load(admin, "/dev/null", NULL, LONG, NULL) != RDT_OK);
    must_ok(rdt_backend_unload(admin, "loopback", LONG, &err));
    expect_event(watcher, "unavailable", "loopback");
    expect_event(watcher, "unloaded", "loopback");
    must_be(RDT_TIMED_OUT, rdt_next_event(watcher, 0, &(struct rdt_event){0}, &err));
    rdt_close(watcher);
    end();
}

static int come_and_go(struct actor *self, void *arg)
{
    rdt *stranger;

    must(chdir(node.dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s"};
    for (unsigned i = 0; i < 2; i++) {
        actor_await(self);
        must_ok(rdt_connect(&options, &stranger, &err));
        actor_step(self);
        actor_await(self);
        rdt_close(stranger);
    }
    return 0;
}

static void expect_owner(rdt *watcher, const char *what)
{
    struct rdt_event event;

    must_ok(rdt_next_event(watcher, LONG, &event, &err));
    must_say(event.kind == RDT_KIND_OWNERS && strcmp(event.what, what) == 0 && event.uid == STRANGER,
             "event %d %s of %u instead of %s", (int)event.kind, event.what, event.uid, what);
}

Test(backend, watchers_hear_of_owners_first_and_last_use)
{
    struct actor actor;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, come_and_go, NULL);
    admin = node_client(&node, "admin");
    rdt *watcher = node_client(&node, "watcher");
    must_ok(rdt_watch(watcher, RDT_KIND_OWNERS, &err));
    for (unsigned i = 0; i < 2; i++) {
        actor_step(&actor);
        actor_await(&actor);
        expect_owner(watcher, "new");
        actor_step(&actor);
        expect_owner(watcher, "gone");
    }
    actor_wait(&actor);
    rdt_close(watcher);
    end();
}
