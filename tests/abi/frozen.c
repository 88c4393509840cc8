/* SPDX-License-Identifier: Apache-2.0 */
/* A plug-in that was built against version 1 of the interface loads and works for ever. tests/abi/v1 is such a plug-in,
 * with the headers of that time, which never change. Today's headers must declare the same things in the same way. */
#include <ctype.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "tests/abi/layout/layout.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

TestSuite(frozen, .timeout = 100);

#define MIB ((size_t)1 << 20)

/* ---- the headers ---- */

static char *tree_file(const char *path)
{
    char whole[512], *text;
    FILE *file;
    size_t n;

    (void)snprintf(whole, sizeof whole, "%s/../../%s", build_path(""), path);
    file = fopen(whole, "re");
    must_say(file, "cannot open %s", whole);
    text = malloc(MIB);
    n = fread(text, 1, MIB - 1, file);
    text[n] = '\0';
    (void)fclose(file);
    return text;
}

static void expect_hash(const char *path, const char *expected)
{
    char *text = tree_file(path), hex[65];
    uint8_t hash[32];

    must(EVP_Digest(text, strlen(text), hash, NULL, EVP_sha256(), NULL) == 1);
    for (unsigned i = 0; i < sizeof hash; i++)
        (void)snprintf(hex + 2 * (size_t)i, 3, "%02x", hash[i]);
    must_say(strcmp(hex, expected) == 0, "%s was edited (it has %s): it is frozen, changes belong to backends/rdt_backend.h",
             path, hex);
    free(text);
}

Test(frozen, headers_of_version_1_were_not_edited)
{
    expect_hash("tests/abi/v1/rdt_backend.h", "c9817d7847547c096b66634c4f4459b03b71c82194e923c45279b06ba7ac58aa");
    expect_hash("tests/abi/v1/rdt_status.h", "e0bad59a1154bf4f975a0bfe1a233ce357a3c0a64b6f2b2c8f80014a3350cd91");
}

/* Of all things that a plug-in of version 1 was compiled with the place and the size are what they were. Tables and what the
 * core alone allocates may have grown behind; what lies in arrays or inside others may not, which shows in the offsets, and for
 * this one here. */
Test(frozen, layout_is_kept)
{
    must(n_frozen_things == n_live_things);
    for (size_t i = 0; i < n_frozen_things; i++) {
        const struct thing *then = &frozen_things[i], *now = &live_things[i];
        bool may_grow = then->kind == THING_END && strcmp(then->name, "rdt_config_key") != 0;

        must(strcmp(then->name, now->name) == 0);
        must_say(may_grow ? now->offset >= then->offset : now->offset == then->offset, "%s: %ld was %ld", then->name,
                 now->offset, then->offset);
        must_say(now->bytes == then->bytes, "the size of %s: %zu was %zu", then->name, now->bytes, then->bytes);
    }
}

/* The list of things is whole: between two fields, and behind the last, there is no room for another. */
Test(frozen, no_field_is_left_out)
{
    long end = 0;

    for (size_t i = 0; i < n_frozen_things; i++) {
        const struct thing *thing = &frozen_things[i];

        if (thing->kind == THING_VALUE)
            continue;
        must_say(thing->offset >= end && thing->offset - end < 8, "something before %s is missing", thing->name);
        end = thing->kind == THING_END ? 0 : thing->offset + (long)thing->bytes;
    }
}

/* In place: without comments and white space, each declaration up to its semicolon. */
static void bare(char *text)
{
    char *to = text;

    for (const char *at = text; *at != '\0'; at++) {
        const char *end = at[0] == '/' && at[1] == '*' ? strstr(at, "*/") : NULL;
        if (end)
            at = end + 1;
        else if (!isspace((unsigned char)*at))
            *to++ = *at;
    }
    *to = '\0';
}

