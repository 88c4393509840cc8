/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/owner_work: closes descriptors on other threads; slow closes of one owner delay only that owner. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/owner_work.h"
#include "tests/integration/hostile/mute_fs.h"
#include "tests/support/check.h"

/* Runs the loop until the condition holds. It does not block in the loop: the pool may have ended its last work before. */
#define loop_until(condition) wait_until(60 * SEC, (uv_run(&loop, UV_RUN_NOWAIT), (condition)))

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
    cr_assert_eq(owner_work_create(&loop, 1, &pool, NULL), RDT_OK);
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
    loop_until(n_closed == 1 && !uv_loop_alive(&loop));
    cr_assert_eq(mine->used[USAGE_FDS], 0);
    cr_assert_eq(mine->refs, 1, "a reference was left");
    account_unref(mine);
    account_unref(theirs);
    accounts_fini(&accounts);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(owner_work, .init = setup, .timeout = 240);

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
    loop_until(owner_work_pending(pool) == 0);
    for (unsigned i = 0; i < 300; i++)
        cr_assert_eq(fcntl(fds[i], F_GETFD), -1);
    cr_assert_gt(n_notices, 0);
    end();
}

struct gate {
    struct work work;
    sem_t open; /* run waits for it */
    atomic_bool runs;
    bool done;
};

static void run_gate(struct work *work)
{
    struct gate *gate = container_of(work, struct gate, work);

    gate->runs = true;
    while (sem_wait(&gate->open) != 0)
        continue;
}

static void done_gate(struct work *work)
{
    container_of(work, struct gate, work)->done = true;
}

static void gate_submit(struct gate *gate, struct account *account, bool open)
{
    *gate = (struct gate){.work = {.run = run_gate, .done = done_gate}};
    (void)sem_init(&gate->open, 0, open);
    owner_work_submit(pool, &gate->work, account, true);
}

/* As in a service or a pod with a low limit of tasks: the daemon has the thread that it needs from its start on. */
Test(owner_work, work_ends_although_no_thread_can_be_started)
{
    const struct rlimit none = {0, 0};
    struct gate gate;

    if (geteuid() == 0)
        cr_assert_eq(setresuid(54321, 54321, 54321), 0);
    cr_assert_eq(setrlimit(RLIMIT_NPROC, &none), 0);
    gate_submit(&gate, mine, true);
    owner_work_close_fd(pool, a_file(), theirs);
    loop_until(gate.done && owner_work_pending(pool) == 0);
    end();
}

Test(owner_work, end_of_all_works_is_told_once)
{
    struct gate gate, next;
    unsigned n_told = 0;

    owner_work_await_works(pool, on_closed, &n_told);
    cr_assert_eq(n_told, 1, "there is none");
    gate_submit(&gate, mine, false);
    gate_submit(&next, theirs, false);
    owner_work_await_works(pool, on_closed, &n_told);
    (void)sem_post(&gate.open);
    loop_until(gate.done);
    cr_assert_eq(n_told, 1, "another work was not waited for");
    (void)sem_post(&next.open);
    loop_until(next.done && n_told == 2);
    gate_submit(&gate, mine, false);
    (void)sem_post(&gate.open);
    loop_until(gate.done && owner_work_pending(pool) == 0);
    cr_assert_eq(n_told, 2);
    end();
}

static unsigned n_running(const struct gate *gates, unsigned n)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += gates[i].runs;
    return sum;
}

Test(owner_work, slow_work_of_one_owner_delays_no_other)
{
    struct gate slow[OWNER_WORK_THREADS + 4], quick;

    for (unsigned i = 0; i < OWNER_WORK_THREADS + 4; i++)
        gate_submit(&slow[i], mine, false);
    gate_submit(&quick, theirs, true);
    loop_until(quick.done);
    for (unsigned i = 0; i < OWNER_WORK_THREADS + 4; i++) {
        cr_assert(!slow[i].done);
        (void)sem_post(&slow[i].open);
    }
    end();
    for (unsigned i = 0; i < OWNER_WORK_THREADS + 4; i++)
        cr_assert(slow[i].done);
}

#define STEPS 200u

struct step {
    struct work work;
    bool beside; /* when it began another ran that had not been held up yet */
    atomic_llong began_ns, ended_ns;
};

static struct step steps[STEPS];
static unsigned n_steps_done;

static bool runs_unhindered(struct step *step, int64_t now)
{
    int64_t began_ns = atomic_load(&step->began_ns);

    return began_ns > 0 && now - began_ns < OWNER_WORK_TICK_MS * 1000000ll && atomic_load(&step->ended_ns) == 0;
}

