/* SPDX-License-Identifier: Apache-2.0 */
/* See client.h. */
#include "tests/fuzz/harness/client.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/verb.h"
#include "tests/fuzz/harness/daemon.h"

#define SOON_MS 2000
#define N_KINDS 6
#define MEMORY_BYTES 65536

/* ---- bytes ---- */

static void lost(struct fuzz_client *client)
{
    if (client->sock >= 0)
        close(client->sock);
    client->sock = -1;
}

static bool wait_for(int sock, short events, int timeout_ms)
{
    struct pollfd ready = {.fd = sock, .events = events};

    return fuzz_daemon_poll(&ready, 1, timeout_ms) == 1;
}

static void send_all(struct fuzz_client *client, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    char control[CMSG_SPACE(N_KINDS * sizeof(int))] = {0};

    while (n > 0 && client->sock >= 0) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t sent;

        if (n_fds > 0) {
            struct cmsghdr *cmsg = (struct cmsghdr *)(void *)control;

            msg.msg_control = control;
            msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
            cmsg->cmsg_level = SOL_SOCKET;
            cmsg->cmsg_type = SCM_RIGHTS;
            cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
            memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
        }
        if (!wait_for(client->sock, POLLOUT, SOON_MS) ||
            (sent = sendmsg(client->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0) {
            lost(client);
            return;
        }
        bytes += sent;
        n -= (size_t)sent;
        n_fds = 0;
    }
}

static void remember(struct fuzz_client *client, const struct frame *frame)
{
    if (frame->flags == FRAME_REPLY && (frame->type == RDT_MSG_ALLOC || frame->type == RDT_MSG_IMPORT)) {
        Rdt__Pb__RegionReply *reply = rdt__pb__region_reply__unpack(NULL, frame->length, frame->payload);

        fuzz_must(reply);
        client->regions[client->n_regions % FUZZ_KNOWN].number = reply->region;
        client->regions[client->n_regions++ % FUZZ_KNOWN].generation = reply->generation;
        rdt__pb__region_reply__free_unpacked(reply, NULL);
    }
    if (frame->type == RDT_EVENT_FETCH_DONE && frame->flags & FRAME_EVENT) {
        Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, frame->length, frame->payload);
        struct layout *layout;

        fuzz_must(done);
        fuzz_must(layout_from_wire(done->tensors, &layout, NULL) == RDT_OK); /* what the daemon says is well-formed */
        free(layout);
        if (done->hold)
            client->holds[client->n_holds++ % FUZZ_KNOWN] = done->hold;
        rdt__pb__fetch_done__free_unpacked(done, NULL);
    }
}

bool fuzz_client_await(struct fuzz_client *client, uint64_t id, int timeout_ms, struct frame *frame_p)
{
    while (client->sock >= 0) {
        enum rdt_status status = frame_reader_next(&client->reader, frame_p, NULL);
        size_t n;

        if (status == RDT_OK) {
            remember(client, frame_p);
            frame_close_fds(frame_p);
            if (frame_p->request_id == id && frame_p->flags & FRAME_REPLY)
                return true;
            continue;
        }
        fuzz_must(status == RDT_AGAIN);
        if (!wait_for(client->sock, POLLIN, timeout_ms))
            return false;
        status = frame_reader_recv(&client->reader, client->sock, &n, NULL);
        if (status != RDT_OK && status != RDT_AGAIN)
            lost(client);
    }
    return false;
}

/* ---- the session ---- */

uint64_t fuzz_client_send(struct fuzz_client *client, uint16_t type, const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *frame = malloc(FRAME_HEADER_BYTES + n);

    fuzz_must(frame);
    frame_header_encode(frame, (uint32_t)n, type, 0, 0, ++client->next_id);
    (void)protobuf_c_message_pack(message, frame + FRAME_HEADER_BYTES);
    send_all(client, frame, FRAME_HEADER_BYTES + n, NULL, 0);
    free(frame);
    return client->next_id;
}

