/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the headers of npy files. */
#include "client/ctl/files/ctl_npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/ctl_bytes.h"

#define ALIGN_BYTES 64u  /* numpy begins the data at a multiple of it */
#define PREAMBLE_MAX 12u /* magic, version and length of the header */
#define WORD_BYTES 64u   /* more than any known key or dtype has */

/* The dtypes that numpy has too. `width` is the number in numpy's name: bytes of one element. */
static const struct kind {
    enum rdt_dtype dtype;
    char letter;
    unsigned width;
} kinds[] = {
    {RDT_BOOL, 'b', 1}, {RDT_U8, 'u', 1},  {RDT_U16, 'u', 2}, {RDT_U32, 'u', 4},   {RDT_U64, 'u', 8},
    {RDT_I8, 'i', 1},   {RDT_I16, 'i', 2}, {RDT_I32, 'i', 4}, {RDT_I64, 'i', 8},   {RDT_F16, 'f', 2},
    {RDT_F32, 'f', 4},  {RDT_F64, 'f', 8}, {RDT_C64, 'c', 8}, {RDT_C128, 'c', 16},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* ---- parsing the header, a dictionary with three keys ---- */

struct text {
    const char *start, *at, *end;
};

static void skip_space(struct text *text)
{
    while (text->at < text->end && strchr(" \t\r\n\f", *text->at) && *text->at)
        text->at++;
}

/* Returns the next character that is no space; 0: the end, or a zero byte, which no rule accepts. */
static char next(struct text *text)
{
    skip_space(text);
    return text->at < text->end ? *text->at : '\0';
}

static bool take(struct text *text, char c)
{
    if (next(text) != c)
        return false;
    text->at++;
    return true;
}

static enum rdt_status unexpected(const struct text *text, const char *wanted, struct rdt_error *err)
{
    if (text->at == text->end)
        return rdt_error_set(err, RDT_INVALID, "the header ends where %s should be", wanted);
    return rdt_error_set(err, RDT_INVALID, "the header has 0x%02x at its byte %zu, where %s should be",
                         (unsigned char)*text->at, (size_t)(text->at - text->start), wanted);
}

/* Takes a word in quotes. Every valid key and dtype is printable and has no escapes. */
static enum rdt_status take_word(struct text *text, const char *what, char word_p[WORD_BYTES], struct rdt_error *err)
{
    char quote = next(text);
    size_t n = 0;

    if (quote != '\'' && quote != '"')
        return unexpected(text, what, err);
    for (text->at++; text->at < text->end && *text->at != quote; text->at++) {
        if (*text->at < ' ' || *text->at > '~' || *text->at == '\\' || n + 1 == WORD_BYTES)
            return unexpected(text, what, err);
        word_p[n++] = *text->at;
    }
    word_p[n] = '\0';
    if (text->at == text->end)
        return unexpected(text, "a closing quote", err);
    text->at++;
    return RDT_OK;
}

static enum rdt_status take_bool(struct text *text, bool *value_p, struct rdt_error *err)
{
    static const char *const words[] = {"False", "True"};

    skip_space(text);
    for (int value = 0; value < 2; value++) {
        size_t n = strlen(words[value]);

        if ((size_t)(text->end - text->at) >= n && memcmp(text->at, words[value], n) == 0) {
            text->at += n;
            *value_p = value;
            return RDT_OK;
        }
    }
    return unexpected(text, "fortran_order's True or False", err);
}

static enum rdt_status take_elems(struct text *text, unsigned dim, int64_t *elems_p, struct rdt_error *err)
{
    int64_t elems = 0;

    if (next(text) < '0' || *text->at > '9')
        return unexpected(text, "a number of elements in the shape", err);
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        if (__builtin_mul_overflow(elems, 10, &elems) || __builtin_add_overflow(elems, *text->at - '0', &elems))
            return rdt_error_set(err, RDT_INVALID, "shape[%u] is too large for any array", dim);
    }
    if (text->at < text->end && *text->at == 'L') /* Python 2 wrote long integers with an L */
        text->at++;
    *elems_p = elems;
    return RDT_OK;
}

