/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl with a running daemon: its output, as text and as JSON, describes the daemon's state; files come back byte for
 * byte; and the exit status tells how a command ended. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/program.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)
#define MAX_WORDS 16

static struct test_node node;
static rdt *conn;
static struct program program;

static void begin(const struct node_options *options)
{
    node_start(&node, options);
    conn = node_client(&node, "the producer");
}

static void end(void)
{
    rdt_close(conn);
    node_end(&node, NULL);
}

/* "COMMAND ARGUMENTS ..." with single blanks; the socket is added. */
static void split(const char *words, char *text, const char **argv)
{
    unsigned n = 0;

    (void)snprintf(text, 1024, "%s", words);
    argv[n++] = "rdtctl";
    argv[n++] = "--socket";
    argv[n++] = node.socket;
    for (char *word = strtok(text, " "); word && n < MAX_WORDS - 1; word = strtok(NULL, " "))
        argv[n++] = word;
    argv[n] = NULL;
}

static void ctl(int expected, const char *words)
{
    const char *argv[MAX_WORDS];
    char text[1024];

    program_free(&program);
    split(words, text, argv);
    program_run(&program, argv, NULL);
    must_say(program.status == expected, "`rdtctl %s` ended with %d instead of %d: %s%s", words, program.status, expected,
             program.out, program.err);
}

static void ctl_start(struct program *started, const char *words)
{
    const char *argv[MAX_WORDS];
    char text[1024];

    split(words, text, argv);
    program_start(started, argv, NULL);
}

/* Returns the output of the command, which must be JSON and nothing else. */
static json_t *ctl_json(int expected, const char *words)
{
    char with_json[1024];
    json_error_t error;

    (void)snprintf(with_json, sizeof with_json, "%s --json", words);
    ctl(expected, with_json);
    json_t *json = json_loads(program.out, JSON_REJECT_DUPLICATES, &error);
    must_say(json, "`rdtctl %s` prints no JSON: %s: %s", with_json, error.text, program.out);
    return json;
}

static int64_t number_at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    must_say(json_is_integer(value), "\"%s\" is no number in %s", key, program.out);
    return json_integer_value(value);
}

static const char *text_at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    must_say(json_is_string(value), "\"%s\" is no string in %s", key, program.out);
    return json_string_value(value);
}

/* The row of the list under `list` whose `key` is the text. */
static const json_t *row_with(const json_t *json, const char *list, const char *key, const char *text)
{
    size_t i;
    json_t *row;

    must_say(json_is_array(json_object_get(json, list)), "no list \"%s\" in %s", list, program.out);
    json_array_foreach(json_object_get(json, list), i, row) if (strcmp(text_at(row, key), text) == 0) return row;
    fail("no row of \"%s\" has %s = %s: %s", list, key, text, program.out);
}

static bool printed(const char *text)
{
    return strstr(program.out, text);
}

/* ---- views ---- */

Test(ctl, objects_are_sorted_and_show_their_refs)
{
    char text[RDT_REF_TEXT_BYTES];

    begin(NULL);
    struct rdt_ref small = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "small");
    (void)put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "large");
    rdt_ref_to_text(&small, text);
    ctl(0, "objects --wide");
    cr_assert(printed(text) && strstr(program.out, "small") < strstr(program.out, "large"), "%s", program.out);
    ctl(0, "objects --sort bytes");
    cr_assert(!printed(text) && strstr(program.out, "large") < strstr(program.out, "small"), "%s", program.out);
    json_t *json = ctl_json(0, "objects --sort bytes --limit 1");
    cr_assert_eq(json_array_size(json_object_get(json, "objects")), 1);
    cr_assert(printed("\"large\""), "%s", program.out);
    json_decref(json);
    end();
}

Test(ctl, limits_say_when_nothing_is_left)
{
    const struct node_options options = {.flags = (const char *[]){"--owner-max-names", "1", NULL}};

    begin(&options);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    must_be(RDT_OK, rdt_publish(conn, "name", &ref, NULL, NULL, &err));
    ctl(0, "limits");
    cr_assert(printed("100%: nothing is left") && printed("none"), "%s", program.out);
    ctl(0, "unpublish name");
    end();
}

