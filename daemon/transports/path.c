/* SPDX-License-Identifier: Apache-2.0 */
/* See path.h. A candidate keeps the first reason for which it was rejected. */
#include "daemon/transports/path.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/text.h"

/* The speeds of paths that are not transports. A transport's own speed stays below SPEED_INLINE, and so below a local copy. */
enum { SPEED_SAME = 4000, SPEED_SHARE = 3000, SPEED_COW = 2500, SPEED_REPLY = 2500, SPEED_COPY = 2000, SPEED_INLINE = 1500 };
#define SPEED_PREFERRED 200u /* added to the speed of the transport that the producer prefers */

static struct path_candidate *add(struct path_decision *decision, enum path_kind kind, const char *name, uint32_t speed)
{
    struct path_candidate *candidate;

    if (decision->n == PATH_MAX_CANDIDATES)
        return NULL;
    candidate = &decision->candidates[decision->n++];
    *candidate = (struct path_candidate){.kind = kind, .speed = speed};
    text_copy(candidate->name, sizeof candidate->name, name);
    return candidate;
}

/* Rejects a candidate. If it has been rejected before, the first reason stays, and the graver verdict. */
__attribute__((format(printf, 3, 4))) static void reject(struct path_candidate *candidate, enum path_verdict verdict,
                                                         const char *fmt, ...)
{
    enum path_verdict before = candidate->verdict;
    va_list args;

    if (verdict > before)
        candidate->verdict = verdict;
    if (before != PATH_POSSIBLE)
        return;
    va_start(args, fmt);
    (void)vsnprintf(candidate->reason, sizeof candidate->reason, fmt, args);
    va_end(args);
}

static bool is_staged(const struct path_candidate *candidate)
{
    return candidate->source != PATH_DIRECT || candidate->target != PATH_DIRECT;
}

/* ---- the same node ---- */

enum { SAME = 1 << PATH_SAME, SHARE = 1 << PATH_SHARE, COW = 1 << PATH_COW, COPY = 1 << PATH_COPY, INLINE = 1 << PATH_INLINE };

/* Rejects the candidates of these kinds. why NULL: nothing speaks against them. */
static void reject_kinds(struct path_decision *decision, unsigned kinds, const char *why)
{
    for (unsigned i = 0; why && i < decision->n; i++) {
        struct path_candidate *candidate = &decision->candidates[i];
        if (!(kinds & 1u << candidate->kind) || candidate->verdict != PATH_POSSIBLE)
            continue;
        candidate->verdict = PATH_UNFIT;
        text_copy(candidate->reason, sizeof candidate->reason, why);
    }
}

static void consider_local(const struct path_query *query, struct path_decision *decision)
{
    const struct path_local *local = &query->local;

    (void)add(decision, PATH_SAME, "local/same", SPEED_SAME);
    (void)add(decision, PATH_SHARE, "local/share", SPEED_SHARE);
    (void)add(decision, PATH_COW, "local/cow", SPEED_COW);
    (void)add(decision, PATH_COPY, "local/copy", SPEED_COPY);
    if (query->has_inline)
        (void)add(decision, PATH_INLINE, "inline", SPEED_REPLY);
    reject_kinds(decision, SAME, local->same_client ? NULL : "the reader is not the actor whose memory it is");
    switch (query->mode) {
    case RDT__PB__FETCH_MODE__FETCH_MODE_COPY:
        reject_kinds(decision, SAME | SHARE | COW, "the reader asked for a copy");
        break;
    case RDT__PB__FETCH_MODE__FETCH_MODE_COW:
        reject_kinds(decision, SAME | SHARE, "the reader asked for memory of its own to write");
        break;
    case RDT__PB__FETCH_MODE__FETCH_MODE_SHARE:
        reject_kinds(decision, COW | COPY | INLINE, "the reader asked for shared memory");
        break;
    default:
        break;
    }
    reject_kinds(decision, SAME | SHARE | COW | INLINE, query->has_target ? "the reader gave target buffers" : NULL);
    reject_kinds(decision, SAME | SHARE | COW | INLINE, local->stay_why_not);
    reject_kinds(decision, COPY, local->copy_why_not);
    reject_kinds(
        decision, SHARE | COW,
        local->too_many_fds
            ? "its memory has more file descriptors than the reader takes, which is a quarter of its limit of open files "
              "and no more than the limits here allow"
            : NULL);
    reject_kinds(decision, SHARE | COW, local->show_why_not);
    reject_kinds(decision, COW, local->cow_why_not);
}

/* ---- another node ---- */

