/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_ref.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "wire_limits.h"

static bool node_is_set(const struct rdt_ref *ref)
{
    static const uint8_t none[sizeof ref->node];

    return memcmp(ref->node, none, sizeof none) != 0;
}

/* protobuf-c's structs have no const, but packing a message writes nothing. */
void wire_ref_from(const struct rdt_ref *ref, Rdt__Pb__Ref *msg_p)
{
    rdt__pb__ref__init(msg_p);
    if (node_is_set(ref)) {
        msg_p->node.data = (uint8_t *)ref->node;
        msg_p->node.len = sizeof ref->node;
    }
    msg_p->id.data = (uint8_t *)ref->id;
    msg_p->id.len = ref->id_bytes < sizeof ref->id ? ref->id_bytes : sizeof ref->id - 1;
    msg_p->is_name = ref->is_name != 0;
    if (ref->is_name)
        msg_p->after = ref->after;
    else
        msg_p->generation = ref->generation;
    msg_p->address = (char *)ref->address;
    msg_p->any_owner = ref->any_owner != 0;
    if (!ref->any_owner) {
        msg_p->tenant = (char *)ref->tenant;
        msg_p->uid = ref->uid;
    }
}

enum rdt_status wire_ref_to(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_ref ref;
    enum rdt_status status;
    size_t address, tenant;

    if (!msg)
        return rdt_error_set(err, RDT_INVALID, "the message has no ref");
    status = rdt_ref_from_id(msg->id.data, msg->id.len, &ref, err);
    if (status != RDT_OK)
        return status;
    if (msg->node.len != 0 && msg->node.len != sizeof ref.node)
        return rdt_error_set(err, RDT_INVALID, "the ref's node has %zu bytes: it must have %zu", msg->node.len,
                             sizeof ref.node);
    address = msg->address ? strnlen(msg->address, sizeof ref.address) : 0; /* thousands of refs may have it in common */
    tenant = msg->tenant ? strnlen(msg->tenant, sizeof ref.tenant) : 0;
    if (address >= sizeof ref.address)
        return rdt_error_set(err, RDT_INVALID, "the ref's address is longer than %zu bytes, which is the most",
                             sizeof ref.address - 1);
    if (tenant >= sizeof ref.tenant)
        return rdt_error_set(err, RDT_INVALID, "the ref's tenant is longer than %zu bytes, which is the most",
                             sizeof ref.tenant - 1);

    if (msg->node.len)
        memcpy(ref.node, msg->node.data, sizeof ref.node);
    if (address)
        memcpy(ref.address, msg->address, address);
    if (msg->is_name && msg->generation != 0)
        return rdt_error_set(err, RDT_INVALID, "the ref has both a generation and a name");
    ref.generation = msg->generation;
    ref.is_name = msg->is_name ? 1 : 0;
    ref.after = msg->is_name ? msg->after : 0;
    if (!msg->any_owner) {
        ref.any_owner = 0;
        ref.uid = msg->uid;
        if (tenant)
            memcpy(ref.tenant, msg->tenant, tenant);
    }
    *ref_p = ref;
    return RDT_OK;
}

void wire_ref_id_text(const void *id, size_t bytes, char *text_p)
{
    for (size_t i = 0; i < bytes; i++) {
        uint8_t c = ((const uint8_t *)id)[i];
        if (c > ' ' && c < 0x7f && c != '%')
            *text_p++ = (char)c;
        else
            text_p += sprintf(text_p, "%%%02X", c);
    }
    *text_p = '\0';
}

