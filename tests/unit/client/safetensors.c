/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl's reader and writer of safetensors: round trips, and false headers. The test compiles the sources in, because they
 * belong to rdtctl and not to a library. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../client/ctl/ctl_bytes.c"
#include "../../../client/ctl/files/ctl_safetensors.c"
#include "../../../client/ctl/files/ctl_safetensors_write.c"

static int file_of(const void *bytes, size_t n)
{
    int fd = memfd_create("safetensors", MFD_CLOEXEC);

    cr_assert(fd >= 0);
    cr_assert(write(fd, bytes, n) == (ssize_t)n);
    return fd;
}

/* A whole file: length, header, data_bytes of zeros. */
static int file_with(const char *header, uint64_t claimed, size_t data_bytes)
{
    size_t header_bytes = strlen(header), bytes = 8 + header_bytes + data_bytes;
    unsigned char *file = calloc(1, bytes);

    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)(claimed >> 8 * i);
    memcpy(file + 8, header, header_bytes);
    int fd = file_of(file, bytes);
    free(file);
    return fd;
}

static char *contents(int fd, size_t *bytes_p)
{
    off_t end = lseek(fd, 0, SEEK_END);
    char *bytes = malloc((size_t)end + 1);

    cr_assert(pread(fd, bytes, (size_t)end, 0) == end);
    *bytes_p = (size_t)end;
    return bytes;
}

/* ---- files that are right ---- */

Test(safetensors, reads_tensors_in_the_order_of_their_bytes)
{
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"late\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                         "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                         "\"scalar\":{\"shape\":[],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}   ";
    int fd = file_with(header, strlen(header), 16);
    struct safetensors *s = NULL;
    struct rdt_error err = {0};

    cr_assert(safetensors_read(fd, SAFETENSORS_MAX_HEADER_BYTES, &s, &err) == RDT_OK, "%s", err.msg);
    cr_assert(s->count == 3 && s->data_bytes == 16);
    cr_assert(s->header_bytes == strlen(header) && memcmp(s->header, header, s->header_bytes) == 0);
    cr_assert_str_eq(s->tensors[0].name, "scalar");
    cr_assert_str_eq(s->tensors[1].name, "empty");
    cr_assert_str_eq(s->tensors[2].name, "late");
    cr_assert(s->tensors[0].ndim == 0 && s->tensors[0].dtype == RDT_F32);
    cr_assert(s->tensors[2].ndim == 2 && s->tensors[2].dtype == RDT_BF16);
    cr_assert(s->shape[s->tensors[2].first_dim] == 2 && s->shape[s->tensors[2].first_dim + 1] == 3);
    cr_assert(s->shape[s->tensors[1].first_dim] == 0 && s->shape[s->tensors[1].first_dim + 1] == 7);
    safetensors_destroy(s);
    close(fd);
}

Test(safetensors, empty_object_is_a_file)
{
    int fd = file_with("{}", 2, 0);
    struct safetensors *s = NULL;

    cr_assert(safetensors_read(fd, SAFETENSORS_MAX_HEADER_BYTES, &s, NULL) == RDT_OK);
    cr_assert(s->count == 0 && s->data_bytes == 0);
    safetensors_destroy(s);
    close(fd);
}

Test(safetensors, empty_tensors_stay_in_the_order_of_the_header)
{
    const char *header = "{\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                         "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    struct safetensors *s = NULL;

    cr_assert(safetensors_parse(header, strlen(header), 0, &s, NULL) == RDT_OK);
    cr_assert_str_eq(s->tensors[0].name, "b");
    cr_assert_str_eq(s->tensors[1].name, "a");
    safetensors_destroy(s);
}

/* ---- files that lie ---- */

