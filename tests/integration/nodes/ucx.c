/* SPDX-License-Identifier: Apache-2.0 */
/* UCX between two nodes as users see it: the lanes that it chose, and what happens when the versions of two nodes do not
 * fit. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/nodes/nodes_fixture.h"
#include "tests/support/gpu.h"
#include "tests/support/program.h"

TestSuite(ucx, .timeout = 100);

#define BYTES (300 * KIB)

/* "rdtctl WORD ..." beside node i, whose output must hold the text. */
static void expect_ctl(unsigned i, const char *text, const char *word, const char *operand)
{
    struct program program = {0};

    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[i].socket, word, operand, NULL}, NULL);
    must_say(program.status == 0 && strstr(program.out, text), "`rdtctl %s` says nothing of '%s': %s%s", word, text,
             program.out, program.err);
    program_free(&program);
}

static enum rdt_status try_fetch_by(const struct rdt_ref *ref, const char *transport, rdt_object **object_p,
                                    struct rdt_error *err)
{
    struct rdt_fetch_options options = within(LONG);

    options.transport = transport;
    return rdt_fetch(reader, ref, 1, &options, object_p, err);
}

static rdt_object *fetch_by(const struct rdt_ref *ref, const char *transport)
{
    rdt_object *object;

    must_ok(try_fetch_by(ref, transport, &object, &err));
    return object;
}

Test(ucx, lanes_are_shown)
{
    char number[24], ref_text[RDT_REF_TEXT_BYTES];
    struct transfer_view view;
    struct peer_view peer;
    struct rdt_ref ref;
    rdt_object *object;

    begin(2);
    ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_ref_to_text(&ref, ref_text);
    object = fetch_by(&ref, "ucx");
    view = transfer_numbered(&c.node[1], info_of(object).transfer);
    must_say(strncmp(view.route, "tcp/", 4) == 0, "the transfer went over '%s'", view.route);
    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)info_of(object).transfer);
    expect_ctl(1, view.route, "explain", number);
    expect_ctl(0, view.route, "explain", ref_text);
    for (unsigned i = 0; i < 2; i++) {
        must(peer_seen(&c.node[i], &c.node[1 - i], &peer));
        must_say(strcmp(peer.ucx_route, view.route) == 0, "node %u says '%s'", i, peer.ucx_route);
        expect_ctl(i, view.route, "peers", NULL);
        expect_ctl(i, "\"routes\"", "peers", "--json");
    }
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* Whether the fetch succeeds; otherwise its transport must have broken. */
static bool arrives_or_breaks(const struct rdt_ref *ref, rdt_object **object_p)
{
    struct rdt_fetch_options options = within(60 * SEC);
    struct rdt_error why;
    enum rdt_status status = rdt_fetch(reader, ref, 1, &options, object_p, &why);

    must_say(status == RDT_OK || status == RDT_TRANSPORT, "%s", why.msg);
    return status == RDT_OK;
}

/* As behind a firewall that drops what is sent to its port. */
Test(ucx, node_that_does_not_answer_at_its_port_is_named_and_passed_over)
{
    static const char *const tls[] = {"--set=ucx.tls=rc,tcp", NULL};
    struct rdt_fetch_options options = within(60 * SEC);
    struct rdt_ref ref;
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.stream = true, .flags = tls, .no_meeting = true});
    ref = put_pattern(owner, NULL, BYTES, 1);
    if (!node_hold_threads(&c.node[1], "rdt-ucx"))
        cr_skip_test("this process may not trace its children");
    must_refuse(RDT_TRANSPORT, "does not answer at the port of ucx", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    /* This node's ucx stands still, so fetches that it has begun to receive fail, too. */
    wait_until(LONG, arrives_or_breaks(&ref, &object));
    must_go_by("stream", object);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    rdt_release(object);
    node_release_workers(&c.node[1]);
    must_ok(rdt_free(owner, &ref, false, &err));
    end((const char *const[]){"taken down and rebuilt", "does not answer", "instead of ucx", "is not available", NULL});
}

/* Two daemons of one machine may read each other's memory: bytes that are announced are copied once, by the
 * kernel. */
