/* What was fetched and let go of, and is still here for the next fetch of the same, until the daemon takes it back: the library's side of
 * proto/board.h. Under the lock.
 *
 * The daemon is asked for that only for a ref that was fetched a moment ago already, as a whole and without wishes. An object that stays is
 * found again by ref and mode, as it was when it came: what its reader wrote is undone before.
 */
#ifndef CLIENT_BOARD_H
#define CLIENT_BOARD_H

#include "connection.h"
#include "fetched.h"

struct staying; /* one fetch that may stay, or does */

/* The object of an earlier fetch of the same that has stayed; from now on it is the caller's as any other. NULL: there is none. */
rdt_object *board_take(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode);

/* The fetch goes to the daemon. To be asked for by may_stay, and the caller's; NULL: not to be asked for. */
struct staying *board_ask(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode);
void board_ask_drop(struct staying *take_asked); /* NULL is fine */

/* An answer has come, with the board itself or without. */
void board_open(rdt *conn, const Rdt__Pb__FetchDone *done, struct frame *frame);

/* ... and this is what was made of it; asked may be NULL. */
void board_on_answer(rdt_object *object, struct staying *take_asked, const Rdt__Pb__FetchDone *done);

/* Its reader has let go of it. True: it stays, and is the board's. */
bool board_put(rdt_object *object);

/* The daemon is about to be told something of the object, without an answer, that may end it: the next fetch of it shall come after that. */
void board_end_by_id(rdt *conn, const struct rdt_ref *ref);

/* The object ends: it is on no board. */
void board_forget(rdt_object *object);

/* Ends what the daemon has taken back of what nobody has. */
void board_sweep(rdt *conn);

void board_fini(rdt *conn); /* after all objects */

#endif
