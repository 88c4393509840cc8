/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx/read.c: large memory is registered in slices, each with a key of UCX, and reads cross them at both ends.
 *
 * The calls of UCX that it makes are FAKED here, in plain memory: a registration is a range, its rkey names the range, and a
 * read that leaves the registration of either end fails. Reads end when the test says so. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../../../backends/ucx/read.c"

TestSuite(ucx_slices, .timeout = 20);

#define SLICE 1000u
#define MOST 128u

/* ---- the fake ---- */

struct ucp_mem {
    uint8_t *addr;
    size_t bytes;
};

struct ucp_rkey {
    struct ucp_mem memory;
};

struct request {
    ucp_request_param_t param;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    ucs_status_t status;
};

static struct {
    unsigned mapped, most_mapped, rkeys;
    size_t longest, rkey_bytes; /* of a registration; of a packed rkey */
    unsigned refuse_map;        /* the number of the mapping that fails; 0: none */
    bool refuse_unpack;
    struct request *requests[MOST]; /* that have not ended */
    unsigned n_requests, gets;
} fake = {.rkey_bytes = sizeof(struct ucp_mem)};

ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *memh_p)
{
    (void)context;
    if (fake.refuse_map && fake.mapped + 1 == fake.refuse_map)
        return UCS_ERR_IO_ERROR;
    *memh_p = malloc(sizeof **memh_p);
    **memh_p = (struct ucp_mem){params->address, params->length};
    fake.longest = params->length > fake.longest ? params->length : fake.longest;
    fake.mapped++;
    fake.most_mapped = fake.mapped > fake.most_mapped ? fake.mapped : fake.most_mapped;
    return UCS_OK;
}

ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
    (void)context;
    free(memh);
    fake.mapped--;
    return UCS_OK;
}

ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **rkey_p, size_t *bytes_p)
{
    (void)context;
    *rkey_p = calloc(1, fake.rkey_bytes);
    memcpy(*rkey_p, memh, sizeof *memh);
    *bytes_p = fake.rkey_bytes;
    return UCS_OK;
}

void ucp_rkey_buffer_release(void *rkey)
{
    free(rkey);
}

ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *packed, ucp_rkey_h *rkey_p)
{
    (void)ep;
    if (fake.refuse_unpack && fake.rkeys > 0)
        return UCS_ERR_UNREACHABLE;
    *rkey_p = malloc(sizeof **rkey_p);
    memcpy(*rkey_p, packed, sizeof **rkey_p);
    fake.rkeys++;
    return UCS_OK;
}

void ucp_rkey_destroy(ucp_rkey_h rkey)
{
    free(rkey);
    fake.rkeys--;
}

static bool within(const struct ucp_mem *memory, const uint8_t *addr, size_t bytes)
{
    return addr >= memory->addr && addr + bytes <= memory->addr + memory->bytes;
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *to, size_t bytes, uint64_t from, ucp_rkey_h rkey,
                             const ucp_request_param_t *param)
{
    const uint8_t *source = (const uint8_t *)(uintptr_t)from;
    bool fits = within(&rkey->memory, source, bytes) &&
                (!(param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH) || within(param->memh, to, bytes));
    struct request *request = malloc(sizeof *request);

    (void)ep;
    *request = (struct request){*param, to, source, bytes, fits ? UCS_OK : UCS_ERR_INVALID_PARAM};
    cr_assert_lt(fake.n_requests, MOST);
    fake.requests[fake.n_requests++] = request;
    fake.gets++;
    return request;
}

void ucp_request_free(void *request)
{
    free(request);
}

/* Ends the last of the reads. */
static void end_one(ucs_status_t status)
{
    struct request *request = fake.requests[--fake.n_requests];

    status = request->status == UCS_OK ? status : request->status;
    if (status == UCS_OK)
        memcpy(request->to, request->from, request->bytes);
    request->param.cb.send(request, status, request->param.user_data);
}

/* What op.c does with an operation. */
static unsigned ended;
static ucs_status_t ended_as;
static char ended_why[200];

void op_end_ucs(struct operation *operation, ucs_status_t ucs)
{
    (void)operation;
    ended++;
    ended_as = ucs;
}

void op_end(struct operation *operation, enum rdt_status status, const char *msg)
{
    (void)status;
    op_end_ucs(operation, UCS_ERR_LAST);
    (void)snprintf(ended_why, sizeof ended_why, "%s", msg);
}

/* ---- an owner and a reader ---- */

static uint8_t owned[8 * SLICE + 10], wanted[sizeof owned];
static struct engine engine = {.settings.slice_bytes = SLICE};
static struct registration *of_owner, *of_reader;
static uint8_t key[RDT_KEY_MAX_BYTES];
static size_t key_bytes;
static struct rdt_error err;

