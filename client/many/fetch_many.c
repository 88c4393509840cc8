/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_fetch and rdt_fetch_each. Objects are handed out by LOAD_MANY, hundreds of one node in an answer, without a request for
 * each. What is not handed out, and every fetch of a few objects, is started as rdt_fetch_start does.
 *
 *     refs --- LOAD_MANY, some at a time ---> objects
 *                  | AGAIN: asked for again       | anything else
 *                  +------------------------------+------> rdt_fetch_start ---> objects, errors */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/fetch.h"
#include "client/fetched.h"
#include "client/options.h"
#include "client/rdt_many.h"
#include "client/repeat.h"
#include "client/request.h"
#include "client/session/clock.h"
#include "client/session/connection.h"
#include "proto/messages.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"

#define LEAST_REFS 9u    /* fewer of one node, FETCH serves at once */
#define FIRST_REFS 64u   /* in a message, until an answer has shown how many fit */
#define MOST_REFS 256u   /* the most that an answer has */
#define MOST_MESSAGES 4u /* at a time */
#define EACH_NS 1000000  /* a daemon that takes longer for an object is not there */

enum place { TO_ASK, ASKED, HANDED, LEFT }; /* of a ref */

struct fetching { /* of a caller who waits */
    rdt *conn;
    const struct rdt_ref *refs;
    size_t count;
    const struct rdt_fetch_options *options;
    rdt_object **objects; /* [count] */
    uint8_t *places;      /* [count] enum place; NULL: all are LEFT */
    /* [count] by node, so that each message is about one; NULL: all are of one, and asked for in their own order */
    const struct rdt_ref **order;
    struct rdt_node_info node; /* this one */
    bool asks_far;             /* some are on other nodes */
    size_t next;               /* no ref before it in the order is TO_ASK */
    unsigned n_sent;           /* messages without an answer */
    struct list sent;          /* struct asking.link */
    size_t most, fits;         /* refs of the next message; that fitted into an answer that was full, 0: there was none */
    /* A daemon that does not answer for so long is not asked any more (silent_ns: when that will be), so that there is time
     * left for FETCH, which says what is wrong. -1, CLOCK_NEVER: it may take as long as there is time. */
    int64_t patience_ns, silent_ns;
};

struct asking { /* a message, until its answer has come */
    struct pending pending;
    struct list link;
    struct fetching *fetching; /* NULL: the caller has gone, so what comes is let go of */
    struct arena arena;        /* of the message */
    Rdt__Pb__LoadMany message;
    size_t n;
    size_t first; /* of the first one, in the order */
    size_t which[MOST_REFS];
};

/* ---- answers, with the lock ---- */

static void asking_free(struct asking *asking)
{
    if (asking->fetching) {
        asking->fetching->n_sent--;
        list_remove(&asking->link);
    }
    arena_fini(&asking->arena);
    free(asking);
}

/* They are fetched, which finds out what is wrong with them. */
static void leave(struct asking *asking)
{
    for (size_t i = 0; asking->fetching && i < asking->n; i++)
        asking->fetching->places[asking->which[i]] = LEFT;
    if (asking->fetching)
        connection_notify(asking->fetching->conn);
    asking_free(asking);
}

struct handed { /* what an answer has, while it is read */
    const Rdt__Pb__LoadManyReply *reply;
    const uint8_t *data; /* [data_bytes] its inline_data */
    size_t data_bytes;
    struct layout *all;
    struct mapping **mappings; /* [reply->n_regions] a reference each; NULL: it could not be mapped */
    uint32_t object, tensor;   /* the next ones */
    size_t data_at, text_at;
    uint32_t noticed; /* index in reply->mutable_shared */
    bool pickles_trusted;
};

