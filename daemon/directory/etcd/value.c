/* SPDX-License-Identifier: Apache-2.0 */
/* How etcd's JSON writes bytes and numbers. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

json_t *value_base64(const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    char *text = malloc((n + 2) / 3 * 4 + 1), *to = text;
    json_t *json;

    if (!text)
        return NULL;
    for (size_t i = 0; i < n; i += 3) {
        unsigned left = n - i < 3 ? (unsigned)(n - i) : 3;
        unsigned group = (unsigned)at[i] << 16 | (left > 1 ? (unsigned)at[i + 1] << 8 : 0) | (left > 2 ? at[i + 2] : 0u);
        for (unsigned k = 0; k < 4; k++)
            *to++ = k <= left ? digits[group >> (18 - 6 * k) & 63] : '=';
    }
    json = json_stringn(text, (size_t)(to - text));
    free(text);
    return json;
}

int value_bytes(const json_t *json, uint8_t *out_p, size_t size)
{
    const char *text = json_string_value(json);
    size_t n = json_string_length(json), have = 0;

    if (!text || n % 4 != 0 || n / 4 * 3 > size + 2)
        return -1;
    for (size_t i = 0; i < n; i += 4) {
        unsigned group = 0, bytes = 3;
        for (unsigned k = 0; k < 4; k++) {
            const char *digit = text[i + k] ? strchr(digits, text[i + k]) : NULL;
            if (text[i + k] == '=' && i + 4 == n && k >= 2)
                bytes = bytes < k - 1 ? bytes : k - 1;
            else if (!digit || bytes < 3)
                return -1;
            group = group << 6 | (digit ? (unsigned)(digit - digits) : 0);
        }
        for (unsigned k = 0; k < bytes; k++) {
            if (have == size)
                return -1;
            out_p[have++] = (uint8_t)(group >> (16 - 8 * k));
        }
    }
    return (int)have;
}

int64_t value_int(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    const char *text = json_string_value(value);
    int64_t number = -1;

    if (!value)
        return 0;
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        number = json_integer_value(value);
    else if (text && text[0] != '\0' && strspn(text, "0123456789") == strlen(text))
        number = strtoll(text, NULL, 10); /* INT64_MAX if it is larger */
    return number < INT64_MAX ? number : -1;
}

json_t *value_of_int(int64_t number)
{
    return json_sprintf("%" PRId64, number);
}

bool value_hex(const char *text, uint8_t out_p[16])
{
    if (!text || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    for (unsigned i = 0; i < 16; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
        out_p[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return true;
}

void value_to_hex(const uint8_t bytes[16], char text_p[33])
{
    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(text_p + 2 * i, 3, "%02x", bytes[i]);
}
