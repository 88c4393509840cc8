/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of a connection. librdt-cuda is part of this module if the module was built with cuda.h; without it every call
 * here fails with a message that says what to do. The NVIDIA driver is loaded by the first put or fetch of a GPU tensor,
 * never by importing or connecting. */
#include <stdatomic.h>
#include <string.h>

#include "rdtpy.h"

#define LEGACY_STREAM 1 /* the default streams, as DLPack and cuda.h number them */
#define STREAM_PER_THREAD 2

bool gpu_place(PyObject *place, const char **memory_p, const char **device_p, bool *host_stays_p)
{
    int host_stays = 0;

    *memory_p = *device_p = NULL;
    if (place != Py_None && !PyArg_ParseTuple(place, "zz|p", memory_p, device_p, &host_stays))
        return false;
    *host_stays_p = host_stays;
    return true;
}

#ifdef RDTPY_WITHOUT_CUDA

bool gpu_open(struct conn *conn)
{
    (void)raise_status(
        RDT_UNSUPPORTED,
        "this package was built without cuda.h: run `make cuda-headers` or install the CUDA headers, and build it again");
    return false;
}
void gpu_close(struct conn *conn) {}
int gpu_ordinal(struct conn *conn, const char *memory, const char *uuid)
{
    return HOST;
}
bool gpu_uuid(struct conn *conn, int ordinal, const char **uuid_p)
{
    return gpu_open(conn);
}
enum rdt_status gpu_put(struct conn *conn, const struct borrowed_set *set, struct rdt_put_options *options,
                        struct rdt_ref *ref_p, uint32_t how, Py_ssize_t *copied_p, bool *live_p, struct rdt_error *err)
{
    err->status = RDT_UNSUPPORTED; /* gpu_open has already reported why */
    return RDT_UNSUPPORTED;
}
enum rdt_status gpu_put_many(struct conn *conn, const struct borrowed_set *set, const struct rdt_value *values, size_t count,
                             struct rdt_put_options *put, struct rdt_ref *refs_p, enum rdt_status *statuses_p,
                             struct rdt_error *err)
{
    err->status = RDT_UNSUPPORTED;
    return RDT_UNSUPPORTED;
}
enum rdt_status gpu_offer(struct conn *conn, struct borrowed_set *set, int64_t *timeout_ns, struct rdt_error *err)
{
    err->status = RDT_UNSUPPORTED;
    return RDT_UNSUPPORTED;
}
bool gpu_order(struct conn *conn, rdt_plan *plan, const struct borrowed_set *set)
{
    return true; /* no plan has targets on GPUs */
}
enum rdt_status gpu_await(struct conn *conn, const struct borrowed_set *set, int64_t *timeout_ns, struct rdt_error *err)
{
    return RDT_OK;
}
void gpu_take_back(struct borrowed_set *set) {}
enum rdt_status gpu_deliver(struct conn *conn, struct borrowed_set *set, struct rdt_error *err)
{
    return RDT_OK;
}
void gpu_release(struct conn *conn, uint64_t gpus, const struct used_streams *used, rdt_object *take_object, void *take_addr)
{
    if (take_object)
        rdt_release(take_object);
    else
        (void)rdt_dealloc(conn->rdt, take_addr, NULL);
}
enum rdt_status gpu_read(struct conn *conn, const void *from, void *to, size_t bytes, struct rdt_error *err)
{
    err->status = RDT_UNSUPPORTED;
    return RDT_UNSUPPORTED;
}
static enum rdt_status offer_memory(struct conn *conn, void *addr, size_t bytes, void **base_p, struct rdt_error *err)
{
    err->status = RDT_UNSUPPORTED;
    return RDT_UNSUPPORTED;
}
static bool use_pool(struct conn *conn)
{
    return gpu_open(conn);
}
PyObject *gpu_pool_info(PyObject *module, PyObject *ignored)
{
    Py_RETURN_NONE;
}

#else

