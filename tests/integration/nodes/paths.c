/* SPDX-License-Identifier: Apache-2.0 */
/* Which path the bytes take between real daemons: wishes are met or refused, falling back to a slower path is logged once
 * and counted, and rdtctl explain gives the reason. unit/transports/path tests the choice alone. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/nodes/pair.h"
#include "tests/support/program.h"

TestSuite(paths, .timeout = 100);

#define BYTES ((size_t)300 * 1024)

/* "rdtctl WORD ..." beside the reader, whose output must hold the text. */
static void expect_ctl(const char *text, const char *word, const char *operand)
{
    struct program program = {0};

    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[1].socket, word, operand, NULL}, NULL);
    must_say(program.status == 0 && strstr(program.out, text), "`rdtctl %s` says nothing of '%s': %s%s", word, text,
             program.out, program.err);
    program_free(&program);
}

static void expect_explained(const rdt_object *object, const char *text)
{
    char number[24];

    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)info_of(object).transfer);
    expect_ctl(text, "explain", number);
}

struct wish {
    const char *transport, *least;
    enum rdt_status expected;
    const char *path; /* or what the refusal says */
};

static void check_wishes(const struct wish *wishes, size_t n)
{
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);

    for (size_t i = 0; i < n; i++) {
        rdt_object *object;
        struct rdt_fetch_options options = {
            .struct_size = sizeof options, .timeout_ns = LONG, .transport = wishes[i].transport, .least_path = wishes[i].least};

        if (wishes[i].expected == RDT_OK) {
            must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
            must_go_by(wishes[i].path, object);
            must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
            rdt_release(object);
        } else {
            must_refuse(wishes[i].expected, wishes[i].path, rdt_fetch(reader, &ref, 1, &options, &object, &err));
        }
    }
    must_ok(rdt_free(owner, &ref, false, &err));
}

Test(paths, wishes_where_all_is_there)
{
    static const struct wish wishes[] = {
        {NULL, NULL, RDT_OK, "stream"}, /* ucx has TCP only */
        {"stream", NULL, RDT_OK, "stream"},
        {"STREAM", "stream", RDT_OK, "stream"},
        {"ucx", NULL, RDT_OK, "ucx"},
        {NULL, "ucx", RDT_OK, "stream"},
        {NULL, "stream", RDT_OK, "stream"},
        {"ucx", "stream", RDT_NO_PATH, "ucx: slower than stream, the least path the reader accepts"},
        {NULL, "inline", RDT_NO_PATH, "slower than inline"},
    };

    begin_pair(2, &(struct cluster_options){.stream = true});
    check_wishes(wishes, sizeof wishes / sizeof wishes[0]);
    struct node_status status = node_now(&c.node[1]);
    must_say(status.fell_back == 0, "a wish counts as a fall back");
    end(NULL);
}

Test(paths, wishes_where_ucx_may_not)
{
    static const struct wish wishes[] = {
        {NULL, NULL, RDT_OK, "stream"},
        {"stream", NULL, RDT_OK, "stream"},
        {NULL, "stream", RDT_OK, "stream"},
        {"ucx", NULL, RDT_NO_PATH, "ucx: not available on this node: UCX does not authenticate peers; set trusted_network"},
        {NULL, "ucx", RDT_OK, "stream"},
    };

    begin_pair(2, &(struct cluster_options){.stream = true, .no_ucx = true});
    check_wishes(wishes, sizeof wishes / sizeof wishes[0]);
    end(NULL);
}

static unsigned times_in_log(const struct test_node *node, const char *text)
{
    char *log = read_file(node->log, NULL);
    unsigned n = 0;

    for (const char *at = log; (at = strstr(at, text)); at++)
        n++;
    free(log);
    return n;
}

/* Nothing says whether its lanes would be RDMA, but it is configured for more than TCP. */
Test(paths, wishes_where_faster_ucx_may_not)
{
    static const struct wish wishes[] = {
        {NULL, NULL, RDT_OK, "stream"},
        {NULL, "ucx", RDT_NO_PATH, "stream: slower than ucx, the least path the reader accepts"},
    };
    static const char *const flags[] = {"--set=ucx.tls=rc,tcp", NULL};

    begin_pair(2, &(struct cluster_options){.stream = true, .no_ucx = true, .flags = flags});
    check_wishes(wishes, sizeof wishes / sizeof wishes[0]);
    must(times_in_log(&c.node[1],
                      "objects arrive by stream instead of ucx: not available on this node: UCX does not authenticate") == 1);
    end(NULL);
}

