/* SPDX-License-Identifier: Apache-2.0 */
/* A plug-in with one fault, which $BROKEN names and rdt-check-backend must find. It is built on the frozen plug-in, which
 * is correct; each fault replaces one of its operations or one of its calls of the host. */
#define rdt_backend_init frozen_backend_init
#include "tests/abi/v1/backend.c"
#undef rdt_backend_init

#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

const struct rdt_backend *rdt_backend_init(void);

static struct rdt_transport_ops transport;
static struct rdt_memory_ops memory;
static struct rdt_host core, ours;
static struct rdt_op *last_recv;
static void *last_addr, *late_addr;

static bool is(const char *fault)
{
    const char *wanted = getenv("BROKEN");

    return wanted && strcmp(wanted, fault) == 0;
}

/* ---- what the host is told ---- */

static void on_done(struct rdt_op *op, enum rdt_status status, const char *msg)
{
    bool was_recv = op == last_recv;
    char *addr = op->piece.addr;
    uint64_t bytes = op->piece.bytes;

    if (is("loses_the_end_of_a_receive") && was_recv && status == RDT_OK)
        return;
    if (is("flips_a_bit") && was_recv && status == RDT_OK)
        addr[bytes / 2] ^= 4;
    if (is("writes_beside") && was_recv && status == RDT_OK)
        addr[bytes] ^= 4;
    if (late_addr) /* like a device that nobody stopped, beside what another connection does */
        memset(late_addr, 1, 64);
    if (is("claims_success"))
        status = RDT_OK;
    core.op_done(op, status, msg);
    if (is("ends_twice"))
        core.op_done(op, status, msg);
}

static void on_failed(void *conn_ctx, enum rdt_status status, const char *msg)
{
    if (!is("hides_the_peers_end"))
        core.conn_failed(conn_ctx, status, msg);
}

static void on_closed(void *conn_ctx)
{
    if (is("never_closes"))
        return;
    core.conn_closed(conn_ctx);
    if (is("closes_twice"))
        core.conn_closed(conn_ctx);
    if (is("writes_after_it_closed"))
        late_addr = last_addr;
}

/* ---- transport ---- */

static void listen_anywhere(bool at_every_address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(at_every_address ? INADDR_ANY : INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)bind(fd, (const struct sockaddr *)&in, sizeof in);
    (void)listen(fd, 1);
}

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    core = ours = *host;
    ours.op_done = on_done;
    ours.conn_failed = on_failed;
    ours.conn_closed = on_closed;
    if (is("crashes_in_open"))
        abort();
    if (is("hangs_in_open"))
        (void)pause();
    if (is("refuses_without_a_word")) {
        err->msg[0] = '\0';
        return RDT_UNSUPPORTED;
    }
    if (is("opens_a_port_for_nobody") || is("listens_at_every_address"))
        listen_anywhere(is("listens_at_every_address"));
    if (is("logs_errors"))
        host->log(host->ctx, RDT_LOG_ERROR, "something is wrong, and goes on");
    return frozen_transport.open(&ours, transport_p, err);
}

static void transport_close(void *instance)
{
    if (is("leaves_descriptors_open"))
        (void)open("/dev/null", O_RDONLY | O_CLOEXEC);
    frozen_transport.close(instance);
}

static enum rdt_status connect_to(void *conn, const void *blob, size_t bytes, struct rdt_error *err)
{
    static const char zero[32] = "00000000000000000000000000000000";

    if (is("takes_any_offer"))
        return frozen_transport.connect(conn, bytes == 32 ? blob : zero, 32, err);
    if (is("crashes_on_garbage") && bytes != 32)
        *(volatile char *)(uintptr_t)bytes = 1;
    return frozen_transport.connect(conn, blob, bytes, err);
}

static uint32_t sides(void *conn, const char *memory_kind)
{
    if (is("claims_any_memory"))
        return RDT_TWO_SIDED;
    if (is("claims_another_side"))
        return RDT_ONE_SIDED;
    return frozen_transport.sides(conn, memory_kind);
}

