/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the path: tables of offers and wishes, with the path that must be chosen. */
#include "tests/unit/transports/path.h"

TestSuite(path, .timeout = 60);

/* ---- the same node ---- */

#define COPY RDT__PB__FETCH_MODE__FETCH_MODE_COPY
#define SHARE RDT__PB__FETCH_MODE__FETCH_MODE_SHARE
#define AUTO RDT__PB__FETCH_MODE__FETCH_MODE_AUTO
#define SECRET "its region holds secrets"

static const struct local_row {
    const char *what;
    bool same_client, has_target, too_many_fds, secret;
    Rdt__Pb__FetchMode mode;
    const char *transport, *least;
    const char *chosen;             /* NULL: no path */
    const char *rejected, *because; /* NULL: not looked at */
} local_rows[] = {
    {"own object", .same_client = true, .chosen = "local/same"},
    {"another's object", .chosen = "local/share", .rejected = "local/same", .because = "not the actor whose memory it is"},
    {"copy asked", .same_client = true, .mode = COPY, .chosen = "local/copy", .rejected = "local/share",
     .because = "asked for a copy"},
    {"share asked", .mode = SHARE, .chosen = "local/share", .rejected = "local/copy", .because = "asked for shared memory"},
    {"share asked of one's own", .same_client = true, .mode = SHARE, .chosen = "local/same"},
    {"targets", .same_client = true, .has_target = true, .chosen = "local/copy", .rejected = "local/same",
     .because = "target buffers"},
    {"too many regions", .too_many_fds = true, .chosen = "local/copy", .rejected = "local/share",
     .because = "more file descriptors than the reader takes"},
    {"may not be shown", .secret = true, .chosen = "local/copy", .rejected = "local/share", .because = SECRET},
    {"share asked, may not be shown", .secret = true, .mode = SHARE, .rejected = "local/share", .because = SECRET},
    {"share asked, targets", .has_target = true, .mode = SHARE, .rejected = "local/copy", .because = "asked for shared memory"},
    {"only copy", .transport = "copy", .chosen = "local/copy", .rejected = "local/share", .because = "asked for copy only"},
    {"only local/share", .same_client = true, .transport = "local/share", .chosen = "local/share", .rejected = "local/same",
     .because = "asked for local/share only"},
    {"only ucx", .transport = "ucx", .rejected = "local/copy", .because = "asked for ucx only"},
    {"least share", .secret = true, .least = "share", .rejected = "local/copy", .because = "slower than share"},
    {"least share, can be", .least = "SHARE", .chosen = "local/share"},
    {"least copy", .secret = true, .least = "copy", .chosen = "local/copy"},
};

Test(path, local_table)
{
    for (size_t i = 0; i < sizeof local_rows / sizeof local_rows[0]; i++) {
        const struct local_row *row = &local_rows[i];
        struct path_query query = local_query();
        struct path_decision decision;
        struct rdt_error err = {0};

        query.local.same_client = row->same_client;
        query.has_target = row->has_target;
        query.local.too_many_fds = row->too_many_fds;
        query.local.show_why_not = row->secret ? SECRET : NULL;
        query.mode = row->mode;
        query.transport = row->transport ? row->transport : "";
        query.least = row->least ? row->least : "";
        enum rdt_status status = path_choose(&query, &decision, &err);
        check_order(&decision);
        cr_assert_eq(decision.n, 4u, "%s: %u candidates", row->what, decision.n);
        if (row->chosen) {
            cr_assert_eq(status, RDT_OK, "%s: %s", row->what, err.msg);
            cr_assert_str_eq(decision.candidates[decision.chosen].name, row->chosen, "%s", row->what);
        } else {
            cr_assert_eq(status, RDT_NO_PATH, "%s: %s", row->what, rdt_status_name(status));
            cr_assert_eq(decision.chosen, -1, "%s", row->what);
            cr_assert(strstr(err.msg, row->because), "%s: %s", row->what, err.msg);
        }
        if (row->rejected) {
            const struct path_candidate *rejected = find(&decision, row->rejected);
            cr_assert_neq(rejected->verdict, PATH_POSSIBLE, "%s", row->what);
            cr_assert(strstr(rejected->reason, row->because), "%s: %s", row->what, rejected->reason);
        }
    }
}

