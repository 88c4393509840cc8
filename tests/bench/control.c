/* SPDX-License-Identifier: Apache-2.0 */
/* Times of single calls, each measured alternately with its reference; a row is a pair of medians. The caller chooses which
 * process runs on which core.
 *
 *     control local SUFFIX ROUNDS RDTD_SOCKET ECHO_SOCKET                   one daemon
 *     control peers SUFFIX ROUNDS RDTD_SOCKET ECHO_SOCKET OTHER_RDTD PORT   the object is at OTHER_RDTD; `echo tcp` at PORT
 */
#include <sys/mman.h>

#include "bench_client.h"
#include "bench_socket.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"

#define TENSORS 10000u
#define TENSOR_ELEMS 64
#define TENSOR_BYTES ((size_t)TENSOR_ELEMS * 4)
#define COPIED_BYTES ((size_t)1 << 20)
#define MAX_REPEATS 2000u

struct bench {
    rdt *actor, *owner;             /* the client that measures, and the client that put the fetched objects */
    int echo, tcp;                  /* sockets of the reference */
    uint8_t *memory;                /* of the actor's daemon, of TENSORS tensors */
    struct rdt_tensor *tensors;     /* tensors in that memory */
    uint8_t *own;                   /* COPIED_BYTES of the actor's own memory */
    struct rdt_ref *refs;           /* the refs of the many puts */
    struct rdt_ref big, mib, small; /* the owner's objects */
};

static const int64_t small_shape[1] = {TENSOR_ELEMS}, copied_shape[1] = {COPIED_BYTES};

/* ---- the reference ---- */

static int fd_of(struct msghdr *msg)
{
    struct cmsghdr *control = CMSG_FIRSTHDR(msg);
    int fd = -1;

    if (control && control->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(control), sizeof fd);
    return fd;
}

/* One round trip. The reply is unpacked and, unless reply_p is given, freed. *fd_p receives the descriptor that came with
 * it. */
static void call(int sock, enum bench_message type, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **reply_p, int *fd_p)
{
    static uint64_t id;
    static uint8_t buffer[BENCH_BUFFER_BYTES];
    char control[CMSG_SPACE(sizeof(int))];
    struct bench_header header = {.bytes = 0};
    struct iovec iov = {buffer, 0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    size_t n = 0;

    iov.iov_len = bench_pack(buffer, sizeof buffer, (uint16_t)type, ++id, request);
    if (sendmsg(sock, &msg, MSG_NOSIGNAL) != (ssize_t)iov.iov_len)
        bench_die("a request did not go out whole");
    while (n < sizeof header || n < sizeof header + header.bytes) {
        iov = (struct iovec){buffer + n, sizeof buffer - n};
        msg.msg_control = fd_p ? control : NULL;
        msg.msg_controllen = fd_p ? sizeof control : 0;
        ssize_t got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
        if (got <= 0)
            bench_die("the reference has gone");
        if (fd_p && n == 0)
            *fd_p = fd_of(&msg);
        n += (size_t)got;
        if (n >= sizeof header)
            memcpy(&header, buffer, sizeof header);
    }
    ProtobufCMessage *reply = protobuf_c_message_unpack(reply_type, NULL, header.bytes, buffer + sizeof header);
    if (!reply || header.id != id)
        bench_die("a bad reply");
    if (reply_p)
        *reply_p = reply;
    else
        protobuf_c_message_free_unpacked(reply, NULL);
}

static void echo_put(struct bench *bench, struct rdt_ref *ref_p)
{
    uint32_t dtype = RDT_F32, ndim = 1, region = 0;
    uint64_t shape = TENSOR_ELEMS, offset = 0;
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses = &use;
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    ProtobufCMessage *reply;

    list.n_dtype = list.n_ndim = list.n_shape = list.n_region_index = list.n_offset = 1;
    list.dtype = &dtype;
    list.ndim = &ndim;
    list.shape = &shape;
    list.region_index = &region;
    list.offset = &offset;
    use.region = 7;
    use.generation = 7;
    put.n_regions = 1;
    put.regions = &uses;
    put.tensors = &list;
    call(bench->echo, BENCH_PUT, &put.base, &rdt__pb__put_reply__descriptor, &reply, NULL);
    must_ok(wire_ref_to(((Rdt__Pb__PutReply *)reply)->ref, ref_p, &err));
    protobuf_c_message_free_unpacked(reply, NULL);
}

static void echo_free(struct bench *bench, const struct rdt_ref *ref)
{
    Rdt__Pb__Free message = RDT__PB__FREE__INIT;
    Rdt__Pb__Ref wire;

    wire_ref_from(ref, &wire);
    message.ref = &wire;
    call(bench->echo, BENCH_FREE, &message.base, &rdt__pb__empty__descriptor, NULL, NULL);
}

static void reference_put_free(struct bench *bench)
{
    struct rdt_ref ref;

    echo_put(bench, &ref);
    echo_free(bench, &ref);
}

static void reference_share(struct bench *bench)
{
    Rdt__Pb__Ping message = RDT__PB__PING__INIT;
    int fd = -1;

    call(bench->echo, BENCH_PASS_FD, &message.base, &rdt__pb__ping__descriptor, NULL, &fd);
    void *addr = mmap(NULL, BENCH_BIG_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED || munmap(addr, BENCH_BIG_BYTES) != 0 || close(fd) != 0)
        bench_die("the reference's fd cannot be mapped: %s", strerror(errno));
}

static void reference_between(struct bench *bench)
{
    static uint8_t like_a_ref[64];
    struct rdt_ref ref;
    Rdt__Pb__Ping message = RDT__PB__PING__INIT;

    echo_put(bench, &ref);
    echo_free(bench, &ref);
    message.data = (ProtobufCBinaryData){sizeof like_a_ref, like_a_ref};
    call(bench->tcp, BENCH_READ, &message.base, &rdt__pb__ping__descriptor, NULL, NULL);
}

/* ---- ours ---- */

static void ours_put_free(struct bench *bench)
{
    struct rdt_ref ref;

    must_ok(rdt_put(bench->actor, bench->tensors, 1, NULL, &ref, &err));
    must_ok(rdt_free(bench->actor, &ref, false, &err));
}

static void put_free_of(struct bench *bench, void *data)
{
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = copied_shape, .data = data};
    struct rdt_ref ref;

    must_ok(rdt_put(bench->actor, &tensor, 1, NULL, &ref, &err));
    must_ok(rdt_free(bench->actor, &ref, false, &err));
}

