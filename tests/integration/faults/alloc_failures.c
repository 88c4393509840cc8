/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th allocation of a daemon fails, for every n that a run of all calls reaches. Either the request fails with a
 * status that names the reason, or its connection ends. The daemon goes on, nobody waits for ever, nothing is left behind,
 * and the next client is not affected. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/preload/fail_alloc.h"
#include "tests/support/cluster.h"

TestSuite(alloc_failures, .timeout = 280);

#define LARGE ((size_t)300 << 10)
#define SMALL ((size_t)1000)

static struct test_node nodes[2]; /* 0 puts, 1 fetches */
static struct fail_alloc *control[2];

static const char *const expected_warnings[] = {
    "no memory",   "memory",          "cannot be queued", "is down: ", "is lost: ", "taken down and rebuilt: ",
    "closed",      "refused",         "not connected",    "reset",     "timed out", "no answer",
    "unreachable", "connection from", "Cannot allocate",  "broke",     NULL};

static void begin(void)
{
    static char preload[512], path[2][300];
    const char *tmp = getenv("TMPDIR");

    if (strcmp(getenv("RDT_VARIANT"), "release") != 0)
        cr_skip_test("the sanitizers have an allocator of their own");
    (void)snprintf(preload, sizeof preload, "LD_PRELOAD=%s", build_path("tests/preload/fail_alloc.so"));
    for (unsigned i = 0; i < 2; i++) {
        static const char *const names[] = {"owner", "reader"};

        (void)snprintf(path[i], sizeof path[i], "RDT_FAIL_ALLOC=%.200s/fail%u", tmp ? tmp : "/tmp", i);
        int fd = open(strchr(path[i], '=') + 1, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        must(fd >= 0 && ftruncate(fd, sizeof *control[i]) == 0);
        control[i] = mmap(NULL, sizeof *control[i], PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        must(control[i] != MAP_FAILED);
        (void)close(fd);
        node_start(&nodes[i],
                   &(struct node_options){.name = names[i],
                                          .listen = "127.0.0.1:0",
                                          .trusted_network = true,
                                          .interfaces = "lo",
                                          .env = (const char *const[]){preload, path[i], NULL},
                                          .flags = (const char *const[]){"--peer-timeout=2s", "--backoff-max=50ms",
                                                                         "--quiesce-grace=300ms", "--chunk=64KiB", NULL}});
    }
}

/* The statuses that a call may return when an allocation fails. */
static void bears(const char *what, enum rdt_status status, const struct rdt_error *err)
{
    switch (status) {
    case RDT_OK:
    case RDT_NO_MEMORY:
    case RDT_DISCONNECTED:
    case RDT_PEER_LOST:
    case RDT_TRANSPORT:
    case RDT_NO_PATH:    /* the transport could not connect, and the sentence says so */
    case RDT_OWNER_DIED: /* the owner's connection was ended */
        return;
    default:
        fail("%s, at allocation %llu or %llu: %s: %s", what, (unsigned long long)control[0]->nth,
             (unsigned long long)control[1]->nth, rdt_status_name(status), err->msg);
    }
}

static bool fetch_and_look(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode, size_t bytes, bool into_target)
{
    struct canary canary;
    struct rdt_tensor target;
    const struct rdt_tensor *targets = &target;
    const size_t one = 1;
    struct rdt_error err = {0};
    rdt_object *object;

    canary_create(&canary, bytes);
    target = VECTOR(RDT_U8, bytes, canary.addr);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = mode, .timeout_ns = LONG};
    if (into_target) {
        options.targets = &targets;
        options.target_counts = &one;
    }
    enum rdt_status status = rdt_fetch(conn, ref, 1, &options, &object, &err);
    bears("fetch", status, &err);
    if (status == RDT_OK) {
        must(holds_pattern(tensor_of(object, 0).data, bytes, 1));
        rdt_release(object);
    }
    must(canary_alive(&canary));
    canary_destroy(&canary);
    return status == RDT_OK;
}

static void list(rdt *conn, Rdt__Pb__ListKind kind)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    ProtobufCMessage *reply = NULL;
    struct rdt_error err = {0};

    request.kind = kind;
    enum rdt_status status = call(conn, RDT_MSG_LIST, &request.base, LONG, &reply, &err);
    bears("list", status, &err);
    if (status == RDT_OK)
        protobuf_c_message_free_unpacked(reply, NULL);
}

static rdt *connect_to(unsigned i)
{
    struct rdt_error err = {0};
    rdt *conn = NULL;
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = nodes[i].socket, .timeout_ns = LONG};
    enum rdt_status status = rdt_connect(&options, &conn, &err);

    bears("connect", status, &err);
    return status == RDT_OK ? conn : NULL;
}

