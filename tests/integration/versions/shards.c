/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of many parts: trainers on two nodes, readers with plans on both, and everything that must not become a version. */
#include "proto/manifest.h"
#include "proto/messages.h"
#include "proto/wire_ref.h"
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/raw.h"

TestSuite(shards, .timeout = 120);

Test(shards, parts_of_two_nodes_feed_readers_on_both)
{
    static struct view views[4];
    rdt *trainers[2], *readers[2];
    struct rdt_plan_run run;

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true});
    struct rdt_ref name = name_on(0, "policy", 0);
    for (unsigned i = 0; i < 2; i++) {
        trainers[i] = on(i);
        readers[i] = on(i);
    }
    view_open(&views[0], readers[0], &name, 0, COLUMNS / 2, RDT_PLAN_AUTO);
    view_open(&views[1], readers[1], &name, COLUMNS / 2, COLUMNS / 2, RDT_PLAN_AUTO);
    view_open(&views[2], readers[1], &name, 5, 20, RDT_PLAN_SLICES);
    view_open(&views[3], readers[1], &name, 5, 20, RDT_PLAN_WHOLE);
    for (uint64_t step = 1, after = 0; step <= 6; step++) {
        bool by_rows = step < 4;
        uint64_t version = publish(trainers, 2, &name, step, step == 6 ? 4 : 8, by_rows);

        must(version > after);
        for (unsigned i = 0; i < 4; i++) {
            must_ok(rdt_plan_run(views[i].plan, after, LONG, &run, &err));
            must(run.version == version && run.step == step);
            must_say(run.planned == (step == 1 || step == 4 || step == 6), "step %llu planned %d", (unsigned long long)step,
                     run.planned);
            must(run.bytes == (uint64_t)(ROWS * views[i].columns + COLUMNS) * sizeof(float));
            view_check(&views[i], step);
        }
        after = version;
    }
    for (unsigned i = 0; i < 4; i++)
        rdt_plan_destroy(views[i].plan);
    must_ok(rdt_unpublish(trainers[1], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0); /* the parts have ended with the last version */
    for (unsigned i = 0; i < 2; i++) {
        rdt_close(trainers[i]);
        rdt_close(readers[i]);
    }
    cluster_end(&c, told);
}

/* ---- what does not become a version ---- */

