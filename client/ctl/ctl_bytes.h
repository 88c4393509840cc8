/* Bytes of tensors in files, whatever the format around them: reading at a place, writing row-major. */
#ifndef CLIENT_CTL_BYTES_H
#define CLIENT_CTL_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/rdt.h"

/* Exactly `bytes` at `offset` of the file. RDT_INVALID: it ends before; `what` is what was being read ("the header"). */
enum rdt_status bytes_read(int fd, void *buf, size_t bytes, off_t offset, const char *what, struct rdt_error *err);

/* Is told how many more bytes are written; false stops the writing (RDT_CANCELLED). */
typedef bool bytes_on_written(void *context, size_t bytes);

struct bytes_sink {
    int fd;                       /* written from its position on */
    bytes_on_written *on_written; /* NULL: nobody wants to know */
    void *context;
};

enum rdt_status bytes_write(const struct bytes_sink *sink, const void *data, size_t bytes, struct rdt_error *err);

/* The elements of all tensors, one behind the other, each row-major whatever its strides. */
enum rdt_status bytes_write_tensors(const struct bytes_sink *sink, const struct rdt_tensor *tensors, size_t count,
                                    struct rdt_error *err);

#endif
