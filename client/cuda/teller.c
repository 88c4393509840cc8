/* See gpu.h. When a stream comes to a note the driver calls back on a thread of its own, where neither CUDA may be called nor a lock be waited
 * for: the note goes onto a list, and a thread of this library tells the daemon.
 */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>

#include "client/cuda/gpu.h"

struct note {
    struct teller *teller;
    struct note *next;
    struct rdt_ref ref;
    bool has_ref;
    CUresult result;
    void **rooms; /* that the stream copies into, mapped until it has */
    size_t n_rooms;
};

struct teller { /* outlives its connection's handle while a stream may still call back */
    rdt *conn;
    struct cuda_driver *driver;
    _Atomic(struct note *) notes; /* that streams have come to */
    sem_t some;
    atomic_uint refs; /* the handle's, and one for each callback that is still to return */
    atomic_bool end;
    sem_t copied;        /* once for each note with rooms that the stream has come to */
    atomic_uint copying; /* such notes there have been */
    pthread_t thread;
};

void note_free(struct note *note)
{
    if (note)
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

/* With the last one nobody else looks at it: what no thread has taken goes too. */
static void teller_unref(struct teller *teller)
{
    if (atomic_fetch_sub(&teller->refs, 1) != 1)
        return;
    for (struct note *note = take_notes(teller), *next; note; note = next) {
        next = note->next;
        note_free(note);
    }
    (void)sem_destroy(&teller->some);
    (void)sem_destroy(&teller->copied);
    free(teller);
}

/* ---- the thread ---- */

static void tell(struct teller *teller, const struct note *note)
{
    struct rdt_error err;

    if (note->has_ref && note->result == CUDA_SUCCESS) {
        (void)rdt_ready(teller->conn, &note->ref, NULL);
    } else if (note->has_ref) {
        (void)cuda_failed(teller->driver, note->result, &err, "the producer's stream failed before the bytes were there");
        (void)rdt_fail(teller->conn, &note->ref, RDT_SYSTEM, err.msg, NULL);
    }
    for (size_t i = 0; i < note->n_rooms; i++)
        (void)rdt_dealloc_soon(teller->conn, note->rooms[i], NULL);
}

static void *run(void *arg)
{
    struct teller *teller = arg;
    bool end;

    do {
        while (sem_wait(&teller->some) && errno == EINTR)
            ;
        end = atomic_load(&teller->end); /* what streams have come to before is told */
        for (struct note *note = take_notes(teller), *next; note; note = next) {
            next = note->next;
            tell(teller, note);
            note_free(note);
        }
    } while (!end);
    return NULL;
}

static enum rdt_status get_teller(struct streams *streams, struct teller **teller_p, struct rdt_error *err)
{
    sigset_t all, before;
    struct teller *teller;
    int error = 0;

    (void)pthread_mutex_lock(&streams->mutex);
    if (!streams->teller && (teller = calloc(1, sizeof *teller)) != NULL) {
        teller->conn = streams->conn;
        teller->driver = streams->driver;
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
            streams->teller = teller;
    }
    *teller_p = streams->teller;
    (void)pthread_mutex_unlock(&streams->mutex);
    return *teller_p ? RDT_OK : rdt_error_sys(err, error ? error : ENOMEM, "a thread that waits for streams");
}

void streams_init(struct streams *streams, rdt *conn, struct cuda_driver *driver)
{
    *streams = (struct streams){.conn = conn, .driver = driver};
    (void)pthread_mutex_init(&streams->mutex, NULL);
}

void streams_fini(struct streams *streams)
{
    struct teller *teller = streams->teller;

    if (teller) {
        for (unsigned n = atomic_load(&teller->copying); n > 0; n--) /* the memory that a stream copies into is unmapped next */
            while (sem_wait(&teller->copied) && errno == EINTR)
                ;
        atomic_store(&teller->end, true);
        (void)sem_post(&teller->some);
        (void)pthread_join(teller->thread, NULL);
        teller_unref(teller);
    }
    (void)pthread_mutex_destroy(&streams->mutex);
}

/* ---- notes ---- */

enum rdt_status note_new(struct streams *streams, struct note **note_p, struct rdt_error *err)
{
    struct note *note = calloc(1, sizeof *note);
    enum rdt_status status = note ? get_teller(streams, &note->teller, err)
                                  : rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a stream");

    if (status == RDT_OK)
        *note_p = note;
    else
        free(note);
    return status;
}

/* Whoever takes the note from the list may free it at once; the teller stays until this returns. */
static void CUDA_CB on_stream(CUstream stream, CUresult result, void *arg)
{
    struct note *note = arg;
    struct teller *teller = note->teller;
    bool copied = note->n_rooms > 0;

    (void)stream;
    note->result = result;
    note->next = atomic_load(&teller->notes);
    while (!atomic_compare_exchange_weak(&teller->notes, &note->next, note))
        ;
    (void)sem_post(&teller->some);
    if (copied)
        (void)sem_post(&teller->copied);
    teller_unref(teller);
}

enum rdt_status note_in_stream(struct note *take_note, CUstream stream, const struct rdt_ref *ref, void **take_rooms, size_t n_rooms,
                               struct rdt_error *err)
{
    struct teller *teller = take_note->teller;
    CUresult result;

    take_note->has_ref = ref;
    if (ref)
        take_note->ref = *ref;
    take_note->rooms = take_rooms;
    take_note->n_rooms = n_rooms;
    atomic_fetch_add(&teller->refs, 1);
    atomic_fetch_add(&teller->copying, n_rooms > 0);
    result = teller->driver->cuStreamAddCallback(stream, on_stream, take_note, 0);
    if (result == CUDA_SUCCESS)
        return RDT_OK;
    atomic_fetch_sub(&teller->copying, n_rooms > 0);
    take_note->rooms = NULL;
    note_free(take_note);
    teller_unref(teller);
    return cuda_failed(teller->driver, result, err, "waiting for a stream");
}
