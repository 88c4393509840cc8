/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl's reader of safetensors headers. An accepted header covers the data without holes, and the reader accepts again
 * what the writer makes of it.
 *
 *   | bytes of data 3 | header |
 */
#include "../../client/ctl/ctl_bytes.c"
#include "../../client/ctl/files/ctl_safetensors.c"
#undef SHOWN
#include "../../client/ctl/files/ctl_safetensors_write.c"
#include "tests/fuzz/harness/fuzz.h"

static void check(const struct safetensors *file)
{
    struct rdt_tensor *tensors = calloc(file->count + 1, sizeof *tensors);
    const char **names = calloc(file->count + 1, sizeof *names);
    struct safetensors *again = NULL;
    struct rdt_error err;
    uint64_t covered = 0;
    size_t header_bytes;
    char *header;

    fuzz_must(tensors && names);
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *t = &file->tensors[i];
        size_t bytes;

        tensors[i] = (struct rdt_tensor){.dtype = t->dtype, .ndim = t->ndim, .shape = file->shape + t->first_dim};
        names[i] = t->name;
        fuzz_must(t->begin == covered && t->end >= t->begin);
        fuzz_must(rdt_tensor_bytes(&tensors[i], &bytes, &err) == RDT_OK && bytes == t->end - t->begin);
        covered = t->end;
    }
    fuzz_must(covered == file->data_bytes);
    fuzz_must(safetensors_header(tensors, names, file->count, &header, &header_bytes, &err) == RDT_OK);
    fuzz_must(safetensors_parse(header, header_bytes, file->data_bytes, &again, &err) == RDT_OK);
    fuzz_must(safetensors_match(again, tensors, file->count, &err) == RDT_OK);
    safetensors_destroy(again);
    free(header);
    free(tensors);
    free(names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    uint64_t data_bytes = fuzz_take(&at, end, 3);
    struct safetensors *file = NULL;
    struct rdt_error err;
    char *header = fuzz_copy(at, (size_t)(end - at), false);
    enum rdt_status status = safetensors_parse(header, (size_t)(end - at), data_bytes, &file, &err);

    free(header);
    if (status == RDT_OK)
        check(file);
    else
        fuzz_refused(status, &err);
    safetensors_destroy(status == RDT_OK ? file : NULL);
    return 0;
}
