/* SPDX-License-Identifier: Apache-2.0 */
/* A FAKE of NCCL for tests on machines without a GPU: a libnccl.so.2 whose communicators are Unix sockets,
 * over the fake driver of tests/fake_cuda. It enforces the rules that callers of NCCL must obey:
 * communicators are non-blocking, operations run in the order of a stream and are matched by order alone,
 * and once another rank is gone, only abort ends a communicator. A send carries its length, so a receive
 * that meets the wrong send fails here.
 *
 * Environment: FAKE_NCCL_VERSION (22809); FAKE_NCCL_HANG (set: communicators never become ready);
 * FAKE_NCCL_REFUSES (set: communicators of several ranks fail, as NCCL does when two ranks are on one GPU);
 * FAKE_NCCL_ABORT_WAITS (a switch of FAKE_CUDA_UNKIND: ncclCommAbort returns when nothing runs on the GPU of what was there
 * when it was called, as cudaFree does, so it waits for the other communicators of the GPU).
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/nccl/nccl_api.h"

void *fake_cuda_reach(CUdeviceptr address, size_t bytes);
bool fake_unkind(const char *name);

enum { INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, SYSTEM_ERROR = 2 };
#define SHOW __attribute__((visibility("default")))

struct link { /* a socket to another rank */
    int fd;
};

struct ncclComm {
    int rank, size;
    CUdevice device;
    char name[40];
    pthread_t thread;
    struct link *links; /* [size] */
    int listener;
    atomic_int state; /* what ncclCommGetAsyncError reports */
    atomic_bool abort;
    atomic_uint refs; /* of the caller, of its thread, and of each group call in a stream */
};

struct move {
    bool send;
    int peer;
    char *at;
    uint64_t bytes, head, done, head_done;
    struct move *next;
};

struct call { /* one group call of one communicator */
    struct ncclComm *comm;
    CUstream stream;
    struct move *moves, **last;
    struct call *next;
    uint64_t number;     /* counts the calls of all communicators */
    struct call *queued; /* the next one in the list below */
};

static pthread_mutex_t queued_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct call *queued; /* all calls in streams that have not ended */
static uint64_t n_calls;

static _Thread_local struct call *calls; /* of the group that is open */
static _Thread_local int depth;

static void unref(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->refs, 1) != 1)
        return;
    for (int i = 0; i < comm->size; i++)
        if (comm->links[i].fd >= 0)
            (void)close(comm->links[i].fd);
    if (comm->listener >= 0)
        (void)close(comm->listener);
    free(comm->links);
    free(comm);
}

static void failed(struct ncclComm *comm, int error)
{
    int good = NCCL_SUCCESS, coming = NCCL_IN_PROGRESS;

    if (!atomic_compare_exchange_strong(&comm->state, &good, error))
        (void)atomic_compare_exchange_strong(&comm->state, &coming, error);
}

/* ---- bootstrap ----
 * As in NCCL, an id has a listening socket and a thread that accepts there until rank 0 is connected with the others, or until
 * accept fails.
 */

struct root {
    char name[40];
    int fd;
    struct root *next;
};

static pthread_mutex_t roots_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct root *roots;

static void *run_root(void *arg)
{
    struct root *root = arg, **at = &roots;
    int fd;

    while ((fd = accept4(root->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        (void)close(fd);
    (void)pthread_mutex_lock(&roots_mutex);
    while (*at != root)
        at = &(*at)->next;
    *at = root->next;
    (void)close(root->fd);
    (void)pthread_mutex_unlock(&roots_mutex);
    free(root);
    return NULL;
}

static void end_root(const char *name)
{
    (void)pthread_mutex_lock(&roots_mutex);
    for (struct root *root = roots; root; root = root->next)
        if (strcmp(root->name, name) == 0)
            (void)shutdown(root->fd, SHUT_RDWR);
    (void)pthread_mutex_unlock(&roots_mutex);
}

static int start_root(struct nccl_id *id)
{
    struct root *root = calloc(1, sizeof *root);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof in;
    pthread_t thread;

    if (!root)
        return SYSTEM_ERROR;
    (void)snprintf(root->name, sizeof root->name, "%.39s", id->bytes);
    root->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(root->fd, (struct sockaddr *)&in, sizeof in) || listen(root->fd, 16) ||
        getsockname(root->fd, (struct sockaddr *)&in, &bytes)) {
        (void)close(root->fd);
        free(root);
        return SYSTEM_ERROR;
    }
    memcpy(id->bytes + 64, &in, sizeof in);
    (void)pthread_mutex_lock(&roots_mutex);
    root->next = roots;
    roots = root;
    (void)pthread_mutex_unlock(&roots_mutex);
    if (pthread_create(&thread, NULL, run_root, root) == 0)
        (void)pthread_detach(thread);
    return NCCL_SUCCESS;
}

/* ---- connecting ---- */

static socklen_t address_of(const struct ncclComm *comm, int rank, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    return (
        socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                   (size_t)snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "fake-nccl-%s-%d", comm->name, rank));
}

static int connect_to(struct ncclComm *comm, int rank)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(comm, rank, &address);

    while (!atomic_load(&comm->abort)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address, bytes) == 0 &&
            write(fd, &comm->rank, sizeof comm->rank) == sizeof comm->rank)
            return fd;
        (void)close(fd);
        (void)poll(NULL, 0, 1);
    }
    return -1;
}