bool gpu_open(struct conn *conn)
{
    enum rdt_status status = RDT_OK;
    struct rdt_node_info node;
    rdt_cuda *cuda = NULL;
    struct rdt_error err;

    if (conn->cuda)
        return true;
    if (!conn_enter(conn))
        return false;
    if (rdt_node(conn->rdt, &node, &err) == RDT_FORKED) { /* a thread of the parent may have held the mutex */
        conn_leave(conn);
        (void)raise_error(&err);
        return false;
    }
    Py_BEGIN_ALLOW_THREADS(void) pthread_mutex_lock(&conn->cuda_opens);
    Py_END_ALLOW_THREADS if (!conn->cuda) /* no other thread opened it first */
    {
        Py_BEGIN_ALLOW_THREADS status = rdt_cuda_open(conn->rdt, &cuda, &err);
        Py_END_ALLOW_THREADS conn->cuda = cuda;
    }
    (void)pthread_mutex_unlock(&conn->cuda_opens);
    conn_leave(conn);
    if (status != RDT_OK)
        (void)raise_error(&err);
    return status == RDT_OK;
}

void gpu_close(struct conn *conn)
{
    rdt_cuda_close(conn->cuda);
    conn->cuda = NULL;
}

int gpu_ordinal(struct conn *conn, const char *memory, const char *uuid)
{
    int ordinal;

    if (!conn->cuda || !memory || strcmp(memory, "cuda") != 0 || !uuid ||
        rdt_cuda_ordinal(conn->cuda, uuid, &ordinal, NULL) != RDT_OK || ordinal >= MAX_GPUS)
        return HOST;
    return ordinal;
}

bool gpu_uuid(struct conn *conn, int ordinal, const char **uuid_p)
{
    enum rdt_status status;
    struct rdt_error err;

    if (!gpu_open(conn) || !conn_enter(conn)) /* another thread may close the connection */
        return false;
    status = rdt_cuda_uuid(conn->cuda, ordinal, uuid_p, &err);
    conn_leave(conn);
    if (status != RDT_OK)
        (void)raise_error(&err);
    return status == RDT_OK;
}

/* ---- put ---- */

struct waited { /* the streams that a call has waited for; what does not fit is waited for again */
    struct {
        int ordinal;
        void *stream;
    } at[16];
    unsigned n;
    int64_t until_ns; /* of CLOCK_MONOTONIC; 0: without limit */
};

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Waits for the stream that writes the tensor, unless the call has done so for another tensor. */
static enum rdt_status wait_once(struct conn *conn, const struct borrowed *borrowed, const void *data, struct waited *waited,
                                 struct rdt_error *err)
{
    int ordinal = HOST;
    int64_t left_ns = RDT_FOREVER;
    enum rdt_status status = rdt_cuda_where(conn->cuda, data, &ordinal, err);

    if (status != RDT_OK || ordinal == HOST)
        return status;
    for (unsigned i = 0; i < waited->n; i++)
        if (waited->at[i].ordinal == ordinal && waited->at[i].stream == borrowed->stream)
            return RDT_OK;
    if (waited->until_ns > 0)
        left_ns = waited->until_ns > now_ns() ? waited->until_ns - now_ns() : 0;
    status = rdt_cuda_wait_stream_for(conn->cuda, ordinal, borrowed->stream, left_ns, err);
    if (status == RDT_OK && waited->n < sizeof waited->at / sizeof waited->at[0]) {
        waited->at[waited->n].ordinal = ordinal;
        waited->at[waited->n++].stream = borrowed->stream;
    }
    return status;
}

enum rdt_status gpu_await(struct conn *conn, const struct borrowed_set *set, int64_t *timeout_ns, struct rdt_error *err)
{
    bool limited = timeout_ns && *timeout_ns > RDT_NO_WAIT && *timeout_ns < INT64_MAX / 2;
    struct waited waited = {.until_ns = limited ? now_ns() + *timeout_ns : 0};
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < set->count; i++)
        if (set->borrowed[i].on_gpu)
            status = wait_once(conn, &set->borrowed[i], set->tensors[i].data, &waited, err);
    if (limited)
        *timeout_ns = waited.until_ns > now_ns() ? waited.until_ns - now_ns() : 1;
    return status;
}

/* Whether one stream orders all tensors of the set and also keeps their memory until it has been read. */
static bool in_one_stream(struct conn *conn, const struct borrowed_set *set, void **stream_p)
{
    int gpu = HOST, other;
    bool first = true;

    for (size_t i = 0; i < set->count; i++) {
        const struct borrowed *borrowed = &set->borrowed[i];
        size_t bytes;

        if (rdt_tensor_bytes(&set->tensors[i], &bytes, NULL) != RDT_OK || bytes == 0)
            continue;
        if (!borrowed->on_gpu || !borrowed->ordered ||
            rdt_cuda_where(conn->cuda, set->tensors[i].data, &other, NULL) != RDT_OK || other == HOST ||
            (!first && (other != gpu || borrowed->stream != *stream_p)))
            return false;
        gpu = other;
        *stream_p = borrowed->stream;
        first = false;
    }
    return !first;
}

