/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/folder_lock: one process has the lock; that of a process that is dying is taken from it, by one other process. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/process/folder_lock.h"
#include "daemon/base/process/process.h"
#include "tests/support/check.h"

static char folder[] = "/tmp/rdt.XXXXXX", path[64];
static struct rdt_error why;

static void setup(void)
{
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/lock", folder);
}

static void teardown(void)
{
    (void)unlink(path);
    cr_assert_eq(rmdir(folder), 0, "a file is left in %s", folder);
}

TestSuite(folder_lock, .init = setup, .fini = teardown, .timeout = 120);

static enum rdt_status take(int *fd_p, pid_t *dying_p)
{
    *dying_p = 0;
    return folder_lock_take(folder, "lock", fd_p, dying_p, &why);
}

static void *stay(void *arg)
{
    (void)!write(*(int *)arg, "", 1);
    (void)pause();
    return NULL;
}

/* A process that has the lock. dies: its main thread ends and another one stays, as when that one waits in the kernel. */
static pid_t start_holder(bool dies)
{
    int ends[2], fd;
    pthread_t thread;
    pid_t pid, dying;
    char byte;

    cr_assert_eq(pipe(ends), 0);
    pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        if (take(&fd, &dying) != RDT_OK || pthread_create(&thread, NULL, stay, &ends[1]) != 0)
            _exit(1);
        if (dies)
            (void)syscall(SYS_exit, 0);
        (void)pause();
    }
    cr_assert_eq(read(ends[0], &byte, 1), 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
    if (dies)
        wait_until(LONG, process_is_dying(pid, 0));
    return pid;
}

static void end_holder(pid_t pid)
{
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

Test(folder_lock, is_given_back_and_ends_with_its_process)
{
    pid_t dying, holder = start_holder(false);
    int fd;

    end_holder(holder);
    must_ok(take(&fd, &dying));
    cr_assert_eq(dying, 0);
    (void)close(fd);
    must_ok(take(&fd, &dying));
    (void)close(fd);
}

Test(folder_lock, living_process_keeps_it)
{
    pid_t dying, holder = start_holder(false);
    char expected[64];
    int fd;

    (void)snprintf(expected, sizeof expected, "process %d has it", (int)holder);
    cr_assert_eq(take(&fd, &dying), RDT_EXISTS);
    cr_assert_str_eq(why.msg, expected);
    end_holder(holder);
}

Test(folder_lock, is_taken_from_a_process_that_is_dying)
{
    pid_t dying, holder = start_holder(true), third;
    int fd, status;

    must_ok(take(&fd, &dying));
    cr_assert_eq(dying, holder);
    third = fork();
    if (third == 0)
        _exit(take(&fd, &dying) == RDT_EXISTS ? 0 : 1);
    cr_assert(waitpid(third, &status, 0) == third && status == 0, "a third process got the lock, too");
    end_holder(holder);
    third = fork();
    if (third == 0)
        _exit(take(&fd, &dying) == RDT_EXISTS ? 0 : 1);
    cr_assert(waitpid(third, &status, 0) == third && status == 0, "a third process got the lock, too");
    (void)close(fd);
}

/* The pid of the record belongs to another process by now, or to none that can be seen from here. */
Test(folder_lock, holder_that_cannot_be_seen_counts_as_alive)
{
    pid_t dying, holder = start_holder(true);
    int fd, file = open(path, O_WRONLY | O_CLOEXEC);
    char text[64];

    (void)snprintf(text, sizeof text, "%d %llu\n", (int)holder, (unsigned long long)process_started(holder) + 1);
    cr_assert_eq(pwrite(file, text, strlen(text), 0), (ssize_t)strlen(text));
    cr_assert_eq(take(&fd, &dying), RDT_EXISTS);
    cr_assert_eq(ftruncate(file, 0), 0);
    cr_assert_eq(take(&fd, &dying), RDT_EXISTS);
    (void)close(file);
    end_holder(holder);
}

/* Each that gets the lock says so and keeps it until the pipe is closed. */
Test(folder_lock, of_several_that_race_for_it_one_gets_it)
{
    enum { N = 8 };
    pid_t holder = start_holder(true), racers[N];
    int go[2], fd, stop[2], status, n_got = 0;
    pid_t dying;
    char byte;

    cr_assert(pipe(go) == 0 && pipe(stop) == 0);
    for (unsigned i = 0; i < N; i++)
        if ((racers[i] = fork()) == 0) {
            (void)close(go[1]);
            (void)close(stop[1]);
            (void)!read(go[0], &byte, 1);
            enum rdt_status got = take(&fd, &dying);
            for (unsigned again = 0; got == RDT_EXISTS && again < 20; again++)
                got = take(&fd, &dying);
            if (got == RDT_OK)
                (void)!read(stop[0], &byte, 1);
            _exit(got == RDT_OK ? 0 : got == RDT_EXISTS ? 1 : 2);
        }
    (void)close(go[1]);
    for (unsigned i = 0; i < N - 1; i++) { /* all but one lose */
        pid_t lost = wait(&status);
        cr_assert(lost > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 1);
        for (unsigned k = 0; k < N; k++)
            racers[k] = racers[k] == lost ? 0 : racers[k];
    }
    (void)close(stop[1]);
    for (unsigned k = 0; k < N; k++)
        if (racers[k] > 0) {
            cr_assert(waitpid(racers[k], &status, 0) == racers[k] && status == 0);
            n_got++;
        }
    cr_assert_eq(n_got, 1);
    (void)close(go[0]);
    (void)close(stop[0]);
    end_holder(holder);
}
