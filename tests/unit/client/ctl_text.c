/* SPDX-License-Identifier: Apache-2.0 */
/* The output functions of rdtctl: protobuf as JSON, aligned columns, sizes and durations, and names that contain control
 * sequences of terminals. The test compiles the sources in, because they belong to rdtctl and not to a library. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../client/ctl/ctl_json.c"
#include "../../../client/ctl/ctl_table.c"
#include "rdt.pb-c.h"

/* ---- JSON ---- */

Test(ctl_json, keys_are_field_names_and_defaults_are_there)
{
    Rdt__Pb__ObjectInfo object = RDT__PB__OBJECT_INFO__INIT;
    json_t *json = ctl_json(&object.base);

    cr_assert(json_object_size(json) == rdt__pb__object_info__descriptor.n_fields);
    cr_assert_str_eq(json_string_value(json_object_get(json, "state")), "");
    cr_assert(json_is_integer(json_object_get(json, "metadata_bytes")));
    cr_assert(json_is_array(json_object_get(json, "holders")));
    json_decref(json);
}

Test(ctl_json, every_kind_of_field)
{
    uint8_t node[] = {0x00, 0xAB, 0xFF};
    uint64_t shape[] = {1, INT64_MAX, UINT64_MAX};
    int64_t strides[] = {-1, INT64_MIN};
    uint32_t dtype[] = {1, UINT32_MAX};
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__FetchDone done = RDT__PB__FETCH_DONE__INIT;
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    const char *want =
        "{\"node\":\"00abff\",\"id\":\"\",\"generation\":\"18446744073709551615\",\"address\":\"\",\"tenant\":\"\","
        "\"uid\":4294967295,\"any_owner\":true,\"is_name\":false,\"after\":0}";

    ref.node = (ProtobufCBinaryData){sizeof node, node};
    ref.generation = UINT64_MAX;
    ref.uid = UINT32_MAX;
    ref.any_owner = 1;
    done.ref = &ref;
    done.status = -11;
    done.elapsed_ns = INT64_MIN;
    json_t *json = ctl_json(&done.base);
    char *text = json_dumps(json_object_get(json, "ref"), JSON_COMPACT);
    cr_assert_str_eq(text, want);
    free(text);
    cr_assert(json_integer_value(json_object_get(json, "status")) == -11);
    cr_assert(json_integer_value(json_object_get(json, "elapsed_ns")) == INT64_MIN);
    cr_assert(json_is_null(json_object_get(json, "tensors")));
    json_decref(json);

    tensors.shape = shape;
    tensors.n_shape = 3;
    tensors.strides = strides;
    tensors.n_strides = 2;
    tensors.dtype = dtype;
    tensors.n_dtype = 2;
    put.tensors = &tensors;
    put.visibility = RDT__PB__VISIBILITY__VISIBILITY_ALL;
    json = ctl_json(&put.base);
    cr_assert_str_eq(json_string_value(json_object_get(json, "visibility")), "all");
    json_t *inner = json_object_get(json, "tensors");
    text = json_dumps(inner, JSON_COMPACT);
    cr_assert_str_eq(text, "{\"dtype\":[1,4294967295],\"ndim\":[],\"shape\":[1,9223372036854775807,\"18446744073709551615\"],"
                           "\"strides\":[-1,-9223372036854775808],\"region_index\":[],\"offset\":[],\"run\":[],\"step\":[]}");
    free(text);
    json_decref(json);
    put.visibility = (Rdt__Pb__Visibility)77; /* of a newer daemon */
    json = ctl_json(&put.base);
    cr_assert(json_integer_value(json_object_get(json, "visibility")) == 77);
    json_decref(json);
}

Test(ctl_json, text_that_is_not_utf8_is_replaced)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"\xC3\xA9", "\xC3\xA9"},
        {"a\xFF"
         "b",
         "a\xEF\xBF\xBD"
         "b"},
        {"\xC3", "\xEF\xBF\xBD"},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* overlong */
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* a surrogate */
        {"\xF0\x9F\x98\x80\xF0\x9F", "\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = ctl_json_text(cases[i].in);

        cr_expect_str_eq(json_string_value(json), cases[i].out);
        json_decref(json);
    }
}

