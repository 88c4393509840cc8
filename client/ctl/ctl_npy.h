/* npy files: numpy's format for one array. A magic, a version, the length of a header, which is a dictionary in Python's notation,
 * and the bytes of the array.
 * Reads what anybody may have written: the header is parsed by a grammar of its own, never evaluated, and nothing is unpickled. */
#ifndef CLIENT_CTL_NPY_H
#define CLIENT_CTL_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/rdt.h"
#include "wire_limits.h"

#define NPY_MAGIC "\x93NUMPY"
#define NPY_MAGIC_BYTES 6u
#define NPY_MAX_HEADER_BYTES \
    65535u /* numpy itself takes 10,000 unless told otherwise; an array of 32 dimensions has less than 1,000 */

struct npy {
    enum rdt_dtype dtype;
    uint32_t ndim;
    bool column_major;             /* the file's fortran_order */
    int64_t shape[RDT_MAX_NDIM];   /* [ndim] */
    int64_t strides[RDT_MAX_NDIM]; /* [ndim] elements, as the bytes lie in the file */
    uint64_t data_offset;          /* in the file */
    uint64_t data_bytes;
};

/* Whether a file that begins with these bytes says it is one. */
bool npy_is_magic(const void *bytes, size_t n);

/* Everything in front of the data (n bytes, more do not matter) of a file of file_bytes. RDT_INVALID says what is wrong: magic,
 * version, header and its position, shape, data that are too short or go on behind the array. RDT_UNSUPPORTED: versions,
 * big-endian, structured, text, date and object arrays, dtypes that are not known here; what to do is said. RDT_LIMIT: a header
 * or a rank that is too large. */
enum rdt_status npy_parse(const void *bytes, size_t n, uint64_t file_bytes, struct npy *npy_p, struct rdt_error *err);

/* The same for an open regular file. */
enum rdt_status npy_read(int fd, struct npy *npy_p, struct rdt_error *err);

/* Everything in front of the data for this tensor, row-major: version 1.0, padded to 64 bytes. *header_p is the caller's: free().
 * RDT_UNSUPPORTED: a dtype that numpy lacks. */
enum rdt_status npy_header(const struct rdt_tensor *tensor, char **header_p, size_t *bytes_p, struct rdt_error *err);

#endif
