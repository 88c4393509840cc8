/* SPDX-License-Identifier: Apache-2.0 */
/* Makes JSON of a message by its protobuf-c descriptor. */
#include "ctl_json.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the length of the UTF-8 character at text, which has `left` bytes; 0: it is not UTF-8. */
static size_t utf8_length(const unsigned char *text, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    uint32_t point;

    if (length < 2)
        return length;
    if (length > left)
        return 0;
    point = text[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (text[i] >> 6 != 2)
            return 0;
        point = point << 6 | (text[i] & 0x3Fu);
    }
    return point >= least[length] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF) ? length : 0;
}

json_t *ctl_json_text(const char *text)
{
    size_t bytes = text ? strlen(text) : 0, used = 0;
    json_t *json = json_stringn(text ? text : "", bytes);
    char *clean;

    if (json)
        return json;
    clean = malloc(3 * bytes + 1);
    if (!clean)
        return NULL;
    for (size_t i = 0; i < bytes;) {
        size_t length = utf8_length((const unsigned char *)text + i, bytes - i);

        if (length) {
            memcpy(clean + used, text + i, length);
            used += length;
            i += length;
        } else {
            memcpy(clean + used, "\xEF\xBF\xBD", 3);
            used += 3;
            i++;
        }
    }
    json = json_stringn(clean, used);
    free(clean);
    return json;
}

json_t *ctl_json_u64(uint64_t value)
{
    char text[24];

    if (value <= INT64_MAX)
        return json_integer((json_int_t)value);
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *hex(const ProtobufCBinaryData *data)
{
    char *text = malloc(2 * data->len + 1);
    json_t *json;

    if (!text)
        return NULL;
    for (size_t i = 0; i < data->len; i++)
        snprintf(text + 2 * i, 3, "%02x", data->data[i]);
    json = json_stringn(text, 2 * data->len);
    free(text);
    return json;
}

/* Returns the length of the prefix that the names of all values share, such as "LIST_KIND_". */
static size_t enum_prefix(const ProtobufCEnumDescriptor *descriptor)
{
    const char *first = descriptor->values[0].name;
    size_t n = strlen(first);

    for (unsigned i = 1; i < descriptor->n_values; i++) {
        size_t same = 0;
        while (same < n && descriptor->values[i].name[same] == first[same])
            same++;
        n = same;
    }
    while (n > 0 && first[n - 1] != '_')
        n--;
    return n;
}

/* Makes "clients" of LIST_KIND_CLIENTS. */
static json_t *enum_name(const ProtobufCEnumDescriptor *descriptor, int value)
{
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(descriptor, value);
    char name[64] = "";

    if (!known)
        return json_integer(value);
    (void)snprintf(name, sizeof name, "%s", known->name + enum_prefix(descriptor));
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return json_string(name);
}

static size_t value_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static json_t *one(const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return ctl_json_u64(*(const uint64_t *)at);
    case PROTOBUF_C_TYPE_FLOAT:
        return json_real((double)*(const float *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return json_real(*(const double *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_ENUM:
        return enum_name(field->descriptor, *(const int *)at);
    case PROTOBUF_C_TYPE_STRING:
        return ctl_json_text(*(const char *const *)at);
    case PROTOBUF_C_TYPE_BYTES:
        return hex(at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return *(const ProtobufCMessage *const *)at ? ctl_json(*(const ProtobufCMessage *const *)at) : json_null();
    }
    return json_null();
}

static json_t *field_value(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const char *base = (const char *)message;
    json_t *array;
    size_t count;
    const char *values;

    if (field->label != PROTOBUF_C_LABEL_REPEATED)
        return one(field, base + field->offset);
    array = json_array();
    memcpy(&count, base + field->quantifier_offset, sizeof count);
    memcpy(&values, base + field->offset, sizeof values);
    for (size_t i = 0; array && i < count; i++) {
        if (json_array_append_new(array, one(field, values + i * value_bytes(field->type))) < 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

json_t *ctl_json(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    json_t *object = json_object();

    for (unsigned i = 0; object && i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];

        if (json_object_set_new(object, field->name, field_value(message, field)) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}
