/* SPDX-License-Identifier: Apache-2.0 */
/* The events of a connection. */
#ifndef CLIENT_FETCH_H
#define CLIENT_FETCH_H

#include "session/connection.h"

/* struct rdt's on.event. Unknown events are of later versions, and ignored. */
void fetch_on_event(rdt *conn, struct frame *frame);

#endif
