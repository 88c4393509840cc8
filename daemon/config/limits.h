/* What the options client_max_X and owner_max_X mean on this machine. */
#ifndef DAEMON_LIMITS_H
#define DAEMON_LIMITS_H

#include "daemon/base/account.h"
#include "daemon/config/options.h"

/* Raises the limit of open files as far as it goes; returns it. */
uint64_t limits_raise_open_files(void);

/* An option of 0 is derived for objects and fds: a client may have seven eighths of the daemon's, so that no runaway takes the last, and
 * an owner all of them. Elsewhere it is no limit: bytes then end at memory_limit. The node's fds are the open files less what
 * connections, peers and backends need. */
void limits_derive(const struct options *options, uint64_t open_files, struct account_limits *limits_p);

#endif
