/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of tensors in files of any format: reading at an offset, and writing in row-major order. */
#ifndef CLIENT_CTL_BYTES_H
#define CLIENT_CTL_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/rdt.h"

/* Reads exactly `bytes` at `offset`. `what` names them in errors ("the header"). Errors: INVALID (the file ends
 * before), SYSTEM. */
enum rdt_status bytes_read(int fd, void *buf, size_t bytes, off_t offset, const char *what, struct rdt_error *err);

/* Called after each write with the number of bytes that it wrote. Returning false stops the writing, with CANCELLED. */
typedef bool bytes_on_written(void *context, size_t bytes);

struct bytes_sink {
    int fd;                       /* written from its current position on */
    bytes_on_written *on_written; /* may be NULL */
    void *context;
};

enum rdt_status bytes_write(const struct bytes_sink *sink, const void *data, size_t bytes, struct rdt_error *err);

/* Writes the elements of all tensors, one tensor after the other, each in row-major order whatever its strides are. */
enum rdt_status bytes_write_tensors(const struct bytes_sink *sink, const struct rdt_tensor *tensors, size_t count,
                                    struct rdt_error *err);

#endif
