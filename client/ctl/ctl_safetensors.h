/* safetensors files: 8 bytes of header length (little-endian), a JSON header, the bytes of all tensors.
 * Reads what anybody may have written, so a header is believed only after every number in it has been checked. */
#ifndef CLIENT_CTL_SAFETENSORS_H
#define CLIENT_CTL_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ctl_bytes.h"
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
    char *header; /* header_bytes as they stand in the file, padding included, then a zero */
    size_t header_bytes;
    uint64_t data_bytes;
    struct safetensors_tensor *tensors; /* [count], in the order of their bytes; empty ones in the order of the header */
    size_t count;
    int64_t *shape;
    json_t *root;
};

/* A header (header_bytes of JSON text) in front of data_bytes of data. RDT_INVALID, or RDT_UNSUPPORTED for a dtype that is not
 * known here, names the tensor and what is wrong: not an object, JSON faults with their position, a name twice, shape,
 * offsets out of range, overlaps, holes, sizes. RDT_LIMIT: above SAFETENSORS_MAX_HEADER_BYTES. */
enum rdt_status safetensors_parse(const char *header, size_t header_bytes, uint64_t data_bytes,
                                  struct safetensors **safetensors_p, struct rdt_error *err);

/* The same for an open file, refusing headers above max_header_bytes before reading them. Data begins at
 * SAFETENSORS_LENGTH_BYTES + header_bytes. */
enum rdt_status safetensors_read(int fd, size_t max_header_bytes, struct safetensors **safetensors_p, struct rdt_error *err);

void safetensors_destroy(struct safetensors *safetensors);

/* RDT_MISMATCH, naming the first difference, unless the i-th tensor of the header has dtype and shape of tensors[i] for all. */
enum rdt_status safetensors_match(const struct safetensors *safetensors, const struct rdt_tensor *tensors, size_t count,
                                  struct rdt_error *err);

/* A header for these tensors one behind the other, padded to 8 bytes; names NULL: "0", "1", ... *header_p is the caller's:
 * free(). RDT_UNSUPPORTED names the tensor whose dtype the format does not have; RDT_INVALID a name that is taken. */
enum rdt_status safetensors_header(const struct rdt_tensor *tensors, const char *const *names, size_t count, char **header_p,
                                   size_t *header_bytes_p, struct rdt_error *err);

/* Writes length, header and the bytes of all tensors, row-major whatever their strides; the sink hears of the tensors' bytes. */
enum rdt_status safetensors_write(const struct bytes_sink *sink, const char *header, size_t header_bytes,
                                  const struct rdt_tensor *tensors, size_t count, struct rdt_error *err);

#endif
