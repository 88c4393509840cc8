/* SPDX-License-Identifier: Apache-2.0 */
/* Memory kinds on devices: the list of devices, and the copies that the plug-in carries out. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/text.h"
#include "daemon/plugins/plugin.h"
#include "daemon/plugins/plugin_events.h"

#define MAX_DEVICES 256u

/* ---- devices ---- */

enum rdt_status plugin_memory_devices(struct memory_kind *kind, uint64_t limit_bytes, uint64_t ready_max_bytes,
                                      struct rdt_error *err)
{
    struct rdt_device *found;
    uint32_t n;

    if (!kind->ops.devices)
        return RDT_OK;
    found = calloc(MAX_DEVICES, sizeof *found);
    kind->devices = calloc(MAX_DEVICES, sizeof *kind->devices);
    if (!found || !kind->devices) {
        free(found);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the devices of %s", kind->name);
    }
    n = kind->ops.devices(kind->instance, found, MAX_DEVICES);
    for (uint32_t i = 0; i < n && i < MAX_DEVICES; i++) {
        struct memory_device *device = &kind->devices[kind->n_devices++];
        device->kind = kind;
        device->index = i;
        list_init(&device->memory.awaiting);
        device->bytes = found[i].bytes;
        device->memory.limit_bytes = limit_bytes ? limit_bytes : found[i].bytes - found[i].bytes / 10;
        device->memory.pool_max_bytes = ready_max_bytes ? ready_max_bytes : device->memory.limit_bytes / 4;
        text_copy(device->uuid, sizeof device->uuid, found[i].uuid);
        text_copy(device->name, sizeof device->name, found[i].name);
        device->numa_node = kind->ops.numa_node ? kind->ops.numa_node(kind->instance, device->uuid) : -1;
    }
    free(found);
    return RDT_OK;
}

void plugin_memory_fini(struct memory_kind *kind)
{
    free(kind->devices);
    kind->devices = NULL;
    kind->n_devices = 0;
}

struct rdt_device memory_device_now(const struct memory_device *device)
{
    struct rdt_device now[MAX_DEVICES] = {0};

    (void)device->kind->ops.devices(device->kind->instance, now, device->kind->n_devices);
    return now[device->index];
}

static void list_devices(const struct memory_kind *kind, char *text_p, size_t size)
{
    (void)snprintf(text_p, size, "%s", kind->n_devices == 0 ? "none" : "");
    for (unsigned i = 0; i < kind->n_devices; i++) {
        size_t used = strlen(text_p);
        (void)snprintf(text_p + used, size - used, "%s%s", i ? ", " : "", kind->devices[i].uuid);
    }
}

struct memory_device *memory_kind_device(const struct memory_kind *kind, const char *uuid, struct rdt_error *err)
{
    struct memory_device *device = NULL;
    struct rdt_device now;
    char devices[320];

    for (unsigned i = 0; i < kind->n_devices && !device; i++)
        if (strcasecmp(kind->devices[i].uuid, uuid) == 0 || (uuid[0] == '\0' && kind->n_devices == 1))
            device = &kind->devices[i];
    list_devices(kind, devices, sizeof devices);
    if (!device && uuid[0] == '\0' && kind->n_devices > 1)
        (void)rdt_error_set(err, RDT_INVALID, "this node has %s memory on several devices: name one of %s", kind->name,
                            devices);
    else if (!device)
        (void)rdt_error_set(err, RDT_UNSUPPORTED, "this node has no %s device \"%.64s\"; it has: %s", kind->name, uuid,
                            devices);
    if (!device)
        return NULL;
    now = memory_device_now(device);
    if (!now.why_not)
        return device;
    (void)rdt_error_set(err, RDT_UNSUPPORTED, "%s device %s cannot be used: %s", kind->name, device->uuid, now.why_not);
    return NULL;
}

/* ---- copies ---- */

static void copy_ended(struct plugin_events *events)
{
    void (*on_copied)(void *arg) = events->on_copied;

    if (--events->copies > 0 || !on_copied)
        return;
    events->on_copied = NULL;
    on_copied(events->copied_arg);
}

void plugin_copies_await(struct plugin_events *events, void (*on_copied)(void *arg), void *arg)
{
    assert(!events->on_copied);
    if (events->copies == 0) {
        on_copied(arg);
        return;
    }
    events->on_copied = on_copied;
    events->copied_arg = arg;
}

static void deliver_copied(struct plugin_event *event)
{
    struct plugin_copy *copy = container_of(event, struct plugin_copy, done);
    struct plugin_events *events = copy->kind->events;
    char *msg = copy->msg;

    copy->msg = NULL;
    memory_kind_unuse(copy->kind);
    copy->on_done(copy, copy->status, msg ? msg : rdt_status_sentence(copy->status));
    free(msg);
    copy_ended(events); /* after on_done, which may have started another copy */
}

static void host_copy_done(struct rdt_memory_copy *rdt_copy, enum rdt_status status, const char *msg)
{
    struct plugin_copy *copy = container_of(rdt_copy, struct plugin_copy, copy);

    copy->status = status;
    copy->msg = msg && msg[0] ? strdup(msg) : NULL;
    plugin_events_queue(copy->kind->events, &copy->done);
}

void plugin_memory_host(struct rdt_host *host)
{
    host->copy_done = host_copy_done;
}

enum rdt_status plugin_copy_start(struct memory_kind *kind, struct plugin_copy *copy, struct rdt_error *err)
{
    enum rdt_status status;

    assert(copy->on_done && kind->ops.copy_start);
    copy->kind = kind;
    copy->done.deliver = deliver_copied;
    list_init(&copy->done.link);
    copy->status = RDT_OK;
    copy->msg = NULL;
    memset(copy->copy.priv, 0, sizeof copy->copy.priv);
    memory_kind_use(kind);
    kind->events->copies++;
    status = kind->ops.copy_start(kind->instance, &copy->copy, err);
    if (status != RDT_OK) {
        memory_kind_unuse(kind);
        kind->events->copies--; /* the caller does not wait for it */
    }
    return status;
}
