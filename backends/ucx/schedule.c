/* SPDX-License-Identifier: Apache-2.0 */
/* The data thread's services to all files: wakes it, yields its processor, and sets the worker's handler for a kind of
 * message.
 */
#include <sched.h>

#include "backends/ucx/ucx.h"

#define YIELD_AFTER_NS 50000 /* not more often, because many small messages between two yields are faster */

void thread_yield(struct engine *engine)
{
    if (monotonic_ns() - engine->yielded_ns < YIELD_AFTER_NS)
        return;
    (void)sched_yield();
    engine->yielded_ns = monotonic_ns();
}

void thread_wake(struct engine *engine)
{
    if (!engine->asleep)
        return;
    engine->asleep = false; /* one signal is enough */
    (void)ucp_worker_signal(engine->worker);
}

enum rdt_status thread_handle(struct engine *engine, unsigned id, ucp_am_recv_callback_t callback, unsigned flags,
                              struct rdt_error *err)
{
    const ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG | flags,
        .cb = callback,
        .arg = engine,
    };
    ucs_status_t ucs = ucp_worker_set_am_recv_handler(engine->worker, &param);

    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_UNSUPPORTED, "UCX does not accept a handler of active messages: %s",
                             ucs_status_string(ucs));
    return RDT_OK;
}
