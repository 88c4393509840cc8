/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_info.h: the holders of an object, and the lists of a daemon's objects, names and nodes. The tests with other users
 * need root. */
#include <grp.h>
#include <sys/stat.h>

#include "client/rdt_info.h"
#include "tests/integration/limits/limits.h"

#define STRANGER 12345

/* ---- who holds ---- */

struct seen {
    size_t n;
    bool cut;
    struct {
        char kind[32], client_name[65], name[64], sentence[256];
        uint32_t count;
        uint64_t client, version;
        int32_t pid;
    } row[64];
};

static bool see(void *arg, const struct rdt_holder *holder)
{
    struct seen *seen = arg;

    must(seen->n < 64 && !seen->cut);
    (void)snprintf(seen->row[seen->n].kind, sizeof seen->row[0].kind, "%s", holder->kind);
    (void)snprintf(seen->row[seen->n].client_name, sizeof seen->row[0].client_name, "%s", holder->client_name);
    (void)snprintf(seen->row[seen->n].name, sizeof seen->row[0].name, "%s", holder->name);
    (void)snprintf(seen->row[seen->n].sentence, sizeof seen->row[0].sentence, "%s", holder->sentence);
    seen->row[seen->n].count = holder->count;
    seen->row[seen->n].client = holder->client;
    seen->row[seen->n].version = holder->version;
    seen->row[seen->n].pid = holder->pid;
    seen->n++;
    return true;
}

static struct seen holders_of(rdt *client, const struct rdt_ref *ref)
{
    struct seen seen = {0};
    struct rdt_stat stat;
    uint64_t holds = 0;

    must_ok(rdt_holders(client, ref, &stat, see, &seen, &err));
    for (size_t i = 0; i < seen.n; i++)
        holds += strcmp(seen.row[i].kind, "pins") != 0 ? seen.row[i].count : 0;
    must_say(holds == stat.holds, "%u holds, and the rows count %u", stat.holds, (unsigned)holds);
    return seen;
}

/* The place of the row of this kind; fails the test if there is none. */
static size_t row_of(const struct seen *seen, const char *kind)
{
    size_t i = 0;

    while (i < seen->n && strcmp(seen->row[i].kind, kind) != 0)
        i++;
    must_say(i < seen->n, "no row %s among %zu", kind, seen->n);
    return i;
}

static void must_name(const char *sentence, const char *client_name)
{
    char want[128];

    (void)snprintf(want, sizeof want, "\"%s\" (pid %d)", client_name, (int)getpid());
    must_say(strstr(sentence, want) != NULL, "%s is not in: %s", want, sentence);
}

Test(info, holders_are_named_by_client_and_pid)
{
    struct rdt_node_info me;
    rdt_object *objects[2];
    rdt_request *hold;

    begin(NULL);
    rdt *evaluator = node_client(&node, "evaluator");
    must_ok(rdt_node(evaluator, &me, &err));
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    objects[0] = fetch_one(evaluator, &ref, RDT_FETCH_SHARE);
    objects[1] = fetch_one(evaluator, &ref, RDT_FETCH_SHARE);
    must_ok(rdt_hold(evaluator, &ref, LONG, &hold, &err));
    struct seen seen = holders_of(conn, &ref);
    cr_assert_eq(seen.n, 4);
    size_t i = row_of(&seen, "producer");
    cr_assert_eq(seen.row[i].pid, getpid());
    i = row_of(&seen, "reader");
    cr_assert_str_eq(seen.row[i].client_name, "evaluator");
    cr_assert_eq(seen.row[i].client, me.session);
    cr_assert_eq(seen.row[i].pid, getpid());
    cr_assert_eq(seen.row[i].count, 2);
    must_name(seen.row[i].sentence, "evaluator");
    cr_assert_eq(seen.row[row_of(&seen, "hold")].count, 1);
    i = row_of(&seen, "name");
    cr_assert_str_eq(seen.row[i].name, "weights");
    cr_assert_eq(seen.row[i].version, 1);
    must_be(RDT_INVALID, rdt_holders(conn, &ref, NULL, NULL, NULL, &err));
    rdt_release(objects[0]);
    rdt_release(objects[1]);
    rdt_request_destroy(hold);
    ref = ref_named("weights");
    ref.is_name = 1;
    must_ok(rdt_unpublish(conn, &ref, &err));
    rdt_close(evaluator);
    end(NULL);
}

