/* SPDX-License-Identifier: Apache-2.0 */
/* rdtd-keeper alone: it keeps what it stores, and strangers and malformed messages change nothing. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/actor.h"
#include "tests/support/keeper.h"
#include "tests/support/tensors.h"

TestSuite(keeper, .timeout = SUITE_SECONDS(120));

static struct test_keeper keeper;

static int memory(const char *text)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    return fd;
}

static bool holds(int fd, const char *text)
{
    char read_text[64] = "";

    return pread(fd, read_text, sizeof read_text - 1, 0) == (ssize_t)strlen(text) && strcmp(read_text, text) == 0;
}

static int greeted(void)
{
    struct keeper_message reply;
    int fd = keeper_dial(&keeper);

    must(keeper_greet(fd, &reply) == KEEPER_READY && reply.value == KEEPER_VERSION);
    return fd;
}

static void store(int fd, uint64_t id, const char *text)
{
    int mem = memory(text);

    keeper_send(fd, KEEPER_STORE, &id, &mem, 1);
    close(mem);
}

static void must_hold(uint64_t id, const char *text, unsigned expected)
{
    unsigned n;
    int fd = keeper_look(&keeper, id, &n);

    must_say(n == expected, "it holds %u descriptors instead of %u", n, expected);
    must(text ? fd >= 0 && holds(fd, text) : fd < 0);
    if (fd >= 0)
        close(fd);
}

Test(keeper, what_was_stored_outlives_the_connection_until_it_is_dropped)
{
    const uint64_t id = 1, unknown = 77;

    keeper_start(&keeper);
    int fd = greeted();
    store(fd, 1, "one");
    store(fd, 2, "two");
    store(fd, 1, "another one");
    keeper_send(fd, KEEPER_DROP, &unknown, NULL, 1);
    close(fd);
    must_hold(1, "another one", 2);
    must_hold(2, "two", 2);
    fd = greeted();
    keeper_send(fd, KEEPER_DROP, &id, NULL, 1);
    close(fd);
    must_hold(1, NULL, 1);
    keeper_stop(&keeper, SIGTERM);
}

/* Random ids, so that its table grows and its entries move. A model says what is there. */
Test(keeper, thousands_come_and_go)
{
    enum { IDS = 4000, STEPS = 30000 };
    static bool model[IDS];
    uint64_t random = 3;
    unsigned expected = 0, n;
    int fd, mem = memory("x");

    keeper_start(&keeper);
    fd = greeted();
    for (unsigned i = 0; i < STEPS; i++) {
        uint64_t at = next_random(&random) % IDS, id = (at + 1) * 1000003;
        bool keep = next_random(&random) % 3 > 0;
        keeper_send(fd, keep ? KEEPER_STORE : KEEPER_DROP, &id, keep ? &mem : NULL, 1);
        model[at] = keep;
    }
    close(fd);
    close(mem);
    for (unsigned i = 0; i < IDS; i++)
        expected += model[i];
    for (unsigned i = 0; i < IDS; i += 399) {
        int found = keeper_look(&keeper, (i + 1) * UINT64_C(1000003), &n);
        must((found >= 0) == model[i] && n == expected);
        if (found >= 0)
            close(found);
    }
    keeper_stop(&keeper, SIGTERM);
}

static int be_daemon(struct actor *self, void *arg)
{
    int fd = greeted();

    store(fd, 5, "five");
    actor_step(self);
    actor_await(self);
    return 0;
}

Test(keeper, serves_one_daemon_and_the_next_one_as_soon_as_it_is_dead)
{
    struct keeper_message reply;
    struct actor daemon;

    keeper_start(&keeper);
    actor_start(&daemon, be_daemon, NULL);
    actor_await(&daemon);
    int fd = keeper_dial(&keeper);
    must(keeper_greet(fd, &reply) == KEEPER_BUSY);
    cr_assert_eq((pid_t)reply.value, daemon.pid);
    store(fd, 5, "not this");
    close(fd);
    actor_kill(&daemon, SIGKILL);
    must_hold(5, "five", 1);
    keeper_stop(&keeper, SIGTERM);
}

