/* SPDX-License-Identifier: Apache-2.0 */
/* See replica_directory.h. */
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/objects/object_sum.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica_directory.h"

void replica_directory_init(struct replica_directory *directory, struct transfers *transfers)
{
    *directory = (struct replica_directory){.transfers = transfers};
    map_init(&directory->by_generation);
}

static void replicated_object_forget(struct replicated_object *replicated)
{
    map_remove_u64(&replicated->directory->by_generation, replicated->generation);
    while (!list_empty(&replicated->waiters)) {
        struct replica_directory_waiter *waiter =
            container_of(list_first(&replicated->waiters), struct replica_directory_waiter, link);
        list_remove(&waiter->link);
        waiter->on_settled(waiter);
    }
    free(replicated);
}

static void replica_entry_free(struct replica_entry *entry)
{
    struct replicated_object *replicated = entry->replicated;

    deadline_unset(replicated->directory->transfers->deadlines, &entry->over);
    if (entry->place.fanout)
        fanout_leave(&entry->place);
    list_remove(&entry->link);
    list_remove(&entry->by_node);
    free(entry);
    if (list_empty(&replicated->nodes) && list_empty(&replicated->lost))
        replicated_object_forget(replicated);
}

/* ---- checksums ---- */

/* A node waits for a checksum that is being computed, even if it has no entry any more. */
struct sum_due {
    struct object_sum_waiter waiter;
    struct list link; /* in remote->entries.sums_due or .sums_ending */
    struct remote *remote;
    uint64_t generation;
};

static void sum_due_free(struct sum_due *due)
{
    list_remove(&due->waiter.link);
    list_remove(&due->link);
    free(due);
}

static void on_sum(struct object_sum_waiter *waiter, uint64_t sum, const struct rdt_error *err)
{
    struct sum_due *due = container_of(waiter, struct sum_due, waiter);
    Rdt__Pb__Replicas message = RDT__PB__REPLICAS__INIT;

    (void)err; /* without a checksum the node keeps its replica unchecked */
    message.summed = &due->generation;
    message.sums = &sum;
    message.n_summed = message.n_sums = 1;
    (void)remote_send(due->remote, RDT_PEER_REPLICAS, &message.base, NULL);
    sum_due_free(due);
}

void replica_directory_sum(struct remote *remote, struct object *object, uint64_t *sum_p, bool *follows_p)
{
    struct sum_due *due = object->sum == 0 ? calloc(1, sizeof *due) : NULL;

    *follows_p = false;
    if (due) {
        due->waiter.on_sum = on_sum;
        due->remote = remote;
        due->generation = object->generation;
        list_init(&due->waiter.link);
        list_append(&remote->entries.sums_due, &due->link);
        *follows_p = object_sum(object, &due->waiter, NULL) == RDT_AGAIN;
        if (!*follows_p)
            sum_due_free(due);
    }
    *sum_p = object->sum;
}

unsigned replica_entry_depth(const struct replica_entry *entry)
{
    return entry->place.depth;
}

void replica_entry_serve_here(struct replica_entry *entry)
{
    if (entry->place.whole) { /* otherwise it is in `receiving` or `judged` already */
        list_remove(&entry->by_node);
        list_append(&entry->remote->entries.receiving, &entry->by_node);
    }
    fanout_serve_here(&entry->place);
}

void replica_directory_fini(struct replica_directory *directory)
{
    list_each (struct remote, remote, &directory->transfers->remotes, link) {
        list_splice(&remote->entries.ending, &remote->entries.judged);
        list_splice(&remote->entries.ending, &remote->entries.receiving);
        list_splice(&remote->entries.ending, &remote->entries.whole);
        list_splice(&remote->entries.ending, &remote->entries.lost);
        list_drain (struct replica_entry, entry, &remote->entries.ending, by_node)
            replica_entry_free(entry);
    }
    map_fini(&directory->by_generation);
}

/* ---- adding entries ---- */