/* What the daemon takes only when its bytes are there. */
#define NEVER_PENDING (RDT_PUT_EVICTABLE | RDT_PUT_STORED | RDT_PUT_SUM)

enum rdt_status gpu_put(struct conn *conn, const struct borrowed_set *set, struct rdt_put_options *put, struct rdt_ref *ref_p,
                        uint32_t how_to, Py_ssize_t *copied_p, bool *live_p, struct rdt_error *err)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    enum rdt_cuda_how *how = calloc(set->count + 1, sizeof *how);
    enum rdt_status status = RDT_OK;

    if (!how) {
        *err = (struct rdt_error){.status = RDT_NO_MEMORY, .msg = "out of memory while putting tensors"};
        return RDT_NO_MEMORY;
    }
    options.put = put;
    options.how = how;
    options.copy = !(how_to & PUT_MAY_SHARE);
    options.to_host = how_to & PUT_TO_HOST;
    options.has_stream = !(options.to_host && put->flags & NEVER_PENDING) && in_one_stream(conn, set, &options.stream);
    if (!options.has_stream)
        status = gpu_await(conn, set, &put->timeout_ns, err);
    if (status == RDT_OK)
        status = rdt_cuda_put(conn->cuda, set->tensors, set->count, &options, ref_p, err);
    for (size_t i = 0; status == RDT_OK && i < set->count; i++) {
        *copied_p += how[i] == RDT_CUDA_COPIED || how[i] == RDT_CUDA_TO_HOST;
        *live_p = *live_p || ((how[i] == RDT_CUDA_KNOWN || how[i] == RDT_CUDA_HANDLE || how[i] == RDT_CUDA_CHUNKS) &&
                              !PyObject_TypeCheck(set->borrowed[i].alive, &tensor_type));
        if (how[i] != RDT_CUDA_HOST && put->how)
            put->how[i] = RDT_MEMORY_DAEMON; /* counted as a copy here */
    }
    free(how);
    return status;
}

enum rdt_status gpu_put_many(struct conn *conn, const struct borrowed_set *set, const struct rdt_value *values, size_t count,
                             struct rdt_put_options *put, struct rdt_ref *refs_p, enum rdt_status *statuses_p,
                             struct rdt_error *err)
{
    enum rdt_status status = gpu_await(conn, set, &put->timeout_ns, err);

    return status == RDT_OK ? rdt_cuda_put_many(conn->cuda, values, count, put, refs_p, statuses_p, err) : status;
}

/* ---- targets ---- */

/* Lets the fetch write memory of the daemon in place of a target that cannot be made known to it. */
static enum rdt_status land(struct conn *conn, struct borrowed_set *set, size_t i, size_t bytes, struct rdt_error *err)
{
    struct landing *landing = &set->landings[i];
    const char *uuid;
    int ordinal;
    enum rdt_status status = rdt_cuda_where(conn->cuda, set->tensors[i].data, &ordinal, err);

    if (status == RDT_OK)
        status = rdt_cuda_uuid(conn->cuda, ordinal, &uuid, err);
    if (status == RDT_OK)
        status = rdt_cuda_alloc(conn->cuda, uuid, bytes, &landing->buffer, err);
    if (status != RDT_OK)
        return status;
    landing->target = set->tensors[i].data;
    landing->bytes = bytes;
    set->tensors[i].data = landing->buffer;
    return RDT_OK;
}

#define ALIGN ((size_t)64)

static bool needs_room(struct conn *conn, const struct borrowed_set *set, size_t i, size_t *bytes_p)
{
    bool known = false;

    return !set->borrowed[i].on_gpu && rdt_tensor_bytes(&set->tensors[i], bytes_p, NULL) == RDT_OK && *bytes_p > 0 &&
           !(rdt_known(conn->rdt, set->tensors[i].data, *bytes_p, &known, NULL, NULL, NULL) == RDT_OK && known);
}

