/* The check behind every state table. */
#include "daemon/sm.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/log.h"

void sm_init(struct sm *sm, const struct sm_state *table, unsigned n_states, unsigned first)
{
    assert(n_states <= 32 && first < n_states);
    sm->table = table;
    sm->n_states = n_states;
    sm->state = first;
}

void sm_move(struct sm *sm, unsigned to)
{
    /* Not assert(): the names of the two states are what the reader of a crash needs, and NDEBUG must not let it pass. */
    if (to >= sm->n_states || !(sm->table[sm->state].next & (1u << to))) {
        log_error("bug: state '%s' may not become '%s'", sm_name(sm), to < sm->n_states ? sm->table[to].name : "out of range");
        abort();
    }
    sm->state = to;
}

const char *sm_name(const struct sm *sm)
{
    return sm->table[sm->state].name;
}
