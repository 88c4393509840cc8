/* The service manager's two protocols, without libsystemd: NOTIFY_SOCKET and LISTEN_FDS. */
#ifndef DAEMON_SDNOTIFY_H
#define DAEMON_SDNOTIFY_H

#include <stdint.h>

/* Sends one datagram ("READY=1\nSTATUS=..."); does nothing without NOTIFY_SOCKET. */
void sdnotify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The interval in which WATCHDOG=1 is wanted (half of WATCHDOG_USEC, if it is meant for us); 0: none. */
uint64_t sdnotify_watchdog_ns(void);

/* How many fds the manager passed, from fd 3 on (0 unless LISTEN_PID is us); they are made close-on-exec and the variables are
 * unset. name of fd i: LISTEN_FDNAMES, "" if unknown. */
int sdnotify_listen_fds(void);
const char *sdnotify_fd_name(int i);

#endif