static void run_step(struct work *work)
{
    struct step *step = container_of(work, struct step, work);
    int64_t began_ns = now_ns();

    for (unsigned i = 0; i < STEPS; i++)
        step->beside = step->beside || (&steps[i] != step && runs_unhindered(&steps[i], began_ns));
    atomic_store(&step->began_ns, began_ns);
    while (now_ns() - began_ns < SEC / 1000)
        continue;
    atomic_store(&step->ended_ns, now_ns());
}

static void done_step(struct work *work)
{
    n_steps_done++;
}

/* A step that the machine stops for OWNER_WORK_TICK_MS does not count, so another one may run beside it. */
Test(owner_work, long_copies_of_one_person_run_one_after_the_other)
{
    unsigned n_beside = 0;

    for (unsigned i = 0; i < STEPS; i++) {
        steps[i].work = (struct work){.run = run_step, .done = done_step};
        owner_work_submit_copy(pool, &steps[i].work, mine);
    }
    loop_until(n_steps_done == STEPS);
    for (unsigned i = 0; i < STEPS; i++)
        n_beside += steps[i].beside;
    cr_assert_lt(n_beside, STEPS / 10);
    end();
}

Test(owner_work, copies_that_are_held_up_delay_no_other_of_that_person)
{
    struct gate slow[OWNER_WORK_THREADS - 1], quick;

    for (unsigned i = 0; i < OWNER_WORK_THREADS; i++) {
        struct gate *gate = i < OWNER_WORK_THREADS - 1 ? &slow[i] : &quick;
        *gate = (struct gate){.work = {.run = run_gate, .done = done_gate}};
        (void)sem_init(&gate->open, 0, gate == &quick);
        owner_work_submit_copy(pool, &gate->work, mine);
    }
    loop_until(quick.done);
    cr_assert_eq(n_running(slow, OWNER_WORK_THREADS - 1), OWNER_WORK_THREADS - 1);
    for (unsigned i = 0; i < OWNER_WORK_THREADS - 1; i++)
        (void)sem_post(&slow[i].open);
    end();
}

static uint32_t person_of(void *arg, uint32_t uid)
{
    return uid >= 100000 ? 1000 : uid;
}

/* All user ids of one person share its threads, however many it has. */
Test(owner_work, slow_work_of_many_user_ids_of_a_person_takes_the_threads_of_one)
{
    enum { IDS = 2 * OWNER_WORK_SHARED_THREADS, N = IDS };
    static struct gate slow[N];
    static struct account *ids[IDS];
    struct gate quick;

    accounts.person_of = person_of;
    for (unsigned i = 0; i < N; i++) {
        ids[i] = account_get(&accounts, &(struct owner){.uid = 100000 + i});
        gate_submit(&slow[i], ids[i], false);
    }
    loop_until(n_running(slow, N) >= OWNER_WORK_THREADS);
    for (unsigned i = 0; i < 8; i++) {
        gate_submit(&quick, theirs, true);
        loop_until(quick.done);
    }
    cr_assert_eq(n_running(slow, N), OWNER_WORK_THREADS);
    for (unsigned i = 0; i < N; i++) {
        (void)sem_post(&slow[i].open);
        account_unref(ids[i]);
    }
    end();
}

/* More owners with work that does not return than have room in the shared threads. */
Test(owner_work, slow_work_of_many_owners_delays_no_other)
{
    enum { OWNERS = 2 * OWNER_WORK_SHARED_THREADS / OWNER_WORK_THREADS, N = OWNERS * OWNER_WORK_THREADS };
    static struct gate slow[N];
    struct account *owners[OWNERS];
    struct gate quick;

    for (unsigned i = 0; i < N; i++) {
        if (i < OWNERS)
            owners[i] = account_get(&accounts, &(struct owner){.uid = 1000 + i});
        gate_submit(&slow[i], owners[i % OWNERS], false);
    }
    loop_until(n_running(slow, N) >= OWNER_WORK_SHARED_THREADS);
    gate_submit(&quick, theirs, true);
    loop_until(quick.done);
    for (unsigned i = 0; i < N; i++)
        (void)sem_post(&slow[i].open);
    for (unsigned i = 0; i < OWNERS; i++)
        account_unref(owners[i]);
    end();
}

Test(owner_work, owner_with_many_late_descriptors_is_behind_and_charged)
{
    struct gate slow;
    struct mute_fs fs = {0};
    char path[80];

    if (!mute_mount(&fs)) {
        printf("skipped: no FUSE\n");
        end();
        return;
    }
    (void)snprintf(path, sizeof path, "%s/file", fs.folder);
    gate_submit(&slow, mine, false);
    for (unsigned i = 1; i < OWNER_WORK_MAX; i++) {
        cr_assert(!owner_work_is_behind(pool, mine));
        owner_work_close_fd(pool, open(path, O_RDONLY | O_CLOEXEC), mine);
    }
    cr_assert(owner_work_is_behind(pool, mine));
    cr_assert(!owner_work_is_behind(pool, theirs));
    loop_until(mine->used[USAGE_FDS] >= OWNER_WORK_MAX - 1);
    (void)sem_post(&slow.open);
    mute_end(&fs);
    loop_until(owner_work_pending(pool) == 0);
    cr_assert(!owner_work_is_behind(pool, mine));
    end();
}