static void *run(void *arg)
{
    struct ncclComm *comm = arg;
    int missing = comm->size - 1 - comm->rank;

    if (comm->size > 1 && getenv("FAKE_NCCL_REFUSES")) {
        failed(comm, INVALID_USAGE);
        unref(comm);
        return NULL;
    }
    for (int i = 0; i < comm->rank; i++)
        comm->links[i].fd = connect_to(comm, i);
    while (missing > 0 && !atomic_load(&comm->abort)) {
        struct pollfd waits = {.fd = comm->listener, .events = POLLIN};
        int fd, rank = -1;
        if (poll(&waits, 1, 10) <= 0)
            continue;
        fd = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && read(fd, &rank, sizeof rank) == sizeof rank && rank > comm->rank && rank < comm->size) {
            comm->links[rank].fd = fd;
            missing--;
        } else if (fd >= 0) {
            (void)close(fd);
        }
    }
    for (int i = 0; i < comm->size; i++)
        if (comm->links[i].fd >= 0)
            (void)fcntl(comm->links[i].fd, F_SETFL, O_NONBLOCK);
    if (!atomic_load(&comm->abort) && !getenv("FAKE_NCCL_HANG")) {
        int coming = NCCL_IN_PROGRESS;
        if (comm->rank == 0)
            end_root(comm->name);
        (void)atomic_compare_exchange_strong(&comm->state, &coming, NCCL_SUCCESS);
    }
    unref(comm);
    return NULL;
}

/* ---- moving bytes, in the stream ---- */

/* Moves as many bytes as possible of one send or receive. False: the connection is broken. */
static bool go_on(struct ncclComm *comm, struct move *move)
{
    int fd = comm->links[move->peer].fd;

    while (move->head_done < sizeof move->head || move->done < move->bytes) {
        bool head = move->head_done < sizeof move->head;
        char *at = head ? (char *)&move->head + move->head_done : move->at + move->done;
        size_t left = head ? sizeof move->head - move->head_done : move->bytes - move->done;
        ssize_t n = move->send ? send(fd, at, left, MSG_NOSIGNAL) : recv(fd, at, left, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0)
            return false;
        *(head ? &move->head_done : &move->done) += (size_t)n;
        if (head && move->head_done == sizeof move->head && move->head != move->bytes) {
            (void)fprintf(stderr, "fake nccl: a receive of %llu bytes met a send of %llu\n", (unsigned long long)move->bytes,
                          (unsigned long long)move->head);
            return false;
        }
    }
    return true;
}

/* Returns the next send, or receive, of the rank with itself that is not done; NULL: there is none. */
static struct move *next_to_self(const struct call *call, bool send)
{
    for (struct move *move = call->moves; move; move = move->next)
        if (move->peer == call->comm->rank && move->send == send && move->head_done == 0)
            return move;
    return NULL;
}

/* Copies what a rank sends to itself, the first send to the first receive. False: their number or lengths differ. */
static bool copy_to_self(struct call *call)
{
    struct move *from, *to;

    while ((from = next_to_self(call, true)) != NULL) {
        to = next_to_self(call, false);
        if (!to || to->bytes != from->bytes)
            return false;
        memmove(to->at, from->at, from->bytes);
        from->done = to->done = from->bytes;
        from->head_done = to->head_done = sizeof from->head;
    }
    return !next_to_self(call, false);
}

