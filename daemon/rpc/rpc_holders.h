/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds an object, as far as the caller may see: the rows of STAT, and the sentence of a WAIT_FREED that has timed out.
 *
 * The object's owner and administrators see every holder. Any other caller sees the clients of its own uid and tenant, and
 * the number of the other holds. There are at most HOLDERS_MAX rows, from the first HOLDERS_EXAMINED holds of each kind, so
 * that an object with a million readers does not delay the loop; one more row counts the holds that these leave out.
 */
#ifndef DAEMON_RPC_HOLDERS_H
#define DAEMON_RPC_HOLDERS_H

#include "daemon/rpc/rpc_call.h"

#define HOLDERS_MAX 32u
#define HOLDERS_EXAMINED 1024u

struct holders; /* its rows point into the daemon's tables, so it must be used before they change */

/* NULL: no memory. The caller destroys the result. */
struct holders *holders_create(const struct rpc *rpc, const struct object *object, const struct owner *viewer, bool admin);
void holders_destroy(struct holders *holders);

/* Sets info->holders, which is valid until holders_destroy. */
void holders_fill(struct holders *holders, Rdt__Pb__ObjectInfo *info);

/* Writes the sentences of the first rows, joined by "; ", and the number of the other holds. "" if nobody holds the object. */
void holders_say(const struct holders *holders, char *text, size_t room);

#endif
