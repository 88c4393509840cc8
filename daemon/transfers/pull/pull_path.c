/* SPDX-License-Identifier: Apache-2.0 */
/* The path of a pull: chooses it by the owner's answer, and finds its connection. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"

/* ---- memory that could not be registered ---- */

static struct unregistered *find_unregistered(const struct transfer *transfer, const char *transport, bool at_owner)
{
    list_each (struct unregistered, unregistered, &transfer->pull.path.registering.failed, link)
        if (unregistered->at_owner == at_owner && strcmp(unregistered->transport, transport) == 0)
            return unregistered;
    return NULL;
}

bool pull_note_unregistered(struct transfer *transfer, bool at_owner, const char *why)
{
    const struct peer_transport *pt = transfer->pull.path.connection;
    struct unregistered *unregistered = pt ? find_unregistered(transfer, pt->transport->name, at_owner) : NULL;

    if (!pt || (unregistered && (at_owner || unregistered->staged)))
        return false;
    if (unregistered) {
        unregistered->staged = true;
    } else {
        unregistered = calloc(1, sizeof *unregistered);
        if (!unregistered)
            return false;
        text_copy(unregistered->transport, sizeof unregistered->transport, pt->transport->name);
        unregistered->at_owner = at_owner;
        list_append(&transfer->pull.path.registering.failed, &unregistered->link);
    }
    text_copy(unregistered->why, sizeof unregistered->why, why);
    return true;
}

void pull_forget_unregistered(struct transfer *transfer)
{
    list_drain (struct unregistered, unregistered, &transfer->pull.path.registering.failed, link) {
        list_remove(&unregistered->link);
        free(unregistered);
    }
}

/* Tells the choice what has failed in this pull before. */
static void say_what_failed(const struct transfer *transfer, struct path_offer *offer)
{
    const struct unregistered *here = find_unregistered(transfer, offer->name, false),
                              *there = find_unregistered(transfer, offer->name, true);

    if (strcmp(transfer->pull.path.cut_off, offer->name) == 0)
        offer->connected = false;
    offer->source.unregistered = there ? there->why : NULL;
    if (!here)
        return;
    offer->target.unregistered = here->why;
    offer->target.stages = offer->target.stages && !here->staged;
}

/* ---- the choice ---- */

/* Chooses the path. With soon_p it only finds out what would be chosen if all connections that are being rebuilt were
 * connected. */
static enum rdt_status choose_of(struct transfer *transfer, bool has_inline, struct path_decision *soon_p,
                                 struct rdt_error *err)
{
    struct path_offer offers[PATH_MAX_CANDIDATES];
    char why[PATH_MAX_CANDIDATES][192];
    /* No transport needs to move it. */
    bool nothing = transfer->move.stream_bytes == 0;
    struct path_query query = {.has_inline = has_inline,
                               .remote = {.source_memory = transfer->pull.answer.memory,
                                          .target_memory = transfer_target_memory(transfer),
                                          .source_contiguous = transfer->pull.answer.contiguous,
                                          .target_imported = target_is_imported(transfer->move.target),
                                          .offers = offers},
                               .mode = transfer->wish.mode,
                               .transport = nothing ? "" : transfer->wish.transport,
                               .least = transfer->wish.least,
                               .preferred = transfer->pull.answer.preferred,
                               .has_target = transfer->move.target};

    list_each (struct peer_transport, pt, &transfer->pull.peer->transports, link) {
        struct path_offer *offer = &offers[query.remote.n_offers];
        if (query.remote.n_offers == PATH_MAX_CANDIDATES)
            break;
        peer_transport_offer_to_path(pt, transfer->pull.answer.memory, query.remote.target_memory, offer);
        say_what_failed(transfer, offer);
        if (soon_p && peer_transport_is_coming(pt)) {
            offer->connected = true;
            /* The link is new. The other end closes the old connection first, and then offers a new one or
             * declines. */
            if (!pt->remote_known)
                offer->there_why_not = NULL;
        }
        query.remote.n_offers++;
    }
    list_each (struct transport, transport, plugins_transports(transfer->transfers->plugins), link) {
        struct path_offer *offer = &offers[query.remote.n_offers];
        if (query.remote.n_offers == PATH_MAX_CANDIDATES || !transport_is_grouped(transport))
            continue;
        transfer_group_offer(transfer, transport, offer, why[query.remote.n_offers++]);
        say_what_failed(transfer, offer);
        if (soon_p && !offer->connected && !offer->group_why_not && !offer->here_why_not) {
            offer->connected = true;
            offer->sides |= RDT_TWO_SIDED;
        }
    }
    return soon_p ? path_choose(&query, soon_p, err) : record_decide(transfer->transfers, &transfer->record, &query, err);
}

bool pull_note_cut_off(struct transfer *transfer)
{
    const struct peer_transport *pt = transfer->pull.path.connection;
    struct path_decision other = {0};

    if (!pt || transfer->pull.path.cut_off[0] != '\0')
        return false;
    text_copy(transfer->pull.path.cut_off, sizeof transfer->pull.path.cut_off, pt->transport->name);
    return choose_of(transfer, false, &other, NULL) == RDT_OK;
}

