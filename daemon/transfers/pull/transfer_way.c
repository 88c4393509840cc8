/* SPDX-License-Identifier: Apache-2.0 */
/* The path of a pull: chooses it by what is known, finds its connection, and starts early where the reader's
 * own targets say enough before the answer comes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/memory/region_fill.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"
#include "daemon/transfers/transfer_record.h"

/* Chooses the path by what is known, which is less before the answer. With soon_p it only finds out what
 * would be chosen if all connections that are being rebuilt were connected. */
static enum rdt_status choose_of(struct transfer *transfer, bool has_inline, struct path_decision *soon_p,
                                 struct rdt_error *err)
{
    struct path_offer offers[PATH_MAX_CANDIDATES];
    char why[PATH_MAX_CANDIDATES][192];
    /* No transport needs to move it. */
    bool nothing = transfer->pull.answer.arrived && transfer->stream_bytes == 0;
    struct path_query query = {.has_inline = has_inline,
                               .source_memory = transfer->pull.answer.memory,
                               .target_memory = transfer_target_memory(transfer),
                               .source_contiguous = transfer->pull.answer.contiguous,
                               .offers = offers,
                               .mode = transfer->wish.mode,
                               .transport = nothing ? "" : transfer->wish.transport,
                               .least = transfer->wish.least,
                               .preferred = transfer->pull.answer.preferred,
                               .has_target = transfer->target};

    list_each (struct peer_transport, pt, &transfer->pull.peer->transports, link) {
        if (query.n_offers == PATH_MAX_CANDIDATES)
            break;
        peer_transport_offer_to_path(pt, transfer->pull.answer.memory, query.target_memory, &offers[query.n_offers]);
        if (soon_p && peer_transport_is_coming(pt)) {
            offers[query.n_offers].connected = true;
            /* The link is new. The other end closes the old connection first, and then offers a new one or
             * declines. */
            if (!pt->remote_known)
                offers[query.n_offers].there_why_not = NULL;
        }
        query.n_offers++;
    }
    list_each (struct transport, transport, plugins_transports(transfer->transfers->plugins), link) {
        struct path_offer *offer = &offers[query.n_offers];
        if (query.n_offers == PATH_MAX_CANDIDATES || !transport_is_grouped(transport) || !transfer->pull.answer.arrived)
            continue; /* Before the answer it is not known which client put the object. */
        transfer_group_offer(transfer, transport, offer, why[query.n_offers++]);
        if (soon_p && !offer->connected && !offer->group_why_not && !offer->here_why_not)
            offer->connected = offer->two_sided = true;
    }
    return soon_p ? path_choose(&query, soon_p, err) : record_decide(transfer->transfers, &transfer->record, &query, err);
}

enum rdt_status transfer_in_choose(struct transfer *transfer, bool has_inline, struct rdt_error *err)
{
    return choose_of(transfer, has_inline, NULL, err);
}

bool transfer_in_path_is_coming(struct transfer *transfer)
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
    struct peer_session *session = transfer->pull.peer;
    char what[sizeof session->fell_back_to], line[sizeof what + sizeof better->reason + 32],
        who[sizeof session->peer->name + 8];

    if (transfer->pull.fell_back || decision->passed_over < 0)
        return;
    better = &decision->candidates[decision->passed_over];
    transfer->pull.fell_back = true;
    if (!better->offered_by_neither) {
        session->fell_back++;
        transfer->transfers->counts->fell_back++;
    }
    (void)snprintf(what, sizeof what, "%s instead of %s", chosen->name, better->name);
    if (strcmp(what, session->fell_back_to) != 0) {
        (void)snprintf(line, sizeof line, "objects arrive by %s: %s", what, better->reason);
        (void)snprintf(who, sizeof who, "node %s", session->peer->name);
        log_rarely(LOG_LEVEL_INFO, &session->fell_back_lines, who, line);
    }
    (void)snprintf(session->fell_back_to, sizeof session->fell_back_to, "%s", what);
}