static struct replica_entry *find(const struct replicated_object *replicated, const struct remote *remote)
{
    list_each (struct replica_entry, entry, &replicated->nodes, link)
        if (entry->remote == remote && entry->epoch == remote->peer->epoch)
            return entry;
    return NULL;
}

static struct replicated_object *replicated_object_get(struct replica_directory *directory, const struct object *object)
{
    struct replicated_object *replicated = map_get_u64(&directory->by_generation, object->generation);

    if (replicated)
        return replicated;
    replicated = calloc(1, sizeof *replicated);
    if (!replicated)
        return NULL;
    replicated->generation = object->generation;
    replicated->directory = directory;
    fanout_init(&replicated->fanout, object->bytes,
                fanout_chunk_bytes(object->bytes, directory->transfers->options->chunk_bytes));
    list_init(&replicated->nodes);
    list_init(&replicated->lost);
    list_init(&replicated->waiters);
    if (!map_put_u64(&directory->by_generation, replicated->generation, replicated)) {
        free(replicated);
        return NULL;
    }
    return replicated;
}

struct replica_entry *replica_entry_add(struct replica_directory *directory, struct remote *remote, const struct object *object,
                                        bool *is_new_p)
{
    struct replicated_object *replicated = replicated_object_get(directory, object);
    struct replica_entry *entry = replicated ? find(replicated, remote) : NULL;

    *is_new_p = !entry;
    if (!replicated || entry)
        return entry;
    entry = calloc(1, sizeof *entry);
    if (!entry) {
        if (list_empty(&replicated->nodes) && list_empty(&replicated->lost))
            replicated_object_forget(replicated);
        return NULL;
    }
    entry->replicated = replicated;
    entry->remote = remote;
    entry->epoch = remote->peer->epoch;
    fanout_join(&replicated->fanout, &entry->place, remote->slow_until_ns > uv_hrtime());
    list_append(&replicated->nodes, &entry->link);
    list_append(&remote->entries.receiving, &entry->by_node);
    return entry;
}

uint64_t replica_entry_noted(struct replica_entry *entry)
{
    return entry->note = ++entry->remote->entries.notes;
}

/* ---- fan-out ---- */

/* Whether both nodes offer the same transport, as far as this node knows. */
static bool share_transport(struct remote *a, struct remote *b)
{
    list_each (const struct peer_transport, one, &a->transports, link) {
        const struct peer_transport *other = peer_transport_find(b, one->transport->name);
        if (other && one->remote_known && other->remote_known && !one->remote_why_not[0] && !other->remote_why_not[0] &&
            strcmp(one->remote_version, other->remote_version) == 0)
            return true;
    }
    return false;
}

static bool can_read(const struct fanout_place *reader, const struct fanout_place *source, void *requester)
{
    const struct replica_entry *entry = container_of(source, struct replica_entry, place);
    struct remote *here = container_of(reader, struct replica_entry, place)->remote;
    struct remote *there = entry->remote;

    return there->peer->state == PEER_UP && entry->epoch == there->peer->epoch && there->peer->address[0] &&
           (share_transport(there, here) ||
            transfer_group_joins(here->transfers, requester, there->peer->uuid, here->peer->uuid));
}

/* The reader will send PULL again, and then gets another source. */
static void ask_again(struct fanout_place *place, void *arg)
{
    const struct replica_entry *entry = container_of(place, struct replica_entry, place);
    uint64_t generation = entry->replicated->generation;
    Rdt__Pb__AskAgainWhy why = (Rdt__Pb__AskAgainWhy)place->asked;
    Rdt__Pb__Replicas message = RDT__PB__REPLICAS__INIT;

    message.ask_again = &generation;
    message.n_ask_again = 1;
    message.ask_again_why = &why;
    message.n_ask_again_why = 1;
    (void)remote_send(entry->remote, RDT_PEER_REPLICAS, &message.base, NULL);
}

struct remote *replica_entry_redirect(struct replica_entry *entry, const struct owner *requester, const uint8_t *left)
{
    struct replica_directory *directory = entry->replicated->directory;
    struct fanout_place *source = entry->place.source;

