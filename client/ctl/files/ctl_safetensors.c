/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors files. One rule of the format makes checking easy: the tensors, sorted by their offsets, must cover the
 * data section exactly. So there are no holes, no overlaps, and no bytes outside the tensors. */
#include "client/ctl/files/ctl_safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "wire_limits.h"

#define SHOWN 80 /* bytes of a name in a message */

static bool dtype_of(const char *text, enum rdt_dtype *dtype_p)
{
    const struct rdt_dtype_row *row;

    for (int number = 1; (row = rdt_dtype_row((enum rdt_dtype)number)); number++) {
        if (row->safetensors && strcmp(row->safetensors, text) == 0) {
            *dtype_p = (enum rdt_dtype)number;
            return true;
        }
    }
    return false;
}

static enum rdt_status parse_shape(struct safetensors *s, struct safetensors_tensor *t, const json_t *shape, size_t *n_dims,
                                   uint64_t *bytes_p, struct rdt_error *err)
{
    uint64_t bytes = rdt_dtype_bytes(t->dtype);
    bool empty = false;
    size_t ndim = json_array_size(shape);

    if (ndim > RDT_MAX_NDIM)
        return rdt_error_set(err, RDT_INVALID, "tensor \"%.*s\" has %zu dimensions; at most %u are allowed", SHOWN, t->name,
                             ndim, RDT_MAX_NDIM);
    t->ndim = (uint32_t)ndim;
    t->first_dim = *n_dims;
    for (size_t d = 0; d < ndim; d++) {
        const json_t *value = json_array_get(shape, d);
        json_int_t elems = json_integer_value(value);

        if (!json_is_integer(value) || elems < 0)
            return rdt_error_set(err, RDT_INVALID, "tensor \"%.*s\": shape[%zu] is not a number of elements", SHOWN, t->name,
                                 d);
        s->shape[(*n_dims)++] = elems;
        if (elems == 0)
            empty = true;
        else if (__builtin_mul_overflow(bytes, (uint64_t)elems, &bytes) || bytes > INT64_MAX)
            return rdt_error_set(err, RDT_INVALID, "tensor \"%.*s\": the product of its shape overflows at dimension %zu",
                                 SHOWN, t->name, d);
    }
    *bytes_p = empty ? 0 : bytes;
    return RDT_OK;
}

static enum rdt_status parse_tensor(struct safetensors *s, struct safetensors_tensor *t, const json_t *value, size_t *n_dims,
                                    struct rdt_error *err)
{
    const json_t *dtype = json_object_get(value, "dtype");
    const json_t *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    enum rdt_status status;
    uint64_t bytes = 0;

    if (!json_is_object(value))
        return rdt_error_set(err, RDT_INVALID, "tensor \"%.*s\" is not a JSON object", SHOWN, t->name);
    if (!json_is_string(dtype))
        return rdt_error_set(err, RDT_INVALID, "tensor \"%.*s\" has no \"dtype\" that is a string", SHOWN, t->name);
    if (!dtype_of(json_string_value(dtype), &t->dtype))
        return rdt_error_set(err, RDT_UNSUPPORTED, "tensor \"%.*s\": unknown dtype \"%.32s\"", SHOWN, t->name,
                             json_string_value(dtype));
    if (!json_is_array(shape))
        return rdt_error_set(err, RDT_INVALID, "tensor \"%.*s\" has no \"shape\" that is an array", SHOWN, t->name);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return rdt_error_set(err, RDT_INVALID, "tensor \"%.*s\" has no \"data_offsets\" of two whole numbers", SHOWN, t->name);
    if (json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin) ||
        (uint64_t)json_integer_value(end) > s->data_bytes)
        return rdt_error_set(err, RDT_INVALID,
                             "tensor \"%.*s\": data_offsets [%" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
                             "] are out of range: the file has %" PRIu64 " bytes of data",
                             SHOWN, t->name, json_integer_value(begin), json_integer_value(end), s->data_bytes);
    t->begin = (uint64_t)json_integer_value(begin);
    t->end = (uint64_t)json_integer_value(end);

    status = parse_shape(s, t, shape, n_dims, &bytes, err);
    if (status == RDT_OK && bytes != t->end - t->begin)
        return rdt_error_set(err, RDT_INVALID,
                             "tensor \"%.*s\": dtype and shape make %" PRIu64 " bytes, its data_offsets span %" PRIu64, SHOWN,
                             t->name, bytes, t->end - t->begin);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

