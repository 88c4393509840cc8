/* SPDX-License-Identifier: Apache-2.0 */
/* State tables. Anything with more than two states lists the allowed moves; another move is a bug and aborts at once. It is in
 * proto/ because the daemon, the plug-ins, the programs beside the daemon and the library all have such things. */
#ifndef PROTO_STATE_TABLE_H
#define PROTO_STATE_TABLE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct sm_state {
    const char *name;
    uint32_t next; /* bit mask of the allowed next states: 1u << state */
};

/* Aborts the process if the table does not allow the move. Before that it hands a sentence that names both states to `log`, or
 * writes it to standard error if `log` is NULL. NDEBUG does not disable the check. */
static inline void sm_check(const struct sm_state *table, unsigned n_states, unsigned from, unsigned to,
                            void (*log)(const void *ctx, const char *text), const void *ctx)
{
    char text[160];

    if (to < n_states && (table[from].next & (1u << to)))
        return;
    (void)snprintf(text, sizeof text, "bug: state '%s' may not become '%s'", table[from].name,
                   to < n_states ? table[to].name : "out of range");
    if (log)
        log(ctx, text);
    else
        (void)fprintf(stderr, "%s\n", text);
    abort();
}

#endif
