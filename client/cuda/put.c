/* See gpu.h. What a put exports is known to the daemon by this connection only during the put: the object holds it from then on, and the
 * next put asks anew what lies at the address (offers.c). All of a put keeps its one deadline; what a stream still copies into when that has
 * passed is given back when the stream has come there (teller.c).
 */
#include <stdlib.h>
#include <string.h>

#include "client/cuda/gpu.h"

struct handle {
    struct rdt_cuda cuda;
    struct offers offers;
    struct streams streams;
};

/* ---- opening ---- */

enum rdt_status rdt_cuda_open(rdt *conn, rdt_cuda **cuda_p, struct rdt_error *err)
{
    struct cuda_driver *driver;
    struct handle *handle;
    enum rdt_status status = conn && cuda_p ? cuda_driver_open(&driver, err) : rdt_error_set(err, RDT_INVALID, "rdt or cuda_p is NULL");

    if (status != RDT_OK)
        return status;
    handle = calloc(1, sizeof *handle);
    if (!handle)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for GPU memory's handle");
    handle->cuda = (struct rdt_cuda){conn, driver};
    status = rdt_map_by(conn, &cuda_mapper, err);
    if (status != RDT_OK) {
        free(handle);
        return status;
    }
    offers_init(&handle->offers);
    streams_init(&handle->streams, conn, driver);
    *cuda_p = &handle->cuda;
    return RDT_OK;
}

void rdt_cuda_close(rdt_cuda *cuda)
{
    struct handle *handle = (struct handle *)cuda;

    if (!handle)
        return;
    pool_forget(cuda);
    streams_fini(&handle->streams);
    offers_fini(&handle->offers);
    free(handle);
}

static enum rdt_status alloc(rdt_cuda *cuda, const char *device, size_t bytes, int64_t timeout_ns, void **addr_p, struct rdt_error *err)
{
    struct rdt_alloc_options options = RDT_INIT(options);

    options.memory = "cuda";
    options.device = device;
    options.call_timeout_ns = timeout_ns;
    return rdt_alloc_with(cuda->conn, bytes, &options, addr_p, err);
}

enum rdt_status rdt_cuda_alloc(rdt_cuda *cuda, const char *device, size_t bytes, void **addr_p, struct rdt_error *err)
{
    return cuda ? alloc(cuda, device, bytes, 0, addr_p, err) : rdt_error_set(err, RDT_INVALID, "cuda is NULL");
}

/* ---- tensors ---- */

/* The bytes [*lo_p, *hi_p) that its elements touch. */
static enum rdt_status extent(const struct rdt_tensor *tensor, size_t i, uintptr_t *lo_p, uintptr_t *hi_p, struct rdt_error *err)
{
    struct rdt_tensor one = *tensor;
    __int128 lo = 0, hi;
    size_t bytes, item;
    enum rdt_status status = rdt_tensor_bytes(tensor, &bytes, err);

    if (status == RDT_OK) {
        one.ndim = 0;
        status = rdt_tensor_bytes(&one, &item, err);
    }
    if (status != RDT_OK) {
        rdt_error_prefix(err, "tensor %zu", i);
        return status;
    }
    if (bytes == 0) {
        *lo_p = *hi_p = (uintptr_t)tensor->data;
        return RDT_OK;
    }
    hi = tensor->strides ? item : bytes;
    for (uint32_t d = 0; tensor->strides && d < tensor->ndim; d++)
        *(tensor->strides[d] < 0 ? &lo : &hi) += (__int128)(tensor->shape[d] - 1) * tensor->strides[d] * (__int128)item;
    lo += (__int128)(uintptr_t)tensor->data;
    hi += (__int128)(uintptr_t)tensor->data;
    if (lo < 0 || hi > (__int128)UINTPTR_MAX)
        return rdt_error_set(err, RDT_INVALID, "tensor %zu: its strides lead out of memory", i);
    *lo_p = (uintptr_t)lo;
    *hi_p = (uintptr_t)hi;
    return RDT_OK;
}

