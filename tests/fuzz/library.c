/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a daemon that answers what the input says. Every call ends, its results can be read, and nothing stays
 * open.
 *
 *   | type 6, answer the request 1, with its own type 1 | flags 3, fds 2 | bytes 2 | message | next ...
 *
 * After each request comes the next answer, and also when the library waits on; when there is none left the daemon closes.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/rdt.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"
#include "tests/fuzz/harness/fuzz.h"

#define REGION_BYTES 8192

static char path[64];
static int listener = -1;

struct script {
    const uint8_t *at, *end;
};

/* ---- the daemon ---- */

enum heard { REQUEST, NOTHING, END };

static enum heard next_request(int sock, struct frame_reader *reader, struct frame *frame)
{
    for (;;) {
        enum rdt_status status = frame_reader_next(reader, frame, NULL);
        uint8_t *space;
        size_t have;
        ssize_t n;

        if (status == RDT_OK)
            return REQUEST;
        fuzz_must(status == RDT_AGAIN);
        space = frame_reader_space(reader, 4096, &have);
        fuzz_must(space);
        do {
            n = recv(sock, space, have, 0); /* fds that it sends are dropped */
        } while (n < 0 && errno == EINTR);
        if (n < 0 && errno == EAGAIN)
            return NOTHING;
        if (n <= 0)
            return END;
        frame_reader_commit(reader, (size_t)n);
    }
}

static bool answer(int sock, uint16_t type, uint8_t flags, uint64_t id, const uint8_t *payload, size_t n, int n_fds)
{
    struct frame_writer writer;
    int fds[3];
    uint8_t *room;
    bool sent;

    for (int i = 0; i < n_fds; i++) {
        fds[i] = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        fuzz_must(fds[i] >= 0 && ftruncate(fds[i], REGION_BYTES >> i) == 0);
    }
    frame_writer_init(&writer);
    fuzz_must(frame_writer_push(&writer, type, flags, id, (uint32_t)n, fds, (unsigned)n_fds, &room) == RDT_OK);
    if (n)
        memcpy(room, payload, n);
    sent = frame_writer_send(&writer, sock, NULL) == RDT_OK;
    frame_writer_fini(&writer);
    return sent;
}

static bool say_hello(int sock, struct frame_reader *reader)
{
    static uint8_t uuid[16] = "the daemon's own";
    Rdt__Pb__HelloReply reply = RDT__PB__HELLO_REPLY__INIT;
    uint8_t packed[256];
    struct frame frame;

    enum heard heard;

    do {
        heard = next_request(sock, reader, &frame);
    } while (heard == NOTHING);
    if (heard == END)
        return false;
    fuzz_must(frame.type == RDT_MSG_HELLO);
    reply.protocol = RDT_PROTOCOL_MAX;
    reply.node_uuid = reply.boot_id = (ProtobufCBinaryData){16, uuid};
    reply.max_frame_bytes = RDT_MAX_FRAME_BYTES;
    reply.max_frame_fds = RDT_MAX_FRAME_FDS;
    reply.tensor_runs = true;
    reply.session_id = 1;
    return answer(sock, RDT_MSG_HELLO, FRAME_REPLY, frame.request_id, packed, rdt__pb__hello_reply__pack(&reply, packed), 0);
}

static void *serve(void *arg)
{
    struct script *script = arg;
    struct frame_reader reader;
    const struct timeval moment = {.tv_usec = 10000};
    struct frame frame = {0};
    int sock;

    do {
        sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    } while (sock < 0 && errno == EINTR);
    fuzz_must(sock >= 0 && setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment) == 0);
    frame_reader_init(&reader, RDT_MAX_FRAME_BYTES);
    if (say_hello(sock, &reader)) {
        while (script->at < script->end && next_request(sock, &reader, &frame) != END) {
            uint8_t what = (uint8_t)fuzz_take(&script->at, script->end, 1),
                    how = (uint8_t)fuzz_take(&script->at, script->end, 1);
            size_t n = fuzz_take(&script->at, script->end, 2);
            uint64_t id = what & 0x40 ? frame.request_id : how >> 5;

            if (n > (size_t)(script->end - script->at))
                n = (size_t)(script->end - script->at);
            if (!answer(sock,
                        what & 0x80   ? frame.type
                        : what & 0x20 ? 128 + (what & 0x1f)
                                      : what & 0x1f,
                        how & 7, id, script->at, n, how >> 3 & 3))
                break;
            script->at += n;
        }
    }
    frame_reader_fini(&reader);
    close(sock);
    return NULL;
}