void fuzz_client_open(struct fuzz_client *client)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    Rdt__Pb__HelloReply *reply;
    struct frame frame;

    memset(client, 0, sizeof *client);
    client->sock = fuzz_daemon_connect();
    fuzz_must(client->sock >= 0);
    frame_reader_init(&client->reader, RDT_MAX_FRAME_BYTES);
    hello.protocol_min = RDT_PROTOCOL_MIN;
    hello.protocol_max = RDT_PROTOCOL_MAX;
    hello.client_name = (char *)"fuzz";
    hello.tensor_runs = true;
    fuzz_must(fuzz_client_await(client, fuzz_client_send(client, RDT_MSG_HELLO, &hello.base), 30000, &frame));
    reply = rdt__pb__hello_reply__unpack(NULL, frame.length, frame.payload);
    fuzz_must(reply && frame.flags == FRAME_REPLY && reply->node_uuid.len == 16);
    memcpy(client->node_uuid, reply->node_uuid.data, 16);
    (void)snprintf(client->node_address, sizeof client->node_address, "%s", reply->node_address);
    rdt__pb__hello_reply__free_unpacked(reply, NULL);
}

void fuzz_client_close(struct fuzz_client *client)
{
    lost(client);
    frame_reader_fini(&client->reader);
}

/* ---- what an input says ---- */