static const struct lie {
    const char *header;
    size_t data_bytes;
    enum rdt_status status;
    const char *says;
} lies[] = {
    {"", 0, RDT_INVALID, "does not begin with '{'"},
    {" {}", 0, RDT_INVALID, "does not begin with '{'"},
    {"[]", 0, RDT_INVALID, "does not begin with '{'"},
    {"{", 0, RDT_INVALID, "not valid JSON"},
    {"{} x", 0, RDT_INVALID, "not valid JSON"},
    {"{\"a\":1}", 0, RDT_INVALID, "tensor \"a\" is not a JSON object"},
    {"{\"a\":{\"dtype\":\"\xff\"}}", 0, RDT_INVALID, "not valid JSON"},
    {"{\"a\\u0000b\":{}}", 0, RDT_INVALID, "not valid JSON"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[1,2]"
     "}}",
     2, RDT_INVALID, "a name twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"F8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, RDT_INVALID, "a name twice"},
    {"{\"__metadata__\":[]}", 0, RDT_INVALID, "__metadata__ is not"},
    {"{\"__metadata__\":{\"k\":1}}", 0, RDT_INVALID, "value of \"k\" is not a string"},
    {"{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, RDT_INVALID, "no \"dtype\""},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, RDT_UNSUPPORTED, "unknown dtype \"F4\""},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, RDT_INVALID, "no \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, RDT_INVALID, "shape[0] is not a number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, RDT_INVALID, "shape[0] is not a number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1, RDT_INVALID, "not valid JSON"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,1]}}", 1, RDT_INVALID,
     "overflows at dimension 1"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,2],\"data_offsets\":[0,1]}}", 1, RDT_INVALID, "overflows"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"
     "\"data_offsets\":[0,1]}}",
     1, RDT_INVALID, "33 dimensions"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, RDT_INVALID, "no \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, RDT_INVALID, "no \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, RDT_INVALID, "no \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[\"0\",1]}}", 1, RDT_INVALID, "no \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, RDT_INVALID, "[-1, 0] are out of range"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, RDT_INVALID, "out of range"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, RDT_INVALID, "out of range: the file has 1 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, RDT_INVALID,
     "make 8 bytes, its data_offsets span 4"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,4]}}", 4, RDT_INVALID, "make 0 bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,"
     "6]}}",
     6, RDT_INVALID, "\"a\" and \"b\" overlap in bytes [2, 4)"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,"
     "4]}}",
     4, RDT_INVALID, "overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,"
     "5]}}",
     5, RDT_INVALID, "a hole: bytes [2, 3) before tensor \"b\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, RDT_INVALID, "take 2 bytes, the file has 3"},
    {"{}", 1, RDT_INVALID, "take 0 bytes, the file has 1"},
};

Test(safetensors, hostile_headers_are_refused_by_name)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        int fd = file_with(lies[i].header, strlen(lies[i].header), lies[i].data_bytes);
        struct safetensors *s = NULL;
        struct rdt_error err = {0};
        enum rdt_status status = safetensors_read(fd, SAFETENSORS_MAX_HEADER_BYTES, &s, &err);

        cr_expect(status == lies[i].status, "%s: %s %s", lies[i].header, rdt_status_name(status), err.msg);
        cr_expect(strstr(err.msg, lies[i].says), "%s: '%s' does not say '%s'", lies[i].header, err.msg, lies[i].says);
        cr_expect(!s);
        close(fd);
    }
}

static void refuse(int fd, size_t max_header_bytes, enum rdt_status status, const char *says)
{
    struct safetensors *s = NULL;
    struct rdt_error err = {0};

    cr_expect(safetensors_read(fd, max_header_bytes, &s, &err) == status, "%s", err.msg);
    cr_expect(strstr(err.msg, says), "'%s' does not say '%s'", err.msg, says);
    cr_expect(!s);
    close(fd);
}

Test(safetensors, header_length_is_checked_before_it_is_read)
{
    int sparse = file_with("{}", 200000000, 0), pipes[2];

    refuse(file_of("1234567", 7), SAFETENSORS_MAX_HEADER_BYTES, RDT_INVALID, "7 bytes are too short");
    refuse(file_with("{}", 3, 0), SAFETENSORS_MAX_HEADER_BYTES, RDT_INVALID, "claims 3 bytes, the file has 2");
    refuse(file_with("{}", UINT64_MAX, 0), SAFETENSORS_MAX_HEADER_BYTES, RDT_INVALID, "claims 18446744073709551615");
    refuse(file_with("{}    ", 6, 0), 5, RDT_LIMIT, "6 bytes; at most 5");
    cr_assert(ftruncate(sparse, 300000000) == 0);
    refuse(sparse, SIZE_MAX, RDT_LIMIT, "at most 100000000");
    cr_assert(pipe(pipes) == 0);
    refuse(pipes[0], SAFETENSORS_MAX_HEADER_BYTES, RDT_INVALID, "not a regular file");
    close(pipes[1]);
}

Test(safetensors, deep_nesting_is_refused)
{
    size_t n = 1 << 20;
    char *header = malloc(n);
    struct safetensors *s = NULL;

    memset(header, '[', n);
    memcpy(header, "{\"a\":", 5);
    cr_assert(safetensors_parse(header, n, 0, &s, NULL) == RDT_INVALID);
    free(header);
}

