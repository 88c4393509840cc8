/* SPDX-License-Identifier: Apache-2.0 */
/* The fake's thread, its socket and its frames. */
#include "tests/support/fakes/fake_daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int64_t fake_now_ns(void)
{
    struct timespec now;

    MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

unsigned fake_count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    MUST(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

int fake_memfd(size_t bytes)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    MUST(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(at != MAP_FAILED);
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(i % 251);
    MUST(munmap(at, bytes) == 0);
    MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

/* ---- frames ---- */

void fake_send(struct fake *fake, uint16_t type, uint8_t flags, uint64_t id, const ProtobufCMessage *message, const int *fds,
               unsigned n_fds)
{
    struct frame_writer writer;
    size_t bytes = protobuf_c_message_get_packed_size(message);
    int dups[RDT_MAX_FRAME_FDS];
    uint8_t *payload;

    frame_writer_init(&writer);
    for (unsigned i = 0; i < n_fds; i++)
        MUST((dups[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0)) >= 0);
    MUST(frame_writer_push(&writer, type, flags, id, (uint32_t)bytes, dups, n_fds, &payload) == RDT_OK);
    protobuf_c_message_pack(message, payload);
    while (frame_writer_send(&writer, fake->sock, NULL) == RDT_AGAIN) {
        struct pollfd full = {.fd = fake->sock, .events = POLLOUT};

        MUST(poll(&full, 1, (int)(LONG_NS / MS)) == 1);
    }
    frame_writer_fini(&writer);
}

void fake_reply(struct fake *fake, const ProtobufCMessage *message)
{
    if (fake->frame.request_id == 0) /* wants no answer */
        return;
    fake_send(fake, fake->frame.type, FRAME_REPLY, fake->frame.request_id, message, NULL, 0);
}

void fake_reply_fd(struct fake *fake, const ProtobufCMessage *message, int fd)
{
    fake_send(fake, fake->frame.type, FRAME_REPLY, fake->frame.request_id, message, &fd, 1);
}

void fake_reply_put(struct fake *fake)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;

    ref.id.data = (uint8_t *)"made";
    ref.id.len = 4;
    ref.generation = 3;
    Rdt__Pb__PutReply reply = MESSAGE(put_reply, .ref = &ref);
    fake_reply(fake, &reply.base);
}

void fake_error(struct fake *fake, enum rdt_status status, const char *message)
{
    if (fake->frame.type == RDT_MSG_FETCH) { /* refused as a whole: each of its items hears of it */
        Rdt__Pb__Fetch *fetch = FAKE_MESSAGE(fake, Fetch);

        for (size_t i = 0; i < fetch->n_items; i++) {
            Rdt__Pb__FetchDone done =
                MESSAGE(fetch_done, .handle = fetch->items[i]->handle, .status = status, .message = (char *)message);
            fake_event(fake, &done, NULL, 0);
        }
        fake_free(fetch);
        return;
    }
    Rdt__Pb__ErrorReply reply = MESSAGE(error_reply, .status = status, .message = (char *)message);
    fake_send(fake, fake->frame.type, FRAME_REPLY | FRAME_ERROR, fake->frame.request_id, &reply.base, NULL, 0);
}

void fake_empty(struct fake *fake)
{
    Rdt__Pb__Empty reply = RDT__PB__EMPTY__INIT;

    fake_reply(fake, &reply.base);
}

void fake_event(struct fake *fake, const Rdt__Pb__FetchDone *done, const int *fds, unsigned n_fds)
{
    fake_send(fake, RDT_EVENT_FETCH_DONE, FRAME_EVENT, 0, &done->base, fds, n_fds);
}

bool fake_take_any(struct fake *fake)
{
    frame_close_fds(&fake->frame);
    for (;;) {
        struct pollfd empty = {.fd = fake->sock, .events = POLLIN};
        enum rdt_status status = frame_reader_next(&fake->reader, &fake->frame, NULL);
        size_t n;

        if (status == RDT_OK)
            return true;
        MUST(status == RDT_AGAIN);
        MUST(poll(&empty, 1, (int)(LONG_NS / MS)) == 1);
        status = frame_reader_recv(&fake->reader, fake->sock, &n, NULL);
        if (status == RDT_DISCONNECTED)
            return false;
        MUST(status == RDT_OK || status == RDT_AGAIN);
    }
}

static bool answered_on_the_way(uint16_t type)
{
    return type == RDT_MSG_RELEASE || type == RDT_MSG_RELEASE_REGION || type == RDT_MSG_CANCEL ||
           type == RDT_MSG_CANCEL_REQUEST || type == RDT_MSG_FREE || type == RDT_MSG_PING;
}

void fake_take(struct fake *fake, enum rdt_message type)
{
    for (;;) {
        MUST(fake_take_any(fake));
        if (fake->frame.type == type)
            return;
        if (!answered_on_the_way(fake->frame.type))
            fprintf(stderr, "a frame of type %u instead of %d\n", fake->frame.type, (int)type);
        MUST(answered_on_the_way(fake->frame.type));
        fake_empty(fake);
    }
}

void fake_serve(struct fake *fake)
{
    while (fake_take_any(fake))
        fake_empty(fake);
}

ProtobufCMessage *fake_message(struct fake *fake, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, fake->frame.length, fake->frame.payload);

    MUST(message);
    return message;
}

void fake_free(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

struct rdt_ref fake_ref(const char *id)
{
    struct rdt_ref ref;

    MUST(rdt_ref_from_id(id, strlen(id), &ref, NULL) == RDT_OK);
    return ref;
}

uint64_t fake_only_handle(struct fake *fake)
{
    Rdt__Pb__Fetch *message = FAKE_MESSAGE(fake, Fetch);

    MUST(message->n_items == 1);
    uint64_t handle = message->items[0]->handle;
    fake_free(message);
    return handle;
}

void fake_send_object(struct fake *fake, uint64_t handle, uint64_t hold, uint64_t bytes)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__SharedRegion region = RDT__PB__SHARED_REGION__INIT, *regions = &region;
    uint32_t dtype = RDT_U8, ndim = 1;
    int fd = fake_memfd(bytes);
    Rdt__Pb__FetchDone done = MESSAGE(fetch_done, .handle = handle, .hold = hold);

    ref.id.data = (uint8_t *)"x";
    ref.id.len = 1;
    done.ref = &ref;
    done.tensors = &tensors;
    tensors.dtype = &dtype;
    tensors.ndim = &ndim;
    tensors.shape = &bytes;
    tensors.n_dtype = tensors.n_ndim = tensors.n_shape = 1;
    region.region = 7;
    region.generation = 1;
    region.bytes = bytes;
    done.regions = &regions;
    done.n_regions = 1;
    fake_event(fake, &done, &fd, 1);
    close(fd);
}

/* ---- the thread ---- */

static void answer_hello(struct fake *fake)
{
    uint8_t node[16] = {1, 2, 3}, boot_id[16] = {4, 5, 6};

    fake_take(fake, RDT_MSG_HELLO);
    Rdt__Pb__HelloReply reply = MESSAGE(hello_reply, .protocol = 1, .daemon_version = (char *)"9.8.7");
    reply.node_uuid.data = node;
    reply.node_uuid.len = sizeof node;
    reply.boot_id.data = boot_id;
    reply.boot_id.len = sizeof boot_id;
    reply.node_address = (char *)"host:1234";
    reply.session_id = 42;
    reply.uid = 1000;
    reply.tenant = (char *)"team";
    fake_reply(fake, &reply.base);
}

void fake_welcome(struct fake *fake, Rdt__Pb__HelloReply reply)
{
    uint8_t uuid[16] = {1};

    reply.protocol = 1;
    reply.node_uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    if (reply.boot_id.len == 0)
        reply.boot_id = reply.node_uuid;
    fake_reply(fake, &reply.base);
}

static void take_client(struct fake *fake)
{
    fake->sock = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    MUST(fake->sock >= 0);
}

static void hang_up(struct fake *fake)
{
    frame_close_fds(&fake->frame);
    frame_reader_fini(&fake->reader);
    frame_reader_init(&fake->reader, RDT_MAX_FRAME_BYTES);
    MUST(close(fake->sock) == 0);
    fake->sock = -1;
}

void fake_again(struct fake *fake)
{
    hang_up(fake);
    take_client(fake);
}

static void listen_at(struct fake *fake)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, fake->path, strlen(fake->path) + 1);
    fake->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(fake->listener >= 0);
    MUST(bind(fake->listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(fake->listener, 4) == 0);
}

