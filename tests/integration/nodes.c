/* Objects on one node, readers on another: what arrives, by which path, and who is told what. Over ucx, on cables of
 * their own where the test may lay them. */
#include <criterion/criterion.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cluster.h"

TestSuite(nodes, .timeout = 240);

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static struct cluster c;
static rdt *owner, *reader; /* clients of node 0 and of node 1 */

static bool cables_can_be(void)
{
    int status = 1;
    pid_t pid = geteuid() == 0 ? fork() : -1;

    if (pid == 0)
        _exit(unshare(CLONE_NEWNET) == 0 && system("command -v ip >/dev/null 2>&1") == 0 ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void begin_with(unsigned n, const struct cluster_options *options)
{
    struct cluster_options all = *options;

    all.cables = cables_can_be();
    if (!all.cables)
        (void)fprintf(stderr, "no network namespaces: on 127.0.0.1\n");
    cluster_start(&c, n, &all);
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
}

static void begin(unsigned n)
{
    begin_with(n, &(struct cluster_options){0});
}

static void end(const char *const *declared)
{
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, declared);
}

static struct rdt_fetch_options within(int64_t ns)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    options.timeout_ns = ns;
    return options;
}

/* ---- bytes ---- */

Test(nodes, sizes_arrive)
{
    static const struct {
        size_t bytes;
        const char *path;
    } rows[] = {
        {0, "inline"},    {1, "inline"},    {32 * KIB, "inline"}, {32 * KIB + 1, "ucx"},
        {MIB - 1, "ucx"}, {5 * MIB, "ucx"}, {64 * MIB, "ucx"},
    };

    begin(2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rdt_ref ref = put_pattern(owner, NULL, rows[i].bytes, (uint32_t)i);
        fetch_pattern(reader, &ref, rows[i].bytes, (uint32_t)i, rows[i].path);
        fetch_pattern(reader, &ref, rows[i].bytes, (uint32_t)i, rows[i].path); /* again, over warm memory */
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}

/* As the names say: `count` tensors that lie in memory of the daemon, with all kinds of types, shapes and holes between
 * them. */
struct pile {
    struct rdt_tensor *tensors;
    int64_t (*shapes)[2];
    size_t count;
};

static void pile_up(struct pile *pile, rdt *conn, size_t count, size_t big_every, size_t big_bytes)
{
    static const enum rdt_dtype dtypes[] = {RDT_U8, RDT_BF16, RDT_F32, RDT_F64, RDT_BOOL};
    size_t bytes = 0, at = 0;
    uint64_t dice = 11;
    uint8_t *memory;

    *pile = (struct pile){
        .tensors = calloc(count, sizeof *pile->tensors), .shapes = calloc(count, sizeof *pile->shapes), .count = count};
    must(pile->tensors && pile->shapes);
    for (size_t i = 0; i < count; i++) {
        struct rdt_tensor *tensor = &pile->tensors[i];
        tensor->dtype = dtypes[next_random(&dice) % 5];
        tensor->ndim = next_random(&dice) % 3;
        tensor->shape = pile->shapes[i];
        pile->shapes[i][0] = next_random(&dice) % 8; /* some are empty */
        pile->shapes[i][1] = 1 + next_random(&dice) % 8;
        if (big_every && i % big_every == 0) {
            tensor->ndim = 1;
            pile->shapes[i][0] = (int64_t)(big_bytes / rdt_dtype_bytes(tensor->dtype)) + (int64_t)i;
        }
        bytes += (size_t)elements_of(tensor) * rdt_dtype_bytes(tensor->dtype) + 16;
    }
    memory = alloc_memory(conn, bytes);
    fill_pattern(memory, bytes, 5);
    for (size_t i = 0; i < count; i++) {
        pile->tensors[i].data = memory + at;
        at += ((size_t)elements_of(&pile->tensors[i]) * rdt_dtype_bytes(pile->tensors[i].dtype) + 15) / 8 * 8;
    }
}

static void pile_fini(struct pile *pile)
{
    free(pile->tensors);
    free(pile->shapes);
}

static void check_pile_arrives(const struct pile *pile)
{
    struct rdt_ref ref;
    rdt_object *object;

    must_ok(rdt_put(owner, pile->tensors, pile->count, NULL, &ref, &err));
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("ucx", object);
    must(rdt_object_count(object) == pile->count);
    for (size_t i = 0; i < pile->count; i++) {
        struct rdt_tensor tensor = tensor_of(object, i);
        must_say(tensors_equal(&tensor, &pile->tensors[i]), "tensor %zu differs", i);
        must_say(is_row_major(&tensor), "tensor %zu has holes", i);
    }
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
}

Test(nodes, ten_thousand_small_tensors_arrive)
{
    struct pile pile;

    begin(2);
    pile_up(&pile, owner, 10000, 0, 0);
    check_pile_arrives(&pile);
    pile_fini(&pile);
    end(NULL);
}

Test(nodes, big_and_small_tensors_arrive)
{
    struct pile pile;

    begin(2);
    pile_up(&pile, owner, 300, 25, 3 * MIB);
    check_pile_arrives(&pile);
    pile_fini(&pile);
    end(NULL);
}

Test(nodes, strided_source_arrives_row_major)
{
    enum { ROWS = 700, COLUMNS = 900 };
    static const int64_t turned[] = {1, COLUMNS}, backwards[] = {-COLUMNS, -1}, holes[] = {2 * COLUMNS, 3},
                         same[] = {0, 1};
    const int64_t shape[] = {COLUMNS, ROWS}, plain[] = {ROWS, COLUMNS}, few[] = {ROWS / 2, COLUMNS / 3};
    struct rdt_tensor tensors[4];
    struct rdt_ref ref;
    rdt_object *object;
    float *memory;

    begin(2);
    memory = alloc_memory(owner, ROWS * COLUMNS * sizeof *memory);
    fill_pattern(memory, ROWS * COLUMNS * sizeof *memory, 3);
    tensors[0] = (struct rdt_tensor){RDT_F32, 2, shape, turned, memory};
    tensors[1] = (struct rdt_tensor){RDT_F32, 2, plain, backwards, memory + ROWS * COLUMNS - 1};
    tensors[2] = (struct rdt_tensor){RDT_F32, 2, few, holes, memory + 1};
    tensors[3] = (struct rdt_tensor){RDT_F32, 2, plain, same, memory + 7};
    tensors[3].shape = (const int64_t[]){50, COLUMNS - 7};
    must_ok(rdt_put(owner, tensors, 4, NULL, &ref, &err));
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("ucx", object);
    for (size_t i = 0; i < 4; i++) {
        struct rdt_tensor tensor = tensor_of(object, i);
        must_say(tensors_equal(&tensor, &tensors[i]) && is_row_major(&tensor), "tensor %zu", i);
    }
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, slices_arrive)
{
    enum { ROWS = 2000, COLUMNS = 500 };
    static const struct {
        int64_t start[2], count[2];
        const char *path;
    } rows[] = {
        {{0, 0}, {ROWS, COLUMNS}, "ucx"}, {{10, 0}, {700, COLUMNS}, "ucx"}, {{0, 100}, {ROWS, 300}, "ucx"},
        {{1999, 499}, {1, 1}, "inline"},  {{5, 5}, {10, 10}, "inline"},     {{3, 3}, {0, 10}, "inline"},
    };
    struct rdt_tensor whole;
    struct rdt_ref ref;
    uint32_t *memory;

    begin(2);
    memory = alloc_memory(owner, ROWS * COLUMNS * sizeof *memory);
    fill_pattern(memory, ROWS * COLUMNS * sizeof *memory, 3);
    whole = MATRIX(RDT_U32, ROWS, COLUMNS, memory);
    ref = put_one(owner, &whole, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rdt_slice slice = {2, rows[i].start, rows[i].count};
        const struct rdt_slice *slices = &slice;
        size_t n_slices = 1;
        struct rdt_fetch_options options = within(LONG);
        struct rdt_tensor part;
        rdt_object *object;

        options.slices = &slices;
        options.slice_counts = &n_slices;
        must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
        part = tensor_of(object, 0);
        must_say(equals_slice(&part, &whole, &slice), "slice %zu", i);
        must_go_by(rows[i].path, object);
        rdt_release(object);
    }
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, slice_beyond_end_refused)
{
    const int64_t start[] = {90}, count[] = {11};
    struct rdt_slice slice = {1, start, count};
    const struct rdt_slice *slices = &slice;
    size_t n_slices = 1;
    struct rdt_fetch_options options = within(LONG);
    struct rdt_ref ref;
    rdt_object *object;

    begin(2);
    ref = put_pattern(owner, NULL, 100, 1);
    options.slices = &slices;
    options.slice_counts = &n_slices;
    must_be(RDT_INVALID, rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, metadata_arrives)
{
    static const size_t sizes[] = {0, 1, 100, 40 * KIB, 4 * MIB};
    uint8_t *metadata = malloc(4 * MIB);

    begin(2);
    fill_pattern(metadata, 4 * MIB, 8);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct rdt_put_options options = RDT_INIT(options);
        struct rdt_ref ref;
        rdt_object *object;
        const void *got;
        size_t bytes;

        options.metadata = metadata;
        options.metadata_bytes = sizes[i];
        must_ok(rdt_put(owner, NULL, 0, &options, &ref, &err));
        object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
        must(rdt_object_count(object) == 0);
        got = rdt_object_metadata(object, &bytes);
        must(bytes == sizes[i] && (bytes == 0 || memcmp(got, metadata, bytes) == 0));
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    free(metadata);
    end(NULL);
}

/* ---- targets ---- */

Test(nodes, targets_receive)
{
    static const size_t sizes[] = {100, 32 * KIB, 100 * KIB, 9 * MIB + 3};

    begin(2);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = sizes[i], margin = 8192;
        struct rdt_ref refs[2];
        struct canary canary;
        uint8_t *shared = alloc_memory(reader, bytes + 2 * margin);
        struct rdt_tensor plain, direct;
        const struct rdt_tensor *targets[2] = {&plain, &direct};
        size_t counts[2] = {1, 1};
        struct rdt_fetch_options options = within(LONG);
        rdt_object *objects[2];

        canary_create(&canary, bytes);
        memset(shared, CANARY_BYTE, bytes + 2 * margin);
        plain = VECTOR(RDT_U8, bytes, canary.addr);
        direct = VECTOR(RDT_U8, bytes, shared + margin);
        options.targets = targets;
        options.target_counts = counts;
        refs[0] = refs[1] = put_pattern(owner, NULL, bytes, 9);
        must_ok(rdt_fetch(reader, refs, 2, &options, objects, &err));
        must(holds_pattern(canary.addr, bytes, 9) && canary_alive(&canary));
        must(holds_pattern(shared + margin, bytes, 9));
        must(is_filled_with(shared, margin, CANARY_BYTE) &&
             is_filled_with(shared + margin + bytes, margin, CANARY_BYTE));
        for (unsigned k = 0; k < 2; k++) {
            struct rdt_tensor tensor = tensor_of(objects[k], 0);
            must(tensor.data == targets[k]->data);
            rdt_release(objects[k]);
        }
        must(holds_pattern(shared + margin, bytes, 9)); /* it is the caller's memory, also after the release */
        must_ok(rdt_dealloc(reader, shared, &err));
        must_ok(rdt_free(owner, &refs[0], false, &err));
        canary_destroy(&canary);
    }
    end(NULL);
}

/* The first tensor fits, the second does not: nothing of either is written. */
Test(nodes, target_mismatch_writes_nothing)
{
    static const struct {
        enum rdt_dtype dtype;
        size_t elements, count;
    } rows[] = {{RDT_U8, 300001, 2}, {RDT_I8, 300000, 2}, {RDT_U8, 300000, 1}, {RDT_U8, 10, 2}};
    const size_t bytes = 300000;
    struct rdt_tensor source[2];
    struct rdt_ref ref;
    uint8_t *memory;

    begin(2);
    memory = alloc_memory(owner, 2 * bytes);
    source[0] = VECTOR(RDT_U8, bytes, memory);
    source[1] = VECTOR(RDT_U8, bytes, memory + bytes);
    must_ok(rdt_put(owner, source, 2, NULL, &ref, &err));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (unsigned direct = 0; direct < 2; direct++) {
            struct canary canary;
            uint8_t *at;
            struct rdt_tensor target[2];
            const struct rdt_tensor *targets = target;
            size_t count = rows[i].count;
            struct rdt_fetch_options options = within(LONG);
            rdt_object *object;

            canary_create(&canary, 2 * (bytes + 1));
            at = direct ? alloc_memory(reader, canary.bytes) : canary.addr;
            memset(at, CANARY_BYTE, canary.bytes);
            target[0] = VECTOR(RDT_U8, bytes, at);
            target[1] = VECTOR(rows[i].dtype, rows[i].elements, at + bytes);
            options.targets = &targets;
            options.target_counts = &count;
            must_refuse(RDT_MISMATCH, count == 1 ? "tensors" : "tensor 1",
                        rdt_fetch(reader, &ref, 1, &options, &object, &err));
            must(is_filled_with(at, canary.bytes, CANARY_BYTE));
            must(canary_untouched(&canary));
            if (direct) {
                must_ok(rdt_wait_freed_range(reader, at, canary.bytes, LONG, &err));
                must(is_filled_with(at, canary.bytes, CANARY_BYTE));
                must_ok(rdt_dealloc(reader, at, &err));
            }
            canary_destroy(&canary);
        }
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* ---- names ---- */

Test(nodes, refs_travel_as_text)
{
    struct rdt_ref ref, read;
    char text[RDT_REF_TEXT_BYTES];

    begin(2);
    ref = put_pattern(owner, "weights/7 %", 100000, 4);
    rdt_ref_to_text(&ref, text);
    must_ok(rdt_ref_from_text(text, &read, &err));
    fetch_pattern(reader, &read, 100000, 4, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

static void check_stat(rdt *conn, const struct rdt_ref *ref, const char *state, unsigned waiters)
{
    struct rdt_stat stat;

    must_ok(rdt_stat(conn, ref, &stat, &err));
    must_say(strcmp(stat.state, state) == 0 && stat.waiters == waiters, "%s with %u waiters", stat.state, stat.waiters);
}

Test(nodes, fetch_parks_until_put)
{
    static const size_t sizes[] = {100, 200000};

    begin(2);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref ref = ref_on(&c.node[0], "later"), put;
        rdt_request *request = start_one(reader, &ref, LONG);
        rdt_object *object;
        struct rdt_tensor tensor;

        await_transfer(&c.node[0], "out", "parked");
        check_stat(owner, &ref, "awaited", 1);
        must_be(RDT_TIMED_OUT, rdt_wait(reader, &request, 1, 1, 0, NULL, NULL, &err));
        put = put_pattern(owner, "later", sizes[i], 2);
        must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_take_object(request, &object, &err));
        tensor = tensor_of(object, 0);
        must(holds_pattern(tensor.data, sizes[i], 2));
        must(info_of(object).ref.generation == put.generation);
        rdt_release(object);
        rdt_request_destroy(request);
        must_ok(rdt_free(owner, &put, false, &err));
    }
    end(NULL);
}

Test(nodes, fetch_parks_until_deadline)
{
    struct rdt_ref ref;
    rdt_object *object;
    int64_t start;
    struct rdt_stat stat;

    begin(2);
    ref = ref_on(&c.node[0], "never");
    start = now_ns();
    must_be(RDT_TIMED_OUT, try_fetch(reader, &ref, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    must(now_ns() - start >= 200 * MSEC);
    must_be_within(start, 3 * SEC);
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_NOT_FOUND); /* nobody waits at the owner either */
    end(NULL);
}

Test(nodes, equal_refs_share_one_transfer)
{
    enum { N = 8 };
    struct node_status before, after;
    struct rdt_ref ref, refs[N];
    rdt_object *objects[N];

    begin(2);
    ref = put_pattern(owner, NULL, 2 * MIB, 6);
    for (unsigned i = 0; i < N; i++)
        refs[i] = ref;
    node_status(&c.node[0], &before);
    must_ok(rdt_fetch(reader, refs, N,
                      &(struct rdt_fetch_options){.struct_size = sizeof(struct rdt_fetch_options), .timeout_ns = LONG},
                      objects, &err));
    node_status(&c.node[0], &after);
    must_say(after.bytes_out - before.bytes_out == 2 * MIB, "%llu bytes moved",
             (unsigned long long)(after.bytes_out - before.bytes_out));
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor tensor = tensor_of(objects[i], 0);
        must(holds_pattern(tensor.data, 2 * MIB, 6));
        must(info_of(objects[i]).transfer == info_of(objects[0]).transfer);
        if (i > 0)
            rdt_release(objects[i]);
    }
    must(holds_pattern(tensor_of(objects[0], 0).data, 2 * MIB, 6)); /* each has a hold of its own */
    rdt_release(objects[0]);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, many_refs_at_once)
{
    enum { N = 600 };
    static struct rdt_ref refs[N];
    static rdt_object *objects[N];
    struct rdt_fetch_options options = within(LONG);

    begin(2);
    for (unsigned i = 0; i < N; i++)
        refs[i] = put_pattern(owner, NULL, i % 10 == 0 ? 100000 + i : 10 * i, i);
    must_ok(rdt_fetch(reader, refs, N, &options, objects, &err));
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor tensor = tensor_of(objects[i], 0);
        size_t bytes = i % 10 == 0 ? 100000 + i : 10 * i;
        must(tensor.shape[0] == (int64_t)bytes && holds_pattern(tensor.data, bytes, i));
        rdt_release(objects[i]);
    }
    end(NULL);
}

/* ---- requests ---- */

Test(nodes, wait_any_takes_first)
{
    struct rdt_ref refs[3], there;
    rdt_request *requests[3];
    struct rdt_fetch_options options = within(LONG);
    bool done[3];
    size_t n_done;

    begin(2);
    there = put_pattern(owner, "there", MIB, 3);
    refs[0] = ref_on(&c.node[0], "never");
    refs[1] = there;
    refs[2] = ref_on(&c.node[0], "neither");
    must_ok(rdt_fetch_start(reader, refs, 3, &options, requests, &err));
    must_ok(rdt_wait(reader, requests, 3, 1, LONG, done, &n_done, &err));
    must(n_done == 1 && !done[0] && done[1] && !done[2]);
    for (unsigned i = 0; i < 3; i++)
        rdt_request_destroy(requests[i]);
    must_ok(rdt_free(owner, &there, false, &err));
    end(NULL);
}

Test(nodes, cancelled_while_parked)
{
    struct rdt_ref ref, put;
    rdt_request *request, *other;
    struct rdt_stat stat;

    begin(2);
    ref = ref_on(&c.node[0], "later");
    request = start_one(reader, &ref, LONG);
    other = start_one(reader, &ref, LONG);
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_OK && stat.waiters == 2);
    rdt_cancel(request);
    must_be(RDT_CANCELLED, rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_OK && stat.waiters == 1);
    put = put_pattern(owner, "later", MIB, 1);
    must_ok(rdt_wait(reader, &other, 1, 1, LONG, NULL, NULL, &err)); /* the other transfer of it went on */
    rdt_request_destroy(request);
    rdt_request_destroy(other);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

/* At any moment of it: at once, after the answer, while bytes move. */
Test(nodes, cancelled_at_any_moment)
{
    struct rdt_ref ref;
    const size_t bytes = 24 * MIB;
    uint8_t *shared;

    begin(2);
    ref = put_pattern(owner, NULL, bytes, 1);
    shared = alloc_memory(reader, bytes);
    for (unsigned i = 0; i < 40; i++) {
        struct rdt_tensor target = VECTOR(RDT_U8, bytes, shared);
        const struct rdt_tensor *targets = &target;
        size_t one = 1;
        struct rdt_fetch_options options = within(LONG);
        rdt_request *request;
        enum rdt_status status;

        if (i % 2) {
            options.targets = &targets;
            options.target_counts = &one;
        }
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &request, &err));
        (void)rdt_wait(reader, &request, 1, 1, (int64_t)(i / 2) * MSEC / 2, NULL, NULL, NULL);
        rdt_cancel(request);
        status = rdt_request_status(request, NULL);
        must(status == RDT_CANCELLED || status == RDT_OK);
        rdt_request_destroy(request);
        if (i % 2) { /* only then it is ours again */
            must_ok(rdt_wait_freed_range(reader, shared, bytes, LONG, &err));
            memset(shared, CANARY_BYTE, 4096);
            memset(shared + bytes - 4096, CANARY_BYTE, 4096);
            bystander_round(&c, 3);
            must(is_filled_with(shared, 4096, CANARY_BYTE) && is_filled_with(shared + bytes - 4096, 4096, CANARY_BYTE));
        }
    }
    must_ok(rdt_dealloc(reader, shared, &err));
    fetch_pattern(reader, &ref, bytes, 1, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    end((const char *const[]){"taken down and rebuilt", NULL});
}