/* ---- another node ---- */

/* Each row changes the offer of "fast" or the query by one of these before the choice. */
static void nothing(struct path_offer *fast, struct path_query *query) {}

static void missing_here(struct path_offer *fast, struct path_query *query)
{
    fast->here_why_not = "no trusted_network";
}

static void missing_there(struct path_offer *fast, struct path_query *query)
{
    fast->there_why_not = "it does not offer it";
}

static void missing_on_both(struct path_offer *fast, struct path_query *query)
{
    missing_here(fast, query);
    missing_there(fast, query);
    fast->there_version = NULL; /* the other node said nothing about it */
}

static void other_version(struct path_offer *fast, struct path_query *query)
{
    fast->there_version = "1.3";
}

static void no_cuda_source(struct path_offer *fast, struct path_query *query)
{
    query->remote.source_memory = "cuda";
    fast->source.moves = false;
}

static void no_cuda_target(struct path_offer *fast, struct path_query *query)
{
    query->remote.target_memory = "cuda";
    fast->target.moves = false;
}

static void rebuilding(struct path_offer *fast, struct path_query *query)
{
    fast->connected = false;
}

static void mute(struct path_offer *fast, struct path_query *query)
{
    fast->sides = 0;
}

static void holes_one_sided(struct path_offer *fast, struct path_query *query)
{
    fast->sides = RDT_ONE_SIDED;
    query->remote.source_contiguous = false;
}

static void holes_both_sided(struct path_offer *fast, struct path_query *query)
{
    query->remote.source_contiguous = false;
}

static void only_two_sided(struct path_offer *fast, struct path_query *query)
{
    fast->sides = RDT_TWO_SIDED;
}

static void prefer_slow(struct path_offer *fast, struct path_query *query)
{
    query->preferred = "Slow";
}

static void prefer_slow_want_fast(struct path_offer *fast, struct path_query *query)
{
    prefer_slow(fast, query);
    query->transport = "fast";
}

static void want_slow(struct path_offer *fast, struct path_query *query)
{
    query->transport = "slow";
}

static void at_least_fast(struct path_offer *fast, struct path_query *query)
{
    query->least = "fast";
}

static void at_least_fast_which_is_away(struct path_offer *fast, struct path_query *query)
{
    rebuilding(fast, query);
    query->least = "fast";
}

static void in_reply(struct path_offer *fast, struct path_query *query)
{
    query->has_inline = true;
}

static void in_reply_into_target(struct path_offer *fast, struct path_query *query)
{
    in_reply(fast, query);
    query->has_target = true;
}

static void in_reply_but_want_fast(struct path_offer *fast, struct path_query *query)
{
    in_reply(fast, query);
    query->transport = "fast";
}

static void share_asked(struct path_offer *fast, struct path_query *query)
{
    in_reply(fast, query);
    query->mode = SHARE;
}

static void copy_asked(struct path_offer *fast, struct path_query *query)
{
    query->mode = COPY;
}