/* Every prefix and every single changed byte of a right file: refused or read, never a fault. */
Test(safetensors, damaged_headers_never_crash)
{
    const char *right = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                        "\"b\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[4,8]}}";
    size_t n = strlen(right);
    char *header = malloc(n);

    for (size_t i = 0; i < n; i++) {
        struct safetensors *s = NULL;

        memcpy(header, right, n);
        cr_expect(safetensors_parse(header, i, 8, &s, NULL) != RDT_OK, "prefix of %zu", i);
        for (int c = 0; c < 256; c++) {
            header[i] = (char)c;
            if (safetensors_parse(header, n, 8, &s, NULL) == RDT_OK)
                safetensors_destroy(s);
        }
    }
    free(header);
}

/* ---- writing ---- */

Test(safetensors, written_file_reads_back)
{
    const int64_t shape[] = {2, 3}, none[] = {0, 5};
    float floats[6] = {0, 1, 2, 3, 4, 5};
    uint8_t byte = 0xA5;
    const struct rdt_tensor tensors[] = {
        {.dtype = RDT_U8, .ndim = 0, .data = &byte},
        {.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = floats},
        {.dtype = RDT_I64, .ndim = 2, .shape = none},
    };
    const char *const names[] = {"a \"quoted\" name", "w", "none"};
    int fd = memfd_create("out", MFD_CLOEXEC);
    struct safetensors *s = NULL;
    size_t header_bytes = 0, bytes;
    struct rdt_error err = {0};
    char *header = NULL, *file;

    cr_assert(safetensors_header(tensors, names, 3, &header, &header_bytes, &err) == RDT_OK, "%s", err.msg);
    cr_assert(header_bytes % 8 == 0);
    cr_assert(safetensors_write(&(struct bytes_sink){.fd = fd}, header, header_bytes, tensors, 3, &err) == RDT_OK, "%s",
              err.msg);
    cr_assert(safetensors_read(fd, SAFETENSORS_MAX_HEADER_BYTES, &s, &err) == RDT_OK, "%s", err.msg);
    cr_assert(safetensors_match(s, tensors, 3, &err) == RDT_OK, "%s", err.msg);
    cr_assert_str_eq(s->tensors[0].name, names[0]);
    file = contents(fd, &bytes);
    cr_assert(bytes == 8 + header_bytes + 1 + 24);
    cr_assert(file[8 + header_bytes] == (char)0xA5);
    cr_assert(memcmp(file + 8 + header_bytes + 1, floats, 24) == 0);
    free(file);
    free(header);
    safetensors_destroy(s);
    close(fd);
}

/* Against the plain definition: element [i, j, k] is at i*s0 + j*s1 + k*s2. */
static void check_strided(const int64_t shape[3], const int64_t strides[3], size_t first)
{
    uint16_t source[4096];
    const struct rdt_tensor tensor = {.dtype = RDT_U16, .ndim = 3, .shape = shape, .strides = strides, .data = source + first};
    size_t header_bytes = 0, bytes, at = 0;
    int fd = memfd_create("out", MFD_CLOEXEC);
    char *header = NULL, *file;

    for (size_t i = 0; i < 4096; i++)
        source[i] = (uint16_t)(i * 40503u);
    cr_assert(safetensors_header(&tensor, NULL, 1, &header, &header_bytes, NULL) == RDT_OK);
    cr_assert(strstr(header, "\"0\""));
    cr_assert(safetensors_write(&(struct bytes_sink){.fd = fd}, header, header_bytes, &tensor, 1, NULL) == RDT_OK);
    file = contents(fd, &bytes);
    cr_assert(bytes == 8 + header_bytes + (size_t)(shape[0] * shape[1] * shape[2]) * 2);
    for (int64_t i = 0; i < shape[0]; i++) {
        for (int64_t j = 0; j < shape[1]; j++) {
            for (int64_t k = 0; k < shape[2]; k++) {
                uint16_t got;

                memcpy(&got, file + 8 + header_bytes + 2 * at++, 2);
                cr_assert(got == source[(int64_t)first + i * strides[0] + j * strides[1] + k * strides[2]]);
            }
        }
    }
    free(file);
    free(header);
    close(fd);
}

