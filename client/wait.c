/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for requests: rdt_wait blocks; rdt_fd and rdt_dispatch are for event loops. */
#include "rdt_many.h"
#include "request.h"
#include "session/clock.h"
#include "session/connection.h"

/* ---- rdt_wait ---- */

struct tally {
    size_t ended;
    rdt_request *failed;  /* the first in the caller's list */
    rdt_request *arrived; /* one whose bytes this thread may copy */
};

/* The first *n_before_p requests have ended well, or with `each` in any way, and are not looked at again: otherwise the time of
 * a wait for thousands would grow with the square of their number. */
static struct tally count_ended(rdt_request *const *requests, size_t count, bool each, size_t *n_before_p)
{
    struct tally tally = {.ended = *n_before_p};

    for (size_t i = *n_before_p; i < count; i++) {
        rdt_request *request = requests[i];

        if (request->state == REQUEST_ENDED) {
            tally.ended++;
            if (i == *n_before_p && (each || request->err.status == RDT_OK))
                ++*n_before_p;
            if (!each && !tally.failed && request->err.status != RDT_OK)
                tally.failed = request;
        } else if (!tally.arrived && !list_empty(&request->arrived)) {
            tally.arrived = request;
        }
    }
    return tally;
}

/* With the lock. each: a request that has failed has ended like any other. */
static enum rdt_status wait_for(rdt *conn, rdt_request *const *requests, size_t count, size_t how_many, bool each,
                                int64_t deadline_ns, struct rdt_error *err)
{
    enum rdt_status over = RDT_OK; /* TIMED_OUT, CANCELLED */
    size_t n_before = 0;

    for (;;) {
        struct tally tally = count_ended(requests, count, each, &n_before);
        uint64_t seen = conn->waiters.n_changes;

        if (tally.failed) {
            if (err)
                *err = tally.failed->err;
            return tally.failed->err.status;
        }
        if (tally.ended >= how_many)
            return RDT_OK;
        if (over == RDT_CANCELLED)
            return rdt_error_set(err, RDT_CANCELLED,
                                 "the wait was interrupted when %zu of %zu requests had ended; the others go on", tally.ended,
                                 count);
        if (over == RDT_TIMED_OUT)
            return rdt_error_set(err, RDT_TIMED_OUT,
                                 "%zu of %zu requests had ended when the time was over, %zu were waited for", tally.ended,
                                 count, how_many);
        if (tally.arrived) {
            request_copy_some(tally.arrived);
            if (deadline_ns != CLOCK_NEVER && clock_now_ns() >= deadline_ns)
                over = RDT_TIMED_OUT;
            else if (connection_is_interrupted(conn))
                over = RDT_CANCELLED;
            continue;
        }
        connection_flush(conn);
        do {
            int64_t look_ns = conn->calls.look_ns;

            over = connection_step(conn, look_ns < deadline_ns ? look_ns : deadline_ns);
            if (over == RDT_TIMED_OUT && clock_now_ns() < deadline_ns)
                over = RDT_OK;
        } while (over == RDT_OK && conn->waiters.n_changes == seen);
    }
}

static enum rdt_status check(const rdt *conn, rdt_request *const *requests, size_t count, size_t *how_many,
                             struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status != RDT_OK)
        return status;
    if (count > 0 && !requests)
        return rdt_error_set(err, RDT_INVALID, "requests is NULL, and count is %zu", count);
    for (size_t i = 0; i < count; i++) {
        if (!requests[i] || requests[i]->conn != conn)
            return rdt_error_set(err, RDT_INVALID, "request %zu is %s", i, requests[i] ? "of another connection" : "NULL");
    }
    if (*how_many == RDT_WAIT_ALL)
        *how_many = count;
    if (*how_many > count)
        return rdt_error_set(err, RDT_INVALID, "how_many is %zu, but there are only %zu requests", *how_many, count);
    return RDT_OK;
}

enum rdt_status rdt_wait(rdt *conn, rdt_request *const *requests, size_t count, size_t how_many, int64_t timeout_ns,
                         bool *done_p, size_t *n_done_p, struct rdt_error *err)
{
    enum rdt_status status = check(conn, requests, count, &how_many, err);

    if (status != RDT_OK)
        return status;
    connection_lock(conn);
    status = wait_for(conn, requests, count, how_many, false, clock_deadline_ns(timeout_ns), err);
    connection_flush(conn);
    if (n_done_p)
        *n_done_p = count_ended(requests, count, false, &(size_t){0}).ended;
    for (size_t i = 0; done_p && i < count; i++)
        done_p[i] = requests[i]->state == REQUEST_ENDED;
    connection_unlock(conn);
    return status;
}

enum rdt_status rdt_wait_each(rdt *conn, rdt_request *const *requests, size_t count, size_t how_many, int64_t timeout_ns,
                              enum rdt_status *statuses_p, struct rdt_error *err)
{
    enum rdt_status status = check(conn, requests, count, &how_many, err);

    if (status != RDT_OK)
        return request_statuses(statuses_p, count, status);
    connection_lock(conn);
    status = wait_for(conn, requests, count, how_many, true, clock_deadline_ns(timeout_ns), err);
    connection_flush(conn);
    for (size_t i = 0; statuses_p && i < count; i++)
        statuses_p[i] = requests[i]->state == REQUEST_ENDED ? requests[i]->err.status : RDT_AGAIN;
    connection_unlock(conn);
    return status;
}

/* ---- event loops ---- */

int rdt_fd(const rdt *conn)
{
    rdt *mutable = (rdt *)conn; /* the change is not visible to the caller */

    if (connection_check(conn, NULL) != RDT_OK)
        return -1;
    connection_lock(mutable);
    mutable->loop.used = true; /* from now on connection_unlock keeps the fd up to date */
    connection_unlock(mutable);
    return conn->loop.epoll_fd;
}

enum rdt_status rdt_dispatch(rdt *conn, size_t *n_ended_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status != RDT_OK)
        return status;
    connection_lock(conn);
    connection_poll(conn);
    if (!list_empty(&conn->arrived)) /* copies one part; rdt_fd stays readable as long as there is more */
        request_copy_some(container_of(conn->arrived.next, rdt_request, arrived));
    connection_flush(conn);
    if (n_ended_p)
        *n_ended_p = conn->loop.unseen;
    conn->loop.unseen = 0;
    if (connection_has_ended(conn)) {
        conn->told_lost = true;
        status = connection_lost_error(conn, err);
    }
    connection_unlock(conn);
    return status;
}
