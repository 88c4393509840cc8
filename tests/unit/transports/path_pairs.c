/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the path between two nodes: what each node offers or lacks, and the memory kinds at both ends. */
#include "tests/unit/transports/path.h"

TestSuite(path_pairs, .timeout = 60);

/* ---- transports of real nodes ---- */

enum { UCX, STREAM, NCCL, N_TRANSPORTS };

#define DISTRUST "UCX authenticates nobody; set trusted_network = yes"
#define ABSENT "it does not offer it"

static const struct pair_row {
    const char *what;
    const char *source, *target;     /* NULL: host */
    const char *here[N_TRANSPORTS];  /* why not */
    const char *there[N_TRANSPORTS]; /* why not */
    const char *ucx_there;           /* its version; NULL: the same */
    bool ucx_rebuilt, has_inline;
    const char *transport, *least, *preferred; /* NULL: none */
    const char *chosen, *passed_over;          /* NULL: none */
    const char *because[N_TRANSPORTS];         /* NULL: not looked at */
    const char *not_inline;
} pair_rows[] = {
    {.what = "both trust",
     .here[NCCL] = ABSENT,
     .chosen = "ucx",
     .because = {"the fastest that fits", "possible, but slower", "does not read host memory"},
     .not_inline = "too large"},
    {.what = "neither trusts",
     .here = {DISTRUST, NULL, ABSENT},
     .there[UCX] = DISTRUST,
     .chosen = "stream",
     .passed_over = "ucx",
     .because = {"not available on this node: " DISTRUST, "the fastest that fits", "does not read host memory"}},
    {.what = "this one does not",
     .here = {DISTRUST, NULL, ABSENT},
     .chosen = "stream",
     .passed_over = "ucx",
     .because = {"not available on this node: " DISTRUST}},
    {.what = "the other does not",
     .there = {DISTRUST, NULL, ABSENT},
     .chosen = "stream",
     .passed_over = "ucx",
     .because = {"not available on the other node: " DISTRUST}},
    {.what = "other versions of ucx",
     .there[NCCL] = ABSENT,
     .ucx_there = "1.22.0",
     .chosen = "stream",
     .passed_over = "ucx",
     .because = {"settings differ: " SAME " here, 1.22.0 on the other node", "the fastest that fits"}},
    {.what = "ucx is being rebuilt",
     .there[NCCL] = ABSENT,
     .ucx_rebuilt = true,
     .chosen = "stream",
     .passed_over = "ucx",
     .because = {"being rebuilt"}},
    {.what = "ucx alone, and it is not there",
     .here = {DISTRUST, ABSENT, ABSENT},
     .chosen = NULL,
     .because = {"not available on this node: " DISTRUST, "not available on this node: " ABSENT}},
    {.what = "from GPU to GPU",
     .source = "cuda",
     .target = "cuda",
     .chosen = "nccl",
     .because = {"does not read cuda memory", "does not read cuda memory", "the fastest that fits"}},
    {.what = "from GPU to host",
     .source = "cuda",
     .chosen = NULL,
     .because = {"does not read cuda memory", "does not read cuda memory", "does not write host memory"}},
    {.what = "from host to GPU",
     .target = "cuda",
     .chosen = NULL,
     .because = {"does not write cuda memory", "does not write cuda memory", "does not read host memory"}},
    {.what = "from host to host beside nccl",
     .chosen = "ucx",
     .passed_over = NULL,
     .because[NCCL] = "does not read host memory"},
    {.what = "small", .has_inline = true, .chosen = "inline", .because = {"possible, but slower", "possible, but slower"}},
    {.what = "small, untrusted", .here = {DISTRUST}, .has_inline = true, .chosen = "inline"},
    {.what = "stream wished", .transport = "stream", .chosen = "stream", .because = {"the reader asked for stream only"}},
    {.what = "stream wished, ucx not there",
     .here = {DISTRUST},
     .transport = "stream",
     .chosen = "stream",
     .because = {"not available on this node"}},
    {.what = "ucx wished, not there",
     .here = {DISTRUST},
     .transport = "ucx",
     .chosen = NULL,
     .because = {"not available on this node", "the reader asked for ucx only"}},
    {.what = "at least ucx", .least = "ucx", .chosen = "ucx", .because[STREAM] = "slower than ucx, the least path"},
    {.what = "at least ucx, not there",
     .there = {DISTRUST},
     .least = "ucx",
     .chosen = NULL,
     .because = {"not available on the other node", "slower than ucx, the least path"}},
    {.what = "at least stream", .here = {DISTRUST}, .least = "stream", .chosen = "stream", .passed_over = "ucx"},
    {.what = "at least inline", .least = "inline", .chosen = NULL, .because = {"slower than inline", "slower than inline"}},
    {.what = "the producer prefers stream",
     .preferred = "stream",
     .chosen = "stream",
     .because = {"possible, but slower", "the producer prefers it"}},
    {.what = "the producer prefers ucx, not there",
     .here = {DISTRUST},
     .preferred = "ucx",
     .chosen = "stream",
     .passed_over = "ucx"},
};

