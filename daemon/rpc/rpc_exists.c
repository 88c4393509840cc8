/* SPDX-License-Identifier: Apache-2.0 */
/* EXISTS: which of many objects and names there are.
 *
 *   look      each ref in order, in slices: what this node knows is answered; the homes of a name that it does not know are
 *             asked, of SEEKS_MAX names at a time
 *   ask       each other node about its own refs, in one message or a few
 *   answer    when nobody is asked any more */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/calls/call.h"
#include "wire_ref.h"

#define SEEKS_MAX 1024u
#define ASKED_MAX 4096u /* refs in a message to another node, which decodes it on its loop */
#define ASKINGS_TRIED 64u
#define REF_HEAP_BYTES 64u

struct exists;

struct seeking { /* a name whose homes are asked */
    struct list link;
    struct name_seeker seeker;
    struct exists *exists;
    uint32_t ref;
};

struct asking { /* refs that are on another node */
    struct list link;
    struct exists *exists;
    struct rdt_ref at; /* one of them, with its node */
    uint32_t *refs;    /* [n] */
    uint32_t n, room;
    struct call *question; /* NULL: the node has not been asked yet */
};

struct exists {
    struct call *call;
    struct slice slice;
    struct arena arena; /* of the message */
    const Rdt__Pb__RefList *refs;
    uint32_t *at;    /* [n] where the id of each begins */
    int32_t *status; /* [n] */
    uint32_t n, next;
    uint64_t heap;
    struct list seekings, askings;
    unsigned n_seeking, n_asked;
    struct deadline patience; /* for the homes */
    struct rdt_error why;     /* of the first ref of which nothing is known */
};

