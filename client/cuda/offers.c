/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. An offer is memory that puts have made known to the daemon while they are under way. Puts of several threads
 * share the offer of one allocation: it stays known until the last of them is over. Chunks are offered whole, and tensors of
 * one put that share a chunk are offered as one range.
 *
 * The put that makes an offer waits for the daemon, as long as its deadline allows. Only puts of the same allocation wait for
 * that offer, each until its own deadline or until it is interrupted. While a put waits, its thread may run code of the caller
 * (rdt_interrupt_by), such as a signal handler. If that puts the same allocation, it would wait for itself, so it is refused.
 */
#include <stdlib.h>

#include "client/cuda/gpu.h"

#define ASK_NS (INT64_C(100) * 1000000) /* between two questions whether a put should end */
/* Each refusal costs a round trip, so after so many in a row nothing is offered for a while. Then one is tried again: the
 * daemon may be another one, or run as another user, or this may be memory of another allocator. */
#define MAX_REFUSED 3u
#define REFUSED_NS (INT64_C(60) * 1000000000)

struct offer {
    struct offer *next;
    struct address_range range;
    unsigned users; /* tensors of puts that are under way */
    bool pending;   /* the daemon was asked and has not answered */
    pthread_t by;   /* pending: the thread that asked */
};

void offers_init(struct offers *offers)
{
    pthread_condattr_t monotonic;

    (void)pthread_mutex_init(&offers->mutex, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&offers->settled, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    offers->first = NULL;
    atomic_init(&offers->refused[0], 0);
    atomic_init(&offers->refused[1], 0);
    atomic_init(&offers->refused_until_ns[0], 0);
    atomic_init(&offers->refused_until_ns[1], 0);
}

void offers_fini(struct offers *offers)
{
    (void)pthread_cond_destroy(&offers->settled);
    (void)pthread_mutex_destroy(&offers->mutex);
}

/* ---- tensors that share chunks ---- */

static int by_start(const void *a, const void *b)
{
    const struct address_range *x = *(struct address_range *const *)a, *y = *(struct address_range *const *)b;

    return x->from < y->from ? -1 : x->from > y->from;
}

enum rdt_status offers_join_ranges(struct address_range *ranges, size_t n, struct rdt_error *err)
{
    struct address_range **order = calloc(n + 1, sizeof(struct address_range *));

    if (!order)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        order[i] = &ranges[i];
    qsort(order, n, sizeof(struct address_range *), by_start);
    for (size_t i = 0, end; i < n; i = end) {
        uintptr_t to = order[i]->to;
        for (end = i + 1; end < n && order[end]->from < to; end++)
            to = order[end]->to > to ? order[end]->to : to;
        for (size_t k = i; k < end; k++)
            *order[k] = (struct address_range){order[i]->from, to};
    }
    free(order);
    return RDT_OK;
}

/* ---- offering ---- */

/* A driver refuses handles and descriptors for reasons that no caller can know: another uid, another PID namespace, MIG. What
 * the daemon cannot open is UNSUPPORTED, and the tensor is copied. */
static enum rdt_status note_answer(rdt_cuda *cuda, enum rdt_shared_kind kind, enum rdt_status status, struct rdt_error *err)
{
    struct offers *offers = &((struct handle *)cuda)->offers;
    unsigned chunks = kind == RDT_SHARED_VMM;

    if (status == RDT_OK)
        atomic_store(&offers->refused[chunks], 0);
    if (status != RDT_INVALID && status != RDT_SYSTEM && status != RDT_UNSUPPORTED)
        return status;
    if (atomic_fetch_add(&offers->refused[chunks], 1) + 1 >= MAX_REFUSED)
        atomic_store(&offers->refused_until_ns[chunks], clock_now_ns() + REFUSED_NS);
    if (err)
        err->status = RDT_UNSUPPORTED;
    rdt_error_prefix(err, "rdtd cannot map this memory, so it must be copied");
    return RDT_UNSUPPORTED;
}

static bool is_refused(const struct offers *offers, enum rdt_shared_kind kind)
{
    unsigned chunks = kind == RDT_SHARED_VMM;

    return atomic_load(&offers->refused[chunks]) >= MAX_REFUSED &&
           clock_now_ns() < atomic_load(&offers->refused_until_ns[chunks]);
}

enum rdt_status offers_export(rdt_cuda *cuda, struct cuda_gpu *gpu, void *addr, size_t bytes, struct exported *exported_p,
                              struct rdt_error *err)
{
    enum rdt_status status = export_range(cuda->driver, gpu, addr, bytes, exported_p, err);

    if (status != RDT_OK || !is_refused(&((struct handle *)cuda)->offers, exported_p->shared.kind))
        return status;
    exported_free(exported_p);
    return rdt_error_set(err, RDT_UNSUPPORTED,
                         "rdtd could not map memory of this process %u times in a row, so it is copied; it is tried again "
                         "a minute after the last time",
                         MAX_REFUSED);
}

enum rdt_status offers_import_many(rdt_cuda *cuda, struct exported *take_exported, size_t n, enum rdt_status *statuses,
                                   struct rdt_error *err)
{
    const struct rdt_shared *shared[OFFERS_MAX_IMPORTS] = {NULL};
    void *bases[OFFERS_MAX_IMPORTS] = {NULL};
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < n; i++) {
        statuses[i] = RDT_SYSTEM;
        shared[i] = &take_exported[i].shared;
        bases[i] = take_exported[i].base;
    }
    (void)rdt_import_shared_many(cuda->conn, shared, bases, n, statuses, err);
    for (size_t i = 0; i < n; i++) {
        struct rdt_error why = {.msg = ""};

        statuses[i] = note_answer(cuda, take_exported[i].shared.kind, statuses[i], &why);
        if (status == RDT_OK && statuses[i] != RDT_OK && statuses[i] != RDT_UNSUPPORTED)
            status = statuses[i];
        exported_free(&take_exported[i]);
    }
    if (status != RDT_OK && err && err->status != status) /* it is that of a range before, which is copied */
        return rdt_error_set(err, status, "rdtd could not import memory of a GPU: %s", rdt_status_name(status));
    return status;
}

