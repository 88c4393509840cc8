/* State tables: anything with more than two states says which moves are allowed; another move is a bug, found at once. */
#ifndef DAEMON_SM_H
#define DAEMON_SM_H

#include <stdint.h>

struct sm_state {
    const char *name;
    uint32_t next; /* bit mask of the states that may follow: 1u << state */
};

struct sm {
    const struct sm_state *table;
    unsigned n_states;
    unsigned state;
};

/* For things of which there are a million: the state alone is theirs, one byte, and the table is known. */
void sm_move_byte(const struct sm_state *table, unsigned n_states, uint8_t *state, unsigned to);

void sm_init(struct sm *sm, const struct sm_state *table, unsigned n_states, unsigned first);
void sm_move(struct sm *sm, unsigned to); /* asserts that the table allows it */
const char *sm_name(const struct sm *sm);

#endif
