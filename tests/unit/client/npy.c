/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl's reader and writer of npy headers: headers of numpy and of other writers, and false headers. The test compiles
 * the sources in, because they belong to rdtctl and not to a library. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../client/ctl/ctl_bytes.c"
#include "../../../client/ctl/files/ctl_npy.c"

/* Magic, version, length and this text; returns how many bytes. */
static size_t front(uint8_t *file_p, unsigned major, const char *text)
{
    size_t n = strlen(text), at = major == 1 ? 10 : 12;

    memcpy(file_p, NPY_MAGIC, NPY_MAGIC_BYTES);
    file_p[6] = (uint8_t)major;
    file_p[7] = 0;
    for (size_t i = 8; i < at; i++)
        file_p[i] = (uint8_t)(n >> 8 * (i - 8));
    memcpy(file_p + at, text, n);
    return at + n;
}

static enum rdt_status parse(unsigned major, const char *text, uint64_t data_bytes, struct npy *npy_p, struct rdt_error *err)
{
    uint8_t file[70000];
    size_t n = front(file, major, text);
    uint8_t *exact = malloc(n); /* what lies behind it is seen by AddressSanitizer */
    enum rdt_status status;

    memcpy(exact, file, n);
    status = npy_parse(exact, n, n + data_bytes, npy_p, err);
    free(exact);
    return status;
}

/* ---- files that are right ---- */

Test(npy, all_versions_are_read)
{
    for (unsigned major = 1; major <= 3; major++) {
        struct rdt_error err = {0};
        struct npy npy;

        cr_assert(parse(major, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }     \n", 24, &npy, &err) == RDT_OK,
                  "%s", err.msg);
        cr_assert(npy.dtype == RDT_F32 && npy.ndim == 2 && npy.data_bytes == 24);
        cr_assert(npy.shape[0] == 2 && npy.shape[1] == 3 && npy.strides[0] == 3 && npy.strides[1] == 1);
        cr_assert_eq(npy.data_offset, (major == 1 ? 10u : 12u) + 65);
    }
}

Test(npy, fortran_order_becomes_strides)
{
    struct npy npy;

    cr_assert(parse(1, "{'descr': '<i8', 'fortran_order': True, 'shape': (2, 3, 4)}", 192, &npy, NULL) == RDT_OK);
    cr_assert(npy.strides[0] == 1 && npy.strides[1] == 2 && npy.strides[2] == 6);
    cr_assert(parse(1, "{'descr': '<i8', 'fortran_order': True, 'shape': (0, 9223372036854775807, 1)}", 0, &npy, NULL) !=
              RDT_OK);
    cr_assert(parse(1, "{'descr': '<i8', 'fortran_order': True, 'shape': (7, 0, 3)}", 0, &npy, NULL) == RDT_OK);
    cr_assert(npy.data_bytes == 0);
}

/* Keys in any order, other quotes, no spaces or many, Python 2's longs, an explicit native order. */
Test(npy, other_writers_are_understood)
{
    static const char *const texts[] = {
        "{'shape':(4,),'fortran_order':False,'descr':'<u2'}",
        " { \"descr\" : \"<u2\" , \"fortran_order\" : False , \"shape\" : ( 4 , ) , } \n",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4L,)}",
        "{'descr': '=u2', 'fortran_order': True, 'shape': (2, 2,), }",
        "{'descr': 'u2', 'fortran_order': False, 'shape': (1,\n4), }\t\r\n",
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct rdt_error err = {0};
        struct npy npy;

        cr_expect(parse(1, texts[i], 8, &npy, &err) == RDT_OK, "%s: %s", texts[i], err.msg);
        cr_expect(npy.dtype == RDT_U16 && npy.data_bytes == 8, "%s", texts[i]);
    }
}

/* ---- files that lie ---- */

#define HEAD(descr) "{'descr': " descr ", 'fortran_order': False, 'shape': (2,)}"
#define SHAPE(shape) "{'descr': '|u1', 'fortran_order': False, 'shape': " shape "}"

