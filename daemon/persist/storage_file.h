/* SPDX-License-Identifier: Apache-2.0 */
/* The files of storage_dir: their format, and the checks that make a file valid.
 *
 *   GENERATION.safetensors   an object, as a safetensors file that any reader of that format understands
 *
 *     8 bytes      length of the header, little-endian
 *     header       {"__metadata__":{"rdtd":"1 SHA256 BASE64", "rdtd.id": ..., "rdtd.owner": ...}, NAME: {...}, ...}
 *                  and spaces, so that the data begin at a multiple of STORAGE_ALIGN_BYTES
 *     data         the tensors, row-major, without gaps: those with the largest elements first, so that all are aligned
 *
 *   GENERATION.cache.safetensors   the same, of an evictable object. It is not forced to the disk before it has its name: after
 *                            a power failure it may be damaged, which its checksums show
 *
 *   HASH.name                the record of a name; the hash is that of its owner and name
 *   *.tmp                    a file that is not complete; the next start removes it
 *
 *   *.damaged                the file of an object whose bytes were found to have changed; nobody uses it again
 *
 * BASE64 is a packed ObjectRecord (record.h), and SHA256 its checksum. It has a checksum of each tensor, which
 * is compared with the bytes before they are first used (storage_check.c). rdtd reads nothing else of the header:
 * the JSON is for other readers. NAME is the tensor's name in the object's metadata, if that is a safetensors header, as for a
 * file that rdtctl has put and for a dict of Python; otherwise the tensors are "0", "1" and so on. rdtd trusts no file: sizes,
 * checksums and the place of each tensor are checked before they are used.
 *
 * These functions use no table. Any thread may call them. */
#ifndef DAEMON_STORAGE_FILE_H
#define DAEMON_STORAGE_FILE_H

#include "daemon/persist/record.h"
#include "proto/layout.h"
#include "rdt_status.h"

#define STORAGE_VERSION "1"
#define STORAGE_ALIGN_BYTES 4096u
#define STORAGE_MAX_HEADER_BYTES (64u << 20)
#define STORAGE_MAX_NAME_BYTES 4096u /* of the record of a name */
#define STORAGE_LOCK "storage.lock"
#define STORAGE_SUFFIX ".safetensors"
#define STORAGE_CACHE_SUFFIX ".cache.safetensors"
#define STORAGE_FILE_NAME_BYTES 80u /* the longest name of a file, with its end */

static inline const char *storage_suffix(bool for_cache)
{
    return for_cache ? STORAGE_CACHE_SUFFIX : STORAGE_SUFFIX;
}

void storage_object_file(uint64_t generation, const char *suffix, char name_p[STORAGE_FILE_NAME_BYTES]);
bool storage_is_object_file(const char *name, uint64_t *generation_p, bool *for_cache_p);

/* Changes the layout to that of the same tensors in the file, in one region: row-major, with offsets from the beginning of the
 * data. order [count] receives the tensors in the order of their bytes. Returns the bytes of the data. */
uint64_t storage_place_tensors(struct layout *layout, uint32_t *order);

/* The name of a tensor as a JSON string, with its quotes. */
struct tensor_name {
    const uint8_t *text; /* [bytes], in the metadata */
    size_t bytes;
};

/* Finds the names of the tensors [count] of the layout in the metadata, all different. false: the metadata is not a safetensors
 * header of such tensors, or a name has escapes or control characters; names_p is then undefined. */
bool storage_tensor_names(const uint8_t *metadata, size_t bytes, const struct layout *layout, struct tensor_name *names_p);

/* How an object is written. */
struct stored_plan {
    uint8_t *header;       /* [header_bytes]: its length, the header and its padding */
    uint64_t header_bytes; /* where the data begin */
    uint64_t data_bytes;
    uint32_t *order; /* [count]: the tensors in the order of their bytes in the file */
};

/* Plans the file of the object that the record describes, except for its tensors, which are those of the layout, with their
 * checksums sums [layout->count]. The header has
 * the same length whatever they are, so a plan without them (NULL) says where the data begin. NO_MEMORY; LIMIT (the header is
 * too large). The caller calls stored_plan_fini. */
enum rdt_status stored_plan_init(struct stored_plan *plan_p, const Rdt__Pb__ObjectRecord *record, const struct layout *layout,
                                 const uint64_t *sums, struct rdt_error *err);
void stored_plan_fini(struct stored_plan *plan);

/* A file that was read. It must not be moved in memory. */
struct stored_file {
    struct arena arena;
    const Rdt__Pb__ObjectRecord *facts; /* in the arena */
    struct layout *layout;              /* offsets from the beginning of the file */
    uint64_t header_bytes;              /* where the data begin */
};

/* Checks the header of a file of file_bytes: header [header_bytes] are the bytes that follow the length. INVALID: the sentence
 * says what is wrong; NO_MEMORY. On success the caller calls stored_file_fini; otherwise *file_p is undefined. */
enum rdt_status stored_file_parse(const uint8_t *header, uint64_t header_bytes, uint64_t file_bytes, struct stored_file *file_p,
                                  struct rdt_error *err);

/* The same for an open file. It must be a regular file that belongs to this process's user and that nobody can write. Also
 * returns SYSTEM. */
enum rdt_status stored_file_read(int fd, struct stored_file *file_p, struct rdt_error *err);

void stored_file_fini(struct stored_file *file);

/* Reads bytes of an open file. SYSTEM; INVALID (the file is too short). */
enum rdt_status storage_read_at(int fd, void *data_p, size_t bytes, uint64_t at, struct rdt_error *err);

/* The error for a tensor of that file whose bytes have another checksum. DAMAGED. */
enum rdt_status stored_file_damaged(const struct stored_file *file, uint32_t tensor, uint64_t found, struct rdt_error *err);

/* Checks who may change the open file, and its size. INVALID, SYSTEM. */
enum rdt_status storage_check_file(int fd, uint64_t *bytes_p, struct rdt_error *err);

/* The name of the record's file, from the key of the name (struct name). */
void storage_name_file(const uint8_t *key, size_t key_bytes, char name_p[STORAGE_FILE_NAME_BYTES]);
bool storage_is_name_file(const char *name);

/* Writes the content of a record to text_p, which has `size` bytes; returns its length, 0: it does not fit. */
size_t stored_name_pack(const Rdt__Pb__NameRecord *record, uint8_t *text_p, size_t size);

/* Reads such a content. *record_p lives in the arena, which the caller ends. INVALID. */
enum rdt_status stored_name_parse(const uint8_t *text, size_t bytes, struct arena *arena, const Rdt__Pb__NameRecord **record_p,
                                  struct rdt_error *err);

#endif
