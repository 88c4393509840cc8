/* What a user sees of UCX between two nodes: the lanes that it took, and what it does where two of them do not fit. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/nodes_fixture.h"
#include "tests/support/program.h"

TestSuite(ucx, .timeout = 100);

#define BYTES (300 * KIB)

/* "rdtctl WORD ..." beside node i, whose output must hold the text. */
static void expect_ctl(unsigned i, const char *text, const char *word, const char *operand)
{
    struct program program = {0};

    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[i].socket, word, operand, NULL}, NULL);
    must_say(program.status == 0 && strstr(program.out, text), "`rdtctl %s` says nothing of '%s': %s%s", word, text, program.out,
             program.err);
    program_free(&program);
}

static rdt_object *fetch_by_ucx(const struct rdt_ref *ref)
{
    struct rdt_fetch_options options = within(LONG);
    rdt_object *object;

    options.transport = "ucx";
    must_ok(rdt_fetch(reader, ref, 1, &options, &object, &err));
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
    object = fetch_by_ucx(&ref);
    view = transfer_numbered(&c.node[1], info_of(object).transfer);
    must_say(strncmp(view.lanes, "tcp/", 4) == 0, "the transfer went over '%s'", view.lanes);
    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)info_of(object).transfer);
    expect_ctl(1, view.lanes, "explain", number);
    expect_ctl(0, view.lanes, "explain", ref_text);
    for (unsigned i = 0; i < 2; i++) {
        must(peer_seen(&c.node[i], &c.node[1 - i], &peer));
        must_say(strcmp(peer.ucx_lanes, view.lanes) == 0, "node %u says '%s'", i, peer.ucx_lanes);
        expect_ctl(i, view.lanes, "peers", NULL);
        expect_ctl(i, "\"lanes\"", "peers", "--json");
    }
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}