static void open_ends(size_t owned_bytes, size_t wanted_bytes)
{
    for (size_t i = 0; i < sizeof owned; i++)
        owned[i] = (uint8_t)(i * 7 + i / 251);
    cr_assert_eq(read_register(&engine, owned, owned_bytes, UCS_MEMORY_TYPE_HOST, &of_owner, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(read_register(&engine, wanted, wanted_bytes, UCS_MEMORY_TYPE_HOST, &of_reader, &err), RDT_OK);
    cr_assert_eq(read_pack_key(&engine, of_owner, key, &key_bytes, &err), RDT_OK, "%s", err.msg);
}

static void close_ends(void)
{
    read_unregister(&engine, of_owner);
    read_unregister(&engine, of_reader);
    cr_assert(fake.mapped == 0 && fake.rkeys == 0 && fake.n_requests == 0);
}

static struct link link_out;
static struct conn conn = {.engine = &engine, .links.out = &link_out};
static struct rdt_op op;
static struct operation operation = {.op = &op, .conn = &conn};

static void start(size_t to, size_t bytes, size_t from, struct registration *registration)
{
    op = (struct rdt_op){.piece = {wanted + to, bytes, registration}, .key = key, .key_bytes = key_bytes, .key_offset = from};
    operation = (struct operation){.op = &op, .conn = &conn};
    ended = 0;
    ended_as = UCS_OK;
    fake.gets = 0;
    memset(wanted, 0, sizeof wanted);
    read_start(&operation);
}

static void expect_read(size_t to, size_t bytes, size_t from, struct registration *registration, unsigned gets)
{
    start(to, bytes, from, registration);
    cr_assert_eq(fake.gets, gets, "%zu bytes from %zu to %zu are %u reads", bytes, from, to, fake.gets);
    while (fake.n_requests > 0) {
        cr_assert_eq(ended, 0);
        end_one(UCS_OK);
    }
    cr_assert(ended == 1 && ended_as == UCS_OK);
    cr_assert(memcmp(wanted + to, owned + from, bytes) == 0);
    for (size_t i = 0; i < sizeof wanted; i++)
        cr_assert(wanted[i] == 0 || (i >= to && i < to + bytes));
}

Test(ucx_slices, reads_cross_slices_of_both_ends)
{
    open_ends(sizeof owned, sizeof wanted);
    cr_assert(fake.longest == SLICE && fake.mapped == 2 * 9 && of_owner->n == 9);
    expect_read(0, sizeof owned, 0, of_reader, 9);
    expect_read(0, SLICE, 0, of_reader, 1);
    expect_read(2 * SLICE, SLICE, 3 * SLICE, of_reader, 1);
    expect_read(0, 1, sizeof owned - 1, of_reader, 1);
    expect_read(0, SLICE, 999, of_reader, 2);
    expect_read(300, 2 * SLICE, 600, of_reader, 5); /* 600 | 700 1000 1300 ... */
    expect_read(300, 2 * SLICE, 600, NULL, 3);      /* into memory that is not registered */
    start(0, 2, sizeof owned - 1, of_reader);
    cr_assert(ended == 1 && ended_as == UCS_ERR_LAST && strstr(ended_why, "too few for 2"), "%s", ended_why);
    close_ends();
}

Test(ucx_slices, either_end_may_be_one_slice)
{
    open_ends(SLICE, sizeof wanted);
    expect_read(500, SLICE, 0, of_reader, 2);
    close_ends();
    open_ends(sizeof owned, SLICE);
    expect_read(0, SLICE, 500, of_reader, 2);
    close_ends();
}

/* The first error is the operation's, and it ends when all of its reads have. */
Test(ucx_slices, failure_of_one_slice_ends_the_read_once)
{
    open_ends(sizeof owned, sizeof wanted);
    start(0, 3 * SLICE, 0, of_reader);
    end_one(UCS_OK);
    end_one(UCS_ERR_CANCELED);
    cr_assert_eq(ended, 0);
    end_one(UCS_OK);
    cr_assert(ended == 1 && ended_as == UCS_ERR_CANCELED);
    fake.refuse_unpack = true; /* of the second slice */
    start(0, 3 * SLICE, 0, of_reader);
    cr_assert(ended == 0 && fake.n_requests == 1);
    end_one(UCS_OK);
    cr_assert(ended == 1 && ended_as == UCS_ERR_UNREACHABLE);
    close_ends();
}

Test(ucx_slices, slice_that_cannot_be_registered_undoes_the_others)
{
    fake.refuse_map = 4;
    cr_assert_eq(read_register(&engine, owned, sizeof owned, UCS_MEMORY_TYPE_HOST, &of_owner, &err), RDT_TRANSPORT);
    cr_assert(fake.mapped == 0 && fake.most_mapped == 3);
}

/* 9 keys of 60 bytes have no room in 512. */
Test(ucx_slices, memory_whose_keys_are_too_long_is_registered_whole)
{
    fake.rkey_bytes = 60;
    open_ends(sizeof owned, SLICE);
    cr_assert(of_owner->n == 1 && fake.longest == sizeof owned && key_bytes == 24 + 60);
    expect_read(0, SLICE, 500, of_reader, 1);
    close_ends();
}

/* ---- nodes of an earlier version ---- */

/* | sum | address | bytes | rkey |, which is what an earlier version writes, and all that it reads. */
Test(ucx_slices, memory_of_one_slice_has_the_key_of_earlier_versions)
{
    uint64_t words[3];

    open_ends(SLICE, SLICE);
    memcpy(words, key, sizeof words);
    cr_assert(key_bytes == sizeof words + sizeof(struct ucp_mem) && words[1] == (uintptr_t)owned && words[2] == SLICE);
    cr_assert(memcmp(key + sizeof words, of_owner->slices[0], sizeof(struct ucp_mem)) == 0);
    close_ends();
}

/* An earlier version refuses every range of memory of 0 bytes, and says so. */
Test(ucx_slices, key_of_several_slices_has_no_bytes_for_earlier_versions)
{
    uint64_t words[3];

    open_ends(SLICE + 1, SLICE);
    memcpy(words, key, sizeof words);
    cr_assert(words[1] == (uintptr_t)owned && words[2] == 0);
    close_ends();
}