static void ours_put_copied(struct bench *bench)
{
    put_free_of(bench, bench->own);
}

/* The reference: a program that knows that nobody reads its earlier object any more. */
static void reference_put_copied(struct bench *bench)
{
    memcpy(bench->memory, bench->own, COPIED_BYTES);
    put_free_of(bench, bench->memory);
}

/* Until the pointer is there, and the end of the fetch. */
static void fetch(struct bench *bench, const struct rdt_ref *ref, enum rdt_fetch_mode mode, const char *path)
{
    rdt_object *object = bench_fetch(bench->actor, ref, mode, NULL, 0, path);
    struct rdt_tensor tensor;

    must_ok(rdt_object_tensor(object, 0, &tensor, &err));
    if (!tensor.data)
        bench_die("a fetch brought no pointer");
    rdt_release(object);
}

static void ours_share_big(struct bench *bench)
{
    fetch(bench, &bench->big, RDT_FETCH_SHARE, "local/share");
}

static void ours_share_mib(struct bench *bench)
{
    fetch(bench, &bench->mib, RDT_FETCH_SHARE, "local/share");
}

static void ours_share_small(struct bench *bench)
{
    fetch(bench, &bench->small, RDT_FETCH_SHARE, "local/share");
}

static void ours_between(struct bench *bench)
{
    fetch(bench, &bench->small, RDT_FETCH_AUTO, "inline");
}

static void ours_put_many(struct bench *bench)
{
    must_ok(rdt_put(bench->actor, bench->tensors, TENSORS, NULL, &bench->refs[0], &err));
}

static void free_one(struct bench *bench)
{
    must_ok(rdt_free(bench->actor, &bench->refs[0], false, &err));
}

static void reference_put_many(struct bench *bench)
{
    for (unsigned i = 0; i < TENSORS; i++)
        must_ok(rdt_put(bench->actor, &bench->tensors[i], 1, NULL, &bench->refs[i], &err));
}

static void free_many(struct bench *bench)
{
    for (unsigned i = 0; i < TENSORS; i++)
        must_ok(rdt_free(bench->actor, &bench->refs[i], false, &err));
}

/* ---- rows ---- */

struct side {
    void (*run)(struct bench *bench);
    void (*undo)(struct bench *bench); /* not timed; may be NULL */
    unsigned repeats;                  /* a round's median is of so many */
};

struct row {
    const char *name, *goal; /* lower is better in all of them */
    struct side ours, reference;
    unsigned most_rounds; /* 0: as many as are asked for */
};