/* No network is trusted, so neither node offers ucx, which would be no faster over TCP. */
Test(paths, untrusted_network_is_no_fall_back)
{
    begin_pair(2, &(struct cluster_options){.stream = true, .no_ucx = true});
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    for (unsigned i = 0; i < 3; i++)
        fetch_pattern(reader, &ref, BYTES, 1, "stream");
    must_ok(rdt_free(owner, &ref, false, &err));
    struct node_status status = node_now(&c.node[1]);
    cr_assert_eq(status.fell_back, 0);
    must(times_in_log(&c.node[1], "objects arrive by") == 0);
    end(NULL);
}

Test(paths, falling_back_is_told_once_and_counted)
{
    enum { FETCHES = 5 };
    static const char *const without[] = {"--set=stream.enabled=no", NULL};
    char times[64];

    begin_pair(
        2, &(struct cluster_options){.stream = true, .flags_of = {without}, .no_meeting = true}); /* only the reader has it */
    struct node_status before = node_now(&c.node[1]);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    for (unsigned i = 0; i < FETCHES; i++)
        fetch_pattern(reader, &ref, BYTES, 1, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    ref = put_pattern(owner, NULL, 100, 1);
    fetch_pattern(reader, &ref, 100, 1, "inline"); /* as it should be */
    must_ok(rdt_free(owner, &ref, false, &err));
    struct node_status after = node_now(&c.node[1]);
    must_say(after.fell_back - before.fell_back == FETCHES, "%llu of %u are counted",
             (unsigned long long)(after.fell_back - before.fell_back), FETCHES);
    must(times_in_log(&c.node[1], "objects arrive by ucx instead of stream: not available on the other node") == 1);
    (void)snprintf(times, sizeof times, "%llu by a slower transport", (unsigned long long)after.fell_back);
    expect_ctl(times, "status", NULL);
    (void)snprintf(times, sizeof times, "%llu transfers took a slower one", (unsigned long long)after.fell_back);
    expect_ctl(times, "peers", NULL);
    expect_ctl("\"fell_back\"", "status", "--json");
    end(NULL);
}

Test(paths, versions_that_differ_fall_back_to_stream)
{
    static const char *const newer[] = {"--set=loopback.version=2.0", NULL};
    static const char *const differ[] = {"the library or its settings differ", NULL};

    begin_pair(2, &(struct cluster_options){
                      .loopback = true, .stream = true, .no_ucx = true, .flags_of = {NULL, newer}, .no_meeting = true});
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_object *object = fetch_as(reader, &ref, &options);
    must_go_by("stream", object);
    expect_explained(object, "taken:     stream, the fastest that fits");
    expect_explained(object, "not taken: loopback, the library or its settings differ: 2.0 here, 1.0 on the other node");
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(differ);
}

/* ---- after an interruption ---- */

static const char *const lost[] = {"is lost", "cannot be reached", "refused", "taken down and rebuilt", NULL};

/* Nodes that only loopback connects, where the owner's end of a connection takes its time to close. */
static void begin_slow_to_close(void)
{
    begin_pair(2, &(struct cluster_options){
                      .loopback = true, .no_ucx = true, .flags = (const char *const[]){"--peer-timeout=1s", NULL}});
    struct rdt_ref ref = put_pattern(owner, "w", BYTES, 1);
    fetch_pattern(reader, &ref, BYTES, 1, "loopback");
    cluster_faults(&c, 0, "disconnect_delay_ms=1500\n");
}

/* The link is up again, and the owner has offered nothing yet. */
static void fetch_waits_for_the_offer(void)
{
    struct rdt_ref ref = ref_on(&c.node[0], "w");
    enum rdt_status status = RDT_PEER_LOST;
    struct rdt_error why = {0};
    rdt_object *object;

    wait_until(20 * SEC, (status = try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &why)) != RDT_PEER_LOST);
    must_say(status == RDT_OK, "%s: %s", rdt_status_name(status), why.msg);
    must_go_by("loopback", object);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    rdt_release(object);
    cluster_faults(&c, 0, "");
}

Test(paths, transport_that_is_offered_late_after_a_cut_is_waited_for)
{
    struct peer_view view;

    begin_slow_to_close();
    node_freeze(&c.node[1]);
    wait_until(20 * SEC, peer_seen(&c.node[0], &c.node[1], &view) && strcmp(view.state, "up") != 0);
    node_thaw(&c.node[1]);
    fetch_waits_for_the_offer();
    end(lost);
}

Test(paths, transport_that_is_offered_late_to_a_restarted_node_is_waited_for)
{
    begin_slow_to_close();
    rdt_close(reader);
    node_kill(&c.node[1], SIGKILL);
    cluster_restart(&c, 1);
    reader = node_client(&c.node[1], "reader");
    fetch_waits_for_the_offer();
    end(lost);
}
