/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sm.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/base/log.h"

void sm_init(struct sm *sm, const struct sm_state *table, unsigned n_states, unsigned first)
{
    assert(n_states <= 32 && first < n_states);
    sm->table = table;
    sm->n_states = n_states;
    sm->state = first;
}

static void check(const struct sm_state *table, unsigned n_states, unsigned from, unsigned to)
{
    /* Not assert(): a crash report needs the names of the states, and NDEBUG must not disable the check. */
    if (to >= n_states || !(table[from].next & (1u << to))) {
        log_error("bug: state '%s' may not become '%s'", table[from].name, to < n_states ? table[to].name : "out of range");
        abort();
    }
}

void sm_move(struct sm *sm, unsigned to)
{
    check(sm->table, sm->n_states, sm->state, to);
    sm->state = to;
}

void sm_move_byte(const struct sm_state *table, unsigned n_states, uint8_t *state, unsigned to)
{
    check(table, n_states, *state, to);
    *state = (uint8_t)to;
}

const char *sm_name(const struct sm *sm)
{
    return sm->table[sm->state].name;
}