/* Decides whether a transport can be used, and how. */
static void judge_offer(const struct path_query *query, const struct path_offer *offer, struct path_candidate *candidate)
{
    bool reads = offer->sides & RDT_ONE_SIDED, sends = offer->sides & RDT_TWO_SIDED;
    bool only_reads = reads && !sends, reads_all;
    enum path_verdict not_here = offer->there_why_not ? PATH_NOT_OFFERED : PATH_UNAVAILABLE;

    if (offer->source.stages && (!offer->source.moves || offer->source.unregistered))
        candidate->source = PATH_STAGED;
    else if (offer->source.stages && !query->remote.source_contiguous)
        candidate->source = PATH_GATHERED;
    if (offer->target.stages && (!offer->target.moves || offer->target.unregistered))
        candidate->target = PATH_STAGED;
    reads_all = query->remote.source_contiguous && !query->remote.target_imported && !is_staged(candidate);
    candidate->one_sided = reads && reads_all;
    if (!offer->source.moves && !offer->source.stages)
        reject(candidate, PATH_WRONG_MEMORY, "it does not read %s memory", query->remote.source_memory);
    if (!offer->target.moves && !offer->target.stages)
        reject(candidate, PATH_WRONG_MEMORY, "it does not write %s memory", query->remote.target_memory);
    if (offer->target.unregistered && candidate->target == PATH_DIRECT)
        reject(candidate, PATH_UNAVAILABLE, "memory could not be registered here: %s", offer->target.unregistered);
    if (offer->source.unregistered && candidate->source == PATH_DIRECT)
        reject(candidate, PATH_UNAVAILABLE, "memory could not be registered on the other node: %s", offer->source.unregistered);
    if (offer->group_why_not)
        reject(candidate, PATH_UNFIT, "%s", offer->group_why_not);
    if (offer->here_why_not)
        reject(candidate, not_here, "not available on this node: %s", offer->here_why_not);
    if (offer->there_why_not)
        reject(candidate, PATH_UNAVAILABLE, "not available on the other node: %s", offer->there_why_not);
    if (candidate->verdict == PATH_POSSIBLE && strcmp(offer->here_version, offer->there_version) != 0)
        reject(candidate, PATH_UNAVAILABLE, "the library or its settings differ: %s here, %s on the other node",
               offer->here_version, offer->there_version);
    if (!offer->connected && offer->group)
        reject(candidate, PATH_UNAVAILABLE, "group %s is being rebuilt", offer->group);
    if (!offer->connected)
        reject(candidate, PATH_UNAVAILABLE, "its connection to the other node is being rebuilt");
    if (!reads && !sends)
        reject(candidate, PATH_UNAVAILABLE, "it can neither send nor read on this connection%s%s",
               offer->refusal[0] ? ": " : "", offer->refusal);
    if (only_reads && is_staged(candidate))
        reject(candidate, PATH_UNFIT, "it only reads, and bytes that go through host memory must be sent");
    if (only_reads && !query->remote.source_contiguous)
        reject(candidate, PATH_UNFIT,
               "it only reads contiguous memory, and the tensors at the owner have holes, or are in imported memory");
    if (only_reads && query->remote.target_imported)
        reject(candidate, PATH_UNFIT, "it only reads, and not into imported memory");
    if (candidate->verdict == PATH_POSSIBLE && offer->group)
        (void)snprintf(candidate->reason, sizeof candidate->reason, "in group %s, ", offer->group);
}

static void consider_remote(const struct path_query *query, struct path_decision *decision)
{
    struct path_candidate *in_reply = add(decision, PATH_INLINE, "inline", SPEED_INLINE);

    if (!query->has_inline)
        reject(in_reply, PATH_UNFIT, "the object is too large to travel in the reply");
    if (strcmp(query->remote.target_memory, "host") != 0)
        reject(in_reply, PATH_WRONG_MEMORY, "bytes in the reply cannot go to %s memory", query->remote.target_memory);
    for (unsigned i = 0; i < query->remote.n_offers; i++) {
        const struct path_offer *offer = &query->remote.offers[i];
        bool preferred = query->preferred[0] && strcasecmp(query->preferred, offer->name) == 0;
        uint32_t speed = offer->speed < SPEED_INLINE ? offer->speed : SPEED_INLINE - 1;
        struct path_candidate *candidate;
        speed += preferred ? SPEED_PREFERRED : 0;
        candidate = add(decision, PATH_TRANSPORT, offer->name, speed < SPEED_INLINE ? speed : SPEED_INLINE - 1);
        if (!candidate)
            break;
        judge_offer(query, offer, candidate);
    }
    if (query->mode == RDT__PB__FETCH_MODE__FETCH_MODE_SHARE)
        for (unsigned i = 0; i < decision->n; i++)
            reject(&decision->candidates[i], PATH_UNFIT,
                   "the reader asked for shared memory, and the object is on another node");
}