static void *stay(void *arg)
{
    (void)pause();
    return arg;
}

/* Its main thread ends, and another one stays, as when that one waits in the kernel: nobody closes the connection. */
static int be_dying_daemon(struct actor *self, void *arg)
{
    pthread_t thread;
    int fd = greeted();

    store(fd, 5, "five");
    actor_step(self);
    actor_await(self);
    store(fd, 6, "six");
    must(pthread_create(&thread, NULL, stay, NULL) == 0);
    (void)syscall(SYS_exit, 0);
    return 0;
}

Test(keeper, serves_the_next_daemon_while_the_kernel_keeps_a_dead_one)
{
    struct keeper_message reply;
    struct actor daemon;
    int fd;

    keeper_start(&keeper);
    actor_start(&daemon, be_dying_daemon, NULL);
    actor_await(&daemon);
    fd = keeper_dial(&keeper);
    must(keeper_greet(fd, &reply) == KEEPER_BUSY);
    close(fd);
    actor_step(&daemon);
    wait_until(LONG, main_thread_ended(daemon.pid));
    must_hold(5, "five", 2);
    must_hold(6, "six", 2);
    actor_kill(&daemon, SIGKILL);
    keeper_stop(&keeper, SIGTERM);
}

/* Sends from a connection of its own; the keeper may close it, and must go on. */
static void say_nonsense(uint64_t *random)
{
    uint8_t bytes[3000];
    size_t n = next_random(random) % sizeof bytes;
    int fd = keeper_dial(&keeper);

    if (next_random(random) % 2) {
        struct keeper_message reply;
        (void)keeper_greet(fd, &reply);
    }
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)next_random(random);
    if (n > 0 && next_random(random) % 2)
        bytes[0] = (uint8_t)(next_random(random) % 10); /* a type that there is */
    if (n > 1)
        bytes[1] = 0;
    (void)send(fd, bytes, n, MSG_NOSIGNAL);
    close(fd);
}

Test(keeper, nonsense_ends_one_connection_only)
{
    uint64_t random = 11;

    keeper_start(&keeper);
    int fd = greeted();
    store(fd, 9, "nine");
    close(fd);
    for (unsigned i = 0; i < 2000; i++)
        say_nonsense(&random);
    must_hold(9, "nine", 1);
    keeper_stop(&keeper, SIGTERM);
}

/* The client sends FETCH again and again, and reads nothing. */
Test(keeper, one_that_does_not_read_holds_up_nobody)
{
    enum { HELD = 2000 };
    int silent, fd, mem = memory("m");

    keeper_start(&keeper);
    fd = greeted();
    for (uint64_t id = 1; id <= HELD; id++)
        keeper_send(fd, KEEPER_STORE, &id, &mem, 1);
    close(fd);
    close(mem);
    silent = greeted();
    for (unsigned i = 0; i < 50; i++)
        keeper_send(silent, KEEPER_FETCH, NULL, NULL, 0);
    fd = keeper_dial(&keeper);
    cr_assert_eq(keeper_greet(fd, &(struct keeper_message){0}), KEEPER_BUSY, "it answers others meanwhile");
    close(fd);
    close(silent);
    must_hold(1, "m", HELD);
    keeper_stop(&keeper, SIGTERM);
}

static int be_stranger(struct actor *self, void *arg)
{
    struct keeper_message reply;
    int fds[KEEPER_MAX_IDS], fd;
    unsigned n;

    must(setgid(12345) == 0 && setuid(12345) == 0);
    fd = keeper_dial(&keeper);
    must_say(!keeper_recv(fd, &reply, fds, &n), "the keeper answers another user");
    return 0;
}

Test(keeper, other_users_get_nothing)
{
    struct actor stranger;

    need_root();
    keeper_start(&keeper);
    must(chmod(keeper.socket, 0666) == 0); /* the mode of the socket keeps them away as well */
    actor_start(&stranger, be_stranger, NULL);
    actor_wait(&stranger);
    keeper_stop(&keeper, SIGTERM);
}

