/* SPDX-License-Identifier: Apache-2.0 */
/* A whole daemon in this process, behind its real sockets. Its loop runs inside the calls that wait for it, on the fuzzer's
 * own thread, so that a run is the same each time and costs no switch of threads. Only its workers and plug-ins have their
 * own threads. Every input begins and ends with a daemon that holds nothing for anyone; anything that stays is a leak and
 * aborts. */
#ifndef TESTS_FUZZ_HARNESS_DAEMON_H
#define TESTS_FUZZ_HARNESS_DAEMON_H

#include <poll.h>

#include "tests/fuzz/harness/fuzz.h"

/* Starts it, once; it ends with the process. with_link: it listens for peers too. */
void fuzz_daemon_start(bool with_link);

extern char fuzz_daemon_key[64]; /* path of the key file */
uint16_t fuzz_daemon_port(void); /* the port of its peer link */

/* poll(), and meanwhile the daemon's loop turns. Without fds it waits until something happens there. */
int fuzz_daemon_poll(struct pollfd *fds, nfds_t n, int timeout_ms);

/* Waits until nothing is left of anybody; aborts if something stays. */
void fuzz_daemon_settle(void);

int fuzz_daemon_connect(void); /* a socket that has said nothing yet; -1: there is no daemon */

#endif
