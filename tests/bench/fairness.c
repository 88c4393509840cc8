/* SPDX-License-Identifier: Apache-2.0 */
/* How much one client's flood slows another client: put and free of one client while another process floods the same
 * daemon, measured alternately with the idle daemon. The flood runs at nice NICE, because the daemon cannot divide the
 * processor time that the flood itself uses.
 *
 *     fairness ROUNDS SUFFIX NICE SOCKET OTHER_SOCKET [FLOOD]
 *
 * OTHER_SOCKET is another node's daemon, for the flood by the network. FLOOD: only this one runs.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_client.h"
#include "proto/messages.h"
#include "proto/wire_limits.h"
#include "rdt.pb-c.h"

#define TICKET_NS INT64_C(300000000)
#define MAX_SAMPLES 1000000u
#define REFS 16384u
#define OBJECTS 64u
#define LISTED 5000u
#define TENSORS 60000u
#define COPY_BYTES (INT64_C(64) << 20)
#define COPIES_IN_FLIGHT 4
#define BATCH 512u

enum { STOP, GO, QUIT };

struct flood { /* shared with its process */
    atomic_int state;
    atomic_int rests;  /* it is prepared, or has ended its last operation, and waits for GO */
    atomic_ulong done; /* operations */
    const char *socket, *other;
};

/* ---- frames ---- */

static int raw_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    uint8_t buffer[256];
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) != 0)
        bench_die("cannot connect to %s: %s", path, strerror(errno));
    hello.protocol_min = hello.protocol_max = RDT_PROTOCOL_MAX;
    hello.client_name = (char *)"flood";
    (void)!send(sock, buffer, bench_pack(buffer, sizeof buffer, RDT_MSG_HELLO, 1, &hello.base), MSG_NOSIGNAL);
    (void)!recv(sock, buffer, sizeof buffer, 0);
    return sock;
}

/* Sends all of it again and again, and takes what comes back; a batch has n requests. */
static void pump(struct flood *flood, int sock, const uint8_t *bytes, size_t size, unsigned n)
{
    static uint8_t sink[1 << 20];
    size_t sent = 0;

    while (atomic_load(&flood->state) == GO || sent > 0) {
        ssize_t now = send(sock, bytes + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (now < 0 && errno != EAGAIN)
            bench_die("the daemon has closed the flood's connection: %s", strerror(errno));
        if (now > 0)
            sent += (size_t)now;
        if (sent == size) {
            sent = 0;
            atomic_fetch_add(&flood->done, n);
        }
        if (now < 0) /* no answer need come before the rest of a large message has gone */
            (void)poll(&(struct pollfd){.fd = sock, .events = POLLIN | POLLOUT}, 1, 1000);
        while (recv(sock, sink, sizeof sink, MSG_DONTWAIT) == (ssize_t)sizeof sink) {
        }
        if (atomic_load(&flood->state) == QUIT)
            return;
    }
}

/* ---- floods: each prepares, then works while it is told to ---- */

/* Until *word is something else, or a second is over. */
static void wait_change(atomic_int *word, int value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT, value, &(struct timespec){.tv_sec = 1}, NULL, 0);
}

static void set(atomic_int *word, int value)
{
    atomic_store(word, value);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool told(struct flood *flood)
{
    int state;

    while ((state = atomic_load(&flood->state)) == STOP) {
        set(&flood->rests, 1);
        wait_change(&flood->state, STOP);
    }
    return state == GO;
}

static void flood_go(struct flood *flood)
{
    atomic_store(&flood->rests, 0);
    set(&flood->state, GO);
}

/* Nothing more comes of it; what came, the daemon may not have worked off yet. */
static void flood_await(struct flood *flood)
{
    int64_t deadline = bench_now_ns() + BENCH_TIMEOUT_NS;

    while (!atomic_load(&flood->rests)) {
        if (bench_now_ns() > deadline)
            bench_die("the flood does not come to its end");
        wait_change(&flood->rests, 0);
    }
}

static void flood_raw(struct flood *flood, uint8_t *bytes, size_t size, unsigned n)
{
    int sock = raw_connect(flood->socket);

    while (told(flood))
        pump(flood, sock, bytes, size, n);
}

static size_t add(uint8_t **bytes, size_t size, uint16_t type, const ProtobufCMessage *message)
{
    size_t room = protobuf_c_message_get_packed_size(message) + sizeof(struct bench_header);

    *bytes = realloc(*bytes, size + room);
    if (!*bytes)
        bench_die("no memory");
    return size + bench_pack(*bytes + size, room, type, size + 1, message);
}

static Rdt__Pb__Ref named(char *id)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;

    ref.id = (ProtobufCBinaryData){strlen(id), (uint8_t *)id};
    ref.any_owner = true;
    return ref;
}

