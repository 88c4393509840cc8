/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/netns.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"

void net_enter(int ns)
{
    if (setns(ns, CLONE_NEWNET) != 0)
        _exit(CHECK_FAILED);
}

int net_run(int ns, const char *fmt, ...)
{
    char command[512];
    va_list args;
    int status;

    va_start(args, fmt);
    (void)vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        net_enter(ns);
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    must(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void run(int ns, const char *command)
{
    int status = net_run(ns, "%s", command);

    must_say(status == 0, "`%s` ended with %d", command, status);
}

/* The caller's own namespace is the old one afterwards. */
static int make_ns(int home)
{
    if (unshare(CLONE_NEWNET) != 0)
        return -1;
    int ns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    must(setns(home, CLONE_NEWNET) == 0);
    return ns;
}

void net_create(struct test_net *net, unsigned n)
{
    int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    char command[512];

    *net = (struct test_net){.n = n};
    must(n <= NET_MAX && home >= 0);
    need_root();
    if (system("command -v ip >/dev/null 2>&1") != 0)
        cr_skip_test("no `ip` here (iproute2)");
    net->hub = make_ns(home);
    if (net->hub < 0)
        cr_skip_test("the kernel gives no network namespace: %m");
    if (net_run(net->hub, "ip link add br0 type bridge 2>/dev/null") != 0)
        cr_skip_test("the kernel has no bridges");
    run(net->hub, "ip link set lo up && ip link set br0 up");
    for (unsigned i = 0; i < n; i++) {
        net->ns[i] = make_ns(home);
        must(net->ns[i] >= 0);
        (void)snprintf(net->address[i], sizeof net->address[i], "10.77.0.%u", i + 1);
        (void)snprintf(command, sizeof command,
                       "ip link add p%u type veth peer name eth0 netns /proc/%d/fd/%d && ip link set p%u master br0 up", i,
                       (int)getpid(), net->ns[i], i);
        run(net->hub, command);
        (void)snprintf(command, sizeof command, "ip link set lo up && ip address add %s/24 dev eth0 && ip link set eth0 up",
                       net->address[i]);
        run(net->ns[i], command);
    }
    (void)close(home);
    harness_fds += (int)n + 1;
}

void net_destroy(struct test_net *net)
{
    for (unsigned i = 0; i < net->n; i++)
        (void)close(net->ns[i]);
    (void)close(net->hub);
    harness_fds -= (int)net->n + 1;
    net->n = 0;
}

static void port(struct test_net *net, unsigned i, const char *what)
{
    char command[128];

    (void)snprintf(command, sizeof command, "ip link set dev p%u %s", i, what);
    run(net->hub, command);
}

void net_cut(struct test_net *net, unsigned i)
{
    port(net, i, "nomaster");
}

void net_restore(struct test_net *net, unsigned i)
{
    port(net, i, "master br0");
}

void net_unplug(struct test_net *net, unsigned i)
{
    port(net, i, "down");
}

void net_plug(struct test_net *net, unsigned i)
{
    port(net, i, "up");
}
