/* SPDX-License-Identifier: Apache-2.0 */
/* EXISTS: which of many objects and names there are.
 *
 *   look      each ref in order: what this node knows is answered; the homes of a name that it does not know are asked, of
 *             SEEKS_MAX names at a time
 *   ask       each other node about its own refs, by one message after the other (questions.h)
 *   answer    when nobody is asked any more, or the time is over
 *
 * All of it runs in slices. A ref whose homes or node do not answer in time is unknown, and the others are answered: homes have
 * at most half of the time. When one has not answered, the next ones get a shorter time, so that it does not use up all of it.
 *
 * Refuses: to show a node anything of a ref that is meant for another. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/calls/questions.h"
#include "wire_ref.h"

#define TIMEOUT_NS INT64_C(60000000000) /* of a message without one */
#define SEEKS_MAX 256u
#define ASKED_BYTES ((size_t)256 << 10) /* about, of a message to another node */
#define LIKE_BYTES 160u                 /* the most that a `like` has in it, about */
#define REF_HEAP_BYTES 20u              /* `at`, `status`, `after`, and `position`: there are no more `like`s than refs */
#define ASKING_HEAP_BYTES (sizeof(struct asking) + 64u) /* with its place in the map */

struct exists;

struct seeking { /* a name whose homes are asked; it is charged as a waiter */
    struct list link;
    struct name_seeker seeker;
    struct exists *exists;
    uint32_t ref;
};

struct asking {               /* refs that are on another node */
    struct question question; /* its `at`: one of them, with its node */
    struct exists *exists;
    uint8_t key[1 + 65];     /* its node, or the address if the node is not set */
    uint32_t first, last, n; /* the refs without an answer, by exists->after */
    uint32_t n_asked;        /* the first of them, which the node is being asked for */
};

struct others { /* nodes that are asked */
    struct map by_key;
    struct questions questions;
    uint32_t *position; /* [n_like] where a `like` is in the message that is being made (renumber) */
};

struct homes { /* of names */
    struct list seekings;
    unsigned n;
    bool silent; /* some have not answered */
    uint64_t until_ns;
    struct deadline patience; /* since the last answer */
};

struct exists {
    struct call *call;
    struct slice slice;
    struct arena arena; /* of the message and of the askings */
    const Rdt__Pb__RefList *refs;
    uint32_t *at;    /* [n] where the id of each begins */
    uint32_t *after; /* [n] the next ref on the same node */
    int32_t *status; /* [n] */
    uint32_t n, next;
    uint64_t heap;
    struct homes homes;
    struct others others;
    struct rdt_error why; /* of the first ref of which nothing is known */
    uint32_t why_ref;
};

static void exists_free(struct exists *exists)
{
    struct account *account = exists->call->account;
    struct rpc *rpc = exists->call->rpc;

    slice_stop(&exists->slice);
    deadline_unset(rpc->deadlines, &exists->homes.patience);
    questions_end(&exists->others.questions);
    account_give(account, USAGE_WAITERS, exists->homes.n);
    list_drain (struct seeking, seeking, &exists->homes.seekings, link) {
        list_remove(&seeking->link);
        name_seeker_remove(&seeking->seeker);
        free(seeking);
    }
    map_fini(&exists->others.by_key);
    account_give(account, USAGE_HEAP, exists->heap);
    free(exists->at);
    free(exists->after);
    free(exists->others.position);
    free(exists->status);
    work_free_arena(rpc->regions->pool, &exists->arena);
    free(exists);
}

static void on_end(struct call *call)
{
    exists_free(call->waiting);
}

static void go_on(struct exists *exists)
{
    slice_start(&exists->call->rpc->deadlines->slices, &exists->slice);
}

/* ---- what is known of a ref ---- */

static bool is_known(enum rdt_status status)
{
    return status == RDT_OK || status == RDT_NOT_PUT || status == RDT_FREED || status == RDT_OWNER_DIED ||
           status == RDT_NOT_FOUND;
}

/* Where the sentence for an unknown ref belongs; NULL: that of an earlier one is wanted. */
static struct rdt_error *why_of(struct exists *exists, uint32_t i)
{
    return exists->why.status == RDT_OK || i < exists->why_ref ? &exists->why : NULL;
}

static void set(struct exists *exists, uint32_t i, enum rdt_status status, const struct rdt_error *why)
{
    struct rdt_error *first = is_known(status) ? NULL : why_of(exists, i);

    exists->status[i] = status;
    if (!first)
        return;
    *first = *why;
    exists->why_ref = i;
}