static void puts_(struct flood *flood)
{
    uint8_t *bytes = NULL;
    size_t size = 0;

    for (unsigned i = 0; i < BATCH; i++) {
        char id[32];
        Rdt__Pb__Put put = RDT__PB__PUT__INIT;
        Rdt__Pb__Free message = RDT__PB__FREE__INIT;

        (void)snprintf(id, sizeof id, "flood-%u", i);
        Rdt__Pb__Ref ref = named(id);
        put.id = ref.id;
        message.ref = &ref;
        size = add(&bytes, size, RDT_MSG_PUT, &put.base);
        size = add(&bytes, size, RDT_MSG_FREE, &message.base);
    }
    flood_raw(flood, bytes, size, 2 * BATCH);
}

static void waits(struct flood *flood)
{
    uint8_t *bytes = NULL;
    size_t size = 0;

    for (unsigned i = 0; i < BATCH; i++) {
        char id[32];
        Rdt__Pb__Wait wait = RDT__PB__WAIT__INIT;

        (void)snprintf(id, sizeof id, "never-%u", i);
        Rdt__Pb__Ref ref = named(id);
        wait.ref = &ref;
        wait.timeout_ns = 20000000;
        size = add(&bytes, size, RDT_MSG_WAIT, &wait.base);
    }
    flood_raw(flood, bytes, size, BATCH);
}

static void lists(struct flood *flood)
{
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    rdt *conn = bench_connect(flood->socket, "flood");
    uint8_t *bytes = NULL;
    size_t size = 0;

    for (unsigned i = 0; i < LISTED; i++) {
        struct rdt_ref ref;
        must_ok(rdt_put(conn, NULL, 0, NULL, &ref, &err));
    }
    for (unsigned i = 0; i < 16; i++)
        size = add(&bytes, size, RDT_MSG_LIST, &list.base);
    flood_raw(flood, bytes, size, 16);
}

static void large(struct flood *flood)
{
    static uint32_t dtype[TENSORS], ndim[TENSORS];
    static uint64_t shape[TENSORS];
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    Rdt__Pb__Free message = RDT__PB__FREE__INIT;
    Rdt__Pb__Ref ref = named((char *)"large");
    uint8_t *bytes = NULL;

    for (unsigned i = 0; i < TENSORS; i++) {
        dtype[i] = RDT_U8;
        ndim[i] = 1;
    }
    tensors.n_dtype = tensors.n_ndim = tensors.n_shape = TENSORS;
    tensors.dtype = dtype;
    tensors.ndim = ndim;
    tensors.shape = shape; /* no elements: no memory */
    put.id = ref.id;
    put.tensors = &tensors;
    put.metadata = (ProtobufCBinaryData){4u << 20, calloc(1, 4u << 20)};
    message.ref = &ref;
    size_t size = add(&bytes, 0, RDT_MSG_PUT, &put.base);
    size = add(&bytes, size, RDT_MSG_FREE, &message.base);
    flood_raw(flood, bytes, size, 2);
}

