/* SPDX-License-Identifier: Apache-2.0 */
/* How stored objects and names look on the disk: what is written is read again, and what is wrong is refused. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/persist/storage_file.h"
#include "tests/support/check.h"

TestSuite(storage_file);

#define TEXT(text) ((ProtobufCBinaryData){sizeof(text) - 1, (uint8_t *)(text)})

static Rdt__Pb__ObjectRecord facts(void)
{
    Rdt__Pb__ObjectRecord record = RDT__PB__OBJECT_RECORD__INIT;

    record.generation = 0x123456789a;
    record.uid = 1000;
    record.tenant = (char *)"t";
    record.id = TEXT("an \"id\"\n");
    record.metadata = TEXT("metadata");
    record.visibility = RDT__PB__VISIBILITY__VISIBILITY_ALL;
    record.transport = (char *)"ucx";
    record.detached_ttl_ns = 5;
    return record;
}

/* A u8 [3], an f32 [2, 2] and a c128 scalar. */
static struct layout *three_tensors(void)
{
    uint32_t dtype[] = {RDT_U8, RDT_F32, RDT_C128}, ndim[] = {1, 2, 0};
    uint64_t shape[] = {3, 2, 2}, offset[] = {0, 64, 128};
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    struct layout *layout;

    list.dtype = dtype;
    list.n_dtype = list.n_ndim = list.n_shape = list.n_offset = 3;
    list.ndim = ndim;
    list.shape = shape;
    list.offset = offset;
    must_ok(layout_from_wire(&list, &layout, &err));
    return layout;
}

Test(storage_file, what_is_written_of_an_object_is_read_again)
{
    Rdt__Pb__ObjectRecord about = facts();
    struct layout *layout = three_tensors();
    struct stored_plan plan;
    struct stored_file file;

    must_ok(stored_plan_init(&plan, &about, layout, NULL, &err));
    cr_assert_eq(plan.header_bytes % STORAGE_ALIGN_BYTES, 0u);
    cr_assert_eq(plan.data_bytes, 16u + 16u + 3u);
    cr_assert(plan.order[0] == 2 && plan.order[1] == 1 && plan.order[2] == 0, "the largest elements come first");
    must_ok(stored_file_parse(plan.header + 8, plan.header_bytes - 8, plan.header_bytes + plan.data_bytes, &file, &err));
    cr_assert_eq(file.facts->generation, about.generation);
    cr_assert_eq(file.facts->uid, 1000u);
    cr_assert_str_eq(file.facts->tenant, "t");
    cr_assert(file.facts->id.len == 8 && memcmp(file.facts->id.data, about.id.data, 8) == 0);
    cr_assert_eq(file.facts->detached_ttl_ns, 5);
    cr_assert_eq(file.layout->count, 3u);
    cr_assert_eq(file.layout->offset[2], plan.header_bytes);
    cr_assert_eq(file.layout->offset[0], plan.header_bytes + 32);
    stored_file_fini(&file);
    stored_plan_fini(&plan);
    free(layout);
}

static bool header_has(const struct stored_plan *plan, const char *text)
{
    return memmem(plan->header, plan->header_bytes, text, strlen(text));
}

/* The tensors in the order of their places in the metadata: u8 [3], f32 [2, 2], c128 []. */
#define ENTRIES(a, b, c)                                                                                            \
    "{" c ": {\"shape\":[],\"data_offsets\": [19 ,35],\"dtype\":\"C128\"}, \"__metadata__\":{\"k\":\"}\\\"\"},\n" a \
    ":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}," b                                                   \
    ":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[3,19]}}   "

Test(storage_file, names_of_tensors_in_a_safetensors_header_are_those_of_the_file)
{
    static const char *const others[] = {
        ENTRIES("\"a\"", "\"b\"", "\"b\""),
        ENTRIES("\"a\"", "\"\\u0062\"", "\"c\""),
        ENTRIES("\"a\"", "\"\x7f\"", "\"c\""),
        ENTRIES("\"a\"", "\"\xc1\x81\"", "\"c\""),
        ENTRIES("\"a\"", "\"b\"", "c"),
        ENTRIES("\"a\"", "\"b\"", "\"c\":1,\"d\""),
        "{\"a\":{\"data_offsets\":[0,3]}}",
        "{\"a\":{\"data_offsets\":[0,4]},\"b\":{\"data_offsets\":[4,20]},\"c\":{\"data_offsets\":[20,36]}}",
        "{\"a\":{\"data_offsets\":[0,3]},\"b\":{\"data_offsets\":[19,3]},\"c\":{\"data_offsets\":[19,35]}}"};
    const char *good = ENTRIES("\"layer.0\"", "\"\xc3\xa4\"", "\"scale\"");
    struct layout *layout = three_tensors();
    Rdt__Pb__ObjectRecord about = facts();
    struct stored_plan plan;

    about.metadata = (ProtobufCBinaryData){strlen(good), (uint8_t *)good};
    must_ok(stored_plan_init(&plan, &about, layout, NULL, &err));
    cr_assert(header_has(&plan, ",\"layer.0\":{\"dtype\":\"U8\",\"shape\":[3],"));
    cr_assert(header_has(&plan, ",\"\xc3\xa4\":{\"dtype\":\"F32\",\"shape\":[2,2],"));
    cr_assert(header_has(&plan, ",\"scale\":{"));
    stored_plan_fini(&plan);
    for (size_t cut = 0; cut < strlen(good) - 3; cut++) { /* three blanks follow */
        about.metadata.len = cut;
        must_ok(stored_plan_init(&plan, &about, layout, NULL, &err));
        cr_assert(header_has(&plan, ",\"0\":{") && header_has(&plan, ",\"2\":{"), "cut at %zu", cut);
        stored_plan_fini(&plan);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        about.metadata = (ProtobufCBinaryData){strlen(others[i]), (uint8_t *)others[i]};
        must_ok(stored_plan_init(&plan, &about, layout, NULL, &err));
        cr_assert(header_has(&plan, ",\"0\":{") && header_has(&plan, ",\"2\":{"), "%s", others[i]);
        stored_plan_fini(&plan);
    }
    free(layout);
}