enum rdt_status offers_import(rdt_cuda *cuda, struct cuda_gpu *gpu, void *addr, size_t bytes, int64_t timeout_ns, void **base_p,
                              size_t *bytes_p, enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    struct exported exported;
    enum rdt_status status = offers_export(cuda, gpu, addr, bytes, &exported, err);

    if (status != RDT_OK)
        return status;
    exported.shared.timeout_ns = timeout_ns;
    status = rdt_import_shared(cuda->conn, &exported.shared, exported.base, err);
    status = note_answer(cuda, exported.shared.kind, status, err);
    *base_p = exported.base;
    *bytes_p = exported.shared.bytes;
    *how_p = exported.shared.kind == RDT_SHARED_VMM ? RDT_CUDA_CHUNKS : RDT_CUDA_HANDLE;
    exported_free(&exported);
    return status;
}

static struct offer *find_overlapping(const struct offers *offers, struct address_range range, bool only_pending)
{
    struct offer *offer = offers->first;

    while (offer && (offer->range.to <= range.from || offer->range.from >= range.to || (only_pending && !offer->pending)))
        offer = offer->next;
    return offer;
}

static void remove_offer(struct offers *offers, const struct offer *offer)
{
    struct offer **at = &offers->first;

    while (*at != offer)
        at = &(*at)->next;
    *at = offer->next;
}

static enum rdt_status must_copy(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_UNSUPPORTED, "the tensor must be copied");
}

/* Waits until no offer that overlaps the range is pending. The mutex is held, except while this waits. */
static enum rdt_status await_settled(struct offers *offers, struct address_range range, int64_t deadline_ns,
                                     struct rdt_error *err)
{
    struct offer *offer;

    while ((offer = find_overlapping(offers, range, true))) {
        int64_t now_ns = clock_now_ns();
        struct timespec until = clock_timespec(deadline_ns - now_ns < ASK_NS ? deadline_ns : now_ns + ASK_NS);
        if (pthread_equal(offer->by, pthread_self()))
            return rdt_error_set(err, RDT_INVALID,
                                 "this thread puts memory of the same allocation already, and runs a signal handler or "
                                 "another function of rdt_interrupt_by meanwhile: put the memory after that");
        if (now_ns >= deadline_ns)
            return rdt_error_set(err, RDT_TIMED_OUT,
                                 "another put offers the same allocation, and rdtd has not answered in time");
        (void)pthread_cond_timedwait(&offers->settled, &offers->mutex, &until);
        (void)pthread_mutex_unlock(&offers->mutex);
        bool stop = rdt_interrupted();
        (void)pthread_mutex_lock(&offers->mutex);
        if (stop)
            return rdt_error_set(err, RDT_CANCELLED, "the put was interrupted while another one offered the same allocation");
    }
    return RDT_OK;
}

