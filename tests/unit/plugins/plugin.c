/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/plugins: which files are accepted as backends, and how reports of their threads reach the loop. The backend under
 * test is built before the first test, and the tests load copies of it. */
#include <criterion/criterion.h>
#include <criterion/hooks.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/config/options.h"
#include "daemon/plugins/plugin.h"

#define BACKEND_SOURCE "tests/unit/plugins/plugin/backend.c"

static char dir[] = "/tmp/rdt.XXXXXX", built[512], path[600];
static struct options options;
static struct plugins *plugins;
static struct rdt_error err;
static uv_loop_t loop;
static pthread_t loop_thread;
static unsigned n_closed;

static void run_command(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void run_command(const char *fmt, ...)
{
    char command[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void find_built(void)
{
    ssize_t n = readlink("/proc/self/exe", built, sizeof built - 20);
    cr_assert_gt(n, 0);
    strcpy(built + n, "-backend.so");
}

ReportHook(PRE_ALL)(struct criterion_test_set *tests)
{
    char command[1024];
    const char *compiler = getenv("CC");
    find_built();
    snprintf(command, sizeof command, "%s -std=c11 -D_GNU_SOURCE -g -shared -fPIC -pthread -Iproto -Ibackends -o %s %s",
             compiler ? compiler : "cc", built, BACKEND_SOURCE);
    if (system(command) != 0) {
        fprintf(stderr, "cannot build the backend under test: %s\n", command);
        exit(1);
    }
}

/* A copy of the backend, as the daemon finds it. */
static void install(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    run_command("cp %s %s && chmod 644 %s", built, path, path);
}

static void load_options(const char *first, ...)
{
    char *argv[16] = {(char *)(uintptr_t) "rdtd", (char *)(uintptr_t) "--config=", (char *)(uintptr_t) "--backend-dir", dir};
    int argc = 4;
    va_list args;
    va_start(args, first);
    for (const char *flag = first; flag; flag = va_arg(args, const char *))
        argv[argc++] = (char *)(uintptr_t)flag;
    va_end(args);
    options_fini(&options);
    cr_assert_eq(options_load(argc, argv, &options, &err), RDT_OK, "%s", err.msg);
}

static void setup(void)
{
    find_built();
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(uv_loop_init(&loop), 0);
    loop_thread = pthread_self();
    install("rdt_echo.so");
    load_options(NULL);
}

static void on_closed(void *arg)
{
    ++*(unsigned *)arg;
}

static void teardown(void)
{
    if (plugins) {
        plugins_close(plugins, on_closed, &n_closed);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert_eq(n_closed, 1);
    }
    cr_assert_eq(uv_loop_close(&loop), 0);
    options_fini(&options);
    run_command("rm -rf %s", dir);
}

TestSuite(plugin, .init = setup, .fini = teardown, .timeout = 60);

static void create(void)
{
    cr_assert_eq(plugins_create(&loop, &options, &plugins, &err), RDT_OK, "%s", err.msg);
}

static void expect_refusal_as(enum rdt_status status, const char *part)
{
    cr_assert_eq(plugins_create(&loop, &options, &plugins, &err), status, "%s", err.msg);
    cr_assert_null(plugins);
    cr_assert_not_null(strstr(err.msg, part), "'%s' does not say '%s'", err.msg, part);
}

static void expect_refusal(const char *part)
{
    expect_refusal_as(RDT_INVALID, part);
}

static void expect_fault_refused(const char *fault, const char *part)
{
    setenv("BACKEND_FAULT", fault, 1);
    expect_refusal(part);
    cr_assert_not_null(strstr(err.msg, "rdt_echo.so"), "%s", err.msg);
}

/* ---- loading ---- */

Test(plugin, directory_is_loaded)
{
    char names[32];
    create();
    struct transport *transport = plugins_transport(plugins, "ECHO");
    cr_assert_not_null(transport);
    cr_assert_str_eq(transport->name, "echo");
    cr_assert(transport->available);
    cr_assert_str_eq(transport_sides(transport), "two");
    cr_assert(transport_moves(transport, "host") && !transport_moves(transport, "cuda"));
    cr_assert_not_null(plugins_memory_kind(plugins, ""));
    cr_assert_eq(plugins_memory_kind(plugins, ""), plugins_memory_kind(plugins, "HOST"));
    cr_assert_null(plugins_memory_kind(plugins, "cuda"));
    cr_assert_null(plugins_transport(plugins, "ucx"));
    plugins_transport_names(plugins, names, sizeof names);
    cr_assert_str_eq(names, "echo");
}

Test(plugin, missing_directory_holds_none)
{
    char names[32];
    load_options("--backend-dir=/nonexistent", NULL);
    create();
    plugins_transport_names(plugins, names, sizeof names);
    cr_assert_str_eq(names, "none");
    cr_assert_null(plugins_memory_kind(plugins, ""));
}

Test(plugin, other_files_of_the_directory_are_left_alone)
{
    run_command("echo text >%s/README && echo text >%s/librdt.so", dir, dir);
    create();
    cr_assert_not_null(plugins_transport(plugins, "echo"));
}

Test(plugin, listed_path_is_loaded)
{
    install("elsewhere.so");
    run_command("rm %s/rdt_echo.so", dir);
    load_options("--backend", path, NULL);
    create();
    cr_assert_str_eq(plugins_transport(plugins, "echo")->path, path);
}

Test(plugin, faulty_tables_are_refused)
{
    expect_fault_refused("null", "returned NULL");
    setenv("BACKEND_FAULT", "abi", 1);
    expect_refusal_as(RDT_UNSUPPORTED, "ABI version 2");
    expect_fault_refused("empty", "neither a memory kind nor a transport");
    expect_fault_refused("too old", "disconnect is missing");
    expect_fault_refused("no sides", "sides is missing");
    expect_fault_refused("no moves", "a way to move bytes");
    expect_fault_refused("no recv", "post_recv is missing");
    expect_fault_refused("no copy", "copy is missing");
    expect_fault_refused("bad name", "name must be");
    expect_fault_refused("reserved", "is a section");
}

Test(plugin, older_table_lacks_what_came_later)
{
    setenv("BACKEND_FAULT", "old", 1);
    create();
    cr_assert_null(plugins_transport(plugins, "echo")->ops.cancel);
    cr_assert_not_null(plugins_transport(plugins, "echo")->ops.disconnect);
}

Test(plugin, file_that_is_no_backend_is_refused)
{
    run_command("echo text >%s/rdt_text.so", dir);
    expect_refusal("rdt_text.so: cannot be loaded");
    run_command("rm %s/rdt_text.so; mkfifo %s/rdt_pipe.so", dir, dir);
    expect_refusal("rdt_pipe.so: is not a regular file");
    /* Some library that is certainly here: libuv, which holds this string. */
    Dl_info info;
    cr_assert_neq(dladdr(uv_version_string(), &info), 0);
    run_command("rm %s/rdt_pipe.so; cp %s %s/rdt_uv.so; chmod 644 %s/rdt_uv.so", dir, info.dli_fname, dir, dir);
    expect_refusal("rdt_uv.so: is not a backend: it exports no rdt_backend_init");
}

Test(plugin, file_that_others_may_write_is_refused)
{
    run_command("chmod 664 %s/rdt_echo.so", dir);
    expect_refusal_as(RDT_DENIED, "can be written by others");
    run_command("chmod 646 %s/rdt_echo.so", dir);
    expect_refusal_as(RDT_DENIED, "can be written by others");
    if (geteuid() == 0) {
        run_command("chmod 644 %s/rdt_echo.so; chown 12345 %s/rdt_echo.so", dir, dir);
        expect_refusal_as(RDT_DENIED, "belongs to uid 12345");
    }
}

Test(plugin, taken_name_is_refused)
{
    install("rdt_second.so");
    expect_refusal_as(RDT_EXISTS, "the name of its backend is taken by");
}

Test(plugin, unsupported_is_kept_with_its_reason)
{
    struct plugin_conn conn = {.on_failed = (void (*)(struct plugin_conn *, enum rdt_status, const char *))abort,
                               .on_closed = (void (*)(struct plugin_conn *))abort};
    uint8_t uuid[16] = {0};
    setenv("BACKEND_FAULT", "unsupported", 1);
    create();
    struct transport *transport = plugins_transport(plugins, "echo");
    cr_assert_not(transport->available);
    cr_assert_str_eq(transport->why_not, "trusted_network is not set");
    cr_assert_str_eq(transport->version, "");
    cr_assert(plugins_memory_kind(plugins, "")->available);
    cr_assert_eq(plugin_conn_create(&conn, transport, uuid, &err), RDT_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "trusted_network is not set"));
}

Test(plugin, failing_open_is_an_error)
{
    setenv("BACKEND_FAULT", "open fails", 1);
    cr_assert_eq(plugins_create(&loop, &options, &plugins, &err), RDT_SYSTEM);
    cr_assert_not_null(strstr(err.msg, "rdt_echo.so: no such device"), "%s", err.msg);
}

/* ---- configuration ---- */

Test(plugin, configuration_reaches_the_backend)
{
    load_options("--set=ECHO.delay=7", "--trusted-network=yes", "--interfaces=eth0", NULL);
    create();
    cr_assert_str_eq(plugins_transport(plugins, "echo")->version, "7 red yes eth0  (null)");
}

Test(plugin, undeclared_keys_are_refused)
{
    load_options("--set=echo.colour=blue", NULL);
    expect_refusal("--set echo.colour: [echo] colour: the backend has no such key; did you mean color?");
    load_options("--set=eco.color=blue", NULL);
    expect_refusal("neither the daemon nor a loaded backend has a section of this name; did you mean echo?");
}

Test(plugin, refused_key_names_its_line)
{
    run_command("printf '[daemon]\\nbackend_dir = %s\\n[netwrok]\\nlisten = 127.0.0.1:0\\n' >%s/conf", dir, dir);
    char *argv[] = {(char *)(uintptr_t) "rdtd", (char *)(uintptr_t) "--config", NULL};
    snprintf(path, sizeof path, "%s/conf", dir);
    argv[2] = path;
    options_fini(&options);
    cr_assert_eq(options_load(3, argv, &options, &err), RDT_OK, "%s", err.msg);
    expect_refusal("conf:4: [netwrok] listen: neither the daemon nor");
    cr_assert_not_null(strstr(err.msg, "did you mean network?"));
}

/* ---- connections and operations ---- */

static struct fixture {
    struct plugin_conn conn;
    unsigned n_done, n_ok, n_failed, n_closed;
    enum rdt_status last;
    char msg[64];
} f;

static void on_conn_failed(struct plugin_conn *conn, enum rdt_status status, const char *msg)
{
    cr_assert(pthread_equal(pthread_self(), loop_thread));
    cr_assert_eq(status, RDT_PEER_LOST);
    cr_assert_str_eq(msg, "peer gone");
    f.n_failed++;
    plugin_conn_disconnect(conn);
    plugin_conn_disconnect(conn);
}

static void on_conn_closed(struct plugin_conn *conn)
{
    cr_assert(pthread_equal(pthread_self(), loop_thread));
    f.n_closed++;
    plugin_conn_destroy(conn);
    cr_assert_null(conn->handle);
    plugins_close(plugins, on_closed, &n_closed);
    plugins = NULL;
}

static void on_done(struct plugin_op *op, enum rdt_status status, const char *msg)
{
    cr_assert(pthread_equal(pthread_self(), loop_thread));
    cr_assert_not_null(msg);
    cr_assert_eq(f.n_closed, 0, "an operation ended after its connection");
    snprintf(f.msg, sizeof f.msg, "%s", msg);
    f.last = status;
    f.n_done++;
    f.n_ok += status == RDT_OK;
    free(op);
}

static struct transport *connect_echo(void)
{
    uint8_t uuid[16] = {0};
    create();
    f.conn.on_failed = on_conn_failed;
    f.conn.on_closed = on_conn_closed;
    struct transport *transport = plugins_transport(plugins, "echo");
    cr_assert_eq(plugin_conn_create(&f.conn, transport, uuid, &err), RDT_OK);
    return transport;
}

static struct plugin_op *new_op(uint64_t chunk)
{
    struct plugin_op *op = calloc(1, sizeof(*op));
    op->op.chunk = chunk;
    op->op.piece.bytes = 10;
    op->op.priv[3] = op; /* post must clear it */
    op->on_done = on_done;
    return op;
}

static void run_until_done(unsigned n)
{
    while (f.n_done < n)
        uv_run(&loop, UV_RUN_ONCE);
}

static void finish(void)
{
    plugin_conn_disconnect(&f.conn);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(f.n_closed, 1);
    cr_assert_eq(n_closed, 1);
}

Test(plugin, operations_end_on_the_loop)
{
    struct transport *transport = connect_echo();
    cr_assert_eq(plugin_op_send(&f.conn, new_op(0), &err), RDT_OK);
    cr_assert_eq(f.n_done, 0);
    cr_assert_eq(transport->ops_active, 1);
    run_until_done(1);
    cr_assert_eq(f.last, RDT_OK);
    cr_assert_str_eq(f.msg, "success");
    cr_assert_eq(transport->bytes_done, 10);
    cr_assert_eq(plugin_op_recv(&f.conn, new_op(1), &err), RDT_OK);
    run_until_done(2);
    cr_assert_eq(f.last, RDT_TRANSPORT);
    cr_assert_str_eq(f.msg, "cable cut");
    cr_assert_eq(transport->bytes_done, 10);
    cr_assert_eq(transport->ops_active, 0);
    finish();
}

Test(plugin, refused_post_never_ends)
{
    struct transport *transport = connect_echo();
    struct plugin_op *op = new_op(99);
    cr_assert_eq(plugin_op_send(&f.conn, op, &err), RDT_AGAIN);
    cr_assert_eq(plugin_op_read(&f.conn, op, &err), RDT_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "echo cannot read"));
    cr_assert_eq(transport->ops_active, 0);
    finish();
    cr_assert_eq(f.n_done, 0);
    free(op);
}

Test(plugin, cancel_ends_what_waits)
{
    connect_echo();
    struct plugin_op *op = new_op(2);
    cr_assert_eq(plugin_op_send(&f.conn, op, &err), RDT_OK);
    plugin_op_cancel(&f.conn, op);
    run_until_done(1);
    cr_assert_eq(f.last, RDT_CANCELLED);
    finish();
}

Test(plugin, cancel_without_the_operation_does_nothing)
{
    setenv("BACKEND_FAULT", "old", 1);
    connect_echo();
    struct plugin_op *op = new_op(2);
    cr_assert_eq(plugin_op_send(&f.conn, op, &err), RDT_OK);
    plugin_op_cancel(&f.conn, op);
    finish();
    cr_assert_eq(f.n_done, 1);
}

/* More than one turn of the loop delivers, and the close comes last. */
Test(plugin, every_operation_ends_before_closed)
{
    struct transport *transport = connect_echo();
    for (unsigned i = 0; i < 20000; i++)
        cr_assert_eq(plugin_op_send(&f.conn, new_op(0), &err), RDT_OK);
    for (unsigned i = 0; i < 50; i++)
        cr_assert_eq(plugin_op_recv(&f.conn, new_op(2), &err), RDT_OK);
    cr_assert_eq(transport->ops_active, 20050);
    finish();
    cr_assert_eq(f.n_done, 20050);
    cr_assert_eq(f.n_ok, 20000);
}

Test(plugin, failure_is_told_once)
{
    struct transport *transport = connect_echo();
    cr_assert_eq(transport->ops.connect(f.conn.handle, "", 0, &err), RDT_OK);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(f.n_failed, 1);
    cr_assert_eq(f.n_closed, 1);
}

Test(plugin, failure_is_not_told_after_disconnect)
{
    struct transport *transport = connect_echo();
    cr_assert_eq(transport->ops.connect(f.conn.handle, "", 0, &err), RDT_OK);
    finish();
    cr_assert_eq(f.n_failed, 0);
}

Test(plugin, destroyed_connection_drops_its_events)
{
    uint8_t uuid[16] = {0};
    struct plugin_conn *other = calloc(1, sizeof(*other));
    setenv("BACKEND_FAULT", "connect fails at once", 1);
    struct transport *transport = connect_echo();
    other->on_failed = on_conn_failed;
    other->on_closed = on_conn_closed;
    cr_assert_eq(plugin_conn_create(other, transport, uuid, &err), RDT_OK);
    cr_assert_eq(transport->ops.connect(other->handle, "", 0, &err), RDT_OK);
    plugin_conn_destroy(other);
    plugin_conn_destroy(other);
    free(other);
    cr_assert_eq(plugin_op_send(&f.conn, new_op(0), &err), RDT_OK);
    run_until_done(1);
    cr_assert_eq(f.n_failed, 0);
    finish();
}

Test(plugin, faster_transport_comes_first)
{
    char names[64], small[8];
    install("rdt_fast-90.so");
    install("rdt_alike-10.so"); /* as echo: the earlier name first */
    install("rdt_slow-1.so");
    create();
    plugins_transport_names(plugins, names, sizeof names);
    cr_assert_str_eq(names, "fast, alike, echo, slow");
    plugins_transport_names(plugins, small, sizeof small);
    cr_assert_str_eq(small, "fast, a");
}