/* ---- several at once ---- */

static void collect(rdt *conn, rdt_request **requests, unsigned n, size_t bytes, uint32_t seed)
{
    must_ok(rdt_wait(conn, requests, n, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < n; i++) {
        rdt_object *object;
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        must(holds_pattern(tensor_of(object, 0).data, bytes, seed + i));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
}

Test(nodes, both_directions_at_once)
{
    enum { N = 10 };
    const size_t bytes = 4 * MIB + 17;
    struct rdt_ref there[N], here[N];
    rdt_request *in[N], *out[N];
    struct rdt_fetch_options options = within(LONG);

    begin(2);
    for (unsigned i = 0; i < N; i++) {
        there[i] = put_pattern(owner, NULL, bytes, 100 + i);
        here[i] = put_pattern(reader, NULL, bytes, 200 + i);
    }
    must_ok(rdt_fetch_start(reader, there, N, &options, in, &err));
    must_ok(rdt_fetch_start(owner, here, N, &options, out, &err));
    collect(reader, in, N, bytes, 100);
    collect(owner, out, N, bytes, 200);
    end(NULL);
}

Test(nodes, ring_of_three)
{
    enum { N = 4 };
    const size_t bytes = 3 * MIB + 5;
    rdt *conns[3];
    struct rdt_ref refs[3][N];
    rdt_request *requests[3][N];
    struct rdt_fetch_options options = within(LONG);

    begin(3);
    for (unsigned i = 0; i < 3; i++) {
        conns[i] = node_client(&c.node[i], "ring");
        for (unsigned k = 0; k < N; k++)
            refs[i][k] = put_pattern(conns[i], NULL, bytes, 10 * i + k);
    }
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 3; i++)
            must_ok(rdt_fetch_start(conns[i], refs[(i + 1) % 3], N, &options, requests[i], &err));
        for (unsigned i = 0; i < 3; i++)
            collect(conns[i], requests[i], N, bytes, 10 * ((i + 1) % 3));
    }
    for (unsigned i = 0; i < 3; i++)
        rdt_close(conns[i]);
    end(NULL);
}