/* Finds or creates the offer for a tensor; one that is pending is new, and the caller makes it. `chunks` is what to offer. The
 * mutex is held, so what another put has made known stays so. */
static enum rdt_status find_or_add(struct offers *offers, rdt_cuda *cuda, const struct offer_request *request,
                                   struct address_range chunks, struct offer **offer_p, struct rdt_error *err)
{
    struct address_range tensor = request->tensor;
    struct offer *offer;
    bool known;
    enum rdt_status status = request->copy ? RDT_OK : await_settled(offers, chunks, request->deadline_ns, err);

    if (status != RDT_OK)
        return status;
    offer = find_overlapping(offers, tensor, false);
    if (offer) {
        if (request->copy || tensor.from < offer->range.from || tensor.to > offer->range.to)
            return must_copy(err);
        offer->users++;
        *offer_p = offer;
        return RDT_OK;
    }
    status = rdt_known(cuda->conn, (void *)tensor.from, tensor.to - tensor.from, &known, NULL, NULL, err);
    if (status == RDT_INVALID) /* the caller has offered a part of the tensor */
        return must_copy(err);
    if (status != RDT_OK || known)
        return status;
    if (request->copy || find_overlapping(offers, chunks, false))
        return must_copy(err);
    offer = calloc(1, sizeof *offer);
    if (!offer)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to offer GPU memory to rdtd");
    *offer = (struct offer){.next = offers->first, .range = chunks, .users = 1, .pending = true, .by = pthread_self()};
    offers->first = *offer_p = offer;
    return RDT_OK;
}

/* Asks the daemon to import the new offer's range. The mutex is held, except while this waits for the answer. */
static enum rdt_status make_offer(struct offers *offers, rdt_cuda *cuda, struct cuda_gpu *gpu, int64_t deadline_ns,
                                  struct offer **offer_p, enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    struct offer *offer = *offer_p;
    int64_t left_ns = clock_remaining_ns(deadline_ns);
    size_t bytes = 0;
    void *base = NULL;
    enum rdt_status status;

    (void)pthread_mutex_unlock(&offers->mutex);
    status = offers_import(cuda, gpu, (void *)offer->range.from, offer->range.to - offer->range.from, gpu_call_ns(left_ns),
                           &base, &bytes, how_p, err);
    (void)pthread_mutex_lock(&offers->mutex);
    offer->pending = false;
    if (status == RDT_OK) {
        offer->range = (struct address_range){(uintptr_t)base, (uintptr_t)base + bytes};
    } else {
        remove_offer(offers, offer);
        free(offer);
        *offer_p = NULL;
    }
    (void)pthread_cond_broadcast(&offers->settled);
    return status;
}

enum rdt_status offers_acquire(struct offers *offers, rdt_cuda *cuda, struct cuda_gpu *gpu, const struct offer_request *request,
                               struct offer **offer_p, enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    struct address_range chunks = request->chunks.to != 0 ? request->chunks : request->tensor;
    enum rdt_status status;

    *offer_p = NULL;
    *how_p = RDT_CUDA_KNOWN;
    (void)pthread_mutex_lock(&offers->mutex);
    status = find_or_add(offers, cuda, request, chunks, offer_p, err);
    if (status == RDT_OK && *offer_p && (*offer_p)->pending)
        status = make_offer(offers, cuda, gpu, request->deadline_ns, offer_p, how_p, err);
    (void)pthread_mutex_unlock(&offers->mutex);
    return status;
}

void offers_release(struct offers *offers, rdt_cuda *cuda, struct offer *offer)
{
    (void)pthread_mutex_lock(&offers->mutex);
    if (--offer->users == 0) {
        remove_offer(offers, offer);
        (void)rdt_dealloc_soon(cuda->conn, (void *)offer->range.from, NULL); /* objects hold the memory by themselves */
        free(offer);
    }
    (void)pthread_mutex_unlock(&offers->mutex);
}
