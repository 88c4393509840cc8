/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/storage_file.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/wire_limits.h"

#define NAME_SUFFIX ".name"
#define HASH_BYTES 64u /* a SHA-256 in hex */
#define BEGINNING "{\"__metadata__\":{\"rdtd\":\"" STORAGE_VERSION " "
#define NAME_BEGINNING "rdtd-name " STORAGE_VERSION " "
#define LENGTH_BYTES 8u
#define MAX_DECODED_BYTES ((size_t)256 << 20) /* bytes of the heap for the content of a header */

/* ---- names of files ---- */

void storage_object_file(uint64_t generation, const char *suffix, char name_p[STORAGE_FILE_NAME_BYTES])
{
    (void)snprintf(name_p, STORAGE_FILE_NAME_BYTES, "%016" PRIx64 "%s", generation, suffix);
}

static bool is_hex(const char *text, size_t n)
{
    return strspn(text, "0123456789abcdef") == n;
}

bool storage_is_object_file(const char *name, uint64_t *generation_p, bool *for_cache_p)
{
    if (!is_hex(name, 16))
        return false;
    *for_cache_p = strcmp(name + 16, STORAGE_CACHE_SUFFIX) == 0;
    if (!*for_cache_p && strcmp(name + 16, STORAGE_SUFFIX) != 0)
        return false;
    *generation_p = strtoull(name, NULL, 16);
    return rdt_generation_is_valid(*generation_p);
}

static void hash(const void *data, size_t bytes, char text_p[HASH_BYTES + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[HASH_BYTES / 2] = {0};

    (void)EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL);
    for (size_t i = 0; i < sizeof digest; i++) {
        *text_p++ = digits[digest[i] >> 4];
        *text_p++ = digits[digest[i] & 15];
    }
    *text_p = '\0';
}

void storage_name_file(const uint8_t *key, size_t key_bytes, char name_p[STORAGE_FILE_NAME_BYTES])
{
    hash(key, key_bytes, name_p);
    (void)strcpy(name_p + HASH_BYTES, NAME_SUFFIX);
}

bool storage_is_name_file(const char *name)
{
    return is_hex(name, HASH_BYTES) && strcmp(name + HASH_BYTES, NAME_SUFFIX) == 0;
}

/* ---- writing a header ---- */

/* Writes bytes that a user chose as a JSON string: every byte that is not printable ASCII becomes '?'. rdtd itself does not
 * read it. */
static void add_string(FILE *out, const uint8_t *bytes, size_t n)
{
    fputc('"', out);
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '"' || bytes[i] == '\\')
            fputc('\\', out);
        fputc(bytes[i] >= 0x20 && bytes[i] < 0x7f ? bytes[i] : '?', out);
    }
    fputc('"', out);
}

/* A dtype that safetensors does not know is written as bytes, with one dimension more. */
static void add_tensor(FILE *out, const struct layout *layout, uint32_t i, uint64_t at, const struct tensor_name *name)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const char *dtype = rdt_dtype_row((enum rdt_dtype)layout->dtype[i])->safetensors;

    fputc(',', out);
    if (name)
        (void)fwrite(name->text, 1, name->bytes, out);
    else
        fprintf(out, "\"%" PRIu32 "\"", i);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype ? dtype : "U8");
    for (uint32_t d = 0; d < layout->ndim[i]; d++)
        fprintf(out, "%s%" PRIu64, d > 0 ? "," : "", shape[d]);
    if (!dtype)
        fprintf(out, "%s%" PRIu64, layout->ndim[i] > 0 ? "," : "", layout_item_bytes(layout->dtype[i]));
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + layout_bytes(layout, i));
}

/* False: no memory. */
static bool add_facts(FILE *out, const Rdt__Pb__ObjectRecord *facts)
{
    size_t packed_bytes = protobuf_c_message_get_packed_size(&facts->base);
    uint8_t *packed = malloc(packed_bytes + 1), *encoded = malloc(packed_bytes / 3 * 4 + 8);
    char digest[HASH_BYTES + 1];
    bool added = packed && encoded && packed_bytes <= STORAGE_MAX_HEADER_BYTES;

    if (added) {
        (void)protobuf_c_message_pack(&facts->base, packed);
        hash(packed, packed_bytes, digest);
        (void)EVP_EncodeBlock(encoded, packed, (int)packed_bytes); /* ends it with a zero */
        fprintf(out, BEGINNING "%s %s\",\"rdtd.owner\":\"uid %" PRIu32 "%s", digest, (const char *)encoded, facts->uid,
                facts->tenant[0] ? " of tenant " : "");
        for (const char *c = facts->tenant; *c; c++) /* letters, digits and a few other characters, but this is checked */
            fputc(*c >= 0x20 && *c < 0x7f && *c != '"' && *c != '\\' ? *c : '?', out);
        fputs("\",\"rdtd.id\":", out);
        add_string(out, facts->id.data, facts->id.len);
        fputc('}', out);
    }
    free(packed);
    free(encoded);
    return added;
}

