/* Fetches that went in one message: the daemon sends the fd of a region that several of their objects lie in with the first answer
 * only. What an answer mapped by an fd stays mapped until all of them have come, whatever became of its request. Under the lock.
 */
#ifndef CLIENT_BATCH_H
#define CLIENT_BATCH_H

#include "connection.h"
#include "fetched.h"

/* Handles first to first + n - 1 are about to be sent in one message. false: no memory; then nothing may be left out. */
bool batch_begin(rdt *conn, uint64_t first, size_t n);
void batch_drop(rdt *conn, uint64_t first); /* it was not sent */

/* An answer has come: `object` is what was made of it, NULL for nothing, and then the fds are still in the frame. */
void batch_on_answer(rdt *conn, const Rdt__Pb__FetchDone *done, struct frame *frame, const rdt_object *object);

void batches_fini(rdt *conn);

#endif
