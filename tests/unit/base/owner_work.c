/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/owner_work: closes descriptors on other threads; slow closes of one owner delay only that owner. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "daemon/base/owner_work.h"

static uv_loop_t loop;
static struct owner_work *pool;
static struct accounts accounts;
static struct account *mine, *theirs;
static unsigned n_closed, n_notices;

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    accounts_init(&accounts);
    mine = account_get(&accounts, &(struct owner){.uid = 1});
    theirs = account_get(&accounts, &(struct owner){.uid = 2});
    cr_assert_eq(owner_work_create(&loop, &pool, NULL), RDT_OK);
    n_closed = n_notices = 0;
}

static void on_closed(void *arg)
{
    ++*(unsigned *)arg;
}

static void end(void)
{
    owner_work_close(pool, on_closed, &n_closed);
    cr_assert_eq(n_closed, 0, "on_closed inside close");
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_closed, 1);
    cr_assert_eq(mine->used[USAGE_FDS], 0);
    cr_assert_eq(mine->refs, 1, "a reference was left");
    account_unref(mine);
    account_unref(theirs);
    accounts_fini(&accounts);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(owner_work, .init = setup, .timeout = 60);

static int a_file(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    cr_assert(fd >= 0);
    return fd;
}

static void on_closed_some(void *arg)
{
    (void)arg;
    n_notices++;
}

Test(owner_work, descriptors_are_closed_and_nobody_is_charged)
{
    int fds[300];

    owner_work_watch(pool, on_closed_some, NULL);
    for (unsigned i = 0; i < 300; i++)
        owner_work_close_fd(pool, fds[i] = a_file(), mine);
    cr_assert_eq(owner_work_pending(pool), 300);
    while (owner_work_pending(pool) > 0)
        uv_run(&loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < 300; i++)
        cr_assert_eq(fcntl(fds[i], F_GETFD), -1);
    cr_assert_gt(n_notices, 0);
    end();
}

struct gate {
    struct work work;
    pthread_mutex_t mutex; /* held by the test: run waits for it */
    atomic_bool runs;
    bool done;
};

static void run_gate(struct work *work)
{
    struct gate *gate = container_of(work, struct gate, work);

    gate->runs = true;
    pthread_mutex_lock(&gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}

static void done_gate(struct work *work)
{
    container_of(work, struct gate, work)->done = true;
}

static void gate_submit(struct gate *gate, struct account *account, bool open)
{
    *gate = (struct gate){.work = {.run = run_gate, .done = done_gate}};
    pthread_mutex_init(&gate->mutex, NULL);
    if (!open)
        pthread_mutex_lock(&gate->mutex);
    owner_work_submit(pool, &gate->work, account, true);
}

Test(owner_work, slow_work_of_one_owner_delays_no_other)
{
    struct gate slow[OWNER_WORK_THREADS + 4], quick;

    for (unsigned i = 0; i < OWNER_WORK_THREADS + 4; i++)
        gate_submit(&slow[i], mine, false);
    gate_submit(&quick, theirs, true);
    while (!quick.done)
        uv_run(&loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < OWNER_WORK_THREADS + 4; i++) {
        cr_assert(!slow[i].done);
        pthread_mutex_unlock(&slow[i].mutex);
    }
    end();
    for (unsigned i = 0; i < OWNER_WORK_THREADS + 4; i++)
        cr_assert(slow[i].done);
}

/* More owners with work that does not return than have room in the shared threads. */
Test(owner_work, slow_work_of_many_owners_delays_no_other)
{
    enum { OWNERS = 2 * OWNER_WORK_SHARED_THREADS / OWNER_WORK_THREADS, N = OWNERS * OWNER_WORK_THREADS };
    static struct gate slow[N];
    struct account *owners[OWNERS];
    struct gate quick;
    unsigned n_running = 0;

    for (unsigned i = 0; i < N; i++) {
        if (i < OWNERS)
            owners[i] = account_get(&accounts, &(struct owner){.uid = 1000 + i});
        gate_submit(&slow[i], owners[i % OWNERS], false);
    }
    while (n_running < OWNER_WORK_SHARED_THREADS) {
        uv_run(&loop, UV_RUN_ONCE);
        n_running = 0;
        for (unsigned i = 0; i < N; i++)
            n_running += slow[i].runs;
    }
    gate_submit(&quick, theirs, true);
    while (!quick.done)
        uv_run(&loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < N; i++)
        pthread_mutex_unlock(&slow[i].mutex);
    for (unsigned i = 0; i < OWNERS; i++)
        account_unref(owners[i]);
    end();
}

Test(owner_work, owner_with_many_late_descriptors_is_behind_and_charged)
{
    struct gate slow[OWNER_WORK_THREADS];

    for (unsigned i = 0; i < OWNER_WORK_THREADS; i++)
        gate_submit(&slow[i], mine, false);
    for (unsigned i = OWNER_WORK_THREADS; i < OWNER_WORK_MAX; i++) {
        cr_assert(!owner_work_is_behind(pool, mine));
        owner_work_close_fd(pool, a_file(), mine);
    }
    cr_assert(owner_work_is_behind(pool, mine));
    cr_assert(!owner_work_is_behind(pool, theirs));
    while (mine->used[USAGE_FDS] <
           OWNER_WORK_MAX - OWNER_WORK_THREADS) /* all threads of the owner wait at the gates, at last */
        uv_run(&loop, UV_RUN_ONCE);
    for (unsigned i = 0; i < OWNER_WORK_THREADS; i++)
        pthread_mutex_unlock(&slow[i].mutex);
    while (owner_work_pending(pool) > 0)
        uv_run(&loop, UV_RUN_ONCE);
    cr_assert(!owner_work_is_behind(pool, mine));
    end();
}
