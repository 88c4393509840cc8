/* SPDX-License-Identifier: Apache-2.0 */
/* The session at the next daemon: HELLO with the token, then RESUME, which says what this process still has, then everything
 * that has no answer. connection.h draws the states. Under the connection's lock. */
#ifndef CLIENT_RESUME_H
#define CLIENT_RESUME_H

#include "rdt.pb-c.h"
#include "session/connection.h"

/* Fills what every HELLO of this connection says. */
void resume_fill_hello(const rdt *conn, Rdt__Pb__Hello *request_p);

/* Takes over the node, and whether the session outlasts this daemon, from the answer to HELLO. Errors: PROTOCOL. */
enum rdt_status resume_read_hello(rdt *conn, const Rdt__Pb__HelloReply *reply, struct rdt_error *err);

void resume_on_away(rdt *conn);    /* struct rdt's on.away */
void resume_on_dialled(rdt *conn); /* struct rdt's on.dialled */

#endif
