/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that another process reports. */
#ifndef PROTO_WIRE_ERROR_H
#define PROTO_WIRE_ERROR_H

#include <stdint.h>

#include "rdt_status.h"

/* Fills err (may be NULL) and returns its status, which is always a failure. A number that is unknown, or
 * cannot be a failure, becomes RDT_PROTOCOL with a message that names it: AGAIN would make the caller wait
 * for ever, and DISCONNECTED and FORKED are statuses of librdt only. An empty message becomes the sentence
 * of the status. */
enum rdt_status wire_error(int32_t status, int32_t sys_errno, const char *message, struct rdt_error *err);

#endif
