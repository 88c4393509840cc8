/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches that were sent in one message. The daemon sends the fd of a region that several of their objects lie in with the
 * first answer only, so a mapping that came with an answer stays until all answers have come, whatever became of the
 * requests. Under the connection's lock. */
#ifndef CLIENT_BATCH_H
#define CLIENT_BATCH_H

#include "client/fetched.h"
#include "client/session/connection.h"

/* Begins a batch: the fetches with handles first to first + n - 1 are about to be sent in one message. False: there is no
 * memory, so the daemon must send every fd with every answer. */
bool batch_begin(rdt *conn, uint64_t first, size_t n);
void batch_drop(rdt *conn, uint64_t first); /* the message was not sent */

/* Handles an answer. `object` is the fetched object; NULL: it was not created, and nobody has taken the fds. again: the fetch
 * was sent again, so another answer to it comes. */
void batch_on_answer(rdt *conn, const Rdt__Pb__FetchDone *done, const struct answer_fds *fds, const rdt_object *object,
                     bool again);

void batches_fini(rdt *conn);

#endif