struct putting {
    struct handle *handle;
    const struct rdt_cuda_put_options *options;
    int64_t deadline_ns;
    struct rdt_tensor *tensors; /* a copy: of what was copied, data is the copy's */
    struct cuda_gpu *gpu;       /* of the first tensor that is on one; NULL: none is */
    struct offer_span *spans;   /* [count]: of those on GPUs that the daemon does not know */
    struct offered **given;     /* to give back when the put is over */
    void **rooms;               /* of copies: then too, or when the stream has come there */
    size_t n_given, n_rooms;
};

/* What is left of the put's time, as calls take it. */
static int64_t left_of(const struct putting *putting)
{
    int64_t left_ns = clock_remaining_ns(putting->deadline_ns);

    return left_ns != 0 ? left_ns : 1;
}

/* Rooms that the stream may still copy into: given back when it has come there. */
static enum rdt_status give_up_rooms(struct putting *putting, CUstream stream, void **take_rooms, size_t n_rooms, struct rdt_error *err)
{
    struct note *note;
    enum rdt_status status = note_new(&putting->handle->streams, &note, err);

    return status == RDT_OK ? note_in_stream(note, stream, NULL, take_rooms, n_rooms, err) : status;
}

#define LOOK_NS 20000 /* between two looks at a copy */

/* Until the copy into the latest room has been made. TIMED_OUT: the room is not ours any more. */
static enum rdt_status await_copy(struct putting *putting, struct cuda_gpu *gpu, CUstream stream, struct rdt_error *err)
{
    struct cuda_driver *driver = putting->handle->cuda.driver;
    const char *what = "copying a tensor that cannot be exported";
    CUresult result = putting->deadline_ns == CLOCK_NEVER ? driver->cuStreamSynchronize(stream) : driver->cuStreamQuery(stream);
    void **rooms;

    while (result == CUDA_ERROR_NOT_READY && clock_now_ns() < putting->deadline_ns) {
        struct timespec look = clock_timespec(LOOK_NS);
        (void)nanosleep(&look, NULL);
        result = driver->cuStreamQuery(stream);
    }
    if (result != CUDA_ERROR_NOT_READY)
        return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(driver, gpu, result, err, what);
    rooms = malloc(sizeof *rooms);
    if (rooms)
        rooms[0] = putting->rooms[putting->n_rooms - 1];
    if (rooms && give_up_rooms(putting, stream, rooms, 1, NULL) == RDT_OK) {
        putting->n_rooms--;
    } else {
        free(rooms);
        (void)driver->cuStreamSynchronize(stream); /* too late, but not into memory of others */
    }
    return rdt_error_set(err, RDT_TIMED_OUT, "%s: %s had not ended when the deadline passed", gpu->uuid, what);
}

static enum rdt_status copy_in(struct putting *putting, struct cuda_gpu *gpu, struct rdt_tensor *tensor, uintptr_t lo, uintptr_t hi,
                               struct rdt_error *err)
{
    struct cuda_driver *driver = putting->handle->cuda.driver;
    CUstream stream = putting->options->has_stream ? putting->options->stream : CU_STREAM_PER_THREAD;
    void *room;
    CUresult result;
    enum rdt_status status = alloc(&putting->handle->cuda, gpu->uuid, hi - lo, left_of(putting), &room, err);

    if (status != RDT_OK)
        return status;
    putting->rooms[putting->n_rooms++] = room;
    result = driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)room, (CUdeviceptr)lo, hi - lo, stream);
    if (result != CUDA_SUCCESS)
        return cuda_gpu_failed(driver, gpu, result, err, "copying a tensor that cannot be exported");
    tensor->data = (char *)room + ((uintptr_t)tensor->data - lo);
    return putting->options->has_stream ? RDT_OK : await_copy(putting, gpu, stream, err);
}