static size_t align(size_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(size_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* Whether the columns belong together. */
static bool is_whole(const struct asking *asking, const struct handed *handed)
{
    const Rdt__Pb__LoadManyReply *reply = handed->reply;
    size_t n = 0, tensors = 0, data = 0, text = 0;

    if (reply->n_status != 0 && reply->n_status != asking->n)
        return false;
    for (size_t i = 0; i < asking->n; i++)
        n += reply->n_status == 0 || reply->status[i] == RDT_OK;
    if (reply->n_count != n || reply->n_inline_bytes != n || reply->n_hold != n || reply->n_generation != n ||
        (reply->n_metadata_bytes != 0 && reply->n_metadata_bytes != n))
        return false;
    for (size_t i = 0; i < n; i++) {
        tensors += reply->count[i];
        data += align(reply->inline_bytes[i]);
        text += reply->n_metadata_bytes ? reply->metadata_bytes[i] : 0;
    }
    return tensors == handed->all->count && data <= handed->data_bytes && text <= reply->metadata.len;
}

/* A release that does not wait for others, for holds of which nobody knows. */
static void let_go(rdt *conn, uint64_t *holds, size_t n)
{
    Rdt__Pb__Release request = RDT__PB__RELEASE__INIT;

    for (size_t i = 0; i < n; i++)
        if (holds[i] != 0)
            holds[request.n_holds++] = holds[i];
    request.holds = holds;
    request.gone_events = conn->memory.n_gones;
    if (request.n_holds > 0)
        (void)connection_release(conn, RDT_MSG_RELEASE, 0, &request.base, NULL);
}

/* Reads the next object of the answer. NULL: it has been let go of. */
static rdt_object *read_object(rdt *conn, const struct rdt_ref *ref, struct handed *handed)
{
    const Rdt__Pb__LoadManyReply *reply = handed->reply;
    uint32_t i = handed->object++;
    uint32_t region = reply->count[i] > 0 ? handed->all->region[handed->tensor] : 0;
    struct fetched_row row = {.ref = ref,
                              .generation = reply->generation[i],
                              .hold = reply->hold[i],
                              .all = handed->all,
                              .first = handed->tensor,
                              .count = reply->count[i],
                              .inline_bytes = reply->inline_bytes[i],
                              .inline_data = handed->data + handed->data_at,
                              .metadata = reply->metadata.data + handed->text_at,
                              .metadata_bytes = reply->n_metadata_bytes ? reply->metadata_bytes[i] : 0,
                              .transfer = reply->inline_bytes[i] > 0 ? reply->inline_transfer : reply->shared_transfer,
                              .elapsed_ns = reply->elapsed_ns,
                              .pickles_trusted = handed->pickles_trusted};
    rdt_object *object = NULL;

    if (row.inline_bytes == 0 && region < reply->n_regions)
        row.mapping = handed->mappings[region];
    if (handed->noticed < reply->n_mutable_shared && reply->mutable_shared[handed->noticed] == i) {
        row.mutable_shared = true;
        handed->noticed++;
    }
    handed->tensor += row.count;
    handed->data_at += align(row.inline_bytes);
    handed->text_at += row.metadata_bytes;
    if (fetched_create_row(conn, &row, &object, NULL) == RDT_OK)
        return object;
    let_go(conn, &reply->hold[i], 1);
    return NULL;
}

static void take_objects(struct asking *asking, struct handed *handed, struct frame *frame)
{
    struct fetching *fetching = asking->fetching;
    const Rdt__Pb__LoadManyReply *reply = handed->reply;
    const struct answer_fds fds = {frame->fds, frame->nfds};
    size_t n_again = 0;

    for (size_t i = 0; i < reply->n_regions; i++)
        (void)fetched_map(fetching->conn, reply->regions[i], &fds, &handed->mappings[i], NULL);
    for (size_t i = 0; i < asking->n; i++) {
        size_t ref = asking->which[i];
        int32_t status = reply->n_status ? reply->status[i] : RDT_OK;
        if (status == RDT_OK)
            fetching->objects[ref] = read_object(fetching->conn, &fetching->refs[ref], handed);
        n_again += status == RDT_AGAIN;
        fetching->places[ref] = fetching->objects[ref] ? HANDED : status == RDT_AGAIN ? TO_ASK : LEFT;
        if (fetching->places[ref] == TO_ASK && asking->first < fetching->next)
            fetching->next = asking->first;
    }
    for (size_t i = 0; i < reply->n_regions; i++)
        memory_unref(&fetching->conn->memory, handed->mappings[i]);
    if (n_again == asking->n) { /* it would not end */
        leave(asking);
        return;
    }
    if (n_again > 0)
        fetching->fits = fetching->most = asking->n - n_again;
    else if (asking->n >= fetching->most) /* so many fit: more may, but not many more than the last time */
        fetching->most += fetching->fits ? fetching->most / 8 + 1 : fetching->most;
    if (fetching->most > MOST_REFS)
        fetching->most = MOST_REFS;
    connection_notify(fetching->conn);
    asking_free(asking);
}

static bool read_number(const uint8_t *bytes, size_t n, size_t *at, uint64_t *number_p)
{
    uint64_t number = 0;

    for (unsigned shift = 0; *at < n && shift < 64; shift += 7) {
        uint8_t byte = bytes[(*at)++];
        number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *number_p = number;
            return true;
        }
    }
    return false;
}

/* Finds inline_data, so that unpacking need not copy it, and reads what comes after it. Returns how many bytes are before it,
 * or all of them. */
static size_t find_data(const struct frame *frame, struct handed *handed)
{
    const uint8_t *bytes = frame->payload;
    uint64_t key, number = 0;
    size_t n = frame->length, at = 0, start = 0;

    while (at < n && read_number(bytes, n, &at, &key)) {
        bool known = key % 8 == 0 || key % 8 == 2;
        if (!known || !read_number(bytes, n, &at, &number) || (key % 8 == 2 && number > n - at))
            break;
        if (key == 14 * 8 + 2) {
            handed->data = bytes + at;
            handed->data_bytes = (size_t)number;
        } else if (key == 15 * 8) {
            handed->pickles_trusted = number != 0;
        }
        at += key % 8 == 2 ? (size_t)number : 0;
        start = handed->data ? start : at;
    }
    return handed->data ? start : n;
}

static void on_frame(rdt *conn, struct pending *pending, struct frame *frame)
{
    struct asking *asking = container_of(pending, struct asking, pending);
    struct handed handed = {0};
    Rdt__Pb__LoadManyReply *reply = NULL;
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    if (asking->fetching)
        asking->fetching->silent_ns = clock_deadline_ns(asking->fetching->patience_ns);
    if (frame->flags & FRAME_ERROR && asking->fetching) /* as the next one would be */
        asking->fetching->next = asking->fetching->count;
    if (!(frame->flags & FRAME_ERROR))
        handed.reply = reply = rdt__pb__load_many_reply__unpack(&arena.allocator, find_data(frame, &handed), frame->payload);
    if (reply && asking->fetching) {
        handed.mappings = arena_alloc(&arena, (reply->n_regions + 1) * sizeof *handed.mappings);
        if (handed.mappings)
            memset(handed.mappings, 0, (reply->n_regions + 1) * sizeof *handed.mappings);
        if (handed.mappings && layout_from_wire(reply->tensors, &handed.all, NULL) == RDT_OK && is_whole(asking, &handed)) {
            take_objects(asking, &handed, frame);
            asking = NULL;
        }
    }
    if (asking && reply)
        let_go(conn, reply->hold, reply->n_hold);
    if (asking)
        leave(asking);
    free(handed.all);
    arena_fini(&arena);
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    leave(container_of(pending, struct asking, pending));
}

/* Of what the earlier daemon may have handed out RESUME has listed nothing, so it has been released. */
static void on_resumed(rdt *conn, struct pending *pending)
{
    struct asking *asking = container_of(pending, struct asking, pending);

    if (!asking->fetching || !(conn->can.abilities & CONNECTION_HANDS_OUT) ||
        connection_send(conn, RDT_MSG_LOAD_MANY, pending->id, &asking->message.base, false, NULL) != RDT_OK) {
        leave(asking);
        return;
    }
    pending_add(&conn->calls.pending, pending);
}

static const struct pending_ops ops = {on_frame, on_lost, on_resumed};

/* ---- asking ---- */

static bool is_here(const struct rdt_ref *ref, const struct fetching *fetching)
{
    static const uint8_t nobody[16];

    return memcmp(ref->node, fetching->node.node, sizeof ref->node) == 0 ||
           (memcmp(ref->node, nobody, sizeof nobody) == 0 && ref->address[0] == '\0');
}

static bool same_node(const struct rdt_ref *a, const struct rdt_ref *b)
{
    return memcmp(a->node, b->node, sizeof a->node) == 0;
}

/* Whether LOAD_MANY may hand the object out. */
static bool may_ask(const struct rdt_ref *ref, const struct fetching *fetching)
{
    static const struct rdt_ref nobody;
    bool far = !is_here(ref, fetching);

    if (ref->is_name)
        return false;
    if (same_node(ref, &nobody))
        return ref->address[0] == '\0';
    /* The answer does not say where the other node is, and has nothing that can be shared. */
    return !far || (ref->address[0] != '\0' && fetching->options->mode != RDT_FETCH_SHARE);
}

/* Whether the daemon would do nothing else with them than with a list of refs. */
static bool is_plain(const struct rdt_fetch_options *options)
{
    return !options->targets && !options->slices && !options->transport && !options->least_path && !options->group &&
           !options->metadata_only && (!options->memory || strcasecmp(options->memory, "host") == 0);
}

static int compare_nodes(const void *a, const void *b)
{
    const struct rdt_ref *x = *(const struct rdt_ref *const *)a, *y = *(const struct rdt_ref *const *)b;
    int order = memcmp(x->node, y->node, sizeof x->node);

    return order ? order : (x > y) - (x < y);
}

static size_t ref_at(const struct fetching *fetching, size_t at)
{
    return fetching->order ? (size_t)(fetching->order[at] - fetching->refs) : at;
}

/* Orders the refs by node. Those of a node that has few are not asked for. Returns how many are; without memory, none. */
static size_t sort_by_node(struct fetching *fetching)
{
    size_t n = 0, first = 0;

    fetching->order = malloc(fetching->count * sizeof *fetching->order);
    if (!fetching->order)
        return 0;
    for (size_t i = 0; i < fetching->count; i++)
        fetching->order[i] = &fetching->refs[i];
    qsort(fetching->order, fetching->count, sizeof *fetching->order, compare_nodes);
    for (size_t at = 0, of_node = 0; at < fetching->count; at++) {
        of_node += fetching->places[ref_at(fetching, at)] == TO_ASK;
        if (at + 1 < fetching->count && same_node(fetching->order[at], fetching->order[at + 1]))
            continue;
        for (size_t k = first; k <= at && of_node < LEAST_REFS; k++)
            fetching->places[ref_at(fetching, k)] = LEFT;
        n += of_node < LEAST_REFS ? 0 : of_node;
        of_node = 0;
        first = at + 1;
    }
    return n;
}

static void fetching_fini(struct fetching *fetching)
{
    free(fetching->places);
    free(fetching->order);
    fetching->places = NULL;
    fetching->order = NULL;
}

/* Finds out which refs can be asked for. false: so few that nothing would be gained. */
static bool prepare(struct fetching *fetching)
{
    size_t n = 0;
    bool one_node = true;

    if (fetching->count < LEAST_REFS || !(fetching->conn->can.abilities & CONNECTION_HANDS_OUT) ||
        !is_plain(fetching->options) || !(fetching->places = malloc(fetching->count)))
        return false;
    connection_copy_node(fetching->conn, &fetching->node);
    for (size_t i = 0; i < fetching->count; i++) {
        const struct rdt_ref *ref = &fetching->refs[i];
        if (options_check_ref(ref, NULL) != RDT_OK) { /* the fetch of all says what is wrong */
            n = 0;
            break;
        }
        fetching->places[i] = may_ask(ref, fetching) ? TO_ASK : LEFT;
        n += fetching->places[i] == TO_ASK;
        one_node = one_node && (is_here(ref, fetching) ? is_here(fetching->refs, fetching) : same_node(ref, fetching->refs));
        fetching->asks_far = fetching->asks_far || (fetching->places[i] == TO_ASK && !is_here(ref, fetching));
    }
    if (n >= LEAST_REFS && !one_node)
        n = sort_by_node(fetching);
    if (n >= LEAST_REFS)
        return true;
    fetching_fini(fetching);
    return false;
}

/* Sends a message for the next refs. false: there are none, or they are LEFT. With the lock. */
static bool ask(struct fetching *fetching)
{
    rdt *conn = fetching->conn;
    struct asking *asking = malloc(sizeof *asking);
    enum rdt_status status;

    if (!asking)
        return false;
    memset(asking, 0, offsetof(struct asking, which));
    arena_init(&asking->arena, SIZE_MAX / 2);
    asking->pending.ops = &ops;
    asking->fetching = fetching;
    list_append(&fetching->sent, &asking->link);
    fetching->n_sent++;
    for (; fetching->next < fetching->count && asking->n < fetching->most; fetching->next++) {
        size_t ref = ref_at(fetching, fetching->next);
        if (fetching->places[ref] != TO_ASK)
            continue;
        if (asking->n == 0)
            asking->first = fetching->next;
        else if (fetching->order && !same_node(&fetching->refs[ref], &fetching->refs[asking->which[0]]))
            break;
        fetching->places[ref] = ASKED;
        asking->which[asking->n++] = ref;
    }
    rdt__pb__load_many__init(&asking->message);
    asking->message.mode = (Rdt__Pb__FetchMode)fetching->options->mode;
    status = ref_list_make(&asking->arena, fetching->refs, asking->which, asking->n, &asking->message.refs, NULL);
    asking->pending.id = connection_id(conn);
    if (status == RDT_OK && asking->n > 0)
        status = connection_send(conn, RDT_MSG_LOAD_MANY, asking->pending.id, &asking->message.base, false, NULL);
    if (status != RDT_OK || asking->n == 0) {
        leave(asking);
        return false;
    }
    pending_add(&conn->calls.pending, &asking->pending);
    return true;
}

/* Asks until every ref is HANDED or LEFT. CANCELLED: the wait was interrupted. */
static enum rdt_status ask_all(struct fetching *fetching, int64_t deadline_ns, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    fetching->silent_ns = clock_deadline_ns(fetching->patience_ns);
    connection_lock(fetching->conn);
    while (status != RDT_TIMED_OUT && status != RDT_CANCELLED) {
        while (fetching->n_sent < MOST_MESSAGES && ask(fetching))
            ;
        if (fetching->n_sent == 0)
            break;
        status = connection_step(fetching->conn, deadline_ns < fetching->silent_ns ? deadline_ns : fetching->silent_ns);
    }
    list_drain (struct asking, asking, &fetching->sent, link) {
        list_remove(&asking->link);
        asking->fetching = NULL; /* on_frame lets go of what comes */
    }
    connection_unlock(fetching->conn);
    return status == RDT_CANCELLED ? rdt_error_set(err, status, "the fetch of %zu objects was interrupted", fetching->count)
                                   : RDT_OK;
}

/* ---- the rest ---- */

struct rest { /* what is fetched */
    size_t n;
    size_t *which;          /* [n] of the refs; NULL: it is all */
    struct rdt_ref *refs;   /* [n], with `which` */
    rdt_request **requests; /* [n] */
};

static void rest_fini(struct rest *rest)
{
    for (size_t i = 0; rest->requests && i < rest->n; i++)
        rdt_request_destroy(rest->requests[i]);
    free(rest->which);
    free(rest->refs);
    free(rest->requests);
}

static bool rest_init(struct rest *rest, const struct fetching *fetching)
{
    *rest = (struct rest){.n = fetching->places ? 0 : fetching->count};
    for (size_t i = 0; fetching->places && i < fetching->count; i++)
        rest->n += fetching->places[i] != HANDED;
    rest->requests = calloc(rest->n + 1, sizeof(rdt_request *));
    if (!fetching->places)
        return rest->requests;
    rest->which = malloc((rest->n + 1) * sizeof *rest->which);
    rest->refs = malloc((rest->n + 1) * sizeof *rest->refs);
    if (!rest->requests || !rest->which || !rest->refs)
        return false;
    for (size_t i = 0, n = 0; i < fetching->count; i++)
        if (fetching->places[i] != HANDED) {
            rest->which[n] = i;
            rest->refs[n++] = fetching->refs[i];
        }
    return true;
}

/* ---- a fetch whose caller waits ---- */

static void fetching_init(struct fetching *fetching, rdt *conn, const struct rdt_ref *refs, size_t count,
                          const struct rdt_fetch_options *options, rdt_object **objects)
{
    *fetching = (struct fetching){
        .conn = conn, .refs = refs, .count = count, .options = options, .objects = objects, .most = FIRST_REFS};
    fetching->patience_ns = -1;
    list_init(&fetching->sent);
}

/* Takes what is handed out. *deadline_ns_p: that of the fetch of the rest. */
static enum rdt_status take_small(struct fetching *fetching, int64_t *deadline_ns_p, struct rdt_error *err)
{
    int64_t deadline_ns = clock_deadline_ns(fetch_patience_ns(fetching->options));
    bool asks = prepare(fetching);
    enum rdt_status status;

    *deadline_ns_p = deadline_ns;
    if (!asks)
        return RDT_OK;
    if (fetching->options->timeout_ns == RDT_NO_WAIT) { /* what is there need not be there at once if it is much */
        fetching->patience_ns = CLOCK_NO_WAIT_NS;
        status = ask_all(fetching, clock_deadline_ns(CLOCK_NO_WAIT_NS + (int64_t)fetching->count * EACH_NS), err);
        *deadline_ns_p = clock_deadline_ns(CLOCK_NO_WAIT_NS);
        return status;
    }
    if (fetching->asks_far && deadline_ns != CLOCK_NEVER)
        fetching->patience_ns = clock_remaining_ns(deadline_ns) / 2;
    return ask_all(fetching, deadline_ns, err);
}

/* objects [count] receives those that were handed out, and *rest_p those that are fetched, which the caller ends also after an
 * error. wait_ns_p: until when they are waited for. */
static enum rdt_status begin(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                             rdt_object **objects, struct rest *rest_p, int64_t *wait_ns_p, struct rdt_error *err)
{
    struct rdt_fetch_options own;
    struct fetching fetching;
    int64_t deadline_ns;
    enum rdt_status status = fetch_check(conn, refs, count, options, &own, err);

    if (status != RDT_OK)
        return status;
    fetching_init(&fetching, conn, refs, count, &own, objects);
    status = take_small(&fetching, &deadline_ns, err);
    *wait_ns_p = clock_after_answer_ns(deadline_ns, fetch_patience_ns(&own));
    if (status == RDT_OK && !rest_init(rest_p, &fetching))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a fetch of %zu objects", count);
    fetching_fini(&fetching);
    if (status == RDT_OK && rest_p->n > 0)
        status = fetch_begin(conn, rest_p->refs ? rest_p->refs : refs, rest_p->n, &own, deadline_ns, rest_p->requests, err);
    return status;
}

static void release_all(rdt_object **objects, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rdt_release(objects[i]);
        objects[i] = NULL;
    }
}

