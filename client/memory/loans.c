/* SPDX-License-Identifier: Apache-2.0 */
#include "loans.h"

#include <stdlib.h>

#include "alloc.h"
#include "client/call.h"
#include "rdt.pb-c.h"

/* Returns the size of the largest region that a put of `bytes` may use, less than a quarter above `bytes`. A region that held
 * one object thus serves the next of about its size. */
static uint64_t size_class(uint64_t bytes)
{
    uint64_t step = 4096;

    while (step < bytes / 8)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static struct loan *find(const rdt *conn, uint64_t region)
{
    struct mapping *mapping = memory_find_loaned(&conn->memory, region);

    return mapping ? mapping->loan : NULL;
}

/* Takes the smallest idle loan that fits. Among equals it takes the one that was used last, whose bytes may still be in the
 * processor's caches. */
static struct loan *take_idle(rdt *conn, uint64_t bytes)
{
    struct loan *best = NULL;

    list_each (struct loan, loan, &conn->loans_idle, link)
        if (loan->bytes >= bytes && loan->bytes <= size_class(bytes) && (!best || loan->bytes < best->bytes))
            best = loan;
    if (best) {
        list_remove(&best->link);
        best->in_put = true;
    }
    return best;
}

static struct loan *read_and_take_idle(rdt *conn, uint64_t bytes)
{
    struct loan *loan;

    connection_lock(conn);
    /* A REGION_BACK may lie in the socket, unread. Reading it first finds regions that have come back, and avoids copying
     * into a region that the daemon has dropped: that copy would be in vain, and nobody would account for its pages. */
    if (!conn->waiters.polling && !(list_empty(&conn->loans_idle) && list_empty(&conn->loans_active)))
        connection_poll(conn);
    loan = take_idle(conn, bytes);
    connection_unlock(conn);
    return loan;
}

enum rdt_status loans_take(rdt *conn, uint64_t bytes, bool fresh, int64_t room_ns, int64_t deadline_ns, struct loan **loan_p,
                           struct rdt_error *err)
{
    struct loan *loan = fresh ? NULL : read_and_take_idle(conn, bytes);
    enum rdt_status status;

    if (!loan) {
        loan = calloc(1, sizeof *loan);
        if (!loan)
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the record of a loaned region");
        loan->bytes = bytes;
        status = alloc_region(conn, bytes, room_ns, deadline_ns, &loan->mapping, NULL, err);
        if (status != RDT_OK) {
            free(loan);
            return status;
        }
        connection_lock(conn);
        list_init(&loan->link);
        loan->in_put = true;
        loan->mapping->loan = loan;
        connection_unlock(conn);
    }
    *loan_p = loan;
    return RDT_OK;
}

enum rdt_status loans_claim(rdt *conn, const struct loan *loan, int64_t deadline_ns, struct rdt_error *err)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionUse again = RDT__PB__REGION_USE__INIT;

    again.region = loan->mapping->region;
    again.generation = loan->mapping->generation;
    request.again = &again;
    return call_fds(conn, RDT_MSG_ALLOC, &request.base, -1, deadline_ns, NULL, NULL, err);
}

/* ---- after the put ---- */

/* Ends the loan. With `release` the daemon is told; else it has dropped the region itself. */
static void destroy(rdt *conn, struct loan *loan, bool release)
{
    list_remove(&loan->link);
    loan->mapping->loan = NULL;
    if (release)
        alloc_release(conn, loan->mapping);
    else
        memory_unref(&conn->memory, loan->mapping);
    free(loan);
}

/* Moves a loan that no put uses to where it belongs, by what the daemon has said about it. */
static void update(rdt *conn, struct loan *loan)
{
    list_remove(&loan->link);
    if (loan->news == LOAN_GONE) {
        destroy(conn, loan, false);
    } else if (loan->news == LOAN_BACK) {
        loan->news = LOAN_NO_NEWS;
        loan->reused = true;
        list_prepend(&conn->loans_idle, &loan->link);
    } else {
        list_prepend(&conn->loans_active, &loan->link);
    }
}

void loans_end(rdt *conn, struct loan *take_loan, bool succeeded)
{
    take_loan->in_put = false;
    if (succeeded)
        update(conn, take_loan);
    else
        destroy(conn, take_loan, true);
}

void loans_on_back(rdt *conn, struct frame *frame)
{
    Rdt__Pb__RegionBack *back = rdt__pb__region_back__unpack(NULL, frame->length, frame->payload);

    if (!back)
        return; /* Without memory to read it, the regions are not used again, and the daemon drops them when it likes. */
    for (size_t i = 0; i < back->n_regions; i++) {
        struct loan *loan = find(conn, back->regions[i]);
        if (!loan)
            continue;
        loan->news = back->gone ? LOAN_GONE : LOAN_BACK;
        if (!loan->in_put)
            update(conn, loan);
    }
    rdt__pb__region_back__free_unpacked(back, NULL);
}

void loans_drop_idle(rdt *conn)
{
    list_drain (struct loan, loan, &conn->loans_idle, link)
        destroy(conn, loan, false);
}

bool loans_on_missing(rdt *conn, uint64_t region)
{
    struct loan *loan = find(conn, region);

    if (loan && !loan->in_put)
        destroy(conn, loan, false);
    return loan;
}

static void free_all(struct list *loans)
{
    list_drain (struct loan, loan, loans, link) {
        list_remove(&loan->link);
        loan->mapping->loan = NULL;
        free(loan);
    }
}

void loans_fini(rdt *conn)
{
    free_all(&conn->loans_idle);
    free_all(&conn->loans_active);
}
