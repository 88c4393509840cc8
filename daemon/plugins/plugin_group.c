/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of plug-ins about groups, and the calls that create and end one rank of a group. */
#include <assert.h>
#include <stdio.h>

#include "daemon/base/log.h"
#include "daemon/plugins/plugin.h"
#include "daemon/plugins/plugin_events.h"

/* ---- reports of foreign threads ---- */

static void queue_once(struct plugin_group *group, struct plugin_event *event)
{
    struct plugin_events *events = group->transport->events;

    pthread_mutex_lock(&events->mutex);
    if (list_empty(&event->link))
        plugin_events_add(events, event);
    pthread_mutex_unlock(&events->mutex);
}

static void deliver_ready(struct plugin_event *event)
{
    struct plugin_group *group = container_of(event, struct plugin_group, ready);

    if (!group->closing)
        group->on_ready(group);
}

static void host_ready(void *group_ctx)
{
    struct plugin_group *group = group_ctx;

    queue_once(group, &group->ready);
}

static void deliver_failed(struct plugin_event *event)
{
    struct plugin_group *group = container_of(event, struct plugin_group, failed);

    if (!group->closing)
        group->on_failed(group, group->status, group->msg);
}

static void host_failed(void *group_ctx, enum rdt_status status, const char *msg)
{
    struct plugin_group *group = group_ctx;
    struct plugin_events *events = group->transport->events;

    pthread_mutex_lock(&events->mutex);
    if (!group->has_failed) {
        group->has_failed = true;
        group->status = status;
        (void)snprintf(group->msg, sizeof group->msg, "%s", msg && msg[0] != 0 ? msg : rdt_status_sentence(status));
        plugin_events_add(events, &group->failed);
    }
    pthread_mutex_unlock(&events->mutex);
}

static void deliver_closed(struct plugin_event *event)
{
    struct plugin_group *group = container_of(event, struct plugin_group, closed);

    if (group->closing)
        group->on_closed(group);
    else
        log_error("bug in transport %s: it reported the close of a group that was not being closed", group->transport->name);
}

static void host_closed(void *group_ctx)
{
    struct plugin_group *group = group_ctx;

    queue_once(group, &group->closed);
}

void plugin_group_host(struct rdt_host *host)
{
    host->group_ready = host_ready;
    host->group_failed = host_failed;
    host->group_closed = host_closed;
}

/* ---- calls ---- */

bool transport_is_grouped(const struct transport *transport)
{
    return !transport->ops.connection_create;
}

static void drop_events(struct plugin_group *group)
{
    struct plugin_events *events = group->transport->events;

    pthread_mutex_lock(&events->mutex);
    list_remove(&group->ready.link);
    list_remove(&group->failed.link);
    list_remove(&group->closed.link);
    pthread_mutex_unlock(&events->mutex);
}

enum rdt_status plugin_group_create(struct plugin_group *group, struct transport *transport, const struct rdt_group_desc *desc,
                                    struct rdt_error *err)
{
    void *handle;
    enum rdt_status status;

    assert(group->on_ready && group->on_failed && group->on_closed);
    if (!transport->available)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s: %s", transport->name, transport->why_not);
    if (!transport->ops.group_create)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s does not support groups", transport->name);
    group->transport = transport;
    group->handle = NULL;
    group->ready.deliver = deliver_ready;
    group->failed.deliver = deliver_failed;
    group->closed.deliver = deliver_closed;
    list_init(&group->ready.link);
    list_init(&group->failed.link);
    list_init(&group->closed.link);
    group->has_failed = group->closing = false;
    status = transport->ops.group_create(transport->instance, desc, group, &handle, err);
    if (status != RDT_OK)
        drop_events(group);
    else
        group->handle = handle;
    return status;
}

void plugin_group_conn(struct plugin_group *group, uint32_t rank, struct plugin_conn *conn)
{
    conn->transport = group->transport;
    conn->handle = group->transport->ops.group_conn(group->handle, rank);
}

void plugin_group_close(struct plugin_group *group)
{
    if (group->closing)
        return;
    group->closing = true;
    group->transport->ops.group_close(group->handle);
}

void plugin_group_destroy(struct plugin_group *group)
{
    if (!group->handle)
        return;
    group->transport->ops.group_destroy(group->handle);
    group->handle = NULL;
    drop_events(group); /* after group_destroy, since the plug-in's threads may report until then */
}
