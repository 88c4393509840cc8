/* SPDX-License-Identifier: Apache-2.0 */
/* Writes safetensors files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/files/ctl_safetensors.h"

#define SHOWN 80 /* bytes of a name in a message */

static bool is_utf8(const char *text)
{
    json_t *string = json_string(text);

    json_decref(string);
    return string;
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
        const struct rdt_dtype_row *dtype = rdt_dtype_row(tensors[i].dtype);
        json_t *shape, *value;
        char number[24];
        const char *name = names ? names[i] : number;

        snprintf(number, sizeof number, "%zu", i);
        if (!dtype || !dtype->safetensors) {
            status = rdt_error_set(err, RDT_UNSUPPORTED, "tensor %zu (\"%.*s\"): safetensors has no dtype for %s", i, SHOWN,
                                   name, dtype ? dtype->name : "what it holds");
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
        value = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype->safetensors, "shape", shape, "data_offsets",
                          (json_int_t)offset, (json_int_t)(offset + bytes));
        if (json_object_set_new(root, name, value) < 0) {
            json_decref(root);
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the header of %zu tensors", count);
        }
        offset += bytes;
    }

    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    bytes = text ? strlen(text) : 0;
    padded = (bytes + 7) / 8 * 8; /* the format wants the data at a multiple of 8 */
    header = text ? malloc(padded + 1) : NULL;
    if (header) {
        memcpy(header, text, bytes);
        memset(header + bytes, ' ', padded - bytes);
        header[padded] = '\0';
        *header_p = header;
        *header_bytes_p = padded;
    } else {
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the header of %zu tensors", count);
    }
    free(text);
    return status;
}

enum rdt_status safetensors_write(const struct bytes_sink *sink, const char *header, size_t header_bytes,
                                  const struct rdt_tensor *tensors, size_t count, struct rdt_error *err)
{
    const struct bytes_sink quiet = {.fd = sink->fd}; /* length and header do not count as progress */
    uint8_t raw[SAFETENSORS_LENGTH_BYTES];
    enum rdt_status status;

    for (unsigned i = 0; i < sizeof raw; i++)
        raw[i] = (uint8_t)((uint64_t)header_bytes >> 8 * i);
    status = bytes_write(&quiet, raw, sizeof raw, err);
    if (status == RDT_OK)
        status = bytes_write(&quiet, header, header_bytes, err);
    return status ? status : bytes_write_tensors(sink, tensors, count, err);
}
