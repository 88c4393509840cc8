#include "daemon/transfers/keeper.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/transfers/transfer_impl.h"

void keepers_init(struct keepers *keepers, struct transfers *transfers)
{
    *keepers = (struct keepers){.transfers = transfers};
    map_init(&keepers->by_generation);
}

static void kept_forget(struct kept *kept)
{
    map_remove_u64(&kept->keepers->by_generation, kept->generation);
    while (!list_empty(&kept->waiters)) {
        struct kept_waiter *waiter = container_of(list_first(&kept->waiters), struct kept_waiter, link);
        list_remove(&waiter->link);
        waiter->on_settled(waiter);
    }
    free(kept);
}

/* ---- who receives from whom ---- */

static void set_source(struct keeper *keeper, struct keeper *source, bool direct)
{
    bool was_direct = !keeper->source && !keeper->whole;

    if (keeper->source)
        keeper->source->children--;
    keeper->kept->direct -= was_direct;
    keeper->source = source;
    keeper->whole = !source && !direct;
    if (source)
        source->children++;
    keeper->kept->direct += direct;
}

static void keeper_free(struct keeper *keeper)
{
    struct kept *kept = keeper->kept;

    deadline_unset(kept->keepers->transfers->deadlines, &keeper->over);
    list_remove(&keeper->link);
    list_remove(&keeper->by_node);
    free(keeper);
    if (list_empty(&kept->nodes) && list_empty(&kept->lost))
        kept_forget(kept);
}

/* It is none any more for those that receive. */
static void leave_sources(struct keeper *keeper)
{
    struct kept *kept = keeper->kept;

    list_for_each (node, &kept->nodes) {
        struct keeper *other = container_of(node, struct keeper, link);
        if (other->source == keeper)
            set_source(other, NULL, true); /* it will come back here */
    }
    set_source(keeper, NULL, false);
}

static void keeper_remove(struct keeper *keeper)
{
    leave_sources(keeper);
    keeper_free(keeper);
}

unsigned keeper_depth(const struct keeper *keeper)
{
    unsigned depth = 0;

    for (; keeper->source; keeper = keeper->source)
        depth++;
    return depth;
}

void keeper_serve_here(struct keeper *keeper)
{
    set_source(keeper, NULL, true);
}

void keepers_fini(struct keepers *keepers)
{
    list_for_each (node, &keepers->transfers->works) {
        struct peer_work *work = container_of(node, struct peer_work, link);
        keepers_link_up(work);
        while (!list_empty(&work->keeps))
            keeper_remove(container_of(list_first(&work->keeps), struct keeper, by_node));
    }
    map_fini(&keepers->by_generation);
}

/* ---- being noted ---- */

static struct keeper *find(const struct kept *kept, const struct peer_work *work)
{
    list_for_each (node, &kept->nodes) {
        struct keeper *keeper = container_of(node, struct keeper, link);
        if (keeper->work == work)
            return keeper;
    }
    return NULL;
}

static struct kept *kept_get(struct keepers *keepers, const struct object *object)
{
    struct kept *kept = map_get_u64(&keepers->by_generation, object->generation);

    if (kept)
        return kept;
    kept = calloc(1, sizeof *kept);
    if (!kept)
        return NULL;
    kept->generation = object->generation;
    kept->keepers = keepers;
    kept->bytes = object->bytes;
    list_init(&kept->nodes);
    list_init(&kept->lost);
    list_init(&kept->waiters);
    if (!map_put_u64(&keepers->by_generation, kept->generation, kept)) {
        free(kept);
        return NULL;
    }
    return kept;
}

struct keeper *keeper_add(struct keepers *keepers, struct peer_work *work, const struct object *object, bool *is_new_p)
{
    struct kept *kept = kept_get(keepers, object);
    struct keeper *keeper = kept ? find(kept, work) : NULL;

    *is_new_p = !keeper;
    if (!kept || keeper)
        return keeper;
    keeper = calloc(1, sizeof *keeper);
    if (!keeper) {
        if (list_empty(&kept->nodes) && list_empty(&kept->lost))
            kept_forget(kept);
        return NULL;
    }
    keeper->kept = kept;
    keeper->work = work;
    kept->direct++;
    list_append(&kept->nodes, &keeper->link);
    list_append(&work->keeps, &keeper->by_node);
    return keeper;
}

/* ---- fan-out ---- */

/* As far as this node knows: both offer one and the same transport. */
static bool share_transport(struct peer_work *a, struct peer_work *b)
{
    list_for_each (node, &a->transports) {
        const struct peer_transport *one = container_of(node, struct peer_transport, link);
        const struct peer_transport *other = peer_transport_find(b, one->transport->name);
        if (other && one->remote_known && other->remote_known && !one->remote_why_not[0] && !other->remote_why_not[0] &&
            strcmp(one->remote_version, other->remote_version) == 0)
            return true;
    }
    return false;
}

struct peer_work *keeper_redirect(struct keeper *keeper)
{
    struct kept *kept = keeper->kept;
    uint64_t chunk_bytes = kept->keepers->transfers->options->chunk_bytes;
    uint64_t least = (uint64_t)(kept->direct - 1) * kept->bytes; /* here; itself is counted already */
    struct keeper *best = NULL;