Test(info, wait_freed_that_times_out_names_the_holder)
{
    rdt_request *wait;
    struct rdt_error why;

    begin(NULL);
    rdt *evaluator = node_client(&node, "evaluator");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    must_refuse(RDT_TIMED_OUT, "has not freed it", rdt_wait_freed(conn, &ref, 0, &err));
    rdt_object *object = fetch_one(evaluator, &ref, RDT_FETCH_SHARE);
    must_ok(rdt_free(conn, &ref, false, &err));
    do
        must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 50 * MSEC, &why));
    while (check_is_late(&why));
    must_name(why.msg, "evaluator");
    do {
        must_ok(rdt_wait_freed_start(conn, &ref, 50 * MSEC, &wait, &err));
        must_be(RDT_TIMED_OUT, rdt_wait(conn, &wait, 1, 1, LONG, NULL, NULL, &why));
        rdt_request_destroy(wait);
    } while (check_is_late(&why));
    must_name(why.msg, "evaluator");
    rdt_release(object);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    rdt_close(evaluator);
    end(NULL);
}

Test(info, wait_for_a_range_names_an_object_in_it_and_its_holders)
{
    struct rdt_error why;

    begin(NULL);
    uint8_t *memory = alloc_memory(conn, 2 * MIB);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, memory), "w 1");
    rdt *evaluator = node_client(&node, "evaluator");
    rdt_object *object = fetch_one(evaluator, &ref, RDT_FETCH_SHARE);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, memory + 1000, 1, 0, &why));
    must_say(strstr(why.msg, "object \"w%201\": client "), "%s", why.msg);
    must_name(why.msg, "evaluator");
    must_ok(rdt_wait_freed_range(conn, memory + MIB, MIB, 0, &err));
    rdt_release(object);
    must_ok(rdt_wait_freed_range(conn, memory, 2 * MIB, LONG, &err));
    rdt_close(evaluator);
    end(NULL);
}

Test(info, many_holders_are_counted)
{
    enum { N = 50 };
    rdt_object *objects[N];
    rdt *readers[N];

    begin(NULL);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    for (unsigned i = 0; i < N; i++) {
        readers[i] = node_client(&node, "reader");
        objects[i] = fetch_one(readers[i], &ref, RDT_FETCH_SHARE);
    }
    struct seen seen = holders_of(conn, &ref);
    cr_assert_eq(seen.n, 33); /* 32 rows, and one for the others */
    cr_assert_eq(seen.row[row_of(&seen, "others")].count, N + 1 - 32);
    must_refuse(RDT_TIMED_OUT, "48 more holds", rdt_wait_freed(conn, &ref, 0, &err)); /* three are named */
    for (unsigned i = 0; i < N; i++) {
        rdt_release(objects[i]);
        rdt_close(readers[i]);
    }
    must_ok(rdt_free(conn, &ref, false, &err));
    end(NULL);
}

static bool stop_at_once(void *arg, const struct rdt_holder *holder)
{
    ++*(unsigned *)arg;
    return false;
}

Test(info, function_that_returns_false_is_not_called_again)
{
    rdt_request *hold;
    unsigned calls = 0;

    begin(NULL);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), "w");
    must_ok(rdt_hold(other, &ref, LONG, &hold, &err));
    must_ok(rdt_holders(conn, &ref, NULL, stop_at_once, &calls, &err));
    cr_assert_eq(calls, 1);
    rdt_request_destroy(hold);
    must_ok(rdt_free(conn, &ref, false, &err));
    end(NULL);
}

/* ---- other users ---- */