/* ---- who may ---- */

struct visit {
    const struct test_node *node;
    uid_t uid;
    struct rdt_ref ref;
    enum rdt_status expected;
    const char *says;
    bool free_it;
};

static int fetch_as(struct actor *self, void *arg)
{
    const struct visit *visit = arg;
    rdt_object *object;
    rdt *conn;

    (void)self;
    must(setgroups(0, NULL) == 0 && setresgid(visit->uid, visit->uid, visit->uid) == 0);
    must(setresuid(visit->uid, visit->uid, visit->uid) == 0);
    conn = node_client(visit->node, "visitor");
    if (visit->free_it)
        must_refuse(visit->expected, visit->says, rdt_free(conn, &visit->ref, true, &err));
    else if (visit->expected == RDT_OK)
        fetch_pattern(conn, &visit->ref, 100000, 1, NULL);
    else
        must_refuse(visit->expected, visit->says, try_fetch(conn, &visit->ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(conn);
    return 0;
}

static void visit_as(const struct visit *visit)
{
    struct actor actor;

    actor_start(&actor, fetch_as, (void *)(uintptr_t)visit);
    actor_wait(&actor);
}

static struct rdt_ref put_for(rdt *conn, enum rdt_visibility visibility)
{
    uint8_t *data = malloc(100000);
    struct rdt_tensor tensor = VECTOR(RDT_U8, 100000, data);
    struct rdt_ref ref;

    fill_pattern(data, 100000, 1);
    ref = put_shown(conn, &tensor, NULL, visibility);
    free(data);
    return ref;
}

/* Other users' actors must reach the sockets. */
static void open_the_way(void)
{
    char path[200];
    const char *tmp = getenv("TMPDIR");

    if (geteuid() != 0)
        cr_skip_test("acting as other users needs root");
    (void)snprintf(path, sizeof path, "%.150s/..", tmp ? tmp : "/tmp/t");
    (void)chmod(path, 0755);
}

Test(nodes, uid_of_requester_counts)
{
    struct rdt_ref mine, all;

    open_the_way();
    begin(2);
    mine = put_for(owner, RDT_VISIBLE_TO_OWNER);
    all = put_for(owner, RDT_VISIBLE_TO_ALL);
    visit_as(&(struct visit){.node = &c.node[1], .uid = 1001, .ref = mine, .expected = RDT_DENIED, .says = "uid 1001"});
    visit_as(&(struct visit){.node = &c.node[1], .uid = 1001, .ref = all, .expected = RDT_OK});
    visit_as(&(struct visit){.node = &c.node[1],
                             .uid = 1001,
                             .ref = all,
                             .expected = RDT_DENIED,
                             .says = "belongs to uid 0",
                             .free_it = true});
    fetch_pattern(reader, &mine, 100000, 1, "ucx");
    must_ok(rdt_free(owner, &mine, false, &err));
    must_ok(rdt_free(owner, &all, false, &err));
    end(NULL);
}

Test(nodes, parked_name_is_of_requesters_uid)
{
    struct rdt_ref ref, put;
    rdt_request *request;

    begin(2);
    ref = ref_on(&c.node[0], "named"); /* no owner in it: the asker's own, at the owner too */
    request = start_one(reader, &ref, LONG);
    await_transfer(&c.node[0], "out", "parked");
    put = put_pattern(owner, "named", 10, 1);
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

Test(nodes, tenant_not_shared_is_denied)
{
    static const char *const tenant[] = {"--tenant=lab", NULL};
    struct rdt_ref all, tenants;
    struct rdt_stat stat;
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.flags_of = {NULL, tenant}, .no_meeting = true});
    all = put_for(owner, RDT_VISIBLE_TO_ALL);
    tenants = put_for(owner, RDT_VISIBLE_TO_TENANT);
    must_refuse(RDT_DENIED, "share_tenants", try_fetch(reader, &all, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_DENIED, "\"lab\"", rdt_stat(reader, &tenants, &stat, &err));
    must_ok(rdt_free(owner, &all, false, &err));
    must_ok(rdt_free(owner, &tenants, false, &err));
    end(NULL);
}

Test(nodes, shared_tenant_is_believed)
{
    static const char *const tenant[] = {"--tenant=lab", NULL}, *const shares[] = {"--share-tenants=shop,lab", NULL};
    struct rdt_ref all, tenants;
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.flags_of = {shares, tenant}, .no_meeting = true});
    all = put_for(owner, RDT_VISIBLE_TO_ALL);
    tenants = put_for(owner, RDT_VISIBLE_TO_TENANT); /* the unnamed one */
    fetch_pattern(reader, &all, 100000, 1, "ucx");
    must_be(RDT_DENIED, try_fetch(reader, &tenants, RDT_FETCH_AUTO, LONG, &object, &err));
    must_ok(rdt_free(owner, &all, false, &err));
    must_ok(rdt_free(owner, &tenants, false, &err));
    end(NULL);
}