/* Sorts by descending size of an element; the sort is stable. */
uint64_t storage_place_tensors(struct layout *layout, uint32_t *order)
{
    uint64_t bytes = 0;
    uint32_t n = 0;

    for (uint64_t item = 16; item > 0; item /= 2) {
        for (uint32_t i = 0; i < layout->count; i++) {
            if (layout_item_bytes(layout->dtype[i]) != item)
                continue;
            order[n++] = i;
            layout_set_row_major(layout, i);
            layout->region[i] = 0;
            layout->offset[i] = bytes;
            bytes += layout_bytes(layout, i);
        }
    }
    return bytes;
}

static enum rdt_status write_header(struct stored_plan *plan, const Rdt__Pb__ObjectRecord *facts, const struct layout *packed,
                                    const struct tensor_name *names, struct rdt_error *err)
{
    char *data = NULL;
    size_t used = 0;
    FILE *out = open_memstream(&data, &used);
    bool written = out != NULL;
    uint64_t bytes = 0;

    if (out) {
        fprintf(out, "%*s", (int)LENGTH_BYTES, "");
        written = add_facts(out, facts);
        for (uint32_t n = 0; n < packed->count; n++)
            add_tensor(out, packed, plan->order[n], packed->offset[plan->order[n]], names ? &names[plan->order[n]] : NULL);
        fputc('}', out);
        written = fflush(out) == 0 && written;
        bytes = (used + STORAGE_ALIGN_BYTES - 1) / STORAGE_ALIGN_BYTES * STORAGE_ALIGN_BYTES;
        fprintf(out, "%*s", (int)(bytes - used), "");
        written = fclose(out) == 0 && written;
    }
    if (!written || bytes > STORAGE_MAX_HEADER_BYTES) {
        free(data);
        return bytes > STORAGE_MAX_HEADER_BYTES
                   ? rdt_error_set(err, RDT_LIMIT, "the header of the stored object would have %llu bytes, and %u are possible",
                                   (unsigned long long)bytes, STORAGE_MAX_HEADER_BYTES)
                   : rdt_error_set(err, RDT_NO_MEMORY, "no memory for the header of the stored object");
    }
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        data[i] = (char)((bytes - LENGTH_BYTES) >> (8 * i));
    plan->header = (uint8_t *)data;
    plan->header_bytes = bytes;
    return RDT_OK;
}

enum rdt_status stored_plan_init(struct stored_plan *plan_p, const Rdt__Pb__ObjectRecord *record, const struct layout *layout,
                                 const uint64_t *sums, struct rdt_error *err)
{
    struct stored_plan plan = {.order = calloc(layout->count + 1u, sizeof *plan.order)};
    Rdt__Pb__ObjectRecord object = *record;
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    struct layout *packed = layout_dup(layout);
    struct layout_rows *rows = malloc(sizeof *rows);
    struct tensor_name *names = calloc(layout->count + 1u, sizeof *names);
    uint64_t *none = calloc(layout->count + 1u, sizeof *none);
    enum rdt_status status;

    if (!plan.order || !packed || !rows || !names || !none) {
        free(plan.order);
        free(none);
        free(names);
        free(packed);
        free(rows);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to store an object of %u tensors", layout->count);
    }
    plan.data_bytes = storage_place_tensors(packed, plan.order);
    layout_to_wire(packed, true, rows, &tensors);
    object.tensors = &tensors;
    object.data_bytes = plan.data_bytes;
    object.sums = sums ? (uint64_t *)(uintptr_t)sums : none;
    object.n_sums = layout->count;
    status = write_header(&plan, &object, packed,
                          storage_tensor_names(record->metadata.data, record->metadata.len, layout, names) ? names : NULL, err);
    free(names);
    free(none);
    free(packed);
    free(rows);
    if (status == RDT_OK)
        *plan_p = plan;
    else
        free(plan.order);
    return status;
}

void stored_plan_fini(struct stored_plan *plan)
{
    free(plan->header);
    free(plan->order);
    *plan = (struct stored_plan){0};
}

/* ---- reading a header ---- */

static enum rdt_status unpack(struct arena *arena, const ProtobufCMessageDescriptor *type, const char *digest,
                              const uint8_t *packed, size_t bytes, ProtobufCMessage **message_p, struct rdt_error *err)
{
    char found[HASH_BYTES + 1];

    hash(packed, bytes, found);
    if (memcmp(found, digest, HASH_BYTES) != 0)
        return rdt_error_set(err, RDT_INVALID, "its checksum is wrong");
    return arena_unpack(arena, type, packed, bytes, "its description of the object", message_p, err);
}

