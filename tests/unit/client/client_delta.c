/* SPDX-License-Identifier: Apache-2.0 */
/* Deltas: what is encoded is what is applied, for every size of element and gap; a torn delta changes nothing. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/rdt_delta.h"
#include "proto/delta.h"

static struct rdt_error err;

struct versions {
    size_t elems, elem_bytes, bytes;
    uint8_t *base, *next, *target, *delta;
    size_t room, used;
};

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (random_state >> 33) % n;
}

/* Two versions of which about one element in `rarity` differs; 0: none does. */
static struct versions versions_make(size_t elems, size_t elem_bytes, uint64_t rarity)
{
    struct versions v = {.elems = elems, .elem_bytes = elem_bytes, .bytes = elems * elem_bytes};

    v.room = v.bytes + elems * 3 + 128;
    v.base = malloc(v.bytes + 1);
    v.next = malloc(v.bytes + 1);
    v.target = malloc(v.bytes + 1);
    v.delta = malloc(v.room);
    for (size_t i = 0; i < v.bytes; i++)
        v.base[i] = (uint8_t)random_below(256);
    memcpy(v.next, v.base, v.bytes);
    for (size_t i = 0; rarity && i < elems; i++)
        if (random_below(rarity) == 0)
            v.next[i * elem_bytes + random_below(elem_bytes)] ^= (uint8_t)(1 + random_below(255));
    memcpy(v.target, v.base, v.bytes);
    return v;
}

static void versions_free(struct versions *v)
{
    free(v->base);
    free(v->next);
    free(v->target);
    free(v->delta);
}

static enum rdt_status encode(struct versions *v)
{
    return rdt_delta_encode(v->base, v->next, v->elems, v->elem_bytes, v->delta, v->room, &v->used, &err);
}

static enum rdt_status apply(struct versions *v)
{
    return rdt_delta_apply(v->target, v->elems, v->elem_bytes, v->delta, v->used, &err);
}

Test(client_delta, every_change_arrives)
{
    static const size_t elem_bytes[] = {1, 2, 4, 8}, elems[] = {0, 1, 2, 31, 32, 33, 1000, 70000};
    static const uint64_t rarity[] = {0, 1, 2, 50, 300, 40000};

    for (size_t e = 0; e < 4; e++)
        for (size_t n = 0; n < 8; n++)
            for (size_t r = 0; r < 6; r++) {
                struct versions v = versions_make(elems[n], elem_bytes[e], rarity[r]);

                cr_assert_eq(encode(&v), RDT_OK, "%s", err.msg);
                cr_assert_eq(apply(&v), RDT_OK, "%s", err.msg);
                cr_assert_eq(memcmp(v.target, v.next, v.bytes), 0, "%zu elements of %zu bytes", v.elems, v.elem_bytes);
                versions_free(&v);
            }
}

Test(client_delta, a_few_changes_are_a_short_delta)
{
    struct versions v = versions_make(1 << 20, 2, 100);

    cr_assert_eq(encode(&v), RDT_OK);
    cr_assert_lt(v.used, v.bytes / 50, "%zu bytes of %zu", v.used, v.bytes);
    versions_free(&v);
}

Test(client_delta, a_gap_may_exceed_sixteen_bits)
{
    struct versions v = versions_make(200000, 2, 0);

    v.next[0] ^= 1;
    v.next[2 * 300] ^= 1;
    v.next[2 * 199999] ^= 1;
    cr_assert_eq(encode(&v), RDT_OK);
    cr_assert_eq(apply(&v), RDT_OK, "%s", err.msg);
    cr_assert_eq(memcmp(v.target, v.next, v.bytes), 0);
    versions_free(&v);
}

Test(client_delta, no_room_is_a_limit)
{
    struct versions v = versions_make(4096, 4, 1);

    for (size_t room = 0; room < v.bytes; room += 509) {
        v.room = room;
        cr_assert_eq(encode(&v), RDT_LIMIT);
    }
    versions_free(&v);
}

Test(client_delta, the_exact_room_is_enough)
{
    struct versions v = versions_make(4096, 2, 7);

    cr_assert_eq(encode(&v), RDT_OK);
    uint8_t *exact = malloc(v.used + 16); /* eight bytes to align, and up to seven that are no multiple of eight */
    free(v.delta);
    v.delta = exact;
    v.room = v.used + 16;
    cr_assert_eq(encode(&v), RDT_OK, "%s", err.msg);
    cr_assert_eq(apply(&v), RDT_OK, "%s", err.msg);
    versions_free(&v);
}

Test(client_delta, a_torn_delta_changes_nothing)
{
    struct versions v = versions_make(3000, 2, 9);

    cr_assert_eq(encode(&v), RDT_OK);
    size_t whole = v.used;
    for (v.used = 0; v.used < whole; v.used++) {
        uint8_t *torn = malloc(v.used ? v.used : 1); /* of its own, so that a sanitizer sees a read past its end */

        memcpy(torn, v.delta, v.used);
        cr_assert_eq(rdt_delta_apply(v.target, v.elems, v.elem_bytes, torn, v.used, &err), RDT_INVALID, "%zu bytes", v.used);
        free(torn);
    }
    cr_assert_eq(memcmp(v.target, v.base, v.bytes), 0);
    versions_free(&v);
}

