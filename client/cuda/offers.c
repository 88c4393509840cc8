/* What puts make known to the daemon while they are under way. Several puts, of several threads, share what lies in one allocation: it stays
 * known until the last of them is over. Chunks are offered whole, and tensors of one put that share a chunk are offered as one range.
 *
 * One put asks the daemon, for as long as its deadline lets it; only those that want the same allocation wait for it, each to its own. */
#include <stdlib.h>

#include "client/cuda/gpu.h"

struct offered {
    struct offered *next;
    uintptr_t from, to;
    unsigned users; /* puts, once for each tensor */
    bool coming;    /* its put is asking the daemon */
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
}

void offers_fini(struct offers *offers)
{
    (void)pthread_cond_destroy(&offers->settled);
    (void)pthread_mutex_destroy(&offers->mutex);
}

/* ---- tensors that share chunks ---- */

enum rdt_status offer_span(rdt_cuda *cuda, struct cuda_gpu *gpu, uintptr_t lo, uintptr_t hi, struct offer_span *span_p,
                           struct rdt_error *err)
{
    struct entered entered;
    CUdeviceptr first, last;
    size_t first_bytes, last_bytes;
    CUresult result;
    enum rdt_status status = enter(cuda->driver, gpu, &entered, err);

    if (status != RDT_OK)
        return status;
    result = cuda->driver->cuMemGetAddressRange(&first, &first_bytes, (CUdeviceptr)lo);
    if (result == CUDA_SUCCESS)
        result = cuda->driver->cuMemGetAddressRange(&last, &last_bytes, (CUdeviceptr)hi - 1);
    leave(cuda->driver, &entered);
    if (result == CUDA_SUCCESS)
        *span_p = (struct offer_span){(uintptr_t)first, (uintptr_t)(last + last_bytes)};
    return RDT_OK; /* else the offer says what is wrong with it */
}

static int by_start(const void *a, const void *b)
{
    const struct offer_span *x = *(struct offer_span *const *)a, *y = *(struct offer_span *const *)b;

    return x->from < y->from ? -1 : x->from > y->from;
}

enum rdt_status offer_spans_join(struct offer_span *spans, size_t n, struct rdt_error *err)
{
    struct offer_span **order = calloc(n + 1, sizeof(struct offer_span *));

    if (!order)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        order[i] = &spans[i];
    qsort(order, n, sizeof(struct offer_span *), by_start);
    for (size_t i = 0, end; i < n; i = end) {
        uintptr_t to = order[i]->to;
        for (end = i + 1; end < n && order[end]->from < to; end++)
            to = order[end]->to > to ? order[end]->to : to;
        for (size_t k = i; k < end; k++)
            *order[k] = (struct offer_span){order[i]->from, to};
    }
    free(order);
    return RDT_OK;
}

/* ---- offering ---- */

enum rdt_status offer(rdt_cuda *cuda, struct cuda_gpu *gpu, void *addr, size_t bytes, int64_t timeout_ns, void **base_p, size_t *bytes_p,
                      enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    struct exported exported;
    enum rdt_status status = export_range(cuda->driver, gpu, addr, bytes, &exported, err);

    if (status != RDT_OK)
        return status;
    exported.shared.timeout_ns = timeout_ns;
    status = rdt_import_shared(cuda->conn, &exported.shared, exported.base, err);
    *base_p = exported.base;
    *bytes_p = exported.shared.bytes;
    *how_p = exported.shared.kind == RDT_SHARED_VMM ? RDT_CUDA_CHUNKS : RDT_CUDA_HANDLE;
    exported_free(&exported);
    return status;
}

static struct offered *overlapping(const struct offers *offers, uintptr_t lo, uintptr_t hi, bool coming)
{
    struct offered *offered = offers->first;

    while (offered && (offered->to <= lo || offered->from >= hi || (coming && !offered->coming)))
        offered = offered->next;
    return offered;
}

static void take_out(struct offers *offers, const struct offered *offered)
{
    struct offered **at = &offers->first;

    while (*at != offered)
        at = &(*at)->next;
    *at = offered->next;
}

static enum rdt_status no_offer(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_UNSUPPORTED, "it is to be copied");
}

/* The mutex is held. Until nothing there is coming. */
static enum rdt_status await_settled(struct offers *offers, struct offer_span span, int64_t deadline_ns, struct rdt_error *err)
{
    struct timespec until = clock_timespec(deadline_ns);
    int over = 0;