Test(keeper, second_one_at_the_same_socket_refuses_to_start)
{
    struct program second;

    keeper_start(&keeper);
    program_run(&second, (const char *[]){"rdtd-keeper", "--socket", keeper.socket, NULL}, NULL);
    cr_assert_eq(second.status, 2);
    cr_assert(strstr(second.err, "another keeper listens at"), "%s", second.err);
    program_free(&second);
    program_run(&second, (const char *[]){"rdtd-keeper", "--socket", "/nonexistent/keeper", NULL}, NULL);
    cr_assert_eq(second.status, 2);
    cr_assert(strstr(second.err, "cannot listen at /nonexistent/keeper"), "%s", second.err);
    program_free(&second);
    program_run(&second, (const char *[]){"rdtd-keeper", "sleep", NULL}, NULL);
    cr_assert_eq(second.status, 2);
    cr_assert(strstr(second.err, "a command follows after --"), "%s", second.err);
    program_free(&second);
    keeper_stop(&keeper, SIGKILL);
    keeper_start(&keeper); /* the socket of a killed one is no obstacle */
    keeper_stop(&keeper, SIGTERM);
}

/* The command notes its starts in a file and waits. */
static unsigned starts(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? (unsigned)st.st_size : 0;
}

Test(keeper, command_that_dies_is_started_again_and_ends_with_the_keeper)
{
    char path[200], script[1000], socket[200];
    struct program program;

    (void)snprintf(path, sizeof path, "%s/starts", getenv("TMPDIR"));
    (void)snprintf(socket, sizeof socket, "%s/keeper", getenv("TMPDIR"));
    (void)snprintf(
        script, sizeof script,
        "trap 'exit 7' TERM; printf x >>%s; [ \"$RDTD_KEEPER\" = %s ] || exit 2; [ $(wc -c <%s) -lt 3 ] && kill -9 $$; "
        "while :; do sleep 0.05; done",
        path, socket, path);
    program_start(&program, (const char *[]){"rdtd-keeper", "--socket", socket, "--", "/bin/sh", "-c", script, NULL}, NULL);
    wait_until(LONG, starts(path) == 3);
    kill(program.pid, SIGTERM);
    program_wait(&program);
    cr_assert_eq(program.status, 7, "the command's own status");
    cr_assert(strstr(program.err, "ended with signal 9 and is started again"), "%s", program.err);
    program_free(&program);
}

/* Its first start ends its main thread only, as when another one waits in the kernel. */
Test(keeper, command_that_the_kernel_keeps_is_started_again)
{
    static const char dies[] = "import ctypes, os, platform, sys, threading, time\n"
                               "with open(sys.argv[1], 'a') as f: f.write('x')\n"
                               "if os.path.getsize(sys.argv[1]) > 1: time.sleep(1000)\n"
                               "with open(sys.argv[1] + '.pid', 'w') as f: f.write(str(os.getpid()))\n"
                               "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
                               "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)\n";
    char path[200], pid_path[220], socket[200];
    struct program program;
    pid_t pid = 0;

    (void)snprintf(path, sizeof path, "%s/kept", getenv("TMPDIR"));
    (void)snprintf(pid_path, sizeof pid_path, "%s.pid", path);
    (void)snprintf(socket, sizeof socket, "%s/keeper.kept", getenv("TMPDIR"));
    program_start(&program, (const char *[]){"rdtd-keeper", "--socket", socket, "--", "python3", "-c", dies, path, NULL}, NULL);
    wait_until(LONG, starts(path) == 2);
    FILE *file = fopen(pid_path, "re");
    must(file && fscanf(file, "%d", &pid) == 1 && main_thread_ended(pid));
    (void)fclose(file);
    must(kill(pid, SIGKILL) == 0);
    kill(program.pid, SIGTERM);
    program_wait(&program);
    cr_assert_eq(program.status, 128 + SIGTERM, "the second start's status");
    cr_assert(strstr(program.err, "was killed and does not end"), "%s", program.err);
    program_free(&program);
}
