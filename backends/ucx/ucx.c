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

    for (unsigned i = 0; i < transport->n; i++) /* first all, because each takes a moment to stop */
        thread_stop(transport->engines[i]);
    for (unsigned i = 0; i < transport->n; i++)
        engine_destroy(transport->engines[i]);
    log_stop(transport);
    free(transport);
}

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    const struct rdt_host for_engines = peer_host(host);
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
    for (unsigned i = 0; i < settings.threads && status == RDT_OK; i++) {
        status = engine_create(&for_engines, &settings, i, &transport->engines[i], err);
        transport->n += status == RDT_OK;
    }
    if (status != RDT_OK) {
        transport_close(transport);
        return status;
    }
    host->log(host->ctx, RDT_LOG_INFO, "ucx %s listens on %s (tls %s, interfaces %s, %u thread%s)", transport->version,
              settings.listen, settings.tls, *settings.interfaces ? settings.interfaces : "any", transport->n,
              transport->n > 1 ? "s" : "");
    host->log(host->ctx, RDT_LOG_DEBUG, "ucx moves %s (its memory types are 0x%llx)",
              ucx_moves(&transport->engines[0]->memory, "cuda") ? "host memory and GPU memory" : "host memory only",
              (unsigned long long)transport->engines[0]->memory.types);
    *transport_p = transport;
    return RDT_OK;
}

static const char *transport_version(void *arg)
{
    const struct transport *transport = arg;

    return transport->version;
}

static enum rdt_status connection_create(void *transport, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                         struct rdt_error *err)
{
    struct peer *peer;
    enum rdt_status status = peer_create(transport, peer_uuid, conn_ctx, &peer, err);

    if (status == RDT_OK)
        *conn_p = peer;
    return status;
}

static void connection_destroy(void *peer)
{
    peer_destroy(peer);
}

static enum rdt_status offer(void *peer, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    (void)err;
    *bytes_p = peer_offer(peer, blob);
    return RDT_OK;
}

static enum rdt_status connect_to(void *peer, const void *blob, size_t bytes, struct rdt_error *err)
{
    return peer_connect(peer, blob, bytes, err);
}

static uint32_t sides(void *peer, const char *memory_kind)
{
    return memory_kind ? peer_sides(peer, memory_kind) : 0;
}

static uint32_t max_pieces(void *peer, const char *memory_kind)
{
    return peer_max_pieces(peer, memory_kind);
}

static void disconnect(void *peer)
{
    peer_disconnect(peer);
}

static enum rdt_status post_send(void *peer, struct rdt_op *op, struct rdt_error *err)
{
    return peer_post(peer, op, OP_SEND, err);
}

static enum rdt_status post_recv(void *peer, struct rdt_op *op, struct rdt_error *err)
{
    return peer_post(peer, op, OP_RECV, err);
}

static bool reads(void *arg)
{
    const struct transport *transport = arg;

    return transport->settings.reads;
}

/* Returns the engine whose context registers memory and reads. */
static struct engine *reading_engine(void *arg)
{
    const struct transport *transport = arg;

    return transport->engines[0];
}

static enum rdt_status register_memory(void *transport, void *addr, uint64_t bytes, const char *memory_kind,
                                       void **registration_p, struct rdt_error *err)
{
    struct registration *registration;
    enum rdt_status status;

    if (!ucx_moves(&reading_engine(transport)->memory, memory_kind))
        return rdt_error_set(err, RDT_UNSUPPORTED, "this UCX does not support %s memory", memory_kind);
    status = read_register(reading_engine(transport), addr, bytes, ucx_memory_type(memory_kind), &registration, err);
    if (status == RDT_OK)
        *registration_p = registration;
    return status;
}

static bool moves(void *transport, const char *memory_kind)
{
    return ucx_moves(&reading_engine(transport)->memory, memory_kind);
}

static const char *why_not_moved(void *arg, const char *memory_kind)
{
    struct transport *transport = arg;

    (void)memory_kind; /* "cuda": host memory is moved always */
    ucx_why_not(&reading_engine(transport)->memory, transport->why_not_cuda, sizeof transport->why_not_cuda);
    return transport->why_not_cuda;
}

static void unregister_memory(void *transport, void *registration)
{
    read_unregister(reading_engine(transport), registration);
}

static enum rdt_status pack_key(void *transport, void *registration, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                                struct rdt_error *err)
{
    return read_pack_key(reading_engine(transport), registration, key, bytes_p, err);
}

static enum rdt_status post_read(void *peer, struct rdt_op *op, struct rdt_error *err)
{
    return peer_post(peer, op, OP_READ, err);
}

static void cancel(void *peer, struct rdt_op *op)
{
    peer_cancel(peer, op);
}

static enum rdt_status describe(void *peer, char *text_p, size_t size)
{
    return peer_describe(peer, text_p, size);
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
    .max_pieces = max_pieces,
    .configured_speed = settings_speed,
    .reads = reads, /* false over TCP, where UCX registers nothing and never reads */
};

static const struct rdt_config_key config_keys[] = {
    {"listen", "", "numeric address that peers connect to; empty: that of the peer link, otherwise of the interfaces"},
    {"port", "0", "TCP port to listen on; the second and later threads use the ports that follow it; 0: any"},
    {"tls", "tcp", "UCX transports (UCX_TLS)"},
    {"eager_bytes", "1048576",
     "chunks up to this size are sent without asking the receiver first; at most 128 KiB on lanes that need not copy"},
    {"spin_polls", "500", "empty polls before a data thread sleeps while an operation is outstanding"},
    {"threads", "0", "threads that move bytes, for a peer at most as many as the peer has; 0: one"},
    {"rails", "0",
     "networks over which one message is spread on lanes that need not copy (UCX_MAX_RNDV_RAILS etc.); 0: UCX decides"},
    {"one_sided", "auto",
     "auto: readers pull by RDMA if tls excludes TCP; never; always: by RDMA or cma beside TCP too, and then whoever reaches "
     "the TCP port can read any memory of the daemon"},
    {"on_slow", "warn",
     "warn, refuse or ignore: what to do when UCX has chosen lanes to a peer that are slower than what this node has"},
    {"least_lane", "",
     "UCX transports, one of which must be among the lanes (rdma, rc, shm, tcp ...); empty: RDMA if interfaces have it"},
    {NULL, NULL, NULL},
};

ONLY_TRANSPORT(config_keys, transport_ops)
