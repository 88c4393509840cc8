/* Any protobuf message as JSON, by its descriptor: the keys are the fields' names in the .proto file, so they are as stable as
 * the wire. */
#ifndef CLIENT_CTL_JSON_H
#define CLIENT_CTL_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

/* Every field, also those that have their default value; a message that is absent is null, enums are their names, bytes hex,
 * numbers above 2^63 - 1 decimal strings, bytes of a string that are not UTF-8 U+FFFD. NULL without memory. */
json_t *ctl_json(const ProtobufCMessage *message);

/* A string of any bytes, as above. */
json_t *ctl_json_text(const char *text);

/* As above. */
json_t *ctl_json_u64(uint64_t value);

#endif