Test(ctl, status_tells_what_is)
{
    begin(NULL);
    (void)put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    json_t *json = ctl_json(0, "status");
    cr_assert_str_eq(text_at(json, "state"), "serving");
    cr_assert_str_eq(text_at(json, "node"), node.uuid);
    cr_assert_str_eq(text_at(json, "socket"), node.socket);
    cr_assert_str_eq(text_at(json, "version"), RDT_VERSION);
    cr_assert_eq(number_at(json, "pid"), node.pid);
    cr_assert_eq(number_at(json, "clients"), 2);
    cr_assert_eq(number_at(json, "objects"), 1);
    cr_assert_eq(number_at(json, "regions"), 1);
    cr_assert_geq(number_at(json, "memory_bytes"), (int64_t)MIB);
    cr_assert_eq(number_at(json, "transfers_active"), 0);
    json_decref(json);
    ctl(0, "status");
    cr_assert(printed(node.uuid) && printed("serving") && printed(RDT_VERSION), "%s", program.out);
    end();
}

Test(ctl, lists_name_objects_regions_clients_and_backends)
{
    struct rdt_ref ref, read_back;

    begin(&(struct node_options){.loopback = true});
    ref = put_shown(conn, &MATRIX(RDT_F32, 256, 1024, alloc_memory(conn, MIB)), "layer/0 \"weights\"", RDT_VISIBLE_TO_ALL);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);

    json_t *json = ctl_json(0, "objects");
    cr_assert_eq(json_array_size(json_object_get(json, "objects")), 1);
    const json_t *row = json_array_get(json_object_get(json, "objects"), 0);
    cr_assert_str_eq(text_at(row, "state"), "live");
    cr_assert_str_eq(text_at(row, "visibility"), "all");
    cr_assert_eq(number_at(row, "bytes"), (int64_t)MIB);
    cr_assert_eq(number_at(row, "tensors"), 1);
    cr_assert_eq(number_at(row, "holds"), 1);
    cr_assert_eq(number_at(row, "uid"), (int64_t)getuid());
    must_ok(rdt_ref_from_text(text_at(row, "ref"), &read_back, &err));
    cr_assert(rdt_ref_equal(&read_back, &ref));
    json_decref(json);
    ctl(0, "objects");
    cr_assert(printed("layer/0") && printed("live"), "%s", program.out);
    json = ctl_json(0, "objects --prefix none");
    cr_assert_eq(json_array_size(json_object_get(json, "objects")), 0);
    json_decref(json);

    json = ctl_json(0, "regions");
    cr_assert_eq(json_array_size(json_object_get(json, "regions")), 2);
    cr_assert_geq(number_at(row_with(json, "regions", "origin", "allocated"), "bytes"), (int64_t)MIB);
    cr_assert_geq(number_at(row_with(json, "regions", "origin", "received"), "bytes"), (int64_t)MIB);
    json_decref(json);
    ctl(0, "regions");
    cr_assert(printed("allocated") && printed("received"), "%s", program.out);

    json = ctl_json(0, "clients");
    row = row_with(json, "clients", "name", "the producer");
    cr_assert_eq(number_at(row, "pid"), getpid());
    cr_assert_eq(number_at(row, "objects"), 1);
    cr_assert_eq(number_at(row, "holds"), 1);
    (void)row_with(json, "clients", "name", "rdtctl");
    json_decref(json);
    ctl(0, "clients");
    cr_assert(printed("the producer"), "%s", program.out);

    json = ctl_json(0, "limits");
    row = row_with(json, "clients", "name", "the producer");
    cr_assert_str_eq(text_at(row, "tenant"), ""); /* its owner, with uid */
    cr_assert(json_is_array(json_object_get(row, "usage")));
    cr_assert_gt(json_array_size(json_object_get(json, "owners")), 0);
    json_decref(json);
    ctl(0, "limits");
    cr_assert(printed("the producer") && printed("sessions") && !printed("waiters"), "%s", program.out);
    ctl(0, "limits --all");
    cr_assert(printed("waiters"), "%s", program.out);

    json = ctl_json(0, "backends");
    cr_assert_str_eq(text_at(row_with(json, "backends", "name", "host"), "kind"), "memory");
    row = row_with(json, "backends", "name", "loopback");
    cr_assert_str_eq(text_at(row, "kind"), "transport");
    cr_assert(json_is_true(json_object_get(row, "available")));
    row = row_with(json, "backends", "name", "ucx");
    cr_assert(json_is_false(json_object_get(row, "available")));
    cr_assert(strstr(text_at(row, "why_not"), "trusted_network"));
    json_decref(json);
    ctl(0, "backends");
    cr_assert(printed("loopback") && printed("trusted_network"), "%s", program.out);

    json = ctl_json(0, "peers");
    cr_assert_eq(json_array_size(json_object_get(json, "peers")), 0);
    json_decref(json);
    ctl(0, "peers");
    rdt_release(object);
    end();
}