    assert(!keeper->source && keeper->children == 0);
    list_for_each (node, &kept->nodes) {
        struct keeper *other = container_of(node, struct keeper, link);
        uint64_t cost;
        if (other == keeper || other->work->peer->state != PEER_UP || !other->work->peer->address[0] ||
            !share_transport(other->work, keeper->work))
            continue;
        cost = (uint64_t)other->children * kept->bytes;
        if (!other->whole)
            cost += (uint64_t)(keeper_depth(other) + 1) * chunk_bytes;
        if (cost < least) {
            least = cost;
            best = other;
        }
    }
    if (!best)
        return NULL;
    set_source(keeper, best, false);
    kept->keepers->redirected++;
    return best->work;
}

/* ---- word ---- */

static void tell(struct peer_work *work, uint64_t *valid, size_t n_valid, uint64_t *invalid, size_t n_invalid)
{
    Rdt__Pb__Copies copies = RDT__PB__COPIES__INIT;

    copies.valid = valid;
    copies.n_valid = n_valid;
    copies.invalid = invalid;
    copies.n_invalid = n_invalid;
    if (n_valid + n_invalid > 0)
        (void)work_send(work, RDT_PEER_COPIES, &copies.base, NULL); /* link down: it is LOST, or about to be */
}

/* false: the object is gone. */
static bool note_whole(struct keepers *keepers, struct peer_work *work, uint64_t generation)
{
    const struct object *object = index_get(&keepers->transfers->objects->by_generation, generation);
    struct keeper *keeper;
    bool is_new;

    if (!object || object->state != OBJECT_LIVE || !object->snapshot)
        return false;
    keeper = keeper_add(keepers, work, object, &is_new);
    if (keeper)
        set_source(keeper, NULL, false);
    return keeper;
}

void keepers_on_news(struct keepers *keepers, struct peer_work *work, const Rdt__Pb__Copies *news)
{
    uint64_t *lists = malloc((2 * news->n_whole + 1) * sizeof *lists);
    size_t n_valid = 0, n_invalid = 0;

    for (size_t i = 0; i < news->n_dropped + news->n_invalidated; i++) {
        uint64_t generation = i < news->n_dropped ? news->dropped[i] : news->invalidated[i - news->n_dropped];
        struct kept *kept = map_get_u64(&keepers->by_generation, generation);
        struct keeper *keeper = kept ? find(kept, work) : NULL;
        if (keeper)
            keeper_remove(keeper);
    }
    for (size_t i = 0; lists && i < news->n_whole; i++) {
        if (note_whole(keepers, work, news->whole[i]))
            lists[n_valid++] = news->whole[i];
        else
            lists[news->n_whole + n_invalid++] = news->whole[i];
    }
    if (lists) /* else they will ask */
        tell(work, lists, n_valid, lists + news->n_whole, n_invalid);
    free(lists);
}

static void on_over(struct deadline *deadline)
{
    keeper_free(container_of(deadline, struct keeper, over));
}

static void keeper_lose(struct keeper *keeper, int64_t left_ns)
{
    struct kept *kept = keeper->kept;

    leave_sources(keeper);
    list_remove(&keeper->link);
    list_remove(&keeper->by_node);
    list_append(&kept->lost, &keeper->link);
    list_append(&keeper->work->kept_before, &keeper->by_node);
    keeper->over.on_passed = on_over;
    (void)deadline_set(kept->keepers->transfers->deadlines, &keeper->over, left_ns); /* without memory: until its link is up */
}

void keepers_link_down(struct peer_work *work)
{
    const struct transfers *transfers = work->transfers;
    uint64_t now = uv_hrtime(), until_ns = work->peer->answered_ns + transfers->options->peer_timeout_ns;
    bool serves = work->peer->answered_ns != 0 && now < until_ns && !transfers->closing;

    while (!list_empty(&work->keeps)) {
        struct keeper *keeper = container_of(list_first(&work->keeps), struct keeper, by_node);
        if (serves)
            keeper_lose(keeper, (int64_t)(until_ns - now));
        else
            keeper_remove(keeper);
    }
}

void keepers_link_up(struct peer_work *work)
{
    while (!list_empty(&work->kept_before))
        keeper_free(container_of(list_first(&work->kept_before), struct keeper, by_node));
}

void keepers_object_ended(struct keepers *keepers, const struct object *object)
{
    uint64_t generation = object->generation;
    struct kept *kept = generation ? map_get_u64(&keepers->by_generation, generation) : NULL;

    if (!kept)
        return;
    kept->ended = true;
    list_for_each_safe (node, &kept->nodes)
        tell(container_of(node, struct keeper, link)->work, NULL, 0, &generation, 1);
}

bool keepers_wait(struct keepers *keepers, uint64_t generation, struct kept_waiter *waiter)
{
    struct kept *kept = map_get_u64(&keepers->by_generation, generation);

    if (!kept || !kept->ended)
        return false;
    list_append(&kept->waiters, &waiter->link);
    return true;
}

const struct peer *keeper_peer(const struct keeper *keeper)
{
    return keeper->work->peer;
}

const struct keeper *keepers_next(const struct keepers *keepers, uint64_t generation, struct list **cursor)
{
    struct kept *kept = map_get_u64(&keepers->by_generation, generation);
    struct list *next;

    if (!kept)
        return NULL;
    next = *cursor ? (*cursor)->next : kept->nodes.next;
    if (next == &kept->nodes)
        return NULL;
    *cursor = next;
    return container_of(next, struct keeper, link);
}