static enum rdt_status take_shape(struct text *text, struct npy *npy, struct rdt_error *err)
{
    bool comma = true;

    if (!take(text, '('))
        return unexpected(text, "the shape's '('", err);
    while (!take(text, ')')) {
        enum rdt_status status;

        if (!comma)
            return unexpected(text, "a ',' or ')' in the shape", err);
        if (npy->ndim == RDT_MAX_NDIM)
            return rdt_error_set(err, RDT_LIMIT, "the array has more than %u dimensions", RDT_MAX_NDIM);
        status = take_elems(text, npy->ndim, &npy->shape[npy->ndim], err);
        if (status)
            return status;
        npy->ndim++;
        comma = take(text, ',');
    }
    if (npy->ndim == 1 && !comma) /* in Python "(3)" is a number, not a tuple */
        return rdt_error_set(err, RDT_INVALID, "the shape (%" PRId64 ") is not a tuple: a ',' is missing", npy->shape[0]);
    return RDT_OK;
}

static enum rdt_status dtype_of(const char *descr, enum rdt_dtype *dtype_p, struct rdt_error *err)
{
    const char *letter = strchr("<>|=", descr[0]) && descr[0] ? descr + 1 : descr;
    char *end;
    unsigned long width;

    switch (letter[0]) {
    case 'O':
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "dtype '%s' is Python objects in a pickle, which could run any code: save an array of numbers",
                             descr);
    case 'S':
    case 'U':
    case 'a':
        return rdt_error_set(err, RDT_UNSUPPORTED, "dtype '%s' is text, not numbers", descr);
    case 'M':
    case 'm':
        return rdt_error_set(err, RDT_UNSUPPORTED, "dtype '%s' is times: save array.view('i8')", descr);
    case 'V':
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "dtype '%s' is raw bytes: npy files do not record what they mean (bfloat16, float8), so use a "
                             "safetensors file",
                             descr);
    default:
        break;
    }
    width = letter[0] && letter[1] >= '0' && letter[1] <= '9' ? strtoul(letter + 1, &end, 10) : 0;
    for (size_t i = 0; width && !*end && i < N_KINDS; i++) {
        if (kinds[i].letter != letter[0] || kinds[i].width != width)
            continue;
        if (descr[0] == '>' && width > 1)
            return rdt_error_set(err, RDT_UNSUPPORTED,
                                 "dtype '%s' is big-endian: save array.astype(array.dtype.newbyteorder('<'))", descr);
        *dtype_p = kinds[i].dtype;
        return RDT_OK;
    }
    return rdt_error_set(err, RDT_UNSUPPORTED, "unknown dtype '%s'", descr);
}

static enum rdt_status take_dtype(struct text *text, struct npy *npy, struct rdt_error *err)
{
    char descr[WORD_BYTES];
    enum rdt_status status;

    if (next(text) == '[')
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "this is a structured array: save each of its fields as an array of its own");
    if (next(text) == '(')
        return rdt_error_set(err, RDT_UNSUPPORTED, "this is an array whose elements are arrays: save it with a plain dtype");
    status = take_word(text, "a dtype in quotes", descr, err);
    return status ? status : dtype_of(descr, &npy->dtype, err);
}