static void enter_queue(struct call *call)
{
    (void)pthread_mutex_lock(&queued_mutex);
    call->number = ++n_calls;
    call->queued = queued;
    queued = call;
    (void)pthread_mutex_unlock(&queued_mutex);
}

static void leave_queue(const struct call *call)
{
    struct call **at = &queued;

    (void)pthread_mutex_lock(&queued_mutex);
    while (*at != call)
        at = &(*at)->queued;
    *at = call->queued;
    (void)pthread_mutex_unlock(&queued_mutex);
}

/* Waits for the calls of all communicators of the GPU that are in streams now. */
static void await_gpu(CUdevice device)
{
    bool busy = true;

    (void)pthread_mutex_lock(&queued_mutex);
    uint64_t until = n_calls;
    while (busy) {
        busy = false;
        for (const struct call *call = queued; call; call = call->queued)
            busy |= call->comm->device == device && call->number <= until;
        (void)pthread_mutex_unlock(&queued_mutex);
        if (busy)
            (void)poll(NULL, 0, 1);
        (void)pthread_mutex_lock(&queued_mutex);
    }
    (void)pthread_mutex_unlock(&queued_mutex);
}

static void work(void *arg)
{
    struct call *call = arg;
    struct ncclComm *comm = call->comm;
    bool left = true, lost = !copy_to_self(call);

    if (lost) {
        (void)fputs("fake nccl: a rank must receive what it sends to itself in the same group call\n", stderr);
        failed(comm, INVALID_USAGE);
    }
    while (left && !atomic_load(&comm->abort)) {
        left = false;
        for (struct move *move = call->moves; move; move = move->next) {
            bool first = true;
            for (const struct move *before = call->moves; before != move; before = before->next)
                first &= before->send != move->send || before->peer != move->peer ||
                         (before->done == before->bytes && before->head_done == sizeof before->head);
            if (first && !lost && !go_on(comm, move)) {
                failed(comm, REMOTE_ERROR);
                lost = true; /* the call hangs until it is aborted, as NCCL's does */
            }
            left |= move->done < move->bytes || move->head_done < sizeof move->head;
        }
        if (left)
            (void)poll(NULL, 0, lost ? 5 : 1);
    }
    while (call->moves) {
        struct move *move = call->moves;
        call->moves = move->next;
        free(move);
    }
    leave_queue(call);
    free(call);
    unref(comm);
}

/* ---- the functions of NCCL ---- */

SHOW int ncclGetVersion(int *version_p)
{
    const char *text = getenv("FAKE_NCCL_VERSION");

    *version_p = text ? atoi(text) : 22809;
    return NCCL_SUCCESS;
}

SHOW int ncclGetUniqueId(struct nccl_id *id_p)
{
    uint8_t bytes[16];

    memset(id_p, 0, sizeof *id_p);
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return SYSTEM_ERROR;
    for (unsigned i = 0; i < sizeof bytes; i++)
        (void)snprintf(id_p->bytes + 2 * (size_t)i, 3, "%02x", bytes[i]);
    return start_root(id_p);
}

SHOW int ncclCommInitRankConfig(nccl_comm *comm_p, int size, struct nccl_id id, int rank, struct nccl_config *config)
{
    struct ncclComm *comm;
    struct sockaddr_un address;

    *comm_p = NULL;
    if (config->magic != NCCL_CONFIG_MAGIC || config->blocking != 0 || size < 1 || rank < 0 || rank >= size ||
        !memchr(id.bytes, 0, 40))
        return INVALID_ARGUMENT;
    comm = calloc(1, sizeof *comm);
    if (!comm || !(comm->links = calloc((size_t)size, sizeof *comm->links))) {
        free(comm);
        return SYSTEM_ERROR;
    }
    comm->rank = rank;
    comm->size = size;
    if (cuCtxGetDevice(&comm->device) != CUDA_SUCCESS)
        comm->device = -1;
    (void)snprintf(comm->name, sizeof comm->name, "%.39s", id.bytes);
    for (int i = 0; i < size; i++)
        comm->links[i].fd = -1;
    atomic_init(&comm->state, NCCL_IN_PROGRESS);
    atomic_init(&comm->refs, 2);
    comm->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = address_of(comm, rank, &address);
    if (bind(comm->listener, (struct sockaddr *)&address, bytes) || listen(comm->listener, size) ||
        pthread_create(&comm->thread, NULL, run, comm)) {
        atomic_store(&comm->refs, 1);
        unref(comm);
        return SYSTEM_ERROR;
    }
    (void)pthread_detach(comm->thread);
    *comm_p = comm;
    return NCCL_IN_PROGRESS;
}

