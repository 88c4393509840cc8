/* A whole daemon in this process, on a thread of its own, behind its real sockets. Every input begins and ends with a daemon that holds nothing for anyone: what stays is a leak, and aborts.
 */
#ifndef TESTS_FUZZ_HARNESS_DAEMON_H
#define TESTS_FUZZ_HARNESS_DAEMON_H

#include "tests/fuzz/harness/fuzz.h"

/* Starts it, once; it ends with the process. with_link: it listens for peers too. */
void fuzz_daemon_start(bool with_link);

extern char fuzz_daemon_key[64]; /* path of the key file */
uint16_t fuzz_daemon_port(void); /* of its peer link */

/* Waits until nothing is left of anybody; aborts if something stays. */
void fuzz_daemon_settle(void);

int fuzz_daemon_connect(void); /* a socket that has said nothing yet; -1: there is no daemon */

#endif