/* Decodes the facts between `from` and the next quotation mark. */
static enum rdt_status read_facts(struct stored_file *file, const char *from, size_t left, struct rdt_error *err)
{
    const char *end = left > HASH_BYTES + 1 ? memchr(from, '"', left) : NULL;
    size_t encoded = end ? (size_t)(end - from) : 0, bytes;
    ProtobufCMessage *message;
    enum rdt_status status;
    uint8_t *packed;
    int n;

    if (encoded <= HASH_BYTES + 1 || from[HASH_BYTES] != ' ')
        return rdt_error_set(err, RDT_INVALID, "its header is cut off");
    encoded -= HASH_BYTES + 1;
    packed = malloc(encoded + 4);
    if (!packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to read its header");
    n = encoded % 4 == 0 ? EVP_DecodeBlock(packed, (const uint8_t *)from + HASH_BYTES + 1, (int)encoded) : -1;
    bytes = n < 0 ? 0 : (size_t)n - (encoded > 0 && end[-1] == '=') - (encoded > 1 && end[-2] == '=');
    if (n < 0) {
        free(packed);
        return rdt_error_set(err, RDT_INVALID, "its header is not base64");
    }
    status = unpack(&file->arena, &rdt__pb__object_record__descriptor, from, packed, bytes, &message, err);
    free(packed);
    if (status == RDT_OK)
        file->facts = (const Rdt__Pb__ObjectRecord *)message;
    return status;
}

/* Every tensor lies within the data, contiguous. */
static enum rdt_status read_tensors(struct stored_file *file, uint64_t file_bytes, struct rdt_error *err)
{
    enum rdt_status status = layout_from_wire(file->facts->tensors, &file->layout, err);
    uint64_t lo, hi;

    if (status == RDT_OK && file->facts->data_bytes != file_bytes - file->header_bytes)
        status =
            rdt_error_set(err, RDT_INVALID, "it has %llu bytes of tensors, and should have %llu",
                          (unsigned long long)(file_bytes - file->header_bytes), (unsigned long long)file->facts->data_bytes);
    for (uint32_t i = 0; status == RDT_OK && i < file->layout->count; i++) {
        status = layout_extent(file->layout, i, &lo, &hi, err);
        if (status == RDT_OK && (hi > file->facts->data_bytes || file->layout->offset[i] > file->facts->data_bytes))
            status = rdt_error_set(err, RDT_INVALID, "tensor %u ends beyond its data", i);
        else if (status == RDT_OK && (file->layout->region[i] != 0 || !layout_is_contiguous(file->layout, i)))
            status = rdt_error_set(err, RDT_INVALID, "tensor %u is not contiguous", i);
        else if (status == RDT_OK)
            file->layout->offset[i] += file->header_bytes;
    }
    if (status == RDT_OK)
        status = record_check_object(file->facts, file->layout, err);
    if (status == RDT_OK && file->facts->id.len == 0)
        status = rdt_error_set(err, RDT_INVALID, "its record is invalid: it has no id");
    if (status == RDT_OK && file->facts->n_sums > 0 && file->facts->n_sums != file->layout->count)
        status =
            rdt_error_set(err, RDT_INVALID, "it has %zu checksums for %u tensors", file->facts->n_sums, file->layout->count);
    return status;
}

enum rdt_status stored_file_parse(const uint8_t *header, uint64_t header_bytes, uint64_t file_bytes, struct stored_file *file_p,
                                  struct rdt_error *err)
{
    const size_t beginning = sizeof BEGINNING - 1;
    enum rdt_status status;

    if (header_bytes < beginning || memcmp(header, BEGINNING, beginning) != 0)
        return rdt_error_set(err, RDT_INVALID, "it is not a file that this rdtd has written: its header does not begin with %s",
                             BEGINNING);
    if ((LENGTH_BYTES + header_bytes) % STORAGE_ALIGN_BYTES != 0 || LENGTH_BYTES + header_bytes > file_bytes)
        return rdt_error_set(err, RDT_INVALID, "its header has an invalid length");
    *file_p = (struct stored_file){.header_bytes = LENGTH_BYTES + header_bytes};
    arena_init(&file_p->arena, MAX_DECODED_BYTES);
    status = read_facts(file_p, (const char *)header + beginning, header_bytes - beginning, err);
    if (status == RDT_OK)
        status = read_tensors(file_p, file_bytes, err);
    if (status != RDT_OK)
        stored_file_fini(file_p);
    return status;
}

void stored_file_fini(struct stored_file *file)
{
    free(file->layout);
    file->layout = NULL;
    arena_fini(&file->arena);
}

enum rdt_status storage_check_file(int fd, uint64_t *bytes_p, struct rdt_error *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return rdt_error_sys(err, errno, "examining it");
    if (!S_ISREG(st.st_mode))
        return rdt_error_set(err, RDT_INVALID, "it is not a regular file");
    if (st.st_uid != geteuid())
        return rdt_error_set(err, RDT_INVALID, "it belongs to uid %u, and the daemon is uid %u", st.st_uid, geteuid());
    if (st.st_mode & 0377 || st.st_nlink != 1)
        return rdt_error_set(err, RDT_INVALID, "its mode is %04o and it has %llu names: it must be 0400, and one",
                             st.st_mode & 07777, (unsigned long long)st.st_nlink);
    *bytes_p = (uint64_t)st.st_size;
    return RDT_OK;
}

enum rdt_status storage_read_at(int fd, void *data_p, size_t bytes, uint64_t at, struct rdt_error *err)
{
    uint8_t *data = data_p;

