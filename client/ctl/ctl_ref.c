/* SPDX-License-Identifier: Apache-2.0 */
/* Refs and names on the command line. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"
#include "ctl_table.h"
#include "wire_limits.h"
#include "wire_ref.h"

int ctl_ref(struct ctl *ctl, const char *text, struct rdt_ref *ref_p)
{
    struct rdt_error err;

    if (rdt_ref_from_text(text, ref_p, &err) == RDT_OK)
        return CTL_GO;
    return ctl_usage_error(ctl, "'%.60s': %s", text, err.msg);
}

/* An object that was freed has given up its id, so that another one can have it, and is found in the list only. */
static enum rdt_status find_freed(struct ctl *ctl, struct rdt_ref *ref, struct rdt_error *err)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    const uint32_t uid = ref->any_owner ? (uint32_t)geteuid() : ref->uid;
    struct rdt_ref wanted = *ref, found;
    Rdt__Pb__ListReply *page;
    enum rdt_status status;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_OBJECTS;
    request.state = "draining";
    do {
        status = ctl_page(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), &request, &page, err);
        if (status != RDT_OK)
            return status;
        for (size_t i = 0; i < page->n_objects; i++) {
            const Rdt__Pb__ObjectInfo *o = page->objects[i];

            if (o->uid == uid && o->generation > ref->generation && rdt_ref_from_text(o->ref, &found, NULL) == RDT_OK &&
                found.id_bytes == wanted.id_bytes && memcmp(found.id, wanted.id, found.id_bytes) == 0)
                *ref = found;
        }
        ctl_reply_free(&page->base);
    } while (request.after);
    return RDT_OK;
}

enum rdt_status ctl_object_of(struct ctl *ctl, struct rdt_ref *ref, struct rdt_error *err)
{
    static const uint8_t here[sizeof ref->node];
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT;
    Rdt__Pb__Ref ref_msg = RDT__PB__REF__INIT;
    ProtobufCMessage *reply;
    enum rdt_status status;

    if (ref->generation != 0 || ref->is_name)
        return RDT_OK;
    wire_ref_from(ref, &ref_msg);
    request.ref = &ref_msg;
    status = ctl_call(ctl, RDT_MSG_STAT, &request.base, &reply, err);
    if (status == RDT_OK) {
        const Rdt__Pb__ObjectInfo *info = (const Rdt__Pb__ObjectInfo *)reply;

        if (info->generation != 0) /* or it is awaited */
            status = rdt_ref_from_text(info->ref, ref, err);
        ctl_reply_free(reply);
        return status;
    }
    if (status != RDT_NOT_FOUND || memcmp(ref->node, here, sizeof here) != 0 || ref->address[0] != '\0')
        return status;
    status = find_freed(ctl, ref, err);
    return status != RDT_OK || ref->generation != 0 ? status : RDT_NOT_FOUND;
}

bool ctl_transfer(const char *text, uint64_t *number_p)
{
    if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) >= 20)
        return false;
    *number_p = strtoull(text, NULL, 10);
    return true;
}

int ctl_ref_or_name(struct ctl *ctl, const char *text, const struct ctl_name *name, struct rdt_ref *ref_p)
{
    struct rdt_error err;
    enum rdt_status status = RDT_OK;

    if (!text == !name->name)
        return ctl_usage_error(ctl, text ? "a REF and --name exclude each other" : "needs a REF, or --name NAME");
    if (text && name->node)
        return ctl_usage_error(ctl, "--node needs --name: a REF contains its node");
    if (text && name->owner)
        return ctl_usage_error(ctl, "--owner needs --name: a REF contains its owner");
    if (text && ctl_ref(ctl, text, ref_p) != CTL_GO)
        return CTL_USAGE;
    if (!text)
        status = rdt_ref_from_name(name->name, 0, NULL, ref_p, &err);
    if (status == RDT_OK && name->node)
        status = rdt_ref_set_address(ref_p, name->node, &err);
    if (status)
        return ctl_usage_error(ctl, "%s", err.msg);
    if (name->after != CTL_NO_VERSION && !ref_p->is_name)
        return ctl_usage_error(ctl, "--after needs a name, but '%.60s' is an object", text);
    if (name->after != CTL_NO_VERSION)
        ref_p->after = name->after;
    if (name->owner) {
        if (ctl_connect(ctl, &err))
            return ctl_fail(ctl, &err);
        if (rdt_ref_set_owner(ctl->rdt, ref_p, name->owner, &err))
            return ctl_usage_error(ctl, "--owner: %s", err.msg);
    }
    return CTL_GO;
}

const char *ctl_id_of(const char *text, char *text_p, size_t size)
{
    char id[3 * RDT_MAX_ID_BYTES + 1];
    struct rdt_ref ref;

    if (rdt_ref_from_text(text, &ref, NULL) != RDT_OK)
        return ctl_plain(text, text_p, size);
    wire_ref_id_text(ref.id, ref.id_bytes, id);
    return ctl_plain(id, text_p, size);
}