/* ---- text ---- */

Test(ctl_table, sizes_and_durations)
{
    char text[CTL_HUMAN_BYTES];

    cr_expect_str_eq(ctl_human_bytes(0, text), "0 B");
    cr_expect_str_eq(ctl_human_bytes(1023, text), "1023 B");
    cr_expect_str_eq(ctl_human_bytes(1024, text), "1.0 KiB");
    cr_expect_str_eq(ctl_human_bytes((1u << 20) - 1, text), "1.0 MiB");
    cr_expect_str_eq(ctl_human_bytes(UINT64_MAX, text), "16.0 EiB");
    cr_expect_str_eq(ctl_human_duration(-1, text), "-");
    cr_expect_str_eq(ctl_human_duration(INT64_MIN, text), "-");
    cr_expect_str_eq(ctl_human_duration(999, text), "999 ns");
    cr_expect_str_eq(ctl_human_duration(1500, text), "1.5 us");
    cr_expect_str_eq(ctl_human_duration(999999, text), "1.0 ms");
    cr_expect_str_eq(ctl_human_duration(1500000000, text), "1.5 s");
    cr_expect_str_eq(ctl_human_duration(INT64_C(61000000000), text), "1m 01s");
    cr_expect_str_eq(ctl_human_duration(INT64_C(3661000000000), text), "1h 01m");
    cr_expect_str_eq(ctl_human_duration(INT64_MAX, text), "106751d 23h");
    cr_expect_str_eq(ctl_human_rate(1 << 20, 500000000, text), "2.0 MiB/s");
    cr_expect_str_eq(ctl_human_rate(1, 0, text), "-");
    cr_expect_str_eq(ctl_human_rate(UINT64_MAX, 1, text), "-");
}

Test(ctl_table, terminals_are_not_obeyed)
{
    char text[8];

    cr_expect_str_eq(ctl_plain("a\033[2J", text, sizeof text), "a?[2J");
    cr_expect_str_eq(ctl_plain("\xC2\x9B"
                               "2J",
                               text, sizeof text),
                     "??2J");
    cr_expect_str_eq(ctl_plain("\xE2\x80\xAE"
                               "ab",
                               text, sizeof text),
                     "???ab"); /* U+202E would show what follows from right to left */
    cr_expect_str_eq(ctl_plain("1234567", text, sizeof text), "1234567");
    cr_expect_str_eq(ctl_plain("12345678", text, sizeof text), "1234...");
    cr_expect_str_eq(ctl_plain("123\xC3\xA9"
                               "678",
                               text, sizeof text),
                     "123...");
    cr_expect_str_eq(ctl_plain(NULL, text, sizeof text), "");
}

static char *printed(const struct ctl_table *table, const char *nothing)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    cr_assert(ctl_table_print(table, nothing, out));
    fclose(out);
    return text;
}

Test(ctl_table, columns_are_aligned)
{
    static const struct ctl_column columns[] = {{"NAME", false}, {"BYTES", true}, {"LAST", false}};
    struct ctl_table table;

    ctl_table_init(&table, columns, 3);
    char *text = printed(&table, "nothing there");
    cr_expect_str_eq(text, "nothing there\n");
    free(text);
    ctl_table_add(&table, "%s", "caf\xC3\xA9");
    ctl_table_add(&table, "%d", 7);
    ctl_table_add(&table, "%s", "x\ny");
    ctl_table_add(&table, "%s", "longer");
    ctl_table_add(&table, "%d", 1234567);
    ctl_table_add(&table, "%s", "");
    text = printed(&table, "nothing there");
    cr_expect_str_eq(text, "NAME      BYTES  LAST\n"
                           "caf\xC3\xA9          7  x?y\n"
                           "longer  1234567  -\n");
    free(text);
    ctl_table_fini(&table);
}