static enum rdt_status take_on_gpu(struct putting *putting, struct cuda_gpu *gpu, size_t i, uintptr_t lo, uintptr_t hi,
                                   enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    rdt_cuda *cuda = &putting->handle->cuda;
    struct offer_wish wish = {lo, hi, putting->spans[i], putting->options->copy, putting->deadline_ns};
    struct offered *offered;
    struct entered entered;
    enum rdt_status status = enter(cuda->driver, gpu, &entered, err);

    if (status != RDT_OK)
        return status;
    status = offers_take(&putting->handle->offers, cuda, gpu, &wish, &offered, how_p, err);
    if (status == RDT_OK && offered) {
        putting->given[putting->n_given++] = offered;
    } else if (status == RDT_UNSUPPORTED) {
        *how_p = RDT_CUDA_COPIED;
        status = copy_in(putting, gpu, &putting->tensors[i], lo, hi, err);
    }
    leave(cuda->driver, &entered);
    return status;
}

static enum rdt_status take(struct putting *putting, size_t i, enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    rdt_cuda *cuda = &putting->handle->cuda;
    bool known = false;
    const char *memory = "host";
    struct cuda_gpu *gpu = NULL;
    uintptr_t lo = 0, hi = 0;
    enum rdt_status status = extent(&putting->tensors[i], i, &lo, &hi, err);

    *how_p = RDT_CUDA_HOST;
    if (status != RDT_OK || lo == hi)
        return status;
    status = rdt_known(cuda->conn, (void *)lo, hi - lo, &known, &memory, NULL, err);
    if (status == RDT_INVALID || !known || strcmp(memory, "host") != 0)
        gpu = gpu_of(cuda->driver, (void *)lo);
    if (gpu && !putting->gpu)
        putting->gpu = gpu;
    if (gpu) /* also what is known in part, or by another put */
        status = take_on_gpu(putting, gpu, i, lo, hi, how_p, err);
    else if (status == RDT_OK && !known && putting->options->has_stream)
        status = rdt_error_set(err, RDT_INVALID, "it is in host memory that the daemon does not know: no stream can write it later");
    if (status != RDT_OK)
        rdt_error_prefix(err, "tensor %zu", i);
    return status;
}

/* Before any is offered: what shares chunks is offered together. */
static enum rdt_status find_spans(struct putting *putting, size_t count, struct rdt_error *err)
{
    rdt_cuda *cuda = &putting->handle->cuda;
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        uintptr_t lo, hi;
        bool known = true;
        struct cuda_gpu *gpu;
        status = extent(&putting->tensors[i], i, &lo, &hi, err);
        if (status != RDT_OK || lo == hi || rdt_known(cuda->conn, (void *)lo, hi - lo, &known, NULL, NULL, NULL) != RDT_OK || known)
            continue;
        gpu = gpu_of(cuda->driver, (void *)lo);
        if (gpu)
            status = offer_span(cuda, gpu, lo, hi, &putting->spans[i], err);
    }
    return status == RDT_OK ? offer_spans_join(putting->spans, count, err) : status;
}

/* ---- put ---- */

/* On an error the rooms are still the caller's. */
static enum rdt_status put_pending(struct putting *putting, size_t count, struct rdt_put_options *options, struct rdt_ref *ref_p,
                                   struct rdt_error *err)
{
    struct handle *handle = putting->handle;
    struct note *note;
    struct rdt_ref ref;
    enum rdt_status status = note_new(&handle->streams, &note, err);

    if (status != RDT_OK)
        return status;
    options->flags |= RDT_PUT_PENDING;
    status = rdt_put(handle->cuda.conn, putting->tensors, count, options, &ref, err);
    if (status != RDT_OK) {
        note_free(note);
        return status;
    }
    status = note_in_stream(note, putting->options->stream, &ref, putting->rooms, putting->n_rooms, err);
    if (status != RDT_OK) {
        (void)rdt_fail(handle->cuda.conn, &ref, RDT_SYSTEM, "its producer's stream could not be waited for", NULL);
        return status;
    }
    *ref_p = ref;
    putting->rooms = NULL;
    putting->n_rooms = 0;
    return RDT_OK;
}

/* It has failed. The stream may still copy into the rooms, however long that takes. */
static void leave_rooms(struct putting *putting)
{
    if (give_up_rooms(putting, putting->options->stream, putting->rooms, putting->n_rooms, NULL) != RDT_OK) {
        (void)putting->handle->cuda.driver->cuStreamSynchronize(putting->options->stream);
        return;
    }
    putting->rooms = NULL;
    putting->n_rooms = 0;
}

