/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_ref.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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
    address = msg->address ? strlen(msg->address) : 0;
    tenant = msg->tenant ? strlen(msg->tenant) : 0;
    if (address >= sizeof ref.address)
        return rdt_error_set(err, RDT_INVALID, "the ref's address has %zu bytes: at most %zu are allowed", address,
                             sizeof ref.address - 1);
    if (tenant >= sizeof ref.tenant)
        return rdt_error_set(err, RDT_INVALID, "the ref's tenant has %zu bytes: at most %zu are allowed", tenant,
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

#define LIKES_TRIED 8u /* how many of the latest `like`s a ref is compared with */

static bool is_like(const struct rdt_ref *a, const struct rdt_ref *b)
{
    return memcmp(a->node, b->node, sizeof a->node) == 0 && !a->is_name == !b->is_name && !a->any_owner == !b->any_owner &&
           (!a->is_name || a->after == b->after) && (a->any_owner || a->uid == b->uid) &&
           strncmp(a->address, b->address, sizeof a->address) == 0 &&
           (a->any_owner || strncmp(a->tenant, b->tenant, sizeof a->tenant) == 0);
}

static uint32_t find_like(const struct rdt_ref *const *likes, size_t n, const struct rdt_ref *ref)
{
    for (size_t i = n; i > 0 && n - i < LIKES_TRIED; i--)
        if (is_like(likes[i - 1], ref))
            return (uint32_t)(i - 1);
    return (uint32_t)n;
}

enum rdt_status ref_list_make(struct arena *arena, const struct rdt_ref *refs, size_t n, Rdt__Pb__RefList **list_p,
                              struct rdt_error *err)
{
    Rdt__Pb__RefList *list = arena_message(arena, &rdt__pb__ref_list__descriptor);
    const struct rdt_ref **likes = arena_alloc(arena, (n + 1) * sizeof *likes);
    size_t bytes = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        bytes += refs[i].id_bytes;
    if (list) {
        list->ids.data = arena_alloc(arena, bytes + 1);
        list->id_bytes = arena_alloc(arena, (n + 1) * sizeof *list->id_bytes);
        list->generation = arena_alloc(arena, (n + 1) * sizeof *list->generation);
        list->like_index = arena_alloc(arena, (n + 1) * sizeof *list->like_index);
        list->like = arena_alloc(arena, (n + 1) * sizeof *list->like);
    }
    if (!likes || !list || !list->ids.data || !list->id_bytes || !list->generation || !list->like_index || !list->like)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu refs", n);
    for (size_t i = 0; i < n; i++) {
        uint32_t like = find_like(likes, list->n_like, &refs[i]);

        if (like == list->n_like) {
            Rdt__Pb__Ref *message = arena_alloc(arena, sizeof *message);
            if (!message)
                return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu refs", n);
            wire_ref_from(&refs[i], message);
            message->id.len = 0;
            message->generation = 0;
            likes[list->n_like] = &refs[i];
            list->like[list->n_like++] = message;
        }
        memcpy(list->ids.data + at, refs[i].id, refs[i].id_bytes);
        at += refs[i].id_bytes;
        list->id_bytes[i] = refs[i].id_bytes;
        list->generation[i] = refs[i].is_name ? 0 : refs[i].generation;
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
        list->n_like == 0)
        return rdt_error_set(err, RDT_INVALID, "the columns of a list of %zu refs have %zu generations and %zu indices", n,
                             list->n_generation, list->n_like_index);
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
