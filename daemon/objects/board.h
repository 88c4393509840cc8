/* Fetches that stay with a client when it has let go of them, so that its next fetch of the same comes without a message (proto/board.h): the
 * daemon's side of the board.
 *
 * What stays keeps no object alive: an object's holds on boards are counted apart, and as soon as they are all that is left of its holds, or
 * it is freed by force, they are taken back (board_recall). So an object ends when it would end without this, and its memory goes then, but
 * for what an idle client has mapped: it is told, but unmaps when it next reads what it is told. Until then that stays charged to the
 * producer, who cannot help it (region_left.h). Therefore what is mapped stays only as far as it, and what is left already, take little of
 * memory_limit, and never where the producer's own bytes are limited. Of live objects in memory whose pages can be taken away below a mapping
 * (mapped.h) nothing is kept by it, however large they are; unless the region was abandoned, and so he is told like everybody who has it mapped.
 *
 * The page is the client's to write and to punch holes into. Nothing that is read there is believed further than this: an idle hold is one that
 * the client could have released as well. Whatever else stands there, the hold is in use until RELEASE comes. A page that cannot be had is one
 * of zeros (guard.h). Loop thread only.
 */
#ifndef DAEMON_BOARD_H
#define DAEMON_BOARD_H

#include "daemon/objects/client.h"

/* What FETCH_DONE says of it. */
struct board_grant {
    uint32_t slot; /* from 1 on; 0: it does not stay */
    uint32_t grant;
    int fd; /* of the board, while the client has not got it; borrowed; -1: it has */
};

/* The client has asked for it, and gets the object whole: is shown its memory, under `hold`, or has its bytes in the message (hold NULL: then
 * the board has a hold of its own, which ends whenever the daemon likes). What is idle there makes room. */
struct board_grant board_grant(struct client *client, struct object *object, struct hold *hold);

/* The fd went to the client. */
void board_fd_went(struct client *client);

/* Takes back whatever any client has of it: what is idle is let go of. The object may be gone afterwards. */
void board_recall(struct object *object);

/* It is released: it is on no board any more. */
void board_leave(struct hold *hold);

/* The client has let go of it, as far as anybody can see. */
bool board_is_idle(const struct hold *hold);

uint32_t board_idle_of_object(const struct object *object);
uint32_t board_idle_of_client(const struct client *client);

/* The client is gone: what it has let go of is released, the rest is not. */
void board_end(struct client *client);

#endif
