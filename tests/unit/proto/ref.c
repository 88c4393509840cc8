/* SPDX-License-Identifier: Apache-2.0 */
/* Refs: conversion to text, bytes and messages and back; hostile text, bytes and messages. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rdt_ref.h"
#include "proto/wire_ref.h"

#define ROUNDS 20000

static void fill_text(char *text, size_t most, bool any_byte)
{
    size_t n = (size_t)rand() % (most + 1);

    for (size_t i = 0; i < n; i++)
        text[i] = any_byte ? (char)(1 + rand() % 255) : (char)('a' + rand() % 26);
    text[n] = '\0';
}

static struct rdt_ref random_ref(void)
{
    struct rdt_ref ref = {0};

    if (rand() % 4) {
        for (size_t i = 0; i < sizeof ref.node; i++)
            ref.node[i] = (uint8_t)rand();
    }
    ref.is_name = rand() % 3 == 0;
    *(ref.is_name ? &ref.after : &ref.generation) = rand() % 3 ? (uint64_t)rand() << 33 ^ (uint64_t)rand() : 0;
    ref.any_owner = rand() % 2;
    if (!ref.any_owner) {
        ref.uid = rand() % 2 ? (uint32_t)rand() : 0;
        fill_text(ref.tenant, sizeof ref.tenant - 1, rand() % 2);
    }
    fill_text(ref.address, sizeof ref.address - 1, rand() % 2);
    ref.id_bytes = (uint8_t)(1 + rand() % 128);
    for (size_t i = 0; i < ref.id_bytes; i++)
        ref.id[i] = (char)rand();
    return ref;
}

static void assert_same(const struct rdt_ref *a, const struct rdt_ref *b)
{
    cr_assert(rdt_ref_equal(a, b));
    cr_assert_str_eq(a->address, b->address);
    cr_assert_eq(a->id_bytes, b->id_bytes);
    cr_assert_eq(a->is_name, b->is_name);
    cr_assert_eq(a->after, b->after);
    cr_assert_eq(memcmp(a->id, b->id, sizeof a->id), 0);
}

Test(ref, from_id_is_the_callers_own)
{
    struct rdt_ref ref;

    memset(&ref, 0xff, sizeof ref);
    cr_assert_eq(rdt_ref_from_id("weights", 7, &ref, NULL), RDT_OK);
    cr_assert_eq(ref.any_owner, 1);
    cr_assert_eq(ref.generation, 0);
    cr_assert_eq(ref.id_bytes, 7);
    cr_assert_str_eq(ref.id, "weights");
    cr_assert_str_eq(ref.address, "");
}

Test(ref, from_id_length_is_checked)
{
    char id[129] = {0};
    struct rdt_ref ref = {.uid = 5};
    struct rdt_error err;

    cr_assert_eq(rdt_ref_from_id(id, 0, &ref, &err), RDT_INVALID);
    cr_assert_eq(rdt_ref_from_id(id, 129, &ref, &err), RDT_INVALID);
    cr_assert_not_null(strstr(err.msg, "128"));
    cr_assert_eq(ref.uid, 5, "a failure writes nothing");
    cr_assert_eq(rdt_ref_from_id(id, 128, &ref, &err), RDT_OK);
}

Test(ref, from_name_is_the_callers_own)
{
    struct rdt_ref ref;

    memset(&ref, 0xff, sizeof ref);
    cr_assert_eq(rdt_ref_from_name("weights", 12, NULL, &ref, NULL), RDT_OK);
    cr_assert_eq(ref.is_name, 1);
    cr_assert_eq(ref.after, 12);
    cr_assert_eq(ref.any_owner, 1);
    cr_assert_eq(ref.generation, 0);
    cr_assert_eq(ref.id_bytes, 7);
    cr_assert_str_eq(ref.id, "weights");
    cr_assert_str_eq(ref.address, "");
}

Test(ref, from_name_takes_node_and_owner_of_a_ref_near_it)
{
    struct rdt_ref near = {.node = {1, 2}, .generation = 9, .uid = 7, .id_bytes = 1, .id = "x"}, ref;

    strcpy(near.address, "192.0.2.1:7171");
    strcpy(near.tenant, "blue");
    cr_assert_eq(rdt_ref_from_name("weights", 0, &near, &ref, NULL), RDT_OK);
    cr_assert_eq(memcmp(ref.node, near.node, sizeof ref.node), 0);
    cr_assert_str_eq(ref.address, near.address);
    cr_assert_str_eq(ref.tenant, "blue");
    cr_assert_eq(ref.uid, 7);
    cr_assert_eq(ref.any_owner, 0);
    cr_assert_eq(ref.generation, 0);
    cr_assert_eq(rdt_ref_from_name("next", 1, &ref, &ref, NULL), RDT_OK, "of another name, in place");
    cr_assert_str_eq(ref.id, "next");
    cr_assert_str_eq(ref.tenant, "blue");
}

Test(ref, address_takes_the_place_of_the_node)
{
    struct rdt_ref ref = {.node = {1}, .any_owner = 1, .id_bytes = 1, .id = "x"}, other;
    char text[RDT_REF_TEXT_BYTES], longest[66];

    strcpy(ref.address, "a much longer one than the next:1");
    cr_assert_eq(rdt_ref_set_address(&ref, "h:1", NULL), RDT_OK);
    rdt_ref_to_text(&ref, text);
    cr_assert_str_eq(text, "rdt:00000000000000000000000000000000/x?a=h:1");
    cr_assert_eq(rdt_ref_from_text(text, &other, NULL), RDT_OK);
    assert_same(&ref, &other);
    cr_assert_eq(rdt_ref_set_address(&other, "h:2", NULL), RDT_OK);
    cr_assert_not(rdt_ref_equal(&ref, &other), "without a node the address is what tells them apart");
    memset(longest, 'h', sizeof longest - 1);
    longest[65] = 0;
    cr_assert_eq(rdt_ref_set_address(&ref, longest, NULL), RDT_INVALID);
    cr_assert_eq(rdt_ref_set_address(&ref, "", NULL), RDT_INVALID);
    cr_assert_eq(rdt_ref_set_address(&ref, NULL, NULL), RDT_INVALID);
    cr_assert_str_eq(ref.address, "h:1", "a failure writes nothing");
}

Test(ref, from_name_length_is_checked)
{
    char name[130];
    struct rdt_ref ref = {.uid = 5};
    struct rdt_error err;

    memset(name, 'n', sizeof name);
    name[129] = 0;
    cr_assert_eq(rdt_ref_from_name(NULL, 0, NULL, &ref, &err), RDT_INVALID);
    cr_assert_eq(rdt_ref_from_name("", 0, NULL, &ref, &err), RDT_INVALID);
    cr_assert_eq(rdt_ref_from_name(name, 0, NULL, &ref, &err), RDT_INVALID);
    cr_assert_not_null(strstr(err.msg, "128"));
    cr_assert_eq(ref.uid, 5, "a failure writes nothing");
    name[128] = 0;
    cr_assert_eq(rdt_ref_from_name(name, 0, NULL, &ref, &err), RDT_OK);
    cr_assert_eq(ref.id_bytes, 128);
}

Test(ref, text_is_the_published_form)
{
    struct rdt_ref ref = {.node = {0xab, 1}, .generation = 7, .uid = 1000, .id_bytes = 4, .id = "a/ b"};
    char text[RDT_REF_TEXT_BYTES];

    strcpy(ref.address, "[::1]:7070");
    strcpy(ref.tenant, "blue");
    rdt_ref_to_text(&ref, text);
    cr_assert_str_eq(text, "rdt:ab010000000000000000000000000000/a%2f%20b?g=7&a=[::1]:7070&u=1000&t=blue");
    ref = (struct rdt_ref){.any_owner = 1, .id_bytes = 1, .id = "x"};
    rdt_ref_to_text(&ref, text);
    cr_assert_str_eq(text, "rdt:00000000000000000000000000000000/x");
    ref.is_name = 1;
    rdt_ref_to_text(&ref, text);
    cr_assert_str_eq(text, "rdt:00000000000000000000000000000000/x?v=0", "a name says so, also of any version");
    ref.after = UINT64_MAX;
    strcpy(ref.address, "h:1");
    rdt_ref_to_text(&ref, text);
    cr_assert_str_eq(text, "rdt:00000000000000000000000000000000/x?v=18446744073709551615&a=h:1");
}

Test(ref, bare_text_is_an_id)
{
    struct rdt_ref ref;

    cr_assert_eq(rdt_ref_from_text("model%20?g=1", &ref, NULL), RDT_OK);
    cr_assert_str_eq(ref.id, "model%20?g=1");
    cr_assert_eq(ref.any_owner, 1);
    cr_assert_eq(rdt_ref_from_text("", &ref, NULL), RDT_INVALID);
}

Test(ref, text_round_trip_keeps_everything)
{
    srand(1);
    for (int round = 0; round < ROUNDS; round++) {
        struct rdt_ref ref = random_ref(), back;
        char text[RDT_REF_TEXT_BYTES];

        rdt_ref_to_text(&ref, text);
        cr_assert_lt(strlen(text), sizeof text);
        cr_assert_eq(rdt_ref_from_text(text, &back, NULL), RDT_OK, "%s", text);
        assert_same(&ref, &back);
    }
}

Test(ref, longest_text_fits)
{
    struct rdt_ref ref = {.generation = UINT64_MAX, .uid = UINT32_MAX, .id_bytes = 128}, back;
    char *text = malloc(RDT_REF_TEXT_BYTES); /* on the heap, where the sanitizer sees its end */

    memset(ref.id, '%', 128);
    memset(ref.address, '&', 64);
    memset(ref.tenant, '?', 32);
    rdt_ref_to_text(&ref, text);
    cr_assert_eq(rdt_ref_from_text(text, &back, NULL), RDT_OK);
    assert_same(&ref, &back);
    free(text);
}

