/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the names of an object's tensors in its metadata, if those are a safetensors header. The metadata may be anything, from
 * anybody: they are only read, without recursion, and what is found in them is checked before it is used. */
#include <stdlib.h>
#include <string.h>

#include "daemon/persist/storage_file.h"
#include "proto/plain_text.h"

struct cursor {
    const uint8_t *at, *end;
};

struct entry {
    struct tensor_name name;
    uint64_t begin, end; /* of its data_offsets */
    uint32_t position;   /* in the header */
};

static bool skip(struct cursor *cursor, char c)
{
    while (cursor->at < cursor->end && memchr(" \t\r\n", *cursor->at, 4))
        cursor->at++;
    if (cursor->at == cursor->end || *cursor->at != (uint8_t)c)
        return false;
    cursor->at++;
    return true;
}

/* A string with its quotes. plain_p: it has no escapes, and nothing but characters that may be shown. */
static bool string(struct cursor *cursor, struct tensor_name *name_p, bool *plain_p)
{
    *plain_p = true;
    if (!skip(cursor, '"'))
        return false;
    name_p->text = cursor->at - 1;
    while (cursor->at < cursor->end && *cursor->at != '"') {
        bool escape = *cursor->at == '\\' && cursor->end - cursor->at > 1;
        size_t bytes = text_character(cursor->at, (size_t)(cursor->end - cursor->at));
        *plain_p &= bytes > 0 && *cursor->at != '\\';
        cursor->at += escape ? 2 : bytes ? bytes : 1;
    }
    if (!skip(cursor, '"'))
        return false;
    name_p->bytes = (size_t)(cursor->at - name_p->text);
    return true;
}

static bool is(const struct tensor_name *name, const char *text)
{
    return name->bytes == strlen(text) && memcmp(name->text, text, name->bytes) == 0;
}

static bool number(struct cursor *cursor, uint64_t *value_p)
{
    unsigned digits = 0;

    (void)skip(cursor, ' ');
    for (*value_p = 0; cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9' && digits < 19; digits++)
        *value_p = 10 * *value_p + (uint64_t)(*cursor->at++ - '0');
    return digits > 0;
}

/* Skips everything before the comma or bracket that ends the value. */
static bool skip_value(struct cursor *cursor)
{
    struct tensor_name ignored;
    size_t depth = 0;
    bool plain;

    while (cursor->at < cursor->end) {
        bool opens = *cursor->at == '{' || *cursor->at == '[', closes = *cursor->at == '}' || *cursor->at == ']';
        if (depth == 0 && (closes || *cursor->at == ','))
            return true;
        depth += opens;
        depth -= closes;
        if (*cursor->at != '"')
            cursor->at++;
        else if (!string(cursor, &ignored, &plain))
            return false;
    }
    return false;
}

/* {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, in any order */
static bool read_entry(struct cursor *cursor, struct entry *entry)
{
    struct tensor_name key;
    bool found = false, plain, fits;

    if (!skip(cursor, '{'))
        return false;
    do {
        fits = string(cursor, &key, &plain) && skip(cursor, ':');
        if (fits && is(&key, "\"data_offsets\""))
            fits = found = skip(cursor, '[') && number(cursor, &entry->begin) && skip(cursor, ',') &&
                           number(cursor, &entry->end) && skip(cursor, ']');
        else if (fits)
            fits = skip_value(cursor);
    } while (fits && skip(cursor, ','));
    return fits && found && skip(cursor, '}');
}

static bool read_header(struct cursor *cursor, struct entry *entries, uint32_t count)
{
    struct tensor_name key;
    uint32_t n = 0;
    bool plain, fits;

    if (!skip(cursor, '{'))
        return false;
    do {
        fits = string(cursor, &key, &plain) && skip(cursor, ':');
        if (fits && is(&key, "\"__metadata__\"")) {
            fits = skip_value(cursor);
        } else if (fits) {
            fits = plain && n < count;
            if (fits) {
                entries[n] = (struct entry){.name = key, .position = n};
                fits = read_entry(cursor, &entries[n++]);
            }
        }
    } while (fits && skip(cursor, ','));
    return fits && n == count && skip(cursor, '}');
}

/* As rdtctl and Python number the tensors of a file. */
static int by_place(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor_name *x = &((const struct entry *)a)->name, *y = &((const struct entry *)b)->name;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);

    return order != 0 ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

bool storage_tensor_names(const uint8_t *metadata, size_t bytes, const struct layout *layout, struct tensor_name *names_p)
{
    struct cursor cursor = {metadata, metadata + bytes};
    struct entry *entries = bytes > 0 && metadata[0] == '{' ? calloc(layout->count + 1u, sizeof *entries) : NULL;
    bool fits = entries && layout->count > 0 && read_header(&cursor, entries, layout->count);

    if (fits)
        qsort(entries, layout->count, sizeof *entries, by_place);
    for (uint32_t i = 0; fits && i < layout->count; i++) {
        fits = entries[i].end >= entries[i].begin && entries[i].end - entries[i].begin == layout_bytes(layout, i);
        names_p[i] = entries[i].name;
    }
    if (fits)
        qsort(entries, layout->count, sizeof *entries, by_name);
    for (uint32_t i = 1; fits && i < layout->count; i++)
        fits = by_name(&entries[i - 1], &entries[i]) != 0;
    free(entries);
    return fits;
}
