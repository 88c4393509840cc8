/* SPDX-License-Identifier: Apache-2.0 */
/* The files of storage_dir. With the first byte even, the rest is what stands behind the length in the file of an object; odd:
 * it is what the file says of its object, under a right checksum.
 *
 *   | kind 1 | bytes of the file 4 | header or facts |
 *
 * An accepted file has all its tensors in its data, and what is written of the same tensors is accepted again. The same bytes
 * are read as a record of a name, too.
 */
#include <openssl/evp.h>
#include <string.h>

#include "daemon/persist/storage_file.h"
#include "tests/fuzz/harness/fuzz.h"

#define BEGINNING "{\"__metadata__\":{\"rdtd\":\"" STORAGE_VERSION " "

/* A header around the facts. The caller frees it. */
static uint8_t *forge(const uint8_t *facts, size_t bytes, uint64_t *header_bytes_p)
{
    uint64_t room =
        (sizeof BEGINNING + 66 + bytes * 2 + 8 + STORAGE_ALIGN_BYTES) / STORAGE_ALIGN_BYTES * STORAGE_ALIGN_BYTES - 8;
    uint8_t *header = malloc(room), digest[32];
    size_t at = sizeof BEGINNING - 1;

    memset(header, ' ', room);
    memcpy(header, BEGINNING, at);
    (void)EVP_Digest(facts, bytes, digest, NULL, EVP_sha256(), NULL);
    for (size_t i = 0; i < sizeof digest; i++, at += 2) {
        header[at] = (uint8_t) "0123456789abcdef"[digest[i] >> 4];
        header[at + 1] = (uint8_t) "0123456789abcdef"[digest[i] & 15];
    }
    at++;
    at += (size_t)EVP_EncodeBlock(header + at, facts, (int)bytes);
    header[at] = '"';
    *header_bytes_p = room;
    return header;
}

static void check(const struct stored_file *file, uint64_t file_bytes)
{
    const Rdt__Pb__ObjectRecord *facts = file->facts;
    struct stored_plan plan;
    struct stored_file second;
    struct rdt_error err;
    uint64_t lo, hi;

    fuzz_must(facts->id.len > 0 && facts->generation > 0);
    for (uint32_t i = 0; i < file->layout->count; i++) {
        fuzz_must(layout_extent(file->layout, i, &lo, &hi, &err) == RDT_OK);
        fuzz_must(lo >= file->header_bytes && hi <= file_bytes);
    }
    if (layout_total_bytes(file->layout) > UINT32_MAX ||
        stored_plan_init(&plan, facts, file->layout, file->facts->n_sums > 0 ? file->facts->sums : NULL, &err) != RDT_OK)
        return;
    fuzz_must(stored_file_parse(plan.header + 8, plan.header_bytes - 8, plan.header_bytes + plan.data_bytes, &second, &err) ==
              RDT_OK);
    fuzz_must(second.layout->count == file->layout->count && second.facts->generation == facts->generation);
    stored_file_fini(&second);
    stored_plan_fini(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    bool forged = fuzz_take(&at, end, 1) & 1;
    uint64_t file_bytes = fuzz_take(&at, end, 4), header_bytes = (uint64_t)(end - at);
    uint8_t *header =
        forged ? forge(at, (size_t)(end - at), &header_bytes) : (uint8_t *)fuzz_copy(at, (size_t)(end - at), false);
    const Rdt__Pb__NameRecord *record;
    struct stored_file file;
    struct rdt_error err = {0};
    struct arena arena;
    enum rdt_status status = stored_file_parse(header, header_bytes, file_bytes, &file, &err);

    if (status == RDT_OK) {
        check(&file, file_bytes);
        stored_file_fini(&file);
    } else {
        fuzz_refused(status, &err);
    }
    free(header);
    arena_init(&arena, (size_t)4 * STORAGE_MAX_NAME_BYTES);
    status = stored_name_parse(at, (size_t)(end - at), &arena, &record, &err);
    if (status != RDT_OK)
        fuzz_refused(status, &err);
    arena_fini(&arena);
    return 0;
}