/* ---- ends ---- */

Test(nodes, force_free_from_elsewhere)
{
    struct rdt_ref ref;
    rdt_object *object, *held;

    begin(2);
    ref = put_pattern(owner, "w", 100000, 1);
    held = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_be(RDT_DENIED, rdt_free(reader, &ref, false, &err)); /* the producer's hold is the producer's */
    must_ok(rdt_free(reader, &ref, true, &err));
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_FREED, try_fetch(owner, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must(holds_pattern(tensor_of(held, 0).data, 100000, 1));
    rdt_release(held);
    end(NULL);
}

struct producing {
    const struct test_node *node;
    uid_t uid;
    enum rdt_visibility visibility;
};

/* Puts one object and says its ref; stays until told or killed. */
static int produce(struct actor *self, void *arg)
{
    const struct producing *producing = arg;
    struct rdt_ref ref;
    rdt *conn;

    if (producing->uid != 0)
        must(setgroups(0, NULL) == 0 && setresgid(producing->uid, producing->uid, producing->uid) == 0 &&
             setresuid(producing->uid, producing->uid, producing->uid) == 0);
    conn = node_client(producing->node, "producer");
    ref = put_for(conn, producing->visibility);
    actor_send(self, &ref, sizeof ref);
    actor_await(self);
    rdt_close(conn);
    return 0;
}

/* Root may free everything where it is root: on its own node. A peer's word that root asks is as good as any uid's. */
Test(nodes, root_of_own_node_frees_by_force)
{
    struct producing producing = {.uid = 1001, .visibility = RDT_VISIBLE_TO_ALL};
    struct rdt_ref ref;
    struct actor producer;
    rdt_object *object;

    open_the_way();
    begin(2);
    producing.node = &c.node[0];
    actor_start(&producer, produce, &producing);
    actor_recv(&producer, &ref, sizeof ref);
    fetch_pattern(reader, &ref, 100000, 1, "ucx");
    must_refuse(RDT_DENIED, "belongs to uid 1001", rdt_free(reader, &ref, true, &err));
    must_ok(rdt_free(owner, &ref, true, &err));
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    actor_step(&producer);
    actor_wait(&producer);
    end(NULL);
}

Test(nodes, freed_is_told_across)
{
    struct rdt_ref ref;
    rdt_object *object;
    struct rdt_stat stat;

    begin(2);
    ref = put_pattern(owner, "w", 100000, 1);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_refuse(RDT_FREED, "\"w\"", try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_FREED, rdt_wait_put(reader, &ref, LONG, &err));
    must_be(RDT_FREED, rdt_stat(reader, &ref, &stat, &err));
    must_be(RDT_FREED, rdt_free(reader, &ref, true, &err));
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    end(NULL);
}

Test(nodes, killed_producer_is_told_across)
{
    struct producing producing = {.visibility = RDT_VISIBLE_TO_ALL};
    struct rdt_ref ref;
    struct actor producer;
    rdt_object *object, *held;
    struct rdt_stat stat;

    begin(2);
    producing.node = &c.node[0];
    actor_start(&producer, produce, &producing);
    actor_recv(&producer, &ref, sizeof ref);
    held = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    actor_kill(&producer, SIGKILL);
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_OWNER_DIED);
    must_be(RDT_OWNER_DIED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_OWNER_DIED, rdt_stat(reader, &ref, &stat, &err));
    must(holds_pattern(tensor_of(held, 0).data, 100000, 1));
    rdt_release(held);
    end(NULL);
}