Test(ref, struct_past_its_bounds_is_not_overrun)
{
    struct rdt_ref *ref = malloc(sizeof *ref);
    uint8_t *packed = malloc(RDT_REF_PACKED_BYTES);
    char *text = malloc(RDT_REF_TEXT_BYTES);
    Rdt__Pb__Ref msg;

    memset(ref, 0xff, sizeof *ref);
    ref->any_owner = 0;
    rdt_ref_to_text(ref, text);
    cr_assert_leq(rdt_ref_pack(ref, packed), RDT_REF_PACKED_BYTES);
    cr_assert(rdt_ref_equal(ref, ref));
    wire_ref_from(ref, &msg);
    cr_assert_eq(msg.id.len, 128);
    free(text);
    free(packed);
    free(ref);
}

Test(ref, bad_text_is_refused)
{
#define NODE "rdt:00112233445566778899aabbccddeeFF"
    static const char *const bad[] = {
        "rdt:",
        "rdt:00",
        "rdt:0011223344556677x899aabbccddeeff/x",
        NODE,
        NODE "x",
        NODE "/",
        NODE "/?g=1",
        NODE "/x%",
        NODE "/x%4",
        NODE "/x%4g",
        NODE "/x%?g=1",
        NODE "/x?",
        NODE "/x?g",
        NODE "/x?g=",
        NODE "/x?g=-1",
        NODE "/x?g=1x",
        NODE "/x?g=18446744073709551616",
        NODE "/x?g=1&g=1",
        NODE "/x?h=1",
        NODE "/x?=1",
        NODE "/x?&",
        NODE "/x?u=4294967296",
        NODE "/x?t=blue",
        NODE "/x?a=",
        NODE "/x?a=a%00b",
        NODE "/x?u=1&t=%00",
        NODE "/x?u=1&t=123456789012345678901234567890123",
        NODE "/x?g=1&",
        NODE "/x?g=1?u=1",
        NODE "/x?v=",
        NODE "/x?v=-1",
        NODE "/x?v=1&v=1",
        NODE "/x?g=1&v=1",
        NODE "/x?v=0&g=1",
        NODE "/x?v=18446744073709551616",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct rdt_ref ref;
        struct rdt_error err = {0};

        cr_assert_eq(rdt_ref_from_text(bad[i], &ref, &err), RDT_INVALID, "%s", bad[i]);
        cr_assert_gt(strlen(err.msg), 0);
    }
}