void fake_die(struct fake *fake)
{
    MUST(close(fake->listener) == 0);
    hang_up(fake);
}

void fake_rise(struct fake *fake)
{
    MUST(unlink(fake->path) == 0);
    listen_at(fake);
    take_client(fake);
}

static void play(struct fake *fake, bool hello)
{
    take_client(fake);
    if (hello)
        answer_hello(fake);
    fake->script(fake);
    frame_close_fds(&fake->frame);
    if (fake->sock >= 0)
        close(fake->sock);
}

static void *play_after_hello(void *arg)
{
    play(arg, true);
    return NULL;
}

static void *play_raw(void *arg)
{
    play(arg, false);
    return NULL;
}

static void start(struct fake *fake, void (*script)(struct fake *), void *arg, void *(*thread)(void *))
{
    const char *tmp = getenv("TMPDIR");

    memset(fake, 0, sizeof *fake);
    fake->script = script;
    fake->arg = arg;
    snprintf(fake->dir, sizeof fake->dir, "%s/fake.XXXXXX", tmp ? tmp : "/tmp");
    MUST(mkdtemp(fake->dir));
    snprintf(fake->path, sizeof fake->path, "%s/socket", fake->dir);
    listen_at(fake);
    frame_reader_init(&fake->reader, RDT_MAX_FRAME_BYTES);
    MUST(sem_init(&fake->step, 0, 0) == 0);
    MUST(pthread_create(&fake->thread, NULL, thread, fake) == 0);
}

void fake_start(struct fake *fake, void (*script)(struct fake *), void *arg)
{
    start(fake, script, arg, play_after_hello);
}

void fake_start_raw(struct fake *fake, void (*script)(struct fake *), void *arg)
{
    start(fake, script, arg, play_raw);
}

rdt *fake_connect(const struct fake *fake)
{
    struct rdt_error err;
    rdt *conn;
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = fake->path, .timeout_ns = LONG_NS};

    if (rdt_connect(&options, &conn, &err) != RDT_OK) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return conn;
}

void fake_stop(struct fake *fake)
{
    MUST(pthread_join(fake->thread, NULL) == 0);
    frame_reader_fini(&fake->reader);
    close(fake->listener);
    sem_destroy(&fake->step);
    MUST(unlink(fake->path) == 0 && rmdir(fake->dir) == 0);
}

rdt *fake_client(struct fake *fake, void (*script)(struct fake *), void *arg)
{
    fake_start(fake, script, arg);
    return fake_connect(fake);
}

void fake_end(struct fake *fake, rdt *conn)
{
    rdt_close(conn);
    fake_stop(fake);
}
