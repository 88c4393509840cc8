/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/work: each submitted piece of work runs once on a thread of the pool, and its end is reported once on the
 * loop. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/work.h"

static uv_loop_t loop;
static struct work_pool *pool;
static pthread_t loop_thread;
static unsigned n_done, n_closed;
static atomic_uint n_run;

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    loop_thread = pthread_self();
    n_done = n_closed = 0;
}

static void teardown(void)
{
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(work, .init = setup, .fini = teardown, .timeout = 60);

static void on_closed(void *arg)
{
    ++*(unsigned *)arg;
}

struct job {
    struct work work;
    unsigned order, n_runs;
    bool has_run;
};

static unsigned order_of_runs[100];

static void run_job(struct work *work)
{
    struct job *job = (struct job *)work;
    cr_assert(!pthread_equal(pthread_self(), loop_thread));
    job->has_run = true;
    unsigned at = atomic_fetch_add(&n_run, 1);
    if (at < 100)
        order_of_runs[at] = job->order;
}

static void done_job(struct work *work)
{
    struct job *job = (struct job *)work;
    cr_assert(pthread_equal(pthread_self(), loop_thread));
    cr_assert(job->has_run);
    n_done++;
    free(job);
}

static void submit(unsigned order)
{
    struct job *job = calloc(1, sizeof(*job));
    *job = (struct job){.work = {.run = run_job, .done = done_job}, .order = order};
    work_submit(pool, &job->work);
}

Test(work, all_run_and_end)
{
    cr_assert_eq(work_pool_create(&loop, 3, &pool, NULL), RDT_OK);
    for (unsigned i = 0; i < 5000; i++)
        submit(i);
    work_pool_close(pool, on_closed, &n_closed);
    cr_assert_eq(n_closed, 0, "on_closed inside close");
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_run, 5000);
    cr_assert_eq(n_done, 5000);
    cr_assert_eq(n_closed, 1);
}

Test(work, one_thread_keeps_order)
{
    cr_assert_eq(work_pool_create(&loop, 1, &pool, NULL), RDT_OK);
    for (unsigned i = 0; i < 100; i++)
        submit(i);
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_eq(order_of_runs[i], i);
}

static uv_sem_t gate;

static void run_gate(struct work *work)
{
    uv_sem_wait(&gate);
}

static void submit_to(uint64_t lane, unsigned order)
{
    struct job *job = calloc(1, sizeof(*job));
    *job = (struct job){.work = {.run = run_job, .done = done_job, .lane = lane}, .order = order};
    work_submit(pool, &job->work);
}

Test(work, lanes_take_turns)
{
    struct work first = {.run = run_gate};
    cr_assert_eq(work_pool_create(&loop, 1, &pool, NULL), RDT_OK);
    cr_assert_eq(uv_sem_init(&gate, 0), 0);
    work_submit(pool, &first); /* all is queued before the thread takes any */
    for (unsigned i = 0; i < 80; i++)
        submit_to(7, i);
    submit_to(8, 80);
    submit_to(9, 90);
    submit_to(8, 81);
    submit_to(0, 99);
    uv_sem_post(&gate);
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    const unsigned first_ones[] = {0, 80, 90, 99, 1, 81, 2, 3, 4};
    for (unsigned i = 0; i < sizeof first_ones / sizeof first_ones[0]; i++)
        cr_expect_eq(order_of_runs[i], first_ones[i], "run %u was %u instead of %u", i, order_of_runs[i], first_ones[i]);
    cr_assert_eq(n_done, 84);
    uv_sem_destroy(&gate);
}

/* Threads take from lanes that come and go under them. */
Test(work, many_lanes)
{
    cr_assert_eq(work_pool_create(&loop, 4, &pool, NULL), RDT_OK);
    for (unsigned i = 0; i < 20000; i++)
        submit_to(i % 37, i);
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_run, 20000);
    cr_assert_eq(n_done, 20000);
}

static void run_thrice(struct work *work)
{
    struct job *job = (struct job *)work;
    run_job(work);
    job->work.again = ++job->n_runs < 3;
}

