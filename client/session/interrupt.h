/* SPDX-License-Identifier: Apache-2.0 */
/* What rdt_interrupt_by has set for this thread: the question whether a call that waits should end.
 *
 * The question is asked without the connection's lock, because it may run any code, calls of this library among it. Whoever
 * asks therefore looks again at what it waits for. Once the answer was yes, it stays yes until the next rdt_interrupt_by, so
 * that what a call does to clean up does not wait either. */
#ifndef CLIENT_INTERRUPT_H
#define CLIENT_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

/* When to ask next, on the clock of clock_now_ns; CLOCK_NEVER: there is nobody to ask. */
int64_t interrupt_due_ns(void);

/* Asks, if it is time to, or returns the answer that was yes. Call it without locks. */
bool interrupt_ask(void);

/* A signal has interrupted a system call of this thread: it is time to ask. */
void interrupt_signalled(void);

#endif
