/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl's reader of npy headers. An accepted array lies inside the file, and the reader accepts again what the writer
 * makes of it.
 *
 *   | bytes of data 3 | everything in front of them |
 */
#include "../../client/ctl/ctl_bytes.c"
#include "../../client/ctl/files/ctl_npy.c"
#include "tests/fuzz/harness/fuzz.h"

static void check(const struct npy *npy, uint64_t file_bytes)
{
    const struct rdt_tensor tensor = {.dtype = npy->dtype, .ndim = npy->ndim, .shape = npy->shape, .strides = npy->strides};
    struct npy again;
    struct rdt_error err;
    size_t header_bytes, bytes;
    char *header;

    fuzz_must(npy->ndim <= RDT_MAX_NDIM && npy->data_offset + npy->data_bytes == file_bytes);
    fuzz_must(rdt_tensor_bytes(&tensor, &bytes, &err) == RDT_OK && bytes == npy->data_bytes);
    fuzz_must(npy_header(&tensor, &header, &header_bytes, &err) == RDT_OK);
    fuzz_must(npy_parse(header, header_bytes, header_bytes + npy->data_bytes, &again, &err) == RDT_OK);
    fuzz_must(again.dtype == npy->dtype && again.ndim == npy->ndim && again.data_bytes == npy->data_bytes);
    fuzz_must(memcmp(again.shape, npy->shape, npy->ndim * sizeof *npy->shape) == 0);
    free(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    uint64_t file_bytes = fuzz_take(&at, end, 3) + (uint64_t)(end - at);
    struct npy npy;
    struct rdt_error err;
    char *front = fuzz_copy(at, (size_t)(end - at), false);
    enum rdt_status status = npy_parse(front, (size_t)(end - at), file_bytes, &npy, &err);

    free(front);
    if (status == RDT_OK)
        check(&npy, file_bytes);
    else
        fuzz_refused(status, &err);
    return 0;
}