    while (overlapping(offers, span.from, span.to, true) && over == 0)
        over = pthread_cond_timedwait(&offers->settled, &offers->mutex, &until);
    if (!overlapping(offers, span.from, span.to, true))
        return RDT_OK;
    return rdt_error_set(err, RDT_TIMED_OUT, "rdtd has not taken what another put offers of the same allocation in time");
}

/* The mutex is held: what is known by another put stays so. *offered_p, if it is `coming`, is to be offered now. */
static enum rdt_status take(struct offers *offers, rdt_cuda *cuda, const struct offer_wish *wish, struct offer_span span,
                            struct offered **offered_p, struct rdt_error *err)
{
    struct offered *offered;
    bool known;
    enum rdt_status status = wish->copy ? RDT_OK : await_settled(offers, span, wish->deadline_ns, err);

    if (status != RDT_OK)
        return status;
    offered = overlapping(offers, wish->lo, wish->hi, false);
    if (offered) {
        if (wish->copy || wish->lo < offered->from || wish->hi > offered->to)
            return no_offer(err);
        offered->users++;
        *offered_p = offered;
        return RDT_OK;
    }
    status = rdt_known(cuda->conn, (void *)wish->lo, wish->hi - wish->lo, &known, NULL, NULL, err);
    if (status == RDT_INVALID) /* a part of it is known, by the caller's own offer */
        return no_offer(err);
    if (status != RDT_OK || known)
        return status;
    if (wish->copy || overlapping(offers, span.from, span.to, false))
        return no_offer(err);
    offered = calloc(1, sizeof *offered);
    if (!offered)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to note what is offered");
    *offered = (struct offered){offers->first, span.from, span.to, 1, true};
    offers->first = *offered_p = offered;
    return RDT_OK;
}

/* The mutex is held, but not meanwhile. */
static enum rdt_status offer_it(struct offers *offers, rdt_cuda *cuda, struct cuda_gpu *gpu, int64_t deadline_ns, struct offered **offered_p,
                                enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    struct offered *offered = *offered_p;
    int64_t left_ns = clock_remaining_ns(deadline_ns);
    size_t bytes = 0;
    void *base = NULL;
    enum rdt_status status;

    (void)pthread_mutex_unlock(&offers->mutex);
    status = offer(cuda, gpu, (void *)offered->from, offered->to - offered->from, left_ns != 0 ? left_ns : 1, &base, &bytes, how_p, err);
    (void)pthread_mutex_lock(&offers->mutex);
    offered->coming = false;
    if (status == RDT_OK) {
        offered->from = (uintptr_t)base;
        offered->to = (uintptr_t)base + bytes;
    } else {
        take_out(offers, offered);
        free(offered);
        *offered_p = NULL;
    }
    (void)pthread_cond_broadcast(&offers->settled);
    return status;
}

enum rdt_status offers_take(struct offers *offers, rdt_cuda *cuda, struct cuda_gpu *gpu, const struct offer_wish *wish,
                            struct offered **offered_p, enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    struct offer_span span = wish->span.to != 0 ? wish->span : (struct offer_span){wish->lo, wish->hi};
    enum rdt_status status = RDT_OK;

    *offered_p = NULL;
    *how_p = RDT_CUDA_KNOWN;
    if (wish->span.to == 0 && !wish->copy)
        status = offer_span(cuda, gpu, wish->lo, wish->hi, &span, err);
    if (status != RDT_OK)
        return status;
    (void)pthread_mutex_lock(&offers->mutex);
    status = take(offers, cuda, wish, span, offered_p, err);
    if (status == RDT_OK && *offered_p && (*offered_p)->coming)
        status = offer_it(offers, cuda, gpu, wish->deadline_ns, offered_p, how_p, err);
    (void)pthread_mutex_unlock(&offers->mutex);
    return status;
}

void offers_give(struct offers *offers, rdt_cuda *cuda, struct offered *offered)
{
    (void)pthread_mutex_lock(&offers->mutex);
    if (--offered->users == 0) {
        take_out(offers, offered);
        (void)rdt_dealloc_soon(cuda->conn, (void *)offered->from, NULL); /* objects hold it by themselves */
        free(offered);
    }
    (void)pthread_mutex_unlock(&offers->mutex);
}