static rdt *come_as_stranger(void)
{
    rdt *client;

    must(chdir(node.dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s", .name = "stranger", .timeout_ns = LONG};
    must_ok(rdt_connect(&options, &client, &err));
    return client;
}

static int looks_at_anothers(struct actor *self, void *arg)
{
    rdt *stranger = come_as_stranger();
    struct rdt_ref ref;
    struct rdt_error why;

    actor_recv(self, &ref, sizeof ref);
    rdt_object *object = fetch_one(stranger, &ref, RDT_FETCH_SHARE);
    struct seen seen = holders_of(stranger, &ref);
    must(seen.n == 2);
    size_t i = row_of(&seen, "reader");
    must(strcmp(seen.row[i].client_name, "stranger") == 0 && seen.row[i].pid == getpid());
    i = row_of(&seen, "others");
    must(seen.row[i].count == 2 && seen.row[i].client == 0 && seen.row[i].client_name[0] == '\0' && seen.row[i].pid == 0);
    do
        must_be(RDT_TIMED_OUT, rdt_wait_freed(stranger, &ref, 50 * MSEC, &why));
    while (check_is_late(&why));
    must_say(strstr(why.msg, "\"stranger\"") && !strstr(why.msg, "\"secret"), "%s", why.msg);
    actor_step(self);
    actor_await(self);
    rdt_release(object);
    rdt_close(stranger);
    return 0;
}

Test(info, stranger_sees_its_own_clients_and_a_count)
{
    struct actor actor;
    struct rdt_error why;

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, looks_at_anothers, NULL);
    rdt *owner = node_client(&node, "secret owner");
    rdt *reader = node_client(&node, "secret reader");
    struct rdt_ref ref = put_shown(owner, &VECTOR(RDT_U8, MIB, alloc_memory(owner, MIB)), "w", RDT_VISIBLE_TO_ALL);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    actor_send(&actor, &ref, sizeof ref);
    actor_await(&actor);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(owner, &ref, 0, &why)); /* the owner sees the stranger's uid, too */
    must_say(strstr(why.msg, "\"stranger\"") && strstr(why.msg, "uid 12345"), "%s", why.msg);
    actor_step(&actor);
    actor_wait(&actor);
    rdt_release(object);
    rdt_close(reader);
    rdt_close(owner);
    node_end(&node, NULL);
}

/* ---- lists ---- */

struct listed {
    unsigned n;
    bool found;
    struct rdt_ref ref;
    const char *wanted;
    rdt *frees; /* NULL, or frees each object inside the callback */
};

static bool list_object(void *arg, const struct rdt_object_row *row)
{
    struct listed *listed = arg;

    listed->n++;
    if (listed->frees)
        must_ok(rdt_free(listed->frees, &row->stat.ref, false, &err));
    if (!listed->wanted || strcmp(row->id, listed->wanted) != 0)
        return true;
    listed->found = true;
    listed->ref = row->stat.ref;
    must(row->visibility == RDT_VISIBLE_TO_ALL && row->producer > 0 && row->transport[0] == '\0');
    must(strcmp(row->stat.state, "live") == 0 && row->stat.bytes == 5 && row->stat.tensors == 1);
    return true;
}

Test(info, objects_are_listed_by_filter_over_many_pages)
{
    enum { N = 3000 };
    struct listed all = {.wanted = "an%20id"}, some = {0}, none = {0}, freed = {0};

    begin(NULL);
    for (unsigned i = 0; i < N; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "n%u", i);
        (void)put_one(conn, &VECTOR(RDT_U8, 5, "hello"), id);
    }
    struct rdt_ref ref = put_shown(other, &VECTOR(RDT_U8, 5, "hello"), "an id", RDT_VISIBLE_TO_ALL);
    must_ok(rdt_each_object(conn, NULL, list_object, &all, &err));
    must(all.found && all.n == N + 1 && rdt_ref_equal(&all.ref, &ref));
    struct rdt_list_options options = {.struct_size = sizeof options, .prefix = "n1", .limit = 700};
    must_ok(rdt_each_object(conn, &options, list_object, &some, &err));
    cr_assert_eq(some.n, 700);
    options.state = "draining";
    must_ok(rdt_each_object(conn, &options, list_object, &none, &err));
    cr_assert_eq(none.n, 0);
    options = (struct rdt_list_options)RDT_INIT(options);
    options.prefix = "n";
    freed.frees = conn;
    must_ok(rdt_each_object(conn, &options, list_object, &freed, &err)); /* the function may call librdt */
    cr_assert_eq(freed.n, N);
    must_ok(rdt_wait_put(conn, &ref, LONG, &err));
    struct rdt_ref other_ref = ref_named("n0");
    must_be(RDT_NOT_FOUND, rdt_stat(conn, &other_ref, &(struct rdt_stat){0}, &err));
    must_be(RDT_INVALID, rdt_each_object(conn, NULL, NULL, NULL, &err));
    must_ok(rdt_free(other, &ref, false, &err));
    end(NULL);
}