static enum rdt_status find_here(struct exists *exists, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct call *call = exists->call;
    struct object *object;
    uint64_t version;
    enum rdt_status status = ref->is_name ? names_find(call->rpc->names, ref, &call->account->owner, &object, &version, err)
                                          : object_table_exists(call->rpc->objects, ref, &call->account->owner, err);

    return status == RDT_AGAIN ? RDT_NOT_PUT : status;
}

/* ---- other nodes ---- */

static struct asking *asking_of_question(struct question *question)
{
    return container_of(question, struct asking, question);
}

/* The node is not asked any more: none of its refs will be known. */
static void on_failure(struct question *question, const struct rdt_error *why)
{
    struct asking *asking = asking_of_question(question);
    struct exists *exists = asking->exists;
    struct rdt_error unknown = *why;

    if (is_known(why->status)) /* that would be an answer: NOT_FOUND is here the node */
        unknown.status = RDT_PEER_LOST;
    for (uint32_t i = asking->first; asking->n > 0; asking->n--, i = exists->after[i])
        set(exists, i, unknown.status, &unknown);
}

static void on_reply(struct question *question, const ProtobufCMessage *message, const struct peer *from)
{
    const Rdt__Pb__ExistsReply *reply = (const Rdt__Pb__ExistsReply *)message;
    struct asking *asking = asking_of_question(question);
    struct exists *exists = asking->exists;
    uint32_t i = asking->first;
    struct rdt_error why;

    if (reply->n_status != asking->n_asked) {
        (void)rdt_error_set(&why, RDT_PROTOCOL, "node %s answered for %zu of %u refs", from->name, reply->n_status,
                            asking->n_asked);
        on_failure(question, &why);
        return;
    }
    for (uint32_t k = 0; k < asking->n_asked; k++, i = exists->after[i]) {
        enum rdt_status status = (enum rdt_status)reply->status[k];
        if (!is_known(status))
            status = wire_error(status, 0, reply->why, why_of(exists, i) ? &why : NULL);
        set(exists, i, status, &why);
    }
    asking->first = i;
    asking->n -= asking->n_asked;
    if (asking->n > 0)
        questions_add(&exists->others.questions, question, &question->at);
}

static uint32_t like_of(const Rdt__Pb__RefList *refs, uint32_t i)
{
    return refs->n_like_index ? refs->like_index[i] : 0;
}

/* Chooses as many refs as one message may have, and gives those `like`s that they use a position in it: used_p
 * [*n_like_p] has their numbers in the client's message. */
static void choose(struct exists *exists, struct asking *asking, uint32_t *used_p, uint32_t *n_like_p, size_t *id_bytes_p)
{
    uint32_t *position = exists->others.position, n_like = 0, n = 0;
    size_t id_bytes = 0;

    for (uint32_t i = asking->first; n < asking->n && n < QUESTION_REFS_MAX && id_bytes + n_like * LIKE_BYTES < ASKED_BYTES;
         i = exists->after[i], n++) {
        uint32_t like = like_of(exists->refs, i);
        id_bytes += exists->refs->id_bytes[i];
        if (position[like] < n_like && used_p[position[like]] == like)
            continue;
        position[like] = n_like;
        used_p[n_like++] = like;
    }
    asking->n_asked = n;
    *n_like_p = n_like;
    *id_bytes_p = id_bytes;
}

/* What the refs of this node have in common, without the client's address for it. */
static Rdt__Pb__Ref *like_for(const struct asking *asking, uint32_t i, struct arena *arena)
{
    const struct exists *exists = asking->exists;
    struct rdt_ref *ref = arena_alloc(arena, sizeof *ref);
    Rdt__Pb__Ref *message = arena_alloc(arena, sizeof *message);

    if (!ref || !message || ref_list_get(exists->refs, i, exists->at[i], ref, NULL) != RDT_OK)
        return NULL;
    memcpy(ref->node, asking->question.at.node, sizeof ref->node);
    ref->address[0] = '\0';
    wire_ref_from(ref, message);
    message->id.len = 0;
    message->generation = 0;
    return message;
}