static void exists_free(struct exists *exists)
{
    struct rpc *rpc = exists->call->rpc;

    slice_stop(&exists->slice);
    deadline_unset(rpc->deadlines, &exists->patience);
    list_drain (struct seeking, seeking, &exists->seekings, link) {
        list_remove(&seeking->link);
        name_seeker_remove(&seeking->seeker);
        free(seeking);
    }
    list_drain (struct asking, asking, &exists->askings, link) {
        list_remove(&asking->link);
        call_forget(asking->question);
        free(asking->refs);
        free(asking);
    }
    account_give(exists->call->account, USAGE_HEAP, exists->heap);
    free(exists->at);
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

static void set(struct exists *exists, uint32_t i, enum rdt_status status, const struct rdt_error *why)
{
    exists->status[i] = status;
    if (!is_known(status) && exists->why.status == RDT_OK)
        exists->why = *why;
}

static enum rdt_status find_here(struct exists *exists, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct call *call = exists->call;
    struct object *object;
    uint64_t version;
    enum rdt_status status = ref->is_name ? names_find(call->rpc->names, ref, &call->account->owner, &object, &version, err)
                                          : object_table_find(call->rpc->objects, ref, &call->account->owner, &object, err);

    return status == RDT_AGAIN ? RDT_NOT_PUT : status;
}

/* ---- other nodes ---- */

static void on_answer(struct call *question, const ProtobufCMessage *message, const struct rdt_error *err)
{
    const Rdt__Pb__ExistsReply *reply = (const Rdt__Pb__ExistsReply *)message;
    struct asking *asking = question->asker;
    struct exists *exists = asking->exists;
    struct rdt_error why = err ? *err : (struct rdt_error){0};

    if (reply && reply->n_status != asking->n)
        (void)rdt_error_set(&why, RDT_PROTOCOL, "node %s answered for %zu of %u refs", question->forwarded.to->name,
                            reply->n_status, asking->n);
    for (uint32_t i = 0; i < asking->n; i++) {
        enum rdt_status status = why.status == RDT_OK ? (enum rdt_status)reply->status[i] : why.status;
        struct rdt_error one = why;
        if (why.status == RDT_OK && !is_known(status))
            status = wire_error(status, 0, reply->why, &one);
        set(exists, asking->refs[i], status, &one);
    }
    list_remove(&asking->link);
    free(asking->refs);
    free(asking);
    exists->n_asked--;
    go_on(exists);
}

/* Asks the node, or says why that is not possible. */
static void ask(struct exists *exists, struct asking *asking)
{
    Rdt__Pb__RefList list = RDT__PB__REF_LIST__INIT;
    Rdt__Pb__Exists request = RDT__PB__EXISTS__INIT;
    const Rdt__Pb__RefList *all = exists->refs;
    struct rdt_error err = {0};
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    list = *all;
    list.ids = (ProtobufCBinaryData){0, arena_alloc(&arena, (size_t)asking->n * RDT_MAX_ID_BYTES)};
    list.id_bytes = arena_alloc(&arena, asking->n * sizeof *list.id_bytes);
    list.generation = arena_alloc(&arena, asking->n * sizeof *list.generation);
    list.like_index = arena_alloc(&arena, asking->n * sizeof *list.like_index);
    if (!list.ids.data || !list.id_bytes || !list.generation || !list.like_index)
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to ask another node");
    for (uint32_t i = 0; err.status == RDT_OK && i < asking->n; i++) {
        uint32_t ref = asking->refs[i];
        memcpy(list.ids.data + list.ids.len, all->ids.data + exists->at[ref], all->id_bytes[ref]);
        list.ids.len += all->id_bytes[ref];
        list.id_bytes[i] = all->id_bytes[ref];
        list.generation[i] = all->n_generation ? all->generation[ref] : 0;
        list.like_index[i] = all->n_like_index ? all->like_index[ref] : 0;
    }
    list.n_id_bytes = asking->n;
    list.n_generation = all->n_generation ? asking->n : 0;
    list.n_like_index = all->n_like_index ? asking->n : 0;
    request.refs = &list;
    exists->n_asked++;
    if (err.status == RDT_OK)
        (void)call_ask(exists->call, &asking->at, &request.base, on_answer, asking, &asking->question, &err);
    arena_fini(&arena);
    if (err.status == RDT_OK)
        return;
    exists->n_asked--;
    for (uint32_t i = 0; i < asking->n; i++)
        set(exists, asking->refs[i], err.status, &err);
    list_remove(&asking->link);
    free(asking->refs);
    free(asking);
}

static bool is_at(const struct asking *asking, const struct rdt_ref *ref)
{
    return !asking->question && asking->n < ASKED_MAX && memcmp(asking->at.node, ref->node, sizeof ref->node) == 0 &&
           strcmp(asking->at.address, ref->address) == 0;
}

/* The ref is on another node, which is asked later. */
static enum rdt_status ask_later(struct exists *exists, uint32_t i, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct asking *asking = NULL;
    unsigned tried = 0;
    uint32_t *grown;

    list_each (struct asking, each, &exists->askings, link) {
        if (is_at(each, ref))
            asking = each;
        if (asking || ++tried == ASKINGS_TRIED)
            break;
    }
    if (!asking && (asking = calloc(1, sizeof *asking))) {
        asking->exists = exists;
        asking->at = *ref;
        list_prepend(&exists->askings, &asking->link);
    }
    if (asking && asking->n == asking->room) {
        grown = realloc(asking->refs, (asking->room ? 4 * asking->room : 64) * sizeof *grown);
        if (!grown)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask another node");
        asking->refs = grown;
        asking->room = asking->room ? 4 * asking->room : 64;
    }
    if (!asking)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask another node");
    asking->refs[asking->n++] = i;
    return RDT_OK;
}

/* ---- the homes of names ---- */

static void seeking_end(struct seeking *seeking)
{
    struct exists *exists = seeking->exists;

    list_remove(&seeking->link);
    name_seeker_remove(&seeking->seeker);
    free(seeking);
    exists->n_seeking--;
    go_on(exists);
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
    if (status != RDT_OK)
        set(exists, seeking->ref, status, &err);
    seeking_end(seeking);
}

static void on_missing(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    struct seeking *seeking = container_of(seeker, struct seeking, seeker);

    if (node) {
        on_found(seeker, node, address);
        return;
    }
    set(seeking->exists, seeking->ref, RDT_NOT_PUT, NULL);
    seeking_end(seeking);
}

static void on_silence(struct deadline *deadline)
{
    struct exists *exists = container_of(deadline, struct exists, patience);
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_TIMED_OUT, "the nodes that would know the name have not answered");
    list_drain (struct seeking, seeking, &exists->seekings, link) {
        set(exists, seeking->ref, RDT_TIMED_OUT, &err);
        seeking_end(seeking);
    }
}

