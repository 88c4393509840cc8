/* See gpu.h. What a put exports is known to the daemon by this connection only during the put: the object holds it from then on, and the
 * next put asks anew what lies at the address (offers.c).
 *
 * A put with a stream is pending until the stream gets there. The driver then calls back on a thread of its own, where neither CUDA may be
 * called nor a lock be waited for: it pushes a note, and a thread of this library tells the daemon.
 */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/gpu.h"

struct note { /* of an object that a stream is still to write */
    struct teller *teller;
    struct note *next;
    struct rdt_ref ref;
    CUresult result;
    void **rooms; /* that the stream copies into, mapped until it has */
    size_t n_rooms;
};

struct teller { /* outlives its handle while a stream may still call back */
    rdt *conn;
    struct cuda_driver *driver;
    _Atomic(struct note *) notes;
    sem_t some;
    atomic_uint refs; /* the handle's, and one for each note */
    atomic_bool end;
    sem_t copied; /* once for each note with rooms that the stream has come to */
    unsigned copying; /* such notes; under the handle's mutex */
    pthread_t thread;
};

struct handle {
    struct rdt_cuda cuda;
    pthread_mutex_t mutex;
    struct teller *teller; /* NULL: none was needed yet */
    struct offers offers;
};

static void teller_unref(struct teller *teller)
{
    if (atomic_fetch_sub(&teller->refs, 1) != 1)
        return;
    (void)sem_destroy(&teller->some);
    (void)sem_destroy(&teller->copied);
    free(teller);
}

static void note_free(struct note *note)
{
    free(note->rooms);
    free(note);
}

static struct note *take_notes(struct teller *teller)
{
    struct note *latest = atomic_exchange(&teller->notes, NULL), *first = NULL;

    while (latest) { /* the oldest first */
        struct note *next = latest->next;
        latest->next = first;
        first = latest;
        latest = next;
    }
    return first;
}

static void tell(struct teller *teller, const struct note *note)
{
    struct rdt_error err;

    if (note->result == CUDA_SUCCESS) {
        (void)rdt_ready(teller->conn, &note->ref, NULL);
    } else {
        (void)cuda_failed(teller->driver, note->result, &err, "the producer's stream failed before the bytes were there");
        (void)rdt_fail(teller->conn, &note->ref, RDT_SYSTEM, err.msg, NULL);
    }
    for (size_t i = 0; i < note->n_rooms; i++)
        (void)rdt_dealloc(teller->conn, note->rooms[i], NULL);
}

static void *run(void *arg)
{
    struct teller *teller = arg;

    for (;;) {
        struct note *note;
        while (sem_wait(&teller->some) && errno == EINTR)
            ;
        note = take_notes(teller);
        if (!note && atomic_load(&teller->end))
            break;
        while (note) {
            struct note *next = note->next;
            if (!atomic_load(&teller->end))
                tell(teller, note);
            note_free(note);
            teller_unref(teller);
            note = next;
        }
    }
    return NULL;
}

static void CUDA_CB on_stream(CUstream stream, CUresult result, void *arg)
{
    struct note *note = arg;
    struct teller *teller = note->teller;

    (void)stream;
    note->result = result;
    if (note->n_rooms > 0)
        (void)sem_post(&teller->copied);
    if (atomic_load(&teller->end)) { /* nobody looks any more */
        note_free(note);
        teller_unref(teller);
        return;
    }
    note->next = atomic_load(&teller->notes);
    while (!atomic_compare_exchange_weak(&teller->notes, &note->next, note))
        ;
    (void)sem_post(&teller->some);
}

static enum rdt_status get_teller(struct handle *handle, struct teller **teller_p, struct rdt_error *err)
{
    sigset_t all, before;
    struct teller *teller;
    int error = 0;

    (void)pthread_mutex_lock(&handle->mutex);
    if (!handle->teller && (teller = calloc(1, sizeof *teller)) != NULL) {
        teller->conn = handle->cuda.conn;
        teller->driver = handle->cuda.driver;
        atomic_init(&teller->refs, 1);
        (void)sem_init(&teller->some, 0, 0);
        (void)sem_init(&teller->copied, 0, 0);
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&teller->thread, NULL, run, teller);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (error)
            teller_unref(teller);
        else
            handle->teller = teller;
    }
    *teller_p = handle->teller;
    (void)pthread_mutex_unlock(&handle->mutex);
    return *teller_p ? RDT_OK : rdt_error_sys(err, error ? error : ENOMEM, "a thread that waits for streams");
}

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
    (void)pthread_mutex_init(&handle->mutex, NULL);
    offers_init(&handle->offers);
    status = rdt_map_by(conn, &cuda_mapper, err);
    if (status != RDT_OK) {
        offers_fini(&handle->offers);
        (void)pthread_mutex_destroy(&handle->mutex);
        free(handle);
        return status;
    }
    *cuda_p = &handle->cuda;
    return RDT_OK;
}