/* NULL: no memory. */
static Rdt__Pb__RefList *make_list(struct asking *asking, struct arena *arena)
{
    const struct exists *exists = asking->exists;
    const Rdt__Pb__RefList *all = exists->refs;
    uint32_t most = asking->n < QUESTION_REFS_MAX ? asking->n : QUESTION_REFS_MAX,
             *used = arena_alloc(arena, most * sizeof *used), n_like, n;
    Rdt__Pb__RefList *list = arena_message(arena, &rdt__pb__ref_list__descriptor);
    uint32_t i = asking->first;
    size_t id_bytes;

    if (!used || !list)
        return NULL;
    choose(asking->exists, asking, used, &n_like, &id_bytes);
    n = asking->n_asked;
    list->ids.data = arena_alloc(arena, id_bytes);
    list->id_bytes = arena_alloc(arena, n * sizeof *list->id_bytes);
    list->generation = arena_alloc(arena, n * sizeof *list->generation);
    list->like_index = arena_alloc(arena, n * sizeof *list->like_index);
    list->like = arena_alloc(arena, n_like * sizeof *list->like);
    if (!list->ids.data || !list->id_bytes || !list->generation || !list->like_index || !list->like)
        return NULL;
    for (uint32_t k = 0; k < n; k++, i = exists->after[i]) {
        uint32_t like = exists->others.position[like_of(all, i)];
        memcpy(list->ids.data + list->ids.len, all->ids.data + exists->at[i], all->id_bytes[i]);
        list->ids.len += all->id_bytes[i];
        list->id_bytes[k] = all->id_bytes[i];
        list->generation[k] = all->n_generation ? all->generation[i] : 0;
        list->like_index[k] = like;
        if (like == list->n_like && !(list->like[list->n_like++] = like_for(asking, i, arena)))
            return NULL;
    }
    list->n_id_bytes = n;
    list->n_generation = all->n_generation ? n : 0;
    list->n_like_index = n_like > 1 ? n : 0;
    return list;
}

static const ProtobufCMessage *make(struct question *question, struct arena *arena)
{
    Rdt__Pb__Exists *request = arena_message(arena, &rdt__pb__exists__descriptor);

    return request && (request->refs = make_list(asking_of_question(question), arena)) ? &request->base : NULL;
}

static void go_on_asking(struct questions *questions)
{
    go_on(container_of(questions, struct exists, others.questions));
}

static const struct questions_events asks = {make, on_reply, on_failure, go_on_asking};

/* The node alone counts: a client may give it any number of addresses. */
static size_t make_key(const struct rdt_ref *ref, uint8_t key_p[1 + 65])
{
    static const uint8_t nobody[16];
    size_t bytes;

    key_p[0] = memcmp(ref->node, nobody, sizeof nobody) != 0;
    bytes = key_p[0] ? sizeof ref->node : strlen(ref->address);
    memcpy(key_p + 1, key_p[0] ? (const void *)ref->node : ref->address, bytes);
    return 1 + bytes;
}

/* The askings of one node. NULL: err is LIMIT or NO_MEMORY. */
static struct asking *asking_of(struct exists *exists, const struct rdt_ref *ref, struct rdt_error *err)
{
    uint8_t key[1 + 65];
    size_t bytes = make_key(ref, key);
    struct asking *asking = map_get(&exists->others.by_key, key, bytes);

    if (asking) {
        if (asking->question.at.address[0] == '\0')
            text_copy(asking->question.at.address, sizeof ref->address, ref->address);
        return asking;
    }
    if (account_take(exists->call->account, USAGE_HEAP, ASKING_HEAP_BYTES, err) != RDT_OK)
        return NULL;
    exists->heap += ASKING_HEAP_BYTES;
    asking = arena_alloc(&exists->arena, sizeof *asking);
    if (asking) {
        memset(asking, 0, sizeof *asking);
        memcpy(asking->key, key, bytes);
        asking->exists = exists;
    }
    if (!asking || !map_put(&exists->others.by_key, asking->key, bytes, asking)) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask another node");
        return NULL;
    }
    questions_add(&exists->others.questions, &asking->question, ref);
    return asking;
}

/* The ref is on another node, which is asked later. AGAIN. */
static enum rdt_status ask_later(struct exists *exists, uint32_t i, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct asking *asking = asking_of(exists, ref, err);

    if (!asking)
        return err->status;
    if (asking->n++ == 0)
        asking->first = i;
    else
        exists->after[asking->last] = i;
    asking->last = i;
    return RDT_AGAIN;
}

/* ---- the homes of names ---- */

static void seeking_end(struct seeking *seeking)
{
    struct exists *exists = seeking->exists;

    list_remove(&seeking->link);
    name_seeker_remove(&seeking->seeker);
    free(seeking);
    exists->homes.n--;
    account_give(exists->call->account, USAGE_WAITERS, 1);
    go_on(exists);
}

