/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the texts of values to numbers and back. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/config/options_keys.h"

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"TiB", UINT64_C(1) << 40},
    {"GiB", UINT64_C(1) << 30},
    {"MiB", UINT64_C(1) << 20},
    {"KiB", UINT64_C(1) << 10},
    {"T", UINT64_C(1) << 40},
    {"G", UINT64_C(1) << 30},
    {"M", UINT64_C(1) << 20},
    {"K", UINT64_C(1) << 10},
    {"B", 1},
    {"", 1},
};

static const struct unit time_units[] = {
    {"h", UINT64_C(3600000000000)}, {"m", UINT64_C(60000000000)}, {"s", UINT64_C(1000000000)},
    {"ms", UINT64_C(1000000)},      {"us", UINT64_C(1000)},       {"ns", 1},
};

#define N(array) (sizeof(array) / sizeof((array)[0]))

enum rdt_status option_parse_bool(const char *text, bool *value_p, struct rdt_error *err)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false", "off", "0"};
    for (size_t i = 0; i < N(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *value_p = strcasecmp(text, yes[i]) == 0;
            return RDT_OK;
        }
    }
    return rdt_error_set(err, RDT_INVALID, "expected yes or no");
}

/* Parses digits, up to *rest_p. strtoull alone would accept signs and leading space. */
static bool parse_digits(const char *text, uint64_t *value_p, const char **rest_p)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    *value_p = value;
    *rest_p = end;
    return true;
}

enum rdt_status option_parse_uint(const char *text, uint64_t *value_p, struct rdt_error *err)
{
    const char *rest;
    uint64_t value;
    if (!parse_digits(text, &value, &rest) || *rest != 0)
        return rdt_error_set(err, RDT_INVALID, "expected a whole number");
    *value_p = value;
    return RDT_OK;
}

static bool parse_unit(const char *text, const struct unit *units, size_t n_units, uint64_t *value_p)
{
    const char *rest;
    uint64_t value;
    if (!parse_digits(text, &value, &rest))
        return false;
    while (*rest == ' ')
        rest++;
    for (size_t i = 0; i < n_units; i++) {
        if (strcasecmp(rest, units[i].name) == 0)
            return !__builtin_mul_overflow(value, units[i].factor, value_p);
    }
    return false;
}

enum rdt_status option_parse_bytes(const char *text, uint64_t *value_p, struct rdt_error *err)
{
    uint64_t value;
    if (!parse_unit(text, byte_units, N(byte_units), &value))
        return rdt_error_set(err, RDT_INVALID, "expected bytes, as in 65536, 512K, 4M or 1GiB");
    *value_p = value;
    return RDT_OK;
}

enum rdt_status option_parse_duration(const char *text, uint64_t *value_p, struct rdt_error *err)
{
    const char *rest;
    uint64_t value;
    if (parse_digits(text, &value, &rest) && *rest == 0)
        return rdt_error_set(err, RDT_INVALID, "lacks a unit: write %sms, %ss or %sm", text, text, text);
    if (!parse_unit(text, time_units, N(time_units), &value))
        return rdt_error_set(err, RDT_INVALID, "expected a time, as in 500ms, 2s or 1m");
    *value_p = value;
    return RDT_OK;
}

/* Chooses the largest unit that leaves no fraction. */
static void format_unit(uint64_t value, const struct unit *units, size_t n_units, char text_p[OPTION_TEXT_BYTES])
{
    size_t i = 0;
    while (i + 1 < n_units && value % units[i].factor != 0)
        i++;
    snprintf(text_p, OPTION_TEXT_BYTES, "%" PRIu64 "%s", value / units[i].factor, units[i].name);
}

void option_format_bytes(uint64_t bytes, char text_p[OPTION_TEXT_BYTES])
{
    if (bytes % 1024 != 0 || bytes == 0)
        snprintf(text_p, OPTION_TEXT_BYTES, "%" PRIu64, bytes);
    else
        format_unit(bytes, byte_units, N(byte_units), text_p);
}

void option_format_duration(uint64_t ns, char text_p[OPTION_TEXT_BYTES])
{
    if (ns == 0)
        snprintf(text_p, OPTION_TEXT_BYTES, "0s");
    else
        format_unit(ns, time_units, N(time_units), text_p);
}