/* Notes for a sub-pull which of its ends go through host memory. */
static void take_staging(struct transfer *transfer, const struct path_candidate *chosen)
{
    bool from_device = strcmp(transfer->pull.answer.memory, "host") != 0,
         to_device = strcmp(transfer_target_memory(transfer), "host") != 0;

    transfer->pull.staged_here = chosen->staged_target;
    transfer->pull.staged_there = chosen->staged_source;
    transfer->pull.single = (to_device && !transfer->pull.staged_here) || (from_device && !transfer->pull.staged_there);
    (void)snprintf(transfer->record.path, sizeof transfer->record.path, "%.56s%s", chosen->name,
                   transfer->pull.staged_here || transfer->pull.staged_there ? "/staged" : "");
    text_copy(transfer->record.from, sizeof transfer->record.from, transfer->pull.answer.memory);
    text_copy(transfer->record.to, sizeof transfer->record.to, transfer_target_memory(transfer));
}

void transfer_in_take_path(struct transfer *transfer)
{
    const struct path_candidate *chosen = record_chosen(&transfer->record);

    note_fall_back(transfer);
    memcpy(transfer->record.path, chosen->name, sizeof chosen->name);
    transfer->is_inline = chosen->kind == PATH_INLINE;
    transfer->pull.one_sided = chosen->one_sided;
    if (transfer->subpull.parent)
        take_staging(transfer, chosen);
    if (!transfer->is_inline) {
        transfer->pull.connection = peer_transport_find(transfer->pull.peer, chosen->name);
        if (!transfer->pull.connection) /* The group's side was chosen a moment ago and exists. */
            transfer->pull.connection = transfer_group_side(
                transfer, transfer_group_of(transfer, plugins_transport(transfer->transfers->plugins, chosen->name), NULL));
        list_append(&transfer->pull.connection->users_in, &transfer->pull.by_connection);
    }
}

/* An early start reserves nothing, so all target memory must be mapped and have its pages already. */
static bool map_targets(const struct target *target)
{
    if (region_fill_is_needed(target->uses, target->n))
        return false;
    for (uint32_t i = 0; i < target->n; i++)
        if (!region_addr(target->uses[i].region, NULL))
            return false; /* The ordinary start reports the error. */
    return true;
}

uint64_t transfer_inline_max(const struct transfer *transfer)
{
    const struct target *target = transfer->target;

    if (!target || transfer->transfers->options->trusted_network || region_fill_is_needed(target->uses, target->n))
        return RDT_INLINE_MAX_BYTES;
    return RDT_PEER_INLINE_MAX_BYTES;
}

/* The reader's targets say what it will get. Where a two-sided transport is connected, the receives can be
 * posted before PULL is sent, and the owner does not wait for a second message. */
bool transfer_in_early(struct transfer *transfer)
{
    const struct path_candidate *chosen;
    struct rdt_error err = {0};

    (void)snprintf(transfer->pull.answer.memory, sizeof transfer->pull.answer.memory, "host");
    if (layout_packed(transfer->target->layout, &transfer->packed, &transfer->stream_bytes, &err) != RDT_OK)
        return false;
    if (transfer->stream_bytes > transfer_inline_max(transfer) && transfer_in_choose(transfer, false, &err) == RDT_OK) {
        const struct transport *transport;
        chosen = record_chosen(&transfer->record);
        transport = plugins_transport(transfer->transfers->plugins, chosen->name);
        /* Without cancel, an ordinary "no such object" would cost the connection. */
        if (chosen->kind == PATH_TRANSPORT && !chosen->one_sided && transport && !transport->ops.register_memory &&
            transport->ops.cancel && map_targets(transfer->target) &&
            !order_wanted(transfer, peer_transport_find(transfer->pull.peer, chosen->name))) {
            transfer_in_take_path(transfer);
            if (transfer_plan(transfer, &err) == RDT_OK && transfer_staging_is_small(transfer) &&
                transfer_reserve_staging(transfer, NULL, &err) == RDT_OK)
                return true;
            free(transfer->pull.plan);
            transfer->pull.plan = NULL;
            list_remove(&transfer->pull.by_connection);
            transfer->pull.connection = NULL;
        }
    }
    free(transfer->packed);
    transfer->packed = NULL;
    transfer->stream_bytes = 0;
    return false;
}