/* ---- the user ---- */

static void read_object(rdt_object *object)
{
    struct rdt_object_info info;
    size_t bytes;
    const uint8_t *metadata = rdt_object_metadata(object, &bytes);

    rdt_object_info(object, &info);
    fuzz_must(memchr(info.path, 0, sizeof info.path));
    for (size_t i = 0; i < bytes; i++)
        (void)*(const volatile uint8_t *)&metadata[i];
    for (size_t t = 0; t < rdt_object_count(object); t++) {
        struct rdt_tensor tensor;
        struct rdt_error err;
        enum rdt_status status = rdt_object_tensor(object, t, &tensor, &err);
        int64_t lo = 0, hi = 0;
        bool empty = false;

        if (status != RDT_OK) {
            fuzz_refused(status, &err);
            continue;
        }
        for (uint32_t d = 0; d < tensor.ndim; d++) {
            int64_t span = tensor.shape[d] > 0 ? (tensor.shape[d] - 1) * tensor.strides[d] : 0;

            empty |= tensor.shape[d] == 0;
            if (span < 0)
                lo += span;
            else
                hi += span;
        }
        if (!empty) {
            int64_t elem = (int64_t)rdt_dtype_bytes(tensor.dtype);
            (void)((const volatile uint8_t *)tensor.data)[lo * elem];
            (void)((const volatile uint8_t *)tensor.data)[(hi + 1) * elem - 1];
        }
    }
}

static void use(rdt *conn)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_put_options put = RDT_INIT(put);
    int64_t shape = 16;
    uint8_t data[16] = {0}, into[64] = {0};
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = &shape, .data = data}, target = tensor;
    const struct rdt_tensor *targets[] = {NULL, &target};
    const size_t target_counts[] = {0, 1};
    struct rdt_ref ref, refs[2];
    rdt_request *requests[2];
    struct rdt_error err;
    struct rdt_stat stat;
    void *addr;

    put.timeout_ns = 200000000;
    if (rdt_alloc(conn, 4096, &addr, &err) == RDT_OK) {
        memset(addr, 1, 4096);
        tensor.data = addr;
    }
    (void)rdt_put(conn, &tensor, 1, &put, &ref, &err);
    fuzz_must(rdt_ref_from_id("w", 1, &refs[0], &err) == RDT_OK);
    refs[1] = refs[0];
    target.data = into + 16;
    options.targets = targets;
    options.target_counts = target_counts;
    options.timeout_ns = 100000000;
    if (rdt_fetch_start(conn, refs, 2, &options, requests, &err) == RDT_OK) {
        for (int i = 0; i < 2; i++) {
            rdt_object *object;
            enum rdt_status status = rdt_wait(conn, &requests[i], 1, 1, 300000000, NULL, NULL, &err);

            if (status != RDT_OK)
                fuzz_refused(status, &err);
            fuzz_must(rdt_request_status(requests[i], &err) != RDT_AGAIN || status == RDT_TIMED_OUT);
            if (rdt_request_take_object(requests[i], &object, &err) == RDT_OK) {
                read_object(object);
                rdt_release(object);
            }
            rdt_request_destroy(requests[i]);
        }
    }
    for (unsigned i = 0; i < sizeof into; i++) /* nothing beside the target */
        fuzz_must((i >= 16 && i < 32) || into[i] == 0);
    (void)rdt_stat(conn, &refs[0], &stat, &err);
    (void)rdt_wait_put(conn, &refs[0], 1000000, &err);
    (void)rdt_wait_freed(conn, &refs[0], 1000000, &err);
    (void)rdt_free(conn, &refs[0], true, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned most;
    struct rdt_connect_options options = RDT_INIT(options);
    struct script script = {data, data + bytes};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct rdt_error err;
    pthread_t thread;
    rdt *conn;

    if (listener < 0) {
        (void)snprintf(path, sizeof path, "/tmp/rdt_fuzz_library.%d", (int)getpid());
        (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
        (void)unlink(path);
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        fuzz_must(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 &&
                  listen(listener, 4) == 0);
    }
    fuzz_must(pthread_create(&thread, NULL, serve, &script) == 0);
    options.socket = path;
    options.timeout_ns = INT64_C(300000000000); /* a hang is the fuzzer's to find, by its -timeout */
    fuzz_must(rdt_connect(&options, &conn, &err) == RDT_OK);
    use(conn);
    rdt_close(conn);
    fuzz_must(pthread_join(thread, NULL) == 0);
    fuzz_check_fds(&most);
    return 0;
}