    while (bytes > 0) {
        ssize_t n = pread(fd, data, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rdt_error_sys(err, errno, "reading it");
        if (n == 0)
            return rdt_error_set(err, RDT_INVALID, "it is cut off");
        data += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return RDT_OK;
}

enum rdt_status stored_file_read(int fd, struct stored_file *file_p, struct rdt_error *err)
{
    uint64_t file_bytes = 0, header_bytes = 0;
    uint8_t raw[LENGTH_BYTES], *header;
    enum rdt_status status = storage_check_file(fd, &file_bytes, err);

    if (status == RDT_OK)
        status = storage_read_at(fd, raw, sizeof raw, 0, err);
    if (status != RDT_OK)
        return status;
    for (unsigned i = sizeof raw; i-- > 0;)
        header_bytes = header_bytes << 8 | raw[i];
    if (header_bytes > STORAGE_MAX_HEADER_BYTES || header_bytes > file_bytes - sizeof raw)
        return rdt_error_set(err, RDT_INVALID, "its header claims %llu bytes: that is too much, or the file is cut off",
                             (unsigned long long)header_bytes);
    header = malloc(header_bytes + 1);
    if (!header)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for its header");
    status = storage_read_at(fd, header, header_bytes, sizeof raw, err);
    if (status == RDT_OK)
        status = stored_file_parse(header, header_bytes, file_bytes, file_p, err);
    free(header);
    return status;
}

enum rdt_status stored_file_damaged(const struct stored_file *file, uint32_t tensor, uint64_t found, struct rdt_error *err)
{
    const Rdt__Pb__ObjectRecord *facts = file->facts;
    struct tensor_name *names = calloc(file->layout->count + 1u, sizeof *names), name = {(const uint8_t *)"", 0};

    if (names && storage_tensor_names(facts->metadata.data, facts->metadata.len, file->layout, names))
        name = names[tensor];
    free(names);
    return rdt_error_set(err, RDT_DAMAGED,
                         "the bytes of tensor %" PRIu32 "%s%.*s have changed since they were stored: their checksum is "
                         "%016" PRIx64 ", and was %016" PRIx64,
                         tensor, name.bytes > 0 ? " " : "", (int)(name.bytes < 100 ? name.bytes : 100), (const char *)name.text,
                         found, facts->sums[tensor]);
}

/* ---- records of names ---- */

size_t stored_name_pack(const Rdt__Pb__NameRecord *record, uint8_t *text_p, size_t size)
{
    size_t packed = protobuf_c_message_get_packed_size(&record->base), before = sizeof NAME_BEGINNING - 1 + HASH_BYTES + 1;
    char digest[HASH_BYTES + 1];

    if (before + packed > size)
        return 0;
    memcpy(text_p, NAME_BEGINNING, sizeof NAME_BEGINNING - 1);
    (void)protobuf_c_message_pack(&record->base, text_p + before);
    hash(text_p + before, packed, digest);
    memcpy(text_p + sizeof NAME_BEGINNING - 1, digest, HASH_BYTES);
    text_p[before - 1] = '\n';
    return before + packed;
}

enum rdt_status stored_name_parse(const uint8_t *text, size_t bytes, struct arena *arena, const Rdt__Pb__NameRecord **record_p,
                                  struct rdt_error *err)
{
    const size_t beginning = sizeof NAME_BEGINNING - 1, before = beginning + HASH_BYTES + 1;
    const Rdt__Pb__NameRecord *record;
    ProtobufCMessage *message;
    enum rdt_status status;

    if (bytes < before || memcmp(text, NAME_BEGINNING, beginning) != 0 || text[before - 1] != '\n')
        return rdt_error_set(err, RDT_INVALID, "it is not a record that this rdtd has written");
    status = unpack(arena, &rdt__pb__name_record__descriptor, (const char *)text + beginning, text + before, bytes - before,
                    &message, err);
    if (status != RDT_OK)
        return status;
    record = (const Rdt__Pb__NameRecord *)message;
    status = record_check_name(record, err);
    if (status == RDT_OK)
        *record_p = record;
    return status;
}