Test(safetensors, strided_tensors_are_written_row_major)
{
    check_strided((int64_t[]){3, 4, 5}, (int64_t[]){20, 5, 1}, 0);
    check_strided((int64_t[]){3, 4, 5}, (int64_t[]){200, 5, 1}, 7);
    check_strided((int64_t[]){3, 4, 5}, (int64_t[]){1, 3, 12}, 0);      /* transposed */
    check_strided((int64_t[]){3, 4, 5}, (int64_t[]){0, 0, 0}, 9);       /* broadcast */
    check_strided((int64_t[]){3, 4, 5}, (int64_t[]){-20, -5, -1}, 100); /* reversed */
    check_strided((int64_t[]){3, 1, 5}, (int64_t[]){5, 999, 1}, 0);     /* a stride that does not matter */
}

static bool stop_after(void *context, size_t bytes)
{
    size_t *left = context;

    *left = bytes < *left ? *left - bytes : 0;
    return *left > 0;
}

/* Larger than the writer's slice, in runs on both sides of it; and the callback hears of every byte. */
Test(safetensors, large_tensors_pass_in_slices)
{
    const int64_t shape[] = {3, 3 << 20}, strides[] = {4 << 20, 1};
    char *source = calloc(3, 4 << 20), *file, *header = NULL;
    const struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides, .data = source};
    size_t header_bytes = 0, bytes, left = (9u << 20) + 1;
    int fd = memfd_create("out", MFD_CLOEXEC);
    const struct bytes_sink sink = {.fd = fd, .on_written = stop_after, .context = &left};
    struct rdt_error err = {0};

    for (size_t i = 0; i < 12u << 20; i++)
        source[i] = (char)(i * 2654435761u >> 13);
    cr_assert(safetensors_header(&tensor, NULL, 1, &header, &header_bytes, NULL) == RDT_OK);
    cr_assert(safetensors_write(&sink, header, header_bytes, &tensor, 1, &err) == RDT_OK, "%s", err.msg);
    cr_assert(left == 1);
    file = contents(fd, &bytes);
    for (size_t row = 0; row < 3; row++)
        cr_assert(memcmp(file + 8 + header_bytes + row * (3u << 20), source + row * (4u << 20), 3u << 20) == 0);
    left = 1;
    cr_assert(safetensors_write(&sink, header, header_bytes, &tensor, 1, &err) == RDT_CANCELLED);
    free(file);
    free(header);
    free(source);
    close(fd);
}

Test(safetensors, header_refuses_what_the_format_lacks)
{
    const struct rdt_tensor tensors[] = {{.dtype = RDT_U8, .data = ""}, {.dtype = RDT_C32, .data = ""}};
    const char *const twice[] = {"x", "x"}, *const reserved[] = {"__metadata__"}, *const invalid[] = {"\xff"};
    const struct rdt_tensor same[] = {tensors[0], tensors[0]};
    struct rdt_error err = {0};
    size_t bytes;
    char *header;

    cr_assert(safetensors_header(tensors, NULL, 2, &header, &bytes, &err) == RDT_UNSUPPORTED);
    cr_assert(strstr(err.msg, "c32"));
    cr_assert(safetensors_header(same, twice, 2, &header, &bytes, &err) == RDT_INVALID);
    cr_assert(safetensors_header(same, reserved, 1, &header, &bytes, &err) == RDT_INVALID);
    cr_assert(safetensors_header(same, invalid, 1, &header, &bytes, &err) == RDT_INVALID);
}

Test(safetensors, match_names_the_first_difference)
{
    const char *header = "{\"w\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}";
    const int64_t shape[] = {2, 3}, other[] = {3, 2};
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 2, .shape = shape};
    struct safetensors *s = NULL;
    struct rdt_error err = {0};

    cr_assert(safetensors_parse(header, strlen(header), 6, &s, NULL) == RDT_OK);
    cr_assert(safetensors_match(s, &tensor, 1, NULL) == RDT_OK);
    cr_assert(safetensors_match(s, &tensor, 0, &err) == RDT_MISMATCH);
    tensor.shape = other;
    cr_assert(safetensors_match(s, &tensor, 1, &err) == RDT_MISMATCH);
    cr_assert(strstr(err.msg, "shape[0] is 2 in the header, 3"));
    tensor = (struct rdt_tensor){.dtype = RDT_I8, .ndim = 2, .shape = shape};
    cr_assert(safetensors_match(s, &tensor, 1, &err) == RDT_MISMATCH);
    safetensors_destroy(s);
}
