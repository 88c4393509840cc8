/* Wakes the loop from any thread: an eventfd of our own that the loop polls. With a uv_async_t the loop, woken on the core of a thread
 * that has not returned from the wake-up yet, spins until it does. (A sixth of the loop's time with chunks of 1 MiB and daemon and
 * transport on one core; a fifth with copies of 1 MiB.) */
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

/* `whose` is for the error. RDT_SYSTEM: there is nothing to close. */
enum rdt_status wake_init(struct wake *wake, uv_loop_t *loop, void (*on_wake)(struct wake *), const char *whose,
                          struct rdt_error *err);

/* Any thread: on_wake is called on the loop, once for however many came before it. */
void wake_send(struct wake *wake);

/* Loop thread, when nobody sends any more. on_closed comes from the loop and may free the struct. */
void wake_close(struct wake *wake, void (*on_closed)(struct wake *));

#endif
