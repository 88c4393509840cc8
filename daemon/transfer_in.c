/* Fetches from another node, up to the point where its bytes begin to move: asking, the answer, memory for it. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "daemon/log.h"
#include "daemon/question.h"
#include "daemon/reservation.h"
#include "daemon/text.h"
#include "daemon/transfer_impl.h"
#include "wire_error.h"
#include "wire_ref.h"

static void go_on(struct transfer *transfer);

enum rdt_status transfer_in_start(struct transfer *transfer, struct rdt_error *err)
{
    struct transfers *transfers = transfer->transfers;
    struct peer *peer;
    enum rdt_status status;

    if (!transfers->peers)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "object \"%s\" is on another node, and this daemon has no peer link: set listen and key_file",
                             transfer->ref.id);
    status = peers_find(transfers->peers, transfer->ref.node, transfer->ref.address, &peer, err);
    if (status != RDT_OK)
        return status;
    transfer->origin = peer_work_get(transfers, peer);
    if (!transfer->origin)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
    text_copy(transfer->record.peer, sizeof transfer->record.peer, peer->name);
    if (peer->state == PEER_BACKOFF)
        return peer_away(peer, err);
    transfer->stall.on_passed = transfer_in_on_stall;
    if (!transfer->joinable || question_begin(transfer)) {
        if (peer->state == PEER_UP)
            reservation_join(transfer, transfer->origin);
        transfer_in_pull_from(transfer, transfer->origin);
        return RDT_OK;
    }
    transfer->peer = transfer->origin;
    transfer->peer->n_in++;
    list_append(&transfer->peer->pending, &transfer->by_peer);
    transfer_set_state(transfer, TRANSFER_QUEUED);
    return RDT_OK;
}

void transfer_in_leave_peer(struct transfer *transfer)
{
    if (transfer->peer && !list_empty(&transfer->by_peer)) {
        list_remove(&transfer->by_peer);
        transfer->peer->n_in--;
    }
    transfer->peer = NULL;
}

void transfer_in_pull_from(struct transfer *transfer, struct peer_work *work)
{
    transfer_in_leave_peer(transfer);
    transfer->peer = work;
    work->n_in++;
    if (work->peer->state == PEER_UP) {
        list_append(&work->incoming, &transfer->by_peer);
        transfer_in_ask(transfer);
        return;
    }
    list_append(&work->pending, &transfer->by_peer);
    transfer_set_state(transfer, TRANSFER_LINK);
}

static void on_turn(struct deadline *deadline)
{
    struct transfer *transfer = (struct transfer *)((char *)deadline - offsetof(struct transfer, turn));

    if (transfer->sm.state != TRANSFER_QUEUED || (transfer->question && transfer->question->asked))
        return;
    if (transfer_copy_serves(transfer))
        return;
    transfer_in_pull_from(transfer, transfer->origin);
}

/* Whoever waited for its answer goes on when the loop turns: who calls here may be in the middle of another one's end. */
void transfer_in_leave_question(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = question_close(transfer);
    struct transfer *next = id ? map_get_u64(&transfers->by_id, id) : NULL;

    if (!next || next->sm.state != TRANSFER_QUEUED)
        return;
    next->turn.on_passed = on_turn;
    if (!deadline_set(transfers->deadlines, &next->turn, 0))
        on_turn(&next->turn);
}

/* The longest that any of its fetches would wait. */
static int64_t time_left_ns(const struct transfer *transfer)
{
    int64_t longest = list_empty(&transfer->fetches) ? -1 : 0; /* nobody here: other nodes wait for its copy */

    list_for_each (node, &transfer->fetches) {
        int64_t left = deadline_left_ns(&list_entry(node, struct fetch, by_transfer)->deadline);
        if (left < 0)
            return left;
        longest = left > longest ? left : longest;
    }
    return longest;
}