static const struct remote_row {
    const char *what;
    void (*arrange)(struct path_offer *fast, struct path_query *query);
    const char *chosen; /* NULL: no path */
    bool one_sided;
    const char *rejected, *because;
} remote_rows[] = {
    {"all well", nothing, "fast", true, "inline", "too large to travel in the reply"},
    {"not here", missing_here, "slow", true, "fast", "not available on this node: no trusted_network"},
    {"not there", missing_there, "slow", true, "fast", "not available on the other node: it does not offer it"},
    {"nowhere", missing_on_both, "slow", true, "fast", "not available on this node"},
    {"version", other_version, "slow", true, "fast", "settings differ: " SAME " here, 1.3 on the other node"},
    {"source", no_cuda_source, "slow", true, "fast", "does not read cuda memory"},
    {"target", no_cuda_target, "slow", true, "fast", "does not write cuda memory"},
    {"rebuilding", rebuilding, "slow", true, "fast", "being rebuilt"},
    {"mute", mute, "slow", true, "fast", "neither send nor read"},
    {"holes, one-sided only", holes_one_sided, "slow", false, "fast", "tensors at the owner have holes"},
    {"holes, both", holes_both_sided, "fast", false, NULL, NULL},
    {"two-sided only", only_two_sided, "fast", false, NULL, NULL},
    {"producer prefers", prefer_slow, "slow", true, NULL, NULL},
    {"reader before producer", prefer_slow_want_fast, "fast", true, "slow", "asked for fast only"},
    {"only slow", want_slow, "slow", true, "fast", "asked for slow only"},
    {"least fast", at_least_fast, "fast", true, "slow", "slower than fast, the least path"},
    {"least fast, away", at_least_fast_which_is_away, NULL, false, "slow", "slower than fast"},
    {"inline", in_reply, "inline", false, NULL, NULL},
    {"inline into targets", in_reply_into_target, "inline", false, NULL, NULL},
    {"inline, but not wished", in_reply_but_want_fast, "fast", true, "inline", "asked for fast only"},
    {"share of another node", share_asked, NULL, false, "fast", "the object is on another node"},
    {"copy of another node", copy_asked, "fast", true, NULL, NULL},
};

Test(path, remote_table)
{
    for (size_t i = 0; i < sizeof remote_rows / sizeof remote_rows[0]; i++) {
        const struct remote_row *row = &remote_rows[i];
        struct path_offer offers[] = {offer("slow", 50), offer("fast", 100)};
        struct path_query query = remote_query(offers, 2);
        struct path_decision decision;
        struct rdt_error err = {0};

        row->arrange(&offers[1], &query);
        enum rdt_status status = path_choose(&query, &decision, &err);
        check_order(&decision);
        cr_assert_eq(decision.n, 3u, "%s: %u candidates", row->what, decision.n);
        if (row->chosen) {
            cr_assert_eq(status, RDT_OK, "%s: %s", row->what, err.msg);
            cr_assert_str_eq(decision.candidates[0].name, row->chosen, "%s", row->what);
            if (decision.candidates[0].kind == PATH_TRANSPORT)
                cr_assert_eq(decision.candidates[0].one_sided, row->one_sided, "%s", row->what);
        } else {
            cr_assert_eq(status, RDT_NO_PATH, "%s: %s", row->what, rdt_status_name(status));
        }
        if (row->rejected) {
            const struct path_candidate *rejected = find(&decision, row->rejected);
            cr_assert_neq(rejected->verdict, PATH_POSSIBLE, "%s", row->what);
            cr_assert(strstr(rejected->reason, row->because), "%s: %s", row->what, rejected->reason);
        }
    }
}

/* ucx moves memory of devices itself over RDMA and over TCP, where stream through host memory is faster. */
Test(path, through_host_memory_if_that_is_faster)
{
    static const struct {
        uint32_t speed;
        const char *chosen;
    } rows[] = {{40, "stream"}, {46, "ucx"}, {100, "ucx"}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct path_offer offers[] = {offer("ucx", rows[i].speed), offer("stream", 50)};
        struct path_query query = remote_query(offers, 2);
        struct path_decision decision;

        query.remote.source_memory = query.remote.target_memory = "cuda";
        offers[1].source.moves = offers[1].target.moves = false;
        offers[1].source.stages = offers[1].target.stages = true;
        cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
        cr_assert_str_eq(decision.candidates[0].name, rows[i].chosen, "ucx of speed %u", rows[i].speed);
        query.least = "direct";
        cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
        cr_assert_str_eq(decision.candidates[0].name, "ucx");
    }
}

Test(path, chosen_and_rest_say_why)
{
    struct path_offer offers[] = {offer("slow", 50), offer("fast", 100)};
    struct path_query query = remote_query(offers, 2);
    struct path_decision decision;

    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_expect_str_eq(find(&decision, "fast")->reason, "the fastest that fits");
    cr_expect_str_eq(find(&decision, "slow")->reason, "possible, but slower");
    query.preferred = "slow";
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_expect_str_eq(find(&decision, "slow")->reason, "the producer prefers it");
}

