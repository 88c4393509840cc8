/* SPDX-License-Identifier: Apache-2.0 */
/* The limits client_max_X and owner_max_X as this machine allows them. */
#ifndef DAEMON_LIMITS_H
#define DAEMON_LIMITS_H

#include "daemon/base/account.h"
#include "daemon/config/options.h"

/* Raises the process's limit of open files as far as the kernel allows, and returns it. */
uint64_t limits_raise_open_files(void);

/* The most bytes that a file of this process may have, shared memory included; UINT64_MAX: there is no limit. */
uint64_t limits_file_bytes(void);

#define LIMITS_MORE_CONNECTIONS 64u /* than max_clients: those that have not said hello, or are being closed */
#define LIMITS_GROUPS 1024u         /* that one node knows, of all users together */

/* Fills the limits from the options. For objects, fds, mappings and mapped bytes an option of 0 is derived: a client may
 * have seven eighths of the daemon's total, so that one client alone cannot exhaust it, and an owner all of it. For other
 * limits 0 means none. The total of fds is open_files less those that connections, peers and backends need. */
void limits_derive(const struct options *options, uint64_t open_files, struct account_limits *limits_p);

#endif
