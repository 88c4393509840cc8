/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: connecting, deadlines, late answers, forks, and the loss of the daemon. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/call.h"
#include "tests/support/fakes/fake_daemon.h"

static struct rdt_error err;

/* Starts one fetch. */
static rdt_request *fetch(rdt *conn, const char *id, int64_t timeout_ns)
{
    struct rdt_ref ref = fake_ref(id);
    rdt_request *request;
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = timeout_ns};

    MUST(rdt_fetch_start(conn, &ref, 1, &options, &request, &err) == RDT_OK);
    return request;
}

/* ---- connecting ---- */

static void serve(struct fake *fake)
{
    fake_serve(fake);
}

Test(client, connect_returns_the_nodes_description)
{
    struct fake fake;
    struct rdt_node_info node;
    rdt *conn = fake_client(&fake, serve, NULL);

    assert_status(RDT_OK, rdt_node(conn, &node, &err));
    cr_assert_eq(node.node[2], 3);
    cr_assert_eq(node.boot_id[2], 6);
    cr_assert_str_eq(node.address, "host:1234");
    cr_assert_str_eq(node.daemon_version, "9.8.7");
    cr_assert_str_eq(node.tenant, "team");
    cr_assert_eq(node.session, 42);
    cr_assert_eq(node.uid, 1000);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

Test(client, connect_without_daemon_names_the_socket)
{
    unsigned fds = fake_count_fds();
    rdt *conn;
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "/nonexistent/rdtd.sock"};

    assert_status(RDT_DISCONNECTED, rdt_connect(&options, &conn, &err));
    cr_assert_eq(err.sys_errno, ENOENT);
    cr_assert_str_eq(err.msg, "cannot reach rdtd at /nonexistent/rdtd.sock: No such file or directory (is the daemon "
                              "running? set RDT_SOCKET to another socket)");
    setenv("RDT_SOCKET", "/nonexistent/other", 1);
    assert_refused(RDT_DISCONNECTED, "/nonexistent/other", rdt_connect(NULL, &conn, &err));
    cr_assert_eq(fake_count_fds(), fds);
    rdt_close(NULL);
}

static void refuse_at_once(struct fake *fake)
{
    fake->frame.type = RDT_MSG_HELLO;
    fake->frame.request_id = 0;
    fake_error(fake, RDT_LIMIT, "1024 clients are connected already");
}

static void refuse_hello(struct fake *fake)
{
    fake_take(fake, RDT_MSG_HELLO);
    fake_error(fake, RDT_DENIED, "uid 7 may not connect");
}

static void ignore_hello(struct fake *fake)
{
    fake_take(fake, RDT_MSG_HELLO);
    (void)fake_take_any(fake);
}

static void check_refusal(void (*script)(struct fake *), int64_t timeout_ns, enum rdt_status expected, const char *words)
{
    struct fake fake;
    rdt *conn;

    fake_start_raw(&fake, script, NULL);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = fake.path, .timeout_ns = timeout_ns};
    assert_status(expected, rdt_connect(&options, &conn, &err));
    cr_assert(strstr(err.msg, words), "%s", err.msg);
    fake_stop(&fake);
}

Test(client, connect_refused_says_why)
{
    unsigned fds = fake_count_fds();

    check_refusal(refuse_at_once, LONG_NS, RDT_LIMIT, "1024 clients");
    check_refusal(refuse_hello, LONG_NS, RDT_DENIED, "uid 7");
    check_refusal(ignore_hello, 50 * MS, RDT_TIMED_OUT, "HELLO");
    cr_assert_eq(fake_count_fds(), fds);
}

Test(client, options_of_another_version)
{
    struct {
        struct rdt_connect_options known;
        uint64_t later;
    } options = {.known = {.struct_size = sizeof options, .socket = "/nonexistent/x"}};
    rdt *conn;

    assert_status(RDT_DISCONNECTED, rdt_connect(&options.known, &conn, &err));
    options.later = 1;
    assert_status(RDT_UNSUPPORTED, rdt_connect(&options.known, &conn, &err));
    options.known.struct_size = 0;
    assert_status(RDT_INVALID, rdt_connect(&options.known, &conn, &err));
}

/* ---- a daemon that does not answer ---- */

static void be_silent(struct fake *fake)
{
    while (fake_take_any(fake))
        ;
}

