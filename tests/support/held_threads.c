/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a daemon that stand still where they wait for work, while its loop goes on: node_hold_threads.
 *
 * glibc's conditions have two groups of waiters, and whoever signals waits until all of the earlier one have left before it
 * wakes the later one. So where several held threads wait for one condition, its second signal may stop the loop, too: hold
 * the only thread of a pool, or give it no more than one work. */
#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/rdtd.h"

static bool is_named(const struct test_node *node, pid_t tid, const char *name)
{
    char path[64], *found;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/comm", (int)node->pid, (int)tid);
    found = read_file(path, NULL);
    bool is = strncmp(found, name, strlen(name)) == 0;
    free(found);
    return is;
}

/* Whether the thread waits for a condition, and not for a mutex, whose unlock would wake this thread alone. */
static bool futex_waits(const char *call)
{
    unsigned long op = 0;

    return sscanf(call, "%*d %*x %lx", &op) == 1 && (op & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
}

/* Whether a stopped thread waits for work, and so has no lock that another needs. */
static bool waits(const struct test_node *node, pid_t tid)
{
    static const long waiting[] = {
        SYS_epoll_pwait, SYS_ppoll,
#ifdef SYS_epoll_wait
        SYS_epoll_wait,  SYS_poll,
#endif
#ifdef __SANITIZE_THREAD__
        SYS_nanosleep,   SYS_clock_nanosleep, /* ThreadSanitizer's own thread */
#endif
    };
    char path[64], *found;
    bool is = false;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)node->pid, (int)tid);
    found = read_file(path, NULL);
    if (strtol(found, NULL, 10) == SYS_futex)
        is = futex_waits(found);
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++)
        is = is || strtol(found, NULL, 10) == waiting[i];
    free(found);
    return is;
}

/* Stops the thread, which the caller has seized. false: it did not wait, and goes on. */
static bool stops(const struct test_node *node, pid_t tid)
{
    must(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0);
    must(waitpid(tid, &(int){0}, __WALL) == tid);
    if (waits(node, tid))
        return true;
    must(ptrace(PTRACE_CONT, tid, NULL, NULL) == 0);
    return false;
}

bool node_hold_workers(struct test_node *node)
{
    return node_hold_threads(node, "");
}

bool node_hold_threads(struct test_node *node, const char *name)
{
    char path[64];
    struct dirent *entry;

    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)node->pid);
    DIR *dir = opendir(path);
    must(dir);
    node->n_held = 0;
    while ((entry = readdir(dir))) {
        pid_t tid = atoi(entry->d_name);

        /* the loop's thread has the number of the process */
        if (tid <= 0 || tid == node->pid || (name[0] && !is_named(node, tid, name)))
            continue;
        if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
            if (node->n_held == 0 && (errno == EPERM || errno == ENOSYS)) {
                (void)closedir(dir);
                return false;
            }
            continue; /* it has ended */
        }
        must(node->n_held < sizeof node->held / sizeof *node->held);
        wait_until(LONG, stops(node, tid));
        node->held[node->n_held++] = tid;
    }
    (void)closedir(dir);
    must(node->n_held > 0);
    return true;
}

void node_release_workers(struct test_node *node)
{
    while (node->n_held > 0)
        must(ptrace(PTRACE_DETACH, node->held[--node->n_held], NULL, NULL) == 0);
}