static unsigned choose_fds(unsigned kinds, int *fds_p)
{
    static int made[N_KINDS];
    unsigned n = 0;

    if (!made[0]) {
        int pipes[2];

        made[0] = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        made[1] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        fuzz_must(ftruncate(made[0], MEMORY_BYTES) == 0 && ftruncate(made[1], MEMORY_BYTES) == 0);
        fuzz_must(fcntl(made[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 && pipe2(pipes, O_CLOEXEC) == 0);
        made[2] = pipes[0];
        made[3] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        made[4] = open("/dev/null", O_RDWR | O_CLOEXEC);
        made[5] = memfd_create("whole", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        fuzz_must(fallocate(made[5], 0, 0, MEMORY_BYTES) == 0 &&
                  fcntl(made[5], F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    }
    for (unsigned i = 0; i < N_KINDS; i++)
        if (kinds >> i & 1)
            fds_p[n++] = made[i];
    return n;
}

static void name_region(const struct fuzz_client *client, uint64_t *region, uint64_t *generation)
{
    if (*region >= FUZZ_KNOWN || *region >= client->n_regions)
        return;
    if (*generation == 0)
        *generation = client->regions[*region].generation;
    *region = client->regions[*region].number;
}

/* Small numbers become real ones. */
static void name_all(const struct fuzz_client *client, uint16_t type, ProtobufCMessage *message)
{
    if (type == RDT_MSG_PUT) {
        Rdt__Pb__Put *put = (Rdt__Pb__Put *)message;

        for (size_t i = 0; i < put->n_regions; i++)
            name_region(client, &put->regions[i]->region, &put->regions[i]->generation);
        if (put->ttl_ns > 1000000)
            put->ttl_ns = 1000000;
    } else if (type == RDT_MSG_FETCH) {
        Rdt__Pb__Fetch *fetch = (Rdt__Pb__Fetch *)message;

        for (size_t i = 0; i < fetch->n_items; i++)
            for (size_t r = 0; r < fetch->items[i]->n_target_regions; r++)
                name_region(client, &fetch->items[i]->target_regions[r]->region,
                            &fetch->items[i]->target_regions[r]->generation);
    } else if (type == RDT_MSG_RELEASE_REGION) {
        uint64_t generation = 1;

        name_region(client, &((Rdt__Pb__ReleaseRegion *)message)->region, &generation);
    } else if (type == RDT_MSG_WAIT_FREED) {
        name_region(client, &((Rdt__Pb__WaitFreed *)message)->region, &((Rdt__Pb__WaitFreed *)message)->generation);
    } else if (type == RDT_MSG_RELEASE) {
        Rdt__Pb__Release *release = (Rdt__Pb__Release *)message;

        if (release->hold < FUZZ_KNOWN && release->hold < client->n_holds)
            release->hold = client->holds[release->hold];
    }
}

static const ProtobufCMessageDescriptor *descriptor_of(uint16_t type)
{
    const struct verb *verb = verb_find(type);

    return verb ? verb->request : NULL;
}

static void say(struct fuzz_client *client, uint16_t type, uint8_t flags, const uint8_t *payload, size_t n, unsigned kinds,
                bool known)
{
    const ProtobufCMessageDescriptor *descriptor = descriptor_of(type);
    ProtobufCMessage *message = known && descriptor ? protobuf_c_message_unpack(descriptor, NULL, n, payload) : NULL;
    uint8_t *frame;
    int fds[N_KINDS];
    unsigned n_fds = choose_fds(kinds, fds);

    if (message) {
        name_all(client, type, message);
        n = protobuf_c_message_get_packed_size(message);
    }
    frame = malloc(FRAME_HEADER_BYTES + n + 1);
    fuzz_must(frame);
    frame_header_encode(frame, (uint32_t)n, type, (uint8_t)n_fds, flags, ++client->next_id);
    if (message)
        (void)protobuf_c_message_pack(message, frame + FRAME_HEADER_BYTES);
    else if (n)
        memcpy(frame + FRAME_HEADER_BYTES, payload, n);
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
    send_all(client, frame, FRAME_HEADER_BYTES + n, fds, n_fds);
    free(frame);
}

#define FIRST_HIGH 56u

/* Six bits for each type: low types are themselves. High ones take the places from FIRST_HIGH on, and then those of low numbers
 * that no request has, from the highest down. */
uint16_t fuzz_request_type(unsigned bits)
{
    static uint16_t type_at[64];
    static bool is_request[FIRST_HIGH];
    unsigned next = FIRST_HIGH, low = FIRST_HIGH;

#define X(number, NAME, request, reply, properties, unmet) \
    if ((number) < FIRST_HIGH)                             \
        is_request[(number) % FIRST_HIGH] = true;
    if (type_at[1] == 0) {
        RDT_REQUEST_MAP(X)
    }
#undef X
#define X(number, NAME, request, reply, properties, unmet)                   \
    if ((number) >= FIRST_HIGH && next < 64) {                               \
        type_at[next++] = (number);                                          \
    } else if ((number) >= FIRST_HIGH) {                                     \
        do                                                                   \
            fuzz_must(--low > 0); /* there is no room: make it seven bits */ \
        while (is_request[low]);                                             \
        type_at[low] = (number);                                             \
    }
    if (type_at[1] == 0) {
        for (unsigned i = 0; i < FIRST_HIGH; i++)
            type_at[i] = (uint16_t)i;
        RDT_REQUEST_MAP(X)
    }
#undef X
    return type_at[bits % 64];
}

void fuzz_client_say(struct fuzz_client *client, uint16_t type, uint8_t flags, const uint8_t *payload, size_t n, unsigned kinds,
                     bool known)
{
    struct frame answer;

    say(client, type, flags, payload, n, kinds, known);
    if (flags == 0 && type != RDT_MSG_WAIT && type != RDT_MSG_WAIT_FREED && type != RDT_MSG_HOLD &&
        type != RDT_MSG_PUBLISH_PART && type != RDT_MSG_GROWING &&
        type != RDT_MSG_PREPARE) /* every other request is answered, and soon */
        fuzz_must(fuzz_client_await(client, client->next_id, 20000, &answer) || client->sock < 0);
}

void fuzz_client_tell(struct fuzz_client *client, uint16_t type, const uint8_t *payload, size_t n, unsigned kinds)
{
    struct frame answer;

    say(client, type, 0, payload, n, kinds, true);
    if (type == RDT_MSG_ALLOC || type == RDT_MSG_IMPORT || type == RDT_MSG_PUT)
        fuzz_must(fuzz_client_await(client, client->next_id, 20000, &answer) || client->sock < 0);
}
