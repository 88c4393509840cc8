/* SPDX-License-Identifier: Apache-2.0 */
/* The worker pool: threads for work whose time grows with the number of pages, such as fallocate,
 * populating, munmap, the last close, copies and registering. libuv's pool is not used, so that file and
 * name look-ups never wait behind a copy.
 *
 * Work is queued in lanes, one for each client that has some, and lanes take turns: however much one
 * client queues, the work of another waits for one piece of it at most. Long work runs in pieces: it sets
 * `again`, or is submitted again when it is done. */
#ifndef DAEMON_WORK_H
#define DAEMON_WORK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "proto/layout.h"
#include "rdt_status.h"

struct work_pool;

struct work {                    /* embedded by its user; the pool owns it from work_submit until done is called */
    void (*run)(struct work *);  /* on a pool thread */
    void (*done)(struct work *); /* on the loop thread; may free the struct. NULL: run may free the struct. */
    uint64_t lane;               /* session id, LANE_FILES or generation of a stored object; 0: none */
    bool again;                  /* set by run: it has more to do, and runs again after the turns of the other lanes */
    struct work *next;
};

/* Work in the order of its arrival. Not locked. */
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

/* Starts the threads at once. Errors: RDT_SYSTEM (the loop must run once more to close a handle),
 * RDT_NO_MEMORY. */
enum rdt_status work_pool_create(uv_loop_t *loop, unsigned n_threads, struct work_pool **pool_p, struct rdt_error *err);

/* Any thread may submit until work_pool_close. Within a lane, work runs in the order of submission. */
void work_submit(struct work_pool *pool, struct work *work);

/* For run: sets memory to zero, in pieces between which other threads may use the processor. */
void work_zero(void *memory, uint64_t bytes);

/* For run: makes the kernel allocate the pages of new memory, in pieces, before all of it is written at
 * once. Does nothing for little memory. */
void work_touch(void *memory, size_t bytes);

/* Any thread: free(). A pool thread does it if there is so much that the pages go back to the kernel. */
void work_free(struct work_pool *pool, void *memory, size_t bytes);

void work_free_arena(struct work_pool *pool, struct arena *arena); /* the same for arena_fini */

/* Loop thread. Runs everything queued to its end, joins the threads, calls every done, and then on_closed
 * from the loop. */
void work_pool_close(struct work_pool *pool, void (*on_closed)(void *arg), void *arg);

#endif