/* The daemon writes all targets of a fetch or none. If some are on GPUs, it writes them all, so it writes memory of its own in
 * place of those in host memory that it does not know. */
static enum rdt_status land_in_host_memory(struct conn *conn, struct borrowed_set *set, struct rdt_error *err)
{
    size_t bytes, all = 0, at = 0;
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < set->count; i++)
        if (needs_room(conn, set, i, &bytes))
            all += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (all > 0)
        status = rdt_alloc(conn->rdt, all, &set->host_room, err);
    for (size_t i = 0; status == RDT_OK && set->host_room && i < set->count; i++) {
        struct landing *landing = &set->landings[i];
        if (!needs_room(conn, set, i, &bytes))
            continue;
        *landing = (struct landing){.from = (char *)set->host_room + at, .target = set->tensors[i].data, .bytes = bytes};
        set->tensors[i].data = (char *)set->host_room + at;
        at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return status;
}

/* torch queues its next work behind the copy; of other libraries it is not known in which streams they work, so those wait. */
enum rdt_status gpu_deliver(struct conn *conn, struct borrowed_set *set, struct rdt_error *err)
{
    struct waited waited = {.n = 0};
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < set->count; i++) {
        struct landing *landing = &set->landings[i];
        if (landing->from && landing->target)
            memcpy(landing->target, landing->from, landing->bytes);
        if (!landing->buffer || !landing->target)
            continue;
        status = rdt_cuda_deliver(conn->cuda, landing->buffer, landing->target, landing->bytes, set->borrowed[i].stream, err);
        landing->delivered = status == RDT_OK;
        if (status == RDT_OK)
            landing->buffer = NULL;
    }
    for (size_t i = 0; status == RDT_OK && i < set->count; i++)
        if (set->landings[i].delivered && !set->borrowed[i].ordered)
            status = wait_once(conn, &set->borrowed[i], set->landings[i].target, &waited, err);
    return status;
}

enum rdt_status gpu_offer(struct conn *conn, struct borrowed_set *set, int64_t *timeout_ns, struct rdt_error *err)
{
    enum rdt_cuda_how *how = calloc(set->count + 1, sizeof *how);
    enum rdt_status status = gpu_await(conn, set, timeout_ns, err);
    size_t bytes;

    set->conn = conn;
    set->offered = calloc(set->count + 1, sizeof(void *));
    set->landings = calloc(set->count + 1, sizeof *set->landings);
    if (status == RDT_OK && (!how || !set->offered || !set->landings)) {
        *err = (struct rdt_error){.status = RDT_NO_MEMORY, .msg = "out of memory for targets"};
        status = RDT_NO_MEMORY;
    }
    if (status == RDT_OK)
        status = rdt_cuda_offer_tensors(conn->cuda, set->tensors, set->count, set->offered, &set->n_offered, how, err);
    for (size_t i = 0; status == RDT_OK && i < set->count; i++)
        if (how[i] == RDT_CUDA_COPIED && rdt_tensor_bytes(&set->tensors[i], &bytes, NULL) == RDT_OK)
            status = land(conn, set, i, bytes, err);
    free(how);
    return status == RDT_OK ? land_in_host_memory(conn, set, err) : status;
}

void gpu_take_back(struct borrowed_set *set)
{
    struct conn *conn = set->conn;

    if (!set->offered && !set->landings)
        return;
    if (conn->rdt) {
        struct waits waits;

        conn->calls++; /* keeps the session open during the call */
        Py_INCREF(conn);
        waits_begin(&waits, NULL); /* rdt_dealloc waits until the daemon writes the memory no more */
        for (size_t i = 0; i < set->n_offered; i++)
            (void)(set->fetched ? rdt_dealloc_soon : rdt_dealloc)(conn->rdt, set->offered[i], NULL);
        for (size_t i = 0; i < set->count; i++) {
            if (set->landings && set->landings[i].buffer)
                (void)rdt_dealloc(conn->rdt, set->landings[i].buffer, NULL);
        }
        if (set->host_room)
            (void)rdt_dealloc(conn->rdt, set->host_room, NULL);
        waits_end(&waits, RDT_OK);
        conn_leave(conn);
    }
    free(set->offered);
    free(set->landings);
    set->offered = NULL;
    set->n_offered = 0;
    set->landings = NULL;
    set->host_room = NULL;
}