/* A delta in memory that its publisher goes on writing. Here the tensor is that memory, so the first change makes the second
 * gap a long one. */
Test(client_delta, a_delta_that_changes_meanwhile_stays_within_the_tensor)
{
    struct versions v = versions_make(8, 1, 0);
    uint8_t memory[512] = {0}, *tensor = memory + 48, *gaps = tensor;

    v.next[1] = v.base[1] ^ 1;
    v.next[2] = v.base[2] ^ 1;
    cr_assert_eq(encode(&v), RDT_OK);
    cr_assert_eq(v.used, 58, "48 bytes of header, 2 gaps and 6 bytes to align them, 2 values");
    memcpy(memory, v.delta, v.used);
    cr_assert(gaps[0] == 1 && gaps[1] == 0);
    memory[56] = 250;
    memory[57] = 0x5a;
    cr_assert_eq(rdt_delta_apply(tensor, v.elems, 1, memory, v.used, &err), RDT_MISMATCH);
    for (size_t i = 58; i < sizeof memory; i++)
        cr_assert_eq(memory[i], 0, "it wrote byte %zu", i);
    versions_free(&v);
}

Test(client_delta, a_forged_delta_stays_within_the_tensor)
{
    struct versions v = versions_make(3000, 2, 9);

    cr_assert_eq(encode(&v), RDT_OK);
    for (unsigned i = 0; i < 20000; i++) {
        uint8_t *forged = malloc(v.used);

        memcpy(forged, v.delta, v.used);
        for (unsigned k = 0; k < 1 + random_below(4); k++)
            forged[random_below(v.used)] = (uint8_t)random_below(256);
        memcpy(v.target, v.base, v.bytes);
        enum rdt_status status = rdt_delta_apply(v.target, v.elems, v.elem_bytes, forged, v.used, &err);
        cr_assert(status == RDT_OK || status == RDT_INVALID || status == RDT_MISMATCH, "%s", err.msg);
        cr_assert(status != RDT_OK || memcmp(v.target, v.next, v.bytes) == 0);
        cr_assert(status != RDT_INVALID || memcmp(v.target, v.base, v.bytes) == 0);
        free(forged);
    }
    versions_free(&v);
}

Test(client_delta, another_base_is_noticed)
{
    struct versions v = versions_make(3000, 2, 9);

    cr_assert_eq(encode(&v), RDT_OK);
    for (size_t i = 0; i < v.bytes; i++)
        if (memcmp(v.base + i / 2 * 2, v.next + i / 2 * 2, 2) == 0) { /* an element that the delta does not write */
            v.target[i] ^= 1;
            break;
        }
    cr_assert_eq(apply(&v), RDT_MISMATCH);
    cr_assert_not_null(strstr(err.msg, "did not hold the version"), "%s", err.msg);
    versions_free(&v);
}

Test(client_delta, wrong_elements_are_named)
{
    struct versions v = versions_make(300, 2, 9);

    cr_assert_eq(encode(&v), RDT_OK);
    cr_assert_eq(rdt_delta_apply(v.target, 150, 4, v.delta, v.used, &err), RDT_INVALID);
    cr_assert_str_eq(err.msg, "the delta is for 300 elements of 2 bytes, and the tensor has 150 of 4");
    cr_assert_eq(rdt_delta_encode(v.base, v.next, 100, 3, v.delta, v.room, &v.used, &err), RDT_INVALID);
    cr_assert_str_eq(err.msg, "the elements of a delta have 1, 2, 4 or 8 bytes, not 3");
    versions_free(&v);
}

Test(client_delta, some_changes_at_a_time_are_the_same)
{
    struct versions v = versions_make(5000, 2, 7);
    struct delta delta;
    enum rdt_status status;

    cr_assert_eq(encode(&v), RDT_OK);
    cr_assert_eq(delta_open(v.delta, v.room, 5000, 2, &delta, &err), RDT_OK); /* others may lie behind it */
    cr_assert_eq(delta.bytes, v.used);
    while ((status = delta_apply_some(&delta, v.target, 3)) == RDT_AGAIN)
        continue;
    cr_assert_eq(status, RDT_OK);
    cr_assert_arr_eq(v.target, v.next, v.bytes);
    versions_free(&v);
}

Test(client_delta, a_note_names_two_objects)
{
    struct rdt_ref base = {.generation = 7, .id_bytes = 1, .id = "b"}, delta = {.generation = 8, .id_bytes = 1, .id = "d"};
    char note[RDT_DELTA_NOTE_MAX_BYTES];
    size_t used;

    cr_assert_eq(rdt_delta_note(&base, &delta, note, sizeof note, &used, &err), RDT_OK);
    cr_assert(used > DELTA_NOTE_BYTES && used <= sizeof note && memcmp(note, DELTA_NOTE, DELTA_NOTE_BYTES) == 0);
    cr_assert_eq(rdt_delta_note(&base, &delta, note, used - 1, &used, &err), RDT_LIMIT);
    delta.is_name = 1;
    cr_assert_eq(rdt_delta_note(&base, &delta, note, sizeof note, &used, &err), RDT_INVALID);
    cr_assert_eq(rdt_delta_note(NULL, &base, note, sizeof note, &used, &err), RDT_INVALID);
}
