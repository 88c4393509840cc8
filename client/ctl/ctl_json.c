/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the JSON that librdt writes for messages and text. */
#include "ctl_json.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/call.h"

static json_t *loaded(const ProtobufCMessage *message, const char *string)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    json_t *json = NULL;

    if (!out)
        return NULL;
    if (message)
        message_json(out, message);
    else
        message_json_text(out, string);
    if (fclose(out) == 0)
        json = json_loadb(text, bytes, JSON_DECODE_ANY, NULL);
    free(text);
    return json;
}

json_t *ctl_json(const ProtobufCMessage *message)
{
    return loaded(message, NULL);
}

json_t *ctl_json_text(const char *text)
{
    return loaded(NULL, text);
}

json_t *ctl_json_u64(uint64_t value)
{
    char text[24];

    if (value <= INT64_MAX)
        return json_integer((json_int_t)value);
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}