static struct path_offer pair_offer(const struct pair_row *row, unsigned i)
{
    static const char *const names[N_TRANSPORTS] = {"ucx", "stream", "nccl"};
    static const uint32_t speeds[N_TRANSPORTS] = {100, 50, 200};
    const char *moves = i == NCCL ? "cuda" : "host";
    struct path_offer offered = offer(names[i], speeds[i]);

    offered.here_why_not = row->here[i];
    offered.there_why_not = row->there[i];
    if (i == UCX && row->ucx_there)
        offered.there_version = row->ucx_there;
    offered.source.moves = strcmp(row->source ? row->source : "host", moves) == 0;
    offered.target.moves = strcmp(row->target ? row->target : "host", moves) == 0;
    offered.connected = !(i == UCX && row->ucx_rebuilt);
    return offered;
}

static void check_pair(const struct pair_row *row)
{
    static const char *const names[N_TRANSPORTS] = {"ucx", "stream", "nccl"};
    struct path_offer offers[N_TRANSPORTS] = {0};
    struct path_query query = remote_query(offers, N_TRANSPORTS);
    struct path_decision decision;
    struct rdt_error err = {0};

    for (unsigned i = 0; i < N_TRANSPORTS; i++)
        offers[i] = pair_offer(row, i);
    query.remote.source_memory = row->source ? row->source : "host";
    query.remote.target_memory = row->target ? row->target : "host";
    query.has_inline = row->has_inline;
    query.transport = row->transport ? row->transport : "";
    query.least = row->least ? row->least : "";
    query.preferred = row->preferred ? row->preferred : "";
    enum rdt_status status = path_choose(&query, &decision, &err);
    cr_assert_eq(status, row->chosen ? RDT_OK : RDT_NO_PATH, "%s: %s", row->what, err.msg);
    if (row->chosen)
        cr_assert_str_eq(decision.candidates[decision.chosen].name, row->chosen, "%s", row->what);
    cr_assert_eq(decision.passed_over >= 0, row->passed_over != NULL, "%s: passed over %d", row->what, decision.passed_over);
    if (row->passed_over)
        cr_assert_str_eq(decision.candidates[decision.passed_over].name, row->passed_over, "%s", row->what);
    for (unsigned i = 0; i < N_TRANSPORTS; i++) {
        const char *reason = find(&decision, names[i])->reason;
        cr_assert(reason[0] != '\0', "%s: no reason for %s", row->what, names[i]);
        cr_assert(!row->because[i] || strstr(reason, row->because[i]), "%s: %s: %s", row->what, names[i], reason);
        cr_assert(row->chosen || strstr(err.msg, names[i]), "%s: the sentence leaves out %s: %s", row->what, names[i], err.msg);
    }
    cr_assert(!row->not_inline || strstr(find(&decision, "inline")->reason, row->not_inline), "%s", row->what);
}

Test(path_pairs, pairs_table)
{
    for (size_t i = 0; i < sizeof pair_rows / sizeof pair_rows[0]; i++)
        check_pair(&pair_rows[i]);
}

/* ---- memory on devices ---- */

/* Transport a is fast and moves host memory only, b is hardly slower and moves both kinds, c moves the device's only, and d is
 * slow and moves both. */
static const struct kind_row {
    const char *what, *source, *target;
    const char *offers; /* which of them are offered */
    bool holes;         /* the tensors at the owner have holes */
    const char *least;
    const char *chosen; /* NULL: no path */
    enum path_staging source_staging, target_staging;
    const char *because; /* a part of the chosen one's reason, or of the refusal */
} kind_rows[] = {
    {"host to host", "host", "host", "abc", .chosen = "a", .because = "fastest"},
    {"device to device, direct", "gpu", "gpu", "abc", .chosen = "c", .because = "fastest"},
    {"device to device, the one that moves both", "gpu", "gpu", "ab", .chosen = "b", .because = "fastest"},
    {"device to device, a fast one through host memory", "gpu", "gpu", "ad", .chosen = "a", .source_staging = PATH_STAGED,
     .target_staging = PATH_STAGED, .because = "through host memory on both nodes"},
    {"device to host, direct", "gpu", "host", "abc", .chosen = "b", .because = "fastest"},
    {"host to device, direct", "host", "gpu", "abc", .chosen = "b", .because = "fastest"},
    {"device to device, staged", "gpu", "gpu", "a", .chosen = "a", .source_staging = PATH_STAGED, .target_staging = PATH_STAGED,
     .because = "through host memory on both nodes: it does not move gpu memory"},
    {"device to host, staged", "gpu", "host", "a", .chosen = "a", .source_staging = PATH_STAGED,
     .because = "through host memory on the other node: it does not move gpu memory"},
    {"host to device, staged", "host", "gpu", "a", .chosen = "a", .target_staging = PATH_STAGED,
     .because = "through host memory here: it does not move gpu memory"},
    {"staged, but only direct is wished", "gpu", "gpu", "a", .least = "direct", .because = "accepts only a direct path"},
    {"direct is wished and there", "gpu", "gpu", "ab", .least = "direct", .chosen = "b", .because = "fastest"},
    {"one end that moves no host memory", "gpu", "host", "c", .because = "it does not write host memory"},
    {"holes are gathered on the way to host memory", "gpu", "gpu", "b", .holes = true, .chosen = "b",
     .source_staging = PATH_GATHERED, .because = "through host memory on the other node: the tensors there have holes"},
};

