/* Writing safetensors: a header for any tensors, and their bytes in row-major order whatever their strides. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl_safetensors.h"
#include "wire_limits.h"

#define SLICE_BYTES (4u << 20) /* of one write, so that progress and signals are seen */
#define SHOWN 80               /* bytes of a name in a message */

static const char *dtype_text(enum rdt_dtype dtype)
{
    switch (dtype) {
#define X(number, name, bytes, text, safetensors) \
    case RDT_##name:                              \
        return (safetensors);
        RDT_DTYPE_MAP(X)
#undef X
    }
    return NULL;
}

static bool is_utf8(const char *text)
{
    json_t *string = json_string(text);

    json_decref(string);
    return string != NULL;
}

enum rdt_status safetensors_header(const struct rdt_tensor *tensors, const char *const *names, size_t count, char **header_p,
                                   size_t *header_bytes_p, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    json_t *root = json_object();
    uint64_t offset = 0;
    size_t bytes, padded;
    char *text, *header;

    for (size_t i = 0; root && i < count; i++) {
        const char *dtype = dtype_text(tensors[i].dtype);
        json_t *shape, *value;
        char number[24];
        const char *name = names ? names[i] : number;

        snprintf(number, sizeof number, "%zu", i);
        if (!dtype) {
            const char *known = rdt_dtype_name(tensors[i].dtype);

            status = rdt_error_set(err, RDT_UNSUPPORTED, "tensor %zu (\"%.*s\"): safetensors has no dtype for %s", i, SHOWN,
                                   name, known ? known : "what it holds");
        } else if (!is_utf8(name)) {
            status = rdt_error_set(err, RDT_INVALID, "tensor %zu: its name is not UTF-8", i);
        } else if (strcmp(name, "__metadata__") == 0 || json_object_get(root, name)) {
            status = rdt_error_set(err, RDT_INVALID, "tensor %zu: the name \"%.*s\" is taken", i, SHOWN, name);
        } else {
            status = rdt_tensor_bytes(&tensors[i], &bytes, err);
        }
        if (status) {
            json_decref(root);
            return status;
        }
        shape = json_array();
        for (uint32_t d = 0; d < tensors[i].ndim; d++)
            json_array_append_new(shape, json_integer(tensors[i].shape[d]));
        value = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets", (json_int_t)offset,
                          (json_int_t)(offset + bytes));
        if (json_object_set_new(root, name, value) < 0) {
            json_decref(root);
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the header of %zu tensors", count);
        }
        offset += bytes;
    }

    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    bytes = text ? strlen(text) : 0;
    padded = (bytes + 7) / 8 * 8; /* data at a multiple of 8, as the format wants it */
    header = text ? malloc(padded + 1) : NULL;
    if (header) {
        memcpy(header, text, bytes);
        memset(header + bytes, ' ', padded - bytes);
        header[padded] = '\0';
        *header_p = header;
        *header_bytes_p = padded;
    } else {
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the header of %zu tensors", count);
    }
    free(text);
    return status;
}

struct sink {
    int fd;
    safetensors_on_bytes *on_bytes;
    void *context;
};

static enum rdt_status put_bytes(const struct sink *sink, const void *data, size_t bytes, struct rdt_error *err)
{
    for (size_t done = 0; done < bytes;) {
        size_t want = bytes - done < SLICE_BYTES ? bytes - done : SLICE_BYTES;
        ssize_t n = write(sink->fd, (const char *)data + done, want);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rdt_error_sys(err, errno, "writing");
        done += (size_t)n;
        if (sink->on_bytes && !sink->on_bytes(sink->context, (size_t)n))
            return rdt_error_set(err, RDT_CANCELLED, "interrupted while writing");
    }
    return RDT_OK;
}

/* How many of the last dimensions lie row-major without holes, and the bytes of such a run. */
static uint32_t inner_run(const struct rdt_tensor *t, size_t *run_bytes_p)
{
    size_t elems = 1;
    uint32_t d = t->ndim;

    while (d > 0 && (!t->strides || t->shape[d - 1] == 1 || t->strides[d - 1] == (int64_t)elems))
        elems *= (size_t)t->shape[--d];
    *run_bytes_p = elems * rdt_dtype_bytes(t->dtype);
    return d; /* dimensions [0, d) must be walked */
}

static enum rdt_status put_tensor(const struct sink *sink, const struct rdt_tensor *t, char *buf, struct rdt_error *err)
{
    size_t bytes, run_bytes, used = 0, elem_bytes = rdt_dtype_bytes(t->dtype);
    enum rdt_status status = rdt_tensor_bytes(t, &bytes, err);
    int64_t at[RDT_MAX_NDIM] = {0}, elem = 0;
    uint32_t outer;

    if (status || bytes == 0)
        return status;
    outer = inner_run(t, &run_bytes);
    for (size_t left = bytes / run_bytes; left > 0; left--) {
        const char *from = (const char *)t->data + elem * (int64_t)elem_bytes;
        uint32_t d = outer;

        if (run_bytes > SLICE_BYTES / 2) {
            status = put_bytes(sink, from, run_bytes, err);
        } else {
            memcpy(buf + used, from, run_bytes);
            used += run_bytes;
            if (used > SLICE_BYTES - run_bytes || left == 1) {
                status = put_bytes(sink, buf, used, err);
                used = 0;
            }
        }
        if (status)
            return status;
        while (d-- > 0) { /* the next run: an odometer over the outer dimensions */
            elem += t->strides[d];
            if (++at[d] < t->shape[d])
                break;
            elem -= t->shape[d] * t->strides[d];
            at[d] = 0;
        }
    }
    return RDT_OK;
}

enum rdt_status safetensors_write(int fd, const char *header, size_t header_bytes, const struct rdt_tensor *tensors,
                                  size_t count, safetensors_on_bytes *on_bytes, void *context, struct rdt_error *err)
{
    const struct sink quiet = {.fd = fd}, sink = {.fd = fd, .on_bytes = on_bytes, .context = context};
    uint8_t raw[SAFETENSORS_LENGTH_BYTES];
    enum rdt_status status;
    char *buf = malloc(SLICE_BYTES);

    if (!buf)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a buffer");
    for (unsigned i = 0; i < sizeof raw; i++)
        raw[i] = (uint8_t)((uint64_t)header_bytes >> 8 * i);
    status = put_bytes(&quiet, raw, sizeof raw, err);
    if (status == RDT_OK)
        status = put_bytes(&quiet, header, header_bytes, err);
    for (size_t i = 0; status == RDT_OK && i < count; i++)
        status = put_tensor(&sink, &tensors[i], buf, err);
    free(buf);
    return status;
}