Test(client, silent_daemon_every_call_ends_at_its_deadline)
{
    struct rdt_ref ref = fake_ref("weights"), made;
    int64_t start_ns = fake_now_ns();
    struct fake fake;
    rdt_object *object;
    rdt *conn = fake_client(&fake, be_silent, NULL);

    assert_status(RDT_TIMED_OUT, rdt_ping(conn, 20 * MS, &err));
    assert_refused(RDT_TIMED_OUT, "waiting for \"weights\" to be put", rdt_wait_put(conn, &ref, 20 * MS, &err));
    assert_status(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 0, &err));
    struct rdt_put_options put = {.struct_size = sizeof put, .timeout_ns = 20 * MS};
    assert_status(RDT_TIMED_OUT, rdt_put(conn, NULL, 0, &put, &made, &err));
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 20 * MS};
    assert_refused(RDT_TIMED_OUT, "\"weights\"", rdt_fetch(conn, &ref, 1, &options, &object, &err));
    cr_assert_lt(fake_now_ns() - start_ns, LONG_NS / 2);
    cr_assert_geq(fake_now_ns() - start_ns, 4 * 20 * MS);
    fake_end(&fake, conn);
}

static void read_nothing(struct fake *fake)
{
    MUST(sem_wait(&fake->step) == 0);
}

Test(client, full_socket_does_not_block_past_the_deadline)
{
    static uint8_t metadata[4 << 20];
    int64_t start_ns = fake_now_ns();
    enum rdt_status status = RDT_OK;
    struct fake fake;
    struct rdt_ref made;
    rdt *conn = fake_client(&fake, read_nothing, NULL);
    struct rdt_put_options put = {
        .struct_size = sizeof put, .metadata = metadata, .metadata_bytes = sizeof metadata, .timeout_ns = 5 * MS};

    for (unsigned i = 0; i < 100 && status != RDT_LIMIT; i++) {
        status = rdt_put(conn, NULL, 0, &put, &made, &err);
        cr_assert(status == RDT_TIMED_OUT || status == RDT_LIMIT, "%s", err.msg);
    }
    cr_assert_eq(status, RDT_LIMIT);
    cr_assert_lt(fake_now_ns() - start_ns, LONG_NS / 2);
    sem_post(&fake.step);
    fake_stop(&fake);
    assert_status(RDT_DISCONNECTED, rdt_ping(conn, LONG_NS, &err));
    rdt_close(conn);
}

static void read_slowly(struct fake *fake)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;

    MUST(sem_wait(&fake->step) == 0);
    fake_take(fake, RDT_MSG_PUT);
    ref.id.data = (uint8_t *)"x";
    ref.id.len = 1;
    Rdt__Pb__PutReply reply = MESSAGE(put_reply, .ref = &ref);
    fake_reply(fake, &reply.base);
    fake_serve(fake);
}

static void *put_large(void *arg)
{
    static uint8_t metadata[4 << 20];
    struct rdt_ref made;
    struct rdt_put_options put = {.struct_size = sizeof put, .metadata = metadata, .metadata_bytes = sizeof metadata};

    MUST(rdt_put(arg, NULL, 0, &put, &made, NULL) == RDT_OK);
    return NULL;
}

Test(client, full_socket_is_written_when_there_is_room)
{
    struct fake fake;
    pthread_t thread;
    rdt *conn = fake_client(&fake, read_slowly, NULL);

    cr_assert_eq(pthread_create(&thread, NULL, put_large, conn), 0);
    sem_post(&fake.step);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

/* ---- answers that come too late ---- */

static void answer_late(struct fake *fake)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;

    fake_take(fake, RDT_MSG_ALLOC);
    MUST(sem_wait(&fake->step) == 0);
    int fd = fake_memfd(4096);
    Rdt__Pb__RegionReply region = MESSAGE(region_reply, .region = 77, .bytes = 4096);
    fake_reply_fd(fake, &region.base, fd);
    close(fd);
    fake_take(fake, RDT_MSG_PUT);
    MUST(sem_wait(&fake->step) == 0);
    ref.id.data = (uint8_t *)"late";
    ref.id.len = 4;
    Rdt__Pb__PutReply put = MESSAGE(put_reply, .ref = &ref);
    fake_reply(fake, &put.base);

    fake_take(fake, RDT_MSG_RELEASE_REGION);
    Rdt__Pb__ReleaseRegion *release = FAKE_MESSAGE(fake, ReleaseRegion);
    MUST(release->region == 77);
    fake_free(release);
    fake_empty(fake);
    fake_take(fake, RDT_MSG_FREE);
    Rdt__Pb__Free *freed = FAKE_MESSAGE(fake, Free);
    MUST(freed->ref->id.len == 4 && !freed->force);
    fake_free(freed);
    fake_empty(fake);
    fake_serve(fake);
}