size_t wire_ref_generated_id(uint64_t generation, char id_p[WIRE_REF_GENERATED_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 2, shift = 60;

    id_p[0] = 'o';
    id_p[1] = '-';
    while (shift > 0 && generation >> shift == 0)
        shift -= 4;
    for (;; shift -= 4) {
        id_p[n++] = digits[generation >> shift & 15];
        if (shift == 0)
            break;
    }
    id_p[n] = '\0';
    return n;
}

static bool is_failure(int32_t status)
{
    switch (status) {
#define X(number, name, sentence) case number:
        RDT_STATUS_MAP(X)
#undef X
        return status != RDT_OK && status != RDT_AGAIN && status != RDT_DISCONNECTED && status != RDT_FORKED;
    }
    return false;
}

enum rdt_status wire_error(int32_t status, int32_t sys_errno, const char *message, struct rdt_error *err)
{
    if (!is_failure(status))
        return rdt_error_set(err, RDT_PROTOCOL, "the other end reported a failure with status %d, which is not a failure%s%s",
                             (int)status, message[0] ? ": " : "", message);
    (void)rdt_error_set(err, (enum rdt_status)status, "%s",
                        message[0] ? message : rdt_status_sentence((enum rdt_status)status));
    if (err)
        err->sys_errno = sys_errno;
    return (enum rdt_status)status;
}

/* ---- lists of refs ---- */

/* What refs may have in common, with zeros in all bytes that do not count. */
struct like {
    uint8_t node[16];
    uint64_t after;
    uint32_t uid;
    bool is_name, any_owner;
    char address[sizeof((struct rdt_ref *)0)->address], tenant[sizeof((struct rdt_ref *)0)->tenant];
};

/* The `like`s that a list has already: a hash table of their numbers, which are above 0 there. */
struct likes {
    struct like *all; /* [n] */
    uint32_t n, last;
    uint32_t *slots; /* [n_slots]; NULL: there is only one `like` so far */
    size_t n_slots;  /* a power of two */
};

static void make_like(const struct rdt_ref *ref, struct like *like_p)
{
    memset(like_p, 0, sizeof *like_p);
    memcpy(like_p->node, ref->node, sizeof like_p->node);
    like_p->is_name = ref->is_name != 0;
    like_p->after = ref->is_name ? ref->after : 0;
    like_p->any_owner = ref->any_owner != 0;
    memcpy(like_p->address, ref->address, strnlen(ref->address, sizeof like_p->address - 1));
    if (ref->any_owner)
        return;
    like_p->uid = ref->uid;
    memcpy(like_p->tenant, ref->tenant, strnlen(ref->tenant, sizeof like_p->tenant - 1));
}

/* The slot of all[number], or where it belongs. */
static uint32_t *slot_of(const struct likes *likes, uint32_t number)
{
    const struct like *like = &likes->all[number];

    for (size_t i = XXH3_64bits(like, sizeof *like);; i++) {
        uint32_t *slot = &likes->slots[i & (likes->n_slots - 1)];
        if (*slot == 0 || memcmp(&likes->all[*slot - 1], like, sizeof *like) == 0)
            return slot;
    }
}

/* Writes the number of what the ref has in common with others: likes->n, if it is the first. False: no memory. */
static bool find_like(struct likes *likes, struct arena *arena, const struct rdt_ref *ref, size_t n_refs, uint32_t *number_p)
{
    uint32_t *slot;

    make_like(ref, &likes->all[likes->n]);
    if (likes->n > 0 && memcmp(&likes->all[likes->last], &likes->all[likes->n], sizeof *likes->all) == 0) {
        *number_p = likes->last;
        return true;
    }
    if (likes->n > 0 && !likes->slots) {
        for (likes->n_slots = 2; likes->n_slots < 2 * n_refs; likes->n_slots *= 2)
            ;
        likes->slots = arena_alloc(arena, likes->n_slots * sizeof *likes->slots);
        if (!likes->slots)
            return false;
        memset(likes->slots, 0, likes->n_slots * sizeof *likes->slots);
        *slot_of(likes, 0) = 1;
    }
    slot = likes->slots ? slot_of(likes, likes->n) : NULL;
    if (slot && *slot == 0)
        *slot = likes->n + 1;
    *number_p = likes->last = slot ? *slot - 1 : 0;
    return true;
}

enum rdt_status ref_list_make(struct arena *arena, const struct rdt_ref *refs, const size_t *which, size_t n,
                              Rdt__Pb__RefList **list_p, struct rdt_error *err)
{
    Rdt__Pb__RefList *list = arena_message(arena, &rdt__pb__ref_list__descriptor);
    struct likes likes = {.all = arena_alloc(arena, (n + 1) * sizeof *likes.all)};
    size_t bytes = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        bytes += refs[which ? which[i] : i].id_bytes;
    if (list) {
        list->ids.data = arena_alloc(arena, bytes + 1);
        list->id_bytes = arena_alloc(arena, (n + 1) * sizeof *list->id_bytes);
        list->generation = arena_alloc(arena, (n + 1) * sizeof *list->generation);
        list->like_index = arena_alloc(arena, (n + 1) * sizeof *list->like_index);
        list->like = arena_alloc(arena, (n + 1) * sizeof *list->like);
    }
    if (!likes.all || !list || !list->ids.data || !list->id_bytes || !list->generation || !list->like_index || !list->like)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu refs", n);
    for (size_t i = 0; i < n; i++) {
        const struct rdt_ref *ref = &refs[which ? which[i] : i];
        uint32_t like;

        if (!find_like(&likes, arena, ref, n, &like))
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu refs", n);
        if (like == likes.n) {
            Rdt__Pb__Ref *message = arena_alloc(arena, sizeof *message);
            if (!message)
                return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu refs", n);
            wire_ref_from(ref, message);
            message->id.len = 0;
            message->generation = 0;
            list->like[list->n_like++] = message;
            likes.n++;
        }
        memcpy(list->ids.data + at, ref->id, ref->id_bytes);
        at += ref->id_bytes;
        list->id_bytes[i] = ref->id_bytes;
        list->generation[i] = ref->is_name ? 0 : ref->generation;
        list->like_index[i] = like;
        list->n_generation = list->generation[i] != 0 ? n : list->n_generation;
    }
    list->ids.len = at;
    list->n_id_bytes = n;
    list->n_like_index = list->n_like > 1 ? n : 0;
    *list_p = list;
    return RDT_OK;
}

enum rdt_status ref_list_check(const Rdt__Pb__RefList *list, struct rdt_error *err)
{
    size_t n = list ? list->n_id_bytes : 0, bytes = 0;

    if (n > RDT_MAX_FETCH_REFS)
        return rdt_error_set(err, RDT_LIMIT, "the list has %zu refs: one message may have at most %u", n, RDT_MAX_FETCH_REFS);
    if (n == 0)
        return RDT_OK;
    if ((list->n_generation != 0 && list->n_generation != n) || (list->n_like_index != 0 && list->n_like_index != n) ||
        list->n_like == 0 || list->n_like > n)
        return rdt_error_set(err, RDT_INVALID,
                             "the columns of a list of %zu refs have %zu generations, %zu indices and %zu to be like", n,
                             list->n_generation, list->n_like_index, list->n_like);
    for (size_t i = 0; i < n; i++) {
        if (list->n_like_index && list->like_index[i] >= list->n_like)
            return rdt_error_set(err, RDT_INVALID, "ref %zu is like number %u of %zu", i, list->like_index[i], list->n_like);
        if (list->id_bytes[i] > RDT_MAX_ID_BYTES)
            return rdt_error_set(err, RDT_INVALID, "the id of ref %zu has %u bytes: at most %u are allowed", i,
                                 list->id_bytes[i], RDT_MAX_ID_BYTES);
        bytes += list->id_bytes[i];
    }
    if (bytes != list->ids.len)
        return rdt_error_set(err, RDT_INVALID, "the ids of %zu refs have %zu bytes, and the list has %zu", n, bytes,
                             list->ids.len);
    return RDT_OK;
}

enum rdt_status ref_list_get(const Rdt__Pb__RefList *list, size_t i, size_t at, struct rdt_ref *ref_p, struct rdt_error *err)
{
    Rdt__Pb__Ref message = *list->like[list->n_like_index ? list->like_index[i] : 0];

    message.id = (ProtobufCBinaryData){list->id_bytes[i], list->ids.data + at};
    message.generation = list->n_generation ? list->generation[i] : 0;
    return wire_ref_to(&message, ref_p, err);
}