static enum rdt_status take_header(struct text *text, struct npy *npy, struct rdt_error *err)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool comma = true, seen[3] = {false};

    if (!take(text, '{'))
        return unexpected(text, "'{'", err);
    while (!take(text, '}')) {
        char key[WORD_BYTES];
        enum rdt_status status;
        unsigned k = 0;

        if (!comma)
            return unexpected(text, "a ',' or '}'", err);
        status = take_word(text, "a key in quotes", key, err);
        if (status)
            return status;
        while (k < 3 && strcmp(keys[k], key) != 0)
            k++;
        if (k == 3)
            return rdt_error_set(err, RDT_INVALID, "the header has a key '%s' beside descr, fortran_order and shape", key);
        if (seen[k])
            return rdt_error_set(err, RDT_INVALID, "the header has '%s' twice", key);
        seen[k] = true;
        if (!take(text, ':'))
            return unexpected(text, "':'", err);
        status = k == 0   ? take_dtype(text, npy, err)
                 : k == 1 ? take_bool(text, &npy->column_major, err)
                          : take_shape(text, npy, err);
        if (status)
            return status;
        comma = take(text, ',');
    }
    for (unsigned k = 0; k < 3; k++)
        if (!seen[k])
            return rdt_error_set(err, RDT_INVALID, "the header has no '%s'", keys[k]);
    if (next(text) || text->at != text->end)
        return unexpected(text, "its end", err);
    return RDT_OK;
}

/* ---- the file ---- */

/* Computes the strides of the array as it lies in the file, and its bytes. The strides cannot overflow: each is at most the
 * product of the shape, which is checked. */
static enum rdt_status set_strides(struct npy *npy, struct rdt_error *err)
{
    uint64_t bytes = rdt_dtype_bytes(npy->dtype);
    int64_t stride = 1;
    bool empty = false;

    for (uint32_t d = 0; d < npy->ndim; d++) {
        if (npy->shape[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(bytes, (uint64_t)npy->shape[d], &bytes) || bytes > INT64_MAX)
            return rdt_error_set(err, RDT_INVALID, "the product of the shape overflows at dimension %u", d);
    }
    npy->data_bytes = empty ? 0 : bytes;
    for (uint32_t i = 0; i < npy->ndim; i++) {
        uint32_t d = npy->column_major ? i : npy->ndim - 1 - i;

        npy->strides[d] = stride;
        if (npy->shape[d]) /* the strides of an array without elements do not matter */
            stride *= npy->shape[d];
    }
    return RDT_OK;
}

bool npy_is_magic(const void *bytes, size_t n)
{
    return n >= NPY_MAGIC_BYTES && memcmp(bytes, NPY_MAGIC, NPY_MAGIC_BYTES) == 0;
}

/* Reads the offset and the length of the header from the first bytes of the file. */
static enum rdt_status parse_preamble(const uint8_t *bytes, size_t n, size_t *at_p, size_t *length_p, struct rdt_error *err)
{
    size_t at, length = 0;

    if (!npy_is_magic(bytes, n))
        return rdt_error_set(err, RDT_INVALID, "it does not begin as an npy file does");
    if (n < NPY_MAGIC_BYTES + 2)
        return rdt_error_set(err, RDT_INVALID, "%zu bytes are too short for an npy file", n);
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "the file has npy version %u.%u, but only 1.0, 2.0 and 3.0 are known",
                             bytes[6], bytes[7]);
    at = NPY_MAGIC_BYTES + 2 + (bytes[6] == 1 ? 2 : 4);
    if (n < at)
        return rdt_error_set(err, RDT_INVALID, "%zu bytes are too short for an npy file", n);
    for (size_t i = at; i-- > NPY_MAGIC_BYTES + 2;)
        length = length << 8 | bytes[i];
    if (length > NPY_MAX_HEADER_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the header has %zu bytes; at most %u are allowed", length, NPY_MAX_HEADER_BYTES);
    *at_p = at;
    *length_p = length;
    return RDT_OK;
}

enum rdt_status npy_parse(const void *bytes, size_t n, uint64_t file_bytes, struct npy *npy_p, struct rdt_error *err)
{
    struct npy npy = {0};
    size_t at, length;
    enum rdt_status status = parse_preamble(bytes, n, &at, &length, err);
    struct text text;
    uint64_t has;