Test(client, late_reply_is_given_back_and_its_fds_closed)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    struct rdt_ref made;
    struct fake fake;
    rdt *conn = fake_client(&fake, answer_late, NULL);
    unsigned fds = fake_count_fds();

    assert_status(RDT_TIMED_OUT, call(conn, RDT_MSG_ALLOC, &request.base, 20 * MS, NULL, &err));
    struct rdt_put_options put = {.struct_size = sizeof put, .timeout_ns = 20 * MS, .id = "late", .id_bytes = 4};
    sem_post(&fake.step);
    assert_status(RDT_TIMED_OUT, rdt_put(conn, NULL, 0, &put, &made, &err));
    sem_post(&fake.step);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    cr_assert_eq(fake_count_fds(), fds);
    fake_end(&fake, conn);
}

static void finish_late(struct fake *fake)
{
    fake_take(fake, RDT_MSG_FETCH);
    uint64_t handle = fake_only_handle(fake);
    fake_empty(fake);
    fake_take(fake, RDT_MSG_CANCEL);
    Rdt__Pb__Cancel *cancel = FAKE_MESSAGE(fake, Cancel);
    MUST(cancel->handle == handle);
    fake_free(cancel);
    fake_empty(fake);
    fake_send_object(fake, handle, 5, 4096);
    fake_take(fake, RDT_MSG_RELEASE);
    Rdt__Pb__Release *release = FAKE_MESSAGE(fake, Release);
    MUST(release->hold == 5);
    fake_free(release);
    fake_empty(fake);
    fake_serve(fake);
}

Test(client, late_object_is_released_and_its_fds_closed)
{
    struct fake fake;
    rdt *conn = fake_client(&fake, finish_late, NULL);
    unsigned fds = fake_count_fds();
    rdt_request *request = fetch(conn, "x", 20 * MS);

    assert_status(RDT_TIMED_OUT, rdt_wait(conn, &request, 1, 1, LONG_NS, NULL, NULL, &err));
    assert_status(RDT_TIMED_OUT, rdt_request_status(request, &err));
    rdt_request_destroy(request);
    /* Its answer comes behind the object. */
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    cr_assert_eq(fake_count_fds(), fds);
    fake_end(&fake, conn);
}

Test(client, cancel_ends_the_request_at_once)
{
    struct fake fake;
    rdt_object *object;
    rdt *conn = fake_client(&fake, finish_late, NULL);
    rdt_request *request = fetch(conn, "x", 0);

    assert_status(RDT_AGAIN, rdt_request_status(request, &err));
    rdt_cancel(request);
    assert_status(RDT_CANCELLED, rdt_request_status(request, &err));
    assert_status(RDT_CANCELLED, rdt_request_take_object(request, &object, &err));
    assert_status(RDT_CANCELLED, rdt_wait(conn, &request, 1, RDT_WAIT_ALL, 0, NULL, NULL, &err));
    rdt_cancel(request);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    rdt_request_destroy(request);
    fake_end(&fake, conn);
}

/* ---- forks ---- */

static void share_one(struct fake *fake)
{
    fake_take(fake, RDT_MSG_FETCH);
    fake_send_object(fake, fake_only_handle(fake), 5, 4096);
    fake_serve(fake);
}

/* What a child must see. */
static int in_child(rdt *conn, rdt_request *request, rdt_object *object)
{
    struct rdt_ref ref = fake_ref("x");
    struct rdt_tensor tensor;
    void *addr;
    size_t n;

    if (rdt_ping(conn, 0, NULL) != RDT_FORKED || rdt_alloc(conn, 1, &addr, NULL) != RDT_FORKED)
        return 1;
    if (rdt_put(conn, NULL, 0, NULL, &ref, NULL) != RDT_FORKED || rdt_free(conn, &ref, false, NULL) != RDT_FORKED)
        return 2;
    if (rdt_fetch(conn, &ref, 1, NULL, &object, NULL) != RDT_FORKED || rdt_dispatch(conn, &n, NULL) != RDT_FORKED)
        return 3;
    if (rdt_request_status(request, NULL) != RDT_FORKED || rdt_object_tensor(object, 0, &tensor, NULL) != RDT_FORKED)
        return 4;
    if (rdt_fd(conn) != -1 || rdt_wait(conn, &request, 1, 1, 0, NULL, NULL, NULL) != RDT_FORKED)
        return 5;
    rdt_cancel(request);
    rdt_request_destroy(request);
    rdt_release(object);
    rdt_close(conn);
    return 0;
}

