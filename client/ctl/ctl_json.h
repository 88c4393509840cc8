/* SPDX-License-Identifier: Apache-2.0 */
/* Any protobuf message as JSON. The keys are the names of the fields in the .proto file, so they are as stable as the wire. */
#ifndef CLIENT_CTL_JSON_H
#define CLIENT_CTL_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

/* Writes every field, also those with their default value. An absent message becomes null, an enum its name, bytes become hex,
 * a number above 2^63 - 1 a decimal string, and a byte of a string that is not UTF-8 U+FFFD. NULL: there is no memory. */
json_t *ctl_json(const ProtobufCMessage *message);

/* Makes a string of any bytes, as above. */
json_t *ctl_json_text(const char *text);

/* Makes a number, or a string, as above. */
json_t *ctl_json_u64(uint64_t value);

#endif
