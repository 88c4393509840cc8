/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_ref.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

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