Test(ctl, transfers_and_explain_tell_the_path_and_why)
{
    char words[RDT_REF_TEXT_BYTES + 32], text[RDT_REF_TEXT_BYTES];

    begin(NULL);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    rdt_ref_to_text(&ref, text);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);
    uint64_t transfer = info_of(object).transfer;
    json_t *json = ctl_json(0, "transfers");
    const json_t *row = row_with(json, "transfers", "path", "local/copy");
    cr_assert_eq(number_at(row, "transfer"), (int64_t)transfer);
    cr_assert_eq(number_at(row, "bytes_done"), (int64_t)MIB);
    cr_assert_str_eq(text_at(row, "state"), "done");
    json_decref(json);
    ctl(0, "transfers");
    cr_assert(printed("local/copy"), "%s", program.out);

    for (unsigned i = 0; i < 3; i++) {
        if (i == 0)
            (void)snprintf(words, sizeof words, "explain %llu", (unsigned long long)transfer);
        else
            (void)snprintf(words, sizeof words, "explain %s", i == 1 ? text : "w");
        json = ctl_json(0, words);
        row = json_object_get(row_with(json, "transfers", "path", "local/copy"), "candidates");
        cr_assert_eq(json_array_size(row), 4);
        cr_assert(printed("the reader asked for a copy"));
        json_decref(json);
        ctl(0, words);
        cr_assert(printed("local/share") && printed("the reader asked for a copy"), "%s", program.out);
    }
    ctl(1, "explain 999999");
    rdt_release(object);
    end();
}

/* Decisions on the same question are kept once: each transfer tells its own all the same, also after others of another kind. */
Test(ctl, explain_tells_each_transfer_its_own_decision)
{
    static const struct {
        enum rdt_fetch_mode mode;
        const char *path, *reason;
    } kinds[] = {{RDT_FETCH_SHARE, "local/share", "the reader asked for shared memory"},
                 {RDT_FETCH_COPY, "local/copy", "the reader asked for a copy"},
                 {RDT_FETCH_SHARE, "local/share", "the reader asked for shared memory"},
                 {RDT_FETCH_COPY, "local/copy", "the reader asked for a copy"}};
    enum { N = sizeof kinds / sizeof kinds[0] };
    uint64_t transfers[N];

    begin(NULL);
    rdt *reader = node_client(&node, "reader");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    for (unsigned i = 0; i < N; i++) {
        rdt_object *object = fetch_one(reader, &ref, kinds[i].mode);
        transfers[i] = info_of(object).transfer;
        rdt_release(object);
    }
    for (unsigned i = 0; i < N; i++) {
        char words[40];

        (void)snprintf(words, sizeof words, "explain %llu", (unsigned long long)transfers[i]);
        json_t *json = ctl_json(0, words);
        (void)row_with(json, "transfers", "path", kinds[i].path);
        cr_assert(printed(kinds[i].reason), "%s", program.out);
        for (unsigned j = 0; j < N; j++)
            cr_assert(kinds[j].mode == kinds[i].mode || !printed(kinds[j].reason), "%s", program.out);
        json_decref(json);
    }
    rdt_close(reader);
    end();
}

