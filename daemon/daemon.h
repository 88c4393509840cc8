/* SPDX-License-Identifier: Apache-2.0 */
/* The top room: starts every other room, connects them by callbacks, and stops them in order.
 *
 * It owns the loop, the sockets of clients (listener.h), a connection for each client (conn.h), and the order of the start
 * (daemon.c) and of the end (daemon_stop.c). It promises that everything a client holds ends with its connection. It has no
 * public header: no room is above it. */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "daemon/config/options.h"
#include "rdt_status.h"

/* Serves until SIGTERM or SIGINT, waits for transfers to end, and returns. An error says why the daemon could not start. A
 * reload changes the options. */
enum rdt_status daemon_run(struct options *options, struct rdt_error *err);

/* Loads the backends to check their sections of the configuration, and prints these to `dump`. If dump is NULL, it
 * checks instead what else a start would refuse: interfaces that do not exist, the key file, the address to listen on.
 * Serves no clients. Errors: INVALID, SYSTEM, NO_MEMORY. daemon_check_backends does only the first. */
enum rdt_status daemon_check(const struct options *options, FILE *dump, struct rdt_error *err);
enum rdt_status daemon_check_backends(const struct options *options, FILE *dump, struct rdt_error *err);

#endif