void rdt_cuda_close(rdt_cuda *cuda)
{
    struct handle *handle = (struct handle *)cuda;

    if (!handle)
        return;
    pool_forget(cuda);
    if (handle->teller) {
        for (; handle->teller->copying > 0; handle->teller->copying--) /* the memory that a stream copies into is unmapped next */
            while (sem_wait(&handle->teller->copied) && errno == EINTR)
                ;
        atomic_store(&handle->teller->end, true);
        (void)sem_post(&handle->teller->some);
        (void)pthread_join(handle->teller->thread, NULL);
        for (struct note *note = take_notes(handle->teller), *next; note; note = next) {
            next = note->next;
            note_free(note);
            teller_unref(handle->teller);
        }
        teller_unref(handle->teller);
    }
    offers_fini(&handle->offers);
    (void)pthread_mutex_destroy(&handle->mutex);
    free(handle);
}

enum rdt_status rdt_cuda_alloc(rdt_cuda *cuda, const char *device, size_t bytes, void **addr_p, struct rdt_error *err)
{
    struct rdt_alloc_options options = RDT_INIT(options);

    if (!cuda)
        return rdt_error_set(err, RDT_INVALID, "cuda is NULL");
    options.memory = "cuda";
    options.device = device;
    return rdt_alloc_with(cuda->conn, bytes, &options, addr_p, err);
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
    struct rdt_tensor *tensors; /* a copy: of what was copied, data is the copy's */
    struct cuda_gpu *gpu;       /* of the first tensor that is on one; NULL: none is */
    struct offer_span *spans;   /* [count]: of those on GPUs that the daemon does not know */
    struct offered **given;     /* to give back when the put is over */
    void **rooms;               /* of copies: then too, or when the stream has come there */
    size_t n_given, n_rooms;
};

static enum rdt_status copy_in(struct putting *putting, struct cuda_gpu *gpu, struct rdt_tensor *tensor, uintptr_t lo, uintptr_t hi,
                               struct rdt_error *err)
{
    struct cuda_driver *driver = putting->handle->cuda.driver;
    CUstream stream = putting->options->has_stream ? putting->options->stream : CU_STREAM_PER_THREAD;
    void *room;
    CUresult result;
    enum rdt_status status = rdt_cuda_alloc(&putting->handle->cuda, gpu->uuid, hi - lo, &room, err);

    if (status != RDT_OK)
        return status;
    putting->rooms[putting->n_rooms++] = room;
    result = driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)room, (CUdeviceptr)lo, hi - lo, stream);
    if (result == CUDA_SUCCESS && !putting->options->has_stream)
        result = driver->cuStreamSynchronize(stream);
    tensor->data = (char *)room + ((uintptr_t)tensor->data - lo);
    return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(driver, gpu, result, err, "copying a tensor that cannot be exported");
}

static enum rdt_status take_on_gpu(struct putting *putting, struct cuda_gpu *gpu, size_t i, uintptr_t lo, uintptr_t hi,
                                   enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    rdt_cuda *cuda = &putting->handle->cuda;
    struct offer_wish wish = {lo, hi, putting->spans[i], putting->options->copy};
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
    struct note *note = calloc(1, sizeof *note);
    struct teller *teller = NULL;
    CUresult result;
    enum rdt_status status = note ? get_teller(handle, &teller, err) : rdt_error_set(err, RDT_NO_MEMORY, "no memory for a pending put");

    if (status == RDT_OK) {
        options->flags |= RDT_PUT_PENDING;
        status = rdt_put(handle->cuda.conn, putting->tensors, count, options, &note->ref, err);
    }
    if (status != RDT_OK) {
        free(note);
        return status;
    }
    *ref_p = note->ref;
    note->teller = teller;
    note->rooms = putting->rooms;
    note->n_rooms = putting->n_rooms;
    atomic_fetch_add(&teller->refs, 1);
    (void)pthread_mutex_lock(&handle->mutex);
    teller->copying += note->n_rooms > 0;
    (void)pthread_mutex_unlock(&handle->mutex);
    result = handle->cuda.driver->cuStreamAddCallback(putting->options->stream, on_stream, note, 0);
    if (result == CUDA_SUCCESS) {
        putting->rooms = NULL;
        putting->n_rooms = 0;
        return RDT_OK;
    }
    (void)pthread_mutex_lock(&handle->mutex);
    teller->copying -= note->n_rooms > 0;
    (void)pthread_mutex_unlock(&handle->mutex);
    status = cuda_failed(handle->cuda.driver, result, err, "waiting for the producer's stream");
    (void)rdt_fail(handle->cuda.conn, &note->ref, RDT_SYSTEM, "its producer's stream could not be waited for", NULL);
    free(note);
    teller_unref(teller);
    return status;
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
    if (status == RDT_OK)
        status = options.has_stream
                     ? put_pending(&putting, count, &put, ref_p, err)
                     : rdt_put(cuda->conn, putting.tensors, count, &put, ref_p, err);
    for (size_t i = 0; i < putting.n_given; i++) /* the object holds it now, or nobody does */
        offers_give(&putting.handle->offers, cuda, putting.given[i]);
    if (putting.n_rooms > 0 && options.has_stream) /* it has failed, and the stream may still copy there */
        (void)cuda->driver->cuStreamSynchronize(options.stream);
    if (in_gpu)
        leave(cuda->driver, &entered);
    for (size_t i = 0; i < putting.n_rooms; i++)
        (void)rdt_dealloc(cuda->conn, putting.rooms[i], NULL);
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
    status = offer(cuda, gpu, addr, bytes, base_p, &all, &how, err);
    leave(cuda->driver, &entered);
    if (status == RDT_OK && how_p)
        *how_p = how;
    return status;
}