Test(ref, overlong_parts_of_text_are_refused)
{
    char text[1000];
    struct rdt_ref ref;

    memset(text, 'x', sizeof text);
    memcpy(text, NODE "/", sizeof NODE);
    text[sizeof NODE + 128] = '\0';
    cr_assert_eq(rdt_ref_from_text(text, &ref, NULL), RDT_OK);
    text[sizeof NODE + 128] = 'x';
    text[sizeof NODE + 129] = '\0';
    cr_assert_eq(rdt_ref_from_text(text, &ref, NULL), RDT_INVALID);
}

Test(ref, packed_round_trip_keeps_everything)
{
    srand(2);
    for (int round = 0; round < ROUNDS; round++) {
        struct rdt_ref ref = random_ref(), back;
        uint8_t packed[RDT_REF_PACKED_BYTES];
        size_t bytes = rdt_ref_pack(&ref, packed);

        cr_assert_leq(bytes, sizeof packed);
        cr_assert_eq(rdt_ref_unpack(packed, bytes, &back, NULL), RDT_OK);
        assert_same(&ref, &back);
        cr_assert_eq(rdt_ref_unpack(packed, bytes - 1, &back, NULL), RDT_INVALID);
        cr_assert_eq(rdt_ref_unpack(packed, bytes + 1, &back, NULL), RDT_INVALID);
    }
}

