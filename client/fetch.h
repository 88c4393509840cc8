/* The daemon's side of fetches. */
#ifndef CLIENT_FETCH_H
#define CLIENT_FETCH_H

#include "connection.h"

/* connection's on_event: FETCH_DONE. Others are for later versions and ignored. */
void fetch_on_event(rdt *conn, struct frame *frame);

#endif
