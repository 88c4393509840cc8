/* The whole: makes every room, connects them, and takes them down in order. */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "daemon/config/options.h"
#include "rdt_status.h"

/* Serves until SIGTERM or SIGINT, drains, returns. The status says why it could not start. */
enum rdt_status daemon_run(const struct options *options, struct rdt_error *err);

/* Loads the backends to judge their sections of the configuration, prints those to `dump` if it is not NULL, and goes no further. */
enum rdt_status daemon_check(const struct options *options, FILE *dump, struct rdt_error *err);

#endif