    if (status)
        return status;
    if (length > n - at)
        return rdt_error_set(err, RDT_INVALID, "the header claims %zu bytes, the file has %zu after its length", length,
                             n - at);
    text.start = text.at = (const char *)bytes + at;
    text.end = text.start + length;
    status = take_header(&text, &npy, err);
    if (status == RDT_OK)
        status = set_strides(&npy, err);
    if (status)
        return status;
    npy.data_offset = at + length;
    has = file_bytes - npy.data_offset;
    if (has < npy.data_bytes)
        return rdt_error_set(err, RDT_INVALID,
                             "the file is truncated: dtype and shape make %" PRIu64 " bytes, the file has %" PRIu64,
                             npy.data_bytes, has);
    if (has > npy.data_bytes)
        return rdt_error_set(err, RDT_INVALID,
                             "%" PRIu64 " bytes follow the array's %" PRIu64 ": an npy file here holds one array",
                             has - npy.data_bytes, npy.data_bytes);
    *npy_p = npy;
    return RDT_OK;
}

enum rdt_status npy_read(int fd, struct npy *npy_p, struct rdt_error *err)
{
    size_t n, at, length;
    enum rdt_status status;
    struct stat st;
    uint8_t *bytes;

    if (fstat(fd, &st) < 0)
        return rdt_error_sys(err, errno, "fstat");
    if (!S_ISREG(st.st_mode))
        return rdt_error_set(err, RDT_INVALID, "this is not a regular file");
    n = st.st_size < PREAMBLE_MAX + NPY_MAX_HEADER_BYTES ? (size_t)st.st_size : PREAMBLE_MAX + NPY_MAX_HEADER_BYTES;
    bytes = malloc(n + 1);
    if (!bytes)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a header");
    status = bytes_read(fd, bytes, n < PREAMBLE_MAX ? n : PREAMBLE_MAX, 0, "the header", err);
    if (status == RDT_OK)
        status = parse_preamble(bytes, n < PREAMBLE_MAX ? n : PREAMBLE_MAX, &at, &length, err);
    if (status == RDT_OK) {
        n = n < at + length ? n : at + length;
        status = bytes_read(fd, bytes, n, 0, "the header", err);
    }
    if (status == RDT_OK)
        status = npy_parse(bytes, n, (uint64_t)st.st_size, npy_p, err);
    free(bytes);
    return status;
}

enum rdt_status npy_header(const struct rdt_tensor *tensor, char **header_p, size_t *bytes_p, struct rdt_error *err)
{
    const char *name = rdt_dtype_name(tensor->dtype);
    const struct kind *kind = kinds;
    size_t bytes, length = 0;
    char *header = NULL;
    FILE *out;

    while (kind < kinds + N_KINDS && kind->dtype != tensor->dtype)
        kind++;
    if (kind == kinds + N_KINDS)
        return rdt_error_set(err, RDT_UNSUPPORTED, "an npy file cannot hold %s", name ? name : "what the tensor holds");
    out = open_memstream(&header, &length);
    if (!out)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a header");
    fprintf(out, NPY_MAGIC "%c%cLL{'descr': '%c%c%u', 'fortran_order': False, 'shape': (", 1, 0, kind->width > 1 ? '<' : '|',
            kind->letter, kind->width);
    for (uint32_t d = 0; d < tensor->ndim; d++)
        fprintf(out, "%s%" PRId64 "%s", d ? " " : "", tensor->shape[d], d + 1 < tensor->ndim || tensor->ndim == 1 ? "," : "");
    fprintf(out, "), }");
    fflush(out);
    for (bytes = length + 1; bytes % ALIGN_BYTES; bytes++)
        fputc(' ', out);
    fputc('\n', out);
    if (fclose(out) != 0) {
        free(header);
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a header");
    }
    length -= NPY_MAGIC_BYTES + 4; /* fits 16 bits: 32 dimensions take less than 1,000 bytes */
    header[NPY_MAGIC_BYTES + 2] = (char)(length & 0xff);
    header[NPY_MAGIC_BYTES + 3] = (char)(length >> 8);
    *header_p = header;
    *bytes_p = bytes;
    return RDT_OK;
}
