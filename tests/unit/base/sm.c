/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/sm: a move that the table allows happens, any other ends the process. */
#include <criterion/criterion.h>
#include <signal.h>

#include "daemon/base/log.h"
#include "daemon/base/sm.h"

enum { IDLE, BUSY, GONE };

static const struct sm_state table[] = {
    [IDLE] = {"idle", 1u << BUSY | 1u << GONE},
    [BUSY] = {"busy", 1u << IDLE},
    [GONE] = {"gone", 0},
};

Test(sm, allowed_moves_happen)
{
    struct sm sm;
    sm_init(&sm, table, 3, IDLE);
    cr_assert_str_eq(sm_name(&sm), "idle");
    sm_move(&sm, BUSY);
    cr_assert_str_eq(sm_name(&sm), "busy");
    sm_move(&sm, IDLE);
    sm_move(&sm, GONE);
    cr_assert_eq(sm.state, GONE);
}

Test(sm, forbidden_move_aborts, .signal = SIGABRT)
{
    struct sm sm;
    sm_init(&sm, table, 3, BUSY);
    sm_move(&sm, GONE);
}

Test(sm, unknown_state_aborts, .signal = SIGABRT)
{
    struct sm sm;
    sm_init(&sm, table, 3, IDLE);
    sm_move(&sm, 3);
}

Test(sm, staying_needs_a_row_too, .signal = SIGABRT)
{
    struct sm sm;
    sm_init(&sm, table, 3, IDLE);
    sm_move(&sm, IDLE);
}