Test(ucx, memory_of_the_machine_is_a_lane)
{
    static const char *const tls[] = {"--set=ucx.tls=tcp,cma", NULL}, *const env[] = {"UCX_CMA_MEMORY_INVALIDATE=y", NULL};
    struct peer_view peer;

    if (geteuid() != 0)
        cr_skip_test("needs root, to read another process's memory whatever the machine allows");
    cluster_start(&c, 2, &(struct cluster_options){.flags = tls, .env_of = {env, env}});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    must(peer_seen(&c.node[1], &c.node[0], &peer));
    must_say(strstr(peer.ucx_route, "cma/memory"), "ucx says '%s'", peer.ucx_route);
    for (size_t bytes = KIB; bytes <= 64 * MIB; bytes *= 4) {
        struct rdt_ref ref = put_pattern(owner, NULL, bytes + 1, (uint32_t)bytes);

        fetch_pattern(reader, &ref, bytes + 1, (uint32_t)bytes, bytes > 64 * KIB ? "ucx" : NULL);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}

/* A folder with another UCX than the one of the build: `make ucx-wheels`. */
static const char *other_ucx(void)
{
    static char variable[300];
    const char *path = getenv("RDT_UCX_PATH");

    if (!path || !*path)
        cr_skip_test("RDT_UCX_PATH names no folder with another libucp.so.0");
    (void)snprintf(variable, sizeof variable, "LD_LIBRARY_PATH=%s", path ? path : "");
    return variable;
}

/* Read by the receiver, while the sender's process takes no part: by cma, as there is no RDMA here. 1.13
 * would emulate it. */
Test(ucx, memory_of_the_machine_is_read_one_sided)
{
    static const char *const flags[] = {"--set=ucx.tls=tcp,cma", "--set=ucx.one_sided=always", NULL};
    const char *const env[] = {other_ucx(), "UCX_CMA_MEMORY_INVALIDATE=y", NULL};
    struct transfer_view view;

    if (geteuid() != 0)
        cr_skip_test("needs root, to read another process's memory whatever the machine allows");
    cluster_start(&c, 2, &(struct cluster_options){.flags = flags, .env_of = {env, env}});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    expect_ctl(0, "one and two", "backends", NULL);
    if (!gpu_is_real())
        expect_ctl(0, "cuda memory is not moved: UCX ", "backends", NULL);
    for (size_t bytes = KIB; bytes <= 64 * MIB; bytes *= 4) {
        struct rdt_ref ref = put_pattern(owner, NULL, bytes + 1, (uint32_t)bytes);

        fetch_pattern(reader, &ref, bytes + 1, (uint32_t)bytes, bytes > 64 * KIB ? "ucx" : NULL);
        must(transfers_of(&c.node[1], &view, 1) == 1);
        if (bytes > 64 * KIB)
            must_say(strstr(view.route, "cma/memory, one-sided"), "the transfer went over '%s'", view.route);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}

/* ---- versions ---- */

static const char *const differ[] = {"the library or its settings differ", NULL};

/* Bytes go by the transport `good`, and `bad`, whose versions differ as `why` says, is refused by name. */
static void expect_other_transport(const char *good, const char *bad, const char *why)
{
    char number[24], not_bad[80];
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    struct transfer_view view;
    struct peer_view peer;
    rdt_object *object;
    unsigned told = 0;

    (void)snprintf(not_bad, sizeof not_bad, "not %s: the library or its settings differ", bad);
    object = fetch_by(&ref, NULL);
    must_go_by(good, object);
    view = transfer_numbered(&c.node[1], info_of(object).transfer);
    for (unsigned i = 0; i < view.n_candidates; i++)
        told += strcmp(view.candidates[i].path, bad) == 0 && strstr(view.candidates[i].reason, why);
    must_say(told == 1, "nothing of the transfer says '%s'", why);
    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)view.id);
    expect_ctl(1, why, "explain", number);
    rdt_release(object);
    must_refuse(RDT_NO_PATH, why, try_fetch_by(&ref, bad, &object, &err));
    for (unsigned i = 0; i < 2; i++) {
        must(peer_seen(&c.node[i], &c.node[1 - i], &peer));
        must(strcmp(bad, "ucx") == 0 ? !peer.ucx : !peer.loopback);
        expect_ctl(i, not_bad, "peers", NULL);
    }
    must_ok(rdt_free(owner, &ref, false, &err));
}

/* On 127.0.0.1, where the loopback transport works too. */
static void begin_with_loopback(const char *const *flags)
{
    cluster_start(&c, 2, &(struct cluster_options){.loopback = true, .flags_of = {NULL, flags}, .no_meeting = true});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
}

Test(ucx, different_versions_of_a_library_are_not_brought_together)
{
    static const char *const newer[] = {"--set=loopback.version=2.0", NULL};

    begin_with_loopback(newer);
    expect_other_transport("ucx", "loopback", "the library or its settings differ: 2.0 here, 1.0 on the other node");
    end(differ);
}

Test(ucx, other_version_on_one_node_leaves_the_other_transports)
{
    const char *const env[] = {other_ucx(), NULL};

    begin_with(2, &(struct cluster_options){.stream = true, .env_of = {NULL, env}, .no_meeting = true});
    expect_other_transport("stream", "ucx", "the library or its settings differ: 1.");
    end(differ);
}

Test(ucx, other_version_on_both_nodes_works)
{
    const char *const env[] = {other_ucx(), NULL};
    struct peer_view peer;
    struct rdt_ref ref;

    begin_with(2, &(struct cluster_options){.env_of = {env, env}});
    for (size_t bytes = 64 * KIB; bytes <= 64 * MIB; bytes *= 4) {
        ref = put_pattern(owner, NULL, bytes + 1, (uint32_t)bytes);
        fetch_pattern(reader, &ref, bytes + 1, (uint32_t)bytes, "ucx");
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    must(peer_seen(&c.node[1], &c.node[0], &peer));
    must_say(strncmp(peer.ucx_route, "tcp/", 4) == 0, "ucx says '%s'", peer.ucx_route);
    end(NULL);
}
