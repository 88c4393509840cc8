/* SPDX-License-Identifier: Apache-2.0 */
/* Any protobuf message as JSON. */
#ifndef CLIENT_CTL_JSON_H
#define CLIENT_CTL_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

/* As message_json (client/call.h) writes it. NULL: there is no memory. */
json_t *ctl_json(const ProtobufCMessage *message);

/* Makes a string of any bytes, as above. */
json_t *ctl_json_text(const char *text);

/* Makes a number, or a string, as above. */
json_t *ctl_json_u64(uint64_t value);

#endif