SHOW int ncclCommGetAsyncError(nccl_comm comm, int *error_p)
{
    *error_p = atomic_load(&comm->state);
    return NCCL_SUCCESS;
}

static atomic_bool aborts_hang;

/* From now on ncclCommAbort returns only when this is called with false. */
SHOW void fake_nccl_hold_aborts(bool hold);
void fake_nccl_hold_aborts(bool hold)
{
    atomic_store(&aborts_hang, hold);
}

SHOW int ncclCommAbort(nccl_comm comm)
{
    while (atomic_load(&aborts_hang))
        (void)poll(NULL, 0, 1);
    atomic_store(&comm->abort, true);
    for (int i = 0; atomic_load(&comm->state) != NCCL_IN_PROGRESS && i < comm->size; i++)
        if (comm->links[i].fd >= 0)
            (void)shutdown(comm->links[i].fd, SHUT_RDWR);
    if (fake_unkind("FAKE_NCCL_ABORT_WAITS"))
        await_gpu(comm->device);
    unref(comm);
    return NCCL_SUCCESS;
}

SHOW const char *ncclGetErrorString(int error)
{
    return error == REMOTE_ERROR ? "remote process exited or there was a network error (of the fake)"
                                 : "an error of the fake NCCL";
}

SHOW const char *ncclGetLastError(nccl_comm comm)
{
    return comm && atomic_load(&comm->state) == INVALID_USAGE ? "Duplicate GPU detected (of the fake)" : "";
}

SHOW int ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

SHOW int ncclGroupEnd(void)
{
    int result = NCCL_SUCCESS;

    if (--depth > 0)
        return NCCL_SUCCESS;
    while (calls) {
        struct call *call = calls;
        calls = call->next;
        atomic_fetch_add(&call->comm->refs, 1);
        enter_queue(call);
        if (cuLaunchHostFunc(call->stream, work, call) != CUDA_SUCCESS) {
            leave_queue(call);
            failed(call->comm, SYSTEM_ERROR);
            unref(call->comm);
        }
        result = NCCL_IN_PROGRESS; /* as NCCL may; ncclCommGetAsyncError then reports success */
    }
    return result;
}

/* How many group calls are in streams. */
SHOW unsigned fake_nccl_calls(void);
unsigned fake_nccl_calls(void)
{
    unsigned n = 0;

    (void)pthread_mutex_lock(&queued_mutex);
    for (const struct call *call = queued; call; call = call->queued)
        n++;
    (void)pthread_mutex_unlock(&queued_mutex);
    return n;
}

static int add(bool send, void *at, size_t bytes, int type, int peer, nccl_comm comm, CUstream stream)
{
    struct call *call = calls;
    struct move *move;

    if (type != NCCL_BYTES || peer < 0 || peer >= comm->size || !depth)
        return INVALID_USAGE;
    if (!fake_cuda_reach((CUdeviceptr)at, bytes))
        return INVALID_ARGUMENT;
    while (call && call->comm != comm)
        call = call->next;
    if (!call) {
        call = calloc(1, sizeof *call);
        if (!call)
            return SYSTEM_ERROR;
        *call = (struct call){.comm = comm, .stream = stream, .next = calls};
        call->last = &call->moves;
        calls = call;
    }
    move = calloc(1, sizeof *move);
    if (!move)
        return SYSTEM_ERROR;
    *move = (struct move){
        .send = send, .peer = peer, .at = fake_cuda_reach((CUdeviceptr)at, bytes), .bytes = bytes, .head = send ? bytes : 0};
    *call->last = move;
    call->last = &move->next;
    return NCCL_SUCCESS;
}

SHOW int ncclSend(const void *from, size_t count, int type, int peer, nccl_comm comm, CUstream stream)
{
    return add(true, (void *)(uintptr_t)from, count, type, peer, comm, stream);
}

SHOW int ncclRecv(void *to, size_t count, int type, int peer, nccl_comm comm, CUstream stream)
{
    return add(false, to, count, type, peer, comm, stream);
}
