/* SPDX-License-Identifier: Apache-2.0 */
/* The limits client_max_X and owner_max_X as this machine allows them. */
#ifndef DAEMON_LIMITS_H
#define DAEMON_LIMITS_H

#include "daemon/base/account.h"
#include "daemon/config/options.h"

/* Raises the process's limit of open files as far as the kernel allows, and returns it. */
uint64_t limits_raise_open_files(void);

/* Fills the limits from the options. For objects and fds an option of 0 is derived: a client may have seven
 * eighths of the daemon's total, so that one client alone cannot exhaust it, and an owner all of it. For other
 * limits 0 means none. The total of fds is open_files less those that connections, peers and backends need. */
#define LIMITS_GROUPS 1024u /* that one node knows, of all users together */

void limits_derive(const struct options *options, uint64_t open_files, struct account_limits *limits_p);

#endif