/* Each byte of a header is changed in turn: the change shows, or it is in what rdtd does not read. */
Test(storage_file, no_changed_byte_harms)
{
    Rdt__Pb__ObjectRecord about = facts();
    struct layout *layout = three_tensors();
    struct stored_plan plan;
    struct stored_file file;
    unsigned n_refused = 0;

    must_ok(stored_plan_init(&plan, &about, layout, NULL, &err));
    for (size_t i = 8; i < plan.header_bytes; i++) {
        struct rdt_error err = {0};
        plan.header[i] ^= 0x20;
        if (stored_file_parse(plan.header + 8, plan.header_bytes - 8, plan.header_bytes + plan.data_bytes, &file, &err) ==
            RDT_OK) {
            cr_assert(file.facts->generation == about.generation && file.layout->count == 3, "byte %zu", i);
            stored_file_fini(&file);
        } else {
            cr_assert(err.msg[0] != '\0');
            n_refused++;
        }
        plan.header[i] ^= 0x20;
    }
    cr_assert_gt(n_refused, 150u);
    must_refuse(
        RDT_INVALID, "bytes of tensors, and should have",
        stored_file_parse(plan.header + 8, plan.header_bytes - 8, plan.header_bytes + plan.data_bytes - 1, &file, &err));
    for (uint64_t cut = 0; cut < plan.header_bytes - 8; cut++)
        cr_assert_neq(stored_file_parse(plan.header + 8, cut, plan.header_bytes + plan.data_bytes, &file, NULL), RDT_OK);
    stored_plan_fini(&plan);
    free(layout);
}

Test(storage_file, record_of_a_name_is_read_again_and_checked)
{
    Rdt__Pb__NameRecord record = RDT__PB__NAME_RECORD__INIT;
    const Rdt__Pb__NameRecord *found;
    uint8_t text[STORAGE_MAX_NAME_BYTES];
    struct arena arena;

    record.uid = 7;
    record.id = (ProtobufCBinaryData){7, (uint8_t *)"weights"};
    record.version = 3;
    record.generation = 9;
    size_t bytes = stored_name_pack(&record, text, sizeof text);
    cr_assert(bytes > 0 && stored_name_pack(&record, text, 20) == 0);
    arena_init(&arena, (size_t)1 << 20);
    bytes = stored_name_pack(&record, text, sizeof text);
    must_ok(stored_name_parse(text, bytes, &arena, &found, &err));
    cr_assert(found->version == 3 && found->generation == 9 && found->uid == 7);
    for (size_t i = 0; i < bytes; i++) {
        text[i] ^= 1;
        must_be(RDT_INVALID, stored_name_parse(text, bytes, &arena, &found, &err));
        text[i] ^= 1;
    }
    arena_fini(&arena);
}

Test(storage_file, names_of_files_are_told_apart)
{
    uint64_t generation;
    char name[STORAGE_FILE_NAME_BYTES];
    bool for_cache;

    storage_object_file(0x1234, storage_suffix(true), name);
    cr_assert(storage_is_object_file(name, &generation, &for_cache) && generation == 0x1234 && for_cache);
    storage_object_file(0x1234, storage_suffix(false), name);
    cr_assert_str_eq(name, "0000000000001234.safetensors");
    cr_assert(storage_is_object_file(name, &generation, &for_cache) && generation == 0x1234 && !for_cache);
    cr_assert(!storage_is_name_file(name));
    cr_assert(!storage_is_object_file("0000000000000000.safetensors", &generation, &for_cache));
    cr_assert(!storage_is_object_file("ffffffffffffffff.safetensors", &generation, &for_cache));
    cr_assert(!storage_is_object_file("000000000000123.safetensors", &generation, &for_cache));
    cr_assert(!storage_is_object_file("0000000000001234.safetensors.tmp", &generation, &for_cache));
    cr_assert(!storage_is_object_file("", &generation, &for_cache) && !storage_is_name_file(""));
    storage_name_file((const uint8_t *)"key", 3, name);
    cr_assert(storage_is_name_file(name) && strlen(name) < STORAGE_FILE_NAME_BYTES);
}