Test(ctl, stat_says_who_holds_it)
{
    begin(NULL);
    rdt *reader = node_client(&node, "the reader");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    json_t *json = ctl_json(0, "stat w");
    cr_assert_eq(number_at(json, "holds"), 2);
    cr_assert_eq(json_array_size(json_object_get(json, "holders")), 2);
    json_decref(json);
    ctl(0, "stat w");
    cr_assert(printed("has not freed it") && printed("\"the reader\" (pid ") && printed("reads it"), "%s", program.out);
    rdt_release(object);
    rdt_close(reader);
    end();
}

Test(ctl, clients_end_releases_what_a_client_holds)
{
    char words[64];

    begin(NULL);
    rdt *other = node_client(&node, "the other");
    struct rdt_ref ref = put_one(other, &VECTOR(RDT_U8, MIB, alloc_memory(other, MIB)), "w");
    json_t *json = ctl_json(0, "clients");
    (void)snprintf(words, sizeof words, "clients end %lld",
                   (long long)number_at(row_with(json, "clients", "name", "the other"), "client"));
    json_decref(json);
    ctl(0, words);
    cr_assert(printed("has been ended"), "%s", program.out);
    must_be(RDT_OK, rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_DISCONNECTED, rdt_wait_freed(other, &ref, LONG, &err));
    ctl(1, words);
    cr_assert(strstr(program.err, "NOT_FOUND"), "%s", program.err);
    ctl(2, "clients end it");
    ctl(2, "clients end");
    rdt_close(other);
    end();
}

static bool names_process(const char *pid)
{
    ctl(0, "regions --orphaned");
    return printed(pid);
}

Test(ctl, orphaned_memory_names_the_process_that_keeps_it)
{
    struct rdt_put_options options = RDT_INIT(options);
    char pid[32];
    struct rdt_ref ref;

    begin(NULL);
    const struct rdt_tensor tensor = VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB));
    options.flags = RDT_PUT_SNAPSHOT;
    must_be(RDT_OK, rdt_put(conn, &tensor, 1, &options, &ref, &err));
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    pid_t child = fork(); /* it has the mapping, too */
    if (child == 0) {
        (void)pause();
        _exit(0);
    }
    ctl(0, "regions --orphaned");
    cr_assert(printed("no process keeps"), "%s", program.out);
    rdt_release(object);
    must_be(RDT_OK, rdt_free(conn, &ref, true, &err));
    (void)snprintf(pid, sizeof pid, "pid %d (", (int)child);
    wait_until(LONG, names_process(pid));
    json_t *json = ctl_json(0, "regions --orphaned");
    cr_assert_eq(json_array_size(json_object_get(json, "orphans")), 1);
    json_decref(json);
    must(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    end();
}

Test(ctl, ping_counts_round_trips)
{
    begin(NULL);
    json_t *json = ctl_json(0, "ping -c 5");
    cr_assert_eq(json_array_size(json_object_get(json, "round_trips_ns")), 5);
    cr_assert_leq(number_at(json, "min_ns"), number_at(json, "mean_ns"));
    cr_assert_leq(number_at(json, "mean_ns"), number_at(json, "max_ns"));
    json_decref(json);
    ctl(0, "ping -c 2");
    end();
}

/* ---- files ---- */