/* ---- the reader's wishes ---- */

/* Whether the candidate is named by a wish: "local/copy" or "copy". */
static bool is_named_by(const struct path_candidate *candidate, const char *wish)
{
    const char *slash = strchr(candidate->name, '/');

    return strcasecmp(candidate->name, wish) == 0 || (slash && strcasecmp(slash + 1, wish) == 0);
}

/* The speed of the least path that the reader accepts. Returns false if no path has that name. */
static bool find_least(const struct path_query *query, const struct path_decision *decision, uint32_t *least_p)
{
    /* These are known whether or not they are candidates. */
    static const struct {
        const char *name;
        uint32_t speed;
    } always[] = {
        {"", 0}, {"direct", 0}, {"share", SPEED_SHARE}, {"cow", SPEED_COW}, {"copy", SPEED_COPY}, {"inline", SPEED_INLINE}};

    for (unsigned i = 0; i < sizeof always / sizeof always[0]; i++)
        if (strcasecmp(query->least, always[i].name) == 0) {
            *least_p = always[i].speed;
            return true;
        }
    for (unsigned i = 0; i < decision->n; i++)
        if (is_named_by(&decision->candidates[i], query->least)) {
            *least_p = decision->candidates[i].speed;
            return true;
        }
    return false;
}

/* Returns false if the reader's least path is none. */
static bool apply_wishes(const struct path_query *query, struct path_decision *decision)
{
    bool direct = strcasecmp(query->least, "direct") == 0;
    uint32_t least;

    if (!find_least(query, decision, &least))
        return false;
    for (unsigned i = 0; i < decision->n; i++) {
        struct path_candidate *candidate = &decision->candidates[i];
        if (direct && is_staged(candidate))
            reject(candidate, PATH_UNFIT, "it goes through host memory, and the reader accepts only a direct path");
        if (query->transport[0] && !is_named_by(candidate, query->transport))
            reject(candidate, PATH_UNFIT, "the reader asked for %s only", query->transport);
        if (candidate->verdict == PATH_POSSIBLE && candidate->speed < least)
            reject(candidate, PATH_UNFIT, "slower than %s, the least path the reader accepts", query->least);
    }
    return true;
}

/* ---- the choice ---- */

/* Through host memory a transport moves nine tenths of what it moves between host memories, as measured with stream on an H100.
 * So a slow transport that moves memory of devices itself, as ucx over TCP, does not come before a fast one that does not. */
static uint32_t rate(const struct path_candidate *candidate)
{
    return is_staged(candidate) ? candidate->speed - candidate->speed / 10 : candidate->speed;
}

static int better_first(const void *a, const void *b)
{
    const struct path_candidate *x = a, *y = b;
    bool x_possible = x->verdict == PATH_POSSIBLE, y_possible = y->verdict == PATH_POSSIBLE;

    if (x_possible != y_possible)
        return x_possible ? -1 : 1;
    if (x_possible && rate(x) != rate(y))
        return rate(x) > rate(y) ? -1 : 1;
    if (x_possible && is_staged(x) != is_staged(y))
        return is_staged(y) ? -1 : 1;
    return x->speed > y->speed ? -1 : x->speed < y->speed;
}

/* Finds the best transport that is faster than the chosen one, but cannot be used now; -1: none. A transport that one of the
 * nodes offers comes before one that neither does. Other paths are not looked for: nobody expects an object to travel in a
 * message that is too small for it. */
static int find_passed_over(const struct path_decision *decision)
{
    const struct path_candidate *chosen = &decision->candidates[decision->chosen];
    int not_offered = -1;

    for (unsigned i = 1; i < decision->n && chosen->kind == PATH_TRANSPORT; i++) { /* the fastest first */
        const struct path_candidate *candidate = &decision->candidates[i];
        if (candidate->kind != PATH_TRANSPORT || candidate->speed <= chosen->speed)
            continue;
        if (candidate->verdict == PATH_UNAVAILABLE)
            return (int)i;
        if (candidate->verdict == PATH_NOT_OFFERED && not_offered < 0)
            not_offered = (int)i;
    }
    return not_offered;
}

/* The offer of the transport of that name; NULL: the bytes do not come from another node. */
static const struct path_offer *find_offer(const struct path_query *query, const char *name)
{
    for (unsigned i = 0; !query->same_node && i < query->remote.n_offers; i++)
        if (strcmp(query->remote.offers[i].name, name) == 0)
            return &query->remote.offers[i];
    return NULL;
}

