/* SPDX-License-Identifier: Apache-2.0 */
#include "rdt_dtype.h"

size_t rdt_dtype_bytes(enum rdt_dtype dtype)
{
    switch (dtype) {
#define X(number, name, bytes, text, safetensors) \
    case RDT_##name:                              \
        return (bytes);
        RDT_DTYPE_MAP(X)
#undef X
    }
    return 0;
}

const char *rdt_dtype_name(enum rdt_dtype dtype)
{
    switch (dtype) {
#define X(number, name, bytes, text, safetensors) \
    case RDT_##name:                              \
        return (text);
        RDT_DTYPE_MAP(X)
#undef X
    }
    return NULL;
}