Test(ref, packed_garbage_is_refused_or_whole)
{
    srand(3);
    for (int round = 0; round < ROUNDS; round++) {
        struct rdt_ref ref = random_ref(), back;
        uint8_t packed[RDT_REF_PACKED_BYTES], *copy;
        size_t bytes = rdt_ref_pack(&ref, packed);

        packed[(size_t)rand() % 33] = (uint8_t)rand();
        bytes = rand() % 2 ? bytes : (size_t)rand() % (bytes + 1);
        copy = malloc(bytes ? bytes : 1);
        memcpy(copy, packed, bytes);
        if (rdt_ref_unpack(copy, bytes, &back, NULL) == RDT_OK)
            cr_assert_eq(rdt_ref_pack(&back, packed), bytes);
        free(copy);
    }
}

Test(ref, equal_ignores_the_address_and_an_owner_not_given)
{
    struct rdt_ref a = {.node = {1}, .generation = 1, .uid = 3, .id_bytes = 1, .id = "x"}, b = a;

    strcpy(b.address, "somewhere:1");
    cr_assert(rdt_ref_equal(&a, &b));
    b.uid = 4;
    cr_assert_not(rdt_ref_equal(&a, &b));
    a.any_owner = b.any_owner = 1;
    cr_assert(rdt_ref_equal(&a, &b));
    b.any_owner = 0;
    cr_assert_not(rdt_ref_equal(&a, &b));
    b = a;
    b.generation = 2;
    cr_assert_not(rdt_ref_equal(&a, &b));
    b = a;
    b.id[0] = 'y';
    cr_assert_not(rdt_ref_equal(&a, &b));
}

Test(ref, name_is_not_the_object_of_that_id)
{
    struct rdt_ref object = {.any_owner = 1, .id_bytes = 1, .id = "x"}, name = object, later;

    name.is_name = 1;
    cr_assert_not(rdt_ref_equal(&object, &name));
    later = name;
    cr_assert(rdt_ref_equal(&later, &name));
    later.after = 1;
    cr_assert_not(rdt_ref_equal(&later, &name));
}

Test(ref, packed_object_is_as_it_always_was)
{
    static const uint8_t old[] = {1, 9, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0, 0, 0, 0, 0,
                                  7, 0, 0, 0, 0, 0, 0, 0, 0xe8, 3, 0, 0, 0, 1, 0, 0, 'x'};
    struct rdt_ref ref;
    uint8_t packed[RDT_REF_PACKED_BYTES];

    cr_assert_eq(rdt_ref_unpack(old, sizeof old, &ref, NULL), RDT_OK);
    cr_assert_eq(ref.is_name, 0);
    cr_assert_eq(ref.generation, 7);
    cr_assert_eq(ref.uid, 1000);
    cr_assert_eq(rdt_ref_pack(&ref, packed), sizeof old);
    cr_assert_eq(memcmp(packed, old, sizeof old), 0);
}

Test(wire_ref, round_trip_keeps_everything)
{
    srand(4);
    for (int round = 0; round < ROUNDS; round++) {
        struct rdt_ref ref = random_ref(), back;
        uint8_t packed[2 * RDT_REF_TEXT_BYTES];
        Rdt__Pb__Ref msg, *read;

        wire_ref_from(&ref, &msg);
        size_t bytes = rdt__pb__ref__pack(&msg, packed);
        read = rdt__pb__ref__unpack(NULL, bytes, packed);
        cr_assert_eq(wire_ref_to(read, &back, NULL), RDT_OK);
        assert_same(&ref, &back);
        rdt__pb__ref__free_unpacked(read, NULL);
    }
}