/* Every dtype that safetensors knows, an empty tensor, a scalar, and a large one. */
static size_t make_file(const char *path)
{
    static const struct {
        const char *name;
        size_t bytes;
    } dtypes[] = {
#define X(number, name, size, text, safetensors) {safetensors, size},
        RDT_DTYPE_MAP(X)
#undef X
    };
    char header[8192] = "{\"__metadata__\":{\"format\":\"pt\"}";
    size_t at = 0, large = 3 * MIB + 4;

    for (unsigned i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        size_t bytes = 6 * dtypes[i].bytes, used = strlen(header);
        if (!dtypes[i].name)
            continue;
        (void)snprintf(header + used, sizeof header - used,
                       ",\"t%u\":{\"dtype\":\"%s\",\"shape\":[2,3],\"data_offsets\":[%zu,%zu]}", i, dtypes[i].name, at,
                       at + bytes);
        at += bytes;
    }
    (void)snprintf(
        header + strlen(header), sizeof header - strlen(header),
        ",\"none\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[%zu,%zu]},\"scalar\":{\"dtype\":\"F64\",\"shape\":[],"
        "\"data_offsets\":[%zu,%zu]},\"large\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}}",
        at, at, at, at + 8, large, at + 8, at + 8 + large);
    at += 8 + large;
    char *data = malloc(at);
    must(data);
    fill_pattern(data, at, 3);
    uint64_t length = strlen(header);
    FILE *file = fopen(path, "we");
    must(file && fwrite(&length, 8, 1, file) == 1 && fwrite(header, length, 1, file) == 1 && fwrite(data, at, 1, file) == 1);
    must(fclose(file) == 0);
    free(data);
    return 8 + length + at;
}

Test(ctl, safetensors_file_comes_back_byte_for_byte)
{
    char in[256], out[256], words[1024], ref[RDT_REF_TEXT_BYTES];
    size_t bytes, in_bytes, out_bytes;
    struct program put;

    begin(NULL);
    (void)snprintf(in, sizeof in, "%s/in.safetensors", node.dir);
    bytes = make_file(in);
    (void)snprintf(words, sizeof words, "put %s -q", in);
    ctl_start(&put, words);
    program_first_line(&put, ref, sizeof ref);
    for (unsigned i = 0; i < 3; i++) {
        static const char *const modes[] = {"auto", "share", "copy"};
        (void)snprintf(out, sizeof out, "%s/out.%s", node.dir, modes[i]);
        (void)snprintf(words, sizeof words, "fetch %.600s -o %s --mode %s --timeout 20s", ref, out, modes[i]);
        ctl(0, words);
        char *a = read_file(in, &in_bytes);
        char *b = read_file(out, &out_bytes);
        cr_assert_eq(in_bytes, bytes);
        cr_assert_eq(out_bytes, bytes);
        cr_assert_eq(memcmp(a, b, bytes), 0, "mode %s", modes[i]);
        free(a);
        free(b);
    }
    must(kill(put.pid, SIGTERM) == 0);
    program_wait(&put);
    cr_assert_eq(put.status, 0, "%s", put.err);
    program_free(&put);
    (void)snprintf(words, sizeof words, "fetch %.600s -o %s --timeout 5s", ref, out);
    ctl(1, words);
    cr_assert(strstr(program.err, "OWNER_DIED"), "%s", program.err);
    end();
}

Test(ctl, object_of_a_program_becomes_a_file)
{
    char out[256], words[1024];
    float values[] = {1, 2, 3, 4, 5, 6};
    static const int64_t shape[] = {3, 2}, transposed[] = {1, 3};
    struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 2, .shape = shape, .strides = transposed, .data = values};
    size_t bytes;
    float seen[6];
    uint64_t length;

    begin(NULL);
    (void)put_one(conn, &tensor, "w");
    (void)snprintf(out, sizeof out, "%s/out.safetensors", node.dir);
    (void)snprintf(words, sizeof words, "fetch w -o %s --timeout 20s", out);
    ctl(0, words);
    char *file = read_file(out, &bytes);
    memcpy(&length, file, 8);
    cr_assert_eq(bytes, 8 + length + sizeof values);
    memcpy(seen, file + 8 + length, sizeof seen);
    for (unsigned i = 0; i < 6; i++)
        cr_assert_eq(seen[i], values[i % 2 * 3 + i / 2], "element %u", i);
    free(file);
    end();
}

/* ---- waiting and freeing ---- */