Test(path_pairs, kinds_table)
{
    for (size_t i = 0; i < sizeof kind_rows / sizeof kind_rows[0]; i++) {
        const struct kind_row *row = &kind_rows[i];
        struct path_offer offers[3];
        struct path_decision decision;
        struct rdt_error err = {0};
        unsigned n = 0;

        for (const char *at = row->offers; *at; at++) {
            static const unsigned speeds[] = {100, 95, 120, 50};
            static const char *const names[] = {"a", "b", "c", "d"};
            bool device = *at != 'a', host = *at != 'c';
            struct path_offer *made = &offers[n++];
            *made = offer(names[*at - 'a'], speeds[*at - 'a']);
            made->source.moves = strcmp(row->source, "host") == 0 ? host : device;
            made->target.moves = strcmp(row->target, "host") == 0 ? host : device;
            made->source.stages = strcmp(row->source, "host") != 0 && host;
            made->target.stages = strcmp(row->target, "host") != 0 && host;
        }
        struct path_query query = remote_query(offers, n);
        query.remote.source_memory = row->source;
        query.remote.target_memory = row->target;
        query.remote.source_contiguous = !row->holes;
        query.least = row->least ? row->least : "";
        enum rdt_status status = path_choose(&query, &decision, &err);
        if (!row->chosen) {
            cr_assert_eq(status, RDT_NO_PATH, "%s: %s", row->what, rdt_status_name(status));
            cr_assert(strstr(err.msg, row->because), "%s: %s", row->what, err.msg);
            continue;
        }
        cr_assert_eq(status, RDT_OK, "%s: %s", row->what, err.msg);
        cr_assert_str_eq(decision.candidates[0].name, row->chosen, "%s", row->what);
        cr_assert_eq(decision.candidates[0].source, row->source_staging, "%s", row->what);
        cr_assert_eq(decision.candidates[0].target, row->target_staging, "%s", row->what);
        cr_assert(strstr(decision.candidates[0].reason, row->because), "%s: %s", row->what, decision.candidates[0].reason);
        if (row->source_staging != PATH_DIRECT || row->target_staging != PATH_DIRECT)
            cr_assert(!decision.candidates[0].one_sided, "%s", row->what);
    }
}

/* A transport that only reads, and so cannot move tensors with holes, is no fall-back that anybody could mend. */
Test(path_pairs, transport_that_cannot_read_holes_is_not_passed_over)
{
    struct path_offer offers[] = {offer("slow", 50), offer("fast", 100)};
    struct path_query query = remote_query(offers, 2);
    struct path_decision decision;
    struct rdt_error err = {0};

    offers[1].sides = RDT_ONE_SIDED;
    query.remote.source_contiguous = false;
    cr_assert_eq(path_choose(&query, &decision, &err), RDT_OK, "%s", err.msg);
    cr_assert_str_eq(decision.candidates[0].name, "slow");
    cr_assert_eq(decision.passed_over, -1, "%s", find(&decision, "fast")->reason);
}

Test(path_pairs, inline_bytes_go_to_no_device)
{
    struct path_offer slow = offer("slow", 1);
    struct path_query query = remote_query(&slow, 1);
    struct path_decision decision;
    struct rdt_error err;

    query.has_inline = true;
    cr_assert_eq(path_choose(&query, &decision, &err), RDT_OK);
    cr_assert_str_eq(decision.candidates[0].name, "inline");
    query.remote.target_memory = "gpu";
    cr_assert_eq(path_choose(&query, &decision, &err), RDT_OK);
    cr_assert_str_eq(decision.candidates[0].name, "slow");
    cr_assert(strstr(find(&decision, "inline")->reason, "cannot go to gpu memory"), "%s", find(&decision, "inline")->reason);
}