enum rdt_status pull_choose_path(struct transfer *transfer, bool has_inline, struct rdt_error *err)
{
    return choose_of(transfer, has_inline, NULL, err);
}

bool pull_path_is_coming(struct transfer *transfer)
{
    struct path_decision soon = {0};

    if (choose_of(transfer, false, &soon, NULL) != RDT_OK)
        return false;
    text_copy(transfer->record.path, sizeof transfer->record.path, soon.candidates[soon.chosen].name);
    return true;
}

/* A slower path is logged once for each peer, because it may be for good. It is counted for each transfer, unless
 * neither node offers the faster one: that is how they were set up, and nothing to be alarmed about. */
static void note_fall_back(struct transfer *transfer)
{
    const struct path_decision *decision = transfer->record.decision;
    const struct path_candidate *chosen = record_chosen(&transfer->record), *better;
    struct remote *remote = transfer->pull.peer;
    char what[sizeof remote->fell_back.to], line[sizeof what + sizeof better->reason + 32], who[sizeof remote->peer->name + 8];

    if (transfer->pull.fell_back || decision->passed_over < 0)
        return;
    better = &decision->candidates[decision->passed_over];
    transfer->pull.fell_back = true;
    if (better->verdict != PATH_NOT_OFFERED) {
        remote->fell_back.n++;
        transfer->transfers->counts->fell_back++;
    }
    (void)snprintf(what, sizeof what, "%s instead of %s", chosen->name, better->name);
    if (strcmp(what, remote->fell_back.to) != 0) {
        (void)snprintf(line, sizeof line, "objects arrive by %s: %s", what, better->reason);
        (void)snprintf(who, sizeof who, "node %s", remote->peer->name);
        log_rarely(LOG_LEVEL_INFO, &remote->fell_back.lines, who, line);
    }
    (void)snprintf(remote->fell_back.to, sizeof remote->fell_back.to, "%s", what);
}

/* Notes for a sub-pull which of its ends go through host memory. */
static void take_staging(struct transfer *transfer, const struct path_candidate *chosen)
{
    bool from_device = strcmp(transfer->pull.answer.memory, "host") != 0,
         to_device = strcmp(transfer_target_memory(transfer), "host") != 0;

    transfer->pull.path.staged = chosen->target != PATH_DIRECT;
    transfer->pull.path.single = (to_device && !transfer->pull.path.staged) || (from_device && chosen->source == PATH_DIRECT);
    (void)snprintf(transfer->record.path, sizeof transfer->record.path, "%.56s%s", chosen->name,
                   transfer->pull.path.staged || chosen->source != PATH_DIRECT ? "/staged" : "");
    text_copy(transfer->record.from, sizeof transfer->record.from, transfer->pull.answer.memory);
    text_copy(transfer->record.to, sizeof transfer->record.to, transfer_target_memory(transfer));
}

void pull_take_path(struct transfer *transfer)
{
    const struct path_candidate *chosen = record_chosen(&transfer->record);
    struct peer_transport *pt;

    note_fall_back(transfer);
    memcpy(transfer->record.path, chosen->name, sizeof chosen->name);
    transfer->move.is_inline = chosen->kind == PATH_INLINE;
    transfer->pull.path.one_sided = chosen->one_sided;
    if (transfer->pull.subpull.parent)
        take_staging(transfer, chosen);
    if (!transfer->move.is_inline && target_is_imported(transfer->move.target))
        transfer->pull.path.staged = true;
    if (!transfer->move.is_inline) {
        pt = peer_transport_find(transfer->pull.peer, chosen->name);
        if (!pt) /* The group's side was chosen a moment ago and exists. */
            pt = transfer_group_side(
                transfer, transfer_group_of(transfer, plugins_transport(transfer->transfers->plugins, chosen->name), NULL));
        peer_transport_use(&transfer->pull.path.connection, pt);
        list_append(&pt->pulls, &transfer->pull.path.by_connection);
    }
}

enum rdt_status pull_map_targets(struct transfer *transfer, struct rdt_error *err)
{
    const struct target *target = transfer->move.target;
    enum rdt_status status = RDT_OK;

    if (!target || transfer->pull.chunks.memory)
        return RDT_OK;
    transfer->pull.chunks.memory = calloc(target->n + 1u, sizeof *transfer->pull.chunks.memory);
    if (!transfer->pull.chunks.memory)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the targets");
    for (uint32_t i = 0; i < target->n && status == RDT_OK; i++)
        if (target->uses[i].region)
            status = memory_place_of(target->uses[i].region, &transfer->pull.chunks.memory[i], err);
    if (status != RDT_OK) {
        free(transfer->pull.chunks.memory);
        transfer->pull.chunks.memory = NULL;
    }
    return status;
}

uint64_t pull_inline_max(const struct transfer *transfer)
{
    const struct target *target = transfer->move.target;

    if (!target || transfer->transfers->options->trusted_network || target_is_imported(target))
        return RDT_INLINE_MAX_BYTES;
    return RDT_PEER_INLINE_MAX_BYTES;
}
