/* SPDX-License-Identifier: Apache-2.0 */
/* npy files, numpy's format for one array: a magic, a version, the length of the header, the header, which is a dictionary in
 * Python's notation, and the bytes of the array. A file may come from anybody, so the header is parsed by a small grammar and
 * never evaluated, and nothing is unpickled. */
#ifndef CLIENT_CTL_NPY_H
#define CLIENT_CTL_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/rdt.h"
#include "wire_limits.h"

#define NPY_MAGIC "\x93NUMPY"
#define NPY_MAGIC_BYTES 6u
#define NPY_MAX_HEADER_BYTES 65535u /* numpy's default is 10,000; an array of 32 dimensions needs less than 1,000 */

struct npy {
    enum rdt_dtype dtype;
    uint32_t ndim;
    bool column_major;             /* the file's fortran_order */
    int64_t shape[RDT_MAX_NDIM];   /* [ndim] */
    int64_t strides[RDT_MAX_NDIM]; /* [ndim] elements, of the array as it lies in the file */
    uint64_t data_offset;          /* in the file */
    uint64_t data_bytes;
};

/* Says whether a file that begins with these n bytes has the magic of an npy file. */
bool npy_is_magic(const void *bytes, size_t n);

/* Parses the first n bytes of a file of file_bytes, which include everything in front of the data. Errors: INVALID (magic,
 * header, shape, or the length of the data; the sentence says what is wrong and where), UNSUPPORTED (another version; an array
 * that is big-endian, structured, text, times or objects; an unknown dtype; the sentence says what to do), LIMIT (the header is
 * too long, or there are too many dimensions). */
enum rdt_status npy_parse(const void *bytes, size_t n, uint64_t file_bytes, struct npy *npy_p, struct rdt_error *err);

/* The same for an open regular file. */
enum rdt_status npy_read(int fd, struct npy *npy_p, struct rdt_error *err);

/* Makes everything that stands in front of the data of this tensor in row-major order: version 1.0, padded to 64 bytes. The
 * caller frees *header_p. UNSUPPORTED: numpy does not have the dtype. */
enum rdt_status npy_header(const struct rdt_tensor *tensor, char **header_p, size_t *bytes_p, struct rdt_error *err);

#endif
