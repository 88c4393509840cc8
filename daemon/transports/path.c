#include "daemon/transports/path.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/text.h"

/* Ranks between the paths; a transport's own speed stays below a local copy. */
enum { SPEED_SAME = 4000, SPEED_SHARE = 3000, SPEED_COW = 2500, SPEED_REPLY = 2500, SPEED_COPY = 2000, SPEED_INLINE = 1500 };

static struct path_candidate *add(struct path_decision *decision, enum path_kind kind, const char *name, uint32_t speed)
{
    struct path_candidate *candidate;

    if (decision->n == PATH_MAX_CANDIDATES)
        return NULL;
    candidate = &decision->candidates[decision->n++];
    candidate->kind = kind;
    candidate->possible = true;
    candidate->unfit = candidate->strange = false;
    candidate->one_sided = false;
    candidate->staged_source = candidate->staged_target = false;
    candidate->speed = speed;
    candidate->reason[0] = '\0';
    text_copy(candidate->name, sizeof candidate->name, name);
    return candidate;
}

__attribute__((format(printf, 2, 3))) static void reject(struct path_candidate *candidate, const char *fmt, ...)
{
    va_list args;

    if (!candidate || !candidate->possible)
        return; /* the first reason stands */
    candidate->possible = false;
    if (!strchr(fmt, '%')) {
        text_copy(candidate->reason, sizeof candidate->reason, fmt);
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(candidate->reason, sizeof candidate->reason, fmt, args);
    va_end(args);
}

static bool is_staged(const struct path_candidate *candidate)
{
    return candidate->staged_source || candidate->staged_target;
}

static void local(const struct path_query *query, struct path_decision *decision)
{
    struct path_candidate *same = add(decision, PATH_SAME, "local/same", SPEED_SAME);
    struct path_candidate *share = add(decision, PATH_SHARE, "local/share", SPEED_SHARE);
    struct path_candidate *cow = add(decision, PATH_COW, "local/cow", SPEED_COW);
    struct path_candidate *copy = add(decision, PATH_COPY, "local/copy", SPEED_COPY);

    struct path_candidate *in_reply = query->has_inline ? add(decision, PATH_INLINE, "inline", SPEED_REPLY) : NULL;

    if (!query->same_client)
        reject(same, "the reader is not the actor whose memory it is");
    switch (query->mode) {
    case RDT__PB__FETCH_MODE__FETCH_MODE_COPY:
        reject(same, "the reader asked for a copy");
        reject(share, "the reader asked for a copy");
        reject(cow, "the reader asked for a copy");
        break;
    case RDT__PB__FETCH_MODE__FETCH_MODE_COW:
        reject(same, "the reader asked for memory of its own to write");
        reject(share, "the reader asked for memory of its own to write");
        break;
    case RDT__PB__FETCH_MODE__FETCH_MODE_SHARE:
        reject(cow, "the reader asked for shared memory");
        reject(copy, "the reader asked for shared memory");
        reject(in_reply, "the reader asked for shared memory");
        break;
    default:
        break;
    }
    if (query->has_target) {
        reject(same, "the reader gave target buffers");
        reject(share, "the reader gave target buffers");
        reject(cow, "the reader gave target buffers");
        reject(in_reply, "the reader gave target buffers");
    }
    if (query->elsewhere) {
        reject(same, "%s", query->elsewhere);
        reject(share, "%s", query->elsewhere);
        reject(cow, "%s", query->elsewhere);
        reject(in_reply, "%s", query->elsewhere);
    }
    if (query->copy_why_not)
        reject(copy, "%s", query->copy_why_not);
    if (query->too_many_regions) {
        reject(share, "the object lies in more regions than one message can carry");
        reject(cow, "the object lies in more regions than one message can carry");
    }
    if (query->show_why_not) {
        reject(share, "%s", query->show_why_not);
        reject(cow, "%s", query->show_why_not);
    }
    if (query->cow_why_not)
        reject(cow, "%s", query->cow_why_not);
}

static void remote(const struct path_query *query, struct path_decision *decision)
{
    struct path_candidate *in_reply = add(decision, PATH_INLINE, "inline", SPEED_INLINE);

    if (!query->has_inline)
        reject(in_reply, "the object is too large to ride in the reply");
    if (strcmp(query->target_memory, "host") != 0)
        reject(in_reply, "what rides in the reply does not come to %s memory", query->target_memory);
    for (unsigned i = 0; i < query->n_offers; i++) {
        const struct path_offer *offer = &query->offers[i];
        uint32_t speed = offer->speed < SPEED_INLINE ? offer->speed : SPEED_INLINE - 1;
        struct path_candidate *candidate = add(decision, PATH_TRANSPORT, offer->name, speed);
        if (!candidate)
            break;
        if (query->preferred[0] && strcasecmp(query->preferred, offer->name) == 0)
            candidate->speed =
                speed + 200 < SPEED_INLINE ? speed + 200 : SPEED_INLINE - 1; /* before speed, never before the reader's wish */
        candidate->staged_source = offer->stages_source && (!offer->moves_source || !query->source_contiguous);
        candidate->staged_target = offer->stages_target && !offer->moves_target;
        if (!offer->moves_source && !candidate->staged_source)
            reject(candidate, "it does not read %s memory", query->source_memory);
        if (!offer->moves_target && !candidate->staged_target)
            reject(candidate, "it does not write %s memory", query->target_memory);
        if (offer->group_why_not)
            reject(candidate, "%s", offer->group_why_not);
        if (offer->here_why_not)
            reject(candidate, "not available on this node: %s", offer->here_why_not);
        if (offer->there_why_not)
            reject(candidate, "not available on the other node: %s", offer->there_why_not);
        if (candidate->possible && strcmp(offer->here_version, offer->there_version) != 0)
            reject(candidate, "the library or its settings differ: %s here, %s on the other node", offer->here_version,
                   offer->there_version);
        candidate->strange =
            (!offer->moves_source && !candidate->staged_source) || (!offer->moves_target && !candidate->staged_target);
        candidate->nowhere = offer->here_why_not && offer->there_why_not;
        candidate->unfit = offer->group_why_not || candidate->strange;
        if (!offer->connected && offer->group)
            reject(candidate, "group %s is being rebuilt", offer->group);
        if (!offer->connected)
            reject(candidate, "its connection to the other node is being rebuilt");
        if (!offer->two_sided && !offer->one_sided)
            reject(candidate, "it can neither send nor read on this connection%s%s", offer->refusal[0] ? ": " : "",
                   offer->refusal);
        if (offer->one_sided && query->source_contiguous && !is_staged(candidate))
            candidate->one_sided = true;
        else if (!offer->two_sided && is_staged(candidate))
            reject(candidate, "it only reads, and what goes through host memory is sent");
        else if (!offer->two_sided)
            reject(candidate, "it only reads contiguous memory, and the tensors at the owner have holes");
        if (candidate->possible && offer->group)
            (void)snprintf(candidate->reason, sizeof candidate->reason, "in group %s, ", offer->group);
    }
    if (query->mode == RDT__PB__FETCH_MODE__FETCH_MODE_SHARE)
        for (unsigned i = 0; i < decision->n; i++)
            reject(&decision->candidates[i], "the reader asked for shared memory, and the object is on another node");
}

static bool names(const struct path_candidate *candidate, const char *wish)
{
    const char *slash = strchr(candidate->name, '/');

    return strcasecmp(candidate->name, wish) == 0 || (slash && strcasecmp(slash + 1, wish) == 0);
}

static const struct {
    const char *name;
    uint32_t speed;
} locals[] = {{"share", SPEED_SHARE}, {"cow", SPEED_COW}, {"copy", SPEED_COPY}, {"inline", SPEED_INLINE}};

static void apply_wishes(const struct path_query *query, struct path_decision *decision, bool *least_known_p)
{
    uint32_t least = 0;

    bool direct = strcasecmp(query->least, "direct") == 0;

    *least_known_p = query->least[0] == '\0' || direct;
    for (unsigned i = 0; i < decision->n; i++)
        if (direct && is_staged(&decision->candidates[i])) {
            reject(&decision->candidates[i], "it goes through host memory, and the reader accepts only what is direct");
            decision->candidates[i].unfit = true;
        }
    for (unsigned i = 0; i < decision->n; i++)
        if (names(&decision->candidates[i], query->least)) {
            least = decision->candidates[i].speed;
            *least_known_p = true;
        }
    for (unsigned i = 0; i < sizeof locals / sizeof locals[0]; i++) /* known to fetches from other nodes too */
        if (strcasecmp(query->least, locals[i].name) == 0) {
            least = locals[i].speed;
            *least_known_p = true;
        }
    for (unsigned i = 0; i < decision->n; i++) {
        struct path_candidate *candidate = &decision->candidates[i];
        bool was_possible = candidate->possible;
        if (query->transport[0] && !names(candidate, query->transport)) {
            reject(candidate, "the reader asked for %s only", query->transport);
            candidate->unfit = true;
        }
        if (candidate->speed < least)
            reject(candidate, "slower than %s, the least path the reader accepts", query->least);
        candidate->unfit |= was_possible && !candidate->possible;
    }
}

static int better_first(const void *a, const void *b)
{
    const struct path_candidate *x = a, *y = b;

    if (x->possible != y->possible)
        return x->possible ? -1 : 1;
    if (x->possible && is_staged(x) != is_staged(y))
        return is_staged(y) ? -1 : 1;
    return x->speed > y->speed ? -1 : x->speed < y->speed;
}

/* Only transports fall back: nobody expects an object that is too large for a message to ride in one. Of two, a transport
 * that one of the nodes offers comes before one that neither does. */
static int passed_over(const struct path_decision *decision)
{
    const struct path_candidate *chosen = &decision->candidates[decision->chosen];
    int nowhere = -1;

    for (unsigned i = 1; i < decision->n && chosen->kind == PATH_TRANSPORT; i++) { /* sorted by speed */
        const struct path_candidate *candidate = &decision->candidates[i];
        if (candidate->kind != PATH_TRANSPORT || candidate->possible || candidate->unfit || candidate->speed <= chosen->speed)
            continue;
        if (!candidate->nowhere)
            return (int)i;
        if (nowhere < 0)
            nowhere = (int)i;
    }
    return nowhere;
}

enum rdt_status path_choose(const struct path_query *query, struct path_decision *decision, struct rdt_error *err)
{
    char all[480] = "";
    bool least_known;

    decision->n = 0; /* of the candidates, only these many are ever looked at */
    decision->chosen = -1;
    decision->passed_over = -1;
    if (query->same_node)
        local(query, decision);
    else
        remote(query, decision);
    apply_wishes(query, decision, &least_known);
    qsort(decision->candidates, decision->n, sizeof decision->candidates[0], better_first);
    if (!least_known)
        return rdt_error_set(err, RDT_INVALID,
                             "least path \"%s\" is no path: use share, cow, copy, inline, direct or the name of a transport",
                             query->least);
    if (decision->n > 0 && decision->candidates[0].possible) {
        struct path_candidate *chosen = &decision->candidates[0];
        char in_group[sizeof chosen->reason];
        decision->chosen = 0;
        text_copy(in_group, sizeof in_group, chosen->reason);
        (void)snprintf(chosen->reason, sizeof chosen->reason, "%.100s%s%s", in_group,
                       query->from_copy ? "a copy is on this node: " : "",
                       chosen->kind == PATH_TRANSPORT && query->preferred[0] && strcasecmp(query->preferred, chosen->name) == 0
                           ? "the producer prefers it"
                           : "the fastest that fits");
        if (is_staged(chosen)) {
            size_t used = strlen(chosen->reason);
            (void)snprintf(chosen->reason + used, sizeof chosen->reason - used,
                           "; through host memory %s: it does not move %s memory",
                           !chosen->staged_target   ? "on the other node"
                           : !chosen->staged_source ? "here"
                                                    : "on both nodes",
                           chosen->staged_target ? query->target_memory : query->source_memory);
        }
        for (unsigned i = 1; i < decision->n && decision->candidates[i].possible; i++)
            text_copy(decision->candidates[i].reason, sizeof decision->candidates[i].reason, "possible, but slower");
        decision->passed_over = passed_over(decision);
        return RDT_OK;
    }
    for (unsigned pass = 0; pass < 3; pass++) /* what could be mended first */
        for (unsigned i = 0; i < decision->n; i++) {
            size_t used = strlen(all);
            if ((decision->candidates[i].kind != PATH_TRANSPORT ? 2u : decision->candidates[i].strange ? 1u : 0u) == pass)
                (void)snprintf(all + used, sizeof all - used, "%s%s: %s", used ? "; " : "", decision->candidates[i].name,
                               decision->candidates[i].reason);
        }
    return rdt_error_set(err, RDT_NO_PATH, "no path for the bytes (%s)", all);
}
