/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files: 8 bytes with the length of the header (little-endian), a JSON header, and the bytes of all tensors. A file
 * may come from anybody, so every number in the header is checked before it is used. */
#ifndef CLIENT_CTL_SAFETENSORS_H
#define CLIENT_CTL_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/ctl_bytes.h"
#include "client/rdt.h"

#define SAFETENSORS_MAX_HEADER_BYTES 100000000u /* the format's own bound */
#define SAFETENSORS_LENGTH_BYTES 8u             /* in front of the header */

struct safetensors_tensor {
    const char *name; /* borrowed from root */
    enum rdt_dtype dtype;
    uint32_t ndim;
    size_t first_dim;    /* into shape */
    uint64_t begin, end; /* bytes of the data section */
    size_t position;     /* in the header */
};

struct safetensors {
    char *header; /* [header_bytes] as in the file, with its padding, and a zero behind it */
    size_t header_bytes;
    uint64_t data_bytes;
    struct safetensors_tensor *tensors; /* [count], in the order of their bytes; empty ones in the order of the header */
    size_t count;
    int64_t *shape;
    json_t *root;
};

/* Parses a header, header_bytes of JSON text in front of data_bytes of data. Errors: INVALID (JSON, with the position; a name
 * twice; a tensor's shape, offsets or size; overlaps and holes), UNSUPPORTED (an unknown dtype), LIMIT (the header is longer
 * than SAFETENSORS_MAX_HEADER_BYTES), NO_MEMORY. The sentence names the tensor. The caller destroys *safetensors_p. */
enum rdt_status safetensors_parse(const char *header, size_t header_bytes, uint64_t data_bytes,
                                  struct safetensors **safetensors_p, struct rdt_error *err);

/* The same for an open file. LIMIT: its header is longer than max_header_bytes, and is not read. The data begin at
 * SAFETENSORS_LENGTH_BYTES + header_bytes. */
enum rdt_status safetensors_read(int fd, size_t max_header_bytes, struct safetensors **safetensors_p, struct rdt_error *err);

void safetensors_destroy(struct safetensors *safetensors);

/* Checks that the header's tensors have the dtypes and shapes of tensors [count]. MISMATCH names the first difference. */
enum rdt_status safetensors_match(const struct safetensors *safetensors, const struct rdt_tensor *tensors, size_t count,
                                  struct rdt_error *err);

/* Makes a header for these tensors in this order, padded to a multiple of 8 bytes. If names is NULL they are "0", "1", ... The
 * caller frees *header_p. Errors: UNSUPPORTED (the format does not have a tensor's dtype), INVALID (a name that is taken or not
 * UTF-8), NO_MEMORY. */
enum rdt_status safetensors_header(const struct rdt_tensor *tensors, const char *const *names, size_t count, char **header_p,
                                   size_t *header_bytes_p, struct rdt_error *err);

/* Writes the header with its length, and the bytes of all tensors in row-major order whatever their strides are. on_written is
 * called only for the bytes of the tensors. */
enum rdt_status safetensors_write(const struct bytes_sink *sink, const char *header, size_t header_bytes,
                                  const struct rdt_tensor *tensors, size_t count, struct rdt_error *err);

#endif