static const struct lie {
    const char *text;
    uint64_t data_bytes;
    enum rdt_status status;
    const char *says;
} lies[] = {
    {"", 0, RDT_INVALID, "ends where '{' should be"},
    {"[]", 0, RDT_INVALID, "0x5b at its byte 0, where '{' should be"},
    {"{", 0, RDT_INVALID, "ends where a key"},
    {"{}", 0, RDT_INVALID, "no 'descr'"},
    {"{'descr'", 0, RDT_INVALID, "':'"},
    {"{'descr", 0, RDT_INVALID, "a closing quote"},
    {"{'descr\\x41': 1}", 0, RDT_INVALID, "0x5c at its byte 7"},
    {"{descr: '|u1'}", 0, RDT_INVALID, "a key in quotes"},
    {"{'descr': '|u1'; }", 0, RDT_INVALID, "a ',' or '}'"},
    {"{'descr': '|u1', 'descr': '|u1'}", 0, RDT_INVALID, "'descr' twice"},
    {"{'extra': '|u1'}", 0, RDT_INVALID, "a key 'extra' beside"},
    {"{'descr': '|u1', 'fortran_order': False}", 0, RDT_INVALID, "no 'shape'"},
    {"{'descr': '|u1', 'shape': ()}", 0, RDT_INVALID, "no 'fortran_order'"},
    {"{'descr': '|u1', 'fortran_order': 0, 'shape': ()}", 1, RDT_INVALID, "True or False"},
    {"{'descr': '|u1', 'fortran_order': Fals", 1, RDT_INVALID, "True or False"},
    {SHAPE("(2,)") " x", 2, RDT_INVALID, "where its end should be"},
    {SHAPE("2"), 2, RDT_INVALID, "the shape's '('"},
    {SHAPE("(2)"), 2, RDT_INVALID, "is not a tuple"},
    {SHAPE("[2]"), 2, RDT_INVALID, "the shape's '('"},
    {SHAPE("(2, -1)"), 2, RDT_INVALID, "a number of elements"},
    {SHAPE("(2.0,)"), 2, RDT_INVALID, "a ',' or ')'"},
    {SHAPE("(,)"), 2, RDT_INVALID, "a number of elements"},
    {SHAPE("(2 2)"), 2, RDT_INVALID, "a ',' or ')'"},
    {SHAPE("(2, 2"), 2, RDT_INVALID, "where a ',' or ')'"},
    {SHAPE("(__import__('os'),)"), 2, RDT_INVALID, "a number of elements"},
    {SHAPE("(9223372036854775808,)"), 2, RDT_INVALID, "shape[0] is too large"},
    {SHAPE("(1, 99999999999999999999999999)"), 2, RDT_INVALID, "shape[1] is too large"},
    {SHAPE("(4294967296, 4294967296)"), 2, RDT_INVALID, "overflows at dimension 1"},
    {SHAPE("(9223372036854775807, 2)"), 2, RDT_INVALID, "overflows"},
    {SHAPE("(0, 9223372036854775807, 2)"), 0, RDT_INVALID, "overflows"},
    {SHAPE("(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)"), 1, RDT_LIMIT, "more than 32 dimensions"},
    {SHAPE("(3,)"), 2, RDT_INVALID, "truncated: dtype and shape make 3 bytes, the file has 2"},
    {SHAPE("(3,)"), 5, RDT_INVALID, "2 bytes follow the array's 3"},
    {HEAD("'|O'"), 16, RDT_UNSUPPORTED, "Python objects"},
    {HEAD("'O'"), 16, RDT_UNSUPPORTED, "pickle"},
    {HEAD("[('a', '<f4'), ('b', '<i4')]"), 16, RDT_UNSUPPORTED, "structured"},
    {HEAD("('<f4', (2, 2))"), 32, RDT_UNSUPPORTED, "elements are arrays"},
    {HEAD("'<U7'"), 56, RDT_UNSUPPORTED, "text"},
    {HEAD("'|S4'"), 8, RDT_UNSUPPORTED, "text"},
    {HEAD("'<M8[ns]'"), 16, RDT_UNSUPPORTED, "view('i8')"},
    {HEAD("'<V2'"), 4, RDT_UNSUPPORTED, "bfloat16"},
    {HEAD("'>f4'"), 8, RDT_UNSUPPORTED, "newbyteorder"},
    {HEAD("'<f16'"), 32, RDT_UNSUPPORTED, "unknown dtype '<f16'"},
    {HEAD("'<f4x'"), 8, RDT_UNSUPPORTED, "unknown dtype"},
    {HEAD("'<f+4'"), 8, RDT_UNSUPPORTED, "unknown dtype"},
    {HEAD("'<f99999999999999999999'"), 8, RDT_UNSUPPORTED, "unknown dtype"},
    {HEAD("'<'"), 8, RDT_UNSUPPORTED, "unknown dtype '<'"},
    {HEAD("''"), 8, RDT_UNSUPPORTED, "unknown dtype ''"},
    {HEAD("'\x01'"), 8, RDT_INVALID, "0x01"},
    {HEAD("'0123456789012345678901234567890123456789012345678901234567890123456789'"), 8, RDT_INVALID, "a dtype in quotes"},
};

