/* SPDX-License-Identifier: Apache-2.0 */
/* Who serves a socket. Whoever may write in the folder of a socket can put one of his own there, and a client believes what its
 * daemon says: names, memory, and in Python pickles. So a client talks to these only:
 *
 *   root, and the user that this process acts for    they have this process anyway
 *   the uid that the caller named                    rdt_connect_options.daemon_uid, $RDT_DAEMON_UID
 *   if none was named, the owner of the folder       provided that only root, this process's user and he himself decide what
 *                                                    lies at the path, symbolic links included
 *
 * In a user namespace, the kernel shows all users that are not mapped as one uid. That uid is nobody's own, so the first row
 * does not count for it. The last one does: in a folder where only its owner can write, only he can have put the socket.
 */
#ifndef CLIENT_SERVER_H
#define CLIENT_SERVER_H

#include <stdint.h>

#include "client/rdt.h"

/* Checks the socket, which was connected to `path`. daemon_uid 0: none was named. Call it after the connect: a path that
 * others cannot change now has not led elsewhere then. Error: DENIED, with what to do. */
enum rdt_status server_check(int sock, const char *path, uint32_t daemon_uid, struct rdt_error *err);

#endif