static void on_silence(struct deadline *deadline)
{
    struct exists *exists = container_of(deadline, struct exists, homes.patience);
    struct rdt_error err;

    exists->homes.silent = true;
    (void)rdt_error_set(&err, RDT_TIMED_OUT, "the nodes that would know the name have not answered");
    list_drain (struct seeking, seeking, &exists->homes.seekings, link) {
        set(exists, seeking->ref, RDT_TIMED_OUT, &err);
        seeking_end(seeking);
    }
}

/* From the last answer on: then all that wait have been asked as long ago at least. */
static void be_patient(struct exists *exists)
{
    struct rpc *rpc = exists->call->rpc;
    uint64_t now = uv_hrtime(), left_ns = exists->homes.until_ns > now ? exists->homes.until_ns - now : 0;
    uint64_t ns = rpc->options->connect_timeout_ns;

    if (exists->homes.silent)
        ns /= RDT_MAX_FETCH_REFS / SEEKS_MAX;
    if (!deadline_set(rpc->deadlines, &exists->homes.patience, (int64_t)(ns < left_ns ? ns : left_ns)))
        on_silence(&exists->homes.patience);
}

static void seeking_answered(struct seeking *seeking)
{
    struct exists *exists = seeking->exists;

    seeking_end(seeking);
    if (exists->homes.n > 0)
        be_patient(exists);
    else
        deadline_unset(exists->call->rpc->deadlines, &exists->homes.patience);
}

static void on_found(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    struct seeking *seeking = container_of(seeker, struct seeking, seeker);
    struct exists *exists = seeking->exists;
    struct rdt_error err = {0};
    struct rdt_ref ref;
    enum rdt_status status = ref_list_get(exists->refs, seeking->ref, exists->at[seeking->ref], &ref, &err);

    if (status == RDT_OK) {
        memcpy(ref.node, node, sizeof ref.node);
        text_copy(ref.address, sizeof ref.address, address);
        status = ask_later(exists, seeking->ref, &ref, &err);
    }
    if (status != RDT_AGAIN)
        set(exists, seeking->ref, status, &err);
    seeking_answered(seeking);
}

static void on_missing(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    struct seeking *seeking = container_of(seeker, struct seeking, seeker);

    if (node) {
        on_found(seeker, node, address);
        return;
    }
    set(seeking->exists, seeking->ref, RDT_NOT_PUT, NULL);
    seeking_answered(seeking);
}

static bool may_seek(const struct exists *exists)
{
    return exists->homes.n == 0 ||
           (exists->homes.n < SEEKS_MAX && account_check(exists->call->account, USAGE_WAITERS, 1, NULL) == RDT_OK);
}

static enum rdt_status seek(struct exists *exists, uint32_t i, const struct rdt_ref *ref, const struct owner *owner,
                            struct rdt_error *err)
{
    struct call *call = exists->call;
    struct seeking *seeking;
    enum rdt_status status;

    if (uv_hrtime() >= exists->homes.until_ns)
        return rdt_error_set(err, RDT_TIMED_OUT, "there was no time left to ask the nodes that would know the name");
    status = account_take(call->account, USAGE_WAITERS, 1, err);
    if (status != RDT_OK)
        return status;
    seeking = calloc(1, sizeof *seeking);
    if (seeking) {
        seeking->exists = exists;
        seeking->ref = i;
        seeking->seeker.on_found = on_found;
        seeking->seeker.on_missing = on_missing;
        status = directory_names_seek(call->rpc->directory_names, owner, (const uint8_t *)ref->id, ref->id_bytes,
                                      &seeking->seeker, err);
    }
    if (!seeking || status != RDT_OK) {
        free(seeking);
        account_give(call->account, USAGE_WAITERS, 1);
        return seeking ? status : rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for a name");
    }
    list_append(&exists->homes.seekings, &seeking->link);
    if (exists->homes.n++ == 0)
        be_patient(exists);
    return RDT_AGAIN;
}

/* ---- the walk ---- */

/* AGAIN: others are asked. */
static enum rdt_status look(struct exists *exists, uint32_t i, struct rdt_error *err)
{
    struct call *call = exists->call;
    struct owner owner;
    struct rdt_ref ref;
    enum rdt_status status = ref_list_get(exists->refs, i, exists->at[i], &ref, err);