enum rdt_status rdt_fetch(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                          rdt_object **objects_p, struct rdt_error *err)
{
    struct rest rest = {0};
    rdt_object **objects = NULL;
    int64_t wait_ns;
    bool verifies;
    enum rdt_status status = fetch_check_verify(options, true, &verifies, err);

    if (status == RDT_OK && count > 0)
        status = options_check_out(objects_p, "objects_p", err);
    if (status == RDT_OK && !(objects = calloc(count + 1, sizeof(rdt_object *))))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a fetch of %zu objects", count);
    if (status != RDT_OK)
        return status;
    status = begin(conn, refs, count, options, objects, &rest, &wait_ns, err);
    /* The requests end at the deadline by themselves. The wait needs it for the copies into targets. */
    if (status == RDT_OK)
        status = rdt_wait(conn, rest.requests, rest.n, RDT_WAIT_ALL, clock_remaining_ns(wait_ns), NULL, NULL, err);
    for (size_t i = 0; i < rest.n && status == RDT_OK; i++) /* cannot fail: the request has ended well */
        (void)rdt_request_take_object(rest.requests[i], &objects[rest.which ? rest.which[i] : i], NULL);
    rest_fini(&rest);
    for (size_t i = 0; i < count && status == RDT_OK && verifies; i++)
        status = rdt_verify(objects[i], clock_remaining_ns(wait_ns), err);
    if (status == RDT_OK && count > 0)
        memcpy(objects_p, objects, count * sizeof(rdt_object *));
    else
        release_all(objects, count);
    free(objects);
    return status;
}

