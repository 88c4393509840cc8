/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a service: how it is started, stopped and configured, and in which cases it refuses to start. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/program.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;

static const char *in_tmp(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    const char *dir = getenv("TMPDIR");

    (void)snprintf(paths[next % 4], sizeof paths[0], "%s/%s", dir ? dir : "/tmp", name);
    return paths[next++ % 4];
}

static int listen_at(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    must(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    must(type != SOCK_STREAM || listen(fd, 10) == 0);
    return fd;
}

/* A start that must fail with status 1 or 2, saying why. */
static void refuses_to_start(const struct node_options *options, int expected, const char *text)
{
    int status = -1;

    must_say(!node_try_start(&node, options, &status), "it started");
    if (status != expected || !node_log_has(&node, text)) {
        node_print_log(&node);
        fail("ended with %d instead of %d, or without \"%s\"", status, expected, text);
    }
}

/* ---- the service manager ---- */

static int knock(struct actor *self, void *arg)
{
    rdt *conn = NULL;
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = arg, .timeout_ns = LONG};

    actor_step(self);
    must_ok(rdt_connect(&options, &conn, &err));
    must_ok(rdt_ping(conn, LONG, &err));
    rdt_close(conn);
    return 0;
}

Test(daemon, sockets_that_are_passed_are_served)
{
    const char *paths[] = {in_tmp("activated.1"), in_tmp("activated.2")};
    int fds[] = {listen_at(paths[0], SOCK_STREAM), listen_at(paths[1], SOCK_STREAM), -1};
    struct actor actors[2];

    for (unsigned i = 0; i < 2; i++) { /* a client that connects before the daemon runs waits for it */
        actor_start(&actors[i], knock, (void *)(uintptr_t)paths[i]);
        actor_await(&actors[i]);
    }
    node_start(&node, &(struct node_options){.socket = paths[0], .pass_fds = fds});
    for (unsigned i = 0; i < 2; i++)
        actor_wait(&actors[i]);
    node_end(&node, NULL);
    cr_assert_eq(access(paths[0], F_OK), 0, "it removed a socket that is not its own");
    node_start(&node, &(struct node_options){.socket = paths[0], .pass_fds = fds}); /* and again with the same ones */
    node_end(&node, NULL);
    close(fds[0]);
    close(fds[1]);
}

Test(daemon, passed_fds_that_are_no_listeners_are_refused)
{
    int pipe_fds[2], fds[2] = {-1, -1};

    fds[0] = listen_at(in_tmp("dgram"), SOCK_DGRAM);
    refuses_to_start(&(struct node_options){.pass_fds = fds}, 1, "is not a listening Unix socket");
    close(fds[0]);
    must(pipe2(pipe_fds, O_CLOEXEC) == 0);
    fds[0] = pipe_fds[0];
    refuses_to_start(&(struct node_options){.pass_fds = fds}, 1, "is not a listening Unix socket");
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

Test(daemon, manager_is_told_of_readiness_life_and_end)
{
    node_spawn(&node, &(struct node_options){.watchdog_usec = 100000});
    node_await_notify(&node, "READY=1");
    for (unsigned i = 0; i < 3; i++)
        node_await_notify(&node, "WATCHDOG=1");
    rdt *conn = node_client(&node, "test");
    rdt_close(conn);
    must(kill(node.pid, SIGTERM) == 0);
    node_await_notify(&node, "STOPPING=1");
    cr_assert_eq(node_result(&node), 0);
    node_check_log(&node, NULL);
}

Test(daemon, sigint_stops_like_sigterm)
{
    node_start(&node, NULL);
    must(kill(node.pid, SIGINT) == 0);
    cr_assert_eq(node_result(&node), 0);
    node_check_log(&node, NULL);
}

/* ---- stopping ---- */

static struct rdt_ref put_big(rdt *conn, size_t bytes)
{
    char *addr = alloc_memory(conn, bytes);

    memset(addr, 5, bytes);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, bytes, addr), "big");
    return ref;
}

static void start_copies(rdt *conn, const struct rdt_ref *ref, rdt_request **requests, unsigned n)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_COPY};
    for (unsigned i = 0; i < n; i++)
        must_ok(rdt_fetch_start(conn, ref, 1, &options, &requests[i], &err));
    must_ok(rdt_ping(conn, LONG, &err)); /* the daemon has them all */
}