Test(client, forked_child_is_told_and_disturbs_nobody)
{
    struct rdt_tensor tensor;
    struct fake fake;
    rdt_object *object;
    int state;
    rdt *conn = fake_client(&fake, share_one, NULL);
    rdt_request *request = fetch(conn, "x", 0);

    assert_status(RDT_OK, rdt_wait(conn, &request, 1, 1, LONG_NS, NULL, NULL, &err));
    assert_status(RDT_OK, rdt_request_take_object(request, &object, &err));
    rdt_request *open = fetch(conn, "y", LONG_NS);

    pid_t child = fork();
    if (child == 0)
        _exit(in_child(conn, open, object));
    cr_assert_eq(waitpid(child, &state, 0), child);
    cr_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %x", state);

    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    assert_status(RDT_AGAIN, rdt_request_status(open, &err));
    assert_status(RDT_OK, rdt_object_tensor(object, 0, &tensor, &err));
    cr_assert_eq(((uint8_t *)tensor.data)[100], 100);
    rdt_request_destroy(request);
    rdt_request_destroy(open);
    rdt_release(object);
    fake_end(&fake, conn);
}

/* ---- errors and loss ---- */

static void refuse_and_garble(struct fake *fake)
{
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_FREE);
    fake_error(fake, RDT_NOT_FOUND, "no object \"x\"");
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_FREE);
    fake_error(fake, RDT_FREED, "");
    fake_take(fake, RDT_MSG_STAT);
    fake_empty(fake); /* readable, but without a ref */
    fake_serve(fake);
}

Test(client, error_reply_is_the_answer)
{
    struct rdt_ref ref = fake_ref("x");
    struct rdt_stat stat;
    struct fake fake;
    rdt *conn = fake_client(&fake, refuse_and_garble, NULL);

    assert_status(RDT_NOT_FOUND, rdt_free(conn, &ref, false, &err));
    cr_assert_str_eq(err.msg, "no object \"x\"");
    assert_status(RDT_FREED, rdt_free(conn, &ref, true, &err));
    cr_assert_str_eq(err.msg, "the object was freed");
    cr_assert_neq(rdt_stat(conn, &ref, &stat, &err), RDT_OK);
    ref.id_bytes = 0;
    assert_status(RDT_INVALID, rdt_free(conn, &ref, false, &err));
    assert_status(RDT_INVALID, rdt_ping(NULL, 0, &err));
    fake_end(&fake, conn);
}

struct pinger {
    rdt *conn;
    enum rdt_status status;
};

static void *ping_once(void *arg)
{
    struct pinger *pinger = arg;

    pinger->status = rdt_ping(pinger->conn, LONG_NS, NULL);
    return NULL;
}

static void take_four_and_close(struct fake *fake)
{
    for (unsigned i = 0; i < 4; i++)
        MUST(fake_take_any(fake));
}

Test(client, end_of_daemon_fails_everything_at_once)
{
    int64_t start_ns = fake_now_ns();
    struct pinger pingers[2];
    pthread_t threads[2];
    struct fake fake;
    rdt_request *requests[2];
    struct rdt_ref ref = fake_ref("z");
    rdt_object *object;
    bool done[2];
    size_t n;
    rdt *conn = fake_client(&fake, take_four_and_close, NULL);

    requests[0] = fetch(conn, "x", 0);
    requests[1] = fetch(conn, "y", LONG_NS);
    for (unsigned i = 0; i < 2; i++) {
        pingers[i].conn = conn;
        cr_assert_eq(pthread_create(&threads[i], NULL, ping_once, &pingers[i]), 0);
    }
    assert_status(RDT_DISCONNECTED, rdt_wait(conn, requests, 2, RDT_WAIT_ALL, RDT_FOREVER, done, &n, &err));
    cr_assert(done[0] && done[1] && n == 2);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
        cr_assert_eq(pingers[i].status, RDT_DISCONNECTED);
        assert_status(RDT_DISCONNECTED, rdt_request_status(requests[i], &err));
        rdt_request_destroy(requests[i]);
    }
    assert_status(RDT_DISCONNECTED, rdt_ping(conn, RDT_FOREVER, &err));
    assert_status(RDT_DISCONNECTED, rdt_fetch(conn, &ref, 1, NULL, &object, &err));
    assert_status(RDT_DISCONNECTED, rdt_dispatch(conn, NULL, &err));
    cr_assert_lt(fake_now_ns() - start_ns, LONG_NS / 2);
    fake_end(&fake, conn);
}
