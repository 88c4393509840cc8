/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. Creating pages and pinning them takes longer than the copy that goes there, so memory that was pinned once stays
 * with its connection for the next put of about its size:
 *
 *     pinned_take ──► a put, whose stream copies ──pinned_give_back──► an object lies there ──its end──► pinned_take
 *
 * The daemon says whether an object still lies there. Memory that many puts have not wanted is freed when another put
 * allocates, and all that is unused is freed when the daemon has no room: the driver unpins memory when no kernel runs any
 * more, so a put seldom does that.
 */
#include <stdlib.h>

#include "client/cuda/gpu.h"

#define UNUSED_PUTS 16u               /* after so many puts that took other memory, memory is given up */
#define MOST_MORE ((size_t)256 << 10) /* bytes, beside an eighth, by which memory may exceed what is wanted */

struct pinned {
    struct pinned *next;
    rdt *conn;
    struct cuda_gpu *gpu; /* whose context pinned it; the other GPUs may use it as well */
    void *addr;
    size_t bytes;
    unsigned unused;      /* puts since the last one that took it */
    struct pinned *asked; /* in a list of memory where an object lies still */
    bool busy;            /* a put or a stream uses it, or a thread asks the daemon about it */
    bool is_pinned;       /* else a copy waits for the one before it, and all is still right */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* not held in calls to the daemon or the driver */
static struct pinned *first;

void pinned_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    first = NULL;
}

/* Whether no object lies there any more, by the daemon's word. */
static bool is_free(const struct pinned *pinned)
{
    return rdt_wait_freed_range(pinned->conn, pinned->addr, pinned->bytes, 0, NULL) == RDT_OK;
}

static void destroy(struct cuda_driver *driver, struct pinned *take_pinned)
{
    struct entered entered;

    if (take_pinned->is_pinned && gpu_enter(driver, take_pinned->gpu, &entered, NULL) == RDT_OK) {
        (void)driver->cuMemHostUnregister(take_pinned->addr);
        gpu_leave(driver, &entered);
    }
    (void)rdt_dealloc_soon(take_pinned->conn, take_pinned->addr, NULL);
    free(take_pinned);
}

static bool fits(const struct pinned *pinned, size_t bytes)
{
    return pinned->bytes >= bytes && pinned->bytes - bytes <= bytes / 8 + MOST_MORE;
}

/* Returns memory of the connection that is not busy and was not used for so many puts, and makes it busy; NULL: there is none.
 * bytes 0: of any size. */
static struct pinned *take_idle(const rdt *conn, size_t bytes, unsigned unused)
{
    struct pinned *pinned;

    (void)pthread_mutex_lock(&mutex);
    for (pinned = first; pinned; pinned = pinned->next)
        if (pinned->conn == conn && !pinned->busy && pinned->unused >= unused && (bytes == 0 || fits(pinned, bytes)))
            break;
    if (pinned)
        pinned->busy = true;
    (void)pthread_mutex_unlock(&mutex);
    return pinned;
}

static void set_idle(struct pinned *list)
{
    (void)pthread_mutex_lock(&mutex);
    for (; list; list = list->asked)
        list->busy = false;
    (void)pthread_mutex_unlock(&mutex);
}

/* As take_idle, of memory in which no object lies. */
static struct pinned *take_free(const rdt *conn, size_t bytes, unsigned unused)
{
    struct pinned *pinned, *asked = NULL;

    while ((pinned = take_idle(conn, bytes, unused)) && !is_free(pinned)) {
        pinned->asked = asked;
        asked = pinned;
    }
    set_idle(asked);
    return pinned;
}

static void remove_from_list(const struct pinned *pinned)
{
    struct pinned **at = &first;

    (void)pthread_mutex_lock(&mutex);
    while (*at != pinned)
        at = &(*at)->next;
    *at = pinned->next;
    (void)pthread_mutex_unlock(&mutex);
}

/* Returns whether there was any. */
static bool give_up(const rdt_cuda *cuda, unsigned unused)
{
    struct pinned *pinned;
    bool any = false;

    while ((pinned = take_free(cuda->conn, 0, unused))) {
        remove_from_list(pinned);
        destroy(cuda->driver, pinned);
        any = true;
    }
    return any;
}

/* The GPU is entered. */
static enum rdt_status create(rdt_cuda *cuda, struct cuda_gpu *gpu, size_t bytes, int64_t deadline_ns, struct pinned **pinned_p,
                              struct rdt_error *err)
{
    struct rdt_alloc_options options = RDT_INIT(options);
    struct pinned *pinned = malloc(sizeof *pinned);
    void *addr;
    enum rdt_status status;

    if (!pinned)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to copy tensors to host memory");
    options.call_timeout_ns = gpu_call_ns(clock_remaining_ns(deadline_ns));
    status = rdt_alloc_with(cuda->conn, bytes, &options, &addr, err);
    if (status != RDT_OK) {
        free(pinned);
        return status;
    }
    *pinned = (struct pinned){.conn = cuda->conn, .gpu = gpu, .addr = addr, .bytes = bytes, .busy = true};
    pinned->is_pinned = cuda->driver->cuMemHostRegister(addr, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    (void)pthread_mutex_lock(&mutex);
    pinned->next = first;
    first = pinned;
    (void)pthread_mutex_unlock(&mutex);
    *pinned_p = pinned;
    return RDT_OK;
}

enum rdt_status pinned_take(rdt_cuda *cuda, struct cuda_gpu *gpu, size_t bytes, int64_t deadline_ns, void **addr_p,
                            struct rdt_error *err)
{
    struct pinned *pinned = take_free(cuda->conn, bytes, 0);
    enum rdt_status status = RDT_OK;

    if (!pinned) {
        (void)give_up(cuda, UNUSED_PUTS);
        status = create(cuda, gpu, bytes, deadline_ns, &pinned, err);
        if ((status == RDT_LIMIT || status == RDT_NO_MEMORY) && give_up(cuda, 0))
            status = create(cuda, gpu, bytes, deadline_ns, &pinned, err);
    }
    if (status != RDT_OK)
        return status;
    (void)pthread_mutex_lock(&mutex);
    for (struct pinned *other = first; other; other = other->next)
        other->unused += other->conn == cuda->conn;
    pinned->unused = 0;
    (void)pthread_mutex_unlock(&mutex);
    *addr_p = pinned->addr;
    return RDT_OK;
}

bool pinned_give_back(const rdt *conn, const void *addr)
{
    struct pinned *pinned;

    (void)pthread_mutex_lock(&mutex);
    for (pinned = first; pinned && !(pinned->conn == conn && pinned->addr == addr);)
        pinned = pinned->next;
    if (pinned)
        pinned->busy = false;
    (void)pthread_mutex_unlock(&mutex);
    return pinned;
}

void pinned_forget(const rdt_cuda *cuda)
{
    struct pinned *pinned;

    while ((pinned = take_idle(cuda->conn, 0, 0))) {
        remove_from_list(pinned);
        destroy(cuda->driver, pinned);
    }
}
