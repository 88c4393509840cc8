/* SPDX-License-Identifier: Apache-2.0 */
/* The state tables of plug-ins: a move that the table does not have is logged through the host table, and aborts the
 * process. */
#ifndef BACKENDS_STATES_H
#define BACKENDS_STATES_H

#include "proto/state_table.h"
#include "rdt_backend.h"

static inline void states_log(const void *ctx, const char *text)
{
    const struct rdt_host *host = ctx;

    host->log(host->ctx, RDT_LOG_ERROR, "%s", text);
}

/* The caller assigns the state. */
static inline void states_check(const struct rdt_host *host, const struct sm_state *table, unsigned n_states, unsigned from,
                                unsigned to)
{
    sm_check(table, n_states, from, to, states_log, host);
}

#endif