static enum rdt_status check_cover(const struct safetensors *s, struct rdt_error *err)
{
    uint64_t covered = 0;

    for (size_t i = 0; i < s->count; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];

        if (t->begin < covered)
            return rdt_error_set(err, RDT_INVALID, "tensors \"%.*s\" and \"%.*s\" overlap in bytes [%" PRIu64 ", %" PRIu64 ")",
                                 SHOWN / 2, s->tensors[i - 1].name, SHOWN / 2, t->name, t->begin,
                                 covered < t->end ? covered : t->end);
        if (t->begin > covered)
            return rdt_error_set(err, RDT_INVALID,
                                 "there is a hole: bytes [%" PRIu64 ", %" PRIu64 ") before tensor \"%.*s\" belong to no tensor",
                                 covered, t->begin, SHOWN, t->name);
        covered = t->end;
    }
    if (covered != s->data_bytes)
        return rdt_error_set(err, RDT_INVALID, "the tensors take %" PRIu64 " bytes, the file has %" PRIu64 " bytes of data",
                             covered, s->data_bytes);
    return RDT_OK;
}

static enum rdt_status check_user_metadata(const json_t *metadata, struct rdt_error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return rdt_error_set(err, RDT_INVALID, "__metadata__ is not a JSON object");
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return rdt_error_set(err, RDT_INVALID, "__metadata__: the value of \"%.*s\" is not a string", SHOWN, key);
    }
    return RDT_OK;
}

static enum rdt_status parse_root(struct safetensors *s, struct rdt_error *err)
{
    size_t n_tensors = 0, n_dims = 0, position = 0;
    enum rdt_status status;
    const char *name;
    json_t *value;

    json_object_foreach(s->root, name, value)
    {
        n_tensors++;
        n_dims += json_array_size(json_object_get(value, "shape"));
    }
    s->tensors = calloc(n_tensors + 1, sizeof *s->tensors);
    s->shape = calloc(n_dims + 1, sizeof *s->shape);
    if (!s->tensors || !s->shape)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the tables of %zu tensors", n_tensors);

    n_dims = 0;
    json_object_foreach(s->root, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            status = check_user_metadata(value, err);
        } else {
            struct safetensors_tensor *t = &s->tensors[s->count++];

            t->name = name;
            t->position = position++;
            status = parse_tensor(s, t, value, &n_dims, err);
        }
        if (status)
            return status;
    }
    qsort(s->tensors, s->count, sizeof *s->tensors, by_place);
    return check_cover(s, err);
}

static enum rdt_status parse_text(struct safetensors *s, struct rdt_error *err)
{
    json_error_t fault;

    if (s->header_bytes == 0 || s->header[0] != '{')
        return rdt_error_set(err, RDT_INVALID, "this is not a safetensors file: the header does not begin with '{'");
    s->root = json_loadb(s->header, s->header_bytes, JSON_REJECT_DUPLICATES, &fault);
    if (s->root)
        return parse_root(s, err);
    switch (json_error_code(&fault)) {
    case json_error_duplicate_key:
        return rdt_error_set(err, RDT_INVALID, "the header has a name twice, at byte %d: %s", fault.position, fault.text);
    case json_error_out_of_memory:
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to read a header of %zu bytes", s->header_bytes);
    default:
        return rdt_error_set(err, RDT_INVALID, "the header is not valid JSON at byte %d: %s", fault.position, fault.text);
    }
}

/* Takes the header, which malloc returned and which has a zero behind it, also on an error. */
static enum rdt_status parse_taken(char *take_header, size_t header_bytes, uint64_t data_bytes,
                                   struct safetensors **safetensors_p, struct rdt_error *err)
{
    struct safetensors *s = calloc(1, sizeof *s);
    enum rdt_status status;

    if (!s) {
        free(take_header);
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to read a header");
    }
    *s = (struct safetensors){.header = take_header, .header_bytes = header_bytes, .data_bytes = data_bytes};
    status = parse_text(s, err);
    if (status == RDT_OK)
        *safetensors_p = s;
    else
        safetensors_destroy(s);
    return status;
}

