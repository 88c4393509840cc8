/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/actor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_actor;

bool actor_is_one(void)
{
    return is_actor;
}

static void close_all_but(int a, int b)
{
    int low = a < b ? a : b, high = a < b ? b : a;

    if (low < 0) {
        low = high;
        high = -1;
    }
    (void)close_range(3, (unsigned)low - 1, 0);
    if (high < 0)
        high = low;
    if (high > low + 1)
        (void)close_range((unsigned)low + 1, (unsigned)high - 1, 0);
    (void)close_range((unsigned)high + 1, ~0u, 0);
}

/* A child whose parent has threads gets their stacks for its own. ThreadSanitizer knows a thread by its stack, and takes the
 * child's for one that the parent still has, unless its stack has another size. */
static void choose_other_stacks(void)
{
#ifdef __SANITIZE_THREAD__
    pthread_attr_t attr;
    size_t bytes;

    must(pthread_getattr_default_np(&attr) == 0);
    must(pthread_attr_getstacksize(&attr, &bytes) == 0);
    must(pthread_attr_setstacksize(&attr, 2 * bytes) == 0);
    must(pthread_setattr_default_np(&attr) == 0);
    (void)pthread_attr_destroy(&attr);
#endif
}

void actor_start_keeping(struct actor *actor, int (*fn)(struct actor *self, void *arg), void *arg, int keep_fd)
{
    pid_t parent = getpid();
    int ends[2];

    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    (void)fflush(NULL);
    actor->pid = fork();
    must(actor->pid >= 0);
    if (actor->pid == 0) {
        struct actor self = {.pid = 0, .pidfd = -1, .channel = ends[1]};
        is_actor = true;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(CHECK_FAILED);
        for (int signal_number = 1; signal_number < 32; signal_number++)
            (void)signal(signal_number, SIG_DFL); /* a crash of the actor is not the test's */
        close_all_but(ends[1], keep_fd);
        choose_other_stacks();
        harness_fds = 1;
        int result = fn(&self, arg);
        (void)fflush(NULL);
        _exit(result);
    }
    (void)close(ends[1]);
    actor->channel = ends[0];
    actor->pidfd = (int)syscall(SYS_pidfd_open, actor->pid, 0);
    must(actor->pidfd >= 0);
    harness_fds += 2;
}

void actor_start(struct actor *actor, int (*fn)(struct actor *self, void *arg), void *arg)
{
    actor_start_keeping(actor, fn, arg, -1);
}

static bool readable(int fd, int64_t ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int64_t deadline = now_ns() + ns, left;

    while ((left = deadline - now_ns()) > 0) {
        int n = poll(&poll_fd, 1, (int)(left / MSEC) + 1);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
    return false;
}

bool child_ends(pid_t pid, int pidfd, int64_t ns, int *status_p)
{
    int status;

    if (!readable(pidfd, ns) || waitpid(pid, &status, 0) != pid)
        return false;
    *status_p = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return true;
}

int actor_result(struct actor *actor)
{
    int status = -1;

    must_say(child_ends(actor->pid, actor->pidfd, LONG, &status), "actor %d does not end", (int)actor->pid);
    (void)close(actor->pidfd);
    (void)close(actor->channel);
    harness_fds -= 2;
    *actor = (struct actor){.pid = -1, .pidfd = -1, .channel = -1};
    return status;
}

void actor_signal(struct actor *actor, int signal)
{
    must(actor->pid > 0 && kill(actor->pid, signal) == 0); /* -1 would be every process of the machine */
}

void actor_kill(struct actor *actor, int signal)
{
    actor_signal(actor, signal);
    (void)actor_result(actor);
}

void actor_freeze(struct actor *actor)
{
    int status;

    actor_signal(actor, SIGSTOP);
    must(waitpid(actor->pid, &status, WUNTRACED) == actor->pid && WIFSTOPPED(status));
}

void actor_thaw(struct actor *actor)
{
    actor_signal(actor, SIGCONT);
}

void actor_send(struct actor *actor, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        ssize_t n = send(actor->channel, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        must_say(n > 0, "the other end is gone: %s", strerror(errno));
        at += n;
        bytes -= (size_t)n;
    }
}

void actor_recv(struct actor *actor, void *data, size_t bytes)
{
    char *at = data;

    while (bytes > 0) {
        must_say(readable(actor->channel, LONG), "the other end says nothing");
        ssize_t n = recv(actor->channel, at, bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        must_say(n > 0, "the other end is gone");
        at += n;
        bytes -= (size_t)n;
    }
}

void actor_step(struct actor *actor)
{
    actor_send(actor, "s", 1);
}

void actor_await(struct actor *actor)
{
    char step;

    actor_recv(actor, &step, 1);
    must(step == 's');
}

bool main_thread_ended(pid_t pid)
{
    char path[64], state = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    must(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
    (void)fclose(file);
    return state == 'Z';
}