    if (status != RDT_OK)
        return status;
    owner = owner_of_ref(&ref, &call->account->owner);
    if (call->client && ref_is_unplaced(&ref) &&
        directory_names_find(call->rpc->directory_names, &owner, (const uint8_t *)ref.id, ref.id_bytes, ref.node,
                             ref.address) == RDT_AGAIN)
        return seek(exists, i, &ref, &owner, err);
    if (!call_is_remote(call, &ref))
        return find_here(exists, &ref, err);
    if (!call->client)
        return rdt_error_set(err, RDT_NOT_FOUND, "\"%s\" is not on this node", ref.id);
    return ask_later(exists, i, &ref, err);
}

static void answer(struct exists *exists)
{
    Rdt__Pb__ExistsReply reply = RDT__PB__EXISTS_REPLY__INIT;
    struct call *call = exists->call;
    int32_t *status = exists->status;
    struct rdt_error why = exists->why;

    reply.n_status = exists->n;
    reply.status = status;
    reply.why = why.msg;
    exists->status = NULL;
    exists_free(exists);
    call->on_end = NULL;
    call_reply(call, &reply.base, NULL, 0);
    free(status);
}

static bool walk(struct slice *slice, uint64_t until_ns)
{
    struct exists *exists = container_of(slice, struct exists, slice);

    while (exists->next < exists->n && may_seek(exists)) {
        struct rdt_error err = {0};
        uint32_t i = exists->next++;
        enum rdt_status status = look(exists, i, &err);
        if (status != RDT_AGAIN)
            set(exists, i, status, &err);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    if (exists->next < exists->n || exists->homes.n > 0)
        return true; /* seeking_end goes on */
    if (!questions_ask(&exists->others.questions, until_ns))
        return false;
    if (exists->others.questions.n_asked == 0)
        answer(exists);
    return true; /* go_on_asking goes on */
}

static struct exists *exists_create(const Rdt__Pb__RefList *refs, uint32_t n)
{
    struct exists *exists = calloc(1, sizeof *exists);

    if (!exists)
        return NULL;
    exists->at = malloc((n + 1u) * sizeof *exists->at);
    exists->after = malloc((n + 1u) * sizeof *exists->after);
    exists->status = calloc(n + 1u, sizeof *exists->status);
    exists->others.position = calloc(n + 1u, sizeof *exists->others.position);
    exists->slice.run = walk;
    exists->refs = refs;
    exists->n = n;
    exists->homes.patience.on_passed = on_silence;
    list_init(&exists->homes.seekings);
    questions_init(&exists->others.questions, &asks);
    map_init(&exists->others.by_key);
    return exists;
}

static enum rdt_status start(struct exists *exists, struct call *call, int64_t timeout_ns, struct rdt_error *err)
{
    uint32_t n = exists->n, at = 0;
    enum rdt_status status = call_defer(call, -1, on_end, err);

    if (status == RDT_OK && (!exists->at || !exists->after || !exists->status || !exists->others.position ||
                             !questions_begin(&exists->others.questions, call, call->client ? timeout_ns : -1)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for %u refs", n);
    if (status != RDT_OK)
        return status;
    exists->homes.until_ns = uv_hrtime() + (uint64_t)timeout_ns / 2;
    for (uint32_t i = 0; i < n; i++) {
        exists->at[i] = at;
        at += exists->refs->id_bytes[i];
    }
    call_take_request(call, &exists->arena);
    exists->arena.on_block = NULL; /* it was for the pool's threads */
    return RDT_OK;
}

enum rdt_status rpc_exists(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Exists *message = request;
    uint32_t n = message->refs ? (uint32_t)message->refs->n_id_bytes : 0;
    uint64_t heap = call->request.arena->used_bytes + (uint64_t)n * REF_HEAP_BYTES;
    struct exists *exists;
    enum rdt_status status = ref_list_check(message->refs, err);

    if (status == RDT_OK)
        status = account_take(call->account, USAGE_HEAP, heap, err);
    if (status != RDT_OK)
        return status;
    exists = exists_create(message->refs, n);
    if (!exists) {
        account_give(call->account, USAGE_HEAP, heap);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for %u refs", n);
    }
    exists->call = call;
    exists->heap = heap;
    arena_init(&exists->arena, RDT_MAX_DECODED_BYTES);
    status = start(exists, call, message->timeout_ns > 0 ? message->timeout_ns : TIMEOUT_NS, err);
    if (status != RDT_OK) {
        call->on_end = NULL;
        exists_free(exists);
        return status;
    }
    call->waiting = exists;
    slice_begin(&call->rpc->deadlines->slices, &exists->slice);
    return RDT_OK;
}