#define MOST_ORDERED 64 /* streams that a plan is told of; for others, and the ninth of a GPU, the call waits itself */
#define MOST_OF_GPU 8u

bool gpu_order(struct conn *conn, rdt_plan *plan, const struct borrowed_set *set)
{
    struct rdt_plan_stream streams[MOST_ORDERED];
    size_t n = 0;
    struct rdt_error err;
    enum rdt_status status = RDT_OK;

    if (set->on_gpus == 0 || !conn->cuda) /* without conn->cuda no plan has targets on GPUs */
        return true;
    for (size_t i = 0; i < set->count && status == RDT_OK; i++) {
        const struct borrowed *borrowed = &set->borrowed[i];
        const char *uuid;
        int ordinal;
        size_t k = 0;
        unsigned of_gpu = 0;

        if (!borrowed->on_gpu || (status = rdt_cuda_where(conn->cuda, set->tensors[i].data, &ordinal, &err)) != RDT_OK ||
            ordinal == HOST || (status = rdt_cuda_uuid(conn->cuda, ordinal, &uuid, &err)) != RDT_OK)
            continue;
        for (; k < n && !(streams[k].stream == borrowed->stream && streams[k].device == uuid); k++)
            of_gpu += streams[k].device == uuid;
        if (k == MOST_ORDERED || (k == n && of_gpu == MOST_OF_GPU))
            WAITS(conn, status, rdt_cuda_wait_stream(conn->cuda, ordinal, borrowed->stream, &err));
        else if (k == n)
            streams[n++] = (struct rdt_plan_stream){uuid, borrowed->stream};
    }
    if (status == RDT_OK)
        status = rdt_plan_order(plan, streams, n, &err);
    return status == RDT_OK || raise_error(&err);
}

/* ---- release of memory ---- */

/* Waits until this process's queued work on these GPUs is done, before their memory is released. */
/* Waits until no GPU uses memory any more, which it does not if it has failed. false: a capture forbids to wait. */
static bool settle(struct conn *conn, uint64_t gpus)
{
    bool settled = true;

    for (int i = 0; conn->cuda && gpus >> i; i++)
        if (gpus >> i & 1)
            settled &= rdt_cuda_wait_all(conn->cuda, i, NULL) != RDT_INVALID;
    return settled;
}

struct release {
    rdt *rdt;
    rdt_object *object; /* or NULL */
    void *addr;
    atomic_uint gpus; /* that have not come there */
};

static void one_gpu_came(void *arg)
{
    struct release *release = arg;

    if (atomic_fetch_sub(&release->gpus, 1) > 1)
        return;
    if (release->object)
        rdt_release(release->object);
    else
        (void)rdt_dealloc(release->rdt, release->addr, NULL);
    free(release);
}

void gpu_release(struct conn *conn, uint64_t gpus, const struct used_streams *used, rdt_object *take_object, void *take_addr)
{
    struct release *release = gpus && conn->cuda && !used->unknown ? malloc(sizeof *release) : NULL;
    struct release now = {.rdt = conn->rdt, .object = take_object, .addr = take_addr};
    void *streams[MAX_USED_STREAMS + 2] = {(void *)LEGACY_STREAM, (void *)STREAM_PER_THREAD};

    if (!release) {
        bool settled = settle(conn, gpus);
        if (settled && now.object)
            rdt_release(now.object);
        else if (settled)
            (void)rdt_dealloc(now.rdt, now.addr, NULL);
        return;
    }
    memcpy(streams + 2, used->at, used->n * sizeof *streams);
    *release = now;
    atomic_init(&release->gpus, 1);
    for (int i = 0; gpus >> i; i++) {
        if (!(gpus >> i & 1))
            continue;
        (void)atomic_fetch_add(&release->gpus, 1);
        /* The streams that were named belong to one GPU, so with several GPUs the library waits instead. */
        if ((gpus & (gpus - 1)) != 0 ||
            rdt_cuda_after(conn->cuda, i, streams, used->n + 2, one_gpu_came, release, NULL) != RDT_OK) {
            if (settle(conn, UINT64_C(1) << i)) /* else the memory, which may be in use, ends with the connection */
                one_gpu_came(release);
        }
    }
    one_gpu_came(release);
}