Test(npy, hostile_headers_are_refused_by_name)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct rdt_error err = {0};
        struct npy npy;
        enum rdt_status status = parse(2, lies[i].text, lies[i].data_bytes, &npy, &err);

        cr_expect(status == lies[i].status, "%s: %s %s", lies[i].text, rdt_status_name(status), err.msg);
        cr_expect(strstr(err.msg, lies[i].says), "%s: '%s' does not say '%s'", lies[i].text, err.msg, lies[i].says);
    }
}

Test(npy, preamble_is_checked_before_the_header)
{
    uint8_t file[200];
    struct rdt_error err = {0};
    size_t n = front(file, 1, SHAPE("(2,)"));
    struct npy npy;

    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1);
        memcpy(exact, file, cut);
        cr_expect(npy_parse(exact, cut, cut, &npy, &err) == RDT_INVALID, "prefix of %zu", cut);
        free(exact);
    }
    file[7] = 1;
    cr_assert(npy_parse(file, n, n + 2, &npy, &err) == RDT_UNSUPPORTED && strstr(err.msg, "version 1.1"), "%s", err.msg);
    file[6] = 4;
    file[7] = 0;
    cr_assert(npy_parse(file, n, n + 2, &npy, &err) == RDT_UNSUPPORTED && strstr(err.msg, "version 4.0"), "%s", err.msg);
    file[6] = 2;
    memset(file + 8, 0xff, 4);
    cr_assert(npy_parse(file, n, n + 2, &npy, &err) == RDT_LIMIT && strstr(err.msg, "4294967295"), "%s", err.msg);
    memcpy(file + 8, "\xff\xff\0\0", 4);
    cr_assert(npy_parse(file, n, n + 2, &npy, &err) == RDT_INVALID && strstr(err.msg, "claims 65535"), "%s", err.msg);
}

Test(npy, only_regular_files_are_read)
{
    struct rdt_error err = {0};
    struct npy npy;
    int pipes[2];

    cr_assert(pipe(pipes) == 0);
    cr_assert(npy_read(pipes[0], &npy, &err) == RDT_INVALID && strstr(err.msg, "not a regular file"));
    close(pipes[0]);
    close(pipes[1]);
}

/* ---- writing ---- */

/* The bytes that numpy.save makes of numpy.arange(6, dtype='<f4').reshape(2, 3). */
Test(npy, header_is_numpys_own)
{
    static const char numpys[] = "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
                                 "                                                          \n";
    const struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 2, .shape = (int64_t[]){2, 3}};
    size_t bytes;
    char *header;

    cr_assert(npy_header(&tensor, &header, &bytes, NULL) == RDT_OK);
    cr_assert_eq(bytes, sizeof numpys - 1);
    cr_assert(memcmp(header, numpys, bytes) == 0);
    free(header);
}

Test(npy, every_dtype_reads_back_or_is_refused)
{
    static const int64_t large[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, INT64_MAX >> 4};
    unsigned n_read = 0;

    for (unsigned dtype = 0; dtype < 64; dtype++) {
        for (unsigned shape = 0; shape < 4; shape++) {
            const struct rdt_tensor tensors[] = {
                {.dtype = dtype},
                {.dtype = dtype, .ndim = 1, .shape = (int64_t[]){7}},
                {.dtype = dtype, .ndim = 3, .shape = (int64_t[]){2, 0, 5}},
                {.dtype = dtype, .ndim = 32, .shape = large},
            };
            struct rdt_error err = {0};
            size_t header_bytes, bytes;
            struct npy npy;
            char *header;

            if (npy_header(&tensors[shape], &header, &header_bytes, &err)) {
                cr_assert(err.status == RDT_UNSUPPORTED && strstr(err.msg, "an npy file cannot hold"), "%s", err.msg);
                continue;
            }
            cr_assert(header_bytes % 64 == 0);
            cr_assert(rdt_tensor_bytes(&tensors[shape], &bytes, &err) == RDT_OK, "%s", err.msg);
            cr_assert(npy_parse(header, header_bytes, header_bytes + bytes, &npy, &err) == RDT_OK, "%s", err.msg);
            cr_assert(npy.dtype == dtype && npy.ndim == tensors[shape].ndim && npy.data_bytes == bytes);
            cr_assert(npy.ndim == 0 || memcmp(npy.shape, tensors[shape].shape, npy.ndim * sizeof *npy.shape) == 0);
            free(header);
            n_read++;
        }
    }
    cr_assert_eq(n_read, 4 * N_KINDS);
}
