/* SPDX-License-Identifier: Apache-2.0 */
/* Refs in their three forms: text, bytes, and message. An accepted ref is written and read again unchanged.
 *
 *   | shape 1 | it |
 */
#include "proto/layout.h"
#include "proto/rdt_ref.h"
#include "proto/wire_ref.h"
#include "tests/fuzz/harness/fuzz.h"

static void check(const struct rdt_ref *ref)
{
    char text[RDT_REF_TEXT_BYTES];
    uint8_t packed[RDT_REF_PACKED_BYTES];
    Rdt__Pb__Ref message = RDT__PB__REF__INIT;
    struct rdt_ref again;
    struct rdt_error err;
    size_t n;

    fuzz_must(ref->id_bytes >= 1 && ref->id_bytes <= 128 && ref->id[ref->id_bytes] == '\0');
    fuzz_must(memchr(ref->tenant, 0, sizeof ref->tenant) && memchr(ref->address, 0, sizeof ref->address));
    memset(text, 0xee, sizeof text);
    rdt_ref_to_text(ref, text);
    fuzz_must(memchr(text, 0, sizeof text));
    fuzz_must(rdt_ref_from_text(text, &again, &err) == RDT_OK && rdt_ref_equal(ref, &again));
    n = rdt_ref_pack(ref, packed);
    fuzz_must(n <= sizeof packed);
    fuzz_must(rdt_ref_unpack(packed, n, &again, &err) == RDT_OK && rdt_ref_equal(ref, &again));
    wire_ref_from(ref, &message);
    fuzz_must(wire_ref_to(&message, &again, &err) == RDT_OK && rdt_ref_equal(ref, &again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rdt_error err;
    enum rdt_status status = RDT_INVALID;
    struct rdt_ref ref;
    Rdt__Pb__Ref *message;
    struct arena arena;
    char *copy;

    if (bytes == 0)
        return 0;
    copy = fuzz_copy(data + 1, bytes - 1, data[0] % 3 == 0);
    switch (data[0] % 3) {
    case 0:
        status = rdt_ref_from_text(copy, &ref, &err);
        break;
    case 1:
        status = rdt_ref_unpack(copy, bytes - 1, &ref, &err);
        break;
    case 2:
        arena_init(&arena, 1u << 20);
        message = rdt__pb__ref__unpack(&arena.allocator, bytes - 1, (const uint8_t *)copy);
        status = message ? wire_ref_to(message, &ref, &err) : rdt_error_set(&err, RDT_INVALID, "no message");
        arena_fini(&arena);
        break;
    }
    free(copy);
    if (status == RDT_OK)
        check(&ref);
    else
        fuzz_refused(status, &err);
    return 0;
}