Test(frozen, operations_are_declared_as_they_were)
{
    char *then = tree_file("tests/abi/v1/rdt_backend.h"), *now = tree_file("backends/rdt_backend.h"), *rest = then,
         *declaration;
    unsigned n = 0;

    bare(then);
    bare(now);
    while ((declaration = strsep(&rest, ";"))) {
        char *open = strrchr(declaration, '{'); /* the first of a struct */

        if (open)
            declaration = open + 1;
        if (!strstr(declaration, "(*"))
            continue;
        must_say(strstr(now, declaration), "backends/rdt_backend.h has no more '%s'", declaration);
        n++;
    }
    must_say(n == 33, "%u operations", n);
    free(then);
    free(now);
}

/* ---- the plug-in ---- */

static struct test_node owners, readers;

static void start(struct test_node *node, const char *name)
{
    const char *tmp = getenv("TMPDIR");
    char backend[256], folder[256];
    const char *flags[] = {backend, folder, "--chunk=64KiB", NULL};

    (void)snprintf(backend, sizeof backend, "--backend=%s", build_path("tests/rdt_v1.so"));
    (void)snprintf(folder, sizeof folder, "--set=frozen.directory=%s", tmp ? tmp : "/tmp");
    node_start(node, &(struct node_options){.name = name, .listen = "127.0.0.1:0", .no_backend_dir = true, .flags = flags});
}

static rdt_object *fetch_by_frozen(rdt *reader, const struct rdt_ref *ref)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_object *object;

    options.timeout_ns = LONG;
    options.transport = "frozen";
    must_ok(rdt_fetch(reader, ref, 1, &options, &object, &err));
    must_go_by("frozen", object);
    return object;
}

/* It does not know operations in several pieces, and gets none: chunks of scattered blocks are gathered and scattered. */
static void move_blocks(rdt *owner, rdt *reader)
{
    enum { N = 90, BYTES = 5000, STEP = 5100 };
    uint8_t *from = alloc_memory(owner, N * STEP), *to = alloc_memory(reader, N * STEP);
    struct rdt_tensor sources[N], targets[N];
    const struct rdt_tensor *list[] = {targets};
    const size_t count = N;
    static const int64_t shape[] = {BYTES};
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref;
    rdt_object *object;

    for (size_t i = 0; i < N; i++) {
        sources[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = from + i * STEP};
        targets[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = to + (N - 1 - i) * STEP};
        fill_pattern(sources[i].data, BYTES, (uint32_t)i);
    }
    must_ok(rdt_put(owner, sources, N, NULL, &ref, &err));
    options.timeout_ns = LONG;
    options.transport = "frozen";
    options.targets = list;
    options.target_counts = &count;
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_go_by("frozen", object);
    for (size_t i = 0; i < N; i++)
        must(holds_pattern(targets[i].data, BYTES, (uint32_t)i));
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(owner, from, &err));
    must_ok(rdt_dealloc(reader, to, &err));
}

Test(frozen, plugin_of_version_1_has_the_memory_and_moves_the_bytes)
{
    static const size_t sizes[] = {40000, 64 * 1024, 5 * MIB + 3};
    static const char *const declared[] = {"is down: ", "is lost: ", "taken down and rebuilt: ", "shutting down", NULL};
    rdt *owner, *reader;

    start(&owners, "owners");
    start(&readers, "readers");
    owner = node_client(&owners, "owner");
    reader = node_client(&readers, "reader");
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *memory = alloc_memory(owner, sizes[i]);
        struct rdt_tensor tensor = VECTOR(RDT_U8, sizes[i], memory), got;
        struct rdt_ref ref;
        rdt_object *object;

        fill_pattern(memory, sizes[i], i);
        ref = put_one(owner, &tensor, NULL);
        object = fetch_by_frozen(reader, &ref);
        got = tensor_of(object, 0);
        must(holds_pattern(got.data, sizes[i], i));
        rdt_release(object);

        object = fetch_one(owner, &ref, RDT_FETCH_SHARE); /* the plug-in's own descriptor */
        got = tensor_of(object, 0);
        must(holds_pattern(got.data, sizes[i], i));
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));
        must_ok(rdt_dealloc(owner, memory, &err));
    }
    move_blocks(owner, reader);
    rdt_close(owner);
    rdt_close(reader);
    node_expect_idle(&owners);
    node_expect_idle(&readers);
    node_stop(&readers);
    node_check_log(&readers, declared);
    node_stop(&owners);
    node_check_log(&owners, declared);
}
