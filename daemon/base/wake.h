/* SPDX-License-Identifier: Apache-2.0 */
/* Wakes the loop from any thread, with an eventfd that the loop polls. A uv_async_t is not used: when the
 * loop runs on the core of a thread that has not returned from uv_async_send yet, it spins until that
 * thread has. (That was a sixth of the loop's time with chunks of 1 MiB and daemon and transport on one
 * core, and a fifth with copies of 1 MiB.) */
#ifndef DAEMON_WAKE_H
#define DAEMON_WAKE_H

#include <uv.h>

#include "rdt_status.h"

struct wake {
    uv_poll_t poll;
    int fd;
    void (*on_wake)(struct wake *);
    void (*on_closed)(struct wake *);
};

/* `whose` names the user in an error. RDT_SYSTEM: nothing was initialised. */
enum rdt_status wake_init(struct wake *wake, uv_loop_t *loop, void (*on_wake)(struct wake *), const char *whose,
                          struct rdt_error *err);

/* Any thread: on_wake will be called on the loop, once for all calls before it. */
void wake_send(struct wake *wake);

/* Loop thread, when no thread calls wake_send any more. on_closed is called from the loop and may free the
 * struct. */
void wake_close(struct wake *wake, void (*on_closed)(struct wake *));

#endif
