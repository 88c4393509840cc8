/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sm.h"

#include <assert.h>

#include "daemon/base/log.h"

void sm_init(struct sm *sm, const struct sm_state *table, unsigned n_states, unsigned first)
{
    assert(n_states <= 32 && first < n_states);
    sm->table = table;
    sm->n_states = n_states;
    sm->state = first;
}

static void on_bug(const void *ctx, const char *text)
{
    (void)ctx;
    log_error("%s", text);
}

void sm_move(struct sm *sm, unsigned to)
{
    sm_check(sm->table, sm->n_states, sm->state, to, on_bug, NULL);
    sm->state = to;
}

void sm_move_byte(const struct sm_state *table, unsigned n_states, uint8_t *state, unsigned to)
{
    sm_check(table, n_states, *state, to, on_bug, NULL);
    *state = (uint8_t)to;
}

const char *sm_name(const struct sm *sm)
{
    return sm->table[sm->state].name;
}