static enum rdt_status seek(struct exists *exists, uint32_t i, const struct rdt_ref *ref, const struct owner *owner,
                            struct rdt_error *err)
{
    struct rpc *rpc = exists->call->rpc;
    struct seeking *seeking = calloc(1, sizeof *seeking);
    enum rdt_status status;

    if (!seeking)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for a name");
    seeking->exists = exists;
    seeking->ref = i;
    seeking->seeker.on_found = on_found;
    seeking->seeker.on_missing = on_missing;
    status = directory_names_seek(rpc->directory_names, owner, (const uint8_t *)ref->id, ref->id_bytes, &seeking->seeker, err);
    if (status != RDT_OK) {
        free(seeking);
        return status;
    }
    list_append(&exists->seekings, &seeking->link);
    if (exists->n_seeking++ == 0 && !deadline_set(rpc->deadlines, &exists->patience, (int64_t)rpc->options->connect_timeout_ns))
        on_silence(&exists->patience);
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
    status = ask_later(exists, i, &ref, err);
    return status == RDT_OK ? RDT_AGAIN : status;
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

    while (exists->next < exists->n && exists->n_seeking < SEEKS_MAX) {
        struct rdt_error err = {0};
        uint32_t i = exists->next++;
        enum rdt_status status = look(exists, i, &err);
        if (status != RDT_AGAIN)
            set(exists, i, status, &err);
        if (exists->next % 16 == 0 && uv_hrtime() >= until_ns)
            return false;
    }
    if (exists->next < exists->n || exists->n_seeking > 0)
        return true; /* seeking_end goes on */
    list_each_safe (struct asking, asking, &exists->askings, link)
        if (!asking->question)
            ask(exists, asking);
    if (exists->n_asked == 0)
        answer(exists);
    return true;
}

enum rdt_status rpc_exists(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Exists *message = request;
    uint32_t n = message->refs ? (uint32_t)message->refs->n_id_bytes : 0, at = 0;
    uint64_t heap = call->request.payload_bytes + (uint64_t)n * REF_HEAP_BYTES;
    struct exists *exists;
    enum rdt_status status = ref_list_check(message->refs, err);

    if (status == RDT_OK)
        status = account_take(call->account, USAGE_HEAP, heap, err);
    if (status != RDT_OK)
        return status;
    exists = calloc(1, sizeof *exists);
    if (exists) {
        exists->at = malloc((n + 1u) * sizeof *exists->at);
        exists->status = calloc(n + 1u, sizeof *exists->status);
    }
    status = exists && exists->at && exists->status ? call_defer(call, -1, on_end, err)
                                                    : rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for %u refs", n);
    if (status != RDT_OK) {
        account_give(call->account, USAGE_HEAP, heap);
        call->on_end = NULL;
        if (exists) {
            free(exists->at);
            free(exists->status);
        }
        free(exists);
        return status;
    }
    exists->call = call;
    exists->slice.run = walk;
    exists->refs = message->refs;
    exists->n = n;
    exists->heap = heap;
    exists->patience.on_passed = on_silence;
    list_init(&exists->seekings);
    list_init(&exists->askings);
    for (uint32_t i = 0; i < n; i++) {
        exists->at[i] = at;
        at += message->refs->id_bytes[i];
    }
    call_take_request(call, &exists->arena);
    call->waiting = exists;
    slice_begin(&call->rpc->deadlines->slices, &exists->slice);
    return RDT_OK;
}