void transfer_in_ask(struct transfer *transfer)
{
    Rdt__Pb__Pull pull = RDT__PB__PULL__INIT;
    Rdt__Pb__PullStart start = RDT__PB__PULL_START__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    Rdt__Pb__TensorList expect;
    Rdt__Pb__Ref ref;
    struct rdt_error err = {0};

    transfer_set_state(transfer, TRANSFER_ASKED);
    question_ask(transfer);
    if (transfer->target && !transfer->meta_only && !transfer->whole && !pieces_wanted_here(transfer)) {
        struct transfers *transfers = transfer->transfers;
        uint64_t id = transfer->id;
        transfer_in_early(transfer);
        if (map_get_u64(&transfers->by_id, id) != transfer || transfer->sm.state == TRANSFER_ABORT)
            return; /* its receives could not be posted: it has failed */
    }
    if (transfer->early)
        transfer->record.state = "asked";                /* as far as anybody can see */
    if (transfer->early && transfer->failed == RDT_OK) { /* else some of its receives could not be posted */
        start.transport = (char *)transfer->via->transport->name;
        start.chunk_bytes = transfer->transfers->options->chunk_bytes;
        start.epoch = transfer->via->epoch;
        pull.start = &start;
        layout_to_wire(transfer->packed, false, &expect);
        pull.expect = &expect;
    }
    wire_ref_from(&transfer->ref, &ref);
    requester.tenant = transfer->account->owner.tenant;
    requester.uid = transfer->account->owner.uid;
    pull.transfer = transfer->id;
    pull.ref = &ref;
    pull.requester = &requester;
    pull.slice = transfer->slice;
    pull.timeout_ns = time_left_ns(transfer);
    pull.meta_only = transfer->meta_only;
    pull.tell_parked = transfer->group != NULL;
    pull.keep = transfer->keeps && transfer->peer == transfer->origin;
    pull.no_redirect = transfer->no_redirect;
    pull.from_copy = transfer->peer != transfer->origin;
    if (transfer->wish_transport[0] == '\0' ||
        strcasecmp(transfer->wish_transport, "inline") == 0) /* else they go another way */
        pull.inline_max_bytes = transfer->transfers->options->inline_max_bytes;
    pull.parts = true;
    if (transfer->whole || pieces_wanted_here(transfer))
        pull.inline_max_bytes = 0;
    if (transfer->whole) {
        pull.part_of = transfer->whole->id;
        pull.tensors = transfer->select;
        pull.n_tensors = transfer->n_select;
    }
    if (work_send(transfer->peer, RDT_PEER_PULL, &pull.base, &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

static struct transfer *find(struct peer_work *work, uint64_t id)
{
    struct transfer *transfer = map_get_u64(&work->transfers->by_id, id);

    return transfer && transfer->peer == work ? transfer : NULL;
}

void transfer_in_send_abort(struct transfer *transfer)
{
    Rdt__Pb__PullAbort abort_message = RDT__PB__PULL_ABORT__INIT;

    if (!transfer->peer)
        return; /* it was on its way back, and has told already */
    abort_message.transfer = transfer->id;
    (void)work_send(transfer->peer, RDT_PEER_PULL_ABORT, &abort_message.base, NULL); /* link down: the owner knows */
}

/* ---- the answer ---- */

enum rdt_status transfer_in_read_meta(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct rdt_error *err)
{
    struct rdt_ref ref;
    enum rdt_status status = wire_ref_to(meta->ref, &ref, err);

    if (status == RDT_OK && transfer->ref.generation != 0 && ref.generation != transfer->ref.generation)
        status = rdt_error_set(err, RDT_PROTOCOL, "the answer is about another object");
    if (status == RDT_OK && (ref.is_name || (transfer->ref.is_name && meta->version <= transfer->ref.after)))
        status = rdt_error_set(err, RDT_PROTOCOL, "the answer is no later version of the name");
    if (status == RDT_OK)
        status = layout_from_wire(meta->tensors, &transfer->source, err);
    if (status == RDT_OK && transfer->target) /* before anything of an early start is believed */
        status = layout_same_shape(transfer->source, transfer->target->layout, err);
    if (status == RDT_MISMATCH)
        return status;
    if (status == RDT_OK && !transfer->early)
        status = layout_packed(transfer->source, &transfer->packed, &transfer->stream_bytes, err);
    if (status == RDT_OK && transfer->stream_bytes != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "its tensors take %llu bytes, not the %llu it says",
                               (unsigned long long)transfer->stream_bytes, (unsigned long long)meta->bytes);
    if (status == RDT_OK && meta->has_inline && meta->inline_data.len != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "%zu bytes came with the answer, not %llu", meta->inline_data.len,
                               (unsigned long long)meta->bytes);
    if (status == RDT_OK && transfer->received && transfer->received->bytes != meta->bytes) /* it is asked for again */
        status = rdt_error_set(err, RDT_PROTOCOL, "the object has %llu bytes, and had %llu before",
                               (unsigned long long)meta->bytes, (unsigned long long)transfer->received->bytes);
    if (status == RDT_OK && meta->metadata.len > RDT_MAX_METADATA_BYTES)
        status = rdt_error_set(err, RDT_PROTOCOL, "its metadata is too large");
    if (status != RDT_OK) {
        rdt_error_prefix(err, "node %s", transfer->record.peer);
        return status;
    }
    if (meta->metadata.len > 0) {
        transfer->metadata = malloc(meta->metadata.len);
        if (!transfer->metadata)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metadata");
        memcpy(transfer->metadata, meta->metadata.data, meta->metadata.len);
        transfer->metadata_bytes = meta->metadata.len;
    }
    memcpy(ref.node, transfer->origin->peer->uuid, sizeof ref.node);
    transfer->ref = ref;
    if (meta->version != 0) /* else it was asked for again, by the ref that the name meant */
        transfer->version = meta->version;
    transfer->record.ref = ref;
    transfer->record.bytes = transfer->stream_bytes;
    transfer->contiguous = meta->contiguous;
    if (!transfer->whole && pieces_read_places(transfer, meta, err) != RDT_OK)
        return err->status;
    text_copy(transfer->preferred, sizeof transfer->preferred, meta->transport);
    text_copy(transfer->memory, sizeof transfer->memory, meta->memory);
    text_copy(transfer->producer, sizeof transfer->producer, meta->producer);
    transfer->have_meta = true;
    return RDT_OK;
}

/* Which path, by what is known: before the answer that is less. soon_p: as if what is being rebuilt stood already, and only to know. */
static enum rdt_status choose_of(struct transfer *transfer, bool has_inline, struct path_decision *soon_p,
                                 struct rdt_error *err)
{
    struct path_offer offers[PATH_MAX_CANDIDATES];
    char why[PATH_MAX_CANDIDATES][192];
    bool nothing = transfer->have_meta && transfer->stream_bytes == 0; /* then no transport need move it */
    struct path_query query = {.has_inline = has_inline,
                               .source_memory = transfer->memory,
                               .target_memory = transfer_target_memory(transfer),
                               .source_contiguous = transfer->contiguous,
                               .offers = offers,
                               .mode = transfer->mode,
                               .transport = nothing ? "" : transfer->wish_transport,
                               .least = transfer->wish_least,
                               .preferred = transfer->preferred,
                               .has_target = transfer->target != NULL};

    list_for_each (node, &transfer->peer->transports) {
        struct peer_transport *pt = list_entry(node, struct peer_transport, link);
        if (query.n_offers == PATH_MAX_CANDIDATES)
            break;
        peer_transport_offer_to_path(pt, transfer->memory, query.target_memory, &offers[query.n_offers]);
        offers[query.n_offers++].connected |= soon_p && peer_transport_is_coming(pt);
    }
    list_for_each (transport_node, plugins_transports(transfer->transfers->plugins)) {
        struct transport *transport = list_entry(transport_node, struct transport, link);
        struct path_offer *offer = &offers[query.n_offers];
        if (query.n_offers == PATH_MAX_CANDIDATES || !transport_is_grouped(transport) || !transfer->have_meta)
            continue; /* before the answer it is not known whose object it is */
        transfer_group_offer(transfer, transport, offer, why[query.n_offers++]);
        if (soon_p && !offer->connected && !offer->group_why_not && !offer->here_why_not)
            offer->connected = offer->two_sided = true;
    }
    return soon_p ? path_choose(&query, soon_p, err) : record_decide(&transfer->record, &query, err);
}

enum rdt_status transfer_in_choose(struct transfer *transfer, bool has_inline, struct rdt_error *err)
{
    return choose_of(transfer, has_inline, NULL, err);
}

/* There is no path only because a connection is being rebuilt. */
static bool path_is_coming(struct transfer *transfer)
{
    struct path_decision soon = {0};

    if (choose_of(transfer, false, &soon, NULL) != RDT_OK)
        return false;
    text_copy(transfer->record.path, sizeof transfer->record.path, soon.candidates[soon.chosen].name);
    return true;
}

/* Counted for each transfer, and told once for each peer: a slower way may be for good, or until a connection stands again. */
static void note_fall_back(struct transfer *transfer, const struct path_candidate *chosen, const struct path_candidate *better)
{
    struct peer_work *work = transfer->peer;
    char what[sizeof work->fell_back_to];

    if (transfer->fell_back)
        return;
    transfer->fell_back = true;
    work->fell_back++;
    transfer->transfers->fell_back++;
    (void)snprintf(what, sizeof what, "%s instead of %s", chosen->name, better->name);
    if (strcmp(what, work->fell_back_to) != 0)
        log_info("node %s: objects come by %s: %s", work->peer->name, what, better->reason);
    (void)snprintf(work->fell_back_to, sizeof work->fell_back_to, "%s", what);
}

/* A piece's ends: each is the memory itself, or goes through host memory. */
static void take_staging(struct transfer *transfer, const struct path_candidate *chosen)
{
    bool from_device = strcmp(transfer->memory, "host") != 0, to_device = strcmp(transfer_target_memory(transfer), "host") != 0;

    transfer->staged_here = chosen->staged_target;
    transfer->staged_there = chosen->staged_source;
    transfer->single = (to_device && !transfer->staged_here) || (from_device && !transfer->staged_there);
    (void)snprintf(transfer->record.path, sizeof transfer->record.path, "%.56s%s", chosen->name,
                   transfer->staged_here || transfer->staged_there ? "/staged" : "");
    text_copy(transfer->record.from, sizeof transfer->record.from, transfer->memory);
    text_copy(transfer->record.to, sizeof transfer->record.to, transfer_target_memory(transfer));
}

static void take_path(struct transfer *transfer)
{
    const struct path_candidate *chosen = record_chosen(&transfer->record);
    const struct path_decision *decision = transfer->record.decision;

    if (decision->passed_over >= 0)
        note_fall_back(transfer, chosen, &decision->candidates[decision->passed_over]);

    memcpy(transfer->record.path, chosen->name, sizeof chosen->name);
    transfer->is_inline = chosen->kind == PATH_INLINE;
    transfer->one_sided = chosen->one_sided;
    if (transfer->whole)
        take_staging(transfer, chosen);
    if (!transfer->is_inline) {
        transfer->via = peer_transport_find(transfer->peer, chosen->name);
        if (!transfer->via) /* chosen a moment ago, and its side has been made */
            transfer->via = transfer_group_side(
                transfer, transfer_group_of(transfer, plugins_transport(transfer->transfers->plugins, chosen->name), NULL));
        list_append(&transfer->via->users_in, &transfer->by_via);
    }
}

/* Nobody reserves in an early start: what receives and scatters write to must be mapped all the same. */
static bool map_targets(const struct target *target)
{
    for (uint32_t i = 0; i < target->n; i++)
        if (!region_addr(target->uses[i].region, NULL))
            return false; /* the ordinary way says why */
    return true;
}

/* The reader knows what it will get: where a two-sided transport is connected, the receives can stand before the question, and the
 * owner need not wait for a second message. */
void transfer_in_early(struct transfer *transfer)
{
    const struct path_candidate *chosen;
    struct rdt_error err = {0};

    (void)snprintf(transfer->memory, sizeof transfer->memory, "host");
    if (layout_packed(transfer->target->layout, &transfer->packed, &transfer->stream_bytes, &err) != RDT_OK)
        return;
    if (transfer->stream_bytes > transfer->transfers->options->inline_max_bytes &&
        transfer_in_choose(transfer, false, &err) == RDT_OK) {
        const struct transport *transport;
        chosen = record_chosen(&transfer->record);
        transport = plugins_transport(transfer->transfers->plugins, chosen->name);
        /* without cancel a plain "no such object" would cost the connection */
        if (chosen->kind == PATH_TRANSPORT && !chosen->one_sided && transport && !transport->ops.register_memory &&
            transport->ops.cancel && map_targets(transfer->target) &&
            !order_wanted(transfer, peer_transport_find(transfer->peer, chosen->name))) {
            take_path(transfer);
            if (transfer_plan(transfer, &err) == RDT_OK && transfer_staging_is_little(transfer) &&
                transfer_reserve_staging(transfer, NULL, &err) == RDT_OK) {
                transfer->early = true;
                transfer_in_move(transfer);
                return;
            }
            free(transfer->plan);
            transfer->plan = NULL;
            list_remove(&transfer->by_via);
            transfer->via = NULL;
        }
    }
    free(transfer->packed);
    transfer->packed = NULL;
    transfer->stream_bytes = 0;
}

static void take_inline(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct target *target = transfer->target;
    struct rdt_error err = {0};

    if (!target) {
        transfer->inline_data = malloc(meta->inline_data.len ? meta->inline_data.len : 1);
        if (!transfer->inline_data) {
            transfer_fail(transfer, RDT_NO_MEMORY, "no memory for the bytes");
            return;
        }
        if (meta->inline_data.len)
            memcpy(transfer->inline_data, meta->inline_data.data, meta->inline_data.len);
    }
    for (uint32_t i = 0; target && i < target->layout->count; i++) {
        uint64_t bytes = layout_bytes(target->layout, i);
        uint8_t *base;
        if (bytes == 0)
            continue;
        base = region_addr(target->uses[target->layout->region[i]].region, &err);
        if (!base) {
            transfer_fail_err(transfer, &err);
            return;
        }
        memcpy(base + target->layout->offset[i], meta->inline_data.data + transfer->packed->offset[i], bytes);
    }
    if (target_check(target, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.bytes_done = meta->inline_data.len;
    transfer->transfers->bytes_in += meta->inline_data.len;
    transfer->peer->bytes_in += meta->inline_data.len;
    transfer_deliver_received(transfer);
    transfer_end(transfer);
}

void transfer_in_find_path(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    if (transfer->sm.state != TRANSFER_RESERVE)
        transfer_set_state(transfer, TRANSFER_RESERVE);
    if (pieces_needed(transfer)) {
        pieces_begin(transfer);
        return;
    }
    status = transfer_in_choose(transfer, meta && meta->has_inline, &err);
    if (status == RDT_NO_PATH && path_is_coming(transfer)) {
        transfer_in_wait(transfer);
        return;
    }
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    take_path(transfer);
    if (transfer->is_inline)
        take_inline(transfer, meta);
    else if (!reservation_wait(transfer, go_on))
        go_on(transfer);
}

void transfer_in_connected(struct transfer *transfer, const struct peer_transport *pt)
{
    if (transfer->sm.state != TRANSFER_RESERVE || transfer->failed == RDT_OK || (transfer->via && transfer->via != pt))
        return;
    transfer->failed = RDT_OK;
    deadline_unset(transfer->transfers->deadlines, &transfer->stall);
    if (transfer->via)
        transfer_in_move(transfer);
    else
        transfer_in_find_path(transfer, NULL);
}

static void take_answer(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    if (meta->status != RDT_OK) {
        (void)wire_error(meta->status, meta->sys_errno, meta->message, &err);
        transfer->have_meta = true;
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.began_ns = uv_hrtime();
    if (meta->redirect_node.len > 0) {
        transfer_copy_redirected(transfer, meta);
        return;
    }
    status = transfer_in_read_meta(transfer, meta, &err);
    if (status == RDT_OK && transfer->meta_only) {
        (void)snprintf(transfer->record.path, sizeof transfer->record.path, "metadata");
        transfer_deliver_meta(transfer);
        transfer_end(transfer);
        return;
    }
    if (status == RDT_OK && transfer->early) {
        transfer->record.state = sm_name(&transfer->sm);
        if (meta->started)
            transfer_in_started(transfer);
        else
            transfer_in_choose_again(transfer);
        return;
    }
    if (status == RDT_OK && transfer->part) {
        if (transfer_part_answered(transfer, meta))
            return;
    } else if (status == RDT_OK && !meta->has_inline && transfer_copy_answered(transfer, meta)) {
        return;
    }
    if (status == RDT_OK)
        transfer_in_find_path(transfer, meta);
    else
        transfer_fail_err(transfer, &err);
}

void transfer_in_on_meta(struct peer_work *work, const Rdt__Pb__PullMeta *meta)
{
    struct transfer *transfer = find(work, meta->transfer), *next;
    uint64_t id;

    if (!transfer || (transfer->sm.state != TRANSFER_ASKED && transfer->sm.state != TRANSFER_MOVE) || transfer->have_meta) {
        if (meta->kept && meta->ref && !replica_find(&work->transfers->replicas, work->peer->uuid, meta->ref->generation))
            replica_decline(work, meta->ref->generation);
        return; /* its reader has left */
    }
    id = question_close(transfer);
    take_answer(transfer, meta);
    next = id ? map_get_u64(&work->transfers->by_id, id) : NULL;
    if (next)
        on_turn(&next->turn);
}

void transfer_in_on_parked(struct peer_work *work, const Rdt__Pb__PullParked *parked)
{
    struct transfer *transfer = find(work, parked->transfer);

    if (transfer)
        reservation_leave(transfer); /* the others need not wait for a put */
}

/* ---- memory for it ---- */

static void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    transfer->n_ops--;
    if (!transfer->target && !transfer->received)
        transfer->received = region;
    if (transfer->sm.state == TRANSFER_ABORT) {
        transfer_in_settle(transfer);
    } else if (transfer->rewind) {
        transfer_in_rewound(transfer);
    } else if (err) {
        transfer_fail_err(transfer, err);
    } else {
        go_on(transfer);
    }
}

/* One step of reserving at a time, until all is there: then the bytes may come. */
static void go_on(struct transfer *transfer)
{
    struct target *target = transfer->target;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;
    void *handle;

    if (!target && !transfer->received)
        status = transfer_reserve(transfer, on_ready, &err);
    if (status == RDT_OK && transfer->replica && !transfer->replica->placed)
        status = replica_place(transfer->replica, transfer, &err);
    for (uint32_t i = 0; status == RDT_OK && i < (target ? target->n : 1); i++) {
        struct region *region = target ? target->uses[i].region : transfer->received;
        if (region && !region_addr(region, &err))
            status = err.status;
        else if (region && !transfer->staged_here)
            status = region_register(region, transfer->via->transport, &handle, on_ready, transfer, &err);
    }
    if (status == RDT_OK)
        status = transfer_plan(transfer, &err);
    if (status == RDT_OK)
        status = transfer_reserve_staging(transfer, on_ready, &err);
    if (status == RDT_OK)
        status = transfer_reserve_stage(transfer, on_ready, &err);
    if (status == RDT_AGAIN)
        transfer->n_ops++; /* the pool works for it */
    else if (status != RDT_OK)
        transfer_fail_err(transfer, &err);
    else
        transfer_in_move(transfer);
}

/* ---- the end ---- */

void transfer_in_abort(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    bool moving = transfer->sm.state == TRANSFER_MOVE;

    transfer_set_state(transfer, TRANSFER_ABORT);
    if (!transfer->one_sided || transfer->n_ops == 0)
        transfer_in_send_abort(transfer);
    if (transfer->pieces)
        pieces_abort(transfer);
    if (transfer->n_ops == 0) {
        transfer_end(transfer);
        return;
    }
    if (!moving || transfer->pieces)
        return;
    transfer_in_cancel_ops(transfer);
    (void)deadline_set(transfers->deadlines, &transfer->stall, (int64_t)transfers->options->quiesce_grace_ns);
}

void transfer_in_settle(struct transfer *transfer)
{
    if (transfer->n_ops > 0)
        return;
    if (transfer->one_sided)
        transfer_in_send_abort(transfer);
    transfer_end(transfer);
}

void transfer_in_on_end(struct peer_work *work, const Rdt__Pb__PullEnd *end)
{
    struct transfer *transfer = find(work, end->transfer);
    struct rdt_error err;

    if (!transfer || transfer->sm.state == TRANSFER_ABORT)
        return;
    (void)wire_error(end->status, 0, end->message, &err);
    transfer_fail_err(transfer, &err);
}
