/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/sdnotify: both protocols of the service manager, tested with the test's own sockets and descriptors. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/sdnotify.h"

static void setup(void)
{
    static const char *const names[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
                                        "LISTEN_PID",    "LISTEN_FDS",    "LISTEN_FDNAMES"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

TestSuite(sdnotify, .init = setup, .timeout = 20);

static void set_number(const char *name, long number)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", number);
    setenv(name, text, 1);
}

/* name: with '@' for an abstract socket. */
static int bind_manager(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(name);
    memcpy(address.sun_path, name, bytes);
    if (name[0] == '@')
        address.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes)), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static void expect(int fd, const char *text)
{
    char got[256];
    ssize_t n = recv(fd, got, sizeof got - 1, 0);
    cr_assert_geq(n, 0);
    got[n] = 0;
    cr_assert_str_eq(got, text);
}

Test(sdnotify, no_manager_nothing_sent)
{
    sdnotify("READY=1");
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    sdnotify("READY=1");
    setenv("NOTIFY_SOCKET", "nonsense", 1);
    sdnotify("READY=1");
}

Test(sdnotify, abstract_socket_gets_text)
{
    char name[64];
    snprintf(name, sizeof name, "@rdt-test-%ld", (long)getpid());
    int fd = bind_manager(name);
    sdnotify("READY=1\nSTATUS=%d clients", 3);
    expect(fd, "READY=1\nSTATUS=3 clients");
    close(fd);
}

Test(sdnotify, path_socket_gets_text)
{
    char dir[] = "/tmp/rdt.XXXXXX", name[64];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(name, sizeof name, "%s/notify", dir);
    int fd = bind_manager(name);
    sdnotify("STOPPING=1");
    expect(fd, "STOPPING=1");
    close(fd);
    unlink(name);
    rmdir(dir);
}

Test(sdnotify, watchdog_is_half_and_ours)
{
    cr_assert_eq(sdnotify_watchdog_ns(), 0);
    setenv("WATCHDOG_USEC", "3000000", 1);
    cr_assert_eq(sdnotify_watchdog_ns(), 1500000000);
    set_number("WATCHDOG_PID", getpid());
    cr_assert_eq(sdnotify_watchdog_ns(), 1500000000);
    set_number("WATCHDOG_PID", getpid() + 1L);
    cr_assert_eq(sdnotify_watchdog_ns(), 0);
    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", "-1", 1);
    cr_assert_eq(sdnotify_watchdog_ns(), 0);
    setenv("WATCHDOG_USEC", "99999999999999999999", 1);
    cr_assert_eq(sdnotify_watchdog_ns(), 0);
}

/* Makes fds 3 to 3 + n - 1, wherever Criterion has its own. */
static void pass_fds(int n)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(dup2(STDERR_FILENO, 3 + i), 3 + i);
    set_number("LISTEN_FDS", n);
    set_number("LISTEN_PID", getpid());
}

Test(sdnotify, fds_of_another_process_are_ignored)
{
    set_number("LISTEN_FDS", 1);
    set_number("LISTEN_PID", getpid() + 1L);
    cr_assert_eq(sdnotify_listen_fds(), 0);
    cr_assert_null(getenv("LISTEN_FDS"));
}

static void check_two_fds(void)
{
    pass_fds(2);
    setenv("LISTEN_FDNAMES", "rdtd.socket:", 1);
    int n = sdnotify_listen_fds();
    int flags = fcntl(4, F_GETFD);
    _exit(n == 2 && (flags & FD_CLOEXEC) && strcmp(sdnotify_fd_name(0), "rdtd.socket") == 0 &&
                  strcmp(sdnotify_fd_name(1), "") == 0 && strcmp(sdnotify_fd_name(2), "") == 0 &&
                  strcmp(sdnotify_fd_name(-1), "") == 0 && !getenv("LISTEN_PID") && !getenv("LISTEN_FDNAMES")
              ? 0
              : 1);
}

Test(sdnotify, fds_get_names_and_close_on_exec, .exit_code = 0)
{
    check_two_fds();
}

Test(sdnotify, count_beyond_open_fds_is_cut, .exit_code = 0)
{
    pass_fds(1);
    close(4);
    set_number("LISTEN_FDS", 1000);
    _exit(sdnotify_listen_fds() == 1 && strcmp(sdnotify_fd_name(0), "") == 0 ? 0 : 1);
}