    if (left && source && memcmp(container_of(source, struct replica_entry, place)->remote->peer->uuid, left, 16) != 0)
        entry->place.asked = FANOUT_ASKED_SOURCE; /* It had not begun at this source. */
    if (left)
        fanout_left(&entry->place, ask_again, NULL);
    source = fanout_choose(&entry->place, can_read, ask_again, (void *)requester);
    if (!source)
        return NULL;
    directory->transfers->counts->redirected++;
    directory->transfers->counts->redirected_again += left != NULL;
    return container_of(source, struct replica_entry, place)->remote;
}

/* ---- messages ---- */

static bool judge_some(struct slice *slice, uint64_t until_ns)
{
    struct remote_entries *entries = container_of(slice, struct remote_entries, judge);

    list_drain (struct replica_entry, entry, &entries->judged, by_node) {
        list_remove(&entry->by_node);
        list_append(&entries->receiving, &entry->by_node);
        fanout_demote(&entry->place, entries->verdict, ask_again, NULL);
        if (uv_hrtime() >= until_ns && !list_empty(&entries->judged))
            return false;
    }
    entries->verdict = FANOUT_FAIR;
    return true;
}

/* The verdict is about the reader's node, so it counts for all that the node receives of this one's objects. */
static void demote(struct replica_entry *entry, enum fanout_verdict verdict)
{
    struct remote *reader = entry->remote;

    if (verdict == FANOUT_SLOW && entry->place.pace != FANOUT_SLOW) {
        log_info("node %s takes bytes slowly: for %u s only slow nodes read from it", reader->peer->name,
                 (unsigned)(FANOUT_SLOW_NS / 1000000000));
        entry->replicated->directory->transfers->counts->slow_readers++;
        reader->slow_until_ns = uv_hrtime() + FANOUT_SLOW_NS;
    } else if (verdict == FANOUT_LAGS) {
        log_debug("obj %016llx: node %s lags, so no other node reads from it",
                  (unsigned long long)entry->replicated->generation, reader->peer->name);
    }
    fanout_demote(&entry->place, verdict, ask_again, NULL);
    if (reader->entries.verdict < verdict)
        reader->entries.verdict = verdict;
    list_splice(&reader->entries.judged, &reader->entries.receiving);
    reader->entries.judge.run = judge_some;
    slice_begin(remote_slices(reader), &reader->entries.judge);
}

/* The entry of a node that receives from the source (NULL: this node); NULL: it has another source, or is done. */
static struct replica_entry *find_reader(struct replica_directory *directory, uint64_t generation, const struct remote *reader,
                                         const struct remote *source)
{
    struct replicated_object *replicated = map_get_u64(&directory->by_generation, generation);
    struct replica_entry *entry = replicated ? find(replicated, reader) : NULL;
    const struct fanout_place *from = entry ? entry->place.source : NULL;

    if (!entry || entry->place.whole || (from ? container_of(from, struct replica_entry, place)->remote : NULL) != source)
        return NULL;
    return entry;
}

void replica_directory_reader_took(struct replica_directory *directory, uint64_t generation, struct remote *reader,
                                   uint64_t sent, enum fanout_verdict verdict)
{
    struct replica_entry *entry = find_reader(directory, generation, reader, NULL);

    if (entry && verdict != FANOUT_FAIR)
        demote(entry, verdict);
    else if (entry)
        fanout_compare(&entry->place, sent, ask_again, NULL);
}

static void send_replicas(struct remote *remote, uint64_t *valid, size_t n_valid, uint64_t *invalid, size_t n_invalid)
{
    Rdt__Pb__Replicas replicas = RDT__PB__REPLICAS__INIT;
    uint64_t forced[REPLICAS_MAX_GENERATIONS];

    for (size_t i = 0; i < n_invalid; i++) {
        const struct object *object = index_get(&remote->transfers->objects->by_generation, invalid[i]);
        if (object && object->access.forced)
            forced[replicas.n_forced++] = invalid[i];
    }
    replicas.forced = forced;
    replicas.valid = valid;
    replicas.n_valid = n_valid;
    replicas.invalid = invalid;
    replicas.n_invalid = n_invalid;
    /* Link down: the entry is LOST, or will be at once. */
    if (n_valid + n_invalid > 0)
        (void)remote_send(remote, RDT_PEER_REPLICAS, &replicas.base, NULL);
}