static const struct row local_rows[] = {
    {"put_free_p50", "1.3", {ours_put_free, NULL, 200}, {reference_put_free, NULL, 200}, 0},
    {"put_free_copied_1m", "1.2", {ours_put_copied, NULL, 100}, {reference_put_copied, NULL, 100}, 0},
    {"share_1g", "1.5", {ours_share_big, NULL, 150}, {reference_share, NULL, 150}, 0},
    {"share_size_independence", "1.2", {ours_share_big, NULL, 150}, {ours_share_mib, NULL, 150}, 0},
    {"put_10000_tensors", "0.05", {ours_put_many, free_one, 3}, {reference_put_many, free_many, 1}, 3},
    {"small_fetch_same_node", "null", {ours_share_small, NULL, 150}, {reference_put_free, NULL, 150}, 0},
};

static const struct row peer_rows[] = {
    {"small_fetch_between_nodes", "1.3", {ours_between, NULL, 150}, {reference_between, NULL, 150}, 0},
};

static double median_us(struct bench *bench, const struct side *side)
{
    static double took_us[MAX_REPEATS];

    for (unsigned i = 0; i < side->repeats; i++) {
        int64_t since = bench_now_ns();

        side->run(bench);
        took_us[i] = (double)(bench_now_ns() - since) / 1e3;
        if (side->undo)
            side->undo(bench);
    }
    return bench_median(took_us, side->repeats);
}

static void measure(struct bench *bench, const struct row *rows, size_t n_rows, const char *suffix, unsigned rounds)
{
    for (size_t i = 0; i < n_rows; i++) {
        const struct row *row = &rows[i];

        row->ours.run(bench); /* the first time is another thing */
        if (row->ours.undo)
            row->ours.undo(bench);
        for (unsigned round = 0; round < rounds && (row->most_rounds == 0 || round < row->most_rounds); round++) {
            double ours = median_us(bench, &row->ours), reference = median_us(bench, &row->reference);

            bench_row(row->name, suffix, "us", "lower", row->goal, ours, reference);
        }
    }
}

/* ---- start ---- */

static void put_bytes(struct bench *bench, size_t bytes, struct rdt_ref *ref_p)
{
    int64_t shape[1] = {(int64_t)bytes};
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = shape};

    must_ok(rdt_alloc(bench->owner, bytes, &tensor.data, &err));
    must_ok(rdt_put(bench->owner, &tensor, 1, NULL, ref_p, &err));
}

static void prepare_tensors(struct bench *bench)
{
    void *memory;

    must_ok(rdt_alloc(bench->actor, TENSORS * TENSOR_BYTES, &memory, &err));
    bench->memory = memory;
    bench->own = malloc(COPIED_BYTES);
    bench->tensors = calloc(TENSORS, sizeof *bench->tensors);
    bench->refs = calloc(TENSORS, sizeof *bench->refs);
    if (!bench->tensors || !bench->refs || !bench->own)
        bench_die("no memory");
    memset(bench->own, 1, COPIED_BYTES);
    for (unsigned i = 0; i < TENSORS; i++)
        bench->tensors[i] =
            (struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = small_shape, .data = bench->memory + i * TENSOR_BYTES};
}

int main(int argc, char **argv)
{
    bool local = argc == 6 && strcmp(argv[1], "local") == 0;
    bool peers = argc == 8 && strcmp(argv[1], "peers") == 0;

    if (!local && !peers)
        bench_die("usage: control local SUFFIX ROUNDS RDTD_SOCKET ECHO_SOCKET | peers ... OTHER_RDTD_SOCKET PORT");
    unsigned rounds = (unsigned)bench_number(argv[3]);
    struct bench bench = {.tcp = -1, .actor = bench_connect(argv[4], "bench")};
    bench.owner = bench_connect(peers ? argv[6] : argv[4], "bench-owner");
    bench.echo = bench_connect_unix(argv[5]);
    if (peers)
        bench.tcp = bench_connect_tcp((uint16_t)bench_number(argv[7]));
    put_bytes(&bench, BENCH_SMALL_BYTES, &bench.small);
    if (local) {
        put_bytes(&bench, BENCH_BIG_BYTES, &bench.big);
        put_bytes(&bench, (size_t)1 << 20, &bench.mib);
        prepare_tensors(&bench);
    }
    if (local)
        measure(&bench, local_rows, sizeof local_rows / sizeof *local_rows, argv[2], rounds);
    else
        measure(&bench, peer_rows, sizeof peer_rows / sizeof *peer_rows, argv[2], rounds);
    rdt_close(bench.actor);
    rdt_close(bench.owner);
    (void)close(bench.echo);
    free(bench.tensors);
    free(bench.refs);
    free(bench.own);
    return 0;
}
