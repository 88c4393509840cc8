/* SPDX-License-Identifier: Apache-2.0 */
/* Requests whose answer nobody waits for, and whose effect must not be lost with the daemon: FREE, READY, WATCH. In a session
 * that outlasts its daemon they have an id, and are kept and repeated until they have been answered. In any other they have no
 * id, and no answer. */
#ifndef CLIENT_NOTE_H
#define CLIENT_NOTE_H

#include "proto/messages.h"
#include "session/connection.h"

/* With the lock. soon: it releases something, and may wait while the connection is corked. Errors: those of connection_send,
 * NO_MEMORY. */
enum rdt_status note_send(rdt *conn, enum rdt_message type, const ProtobufCMessage *message, bool soon, struct rdt_error *err);

#endif