Test(ctl, wait_ends_with_the_put)
{
    struct rdt_ref later = ref_named("later");
    struct rdt_stat stat;
    struct program waiter;

    begin(NULL);
    ctl(4, "wait later --timeout 50ms");
    cr_assert(strstr(program.err, "TIMED_OUT"));
    ctl_start(&waiter, "wait later --timeout 1m");
    wait_until(20 * SEC, rdt_stat(conn, &later, &stat, NULL) == RDT_OK && stat.waiters == 1);
    (void)put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "later");
    program_wait(&waiter);
    cr_assert_eq(waiter.status, 0, "%s", waiter.err);
    program_free(&waiter);
    json_t *json = ctl_json(0, "wait later");
    cr_assert(json_is_true(json_object_get(json, "put")));
    json_decref(json);
    end();
}

Test(ctl, free_by_force_frees)
{
    begin(NULL);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    ctl(1, "free w"); /* another client's */
    cr_assert(strstr(program.err, "DENIED"), "%s", program.err);
    json_t *json = ctl_json(0, "free w --force");
    cr_assert(json_is_true(json_object_get(json, "freed")));
    json_decref(json);
    must_be(RDT_FREED, rdt_wait_put(conn, &ref, LONG, &err));
    ctl(1, "free w --force");
    cr_assert(strstr(program.err, "NOT_FOUND"), "%s", program.err);
    end();
}

/* A freed object has given up its id, and its readers keep its memory: stat and the wait find it all the same. */
Test(ctl, free_waits_for_the_readers_of_an_id)
{
    begin(NULL);
    rdt *reader = node_client(&node, "the reader");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    ctl(4, "free w --force --wait 50ms");
    cr_assert(strstr(program.err, "\"the reader\" (pid "), "%s", program.err);
    ctl(0, "stat w");
    cr_assert(printed("draining") && printed("\"the reader\" (pid "), "%s", program.out);
    (void)put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    ctl(0, "stat w");
    cr_assert(printed("live") && !printed("the reader"), "%s", program.out);
    ctl(0, "free w --force --wait 30s");
    ctl(0, "stat w");
    rdt_release(object);
    rdt_close(reader);
    must_be(RDT_OK, rdt_wait_freed(conn, &ref, LONG, &err));
    ctl(1, "free w --force --wait 30s");
    ctl(1, "stat w");
    end();
}

Test(ctl, exit_statuses_tell_how_it_ended)
{
    char words[256];

    begin(NULL);
    ctl(0, "status");
    ctl(1, "stat nobody");
    json_t *json = ctl_json(1, "stat nobody");
    json_decref(json);
    ctl(2, "frobnicate");
    ctl(2, "stat");
    ctl(2, "objects --limit x");
    (void)snprintf(words, sizeof words, "fetch nobody -o %s/never --timeout 50ms", node.dir);
    ctl(4, words);
    node_freeze(&node);
    ctl(4, "ping --timeout 100ms");
    ctl(4, "status --timeout 100ms");
    node_thaw(&node);
    rdt_close(conn);
    node_end(&node, NULL);
    ctl(3, "status");
    ctl(3, "ping");
}

/* More rows than one page holds. */
Test(ctl, thousands_of_objects_are_listed_once_each)
{
    enum { N = 2500 };
    static bool seen[N];
    json_t *json, *row;
    size_t i;

    begin(NULL);
    for (unsigned n = 0; n < N; n++) {
        char id[16];
        (void)snprintf(id, sizeof id, "o%u", n);
        (void)put_one(conn, &VECTOR(RDT_U8, 0, NULL), id);
    }
    json = ctl_json(0, "objects");
    cr_assert_eq(json_array_size(json_object_get(json, "objects")), N);
    json_array_foreach(json_object_get(json, "objects"), i, row)
    {
        unsigned n = (unsigned)atoi(text_at(row, "id") + 1);
        cr_assert(n < N && !seen[n]);
        seen[n] = true;
    }
    json_decref(json);
    json = ctl_json(0, "objects --limit 10");
    cr_assert_eq(json_array_size(json_object_get(json, "objects")), 10);
    json_decref(json);
    end();
}