enum rdt_status rdt_cuda_put(rdt_cuda *cuda, const struct rdt_tensor *tensors, size_t count, const struct rdt_cuda_put_options *given,
                             struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_cuda_put_options options = {.struct_size = sizeof options};
    struct rdt_put_options put = RDT_INIT(put);
    struct putting putting = {.handle = (struct handle *)cuda, .options = &options};
    struct entered entered;
    bool in_gpu = false; /* the caller's thread need not have a context, and a default stream is of one */
    enum rdt_status status = RDT_OK;

    if (!cuda || !ref_p || (count > 0 && !tensors))
        return rdt_error_set(err, RDT_INVALID, "cuda, tensors or ref_p is NULL");
    if (given)
        memcpy(&options, given, given->struct_size < sizeof options ? given->struct_size : sizeof options);
    if (options.put)
        memcpy(&put, options.put, options.put->struct_size < sizeof put ? options.put->struct_size : sizeof put);
    put.struct_size = sizeof put;
    putting.deadline_ns = clock_deadline_ns(put.timeout_ns > 0 ? put.timeout_ns : RDT_FOREVER);
    putting.tensors = calloc(count + 1, sizeof *putting.tensors);
    putting.spans = calloc(count + 1, sizeof *putting.spans);
    putting.given = calloc(count + 1, sizeof(struct offered *));
    putting.rooms = calloc(count + 1, sizeof *putting.rooms);
    if (!putting.tensors || !putting.spans || !putting.given || !putting.rooms)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu tensors", count);
    for (size_t i = 0; status == RDT_OK && i < count; i++)
        putting.tensors[i] = tensors[i];
    if (status == RDT_OK && count > 1 && !options.copy)
        status = find_spans(&putting, count, err);
    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        enum rdt_cuda_how how;
        status = take(&putting, i, &how, err);
        if (options.how)
            options.how[i] = how;
    }
    if (putting.gpu && options.has_stream && (status == RDT_OK || putting.n_rooms > 0)) {
        struct rdt_error why;
        in_gpu = enter(cuda->driver, putting.gpu, &entered, &why) == RDT_OK;
        if (!in_gpu && status == RDT_OK) {
            status = why.status;
            if (err)
                *err = why;
        }
    }
    if (put.timeout_ns > 0)
        put.timeout_ns = left_of(&putting);
    if (status == RDT_OK)
        status = options.has_stream
                     ? put_pending(&putting, count, &put, ref_p, err)
                     : rdt_put(cuda->conn, putting.tensors, count, &put, ref_p, err);
    for (size_t i = 0; i < putting.n_given; i++) /* the object holds it now, or nobody does */
        offers_give(&putting.handle->offers, cuda, putting.given[i]);
    if (putting.n_rooms > 0 && options.has_stream)
        leave_rooms(&putting);
    if (in_gpu)
        leave(cuda->driver, &entered);
    for (size_t i = 0; i < putting.n_rooms; i++) /* the object keeps them */
        (void)rdt_dealloc_soon(cuda->conn, putting.rooms[i], NULL);
    free(putting.tensors);
    free(putting.spans);
    free(putting.given);
    free(putting.rooms);
    return status;
}

enum rdt_status rdt_cuda_offer(rdt_cuda *cuda, void *addr, size_t bytes, void **base_p, enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    struct cuda_gpu *gpu = cuda ? gpu_of(cuda->driver, addr) : NULL;
    enum rdt_cuda_how how;
    struct entered entered;
    size_t all;
    enum rdt_status status;

    if (!gpu || !base_p)
        return rdt_error_set(err, RDT_INVALID, "%p is not memory of a GPU", addr);
    status = enter(cuda->driver, gpu, &entered, err);
    if (status != RDT_OK)
        return status;
    status = offer(cuda, gpu, addr, bytes, 0, base_p, &all, &how, err);
    leave(cuda->driver, &entered);
    if (status == RDT_OK && how_p)
        *how_p = how;
    return status;
}
