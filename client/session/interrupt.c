/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

#include "client/rdt.h"
#include "clock.h"

#define ASK_NS (INT64_C(100) * 1000000) /* between two questions: a signal may have been delivered to another thread */
#define AT_ONCE INT64_C(1)              /* a moment that has passed */

static _Thread_local struct {
    bool (*interrupted)(void *arg); /* NULL: there is nobody to ask */
    void *arg;
    int64_t due_ns; /* 0: the call has not waited yet */
    bool yes;
} own;

void rdt_interrupt_by(bool (*interrupted)(void *arg), void *arg)
{
    own.interrupted = interrupted;
    own.arg = arg;
    own.due_ns = 0;
    own.yes = false;
}

int64_t interrupt_due_ns(void)
{
    if (!own.interrupted)
        return CLOCK_NEVER;
    if (own.yes)
        return AT_ONCE;
    if (own.due_ns == 0)
        own.due_ns = clock_now_ns() + ASK_NS;
    return own.due_ns;
}

bool interrupt_ask(void)
{
    bool (*interrupted)(void *) = own.interrupted;
    void *arg = own.arg;
    bool yes;

    if (!interrupted || own.yes)
        return own.yes;
    if (clock_now_ns() < interrupt_due_ns())
        return false;
    own.interrupted = NULL; /* it may make calls of its own, which ask somebody else, or nobody */
    yes = interrupted(arg);
    own.interrupted = interrupted;
    own.arg = arg;
    own.due_ns = clock_now_ns() + ASK_NS;
    own.yes = yes;
    return yes;
}

bool rdt_interrupted(void)
{
    return interrupt_ask();
}

void interrupt_signalled(void)
{
    own.due_ns = AT_ONCE;
}