static void connection_destroy(void *conn)
{
    if (is("leaks_a_descriptor_per_connection"))
        (void)open("/dev/null", O_RDONLY | O_CLOEXEC);
    frozen_transport.connection_destroy(conn);
}

static enum rdt_status post_send(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    if (is("ends_inside_the_post")) {
        core.op_done(op, RDT_OK, NULL);
        return RDT_OK;
    }
    if (is("crashes_in_a_post"))
        *(volatile char *)NULL = 1;
    return frozen_transport.post_send(conn, op, err);
}

static enum rdt_status post_recv(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    last_recv = op;
    last_addr = op->piece.addr;
    return frozen_transport.post_recv(conn, op, err);
}

static void ignore(void *conn, struct rdt_op *op) {}

/* ---- memory ---- */

static enum rdt_status memory_alloc(void *instance, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                    struct rdt_error *err)
{
    if (is("gives_nothing_away") && bytes == 0) {
        *block_p = (struct rdt_block){.fd = -1};
        return RDT_OK;
    }
    if (is("crashes_in_an_allocation") && bytes >= 1 << 20)
        (void)memset((void *)(uintptr_t)bytes, 1, 64); /* in libc, on a thread of the daemon */
    return frozen_memory.alloc(instance, device, bytes, block_p, err);
}

static enum rdt_status memory_map(void *instance, struct rdt_block *block, bool warm, struct rdt_error *err)
{
    enum rdt_status status = frozen_memory.map(instance, block, warm, err);

    if (is("memory_is_dirty") && status == RDT_OK && !block->read_only)
        ((char *)block->addr)[block->bytes - 1] = 1;
    return status;
}

static enum rdt_status memory_copy(void *instance, void *dst, const void *src, uint64_t bytes, struct rdt_error *err)
{
    return frozen_memory.copy(instance, dst, src, is("copies_whole_words") ? bytes / 8 * 8 : bytes, err);
}

static enum rdt_status memory_share(void *instance, const struct rdt_block *block, bool writable, int *fd_p,
                                    struct rdt_error *err)
{
    return frozen_memory.share(instance, block, writable || is("shares_writable_for_reading"), fd_p, err);
}

static enum rdt_status memory_import(void *instance, const char *device, const struct rdt_import *import,
                                     struct rdt_block *block_p, struct rdt_error *err)
{
    if (is("imports_anything") && import->n_fds > 0) {
        *block_p = (struct rdt_block){.bytes = import->bytes, .fd = fcntl(import->fds[0], F_DUPFD_CLOEXEC, 0)};
        return RDT_OK;
    }
    return frozen_memory.import(instance, device, import, block_p, err);
}

static void memory_free(void *instance, struct rdt_block *block)
{
    if (is("keeps_what_is_freed"))
        (void)fcntl(block->fd, F_DUPFD_CLOEXEC, 0);
    frozen_memory.free(instance, block);
}

const struct rdt_backend *rdt_backend_init(void)
{
    static struct rdt_backend backend;

    backend = *frozen_backend_init();
    transport = frozen_transport;
    transport.open = transport_open;
    transport.close = transport_close;
    transport.connect = connect_to;
    transport.sides = sides;
    transport.connection_destroy = connection_destroy;
    transport.post_send = post_send;
    transport.post_recv = is("has_half_a_pair") ? NULL : post_recv;
    if (is("cancel_does_nothing"))
        transport.cancel = ignore;
    memory = frozen_memory;
    memory.alloc = memory_alloc;
    memory.map = memory_map;
    memory.copy = memory_copy;
    memory.share = memory_share;
    memory.import = memory_import;
    memory.free = memory_free;
    backend.transport = &transport;
    backend.memory = &memory;
    backend.abi_version = is("another_abi") ? 2 : RDT_BACKEND_ABI;
    return is("gives_no_table") ? NULL : &backend;
}