/* How often `what` is in the JSON of a list or description; -1: the JSON does not begin and end as it must. */
static int in_json(const char *list, const struct rdt_ref *ref, const struct rdt_list_options *options, const char *what)
{
    int n = 0;
    char *text;

    must_ok(rdt_info_json(conn, list, ref, options, &text, &err));
    must_say(strchr("{[", text[0]) && strchr("}]", text[strlen(text) - 1]), "%s", text);
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    free(text);
    return n;
}

Test(info, json_has_what_the_rows_have)
{
    enum { N = 1200 };
    char *text = NULL;

    begin(NULL);
    for (unsigned i = 0; i < N; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "n%u", i);
        (void)put_one(conn, &VECTOR(RDT_U8, 5, "hello"), id);
    }
    struct rdt_ref ref = put_one(other, &VECTOR(RDT_U8, 5, "hello"), "quote\"and\\");
    must_ok(rdt_publish(other, "weights", &ref, NULL, NULL, &err));
    cr_assert_eq(in_json("objects", NULL, NULL, "\"bytes\":5,"), N + 1);
    struct rdt_list_options options = {.struct_size = sizeof options, .prefix = "n1"};
    options.limit = 300; /* more than a page */
    cr_assert_eq(in_json("objects", NULL, &options, "\"bytes\":5,"), 300);
    options.prefix = "none";
    cr_assert_eq(in_json("objects", NULL, &options, "bytes"), 0);
    cr_assert_eq(in_json("names", NULL, NULL, "\"name\":\"weights\""), 1);
    cr_assert_eq(in_json("peers", NULL, NULL, "uuid"), 0);
    cr_assert_eq(in_json("groups", NULL, NULL, "name"), 0);
    cr_assert_eq(in_json("status", NULL, NULL, "\"version\":\"" RDT_VERSION "\""), 1);
    cr_assert_eq(in_json("metrics", NULL, NULL, "\"verb\":\"STATUS\""), 1);
    cr_assert_eq(in_json("doctor", NULL, NULL, "\"id\":\"RDT016\""), 1);
    cr_assert_eq(in_json("nodes", NULL, NULL, "\"source\":\"self\""), 1);
    cr_assert_eq(in_json("stat", &ref, NULL, "\"kind\":\"producer\""), 1);
    cr_assert_eq(in_json("stat", &ref, NULL, "\"id\":\"quote\\\"and\\\\\""), 1);
    must_be(RDT_INVALID, rdt_info_json(conn, "stat", NULL, NULL, &text, &err));
    must_be(RDT_INVALID, rdt_info_json(conn, "clients", NULL, NULL, &text, &err));
    must_be(RDT_INVALID, rdt_info_json(conn, "close", NULL, NULL, &text, &err));
    must_be(RDT_INVALID, rdt_info_json(conn, NULL, NULL, NULL, &text, &err));
    must_be(RDT_INVALID, rdt_info_json(conn, "status", NULL, NULL, NULL, &err));
    options.state = "live";
    must_be(RDT_INVALID, rdt_info_json(conn, "names", NULL, &options, &text, &err));
    must_ok(rdt_free(other, &ref, true, &err));
    must_be(RDT_FREED, rdt_info_json(conn, "stat", &ref, NULL, &text, &err));
    must(!text);
    end(NULL);
}

#define FIELDS(...) ((const char *const[]){__VA_ARGS__, NULL})