Test(nodes, wait_freed_across)
{
    struct rdt_ref ref;

    begin(2);
    ref = put_pattern(owner, NULL, 100000, 1);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(reader, &ref, 100 * MSEC, &err));
    fetch_pattern(reader, &ref, 100000, 1, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}

Test(nodes, stat_and_wait_put_across)
{
    struct rdt_ref ref, put;
    struct rdt_stat stat;

    begin(2);
    ref = ref_on(&c.node[0], "later");
    must_be(RDT_NOT_FOUND, rdt_stat(reader, &ref, &stat, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_put(reader, &ref, 100 * MSEC, &err));
    put = put_pattern(owner, "later", 12345, 1);
    must_ok(rdt_wait_put(reader, &ref, LONG, &err));
    must_ok(rdt_stat(reader, &ref, &stat, &err));
    must(stat.bytes == 12345 && stat.tensors == 1 && strcmp(stat.state, "live") == 0);
    must(stat.ref.generation == put.generation && memcmp(stat.ref.node, c.node[0].uuid_bytes, 16) == 0);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

struct waiting_put {
    const struct test_node *node;
    struct rdt_ref ref;
};

static int wait_put(struct actor *self, void *arg)
{
    const struct waiting_put *waiting = arg;
    rdt *conn = node_client(waiting->node, "waiter");

    (void)self;
    must_ok(rdt_wait_put(conn, &waiting->ref, LONG, &err));
    rdt_close(conn);
    return 0;
}

Test(nodes, wait_put_across_until_put)
{
    struct waiting_put waiting;
    struct actor waiter;
    struct rdt_ref put;
    struct rdt_stat stat;

    begin(2);
    waiting = (struct waiting_put){&c.node[1], ref_on(&c.node[0], "later")};
    actor_start(&waiter, wait_put, &waiting);
    wait_until(5 * SEC, rdt_stat(owner, &waiting.ref, &stat, NULL) == RDT_OK && stat.waiters == 1);
    put = put_pattern(owner, "later", 10, 1);
    actor_wait(&waiter);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

/* ---- paths ---- */

Test(nodes, without_trusted_network_no_path)
{
    struct rdt_ref big, small;
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.no_ucx = true});
    big = put_pattern(owner, NULL, 100000, 1);
    small = put_pattern(owner, NULL, 1000, 1);
    must_refuse(RDT_NO_PATH, "trusted_network", try_fetch(reader, &big, RDT_FETCH_AUTO, LONG, &object, &err));
    fetch_pattern(reader, &small, 1000, 1, "inline");
    must_ok(rdt_free(owner, &big, false, &err));
    must_ok(rdt_free(owner, &small, false, &err));
    end(NULL);
}

Test(nodes, without_trust_on_one_node_no_path)
{
    static const char *const distrusts[] = {"--trusted-network=no", NULL};
    struct rdt_ref there, here;
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.flags_of = {distrusts}, .no_meeting = true});
    there = put_pattern(owner, NULL, 100000, 1);
    here = put_pattern(reader, NULL, 100000, 1);
    must_refuse(RDT_NO_PATH, "other node", try_fetch(reader, &there, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_NO_PATH, "trusted_network", try_fetch(owner, &here, RDT_FETCH_AUTO, LONG, &object, &err));
    end(NULL);
}

