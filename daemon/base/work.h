/* The pool of threads for work whose time grows with pages: fallocate, populate, munmap, last close, copies, registering. Our own and
 * not libuv's, so that file or name lookups never wait behind a copy.
 *
 * Work comes in lanes, one for each client that has some, and lanes take turns: however much one client asks for, another's next work
 * waits for one piece of it, not for all. What is long comes in pieces: it says `again`, or is submitted anew when it is done. */
#ifndef DAEMON_WORK_H
#define DAEMON_WORK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "proto/layout.h"
#include "rdt_status.h"

struct work_pool;

struct work {                    /* embed it; the pool owns it from submit until done is called */
    void (*run)(struct work *);  /* on a pool thread */
    void (*done)(struct work *); /* on the loop thread; may free the struct; NULL: nothing to do,
                                   * and run may free it */
    uint64_t lane;               /* session id of the client it is for; 0: nobody's */
    bool again;                  /* set by run: it is not done, and runs again after the other lanes' turns */
    struct work *next;
};

/* Work in the order in which it came. Not locked. */
struct work_queue {
    struct work *first, **last;
};

static inline void work_queue_init(struct work_queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static inline void work_queue_push(struct work_queue *queue, struct work *work)
{
    work->next = NULL;
    *queue->last = work;
    queue->last = &work->next;
}

/* Returns NULL if the queue is empty. */
static inline struct work *work_queue_pop(struct work_queue *queue)
{
    struct work *work = queue->first;

    if (work && !(queue->first = work->next))
        queue->last = &queue->first;
    return work;
}

/* Threads are started at once. RDT_SYSTEM (the loop then has a handle to close in its next turn), RDT_NO_MEMORY. */
enum rdt_status work_pool_create(uv_loop_t *loop, unsigned n_threads, struct work_pool **pool_p, struct rdt_error *err);

/* Any thread may submit that is not past work_pool_close; within a lane the order is first come, first served. */
void work_submit(struct work_pool *pool, struct work *work);

/* In run: memset to zero, in pieces between which others may have the processor. */
void work_zero(void *memory, uint64_t bytes);

/* In run: gives fresh memory its pages, in pieces likewise, before somebody writes all of it at once. Little is left alone. */
void work_touch(void *memory, size_t bytes);

/* Any thread: free(), by a pool thread if it is so much that its pages go back to the kernel. */
void work_free(struct work_pool *pool, void *memory, size_t bytes);

void work_free_arena(struct work_pool *pool, struct arena *arena); /* arena_fini likewise */

/* Loop thread. Runs what is queued to its end, joins the threads, calls every done, then on_closed from the loop. */
void work_pool_close(struct work_pool *pool, void (*on_closed)(void *arg), void *arg);

#endif