Test(path, no_path_sentence_lists_all)
{
    struct path_offer offers[] = {offer("ucx", 100)};
    struct path_query query = remote_query(offers, 1);
    struct path_decision decision;
    struct rdt_error err = {0};

    offers[0].here_why_not = "set trusted_network = yes";
    cr_assert_eq(path_choose(&query, &decision, &err), RDT_NO_PATH);
    cr_expect(strstr(err.msg, "inline: the object is too large"), "%s", err.msg);
    cr_expect(strstr(err.msg, "ucx: not available on this node: set trusted_network = yes"), "%s", err.msg);
}

Test(path, no_offers_no_path)
{
    struct path_query query = remote_query(NULL, 0);
    struct path_decision decision;
    struct rdt_error err = {0};

    cr_assert_eq(path_choose(&query, &decision, &err), RDT_NO_PATH);
    query.has_inline = true;
    cr_assert_eq(path_choose(&query, &decision, &err), RDT_OK, "%s", err.msg);
}

Test(path, unknown_least_invalid)
{
    struct path_offer offers[] = {offer("ucx", 100)};
    struct path_query query = remote_query(offers, 1);
    struct path_decision decision;
    struct rdt_error err = {0};

    query.least = "warp";
    cr_assert_eq(path_choose(&query, &decision, &err), RDT_INVALID);
    cr_expect(strstr(err.msg, "warp"), "%s", err.msg);
    query.least = "share"; /* it is known, but no path between nodes is as fast */
    cr_assert_eq(path_choose(&query, &decision, &err), RDT_NO_PATH);
}

Test(path, cow_of_a_snapshot_else_a_copy_that_says_why)
{
    struct path_query query = local_query();
    struct path_decision decision;

    query.mode = RDT__PB__FETCH_MODE__FETCH_MODE_COW;
    query.local.same_client = true; /* it wants memory of its own although it has the region */
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_assert_str_eq(decision.candidates[0].name, "local/cow");
    cr_assert_str_eq(find(&decision, "local/copy")->reason, "possible, but slower");
    query.local.cow_why_not = "it is live";
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_assert_str_eq(decision.candidates[0].name, "local/copy");
    cr_assert_str_eq(find(&decision, "local/cow")->reason, "it is live");
    query.least = "cow";
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_NO_PATH);
    query.local.cow_why_not = NULL;
    query.local.show_why_not = SECRET;
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_NO_PATH);
    query.local.show_why_not = NULL;
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    query.has_target = true;
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_NO_PATH);
    query = local_query();
    query.transport = "cow"; /* the path may be named although the mode does not ask for it */
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_assert_str_eq(decision.candidates[0].name, "local/cow");
}

/* A plug-in that claims a very high speed still comes after the reply and after local paths. */
Test(path, boasting_transport_below_inline)
{
    struct path_offer offers[] = {offer("boaster", UINT32_MAX)};
    struct path_query query = remote_query(offers, 1);
    struct path_decision decision;

    query.has_inline = true;
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_expect_str_eq(decision.candidates[0].name, "inline");
    query.preferred = "boaster"; /* bytes in the reply have arrived already */
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_expect_str_eq(decision.candidates[0].name, "inline");
}

Test(path, more_offers_than_room)
{
    struct path_offer offers[2 * PATH_MAX_CANDIDATES] = {0};
    struct path_query query = remote_query(offers, 2 * PATH_MAX_CANDIDATES);
    struct path_decision decision;
    char names[2 * PATH_MAX_CANDIDATES][8];

    for (unsigned i = 0; i < 2 * PATH_MAX_CANDIDATES; i++) {
        (void)snprintf(names[i], sizeof names[i], "t%u", i);
        offers[i] = offer(names[i], i);
    }
    cr_assert_eq(path_choose(&query, &decision, NULL), RDT_OK);
    cr_assert_eq(decision.n, (unsigned)PATH_MAX_CANDIDATES);
    check_order(&decision);
}
