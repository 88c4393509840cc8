/* SPDX-License-Identifier: Apache-2.0 */
/* What rdtctl shards shows of versions of many parts, and of metadata that only look like a manifest. */
#include "proto/manifest.h"
#include "tests/integration/nodes/shards_fixture.h"
#include "tests/support/program.h"

TestSuite(shards_shown, .timeout = 60);

/* Its exit status; the output into *program_p, which the caller frees. */
static int show(const char *name, struct program *program_p)
{
    const char *const argv[] = {"rdtctl", "--socket", c.node[0].socket, "shards", name, NULL};

    program_run(program_p, argv, NULL);
    return program_p->status;
}

Test(shards_shown, version_is_called_complete_only_if_its_manifest_is_sound)
{
    static const char forged[] = MANIFEST_MAGIC "\x1a\x00"; /* one part, of which nothing is said */
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref, name;
    struct program program;
    rdt *conn;

    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true});
    conn = on(0);
    name = name_on(0, "policy", 0);
    must(publish(&conn, 1, &name, 1, 4, true) == 1);
    must(show("policy", &program) == 0 && strstr(program.out, "version 1, step 1: complete, 4 parts"));
    program_free(&program);
    options.metadata = forged;
    options.metadata_bytes = sizeof forged - 1;
    must_ok(rdt_put(conn, NULL, 0, &options, &ref, &err));
    must_ok(rdt_publish(conn, "forged", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_say(show("forged", &program) == 1, "%s", program.out);
    must_say(!strstr(program.out, "complete"), "%s", program.out);
    must_say(strstr(program.err, "a part of the manifest is incomplete"), "%s", program.err);
    program_free(&program);
    must_ok(rdt_unpublish(conn, &name, &err));
    name = name_on(0, "forged", 0);
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    rdt_close(conn);
    cluster_end(&c, told);
}
