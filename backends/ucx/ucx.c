/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "ucx": two-sided by active messages, and one-sided by reads over lanes that can read remote memory.
 *
 * This file has the table of operations, and opens and closes the transport. The transport refuses to open unless the network
 * is trusted, because UCX does not authenticate peers: see settings_read.
 *
 * UCX installs handlers for fatal signals when it is loaded, unless the environment contains UCX_HANDLE_ERRORS=none. It is
 * loaded before any code here runs, so rdtd sets the variable at its start; open checks that no handler was installed.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <ucs/debug/log_def.h>

#include "backends/common/only_transport.h"
#include "backends/ucx/ucx.h"

/* ---- UCX's own log ---- */

/* UCX has one log per process and passes no argument to its handler, so the transport that was opened last gets the log. */
static _Atomic(struct transport *) log_reader;

#define WARNINGS 10u /* of UCX in one period: whoever reaches its port can cause them */
#define WARNINGS_NS UINT64_C(60000000000)

/* Called by any thread. */
static bool may_warn(void)
{
    static _Atomic uint64_t began_ns, n;
    uint64_t now = monotonic_ns(), began = atomic_load(&began_ns);

    if ((began == 0 || now - began > WARNINGS_NS) && atomic_compare_exchange_strong(&began_ns, &began, now))
        atomic_store(&n, 0);
    return atomic_fetch_add(&n, 1) < WARNINGS;
}

