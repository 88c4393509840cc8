/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_publish, rdt_unpublish and rdt_ref_set_owner. */
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "options.h"
#include "rdt.pb-c.h"
#include "session/connection.h"

#define USER_BYTES 65536u /* for one entry of the user database */

/* Makes the ref of the name, which has the node and the owner of the object. What the object's ref leaves open is this node
 * and this session's owner. */
static enum rdt_status name_ref(const rdt *conn, const char *name, const struct rdt_ref *object, struct rdt_ref *ref_p,
                                struct rdt_error *err)
{
    static const uint8_t here[sizeof object->node];
    struct rdt_ref near = *object;
    struct rdt_node_info node;

    connection_copy_node(conn, &node);
    if (memcmp(near.node, here, sizeof here) == 0) {
        memcpy(near.node, node.node, sizeof near.node);
        memcpy(near.address, node.address, sizeof near.address);
    }
    if (near.any_owner) {
        near.any_owner = 0;
        near.uid = node.uid;
        memcpy(near.tenant, node.tenant, sizeof near.tenant);
    }
    return rdt_ref_from_name(name, 0, &near, ref_p, err);
}

enum rdt_status rdt_publish(rdt *conn, const char *name, const struct rdt_ref *object,
                            const struct rdt_publish_options *options, uint64_t *version_p, struct rdt_error *err)
{
    Rdt__Pb__Publish request = RDT__PB__PUBLISH__INIT;
    Rdt__Pb__Ref message;
    struct rdt_publish_options own;
    struct rdt_ref ref;
    ProtobufCMessage *reply;
    enum rdt_status status = call_wire_ref(conn, object, &message, err);

    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK)
        status = name_ref(conn, name, object, &ref, err);
    if (status == RDT_OK && (unsigned)own.visibility > RDT_VISIBLE_TO_ALL)
        status = rdt_error_set(err, RDT_INVALID, "visibility %d is unknown", (int)own.visibility);
    if (status == RDT_OK && own.ttl_ns < 0)
        status = rdt_error_set(err, RDT_INVALID, "ttl_ns is %lld: it must not be negative", (long long)own.ttl_ns);
    if (status != RDT_OK)
        return status;
    request.name = (ProtobufCBinaryData){ref.id_bytes, (uint8_t *)ref.id};
    request.ref = &message;
    request.visibility = (Rdt__Pb__Visibility)own.visibility;
    request.lease = own.lease;
    request.ttl_ns = own.ttl_ns;
    status = call(conn, RDT_MSG_PUBLISH, &request.base, CALL_TIMEOUT_NS, &reply, err);
    if (status != RDT_OK)
        return status;
    if (version_p)
        *version_p = ((const Rdt__Pb__PublishReply *)reply)->version;
    if (own.name_ref)
        *own.name_ref = ref;
    protobuf_c_message_free_unpacked(reply, NULL);
    return RDT_OK;
}

enum rdt_status rdt_unpublish(rdt *conn, const struct rdt_ref *name, struct rdt_error *err)
{
    Rdt__Pb__Unpublish request = RDT__PB__UNPUBLISH__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = call_wire_ref(conn, name, &message, err);

    if (status == RDT_OK && !name->is_name)
        status =
            rdt_error_set(err, RDT_INVALID, "this is the ref of an object, not of a name: make one with rdt_ref_from_name");
    if (status != RDT_OK)
        return status;
    request.name = &message;
    return call(conn, RDT_MSG_UNPUBLISH, &request.base, CALL_TIMEOUT_NS, NULL, err);
}

static enum rdt_status find_uid(const char *user, uint32_t *uid_p, struct rdt_error *err)
{
    struct passwd entry, *found = NULL;
    char *end, *buffer;
    unsigned long uid;

    if (!user || *user == '\0')
        return rdt_error_set(err, RDT_INVALID, "the user is empty");
    uid = strtoul(user, &end, 10);
    if (*user >= '0' && *user <= '9' && *end == '\0' && uid < UINT32_MAX) {
        *uid_p = (uint32_t)uid;
        return RDT_OK;
    }
    buffer = malloc(USER_BYTES);
    if (!buffer)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to look up user \"%.32s\"", user);
    (void)getpwnam_r(user, &entry, buffer, USER_BYTES, &found);
    if (found)
        *uid_p = entry.pw_uid;
    free(buffer);
    return found ? RDT_OK
                 : rdt_error_set(err, RDT_INVALID, "there is no user \"%.32s\" here: give a login name or a uid", user);
}

enum rdt_status rdt_ref_set_owner(const rdt *conn, struct rdt_ref *ref, const char *user, struct rdt_error *err)
{
    struct rdt_node_info node;
    uint32_t uid = 0;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !ref)
        status = rdt_error_set(err, RDT_INVALID, "the ref is NULL");
    if (status == RDT_OK)
        status = find_uid(user, &uid, err);
    if (status != RDT_OK)
        return status;
    connection_copy_node(conn, &node);
    if (ref->any_owner)
        memcpy(ref->tenant, node.tenant, sizeof ref->tenant);
    ref->any_owner = 0;
    ref->uid = uid;
    return RDT_OK;
}
