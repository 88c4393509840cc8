/* A failure as another process tells it. */
#ifndef PROTO_WIRE_ERROR_H
#define PROTO_WIRE_ERROR_H

#include <stdint.h>

#include "rdt_status.h"

/* Fills err (may be NULL) and returns its status, which is always one of a failure: what cannot be one, or is none of ours, becomes
 * RDT_PROTOCOL and is named. AGAIN would make whoever waits wait on; DISCONNECTED and FORKED are only for librdt to say. An empty
 * message becomes the status's sentence. */
enum rdt_status wire_error(int32_t status, int32_t sys_errno, const char *message, struct rdt_error *err);

#endif