/* The node has a complete replica. Returns false if the object is gone. */
static bool note_whole(struct replica_directory *directory, struct remote *remote, uint64_t generation)
{
    const struct object *object = index_get(&directory->transfers->objects->by_generation, generation);
    struct replica_entry *entry;
    bool is_new;

    if (!object || object->state != OBJECT_LIVE || !object_is_constant(object))
        return false;
    entry = replica_entry_add(directory, remote, object, &is_new);
    if (!entry)
        return false;
    fanout_set_whole(&entry->place);
    list_remove(&entry->by_node);
    list_append(&remote->entries.whole, &entry->by_node);
    return true;
}

static struct remote *remote_of(const struct transfers *transfers, const ProtobufCBinaryData *uuid)
{
    const struct peer *peer = uuid->len == 16 ? peers_known(transfers->peers, uuid->data) : NULL;

    return peer ? peer->remote : NULL;
}

/* The node has no replica, unless it gets one by an answer that it had not read yet. */
static bool may_get_another(const struct replica_entry *entry, const Rdt__Pb__Replicas *message)
{
    return message->next_note != 0 && entry->note >= message->next_note;
}

void replica_directory_on_message(struct replica_directory *directory, struct remote *remote, const Rdt__Pb__Replicas *message)
{
    uint64_t *lists = malloc((2 * message->n_whole + 1) * sizeof *lists);
    size_t n_valid = 0, n_invalid = 0;

    for (size_t i = 0; i < message->n_dropped + message->n_invalidated; i++) {
        uint64_t generation = i < message->n_dropped ? message->dropped[i] : message->invalidated[i - message->n_dropped];
        struct replicated_object *replicated = map_get_u64(&directory->by_generation, generation);
        struct replica_entry *entry = replicated ? find(replicated, remote) : NULL;
        if (entry && (i >= message->n_dropped || !may_get_another(entry, message)))
            replica_entry_free(entry);
    }
    for (size_t i = 0; i < message->n_slow; i++) {
        struct remote *reader = remote_of(directory->transfers, &message->slow[i]->node);
        struct replica_entry *entry = reader ? find_reader(directory, message->slow[i]->generation, reader, remote) : NULL;
        if (entry)
            demote(entry, message->slow[i]->lags ? FANOUT_LAGS : FANOUT_SLOW);
    }
    for (size_t i = 0; lists && i < message->n_whole; i++) {
        if (note_whole(directory, remote, message->whole[i]))
            lists[n_valid++] = message->whole[i];
        else
            lists[message->n_whole + n_invalid++] = message->whole[i];
    }
    if (lists) /* If there is no memory for the lists, the other node asks. */
        send_replicas(remote, lists, n_valid, lists + message->n_whole, n_invalid);
    free(lists);
}

static void on_over(struct deadline *deadline)
{
    replica_entry_free(container_of(deadline, struct replica_entry, over));
}

static void replica_entry_lose(struct replica_entry *entry, int64_t left_ns)
{
    struct replicated_object *replicated = entry->replicated;

    if (entry->place.fanout)
        fanout_leave(&entry->place);
    list_remove(&entry->link);
    list_remove(&entry->by_node);
    list_append(&replicated->lost, &entry->link);
    list_append(&entry->remote->entries.lost, &entry->by_node);
    entry->over.on_passed = on_over;
    /* Without memory for the deadline, the entry stays LOST until the link is up. */
    (void)deadline_set(replicated->directory->transfers->deadlines, &entry->over, left_ns);
}