enum rdt_status gpu_read(struct conn *conn, const void *from, void *to, size_t bytes, struct rdt_error *err)
{
    return rdt_cuda_read(conn->cuda, from, to, bytes, err);
}

/* ---- memory that stays known ---- */

static enum rdt_status offer_memory(struct conn *conn, void *addr, size_t bytes, void **base_p, struct rdt_error *err)
{
    bool known = false;
    enum rdt_status status = rdt_known(conn->rdt, addr, bytes, &known, NULL, NULL, err);

    if (status == RDT_OK && known) {
        *err = (struct rdt_error){.status = RDT_INVALID,
                                  .msg = "the daemon knows this memory already: use it, or end what made it known first"};
        return RDT_INVALID;
    }
    return status == RDT_OK ? rdt_cuda_offer(conn->cuda, addr, bytes, base_p, NULL, err) : status;
}

/* ---- torch's memory pool ---- */

static bool use_pool(struct conn *conn)
{
    if (!gpu_open(conn))
        return false;
    if (!conn->pooled) { /* torch releases blocks at any time and without the GIL, so the session must last */
        conn->pooled = true;
        conn_hold_session(conn);
    }
    rdt_cuda_pool_use(conn->cuda);
    return true;
}

PyObject *gpu_pool_info(PyObject *module, PyObject *ignored)
{
    struct rdt_cuda_pool_info info;

    rdt_cuda_pool_info(&info);
    return Py_BuildValue("{s:n,s:n,s:n,s:i,s:s}", "blocks", (Py_ssize_t)info.blocks, "bytes", (Py_ssize_t)info.bytes,
                         "failures", (Py_ssize_t)info.failures, "status", (int)info.last.status, "last",
                         info.last.status ? info.last.msg : "");
}

/* torch looks these symbols up by name: see torch.cuda.memory.CUDAPluggableAllocator. */
__attribute__((visibility("default"))) void *rdt_torch_alloc(Py_ssize_t bytes, int device, void *stream);
__attribute__((visibility("default"))) void rdt_torch_free(void *addr, Py_ssize_t bytes, int device, void *stream);

void *rdt_torch_alloc(Py_ssize_t bytes, int device, void *stream)
{
    return rdt_cuda_pool_alloc(bytes, device, stream);
}

void rdt_torch_free(void *addr, Py_ssize_t bytes, int device, void *stream)
{
    rdt_cuda_pool_free(addr, bytes, device, stream);
}
#endif

/* ---- Conn's calls ---- */

PyObject *conn_gpu(PyObject *self, PyObject *ordinal)
{
    long number = PyLong_AsLong(ordinal);
    const char *uuid = NULL;

    if ((number == -1 && PyErr_Occurred()) || !gpu_uuid((struct conn *)self, (int)number, &uuid))
        return NULL;
    return PyUnicode_FromString(uuid);
}

/* _offer(tensor, address, bytes): makes these bytes of a tensor on a GPU known to the daemon, with the whole allocation or the
 * chunks that hold them, and returns where those begin. None: the tensor is in host memory. */
PyObject *conn_offer(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    unsigned long long address;
    PyObject *tensor, *list;
    struct borrowed_set *set;
    struct rdt_error err = {0};
    enum rdt_status status;
    Py_ssize_t bytes;
    bool on_gpu;
    void *base;

    if (!PyArg_ParseTuple(args, "OKn:_offer", &tensor, &address, &bytes))
        return NULL;
    list = Py_BuildValue("[O]", tensor);
    set = list ? borrowed_set_from(list, false, Py_None, "import_memory:") : NULL;
    on_gpu = set && set->on_gpus > 0;
    borrowed_set_free(set);
    Py_XDECREF(list);
    if (set && !on_gpu)
        Py_RETURN_NONE;
    if (!set || !gpu_open(conn) || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, offer_memory(conn, (void *)(uintptr_t)address, (size_t)bytes, &base, &err));
    return status == RDT_OK ? PyLong_FromVoidPtr(base) : raise_error(&err);
}

PyObject *conn_gpu_open(PyObject *self, PyObject *ignored)
{
    if (!gpu_open((struct conn *)self))
        return NULL;
    Py_RETURN_NONE;
}

PyObject *conn_use_pool(PyObject *self, PyObject *ignored)
{
    if (!use_pool((struct conn *)self))
        return NULL;
    Py_RETURN_NONE;
}
