/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/wake.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void on_readable(uv_poll_t *poll, int failure, int happened)
{
    struct wake *wake = poll->data;
    eventfd_t ignored;

    (void)eventfd_read(wake->fd, &ignored); /* first, so that a later wake_send wakes the loop again */
    wake->on_wake(wake);
}

enum rdt_status wake_init(struct wake *wake, uv_loop_t *loop, void (*on_wake)(struct wake *), const char *whose,
                          struct rdt_error *err)
{
    int rc;

    wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake->fd < 0)
        return rdt_error_sys(err, errno, "cannot create the eventfd of %s", whose);
    wake->on_wake = on_wake;
    rc = uv_poll_init(loop, &wake->poll, wake->fd);
    if (rc != 0) {
        (void)close(wake->fd);
        return rdt_error_sys(err, -rc, "cannot create the eventfd of %s", whose);
    }
    wake->poll.data = wake;
    (void)uv_poll_start(&wake->poll, UV_READABLE, on_readable); /* cannot fail for an open handle */
    return RDT_OK;
}

void wake_send(struct wake *wake)
{
    (void)eventfd_write(wake->fd, 1);
}

static void on_poll_closed(uv_handle_t *poll)
{
    struct wake *wake = poll->data;

    (void)close(wake->fd);
    wake->on_closed(wake);
}

void wake_close(struct wake *wake, void (*on_closed)(struct wake *))
{
    wake->on_closed = on_closed;
    uv_close((uv_handle_t *)&wake->poll, on_poll_closed);
}