Test(shards, overlapping_and_missing_boxes_are_refused)
{
    rdt_request *requests[2];
    rdt *conn = begin_shards(2);
    rdt *far = on(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref a = put_rank(conn, 1, 0, 2, true);
    struct rdt_ref b = put_rank(far, 1, 1, 4, true); /* rows [16:32) */

    requests[0] = start_part(conn, &name, 1, 0, 2, &a);
    must_refuse(RDT_INVALID, "tensor \"w\": the box [16:32, 0:96] of rank 1 overlaps the box [0:32, 0:96] of rank 0",
                rdt_publish_part(far, &name, 1, 1, 2, &b, NULL, LONG, NULL, &err));
    must_refuse(RDT_INVALID, "overlaps", rdt_wait(conn, requests, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    b = put_rank(far, 1, 3, 4, true); /* rows [48:64) */
    requests[0] = start_part(conn, &name, 1, 0, 2, &a);
    must_refuse(RDT_INVALID, "tensor \"w\": no rank has published the box [32:48, 0:96]",
                rdt_publish_part(far, &name, 1, 1, 2, &b, NULL, LONG, NULL, &err));
    must_refuse(RDT_INVALID, "no rank has published", rdt_wait(conn, requests, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    must_be(RDT_NOT_PUT, rdt_wait_put(conn, &name, 0, &err)); /* nothing was ever visible */
    /* and all is right afterwards */
    must(publish((rdt *const[]){conn, far}, 2, &name, 1, 2, true) == 1);
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, far);
}

static enum rdt_status ask_shards(const struct rdt_ref *name, char text_p[256])
{
    struct raw raw;
    Rdt__Pb__Ref wire;

    wire_ref_from(name, &wire);
    Rdt__Pb__Shards request = MESSAGE(shards, .name = &wire);
    raw_connect(&raw, c.node[0].socket);
    raw_hello(&raw);
    (void)raw_send(&raw, RDT_MSG_SHARDS, &request.base, NULL, 0);
    enum rdt_status status = raw_error(&raw, text_p);
    raw_close(&raw);
    return status;
}

/* The daemon must not stand still over boxes, or over metadata that looks like a manifest. */
Test(shards, costly_parts_and_manifests_are_refused)
{
    enum { BOXES = 60000, METADATA = 4 << 20 };
    static struct rdt_tensor tensors[BOXES];
    static struct rdt_shard shards[BOXES];
    static int64_t starts[BOXES];
    static char metadata[METADATA] = MANIFEST_MAGIC;
    static const char *const say[] = {"did not become a version", NULL};
    int64_t one[1] = {1}, global[1] = {2 * BOXES};
    uint8_t byte = 0;
    char text[256];

    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    for (size_t i = 0; i < BOXES; i++) {
        starts[i] = (int64_t)(2 * i); /* a hole beside each */
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = one, .data = &byte};
        shards[i] = (struct rdt_shard){"w", global, &starts[i]};
    }
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = shards};
    struct rdt_ref ref = put_as(conn, tensors, BOXES, &options);
    must_refuse(RDT_INVALID, "tensor \"w\": no rank has published",
                rdt_publish_part(conn, &name, 1, 0, 1, &ref, NULL, LONG, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    for (size_t i = 8; i < METADATA; i++)
        metadata[i] = i & 1 ? 0 : 0x1a; /* two million empty parts */
    options = (struct rdt_put_options)RDT_INIT(options);
    options.flags = RDT_PUT_SNAPSHOT;
    options.metadata = metadata;
    options.metadata_bytes = METADATA;
    must_ok(rdt_put(conn, NULL, 0, &options, &ref, &err));
    must_ok(rdt_publish(conn, "false", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    name = name_on(0, "false", 0);
    must_say(ask_shards(&name, text) == RDT_INVALID, "%s", text);
    must_ok(rdt_unpublish(conn, &name, &err));
    rdt_close(conn);
    cluster_end(&c, say);
}

Test(shards, bad_parts_are_refused_alone)
{
    uint8_t byte[4] = {0};
    struct rdt_tensor tensor = bytes_at(byte, 4);
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref a = put_rank(conn, 5, 0, 2, true);
    struct rdt_ref plain = put_one(conn, &tensor, NULL);
    rdt_request *first = start_part(conn, &name, 5, 0, 2, &a);

    must_refuse(RDT_INVALID, "did not say what its tensors are boxes of",
                rdt_publish_part(conn, &name, 5, 1, 2, &plain, NULL, LONG, NULL, &err));
    must_refuse(RDT_INVALID, "rank 2 of 2", rdt_publish_part(conn, &name, 5, 2, 2, &a, NULL, LONG, NULL, &err));
    must_refuse(RDT_INVALID, "has 3 parts, but others say 2",
                rdt_publish_part(conn, &name, 5, 1, 3, &a, NULL, LONG, NULL, &err));
    must_refuse(RDT_EXISTS, "rank 0 has published", rdt_publish_part(conn, &name, 5, 0, 2, &a, NULL, LONG, NULL, &err));
    must_be(RDT_AGAIN, rdt_request_status(first, &err));
    rdt_request_destroy(first);
    must(publish(&conn, 1, &name, 5, 2, true) == 1);
    must_refuse(RDT_INVALID, "step 5 is complete, and steps must grow",
                rdt_publish_part(conn, &name, 5, 0, 2, &a, NULL, LONG, NULL, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    must(publish(&conn, 1, &name, 2, 2, true) == 2); /* a run from an earlier checkpoint */
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, NULL);
}

/* Such as all ranks but the first one of a model that is not sharded. */
Test(shards, rank_without_tensors_takes_part)
{
    static const struct rdt_shard none;
    static struct view view;
    rdt *conn = begin_shards(2);
    rdt *far = on(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref whole = put_rank(conn, 1, 0, 1, true);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = &none};
    struct rdt_ref nothing = put_as(far, NULL, 0, &options);
    rdt_request *request = start_part(conn, &name, 1, 0, 2, &whole);

    must_ok(rdt_publish_part(far, &name, 1, 1, 2, &nothing, NULL, LONG, NULL, &err));
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    view_open(&view, far, &name, 0, COLUMNS, RDT_PLAN_AUTO);
    must_ok(rdt_plan_run(view.plan, 0, LONG, NULL, &err));
    view_check(&view, 1);
    rdt_plan_destroy(view.plan);
    must_ok(rdt_free(conn, &whole, false, &err));
    must_ok(rdt_free(far, &nothing, false, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, far);
}

Test(shards, time_out_names_the_ranks_that_are_missing)
{
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref ref = put_rank(conn, 1, 1, 4, true);
    must_refuse(RDT_TIMED_OUT, "1 of 4 parts are there, but not those of ranks 0 2 3",
                rdt_publish_part(conn, &name, 1, 1, 4, &ref, NULL, 100 * MSEC, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    end_shards(conn, NULL);
}

/* Nobody waits for parts that have too many tensors together. */
Test(shards, version_with_too_many_tensors_is_refused_before_all_parts_are_there)
{
    static const char *const flags[] = {"--version-max-tensors=15000", NULL};
    enum { N = 10000, KEY = 240 };
    struct rdt_tensor *tensors = calloc(N, sizeof *tensors);
    struct rdt_shard *shards = calloc(N, sizeof *shards);
    char(*keys)[KEY + 1] = malloc((size_t)N * (KEY + 1));
    int64_t one[1] = {1};
    struct rdt_ref name, refs[2];
    uint8_t byte = 0;

    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true, .flags = flags});
    rdt *conn = on(0);
    name = name_on(0, "policy", 0);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = shards};
    for (unsigned rank = 0; rank < 2; rank++) {
        for (unsigned i = 0; i < N; i++) {
            (void)snprintf(keys[i], sizeof keys[i], "%0*u", KEY, rank * N + i);
            tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = one, .data = &byte};
            shards[i].key = keys[i];
        }
        must_ok(rdt_put(conn, tensors, N, &options, &refs[rank], &err));
    }
    rdt_request *request = start_part(conn, &name, 1, 0, 3, &refs[0]);
    must_refuse(RDT_LIMIT, "the version would have more tensors than the 15000 of version_max_tensors, with \"000",
                rdt_publish_part(conn, &name, 1, 1, 3, &refs[1], NULL, LONG, NULL, &err));
    must_refuse(RDT_LIMIT, "version_max_tensors", rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    for (unsigned rank = 0; rank < 2; rank++)
        must_ok(rdt_free(conn, &refs[rank], false, &err));
    free(tensors);
    free(shards);
    free(keys);
    end_shards(conn, NULL);
}

/* ---- manifests that no daemon has made ---- */

/* Publishes an object with this metadata behind the magic, as the next version of "forged". */
static void publish_forged(rdt *conn, const char *magic, const void *bytes, size_t n)
{
    uint8_t *metadata = malloc(8 + n);

    memcpy(metadata, magic, 8);
    memcpy(metadata + 8, bytes, n);
    struct rdt_put_options options = {.struct_size = sizeof options, .metadata = metadata, .metadata_bytes = 8 + n};
    struct rdt_ref ref = put_as(conn, NULL, 0, &options);
    must_ok(rdt_publish(conn, "forged", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    free(metadata);
}

static void publish_message(rdt *conn, const Rdt__Pb__Manifest *manifest)
{
    uint8_t *packed = malloc(rdt__pb__manifest__get_packed_size(manifest) + 1);

    publish_forged(conn, MANIFEST_MAGIC, packed, rdt__pb__manifest__pack(manifest, packed));
    free(packed);
}

/* The manifest of the newest version, as its daemon has made it. */
static Rdt__Pb__Manifest *real_manifest(rdt *conn, const struct rdt_ref *name)
{
    rdt_object *object = fetch_one(conn, name, RDT_FETCH_AUTO);
    size_t bytes;
    const uint8_t *metadata = rdt_object_metadata(object, &bytes);

    must(bytes > 8 && memcmp(metadata, MANIFEST_MAGIC, 8) == 0);
    Rdt__Pb__Manifest *manifest = rdt__pb__manifest__unpack(NULL, bytes - 8, metadata + 8);
    must(manifest);
    rdt_release(object);
    return manifest;
}

Test(shards, forged_manifests_are_refused_by_their_readers_alone)
{
    static struct view view, other;
    static uint8_t empty_parts[2 << 20];
    int64_t *start; /* of the second part, which is the only one of its layout */

    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref forged = name_on(0, "forged", 0);
    must(publish(&conn, 1, &name, 1, 2, true) == 1);
    Rdt__Pb__Manifest *manifest = real_manifest(conn, &name);
    start = manifest->moves[manifest->parts[1]->move]->by;
    view_open(&view, conn, &name, 0, COLUMNS, RDT_PLAN_AUTO);
    view_open(&other, conn, &forged, 0, COLUMNS, RDT_PLAN_AUTO);
    publish_message(conn, manifest); /* an honest one may be anybody's */
    must_ok(rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    view_check(&other, 1);
    publish_forged(conn, MANIFEST_MAGIC, "\xff\xff\xff", 3);
    must_refuse(RDT_INVALID, "the manifest of \"forged\" cannot be read", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    for (unsigned i = 0; i < sizeof empty_parts; i += 2)
        empty_parts[i] = 3 << 3 | 2; /* its length follows: 0 */
    publish_forged(conn, MANIFEST_MAGIC, empty_parts, sizeof empty_parts);
    must_refuse(RDT_INVALID, "takes more than", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    publish_forged(conn, MANIFEST_MAGIC, "", 0);
    must_refuse(RDT_NOT_FOUND, "the version has no tensor \"w\"", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    manifest->n_parts = manifest->n_layouts = manifest->n_moves = 1;
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "tensor \"w\": no part of the version has elements of the box [32:64, 0:96]",
                rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    manifest->n_parts = manifest->n_layouts = manifest->n_moves = 2;
    start[0] = ROWS / 4;
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "tensor \"w\": several parts of the version have elements of the box [16:48, 0:96]",
                rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    start[0] = ROWS;
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "tensor 0 is a box of \"w\" that ends outside it", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    start[0] = ROWS / 2;
    manifest->parts[1]->layout = 2;
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "a part of the manifest is incomplete", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    manifest->parts[1]->layout = 0; /* which has a tensor more */
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "a part of the manifest has starts in 2 dimensions, but its tensors have 3",
                rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    manifest->parts[1]->layout = 1;
    manifest->layouts[1]->key[0] = 2;
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "a tensor of the manifest has no key", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    manifest->layouts[1]->key[0] = 1;
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "a box of tensor \"bias\" has 2 dimensions, but the tensor has 1",
                rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    manifest->layouts[1]->key[0] = 0;
    manifest->ndim[1] = 2;
    publish_message(conn, manifest);
    must_refuse(RDT_INVALID, "too few or too many dimensions", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    publish_forged(conn, "rdtshrd2", "", 0);
    must_refuse(RDT_UNSUPPORTED, "has the format of another release", rdt_plan_run(other.plan, 0, LONG, NULL, &err));
    must_ok(rdt_plan_run(view.plan, 0, LONG, NULL, &err));
    view_check(&view, 1);
    rdt__pb__manifest__free_unpacked(manifest, NULL);
    rdt_plan_destroy(view.plan);
    rdt_plan_destroy(other.plan);
    must_ok(rdt_unpublish(conn, &forged, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, NULL);
}

/* Publishes the tensor, in memory of alloc, as that of a manifest. */
static void publish_forged_tensor(rdt *conn, const struct rdt_tensor *tensor, size_t count)
{
    struct rdt_put_options options = {
        .struct_size = sizeof options, .metadata = MANIFEST_LARGE, .metadata_bytes = MANIFEST_MAGIC_BYTES};
    struct rdt_ref ref = put_as(conn, tensor, count, &options);

    must_ok(rdt_publish(conn, "forged", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
}

/* Its elements may have any strides, also such that a few bytes are a gigabyte. */
Test(shards, forged_tensors_of_manifests_are_refused)
{
    const int64_t large[1] = {1 << 30}, small[1] = {16}, none[1] = {0}, back[1] = {-1};
    rdt *conn = begin_shards(1);
    struct rdt_ref forged = name_on(0, "forged", 0);
    uint8_t *data = alloc_memory(conn, 4096);
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = large, .strides = none, .data = data};
    rdt_manifest *manifest;

    memset(data, 0xff, 4096);
    publish_forged_tensor(conn, NULL, 0);
    must_be(RDT_INVALID, rdt_manifest_fetch(conn, &forged, LONG, &manifest, &err));
    publish_forged_tensor(conn, &tensor, 1);
    must_refuse(RDT_INVALID, "the manifest of \"forged\" cannot be read",
                rdt_manifest_fetch(conn, &forged, LONG, &manifest, &err));
    tensor.shape = small;
    tensor.strides = back;
    tensor.data = data + 4095;
    publish_forged_tensor(conn, &tensor, 1);
    must_refuse(RDT_INVALID, "the manifest of \"forged\" cannot be read",
                rdt_manifest_fetch(conn, &forged, LONG, &manifest, &err));
    tensor = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = small, .data = data};
    publish_forged_tensor(conn, &tensor, 1);
    must_refuse(RDT_INVALID, "the manifest of \"forged\" cannot be read",
                rdt_manifest_fetch(conn, &forged, LONG, &manifest, &err));
    must_ok(rdt_unpublish(conn, &forged, &err));
    must_ok(rdt_dealloc(conn, data, &err));
    end_shards(conn, NULL);
}

Test(shards, wants_that_cannot_be_had_name_tensor_and_remedy)
{
    int64_t count[2] = {ROWS, COLUMNS}, half[2] = {ROWS / 2, COLUMNS}, far[2] = {1, 0}, none[2] = {0}, still[2] = {0, 1};
    static double data[ROWS * COLUMNS];
    const struct {
        struct rdt_want want;
        enum rdt_status status;
        const char *says;
    } wrong[] = {
        {{"v", 2, NULL, count, RDT_F32, data, NULL}, RDT_NOT_FOUND, "no tensor \"v\": rdtctl shards lists"},
        {{"w", 1, none, count, RDT_F32, data, NULL}, RDT_MISMATCH, "tensor \"w\" has 2 dimensions, but 1 are wanted"},
        {{"w", 1, NULL, count, RDT_F32, data, NULL},
         RDT_MISMATCH,
         "tensor \"w\" has the shape [64, 96], but the reader wants a tensor of the shape [64]: "},
        {{"w", 2, NULL, half, RDT_F32, data, NULL}, /* such as a rank that forgot to say which half it has */
         RDT_MISMATCH,
         "tensor \"w\" has the shape [64, 96], but the reader wants a tensor of the shape [32, 96]: "},
        {{"w", 2, far, count, RDT_F32, data, NULL},
         RDT_MISMATCH,
         "tensor \"w\": 64 elements from 1 on are wanted in dimension 0"},
        {{"w", 2, NULL, count, RDT_F64, data, NULL},
         RDT_UNSUPPORTED,
         "tensor \"w\": there is no cast from f32 to f64: f32, f16 and bf16 can be cast"},
    };

    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    must(publish(&conn, 1, &name, 1, 2, true) == 1);
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rdt_plan *plan = NULL;

        must_ok(rdt_plan_create(conn, &name, &wrong[i].want, 1, NULL, &plan, &err));
        must_refuse(wrong[i].status, wrong[i].says, rdt_plan_run(plan, 0, LONG, NULL, &err));
        rdt_plan_destroy(plan);
    }
    {
        struct rdt_want want = {"w", 2, NULL, count, RDT_F32, data, still};
        rdt_plan *plan = NULL;

        must_refuse(RDT_INVALID, "want 0 (\"w\") overlaps itself", rdt_plan_create(conn, &name, &want, 1, NULL, &plan, &err));
    }
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, NULL);
}

/* Publishes "a" [3, 4] and "b" [3, 4] in two parts, which have rows and columns of them. */
static void publish_twins(rdt *conn, const struct rdt_ref *name, uint64_t step, float last_of_b)
{
    int64_t global[2] = {3, 4}, rows[2] = {2, 4}, row[2] = {1, 4}, columns[2] = {3, 3}, column[2] = {3, 1};
    int64_t origin[2] = {0, 0}, last_row[2] = {2, 0}, last_column[2] = {0, 3}, wide[2] = {4, 1};
    float a[12], b[12];
    struct rdt_tensor first[2] = {{RDT_F32, 2, rows, NULL, a}, {RDT_F32, 2, columns, wide, b}};
    struct rdt_tensor second[2] = {{RDT_F32, 2, row, NULL, a + 8}, {RDT_F32, 2, column, wide, b + 3}};
    struct rdt_shard shards[2][2] = {{{"a", global, origin}, {"b", global, origin}},
                                     {{"a", global, last_row}, {"b", global, last_column}}};
    rdt_request *request;

    for (unsigned i = 0; i < 12; i++)
        a[i] = b[i] = 100.0f * (float)step + (float)i;
    b[11] = last_of_b ? last_of_b : b[11];
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = shards[0]};
    struct rdt_ref one = put_as(conn, first, 2, &options);
    options.shards = shards[1];
    struct rdt_ref other = put_as(conn, second, 2, &options);
    request = start_part(conn, name, step, 0, 2, &one);
    must_ok(rdt_publish_part(conn, name, step, 1, 2, &other, NULL, LONG, NULL, &err));
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(conn, &one, false, &err));
    must_ok(rdt_free(conn, &other, false, &err));
}

Test(shards, wants_that_share_memory_must_be_the_same_and_get_the_same)
{
    int64_t count[2] = {3, 4}, wide[2] = {8, 1}, turned[2] = {1, 3};
    float data[24];
    struct rdt_want wants[2] = {{"a", 2, NULL, count, RDT_F32, data, NULL}, {"b", 2, NULL, count, RDT_F32, data, NULL}};
    rdt_plan *plan = NULL;

    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    publish_twins(conn, &name, 1, 0);
    must_ok(rdt_plan_create(conn, &name, wants, 2, NULL, &plan, &err));
    must_ok(rdt_plan_run(plan, 0, LONG, NULL, &err));
    must(data[0] == 100 && data[11] == 111);
    publish_twins(conn, &name, 2, -1);
    must_refuse(RDT_MISMATCH,
                "version 2 of \"policy\": tensors \"a\" and \"b\" differ, but the reader has both in the same memory",
                rdt_plan_run(plan, 1, LONG, NULL, &err));
    must(data[0] == 100 && data[11] == 111);
    rdt_plan_destroy(plan);
    wants[1].data = data + 4;
    must_refuse(RDT_INVALID, "want 1 (\"b\") shares memory with want 0 (\"a\")",
                rdt_plan_create(conn, &name, wants, 2, NULL, &plan, &err));
    wants[1].data = data;
    wants[1].strides = turned;
    must_refuse(RDT_INVALID, "want 1 (\"b\") shares memory with want 0 (\"a\")",
                rdt_plan_create(conn, &name, wants, 2, NULL, &plan, &err));
    wants[0].strides = wants[1].strides = wide; /* columns of one matrix */
    wants[1].data = data + 4;
    must_ok(rdt_plan_create(conn, &name, wants, 2, NULL, &plan, &err));
    must_ok(rdt_plan_run(plan, 0, LONG, NULL, &err));
    must(data[0] == 200 && data[19] == 211 && data[4] == 200 && data[23] == -1);
    rdt_plan_destroy(plan);
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, NULL);
}

static rdt_plan *plan_of(rdt *conn, const struct rdt_ref *name, const struct rdt_want *want, const int64_t *global_shape,
                         int32_t padded, bool strict)
{
    rdt_plan *plan = NULL;
    struct rdt_plan_options options = {
        .struct_size = sizeof options, .global_shapes = &global_shape, .padded = &padded, .strict = strict};

    must_ok(rdt_plan_create(conn, name, want, 1, &options, &plan, &err));
    return plan;
}

Test(shards, boxes_of_another_tensor_than_the_published_one_are_refused)
{
    static float data[(ROWS + 8) * COLUMNS];
    int64_t start[2] = {ROWS / 2, 0}, count[2] = {ROWS / 2 + 8, COLUMNS}, right[2] = {ROWS, COLUMNS};
    int64_t longer[2] = {ROWS + 8, COLUMNS};
    struct rdt_want half = {"w", 2, start, (int64_t[2]){ROWS / 2, COLUMNS}, RDT_F32, data, NULL},
                    more = {"w", 2, start, count, RDT_F32, data, NULL}, whole = {"w", 2, NULL, longer, RDT_F32, data, NULL};
    struct rdt_plan_run run;
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);

    must(publish(&conn, 1, &name, 1, 2, true) == 1);
    rdt_plan *plan = plan_of(conn, &name, &half, longer, -1, false);
    must_refuse(RDT_MISMATCH, "has the shape [64, 96], but the reader wants a tensor of the shape [72, 96]",
                rdt_plan_run(plan, 0, LONG, NULL, &err));
    rdt_plan_destroy(plan);
    plan = plan_of(conn, &name, &half, right, -1, true);
    must_refuse(RDT_MISMATCH, "the version has the tensor \"bias\", which the reader does not have",
                rdt_plan_run(plan, 0, LONG, NULL, &err));
    rdt_plan_destroy(plan);
    plan = plan_of(conn, &name, &more, longer, 1, false); /* padded in the other dimension */
    must_refuse(RDT_MISMATCH, "has the shape [64, 96]", rdt_plan_run(plan, 0, LONG, NULL, &err));
    rdt_plan_destroy(plan);
    for (unsigned i = 0; i < 2; i++) { /* what is beyond the published rows stays as it is */
        int64_t first = i == 0 ? ROWS / 2 : 0, rows = i == 0 ? count[0] : longer[0];

        for (size_t k = 0; k < sizeof data / sizeof data[0]; k++)
            data[k] = -1;
        plan = plan_of(conn, &name, i == 0 ? &more : &whole, i == 0 ? longer : NULL, 0, false);
        must_ok(rdt_plan_run(plan, 0, LONG, &run, &err));
        must(run.bytes == (uint64_t)(ROWS - first) * COLUMNS * sizeof(float));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < COLUMNS; k++)
                must(data[r * COLUMNS + k] == (first + r < ROWS ? element(1, first + r, k) : -1));
        rdt_plan_destroy(plan);
    }
    struct rdt_plan_options options = {.struct_size = sizeof options, .padded = (int32_t[1]){0}};
    must_refuse(RDT_INVALID, "global_shapes must say the shape", rdt_plan_create(conn, &name, &more, 1, &options, &plan, &err));
    options.padded = (int32_t[1]){2};
    must_refuse(RDT_INVALID, "padded in dimension 2, but has 2",
                rdt_plan_create(conn, &name, &whole, 1, &options, &plan, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, NULL);
}

Test(shards, tensor_that_no_rank_publishes_ends_the_version)
{
    static const char *const others[] = {"w", "experts.1", ""};
    struct rdt_ref name, ref, none;

    rdt *conn = begin_shards(2);
    rdt *far = on(1);
    name = name_on(0, "policy", 0);
    ref = put_rank(conn, 1, 0, 1, true);
    {
        static const struct rdt_shard no_shards;
        struct rdt_put_options put = {.struct_size = sizeof put, .shards = &no_shards};

        must_ok(rdt_put(far, NULL, 0, &put, &none, &err));
    }
    struct rdt_part_options options = {.struct_size = sizeof options, .others = others, .n_others = 3};
    must_refuse(RDT_INVALID, "key 2 of others is empty",
                rdt_publish_part(far, &name, 1, 1, 2, &none, &options, LONG, NULL, &err));
    options.n_others = 2;
    rdt_request *request = start_part(conn, &name, 1, 0, 2, &ref);
    must_refuse(RDT_INVALID, "tensor \"experts.1\": rank 1 has it, but no rank has published it",
                rdt_publish_part(far, &name, 1, 1, 2, &none, &options, LONG, NULL, &err));
    must_refuse(RDT_INVALID, "experts.1", rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    options.n_others = 1;
    request = start_part(conn, &name, 1, 0, 2, &ref);
    must_ok(rdt_publish_part(far, &name, 1, 1, 2, &none, &options, LONG, NULL, &err));
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_free(far, &none, false, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, far);
}

Test(shards, manifest_is_told_from_an_object_and_read_by_its_own_ref)
{
    int64_t count[2] = {ROWS, COLUMNS};
    static float data[ROWS * COLUMNS];
    struct rdt_want want = {"w", 2, NULL, count, RDT_F32, data, NULL};
    struct rdt_object_info info;
    rdt_request *hold = NULL;
    rdt_plan *plan = NULL;
    struct rdt_plan_run run;
    rdt_manifest *manifest;
    struct rdt_ref name, part;
    rdt *conn = begin_shards(2);
    rdt *far = on(1);

    name = name_on(0, "policy", 0);
    must(publish(&conn, 1, &name, 1, 2, true) == 1);
    rdt_object *object = fetch_one(far, &name, RDT_FETCH_AUTO);
    must(rdt_object_count(object) == 0 && rdt_object_is_manifest(object) && !rdt_object_is_manifest(NULL));
    rdt_object_info(object, &info);
    must_ok(rdt_hold(far, &info.ref, LONG, &hold, &err));
    must_ok(rdt_plan_create(far, &info.ref, &want, 1, NULL, &plan, &err));
    must(publish(&conn, 1, &name, 2, 2, true) == 2);
    must_ok(rdt_plan_run(plan, 5, LONG, &run, &err)); /* the version that was fetched, not the newest one */
    must(run.version == 1 && data[0] == element(1, 0, 0));
    must_ok(rdt_manifest_fetch(far, &info.ref, LONG, &manifest, &err));
    must_ok(rdt_manifest_part(manifest, 0, &part, NULL, &err));
    rdt_object *plain = fetch_one(far, &part, RDT_FETCH_AUTO); /* a part is an object like any other */
    must(!rdt_object_is_manifest(plain) && rdt_object_count(plain) == 2);
    rdt_plan_destroy(plan);
    must_ok(rdt_plan_create(far, &part, &want, 1, NULL, &plan, &err));
    must_refuse(RDT_INVALID, "is published as one object, not in parts", rdt_plan_run(plan, 0, LONG, NULL, &err));
    rdt_plan_destroy(plan);
    rdt_release(plain);
    rdt_manifest_release(manifest);
    rdt_release(object);
    rdt_request_destroy(hold);
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, far);
}

Test(shards, failures_do_not_flood_the_log)
{
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref part = put_rank(conn, 1, 0, 4, true);
    for (uint64_t step = 1; step <= 300; step++)
        must_refuse(RDT_INVALID, "no rank has published",
                    rdt_publish_part(conn, &name, step, 0, 1, &part, NULL, LONG, NULL, &err));
    must(node_log_has(&c.node[0], "step 1 of \"policy\" did not become a version"));
    must_say(node_log_count(&c.node[0], "did not become a version") < 150, "%u lines",
             node_log_count(&c.node[0], "did not become a version"));
    must_ok(rdt_free(conn, &part, false, &err));
    end_shards(conn, NULL);
}

static int publish_and_wait(struct actor *self, void *arg)
{
    struct rdt_ref name = name_on(0, "policy", 0), ref;
    rdt *conn = on(1);

    ref = put_rank(conn, 3, 1, 3, false);
    rdt_request *request = start_part(conn, &name, 3, 1, 3, &ref);
    actor_step(self);
    (void)rdt_wait(conn, &request, 1, 1, RDT_FOREVER, NULL, NULL, NULL);
    return 1;
}

Test(shards, a_killed_publisher_ends_the_version_and_the_old_one_stays)
{
    static struct view view;
    struct rdt_plan_run run;
    struct actor actor;

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true});
    actor_start(&actor, publish_and_wait, NULL);
    actor_await(&actor);
    rdt *conn = on(0);
    struct rdt_ref name = name_on(0, "policy", 0);
    must(publish(&conn, 1, &name, 2, 4, true) == 1);
    view_open(&view, conn, &name, 0, COLUMNS, RDT_PLAN_AUTO);
    struct rdt_ref ref = put_rank(conn, 3, 0, 3, false);
    /* the actor's part may still be on its way; rank 0 joins the same step */
    rdt_request *request = start_part(conn, &name, 3, 0, 3, &ref);
    actor_kill(&actor, SIGKILL);
    must_refuse(RDT_OWNER_DIED, "the publisher of rank 1", rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_plan_run(view.plan, 0, LONG, &run, &err));
    must(run.version == 1);
    view_check(&view, 2);
    rdt_plan_destroy(view.plan);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    end_shards(conn, NULL);
}

/* All calls of that node end together, and each of them would end the version. */
Test(shards, a_lost_node_with_two_publishers_ends_the_version_once)
{
    struct rdt_ref name, parts[2], ref;
    rdt_request *near, *requests[2];
    rdt *far[2];
    rdt *conn = begin_shards(2);

    name = name_on(0, "policy", 0);
    for (uint32_t i = 0; i < 2; i++) {
        far[i] = on(1);
        parts[i] = put_rank(far[i], 1, i + 1, 4, false);
        requests[i] = start_part(far[i], &name, 1, i + 1, 4, &parts[i]);
    }
    ref = put_rank(conn, 1, 0, 4, false);
    near = start_part(conn, &name, 1, 0, 4, &ref);
    for (unsigned i = 0; i < 2; i++) /* the first may overtake the parts before the link is up; the second comes after them */
        must_be(RDT_NOT_PUT, rdt_wait_put(far[0], &name, 0, &err));
    node_kill(&c.node[1], SIGKILL);
    must_refuse(RDT_OWNER_DIED, "the publisher of rank ", rdt_wait(conn, &near, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(near);
    for (unsigned i = 0; i < 2; i++) {
        rdt_request_destroy(requests[i]);
        rdt_close(far[i]);
    }
    must(publish(&conn, 1, &name, 2, 2, true) == 1);
    rdt_close(conn);
    node_stop(&c.node[0]); /* while the version exists */
    cluster_restart(&c, 0);
    cluster_restart(&c, 1);
    cluster_end(&c, told);
}

Test(shards, a_later_step_overtakes_and_a_reader_keeps_its_version)
{
    rdt_manifest *manifest = NULL;
    struct rdt_manifest_info info;
    struct rdt_ref name, ref, part;
    struct rdt_box box;
    size_t tensors;
    rdt *conn = begin_shards(2);
    rdt *far = on(1);

    name = name_on(1, "policy", 0);
    ref = put_rank(conn, 1, 0, 2, true);
    rdt_request *slow = start_part(conn, &name, 1, 0, 2, &ref);
    must(publish((rdt *const[]){far, conn}, 2, &name, 2, 2, true) == 1);
    must_refuse(RDT_FREED, "step 2 became complete first", rdt_wait(conn, &slow, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(slow);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_manifest_fetch(conn, &name, LONG, &manifest, &err));
    rdt_manifest_info(manifest, &info);
    must(info.version == 1 && info.step == 2 && info.parts == 2);
    must_ok(rdt_manifest_part(manifest, 1, &part, &tensors, &err));
    must_ok(rdt_manifest_box(manifest, 1, 0, &box, &err));
    must(tensors == 1 && strcmp(box.key, "w") == 0 && box.start[0] == ROWS / 2 && box.count[1] == COLUMNS);
    must(publish((rdt *const[]){far, conn}, 2, &name, 3, 2, true) == 2);
    rdt_object *object = fetch_one(far, &part, RDT_FETCH_AUTO); /* of the old version, which the manifest holds */
    must(*(float *)tensor_of(object, 0).data == element(2, ROWS / 2, 0));
    rdt_release(object);
    rdt_manifest_release(manifest);
    wait_until(LONG, objects_on(0) == 1 && objects_on(1) == 2); /* the parts of step 3, and its manifest */
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, far);
}

Test(shards, tensors_keep_their_boxes_everywhere)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_shard shard;
    rdt_object *object;
    rdt *conn = begin_shards(2);
    rdt *far = on(1);
    struct rdt_ref ref = put_rank(conn, 1, 0, 4, false);

    for (unsigned i = 0; i < 4; i++) {
        options.metadata_only = i & 1;
        must_ok(rdt_fetch(i & 2 ? far : conn, &ref, 1, &options, &object, &err));
        must_ok(rdt_object_shard(object, 0, &shard, &err));
        must(strcmp(shard.key, "w") == 0 && shard.global_shape[1] == COLUMNS && shard.start[1] == 0);
        must(!rdt_object_metadata(object, NULL));
        rdt_release(object);
    }
    int64_t global[1] = {3}, start[1] = {1};
    struct rdt_shard outside = {"v", global, start};
    uint8_t bytes[4];
    struct rdt_tensor tensor = bytes_at(bytes, 4);
    struct rdt_put_options put = {.struct_size = sizeof put, .shards = &outside};
    must_refuse(RDT_INVALID, "tensor 0 is a box of \"v\" that ends outside it", rdt_put(conn, &tensor, 1, &put, &ref, &err));
    end_shards(conn, far);
}

/* Publishes the newest version of the name under another one, too. */
static uint64_t promote(rdt *conn, const struct rdt_ref *from, const char *to)
{
    uint64_t version = 0;
    rdt_request *hold;
    struct rdt_ref ref;

    must_ok(rdt_hold(conn, from, LONG, &hold, &err));
    must_ok(rdt_hold_ref(hold, &ref, &err));
    must_ok(rdt_publish(conn, to, &ref, NULL, &version, &err));
    rdt_request_destroy(hold);
    return version;
}

Test(shards, name_begins_again_although_another_one_has_its_version)
{
    static struct view view;
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0), stable = name_on(0, "stable", 0);

    must(publish(&conn, 1, &name, 5, 2, true) == 1);
    must(promote(conn, &name, "stable") == 1);
    must_ok(rdt_unpublish(conn, &name, &err));
    must(publish(&conn, 1, &name, 1, 2, true) == 2);
    view_open(&view, conn, &stable, 0, COLUMNS, RDT_PLAN_AUTO);
    must_ok(rdt_plan_run(view.plan, 0, LONG, NULL, &err));
    view_check(&view, 5);
    rdt_plan_destroy(view.plan);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_unpublish(conn, &stable, &err));
    end_shards(conn, NULL);
}

Test(shards, version_has_the_number_of_the_name_by_which_it_is_read)
{
    static struct view view;
    rdt *near = begin_shards(2), *far = on(1);
    struct rdt_ref name = name_on(0, "policy", 0), stable = name_on(0, "stable", 0);
    struct rdt_plan_run run = {0};

    must(publish(&near, 1, &name, 1, 2, true) == 1);
    view_open(&view, far, &stable, 0, COLUMNS, RDT_PLAN_AUTO);
    for (uint64_t step = 2; step <= 4; step++) {
        must(publish(&near, 1, &name, step, 2, true) == step);
        must(promote(near, &name, "stable") == step - 1);
        must_ok(rdt_plan_run(view.plan, run.version, LONG, &run, &err));
        must(run.version == step - 1 && run.step == step);
        view_check(&view, step);
    }
    rdt_plan_destroy(view.plan);
    must_ok(rdt_unpublish(near, &name, &err));
    must_ok(rdt_unpublish(near, &stable, &err));
    end_shards(near, far);
}
