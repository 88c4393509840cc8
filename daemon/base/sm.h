/* SPDX-License-Identifier: Apache-2.0 */
/* The states of the daemon's things, which move as their tables allow; another move is a bug and aborts at once. */
#ifndef DAEMON_SM_H
#define DAEMON_SM_H

#include <stdint.h>

#include "proto/state_table.h"

struct sm {
    const struct sm_state *table;
    unsigned n_states;
    unsigned state;
};

/* For things of which there may be a million: the state is a single byte, and the caller passes the table. */
void sm_move_byte(const struct sm_state *table, unsigned n_states, uint8_t *state, unsigned to);

void sm_init(struct sm *sm, const struct sm_state *table, unsigned n_states, unsigned first);
void sm_move(struct sm *sm, unsigned to); /* aborts if the table does not allow the move */
const char *sm_name(const struct sm *sm);

#endif