/* Two pieces of another lane's work go between the three of one that says `again`, and it is done once. */
Test(work, again_waits_for_others_turns)
{
    static const unsigned expected[] = {1, 2, 1, 2, 1};
    struct work blocker = {.run = run_gate};
    struct job *job = calloc(1, sizeof(*job));
    cr_assert_eq(work_pool_create(&loop, 1, &pool, NULL), RDT_OK);
    cr_assert_eq(uv_sem_init(&gate, 0), 0);
    work_submit(pool, &blocker);
    *job = (struct job){.work = {.run = run_thrice, .done = done_job, .lane = 1}, .order = 1};
    work_submit(pool, &job->work);
    submit_to(2, 2);
    submit_to(2, 2);
    uv_sem_post(&gate);
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_sem_destroy(&gate);
    cr_assert_eq(n_run, 5);
    cr_assert_eq(n_done, 3);
    for (unsigned i = 0; i < 5; i++)
        cr_assert_eq(order_of_runs[i], expected[i], "run %u was of %u", i, order_of_runs[i]);
}

static void done_then_submit(struct work *work)
{
    unsigned order = ((struct job *)work)->order;
    done_job(work);
    if (order > 0) {
        struct job *job = calloc(1, sizeof(*job));
        *job = (struct job){.work = {.run = run_job, .done = done_then_submit}, .order = order - 1};
        work_submit(pool, &job->work);
    }
}

/* What ends an object may submit the release of its memory, also while the pool closes. */
Test(work, close_waits_for_what_done_submits)
{
    cr_assert_eq(work_pool_create(&loop, 2, &pool, NULL), RDT_OK);
    struct job *job = calloc(1, sizeof(*job));
    *job = (struct job){.work = {.run = run_job, .done = done_then_submit}, .order = 9};
    work_submit(pool, &job->work);
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_done, 10);
    cr_assert_eq(n_closed, 1);
}

static void run_and_free(struct work *work)
{
    atomic_fetch_add(&n_run, 1);
    free(work);
}

Test(work, run_may_free_what_has_no_done)
{
    cr_assert_eq(work_pool_create(&loop, 2, &pool, NULL), RDT_OK);
    for (unsigned i = 0; i < 1000; i++) {
        struct work *work = calloc(1, sizeof(*work));
        work->run = run_and_free;
        work_submit(pool, work);
    }
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_run, 1000);
    cr_assert_eq(n_closed, 1);
}

static void done_last(struct work *work)
{
    done_job(work);
    if (n_done == 4000)
        work_pool_close(pool, on_closed, &n_closed);
}

static void *submit_many(void *arg)
{
    for (unsigned i = 0; i < 1000; i++) {
        struct job *job = calloc(1, sizeof(*job));
        *job = (struct job){.work = {.run = run_job, .done = done_last}};
        work_submit(pool, &job->work);
    }
    return NULL;
}

Test(work, any_thread_submits)
{
    pthread_t threads[4];
    cr_assert_eq(work_pool_create(&loop, 3, &pool, NULL), RDT_OK);
    for (unsigned i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, submit_many, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(n_done, 4000);
    cr_assert_eq(n_closed, 1);
}

Test(work, unused_pool_closes)
{
    cr_assert_eq(work_pool_create(&loop, 2, &pool, NULL), RDT_OK);
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_closed, 1);
}

/* ---- memory that goes back, or comes ---- */

Test(work, memory_is_freed_on_the_pool)
{
    struct arena small, large;

    cr_assert_eq(work_pool_create(&loop, 2, &pool, NULL), RDT_OK);
    for (size_t bytes = 1; bytes < 8u << 20; bytes *= 5)
        work_free(pool, malloc(bytes), bytes); /* what is lost the sanitizers' run says */
    work_free(pool, NULL, 1 << 20);
    arena_init(&small, 4096);
    arena_init(&large, 64 << 20);
    cr_assert_not_null(arena_alloc(&small, 10));
    for (unsigned i = 0; i < 100; i++)
        cr_assert_not_null(arena_alloc(&large, 100000));
    work_free_arena(pool, &small);
    work_free_arena(pool, &large);
    work_pool_close(pool, on_closed, &n_closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_closed, 1);
}

Test(work, touched_memory_keeps_what_it_has)
{
    size_t bytes = (5u << 20) + 12345;
    uint8_t *memory = malloc(bytes);

    memset(memory, 3, bytes);
    work_touch(memory + 1, bytes - 1);
    work_touch(memory, 10);
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(memory[i], 3);
    free(memory);
}