/* Takes the object of a request, which may have failed. */
static enum rdt_status take_result(rdt_request *request, bool interrupted, rdt_object **object_p, struct rdt_error *err)
{
    enum rdt_status status = rdt_request_take_object(request, object_p, err);

    if (status == RDT_AGAIN && interrupted)
        return rdt_error_set(err, RDT_CANCELLED, "the fetch of %s was interrupted", request->label);
    if (status == RDT_AGAIN)
        return rdt_error_set(err, RDT_TIMED_OUT, "the fetch of %s had not ended when the time was over", request->label);
    return status;
}

enum rdt_status rdt_fetch_each(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                               rdt_object **objects_p, enum rdt_status *statuses_p, struct rdt_error *err)
{
    struct rest rest = {0};
    struct rdt_error why, first = {0};
    int64_t wait_ns;
    bool verifies, interrupted;
    enum rdt_status status = fetch_check_verify(options, true, &verifies, err);

    for (size_t i = 0; objects_p && i < count; i++)
        objects_p[i] = NULL;
    if (status == RDT_OK && count > 0)
        status = options_check_out(objects_p, "objects_p", err);
    if (status == RDT_OK)
        status = begin(conn, refs, count, options, objects_p, &rest, &wait_ns, err);
    if (status != RDT_OK) {
        if (objects_p)
            release_all(objects_p, count);
        rest_fini(&rest);
        return request_statuses(statuses_p, count, status);
    }
    interrupted =
        rdt_wait_each(conn, rest.requests, rest.n, RDT_WAIT_ALL, clock_remaining_ns(wait_ns), NULL, &why) == RDT_CANCELLED;
    if (interrupted)
        first = why;
    for (size_t i = 0, n = 0; i < count; i++) {
        bool fetched = n < rest.n && (!rest.which || rest.which[n] == i);

        status = fetched ? take_result(rest.requests[n++], interrupted, &objects_p[i], &why) : RDT_OK;
        if (status == RDT_OK && verifies)
            status = rdt_verify(objects_p[i], clock_remaining_ns(wait_ns), &why);
        if (status != RDT_OK) {
            rdt_release(objects_p[i]);
            objects_p[i] = NULL;
        }
        if (statuses_p)
            statuses_p[i] = status;
        if (status != RDT_OK && first.status == RDT_OK)
            first = why;
    }
    rest_fini(&rest);
    if (first.status != RDT_OK && err)
        *err = first;
    return first.status;
}

enum rdt_status rdt_fetch_small(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                                rdt_object **objects_p, struct rdt_error *err)
{
    struct rdt_fetch_options own;
    struct fetching fetching;
    int64_t deadline_ns;
    enum rdt_status status = fetch_check(conn, refs, count, options, &own, err);

    for (size_t i = 0; objects_p && i < count; i++)
        objects_p[i] = NULL;
    if (status == RDT_OK && count > 0)
        status = options_check_out(objects_p, "objects_p", err);
    if (status != RDT_OK)
        return status;
    fetching_init(&fetching, conn, refs, count, &own, objects_p);
    status = take_small(&fetching, &deadline_ns, err);
    fetching_fini(&fetching);
    if (status != RDT_OK)
        release_all(objects_p, count);
    return status;
}
