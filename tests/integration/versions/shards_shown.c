/* SPDX-License-Identifier: Apache-2.0 */
/* What rdtctl shards shows of versions of many parts, and of metadata that only look like a manifest. */
#include "proto/manifest.h"
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/program.h"

TestSuite(shards_shown, .timeout = 60);

/* Its exit status; the output into *program_p, which the caller frees. */
static int show(const char *name, struct program *program_p)
{
    const char *const argv[] = {"rdtctl", "--socket", c.node[0].socket, "shards", name, NULL};

    program_run(program_p, argv, NULL);
    return program_p->status;
}

static int rdtctl(struct program *program_p, const char *const *words)
{
    const char *argv[16] = {"rdtctl", "--socket", c.node[1].socket};

    for (size_t i = 0; words[i]; i++)
        argv[3 + i] = words[i];
    program_run(program_p, argv, NULL);
    return program_p->status;
}

Test(shards_shown, fetch_writes_the_whole_tensors_of_all_parts)
{
    struct program program;
    char file[128];
    rdt *conns[2];

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true});
    for (unsigned i = 0; i < 2; i++)
        conns[i] = on(i);
    (void)snprintf(file, sizeof file, "%s/policy.st", getenv("TMPDIR"));
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref copy = name_on(1, "copy", 0);
    for (uint64_t step = 1; step <= 2; step++) {
        const char *const fetch[] = {"fetch", "--name", "policy", "--node", name.address, "-o", file, NULL};
        const char *const put[] = {"put", file, "--publish", "copy", NULL};
        struct rdt_tensor tensor;

        must(publish(conns, 2, &name, step, 4, step == 1) == step); /* rows, then columns */
        must_say(rdtctl(&program, fetch) == 0, "%s", program.err);
        must_say(strstr(program.out, "of policy, step ") && strstr(program.out, ": 2 tensors, 24.4 KiB in 4 parts -> "), "%s",
                 program.out);
        program_free(&program);
        must_say(rdtctl(&program, put) == 0, "%s", program.err);
        program_free(&program);
        rdt_object *object = fetch_one(conns[1], &copy, RDT_FETCH_AUTO);
        must(rdt_object_count(object) == 2);
        must_ok(rdt_object_tensor(object, 0, &tensor, &err));
        must(tensor.ndim == 2 && tensor.shape[0] == ROWS && tensor.shape[1] == COLUMNS && tensor.dtype == RDT_F32);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t k = 0; k < COLUMNS; k++)
                must(((float *)tensor.data)[r * COLUMNS + k] == element(step, r, k));
        must_ok(rdt_object_tensor(object, 1, &tensor, &err));
        for (int64_t k = 0; k < COLUMNS; k++)
            must(((float *)tensor.data)[k] == element(step, -1, k));
        rdt_release(object);
    }
    {
        const char *const stat[] = {"stat", "--name", "policy", "--node", name.address, NULL};

        must(rdtctl(&program, stat) == 0);
        must_say(strstr(program.out, "the list of a version's parts"), "%s", program.out);
        program_free(&program);
    }
    must_ok(rdt_unpublish(conns[0], &name, &err));
    must_ok(rdt_unpublish(conns[1], &copy, &err));
    for (unsigned i = 0; i < 2; i++) {
        wait_until(LONG, objects_on(i) == 0);
        rdt_close(conns[i]);
    }
    cluster_end(&c, told);
}

Test(shards_shown, version_is_called_complete_only_if_the_daemon_wrote_its_manifest)
{
    static const char forged[] = MANIFEST_MAGIC "\x1a\x00"; /* one part, of which nothing is said */
    struct program program;
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);

    must(publish(&conn, 1, &name, 1, 4, true) == 1);
    must(show("policy", &program) == 0 && strstr(program.out, "version 1, step 1: complete, 4 parts"));
    program_free(&program);
    struct rdt_put_options options = {.struct_size = sizeof options, .metadata = forged, .metadata_bytes = sizeof forged - 1};
    struct rdt_ref ref = put_as(conn, NULL, 0, &options);
    must_ok(rdt_publish(conn, "forged", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_say(show("forged", &program) == 1, "%s", program.out);
    must_say(!strstr(program.out, "complete"), "%s", program.out);
    must_say(strstr(program.err, "version 1 of \"forged\" is one object, not many parts"), "%s", program.err);
    program_free(&program);
    must_ok(rdt_unpublish(conn, &name, &err));
    name = name_on(0, "forged", 0);
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, NULL);
}
