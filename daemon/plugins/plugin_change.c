/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and unloads backends while the daemon runs. Constructors, open and close are vendors' code and may
 * take any time, so each change runs on a thread of its own and not on the worker pool. There is one
 * change at a time. Its result comes to the loop through the queue of plug-ins' reports. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/options.h"
#include "daemon/plugins/plugin_host.h"
#include "daemon/plugins/plugin_impl.h"

struct plugin_change {
    struct plugin_event event;
    struct plugins *plugins;
    pthread_t thread;
    const struct options *options; /* NULL when unloading; without a path: opening again */
    char *path;
    struct options_extra *settings;
    struct plugin_roles roles; /* what was loaded, or is unloaded or replaced */
    struct plugin_roles fresh; /* what replaces it */
    enum rdt_status status;
    struct rdt_error err;
    plugins_changed on_changed;
    void *arg;
};

static void change_free(struct plugin_change *change)
{
    if (!change)
        return;
    options_extra_free(change->settings);
    free(change->path);
    free(change);
}

static enum rdt_status open_available(struct plugin_change *change, struct plugin *plugin, struct plugin_roles *roles_p,
                                      struct rdt_error *err)
{
    struct plugin_roles roles;
    enum rdt_status status = plugin_open(change->plugins, plugin, change->options, &roles, err);
    if (status != RDT_OK)
        return status;
    if ((roles.kind && roles.kind->available) || (roles.transport && roles.transport->available)) {
        *roles_p = roles;
        return RDT_OK;
    }
    rdt_error_set(err, RDT_UNSUPPORTED, "backend %s is not available: %s", plugin->path,
                  roles.transport ? roles.transport->why_not : roles.kind->why_not);
    plugin_close(&roles);
    plugin_roles_free(&roles);
    return RDT_UNSUPPORTED;
}

/* Checks and opens a loaded file. Nobody else changes the lists meanwhile, and the loop only reads them. */
static enum rdt_status check_and_open(struct plugin_change *change, struct plugin *plugin, struct rdt_error *err)
{
    enum rdt_status status = plugins_check_names(change->plugins, plugin, err);
    if (status != RDT_OK)
        return status;
    plugin->settings = change->settings;
    change->settings = NULL;
    plugin_host_init(plugin);
    status = plugin_host_check_own(plugin, err);
    return status == RDT_OK ? open_available(change, plugin, &change->roles, err) : status;
}

static void load(struct plugin_change *change)
{
    struct plugin *plugin;
    change->status = plugin_load(change->path, true, &plugin, &change->err);
    if (change->status != RDT_OK)
        return;
    change->status = check_and_open(change, plugin, &change->err);
    if (change->status != RDT_OK)
        plugin_unload(plugin, false);
}

static void unload(struct plugin_change *change)
{
    struct plugin *plugin = change->roles.plugin;
    plugin_close(&change->roles);
    if (change->roles.transport)
        change->roles.transport->opened = false;
    if (change->roles.kind)
        change->roles.kind->opened = false;
    plugin_unmap(plugin);
}

static void *thread_main(void *arg)
{
    struct plugin_change *change = arg;
    if (change->path)
        load(change);
    else if (change->options)
        change->status = open_available(change, change->roles.plugin, &change->fresh, &change->err);
    else
        unload(change);
    plugin_events_queue(&change->plugins->events, &change->event);
    return NULL;
}

static void deliver(struct plugin_event *event)
{
    struct plugin_change *change = container_of(event, struct plugin_change, event);
    struct plugins *plugins = change->plugins;
    bool loaded = change->path && change->status == RDT_OK, unloaded = !change->options;
    bool replaced = !change->path && change->options && change->status == RDT_OK;
    pthread_join(change->thread, NULL); /* the thread is about to return */
    plugins->change = NULL;
    if (loaded)
        plugin_link(plugins, &change->roles);
    if (unloaded)
        plugin_unlink(&change->roles);
    if (replaced) {
        plugin_unlink(&change->roles);
        plugin_link(plugins, &change->fresh);
    }
    change->on_changed(change->arg, replaced ? &change->fresh : &change->roles, change->status != RDT_OK ? &change->err : NULL);
    if (replaced)
        plugin_roles_free(&change->roles);
    if (unloaded) {
        struct plugin *plugin = change->roles.plugin;
        plugin_roles_free(&change->roles);
        plugin_unload(plugin, false);
    }
    change_free(change);
    plugins_close_if_due(plugins);
}

static enum rdt_status start(struct plugin_change *change, plugins_changed on_changed, void *arg, struct rdt_error *err)
{
    struct plugins *plugins = change->plugins;
    assert(!plugins->change && !plugins->closing);
    change->event.deliver = deliver;
    change->on_changed = on_changed;
    change->arg = arg;
    plugins->change = change;
    int failed = plugin_thread_start(&change->thread, thread_main, change);
    if (failed == 0)
        return RDT_OK;
    plugins->change = NULL;
    change_free(change);
    return rdt_error_sys(err, failed, "cannot start a thread to load or unload a backend");
}

enum rdt_status plugins_load(struct plugins *plugins, const struct options *options, const char *path,
                             struct options_extra *take_settings, plugins_changed on_changed, void *arg, struct rdt_error *err)
{
    struct plugin_change *change = calloc(1, sizeof(*change));
    char *copy = strdup(path);
    if (!change || !copy) {
        free(copy);
        free(change);
        options_extra_free(take_settings);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to load %s", path);
    }
    change->plugins = plugins;
    change->options = options;
    change->path = copy;
    change->settings = take_settings;
    return start(change, on_changed, arg, err);
}

static enum rdt_status change_roles(struct plugins *plugins, const struct options *options, const struct plugin_roles *roles,
                                    plugins_changed on_changed, void *arg, struct rdt_error *err)
{
    struct plugin_change *change = calloc(1, sizeof(*change));
    if (!change)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to %s %s", options ? "open" : "unload", roles->plugin->name);
    change->plugins = plugins;
    change->options = options;
    change->roles = *roles;
    return start(change, on_changed, arg, err);
}

enum rdt_status plugins_open_again(struct plugins *plugins, const struct options *options, const struct plugin_roles *roles,
                                   plugins_changed on_changed, void *arg, struct rdt_error *err)
{
    return change_roles(plugins, options, roles, on_changed, arg, err);
}

enum rdt_status plugins_unload(struct plugins *plugins, const struct plugin_roles *roles, plugins_changed on_changed, void *arg,
                               struct rdt_error *err)
{
    return change_roles(plugins, NULL, roles, on_changed, arg, err);
}