static ucs_log_func_rc_t on_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                const ucs_log_component_config_t *component, const char *format, va_list args)
{
    static const char *const kinds[] = {"fatal", "error", "warning"};
    struct transport *reader = atomic_load(&log_reader);
    bool warns = level <= UCS_LOG_LEVEL_WARN && may_warn();
    char text[512];

    (void)file;
    (void)line;
    (void)function;
    (void)component;
    if (!reader)
        return UCS_LOG_FUNC_RC_CONTINUE;
    (void)vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = 0;
    reader->host.log(reader->host.ctx, warns ? RDT_LOG_WARN : RDT_LOG_DEBUG, "ucx %s: %s",
                     level <= UCS_LOG_LEVEL_WARN ? kinds[level] : "message", text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void log_start(struct transport *transport)
{
    if (!atomic_exchange(&log_reader, transport))
        ucs_log_push_handler(on_log);
}

static void log_stop(struct transport *transport)
{
    struct transport *expected = transport;

    if (atomic_compare_exchange_strong(&log_reader, &expected, NULL))
        ucs_log_pop_handler();
}

static void check_signals(const struct rdt_host *host)
{
    struct sigaction action;
    Dl_info info;

    if (sigaction(SIGBUS, NULL, &action) || (void *)action.sa_sigaction == NULL)
        return;
    if (dladdr((void *)action.sa_sigaction, &info) && info.dli_fname && strstr(info.dli_fname, "libucs"))
        host->log(host->ctx, RDT_LOG_WARN,
                  "ucx has installed handlers for fatal signals: start rdtd with UCX_HANDLE_ERRORS=none in the environment");
}

/* ---- operations of the table ---- */

static void transport_close(void *arg)
{
    struct transport *transport = arg;

    if (transport->engine)
        engine_destroy(transport->engine);
    log_stop(transport);
    free(transport);
}

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    struct settings settings;
    struct transport *transport;
    enum rdt_status status = settings_read(host, &settings, err);

    if (status != RDT_OK)
        return status;
    transport = calloc(1, sizeof *transport);
    if (!transport)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transport");
    transport->host = *host;
    transport->settings = settings;
    settings_version(&settings, transport->version, sizeof transport->version);

    check_signals(host);
    log_start(transport);
    status = engine_create(host, &settings, &transport->engine, err);
    if (status != RDT_OK) {
        transport_close(transport);
        return status;
    }
    host->log(host->ctx, RDT_LOG_INFO, "ucx %s listens on %s (tls %s, interfaces %s)", transport->version, settings.listen,
              settings.tls, *settings.interfaces ? settings.interfaces : "any");
    host->log(host->ctx, RDT_LOG_DEBUG, "ucx moves %s (its memory types are 0x%llx)",
              ucx_moves(&transport->engine->memory, "cuda") ? "host memory and GPU memory" : "host memory only",
              (unsigned long long)transport->engine->memory.types);
    *transport_p = transport;
    return RDT_OK;
}

static const char *transport_version(void *arg)
{
    const struct transport *transport = arg;

    return transport->version;
}

static enum rdt_status connection_create(void *arg, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                         struct rdt_error *err)
{
    const struct transport *transport = arg;
    struct conn *conn;
    enum rdt_status status = conn_create(transport->engine, conn_ctx, &conn, err);

    (void)peer_uuid;
    if (status == RDT_OK)
        *conn_p = conn;
    return status;
}

static void connection_destroy(void *conn)
{
    conn_destroy(conn);
}

static enum rdt_status offer(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    return conn_offer(conn, blob, bytes_p, err);
}

static enum rdt_status connect_to(void *conn, const void *blob, size_t bytes, struct rdt_error *err)
{
    return conn_connect(conn, blob, bytes, err);
}

static uint32_t sides(void *conn, const char *memory_kind)
{
    return memory_kind ? conn_sides(conn, memory_kind) : 0;
}

static void disconnect(void *conn)
{
    conn_disconnect(conn);
}

static enum rdt_status post_send(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return op_post(conn, op, OP_SEND, err);
}

static enum rdt_status post_recv(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return op_post(conn, op, OP_RECV, err);
}

static bool reads(void *arg)
{
    const struct transport *transport = arg;

    return transport->settings.reads;
}

static enum rdt_status register_memory(void *arg, void *addr, uint64_t bytes, const char *memory_kind, void **registration_p,
                                       struct rdt_error *err)
{
    const struct transport *transport = arg;
    struct registration *registration;
    enum rdt_status status;

    if (!ucx_moves(&transport->engine->memory, memory_kind))
        return rdt_error_set(err, RDT_UNSUPPORTED, "this UCX does not support %s memory", memory_kind);
    status = read_register(transport->engine, addr, bytes, ucx_memory_type(memory_kind), &registration, err);
    if (status == RDT_OK)
        *registration_p = registration;
    return status;
}

static bool moves(void *arg, const char *memory_kind)
{
    const struct transport *transport = arg;

    return ucx_moves(&transport->engine->memory, memory_kind);
}

static const char *why_not_moved(void *arg, const char *memory_kind)
{
    struct transport *transport = arg;

    (void)memory_kind; /* "cuda": host memory is moved always */
    ucx_why_not(&transport->engine->memory, transport->why_not_cuda, sizeof transport->why_not_cuda);
    return transport->why_not_cuda;
}

static void unregister_memory(void *arg, void *registration)
{
    const struct transport *transport = arg;

    read_unregister(transport->engine, registration);
}

static enum rdt_status pack_key(void *arg, void *registration, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                                struct rdt_error *err)
{
    const struct transport *transport = arg;

    return read_pack_key(transport->engine, registration, key, bytes_p, err);
}

static enum rdt_status post_read(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return op_post(conn, op, OP_READ, err);
}

static void cancel(void *conn, struct rdt_op *op)
{
    op_cancel(conn, op);
}

static enum rdt_status describe(void *conn, char *text_p, size_t size)
{
    return conn_describe(conn, text_p, size);
}

/* ---- the backend ---- */

static const char *const memory_kinds[] = {"host", "cuda", NULL};

static const struct rdt_transport_ops transport_ops = {
    .struct_size = sizeof transport_ops,
    .name = "ucx",
    .memory_kinds = memory_kinds,
    .speed = 40, /* for a daemon that does not ask for configured_speed */
    .open = transport_open,
    .close = transport_close,
    .version = transport_version,
    .register_memory = register_memory,
    .unregister_memory = unregister_memory,
    .connection_create = connection_create,
    .connection_destroy = connection_destroy,
    .offer = offer,
    .connect = connect_to,
    .sides = sides,
    .disconnect = disconnect,
    .post_send = post_send,
    .post_recv = post_recv,
    .pack_key = pack_key,
    .post_read = post_read,
    .cancel = cancel,
    .describe = describe,
    .moves = moves,
    .why_not_moved = why_not_moved,
    .configured_speed = settings_speed,
    .reads = reads, /* false over TCP, where UCX registers nothing and never reads */
};

static const struct rdt_config_key config_keys[] = {
    {"listen", "", "numeric address that peers connect to; empty: that of the peer link, otherwise of the interfaces"},
    {"port", "0", "TCP port to listen on; 0: any"},
    {"tls", "tcp", "UCX transports (UCX_TLS)"},
    {"spin_polls", "500", "empty polls before the data thread sleeps while an operation is outstanding"},
    {"rails", "0",
     "networks over which one message is spread on lanes that need not copy (UCX_MAX_RNDV_RAILS etc.); 0: UCX decides"},
    {"slice_mib", "3584",
     "with one-sided reads: MiB of memory in one registration; network cards are slower, or refuse, beyond 4 GiB"},
    {"one_sided", "auto",
     "auto: readers pull by RDMA if tls excludes TCP; never; always: by RDMA or cma beside TCP too, and then whoever reaches "
     "the TCP port can read any memory of the daemon"},
    {"threads", NULL, "it was removed: one thread is enough for RDMA, and over TCP stream has several (threads in [stream])"},
    {"eager_bytes", NULL, "it was removed: set UCX_RNDV_THRESH in the daemon's environment"},
    {"on_slow", NULL, "it was removed: leave tcp out of tls, and other lanes than those of tls are never used"},
    {"least_lane", NULL, "it was removed: list the lanes that may be used in tls"},
    {NULL, NULL, NULL},
};

ONLY_TRANSPORT(config_keys, transport_ops)