Test(info, requests_with_plain_fields_are_sent_by_name)
{
    const char *name = "end_client";
    char *text = NULL, client[32];
    struct rdt_node_info its;

    begin(NULL);
    must_ok(rdt_request_json(conn, "cache_flush", FIELDS("all=true"), &text, &err));
    must_say(strcmp(text, "{\"objects\":0,\"bytes\":0}") == 0, "%s", text);
    free(text);
    must_ok(rdt_request_json(conn, "log_level", NULL, &text, &err));
    must_say(strstr(text, "\"level\":\"info\""), "%s", text);
    free(text);
    text = NULL;
    must_be(RDT_INVALID, rdt_request_json(conn, "log_level", FIELDS("level=loud"), &text, &err));
    must_be(RDT_INVALID, rdt_request_json(conn, "close", NULL, &text, &err));
    must_be(RDT_INVALID, rdt_request_json(conn, NULL, NULL, &text, &err));
    must_be(RDT_INVALID, rdt_request_json(conn, name, FIELDS("client=1"), NULL, &err));
    for (const char *const *wrong =
             FIELDS("client", "client=", "client=-1", "client=1x", "client=18446744073709551616", "session=1", "=1");
         *wrong; wrong++)
        must_be(RDT_INVALID, rdt_request_json(conn, name, FIELDS(*wrong), &text, &err));
    must_be(RDT_INVALID, rdt_request_json(conn, "cache_flush", FIELDS("all=1"), &text, &err));
    must_ok(rdt_node(other, &its, &err));
    (void)snprintf(client, sizeof client, "client=%llu", (unsigned long long)its.session);
    must(!text);
    must_ok(rdt_request_json(conn, name, FIELDS("client=1000", client), &text, &err)); /* the last one counts */
    must_say(strcmp(text, "{}") == 0, "%s", text);
    free(text);
    must_be(RDT_DISCONNECTED, rdt_ping(other, LONG, &err));
    end(NULL);
}

static bool list_name(void *arg, const struct rdt_name_row *row)
{
    struct listed *listed = arg;

    listed->n++;
    must(strcmp(row->name, "weights") == 0 && row->version == 2 && row->bytes == 5 && row->uid == getuid());
    must(row->visibility == RDT_VISIBLE_TO_OWNER && row->waiters == 0 && row->age_ns >= 0 && row->lease_client == 0 &&
         row->ttl_left_ns == -1 && row->tenant[0] == '\0');
    listed->ref = row->object;
    return true;
}

Test(info, names_are_listed_with_their_newest_object)
{
    struct rdt_ref ref, name;
    struct listed listed = {0};

    begin(NULL);
    struct rdt_publish_options publish = {.struct_size = sizeof publish, .name_ref = &name};
    for (unsigned i = 0; i < 2; i++) {
        ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), NULL);
        must_ok(rdt_publish(conn, "weights", &ref, &publish, NULL, &err));
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    must_ok(rdt_each_name(conn, NULL, list_name, &listed, &err));
    must(listed.n == 1 && rdt_ref_equal(&listed.ref, &ref));
    struct rdt_list_options options = {.struct_size = sizeof options, .prefix = "x"};
    must_ok(rdt_each_name(conn, &options, list_name, &listed, &err));
    cr_assert_eq(listed.n, 1);
    options.state = "live";
    must_be(RDT_INVALID, rdt_each_name(conn, &options, list_name, &listed, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    end(NULL);
}

static bool count_node(void *arg, const struct rdt_node_row *row)
{
    ++*(unsigned *)arg;
    return true;
}

/* The first members of struct rdt_daemon_status, as a program knows it that an older header was made for. */
struct older_status {
    size_t struct_size;
    char version[32];
    uint64_t untouched;
};

Test(info, state_of_the_daemon)
{
    struct rdt_daemon_status status = RDT_INIT(status);
    struct older_status older = {.struct_size = offsetof(struct older_status, untouched), .untouched = 77};
    unsigned nodes = 0;

    begin(NULL);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), NULL);
    must_ok(rdt_daemon_status(conn, &status, &err));
    cr_assert_str_eq(status.version, RDT_VERSION);
    cr_assert_str_eq(status.state, "serving");
    must(status.pid == node.pid && status.clients == 3 && status.objects == 1 && status.memory_bytes >= MIB &&
         status.uptime_ns > 0);
    must_ok(rdt_daemon_status(conn, (struct rdt_daemon_status *)&older, &err));
    must(strcmp(older.version, RDT_VERSION) == 0 && older.untouched == 77);
    status.struct_size = 0;
    must_be(RDT_INVALID, rdt_daemon_status(conn, &status, &err));
    must_ok(rdt_each_node(conn, count_node, &nodes, &err));
    cr_assert_eq(nodes, 0);
    must_ok(rdt_free(conn, &ref, false, &err));
    end(NULL);
}