static bool put(rdt *conn, size_t bytes, bool in_place, uint32_t flags, struct rdt_ref *ref_p)
{
    struct rdt_error err = {0};
    enum rdt_status status;
    void *memory = NULL;

    if (in_place) {
        status = rdt_alloc(conn, bytes, &memory, &err);
        bears("alloc", status, &err);
        if (status != RDT_OK)
            return false;
    } else {
        memory = malloc(bytes);
    }
    fill_pattern(memory, bytes, 1);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = flags};
    status = rdt_put(conn, &tensor, 1, &options, ref_p, &err);
    bears("put", status, &err);
    if (!in_place)
        free(memory);
    return status == RDT_OK;
}

/* Makes every call once. */
static void use(void)
{
    rdt *owner = connect_to(0), *reader = connect_to(1);
    struct rdt_ref ref, small, parked = ref_named("nobody");
    struct rdt_error err = {0};
    struct rdt_stat stat;

    if (owner && reader) {
        if (put(owner, LARGE, true, 0, &ref)) {
            (void)fetch_and_look(owner, &ref, RDT_FETCH_AUTO, LARGE, false);
            (void)fetch_and_look(owner, &ref, RDT_FETCH_COPY, LARGE, false);
            (void)fetch_and_look(reader, &ref, RDT_FETCH_AUTO, LARGE, false);
            (void)fetch_and_look(reader, &ref, RDT_FETCH_AUTO, LARGE, true);
            bears("stat", rdt_stat(reader, &ref, &stat, &err), &err);
            bears("free", rdt_free(owner, &ref, false, &err), &err);
            bears("wait_freed", rdt_wait_freed(owner, &ref, LONG, &err), &err);
        }
        if (put(owner, SMALL, false, 0, &small)) {
            (void)fetch_and_look(reader, &small, RDT_FETCH_AUTO, SMALL, false);
            (void)fetch_and_look(owner, &small, RDT_FETCH_AUTO, SMALL, true);
        }
        if (put(owner, LARGE, false, RDT_PUT_SNAPSHOT, &ref)) { /* a region that is handed over */
            (void)fetch_and_look(owner, &ref, RDT_FETCH_COW, LARGE, false);
            bears("free", rdt_free(owner, &ref, false, &err), &err);
        }
        if (rdt_wait_put(owner, &parked, MSEC, &err) != RDT_TIMED_OUT)
            bears("wait_put", err.status, &err);
        for (Rdt__Pb__ListKind kind = 0; kind <= RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS; kind++)
            list(reader, kind);
    }
    rdt_close(reader);
    rdt_close(owner);
}

static void arm(unsigned i, uint64_t nth)
{
    control[i]->nth = nth;
    control[i]->count = 0;
    control[i]->failed = 0;
    control[i]->armed = 1;
}

/* Without failures everything works, at once or as soon as links and connections that broke are back. */
static void use_in_peace(void)
{
    int64_t deadline = now_ns() + LONG;

    for (unsigned round = 0;; wait_pause(&round)) {
        rdt *owner = node_client(&nodes[0], "owner"), *reader = node_client(&nodes[1], "reader");
        struct rdt_ref ref = put_pattern(owner, NULL, LARGE, 1);
        bool well = fetch_and_look(reader, &ref, RDT_FETCH_AUTO, LARGE, false);

        rdt_close(reader);
        rdt_close(owner);
        if (well)
            return;
        must_say(now_ns() < deadline, "the nodes do not recover");
    }
}

static void check(unsigned i)
{
    uint64_t nth, hits = 0;

    begin();
    use_in_peace();
    for (nth = 1;; nth++) {
        arm(i, nth);
        use();
        control[i]->armed = 0;
        bool failed = control[i]->failed > 0;
        hits += failed;
        use_in_peace();
        if (!failed)
            break;
        if (nth % 16 == 0) { /* the arena keeps an empty chunk for a second: not each time */
            node_expect_idle(&nodes[0]);
            node_expect_idle(&nodes[1]);
        }
    }
    (void)fprintf(stderr, "%llu failures, up to allocation %llu\n", (unsigned long long)hits, (unsigned long long)nth);
    must_say(hits > 20, "only %llu allocations failed: is the tool there?", (unsigned long long)hits);
    for (unsigned k = 0; k < 2; k++)
        node_expect_idle(&nodes[k]);
    for (unsigned k = 2; k-- > 0;) {
        node_stop(&nodes[k]);
        node_check_log(&nodes[k], expected_warnings);
    }
}

Test(alloc_failures, of_the_owners_daemon)
{
    check(0);
}

Test(alloc_failures, of_the_readers_daemon)
{
    check(1);
}