static void never_reads(struct flood *flood)
{
    static uint8_t data[30000];
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    uint8_t *bytes = NULL;
    size_t size, sent = 0;
    int sock = raw_connect(flood->socket);

    ping.data = (ProtobufCBinaryData){sizeof data, data};
    size = add(&bytes, 0, RDT_MSG_PING, &ping.base);
    while (told(flood)) {
        ssize_t now = send(sock, bytes + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (now > 0)
            sent += (size_t)now;
        if (sent == size) {
            sent = 0;
            atomic_fetch_add(&flood->done, 1);
        }
        if (now < 0)
            (void)poll(&(struct pollfd){.fd = sock, .events = POLLOUT}, 1, 10); /* full: it stays so */
    }
}

static void fetches(struct flood *flood)
{
    rdt *conn = bench_connect(flood->socket, "flood"), *owner = bench_connect(flood->socket, "flood");
    struct rdt_ref *refs = calloc(REFS, sizeof *refs);
    rdt_object **objects = calloc(REFS, sizeof *objects);
    const int64_t shape[1] = {1024};
    struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 1, .shape = shape};

    must_ok(rdt_alloc(owner, 4096, &tensor.data, &err));
    for (unsigned i = 0; i < REFS; i++) {
        if (i < OBJECTS)
            bench_put(owner, &tensor, 1, &refs[i]);
        else
            refs[i] = refs[i % OBJECTS];
    }
    while (told(flood)) {
        must_ok(rdt_fetch(conn, refs, REFS, NULL, objects, &err));
        for (unsigned i = 0; i < REFS; i++)
            rdt_release(objects[i]);
        atomic_fetch_add(&flood->done, REFS);
    }
}

