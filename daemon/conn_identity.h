/* Whose a connection is, as the kernel says: its user, group and process, and the account that pays for it. What speaks against serving it
 * is kept for the answer to its HELLO.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_IDENTITY_H
#define DAEMON_CONN_IDENTITY_H

#include "daemon/conn.h"

#define CONN_FDS 2 /* its socket and pidfd: of its account as long as it is there */

/* Fills the client's ids, its account (a reference, charged), the pidfd and, maybe, the refusal. false: it cannot even be told why not, and
 * nothing is left of it. */
bool conn_identify(struct conn *conn);

#endif