static int a_memfd(void)
{
    int fd = memfd_create("owner_work", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd >= 0);
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) != -1;
}

enum { MANY = 2 * OWNER_WORK_SHARED_THREADS + 8 }; /* one person can have more user ids than there are threads */
static struct account *many[MANY];

static void many_begin(void)
{
    for (unsigned i = 0; i < MANY; i++)
        many[i] = account_get(&accounts, &(struct owner){.uid = 1000 + i});
}

static void many_end(void)
{
    for (unsigned i = 0; i < MANY; i++)
        account_unref(many[i]);
    end();
}

/* What another user's session leaves, and the daemon's own descriptors. */
struct sure_closes {
    int memfd, pair[2], file;
};

static void sure_closes_submit(struct sure_closes *sure)
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sure->pair), 0);
    owner_work_close_fd(pool, sure->memfd = a_memfd(), theirs);
    owner_work_close_socket(pool, sure->pair[0], theirs);
    owner_work_close_fd(pool, sure->file = a_file(), &accounts.node);
}

static bool sure_closes_done(const struct sure_closes *sure)
{
    return !is_open(sure->memfd) && !is_open(sure->pair[0]) && !is_open(sure->file);
}

Test(owner_work, closes_that_hang_for_many_owners_delay_no_proof_and_no_memory)
{
    struct mute_fs fs = {0};
    struct gate quick, own;
    struct sure_closes sure;
    char path[80];

    if (!mute_mount(&fs)) {
        printf("skipped: no FUSE\n");
        end();
        return;
    }
    (void)snprintf(path, sizeof path, "%s/file", fs.folder);
    many_begin();
    for (unsigned i = 0; i < MANY; i++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        cr_assert(fd >= 0);
        owner_work_close_fd(pool, fd, many[i]);
    }
    loop_until(fs.counts->flushes >= 2 * OWNER_WORK_SHARED_THREADS); /* no further one can begin */
    gate_submit(&quick, theirs, true);
    gate_submit(&own, many[0], true);
    sure_closes_submit(&sure);
    loop_until(quick.done && own.done && sure_closes_done(&sure));
    mute_end(&fs);
    loop_until(owner_work_pending(pool) == 0);
    (void)close(sure.pair[1]);
    many_end();
}

/* A hole that is punched into a file waits as long as a write(2) to the file waits for a file system. */
Test(owner_work, works_that_hang_for_many_owners_delay_no_close)
{
    static struct gate slow[MANY];
    struct sure_closes sure;
    struct gate daemons;
    int file;

    many_begin();
    for (unsigned i = 0; i < MANY; i++)
        gate_submit(&slow[i], many[i], false);
    loop_until(n_running(slow, MANY) >= 2 * OWNER_WORK_SHARED_THREADS);
    sure_closes_submit(&sure);
    owner_work_close_fd(pool, file = a_file(), theirs);
    gate_submit(&daemons, NULL, true);
    loop_until(daemons.done && sure_closes_done(&sure) && !is_open(file));
    for (unsigned i = 0; i < MANY; i++)
        (void)sem_post(&slow[i].open);
    (void)close(sure.pair[1]);
    many_end();
}

/* Messages that nobody has read may have descriptors whose close hangs: such a socket is closed like them. */
Test(owner_work, sockets_with_unread_messages_wait_behind_closes_that_hang)
{
    struct mute_fs fs = {0};
    int unread[2], empty[2];
    char path[80];
    bool waits;

    if (!mute_mount(&fs)) {
        printf("skipped: no FUSE\n");
        end();
        return;
    }
    (void)snprintf(path, sizeof path, "%s/file", fs.folder);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, unread), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, empty), 0);
    cr_assert_eq(write(unread[1], "x", 1), 1);
    for (unsigned i = 0; i < OWNER_WORK_THREADS; i++)
        owner_work_close_fd(pool, open(path, O_RDONLY | O_CLOEXEC), mine);
    loop_until(fs.counts->flushes >= OWNER_WORK_THREADS);
    owner_work_close_socket(pool, unread[0], mine);
    owner_work_close_socket(pool, empty[0], mine);
    loop_until(!is_open(empty[0]));
    waits = is_open(unread[0]);
    cr_assert_eq(send(unread[1], "x", 1, MSG_NOSIGNAL), -1, "somebody can still send to a socket that is being closed");
    mute_end(&fs);
    loop_until(owner_work_pending(pool) == 0);
    cr_assert(waits && !is_open(unread[0]));
    (void)close(unread[1]);
    (void)close(empty[1]);
    end();
}