/* Of an earlier link: while there is none, the node may serve the replica for some time. Now it has asked, or will. */
static bool end_some(struct slice *slice, uint64_t until_ns)
{
    struct remote_entries *entries = container_of(slice, struct remote_entries, end);
    struct remote *remote = container_of(entries, struct remote, entries);

    list_drain (struct sum_due, due, &entries->sums_ending, link) {
        sum_due_free(due);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    list_drain (struct replica_entry, entry, &entries->ending, by_node) {
        uint64_t now = uv_hrtime();
        if (remote->peer->state != PEER_UP && now < entries->lost_until_ns)
            replica_entry_lose(entry, (int64_t)(entries->lost_until_ns - now));
        else
            replica_entry_free(entry);
        if (now >= until_ns)
            return false;
    }
    return true;
}

static void end_entries(struct remote *remote)
{
    remote->entries.end.run = end_some;
    slice_begin(remote_slices(remote), &remote->entries.end);
}

void replica_directory_link_down(struct remote *remote)
{
    const struct transfers *transfers = remote->transfers;
    uint64_t answered_ns = transfers->closing ? 0 : remote->peer->answered_ns;

    remote->entries.lost_until_ns = answered_ns != 0 ? answered_ns + transfers->options->peer_timeout_ns : 0;
    list_splice(&remote->entries.ending, &remote->entries.judged);
    list_splice(&remote->entries.ending, &remote->entries.receiving);
    list_splice(&remote->entries.ending, &remote->entries.whole);
    list_splice(&remote->entries.sums_ending, &remote->entries.sums_due);
    end_entries(remote);
}

void replica_directory_link_up(struct remote *remote)
{
    list_splice(&remote->entries.ending, &remote->entries.lost);
    end_entries(remote);
}

bool replica_directory_may_forget(const struct remote *remote)
{
    const struct remote_entries *entries = &remote->entries;

    return list_empty(&entries->receiving) && list_empty(&entries->judged) && list_empty(&entries->whole) &&
           list_empty(&entries->lost) && list_empty(&entries->ending) && list_empty(&entries->sums_due) &&
           list_empty(&entries->sums_ending);
}

void replica_directory_object_ended(struct replica_directory *directory, const struct object *object)
{
    uint64_t generation = object->generation;
    struct replicated_object *replicated = generation ? map_get_u64(&directory->by_generation, generation) : NULL;

    if (!replicated)
        return;
    replicated->ended = true;
    list_for_each_safe (node, &replicated->nodes)
        send_replicas(container_of(node, struct replica_entry, link)->remote, NULL, 0, &generation, 1);
}

bool replica_directory_wait(struct replica_directory *directory, uint64_t generation, struct replica_directory_waiter *waiter)
{
    struct replicated_object *replicated = map_get_u64(&directory->by_generation, generation);

    if (!replicated || !replicated->ended)
        return false;
    list_append(&replicated->waiters, &waiter->link);
    return true;
}

const struct peer *replica_entry_peer(const struct replica_entry *entry)
{
    return entry->remote->peer;
}

const struct peer *replica_entry_source(const struct replica_entry *entry)
{
    return entry->place.source ? container_of(entry->place.source, struct replica_entry, place)->remote->peer : NULL;
}

const char *replica_entry_pace(const struct replica_entry *entry)
{
    static const char *const words[] = {[FANOUT_FAIR] = "",
                                        [FANOUT_LAGS] = " (LAGS: nobody reads from it until it is whole)",
                                        [FANOUT_SLOW] = " (SLOW: only slow nodes read from it)"};

    return words[entry->place.pace];
}

const struct replica_entry *replica_directory_next(const struct replica_directory *directory, uint64_t generation,
                                                   struct list **cursor)
{
    struct replicated_object *replicated = map_get_u64(&directory->by_generation, generation);
    struct list *next;

    if (!replicated)
        return NULL;
    next = *cursor ? (*cursor)->next : replicated->nodes.next;
    if (next == &replicated->nodes)
        return NULL;
    *cursor = next;
    return container_of(next, struct replica_entry, link);
}