enum rdt_status safetensors_parse(const char *header, size_t header_bytes, uint64_t data_bytes,
                                  struct safetensors **safetensors_p, struct rdt_error *err)
{
    char *copy;

    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the header has %zu bytes, and the format's limit is %u", header_bytes,
                             SAFETENSORS_MAX_HEADER_BYTES);
    copy = malloc(header_bytes + 1);
    if (!copy)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a header of %zu bytes", header_bytes);
    if (header_bytes)
        memcpy(copy, header, header_bytes);
    copy[header_bytes] = '\0';
    return parse_taken(copy, header_bytes, data_bytes, safetensors_p, err);
}

enum rdt_status safetensors_read(int fd, size_t max_header_bytes, struct safetensors **safetensors_p, struct rdt_error *err)
{
    uint8_t raw[SAFETENSORS_LENGTH_BYTES];
    uint64_t header_bytes = 0, file_bytes;
    enum rdt_status status;
    struct stat st;
    char *header;

    if (max_header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        max_header_bytes = SAFETENSORS_MAX_HEADER_BYTES;
    if (fstat(fd, &st) < 0)
        return rdt_error_sys(err, errno, "fstat");
    if (!S_ISREG(st.st_mode))
        return rdt_error_set(err, RDT_INVALID, "this is not a regular file: rdtctl must be able to read it at any offset");
    file_bytes = (uint64_t)st.st_size;
    if (file_bytes < sizeof raw)
        return rdt_error_set(err, RDT_INVALID, "this is not a safetensors file: %" PRIu64 " bytes are too short for one",
                             file_bytes);
    status = bytes_read(fd, raw, sizeof raw, 0, "the header", err);
    if (status)
        return status;
    for (unsigned i = sizeof raw; i-- > 0;)
        header_bytes = header_bytes << 8 | raw[i];
    if (header_bytes > file_bytes - sizeof raw)
        return rdt_error_set(err, RDT_INVALID,
                             "this is not a safetensors file, or it is truncated: the header claims %" PRIu64
                             " bytes, the file has %" PRIu64 " after its length",
                             header_bytes, file_bytes - sizeof raw);
    if (header_bytes > max_header_bytes)
        return rdt_error_set(err, RDT_LIMIT, "the header has %" PRIu64 " bytes; at most %zu are allowed", header_bytes,
                             max_header_bytes);

    header = malloc((size_t)header_bytes + 1);
    if (!header)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a header of %" PRIu64 " bytes", header_bytes);
    status = bytes_read(fd, header, (size_t)header_bytes, sizeof raw, "the header", err);
    if (status) {
        free(header);
        return status;
    }
    header[header_bytes] = '\0';
    return parse_taken(header, (size_t)header_bytes, file_bytes - sizeof raw - header_bytes, safetensors_p, err);
}

void safetensors_destroy(struct safetensors *s)
{
    if (!s)
        return;
    json_decref(s->root);
    free(s->shape);
    free(s->tensors);
    free(s->header);
    free(s);
}

enum rdt_status safetensors_match(const struct safetensors *s, const struct rdt_tensor *tensors, size_t count,
                                  struct rdt_error *err)
{
    if (s->count != count)
        return rdt_error_set(err, RDT_MISMATCH, "the header names %zu tensors, but the object has %zu", s->count, count);
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];

        if (t->dtype != tensors[i].dtype)
            return rdt_error_set(err, RDT_MISMATCH, "tensor %zu (\"%.*s\") is %s in the header, %s in the object", i, SHOWN,
                                 t->name, rdt_dtype_name(t->dtype), rdt_dtype_name(tensors[i].dtype));
        if (t->ndim != tensors[i].ndim)
            return rdt_error_set(err, RDT_MISMATCH, "tensor %zu (\"%.*s\") has %u dimensions in the header, %u in the object",
                                 i, SHOWN, t->name, t->ndim, tensors[i].ndim);
        for (uint32_t d = 0; d < t->ndim; d++) {
            if (s->shape[t->first_dim + d] != tensors[i].shape[d])
                return rdt_error_set(err, RDT_MISMATCH,
                                     "tensor %zu (\"%.*s\"): shape[%u] is %" PRId64 " in the header, %" PRId64 " in the object",
                                     i, SHOWN, t->name, d, s->shape[t->first_dim + d], tensors[i].shape[d]);
        }
    }
    return RDT_OK;
}
