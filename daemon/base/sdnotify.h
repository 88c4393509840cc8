/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager's two protocols, without libsystemd: NOTIFY_SOCKET and LISTEN_FDS. */
#ifndef DAEMON_SDNOTIFY_H
#define DAEMON_SDNOTIFY_H

#include <stdint.h>

/* Sends one datagram, such as "READY=1\nSTATUS=...". Does nothing without NOTIFY_SOCKET. */
void sdnotify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The interval at which to send WATCHDOG=1: half of WATCHDOG_USEC, if that is meant for this process; 0:
 * none. */
uint64_t sdnotify_watchdog_ns(void);

/* The number of descriptors that the manager passed, from 3 on; 0 unless LISTEN_PID is this process. They
 * become close-on-exec and the variables are unset. sdnotify_fd_name: the name from LISTEN_FDNAMES, "" if
 * unknown. */
int sdnotify_listen_fds(void);
const char *sdnotify_fd_name(int i);

#endif