Test(nodes, wishes_are_kept_or_refused)
{
    static const struct {
        const char *transport, *least;
        size_t bytes;
        enum rdt_fetch_mode mode;
        enum rdt_status expected;
        const char *path; /* or what the refusal says */
    } rows[] = {
        {"ucx", NULL, 100, RDT_FETCH_AUTO, RDT_OK, "ucx"},
        {"UCX", NULL, 100000, RDT_FETCH_AUTO, RDT_OK, "ucx"},
        {"inline", NULL, 100, RDT_FETCH_AUTO, RDT_OK, "inline"},
        {"inline", NULL, 100000, RDT_FETCH_AUTO, RDT_NO_PATH, "too large to ride in the reply"},
        {"carrier-pigeon", NULL, 100, RDT_FETCH_AUTO, RDT_UNSUPPORTED, "ucx"},
        {NULL, "ucx", 100000, RDT_FETCH_AUTO, RDT_OK, "ucx"},
        {NULL, "inline", 100, RDT_FETCH_AUTO, RDT_OK, "inline"},
        {NULL, "inline", 100000, RDT_FETCH_AUTO, RDT_NO_PATH, "slower than inline"},
        {NULL, "share", 100, RDT_FETCH_AUTO, RDT_NO_PATH, "slower than share"},
        {NULL, "copy", 100000, RDT_FETCH_AUTO, RDT_NO_PATH, "slower than copy"},
        {NULL, "warp", 100, RDT_FETCH_AUTO, RDT_INVALID, "warp"},
        {NULL, NULL, 100, RDT_FETCH_SHARE, RDT_NO_PATH, "on another node"},
        {NULL, NULL, 100000, RDT_FETCH_COPY, RDT_OK, "ucx"},
    };

    begin(2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rdt_ref ref = put_pattern(owner, NULL, rows[i].bytes, 1);
        struct rdt_fetch_options options = within(LONG);
        rdt_object *object;

        options.transport = rows[i].transport;
        options.least_path = rows[i].least;
        options.mode = rows[i].mode;
        if (rows[i].expected == RDT_OK) {
            must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
            must_go_by(rows[i].path, object);
            rdt_release(object);
        } else {
            must_refuse(rows[i].expected, rows[i].path, rdt_fetch(reader, &ref, 1, &options, &object, &err));
        }
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}

Test(nodes, producers_transport_must_be_known)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;

    begin(2);
    options.transport = "carrier-pigeon";
    must_refuse(RDT_UNSUPPORTED, "ucx", rdt_put(owner, NULL, 0, &options, &ref, &err));
    options.transport = "ucx";
    must_ok(rdt_put(owner, NULL, 0, &options, &ref, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, explained_on_both_ends)
{
    struct transfer_view in, out[16];
    struct rdt_ref ref;
    rdt_object *object;
    unsigned n, found = 0, chosen = 0;

    begin(2);
    ref = put_pattern(owner, NULL, 100000, 1);
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    in = transfer_numbered(&c.node[1], info_of(object).transfer);
    must(strcmp(in.direction, "in") == 0 && strcmp(in.state, "done") == 0 && strcmp(in.path, "ucx") == 0);
    must(in.bytes == 100000 && in.bytes_done == 100000 && in.elapsed_ns > 0 && in.error[0] == '\0' &&
         in.n_candidates == 2);
    for (unsigned i = 0; i < in.n_candidates; i++) {
        must(in.candidates[i].reason[0] != '\0');
        chosen += in.candidates[i].chosen && strcmp(in.candidates[i].path, "ucx") == 0;
        if (strcmp(in.candidates[i].path, "inline") == 0)
            must(strstr(in.candidates[i].reason, "too large"));
    }
    must(chosen == 1);
    n = transfers_of(&c.node[0], out, 16);
    for (unsigned i = 0; i < n; i++)
        found += strcmp(out[i].direction, "out") == 0 && strcmp(out[i].path, "ucx") == 0 &&
                 out[i].bytes_done == 100000 && out[i].error[0] == '\0';
    must(found > 0);
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* ---- no link ---- */

Test(nodes, without_a_key_other_nodes_are_unsupported)
{
    struct test_node node;
    struct rdt_ref ref = ref_named("x");
    rdt_object *object;
    struct rdt_stat stat;
    rdt *conn;

    node_start(&node, NULL);
    conn = node_client(&node, "test");
    memset(ref.node, 9, sizeof ref.node);
    (void)snprintf(ref.address, sizeof ref.address, "127.0.0.1:1");
    must_refuse(RDT_UNSUPPORTED, "key_file", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_UNSUPPORTED, "key_file", rdt_stat(conn, &ref, &stat, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(nodes, unknown_node_without_address_is_not_found)
{
    struct rdt_ref ref = ref_named("x");
    rdt_object *object;

    begin(2);
    memset(ref.node, 9, sizeof ref.node);
    must_be(RDT_NOT_FOUND, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    end(NULL);
}