static void copies_from(struct flood *flood, const char *owner_socket)
{
    rdt *owner = bench_connect(owner_socket, "owner"), *conn = bench_connect(flood->socket, "flood");
    const int64_t shape[1] = {COPY_BYTES};
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = shape}, targets[COPIES_IN_FLIGHT];
    rdt_request *requests[COPIES_IN_FLIGHT] = {NULL};
    struct rdt_ref ref;

    must_ok(rdt_alloc(owner, COPY_BYTES, &tensor.data, &err));
    memset(tensor.data, 1, COPY_BYTES);
    bench_put(owner, &tensor, 1, &ref);
    for (unsigned i = 0; i < COPIES_IN_FLIGHT; i++) {
        targets[i] = tensor;
        must_ok(rdt_alloc(conn, COPY_BYTES, &targets[i].data, &err));
        memset(targets[i].data, 0, COPY_BYTES);
    }
    for (unsigned i = 0; told(flood); i = (i + 1) % COPIES_IN_FLIGHT) {
        const struct rdt_tensor *target = &targets[i];
        const size_t count = 1;
        if (requests[i])
            must_ok(rdt_wait(conn, &requests[i], 1, RDT_WAIT_ALL, BENCH_TIMEOUT_NS, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
        struct rdt_fetch_options options = {
            .struct_size = sizeof options, .mode = RDT_FETCH_COPY, .targets = &target, .target_counts = &count};
        must_ok(rdt_fetch_start(conn, &ref, 1, &options, &requests[i], &err));
        atomic_fetch_add(&flood->done, 1);
    }
}

static void copies(struct flood *flood)
{
    copies_from(flood, flood->socket);
}

static void moves(struct flood *flood)
{
    copies_from(flood, flood->other);
}

/* A client that has much ends, again and again. */
static void deaths(struct flood *flood)
{
    while (told(flood)) {
        rdt *conn = bench_connect(flood->socket, "flood");
        for (unsigned i = 0; i < LISTED && atomic_load(&flood->state) == GO; i++) {
            struct rdt_ref ref;
            must_ok(rdt_put(conn, NULL, 0, NULL, &ref, &err));
        }
        rdt_close(conn);
        atomic_fetch_add(&flood->done, 1);
    }
}

static const struct {
    const char *name;
    void (*run)(struct flood *);
} floods[] = {
    {"puts", puts_},
    {"fetches_of_16384", fetches},
    {"waits", waits},
    {"lists", lists},
    {"large_messages", large},
    {"a_client_that_never_reads", never_reads},
    {"deaths", deaths},
    {"copies", copies},
    {"moves_between_nodes", moves},
};

/* ---- the measured client ---- */

struct samples {
    double *us;
    size_t n;
};

static void put_and_free_for(rdt *conn, const struct rdt_tensor *tensor, int64_t ns, struct samples *samples)
{
    int64_t end = bench_now_ns() + ns, since;

    samples->n = 0;
    while ((since = bench_now_ns()) < end && samples->n < MAX_SAMPLES) {
        struct rdt_ref ref;
        bench_put(conn, tensor, 1, &ref);
        must_ok(rdt_free(conn, &ref, false, &err));
        samples->us[samples->n++] = (double)(bench_now_ns() - since) / 1e3;
        (void)usleep(20); /* a pause, waiting for nothing: it is no flood itself */
    }
}

static pid_t start(struct flood *flood, void (*run)(struct flood *), int niceness)
{
    const struct sched_param ordinary = {0};

    atomic_store(&flood->state, STOP);
    atomic_store(&flood->rests, 0);
    atomic_store(&flood->done, 0);
    pid_t pid = fork();
    if (pid < 0)
        bench_die("cannot fork: %s", strerror(errno));
    if (pid == 0) {
        (void)sched_setscheduler(0, SCHED_OTHER, &ordinary);
        (void)setpriority(PRIO_PROCESS, 0, niceness);
        run(flood);
        _exit(0);
    }
    return pid;
}

static void measure(struct flood *flood, unsigned kind, unsigned rounds, const char *suffix, rdt *conn,
                    const struct rdt_tensor *tensor, struct samples *samples)
{
    char p50[96], p99[96];

    (void)snprintf(p50, sizeof p50, "put_free_p50_beside_%s", floods[kind].name);
    (void)snprintf(p99, sizeof p99, "put_free_p99_beside_%s", floods[kind].name);
    for (unsigned i = 0; i < rounds; i++) {
        unsigned long before = atomic_load(&flood->done);

        put_and_free_for(conn, tensor, TICKET_NS, samples);
        double idle50 = bench_percentile(samples->us, samples->n, 0.5);
        double idle99 = bench_percentile(samples->us, samples->n, 0.99);
        flood_go(flood);
        put_and_free_for(conn, tensor, TICKET_NS / 3, samples); /* until it is under way */
        put_and_free_for(conn, tensor, TICKET_NS, samples);
        bench_row(p50, suffix, "us", "lower", "null", bench_percentile(samples->us, samples->n, 0.5), idle50);
        bench_row(p99, suffix, "us", "lower", "3", bench_percentile(samples->us, samples->n, 0.99), idle99);
        set(&flood->state, STOP);
        flood_await(flood);
        if (floods[kind].run != never_reads && atomic_load(&flood->done) == before)
            (void)fprintf(stderr, "the flood of %s did nothing\n", floods[kind].name);
        put_and_free_for(conn, tensor, TICKET_NS / 6, samples); /* the daemon works off the rest of the flood */
    }
}

int main(int argc, char **argv)
{
    struct flood *flood = mmap(NULL, sizeof *flood, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct samples samples = {calloc(MAX_SAMPLES, sizeof(double)), 0};
    const int64_t shape[1] = {64};
    struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 1, .shape = shape};
    rdt *conn;
    pid_t pid;

    if (argc < 6 || argc > 7 || flood == MAP_FAILED || !samples.us)
        bench_die("usage: fairness ROUNDS SUFFIX NICE SOCKET OTHER_SOCKET [FLOOD]");
    flood->socket = argv[4];
    flood->other = argv[5];
    for (unsigned kind = 0; kind < sizeof floods / sizeof floods[0]; kind++) {
        if (argc == 7 && strcmp(argv[6], floods[kind].name) != 0)
            continue;
        (void)fflush(stdout);
        pid = start(flood, floods[kind].run, atoi(argv[3]));
        conn = bench_connect(argv[4], "actor"); /* after the fork: a connection is one process's */
        must_ok(rdt_alloc(conn, 4096, &tensor.data, &err));
        flood_await(flood); /* the flood prepares itself */
        measure(flood, kind, (unsigned)bench_number(argv[1]), argv[2], conn, &tensor, &samples);
        atomic_store(&flood->state, QUIT);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        rdt_close(conn);
    }
    return 0;
}