/* A daemon with so many copies under way that is told to end, and their client. */
static rdt *stop_during(const char *const *flags, size_t bytes, rdt_request **requests, unsigned n)
{
    node_start(&node, &(struct node_options){.flags = flags});
    rdt *conn = node_client(&node, "test");
    struct rdt_ref ref = put_big(conn, bytes);
    start_copies(conn, &ref, requests, n);
    must(kill(node.pid, SIGTERM) == 0);
    node_await_notify(&node, "STOPPING=1");
    return conn;
}

static void await_after(bool the_end)
{
    rdt_request *requests[6];
    rdt *conn = stop_during(NULL, 48 * MIB, requests, 6);

    if (the_end)
        cr_assert_eq(node_result(&node), 0);
    for (unsigned i = 0; i < 6; i++) {
        rdt_object *object = await_object(conn, requests[i]);
        cr_assert(is_filled_with(tensor_of(object, 0).data, 48 * MIB, 5));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    if (!the_end)
        cr_assert_eq(node_result(&node), 0);
    must_be(RDT_DISCONNECTED, rdt_ping(conn, LONG, &err));
    rdt_close(conn);
    node_check_log(&node, NULL);
}

Test(daemon, sigterm_lets_transfers_end)
{
    await_after(false);
}

/* The memory in the answers is there, and can be mapped. */
Test(daemon, answers_are_read_after_the_daemon_has_ended)
{
    await_after(true);
}

Test(daemon, second_signal_hurries)
{
    rdt_request *requests[12];
    rdt *conn = stop_during(NULL, 64 * MIB, requests, 12);

    must(kill(node.pid, SIGTERM) == 0);
    cr_assert_eq(node_result(&node), 0);
    for (unsigned i = 0; i < 12; i++) {
        enum rdt_status status = rdt_wait(conn, &requests[i], 1, 1, LONG, NULL, NULL, NULL);
        cr_assert(status == RDT_OK || status == RDT_DISCONNECTED || status == RDT_SHUTTING_DOWN, "%s", rdt_status_name(status));
        rdt_request_destroy(requests[i]);
    }
    rdt_close(conn);
    node_check_log(&node, NULL);
}

static size_t peak_bytes_of_children(void)
{
    struct rusage usage;

    must(getrusage(RUSAGE_CHILDREN, &usage) == 0);
    return (size_t)usage.ru_maxrss * 1024;
}

Test(daemon, second_signal_begins_no_allocation)
{
    const char *flags[] = {"--worker-threads=1", NULL};
    rdt_request *requests[12];
    rdt *conn = stop_during(flags, 64 * MIB, requests, 12);

    must(kill(node.pid, SIGTERM) == 0);
    cr_assert_eq(node_result(&node), 0);
    cr_assert_lt(peak_bytes_of_children(), 6 * 64 * MIB, "the daemon had %zu bytes", peak_bytes_of_children());
    for (unsigned i = 0; i < 12; i++)
        rdt_request_destroy(requests[i]);
    rdt_close(conn);
    node_check_log(&node, NULL);
}

Test(daemon, signals_do_not_kill_it_while_it_ends)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    static const char *const said[] = {"does not reload its configuration", NULL};
    siginfo_t info = {0};

    node_start(&node, NULL);
    rdt *conn = node_client(&node, "test");
    (void)put_big(conn, 64 * MIB);
    rdt_close(conn);
    must(kill(node.pid, SIGTERM) == 0);
    for (unsigned i = 0; info.si_pid == 0; i++) { /* until it has ended; node_result waits for that, too */
        must(kill(node.pid, signals[i % 3]) == 0);
        must(waitid(P_PID, (id_t)node.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0);
    }
    cr_assert_eq(node_result(&node), 0);
    node_check_log(&node, said);
}

/* No put can arrive any more, so the daemon does not wait for those who wait for a put. */
Test(daemon, sigterm_does_not_wait_for_puts_that_cannot_come)
{
    const char *flags[] = {"--drain-timeout=1h", NULL};
    struct rdt_ref never = ref_named("never");

    node_start(&node, &(struct node_options){.flags = flags});
    rdt *conn = node_client(&node, "test");
    rdt_request *request = start_one(conn, &never, 0);
    must_ok(rdt_ping(conn, LONG, &err));
    int64_t start = now_ns();
    must(kill(node.pid, SIGTERM) == 0);
    must_be(RDT_SHUTTING_DOWN, rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    cr_assert_eq(node_result(&node), 0);
    must_be_within(start, 5 * SEC);
    rdt_request_destroy(request);
    rdt_close(conn);
    node_check_log(&node, NULL);
}

Test(daemon, clients_learn_of_the_end)
{
    node_start(&node, NULL);
    rdt *conn = node_client(&node, "test");
    struct rdt_ref ref = put_big(conn, MIB);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);
    node_stop(&node);
    must_be(RDT_DISCONNECTED, rdt_ping(conn, LONG, &err));
    must_be(RDT_DISCONNECTED, rdt_put(conn, NULL, 0, NULL, &ref, &err));
    cr_assert(is_filled_with(tensor_of(object, 0).data, MIB, 5), "memory went with the daemon");
    rdt_release(object);
    rdt_close(conn);
    cr_assert_eq(access(node.socket, F_OK), -1, "the socket stays behind");
    node_check_log(&node, NULL);
}

/* ---- sockets ---- */

Test(daemon, second_daemon_on_one_socket_is_refused)
{
    node_start(&node, NULL);
    struct test_node first = node;
    refuses_to_start(&(struct node_options){.socket = first.socket}, 1, "another daemon serves");
    node = first;
    rdt *conn = node_client(&node, "test"); /* the first one is unharmed */
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(daemon, stale_socket_is_replaced)
{
    char socket_path[200];
    struct stat st;

    node_start(&node, NULL);
    (void)snprintf(socket_path, sizeof socket_path, "%s", node.socket);
    node_kill(&node, SIGKILL);
    cr_assert_eq(lstat(socket_path, &st), 0);
    node_start(&node, &(struct node_options){.socket = socket_path});
    node_end(&node, NULL);
}

Test(daemon, file_in_the_sockets_place_is_left_alone)
{
    write_file("precious", "data");
    refuses_to_start(&(struct node_options){.socket = in_tmp("precious")}, 1, "is not a socket");
    char *text = read_file("precious", NULL);
    cr_assert_str_eq(text, "data");
    free(text);
}

Test(daemon, socket_mode_is_as_configured)
{
    const char *flags[] = {"--socket-mode=0600", NULL};
    struct stat st;

    for (unsigned i = 0; i < 2; i++) {
        node_start(&node, &(struct node_options){.flags = i ? flags : NULL});
        cr_assert_eq(stat(node.socket, &st), 0);
        cr_assert_eq(st.st_mode & 0777, i ? 0600 : 0666);
        node_end(&node, NULL);
    }
}

Test(daemon, one_client_too_many_is_told_the_limit)
{
    const char *flags[] = {"--max-clients=3", NULL};
    const char *declared[] = {"max_clients", NULL};
    rdt *conns[3], *more = NULL;

    node_start(&node, &(struct node_options){.flags = flags});
    for (unsigned i = 0; i < 3; i++)
        conns[i] = node_client(&node, "test");
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = node.socket};
    must_refuse(RDT_LIMIT, "max_clients", rdt_connect(&options, &more, &err));
    for (unsigned i = 0; i < 3; i++)
        must_ok(rdt_ping(conns[i], LONG, &err));
    rdt_close(conns[0]);
    wait_until(20 * SEC, rdt_connect(&options, &more, NULL) == RDT_OK);
    rdt_close(more);
    rdt_close(conns[1]);
    rdt_close(conns[2]);
    node_end(&node, declared);
}

/* ---- who it is ---- */

Test(daemon, uuid_stays_and_boot_id_changes)
{
    struct rdt_node_info infos[3];
    struct rdt_ref ref;
    char state[200];
    rdt_object *object;

    for (unsigned i = 0; i < 3; i++) {
        node_start(&node, &(struct node_options){.state_dir = i == 1 ? state : NULL});
        rdt *conn = node_client(&node, "test");
        must_ok(rdt_node(conn, &infos[i], &err));
        if (i == 0)
            ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
        if (i == 1) /* a ref of an earlier life */
            must_be(RDT_NOT_FOUND, try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
        rdt_close(conn);
        (void)snprintf(state, sizeof state, "%s", node.state_dir);
        node_end(&node, NULL);
    }
    cr_assert_arr_eq(infos[0].node, infos[1].node, 16);
    cr_assert_arr_neq(infos[0].boot_id, infos[1].boot_id, 16);
    cr_assert_arr_neq(infos[0].node, infos[2].node, 16);
}

Test(daemon, broken_uuid_is_set_aside)
{
    static const char *const declared[] = {"did not contain 32 hex digits", NULL};

    must(mkdir(in_tmp("broken"), 0700) == 0);
    write_file("broken/node_uuid", "not a uuid");
    node_start(&node, &(struct node_options){.state_dir = in_tmp("broken")});
    char *text = read_file("broken/node_uuid.damaged", NULL);
    cr_assert_str_eq(text, "not a uuid");
    free(text);
    text = read_file("broken/node_uuid", NULL);
    cr_assert_eq(strncmp(text, node.uuid, 32), 0);
    free(text);
    node_end(&node, declared);
}

/* ---- configuration ---- */

Test(daemon, bad_flags_end_with_2_and_a_sentence)
{
    static const struct {
        const char *flag, *text;
    } cases[] = {
        {"--frobnicate", "no such flag"},
        {"--max-clients=none", "max"},
        {"--memory-limit=12XiB", "memory"},
        {"--worker-threads=0", "1"},
        {"--listen=nowhere:1", "numeric"},
        {"--drain-timeout=soon", "drain"},
        {"--log-level=loud", "expected error"},
        {"--socket-mode=9", "octal"},
        {"stray", "expected a flag"},
        {"--listen=127.0.0.1:0", "needs key_file"},
        {"--nodes=/does/not/exist", "/does/not/exist"},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *flags[] = {cases[i].flag, NULL};
        refuses_to_start(&(struct node_options){.flags = flags}, 2, cases[i].text);
    }
}

Test(daemon, no_backend_for_host_memory_is_refused)
{
    refuses_to_start(&(struct node_options){.no_backend_dir = true}, 1, "host memory");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which need more themselves */
Test(daemon, too_few_open_files_for_the_loop_are_an_error)
{
    const char *const argv[] = {"/usr/bin/prlimit", "--nofile=6:6", build_path("rdtd"), "--config=", "--state-dir=", NULL};
    struct program program;

    program_run(&program, argv, NULL);
    must_say(program.status == 1 && strstr(program.err, "event loop") && strstr(program.err, "open files"), "%d: %s%s",
             program.status, program.out, program.err);
    program_free(&program);
}
#endif

Test(daemon, check_config_tells_good_from_bad)
{
    struct program program;
    char backends[512];
    const char *good[] = {"rdtd", "--check-config", "--config", in_tmp("good.conf"), NULL};
    const char *bad[] = {"rdtd", "--check-config", "--config", in_tmp("bad.conf"), NULL};
    const char *missing[] = {"rdtd", "--check-config", "--config", "/does/not/exist", NULL};

    (void)snprintf(backends, sizeof backends, "[daemon]\nsocket = %s\nbackend_dir = %s\nmax_clients = 10\n", in_tmp("x"),
                   build_path("backends"));
    write_file("good.conf", backends);
    program_run(&program, good, NULL);
    cr_assert_eq(program.status, 0, "%s", program.err);
    cr_assert(strstr(program.out, "valid"));
    program_free(&program);
    cr_assert_eq(access(in_tmp("x"), F_OK), -1, "a check opens no socket");

    write_file("bad.conf", "[daemon]\nmax_clients = none\nsokcet = /run/x\n[transfer]\nchunk = 1\n");
    program_run(&program, bad, NULL);
    cr_assert_eq(program.status, 2);
    cr_assert(strstr(program.err, "max_clients") && strstr(program.err, "sokcet") && strstr(program.err, "socket") &&
                  strstr(program.err, "chunk") && strstr(program.err, "bad.conf"),
              "%s", program.err); /* all of them at once */
    program_free(&program);

    program_run(&program, missing, NULL);
    cr_assert_eq(program.status, 2);
    cr_assert(strstr(program.err, "/does/not/exist"));
    program_free(&program);
}

Test(daemon, dumped_configuration_reads_back_the_same)
{
    const char *first_argv[] = {"rdtd",
                                "--config=",
                                "--dump-config",
                                "--socket=/run/somewhere/s",
                                "--max-clients=77",
                                "--chunk=1MiB",
                                "--drain-timeout=1500ms",
                                "--allow-overflow-uid=yes",
                                "--memory-limit=3GiB",
                                NULL};
    const char *second_argv[] = {"rdtd", "--dump-config", "--config", in_tmp("dumped.conf"), NULL};
    const char *env[] = {"RDTD_MAX_CLIENTS=5", NULL};
    struct program first, second;

    program_run(&first, first_argv, NULL);
    cr_assert_eq(first.status, 0, "%s", first.err);
    cr_assert(strstr(first.out, "max_clients = 77"));
    write_file("dumped.conf", first.out);
    program_run(&second, second_argv, NULL);
    cr_assert_eq(second.status, 0, "%s", second.err);
    cr_assert_str_eq(first.out, second.out);
    program_free(&second);
    program_run(&second, second_argv, env); /* the environment goes before the file, flags before both */
    cr_assert(strstr(second.out, "max_clients = 5"));
    program_free(&second);
    program_free(&first);
    program_run(&first, first_argv, env);
    cr_assert(strstr(first.out, "max_clients = 77"));
    program_free(&first);
}

/* A plug-in that was asked for by name must be there and be one. */
Test(daemon, plugin_that_is_none_is_named)
{
    char text[300], library[300];
    const char *flags[] = {"--backend=/does/not/exist.so", NULL};

    refuses_to_start(&(struct node_options){.flags = flags}, 1, "/does/not/exist.so");
    write_file("text.so", "this is no library");
    (void)snprintf(text, sizeof text, "--backend=%s", in_tmp("text.so"));
    flags[0] = text;
    refuses_to_start(&(struct node_options){.flags = flags}, 1, "text.so");
    (void)snprintf(library, sizeof library, "--backend=%s", build_path("librdt.so"));
    flags[0] = library;
    refuses_to_start(&(struct node_options){.flags = flags}, 1, "librdt.so");
}

/* There are more clients than descriptors. Those that do not fit wait or are refused, and clients that are served are not
 * affected. */
Test(daemon, running_out_of_fds_harms_nobody_served)
{
    const char *declared[] = {"cannot accept", "(pid ", NULL};
    rdt *conn, *others[64] = {NULL};
    rdt_object *object;
    unsigned n = 0;
    char command[64];
    struct program program;
    const char *argv[] = {"/bin/sh", "-c", command, NULL};

    node_start(&node, NULL);
    conn = node_client(&node, "served");
    struct rdt_ref ref = put_big(conn, MIB);
    (void)snprintf(command, sizeof command, "prlimit --pid %d --nofile=%u:%u", (int)node.pid, fds_of(node.pid) + 20,
                   fds_of(node.pid) + 20);
    program_run(&program, argv, NULL);
    if (program.status == 127) {
        program_free(&program);
        rdt_close(conn);
        node_end(&node, NULL);
        cr_skip_test("no prlimit here");
    }
    cr_assert_eq(program.status, 0, "%s", program.err);
    program_free(&program);
    struct rdt_connect_options options = {
        .struct_size = sizeof options, .socket = node.socket, .timeout_ns = patience(2 * SEC)};
    while (n < 64 && rdt_connect(&options, &others[n], NULL) == RDT_OK)
        n++;
    cr_assert_lt(n, 64);
    cr_assert_gt(n, 0);
    must_ok(rdt_ping(conn, LONG, &err));
    for (unsigned i = 0; i < 20; i++) { /* with no fd left a share may be refused, and says so */
        struct rdt_error err = {0};
        enum rdt_status status = try_fetch(conn, &ref, RDT_FETCH_COPY, LONG, &object, &err);
        if (status == RDT_OK)
            rdt_release(object);
        else
            cr_assert(status == RDT_SYSTEM || status == RDT_LIMIT || status == RDT_NO_MEMORY, "%s: %s", rdt_status_name(status),
                      err.msg);
    }
    for (unsigned i = 0; i < n; i++)
        rdt_close(others[i]);
    wait_until(20 * SEC, rdt_connect(&options, &others[0], NULL) == RDT_OK);
    rdt_close(others[0]);
    object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    cr_assert(is_filled_with(tensor_of(object, 0).data, MIB, 5));
    rdt_release(object);
    rdt_close(conn);
    node_end(&node, declared);
}
