/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_group_create, rdt_group_destroy and rdt_group_list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "options.h"
#include "proto/wire_limits.h"
#include "rdt.pb-c.h"
#include "session/clock.h"
#include "session/connection.h"

/* The daemon ends the request at its deadline and says what was missing. librdt waits a little longer for that answer. */
#define SLACK_NS (INT64_C(5) * 1000000000)

static int64_t answer_ns(int64_t timeout_ns)
{
    return timeout_ns < 0 || timeout_ns > INT64_MAX - SLACK_NS ? RDT_FOREVER : timeout_ns + SLACK_NS;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_uuid(const char *text, uint8_t uuid[16])
{
    if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    for (unsigned i = 0; i < 16; i++)
        uuid[i] = (uint8_t)(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
    return true;
}

struct member {
    Rdt__Pb__GroupMember message;
    uint8_t uuid[16]; /* what message.node refers to */
};

static enum rdt_status fill(struct member *own, const struct rdt_member *member, size_t i, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    rdt__pb__group_member__init(&own->message);
    if (!member->client || !member->client[0])
        return rdt_error_set(err, RDT_INVALID, "member %zu names no client", i);
    status = options_check_text(member->client, RDT_MAX_NAME_BYTES, "the client's name", err);
    if (status == RDT_OK)
        status = options_check_text(member->device, RDT_MAX_NAME_BYTES, "the device", err);
    if (status == RDT_OK)
        status = options_check_text(member->node, RDT_MAX_ADDRESS_BYTES, "the node", err);
    if (status != RDT_OK) {
        rdt_error_prefix(err, "member %zu", i);
        return status;
    }
    own->message.client = (char *)(uintptr_t)member->client;
    if (member->device)
        own->message.device = (char *)(uintptr_t)member->device;
    if (member->node && read_uuid(member->node, own->uuid))
        own->message.node = (ProtobufCBinaryData){sizeof own->uuid, own->uuid};
    else if (member->node)
        own->message.address = (char *)(uintptr_t)member->node;
    return RDT_OK;
}

enum rdt_status rdt_group_create(rdt *conn, const char *name, const char *transport, const struct rdt_member *members,
                                 size_t count, const struct rdt_group_options *options, struct rdt_error *err)
{
    Rdt__Pb__GroupCreate request = RDT__PB__GROUP_CREATE__INIT;
    struct rdt_group_options own;
    struct member *own_members = NULL;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK && (!name || !transport || (count > 0 && !members)))
        status = rdt_error_set(err, RDT_INVALID, "a group needs a name, a transport and members");
    if (status == RDT_OK)
        status = options_check_text(name, RDT_MAX_NAME_BYTES, "the name", err);
    if (status == RDT_OK)
        status = options_check_text(transport, RDT_MAX_NAME_BYTES, "the transport", err);
    if (status == RDT_OK && count > RDT_MAX_GROUP_MEMBERS)
        status = rdt_error_set(err, RDT_LIMIT, "the group has %zu members, and the limit is %u", count, RDT_MAX_GROUP_MEMBERS);
    if (status != RDT_OK)
        return status;
    own_members = calloc(count + 1, sizeof *own_members);
    request.members = calloc(count + 1, sizeof(Rdt__Pb__GroupMember *));
    if (!own_members || !request.members)
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a group of %zu", count);
    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        status = fill(&own_members[i], &members[i], i, err);
        request.members[request.n_members++] = &own_members[i].message;
    }
    if (status == RDT_OK) {
        request.name = (char *)(uintptr_t)name;
        request.transport = (char *)(uintptr_t)transport;
        request.timeout_ns = own.timeout_ns == 0             ? CALL_TIMEOUT_NS
                             : own.timeout_ns == RDT_NO_WAIT ? CLOCK_NO_WAIT_NS
                                                             : own.timeout_ns;
        status = call(conn, RDT_MSG_GROUP_CREATE, &request.base, answer_ns(request.timeout_ns), NULL, err);
    }
    free(request.members);
    free(own_members);
    return status;
}

enum rdt_status rdt_group_destroy(rdt *conn, const char *name, struct rdt_error *err)
{
    Rdt__Pb__GroupDestroy request = RDT__PB__GROUP_DESTROY__INIT;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !name)
        status = rdt_error_set(err, RDT_INVALID, "the group's name is NULL");
    if (status == RDT_OK)
        status = options_check_text(name, RDT_MAX_NAME_BYTES, "the name", err);
    if (status != RDT_OK)
        return status;
    request.name = (char *)(uintptr_t)name;
    return call(conn, RDT_MSG_GROUP_DESTROY, &request.base, CALL_TIMEOUT_NS, NULL, err);
}

static void fill_group(struct rdt_group *group, const Rdt__Pb__GroupInfo *info)
{
    memset(group, 0, sizeof *group);
    (void)snprintf(group->name, sizeof group->name, "%s", info->name);
    (void)snprintf(group->transport, sizeof group->transport, "%s", info->transport);
    (void)snprintf(group->state, sizeof group->state, "%s", info->state);
    (void)snprintf(group->why, sizeof group->why, "%s", info->why);
    group->epoch = info->epoch;
    group->members = (uint32_t)info->n_members;
    group->ranks = info->ranks;
}

enum rdt_status rdt_group_list(rdt *conn, struct rdt_group *groups, size_t max, size_t *count_p, struct rdt_error *err)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    struct rdt_node_info own;
    size_t n = 0;
    enum rdt_status status = options_check_out(count_p, "count_p", err);

    if (status == RDT_OK && max > 0)
        status = options_check_out(groups, "groups_p", err);
    if (status == RDT_OK)
        status = rdt_node(conn, &own, err);
    request.kind = RDT__PB__LIST_KIND__LIST_KIND_GROUPS;
    while (status == RDT_OK) {
        Rdt__Pb__ListReply *page;

        status = call_list(conn, &request, CALL_TIMEOUT_NS, &page, err);
        if (status != RDT_OK)
            break;
        for (size_t i = 0; i < page->n_groups; i++) {
            if (page->groups[i]->uid != own.uid || strcmp(page->groups[i]->tenant, own.tenant) != 0)
                continue; /* root sees the groups of all owners */
            if (n < max)
                fill_group(&groups[n], page->groups[i]);
            n++;
        }
        rdt__pb__list_reply__free_unpacked(page, NULL);
        if (request.after == 0) {
            *count_p = n;
            break;
        }
    }
    return status;
}
