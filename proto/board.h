/* The board: one page that a session of the daemon and its client both have mapped, with one word for each fetch that may stay.
 *
 * A fetch stays when its reader has let go of it and neither told the daemon: what it brought is still there, and serves the next fetch of the
 * same without a message. Its word says who may do what. Both sides change it by atomic exchange only, so that the daemon takes the fetch back
 * at any moment without asking.
 *
 *                        the client lets go
 *   0 ----> IN_USE <---------------------------> IDLE
 *   ^ grant   |          it fetches again          |
 *   |         |                                    |   the daemon takes it back: an idle one is over, and the client finds that out
 *   +---------+------------------------------------+   when it looks; of one in use the client gives back the hold, by RELEASE, as of any other
 *
 * A word belongs to one grant: the rest of it is the grant's number. 0, or a word of another grant: taken back.
 */
#ifndef PROTO_BOARD_H
#define PROTO_BOARD_H

#include <stdint.h>

#define BOARD_BYTES 4096u
#define BOARD_SLOTS 16u            /* fetches of one session that stay, in use or idle */
#define BOARD_MAX_BYTES (4u << 20) /* of all of them together */
#define BOARD_ONE_BYTES (1u << 20) /* of one */

enum board_state { BOARD_IN_USE = 1, BOARD_IDLE = 2 };

/* grant: not 0 modulo 2^30. */
static inline uint32_t board_word(uint32_t grant, enum board_state state)
{
    return grant << 2 | (uint32_t)state;
}

#endif
