/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that librdt copies tensors into and lends to objects (Put.loaned). When the object has ended and nobody reads
 * the region any more, the daemon sends REGION_BACK, and the next put of about as many bytes fills the region again:
 * without ALLOC, and without new pages. The daemon decides how much stays idle and for how long; a region that it drops is
 * unmapped here.
 *
 *     loans_take ──► in a put ──PUT answered──► loans_active ──REGION_BACK──► loans_idle ──► loans_take
 *                       └──── PUT failed: released            └─ REGION_BACK, gone: unmapped
 *
 * The mapping of a loan serves only the loan: rdt_put does not find it by address, nor a fetch by its region. Everything is
 * under the connection's lock unless a comment says otherwise. */
#ifndef CLIENT_LOANS_H
#define CLIENT_LOANS_H

#include "client/session/connection.h"

enum loan_news { /* what the daemon has said about a loan since it was taken */
                 LOAN_NO_NEWS,
                 LOAN_BACK, /* the object has ended */
                 LOAN_GONE, /* the daemon has dropped the region */
};

struct loan {
    struct mapping *mapping;
    uint64_t bytes; /* the size that a put may use */
    bool reused;    /* it was lent before; the daemon may have dropped it since, and then answers PUT with NOT_FOUND */
    bool in_put;    /* a put uses it, and looks at `news` when it ends */
    enum loan_news news;
    struct list link;
};

/* Finds an idle loan of about `bytes`, or allocates a region; with `fresh` it always allocates one. The loan is the
 * caller's until loans_end. Takes the lock. Otherwise as alloc_region. */
enum rdt_status loans_take(rdt *conn, uint64_t bytes, bool fresh, int64_t room_ns, int64_t deadline_ns, struct loan **loan_p,
                           struct rdt_error *err);

/* Makes sure that the daemon does not drop the loan's region, whose pages it would take away, before the put: for a caller that
 * fills the region over a long time. Takes the lock. Errors: NOT_FOUND (it has dropped it), LIMIT, those of call. */
enum rdt_status loans_claim(rdt *conn, const struct loan *loan, int64_t deadline_ns, struct rdt_error *err);

/* Ends the put. If it succeeded, the region is lent to the object; else it is released at the daemon. */
void loans_end(rdt *conn, struct loan *take_loan, bool succeeded);

void loans_on_back(rdt *conn, struct frame *frame); /* handles REGION_BACK */

/* The daemon that knew the idle loans has ended: unmaps them. */
void loans_drop_idle(rdt *conn);

/* The next daemon does not have this region. False: it is no loan. An active loan is then gone; a put in flight finds out by
 * itself. */
bool loans_on_missing(rdt *conn, uint64_t region);

void loans_fini(rdt *conn); /* frees the loans without a message; memory_fini unmaps their mappings */

#endif