static void explain_choice(const struct path_query *query, struct path_candidate *chosen)
{
    const struct path_offer *offer = find_offer(query, chosen->name);
    char in_group[sizeof chosen->reason];
    size_t used;

    text_copy(in_group, sizeof in_group, chosen->reason);
    (void)snprintf(chosen->reason, sizeof chosen->reason, "%.100s%s%s", in_group,
                   query->local.from_replica ? "a copy is on this node: " : "",
                   chosen->kind == PATH_TRANSPORT && query->preferred[0] && strcasecmp(query->preferred, chosen->name) == 0
                       ? "the producer prefers it"
                       : "the fastest that fits");
    used = strlen(chosen->reason);
    if (query->remote.target_imported && chosen->kind == PATH_TRANSPORT)
        (void)snprintf(chosen->reason + used, sizeof chosen->reason - used,
                       "; through memory of the daemon: the target is imported");
    if (!is_staged(chosen))
        return;
    used = strlen(chosen->reason);
    (void)snprintf(chosen->reason + used, sizeof chosen->reason - used, "; through host memory %s: ",
                   chosen->target == PATH_DIRECT   ? "on the other node"
                   : chosen->source == PATH_DIRECT ? "here"
                                                   : "on both nodes");
    used = strlen(chosen->reason);
    if (chosen->target == PATH_STAGED && offer && offer->target.unregistered)
        (void)snprintf(chosen->reason + used, sizeof chosen->reason - used, "%s memory could not be registered: %s",
                       query->remote.target_memory, offer->target.unregistered);
    else if (chosen->source == PATH_STAGED && offer && offer->source.unregistered)
        (void)snprintf(chosen->reason + used, sizeof chosen->reason - used, "%s memory could not be registered there: %s",
                       query->remote.source_memory, offer->source.unregistered);
    else if (chosen->source == PATH_GATHERED && chosen->target == PATH_DIRECT)
        (void)snprintf(chosen->reason + used, sizeof chosen->reason - used, "the tensors there have holes");
    else
        (void)snprintf(chosen->reason + used, sizeof chosen->reason - used, "it does not move %s memory",
                       chosen->target == PATH_STAGED ? query->remote.target_memory : query->remote.source_memory);
}

/* Lists every rejection, first that of the transport which the reader asked for, then those of transports that a change of the
 * configuration or of the network could mend. */
static enum rdt_status no_path(const struct path_query *query, const struct path_decision *decision, struct rdt_error *err)
{
    char all[480] = "";

    for (unsigned pass = 0; pass < 4; pass++)
        for (unsigned i = 0; i < decision->n; i++) {
            const struct path_candidate *candidate = &decision->candidates[i];
            size_t used = strlen(all);
            bool asked_for = query->transport[0] && is_named_by(candidate, query->transport);
            bool wrong_memory = candidate->verdict == PATH_WRONG_MEMORY;
            if ((asked_for ? 0u : candidate->kind != PATH_TRANSPORT ? 3u : wrong_memory ? 2u : 1u) == pass)
                (void)snprintf(all + used, sizeof all - used, "%s%s: %s", used ? "; " : "", candidate->name, candidate->reason);
        }
    return rdt_error_set(err, RDT_NO_PATH, "no path for the bytes (%s)", all);
}

enum rdt_status path_choose(const struct path_query *query, struct path_decision *decision, struct rdt_error *err)
{
    bool least_known;

    decision->n = 0; /* the candidates beyond are never looked at */
    decision->chosen = -1;
    decision->passed_over = -1;
    if (query->same_node)
        consider_local(query, decision);
    else
        consider_remote(query, decision);
    least_known = apply_wishes(query, decision);
    qsort(decision->candidates, decision->n, sizeof decision->candidates[0], better_first);
    if (!least_known)
        return rdt_error_set(err, RDT_INVALID,
                             "least path \"%s\" is no path: use share, cow, copy, inline, direct or the name of a transport",
                             query->least);
    if (decision->n == 0 || decision->candidates[0].verdict != PATH_POSSIBLE)
        return no_path(query, decision, err);
    decision->chosen = 0;
    explain_choice(query, &decision->candidates[0]);
    for (unsigned i = 1; i < decision->n && decision->candidates[i].verdict == PATH_POSSIBLE; i++)
        text_copy(decision->candidates[i].reason, sizeof decision->candidates[i].reason, "possible, but slower");
    decision->passed_over = find_passed_over(decision);
    return RDT_OK;
}