Test(wire_ref, no_node_is_all_zero)
{
    struct rdt_ref ref = {.any_owner = 1, .id_bytes = 1, .id = "x"};
    Rdt__Pb__Ref msg;

    wire_ref_from(&ref, &msg);
    cr_assert_eq(msg.node.len, 0);
    cr_assert_eq(wire_ref_to(&msg, &ref, NULL), RDT_OK);
}

Test(wire_ref, bad_message_is_refused)
{
    uint8_t bytes[200];
    char address[66], tenant[34];
    struct rdt_ref ref;
    struct rdt_error err;
    Rdt__Pb__Ref good = RDT__PB__REF__INIT, msg;

    memset(bytes, 'x', sizeof bytes);
    memset(address, 'x', sizeof address);
    memset(tenant, 'x', sizeof tenant);
    address[65] = tenant[33] = '\0';
    good.id.data = bytes;
    good.id.len = 128;
    cr_assert_eq(wire_ref_to(&good, &ref, &err), RDT_OK);
    cr_assert_eq(wire_ref_to(NULL, &ref, &err), RDT_INVALID);
    msg = good;
    msg.id.len = 0;
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_INVALID);
    msg.id.len = 129;
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_INVALID);
    msg = good;
    msg.node.data = bytes;
    msg.node.len = 15;
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_INVALID);
    msg = good;
    msg.is_name = true;
    msg.after = 3;
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_OK);
    cr_assert_eq(ref.after, 3);
    msg.generation = 1;
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_INVALID);
    msg = good;
    msg.after = 3; /* means nothing without a name */
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_OK);
    cr_assert_eq(ref.after, 0);
    msg = good;
    msg.address = address;
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_INVALID);
    msg = good;
    msg.tenant = tenant;
    cr_assert_eq(wire_ref_to(&msg, &ref, &err), RDT_INVALID);
    cr_assert_not_null(strstr(err.msg, "tenant"));
}

Test(ref, id_in_lists_prints)
{
    char text[3 * 12 + 1];

    wire_ref_id_text("a b%\n\x1b[2J\xff\0~", 12, text);
    cr_assert_str_eq(text, "a%20b%25%0A%1B[2J%FF%00~");
    wire_ref_id_text("", 0, text);
    cr_assert_str_eq(text, "");
}

/* ---- lists ---- */

Test(ref, list_has_what_its_refs_have_in_common_once)
{
    enum { N = 5000, KINDS = 40 };
    struct rdt_ref kinds[KINDS], *refs = calloc(N, sizeof *refs), back;
    Rdt__Pb__RefList *list;
    struct arena arena;
    size_t at = 0;

    srand(7);
    for (unsigned i = 0; i < KINDS; i++)
        kinds[i] = random_ref();
    for (unsigned i = 0; i < N; i++) {
        refs[i] = kinds[i % KINDS];
        refs[i].id[0] = (char)(i % 251);
        if (!refs[i].is_name)
            refs[i].generation = i;
        memset(refs[i].address + strlen(refs[i].address) + 1, (int)i, sizeof refs[i].address - strlen(refs[i].address) - 1);
    }
    arena_init(&arena, SIZE_MAX / 2);
    cr_assert_eq(ref_list_make(&arena, refs, NULL, N, &list, NULL), RDT_OK);
    cr_assert_eq(list->n_like, KINDS);
    cr_assert_eq(ref_list_check(list, NULL), RDT_OK);
    for (unsigned i = 0; i < N; at += list->id_bytes[i++]) {
        cr_assert_eq(ref_list_get(list, i, at, &back, NULL), RDT_OK);
        cr_assert(memcmp(back.node, refs[i].node, 16) == 0 && back.is_name == refs[i].is_name && back.after == refs[i].after &&
                  back.generation == refs[i].generation && back.any_owner == refs[i].any_owner && back.uid == refs[i].uid &&
                  strcmp(back.address, refs[i].address) == 0 && strcmp(back.tenant, refs[i].tenant) == 0 &&
                  back.id_bytes == refs[i].id_bytes && memcmp(back.id, refs[i].id, back.id_bytes) == 0);
    }
    list->n_id_bytes = list->n_like_index = list->n_generation = KINDS - 1;
    cr_assert_eq(ref_list_check(list, NULL), RDT_INVALID);
    arena_fini(&arena);
    free(refs);
}
