/* SPDX-License-Identifier: Apache-2.0 */
/* A keeper for the daemons of a test, and functions that speak to it as a daemon does. */
#ifndef TESTS_SUPPORT_KEEPER_H
#define TESTS_SUPPORT_KEEPER_H

#include <stdbool.h>

#include "daemon/persist/keeper_packet.h"
#include "tests/support/program.h"

struct test_keeper {
    struct program program;
    char socket[160];
};

void keeper_start(struct test_keeper *keeper); /* waits until it listens; again after keeper_stop: at the same path */
void keeper_stop(struct test_keeper *keeper, int signal);

/* A connection of this process. */
int keeper_dial(const struct test_keeper *keeper);
void keeper_send(int fd, enum keeper_type type, const uint64_t *ids, const int *fds, unsigned n);
/* Waits for a packet; returns its number of descriptors. false: the keeper has closed the connection. */
bool keeper_recv(int fd, struct keeper_message *message_p, int *fds_p, unsigned *n_p);
/* Says HELLO; the type of the answer. */
enum keeper_type keeper_greet(int fd, struct keeper_message *reply_p);
/* Greets, fetches everything and closes; what it holds under `id`, -1: nothing. *n_p, may be NULL: how many it holds. */
int keeper_look(const struct test_keeper *keeper, uint64_t id, unsigned *n_p);

#endif
