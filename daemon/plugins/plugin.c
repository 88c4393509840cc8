/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and loads backends, and owns the instances of their memory kinds and transports. */
#include "daemon/plugins/plugin.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/config/options.h"
#include "daemon/plugins/plugin_host.h"
#include "daemon/plugins/plugin_impl.h"

/* ---- loading ---- */

enum rdt_status plugins_check_names(struct plugins *plugins, const struct plugin *plugin, struct rdt_error *err)
{
    static const char *const reserved[] = {"daemon", "limits", "network", "transfer"};
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        if (strcasecmp(plugin->name, reserved[i]) == 0)
            return rdt_error_set(err, RDT_INVALID, "backend %s: the name '%s' is a section of the configuration", plugin->path,
                                 plugin->name);
    }
    list_each (const struct plugin, other, &plugins->files, link) {
        const char *what = NULL, *name = plugin->name;
        if (strcasecmp(other->name, name) == 0)
            what = "backend";
        else if (other->has_memory && plugin->has_memory && strcasecmp(other->memory.name, plugin->memory.name) == 0)
            what = "memory kind", name = plugin->memory.name;
        else if (other->has_transport && plugin->has_transport &&
                 strcasecmp(other->transport.name, plugin->transport.name) == 0)
            what = "transport", name = plugin->transport.name;
        if (what)
            return rdt_error_set(err, RDT_EXISTS, "backend %s: the name of its %s is taken by %s: %s", plugin->path, what,
                                 other->path, name);
    }
    return RDT_OK;
}

static enum rdt_status load_file(struct plugins *plugins, const char *path, struct rdt_error *err)
{
    struct plugin *plugin;
    enum rdt_status status = plugin_load(path, false, &plugin, err);
    if (status != RDT_OK)
        return status;
    status = plugins_check_names(plugins, plugin, err);
    if (status != RDT_OK) {
        plugin_unload(plugin, false);
        return status;
    }
    plugin_host_init(plugin);
    list_append(&plugins->files, &plugin->link);
    return RDT_OK;
}

static int is_backend(const struct dirent *entry)
{
    return fnmatch("rdt_*.so", entry->d_name, 0) == 0;
}

/* by bytes, whatever the locale */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static enum rdt_status load_dir(struct plugins *plugins, const char *dir, struct rdt_error *err)
{
    struct dirent **entries;
    int n = dir[0] != 0 ? scandir(dir, &entries, is_backend, by_name) : 0;
    if (n < 0)
        return errno == ENOENT ? RDT_OK : rdt_error_sys(err, errno, "cannot read backend_dir %s", dir);
    enum rdt_status status = RDT_OK;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        if (status == RDT_OK && snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name) >= (int)sizeof path)
            status = rdt_error_set(err, RDT_INVALID, "backend_dir is too long");
        if (status == RDT_OK)
            status = load_file(plugins, path, err);
        free(entries[i]);
    }
    if (dir[0] != 0)
        free(entries);
    return status;
}

static enum rdt_status load_listed(struct plugins *plugins, const char *paths, struct rdt_error *err)
{
    char *copy = strdup(paths), *rest;
    if (!copy)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    enum rdt_status status = RDT_OK;
    for (char *path = strtok_r(copy, ",", &rest); path && status == RDT_OK; path = strtok_r(NULL, ",", &rest)) {
        path += strspn(path, " \t");
        path[strcspn(path, " \t")] = 0;
        if (path[0] != 0)
            status = load_file(plugins, path, err);
    }
    free(copy);
    return status;
}

/* ---- instances ---- */

/* Opens a plug-in. If it refuses a value, it is opened once more with the default, so that all its faults are found. */
static void open_one(struct plugins *plugins, struct plugin *plugin, const struct options *options,
                     struct option_faults *faults)
{
    struct plugin_roles roles;
    struct rdt_error fault;
    enum rdt_status status;
    while ((status = plugin_open(plugins, plugin, options, &roles, &fault)) == RDT_INVALID) {
        const char *sentence = strstr(fault.msg, plugin->path) ? strstr(fault.msg, plugin->path) + strlen(plugin->path) : "";
        option_fault(faults, &fault, "%s", "");
        if (strncmp(sentence, ": ", 2) != 0 || !plugin_host_disregard(plugin, sentence + 2))
            return;
    }
    if (status != RDT_OK) {
        option_fault(faults, &fault, "%s", "");
    } else if (plugin->n_refused > 0) {
        plugin_close(&roles);
        plugin_roles_free(&roles);
    } else {
        plugin_link(plugins, &roles);
    }
}

/* Reports all faults of the plug-ins' sections: keys that there are not, and values. */
static enum rdt_status open_all(struct plugins *plugins, const struct options *options, struct rdt_error *err)
{
    struct option_faults faults = {0};
    plugin_host_check(&plugins->files, options, &faults);
    list_for_each (node, &plugins->files)
        open_one(plugins, container_of(node, struct plugin, link), options, &faults);
    return option_faults_end(&faults, err);
}

static struct plugin_roles roles_of(struct plugin *plugin)
{
    return (struct plugin_roles){.plugin = plugin, .kind = plugin->kind, .transport = plugin->instance};
}

/* Transports are closed first, because they may use memory of another plug-in's kind. */
static void close_instances(struct plugins *plugins)
{
    list_each (struct transport, transport, &plugins->transports, link) {
        plugin_close(&(struct plugin_roles){.transport = transport});
        transport->opened = false;
    }
    list_for_each (plugin_node, &plugins->files) {
        struct plugin_roles roles = roles_of(container_of(plugin_node, struct plugin, link));
        plugin_close(&roles);
    }
}

static void plugins_free(struct plugins *plugins)
{
    list_each_safe (struct plugin, plugin, &plugins->files, link) {
        struct plugin_roles roles = roles_of(plugin);
        plugin_roles_free(&roles);
        plugin_unload(plugin, true);
    }
    list_for_each_safe (name_node, &plugins->transport_names)
        free(container_of(name_node, struct plugin_name, link));
    free(plugins);
}

enum rdt_status plugins_create(uv_loop_t *loop, const struct options *options, struct plugins **plugins_p,
                               struct rdt_error *err)
{
    struct plugins *plugins = calloc(1, sizeof(*plugins));
    if (!plugins)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for backends");
    list_init(&plugins->files);
    list_init(&plugins->memory_kinds);
    list_init(&plugins->transports);
    list_init(&plugins->transport_names);

    enum rdt_status status = load_dir(plugins, options->backend_dir, err);
    if (status == RDT_OK)
        status = load_listed(plugins, options->backends, err);
    if (status != RDT_OK) {
        plugins_free(plugins);
        return status;
    }
    status = open_all(plugins, options, err);
    /* Last, because only the loop can close it. No plug-in reports anything before there are connections. */
    if (status == RDT_OK)
        status = plugin_events_init(&plugins->events, loop, err);
    if (status != RDT_OK) {
        close_instances(plugins);
        plugins_free(plugins);
        return status;
    }
    *plugins_p = plugins;
    return RDT_OK;
}

static void on_events_closed(struct plugin_events *events)
{
    struct plugins *plugins = container_of(events, struct plugins, events);
    void (*on_closed)(void *arg) = plugins->on_closed;
    void *arg = plugins->arg;
    plugins_free(plugins);
    on_closed(arg);
}

static void on_instances_closed(struct plugin_event *event)
{
    struct plugins *plugins = container_of(event, struct plugins, closed);
    pthread_join(plugins->closer, NULL); /* the thread is about to return */
    list_init(&plugins->transports);
    list_init(&plugins->memory_kinds);
    plugin_events_close(&plugins->events, on_events_closed);
}

static void *closer_main(void *arg)
{
    struct plugins *plugins = arg;
    close_instances(plugins);
    plugin_events_queue(&plugins->events, &plugins->closed);
    return NULL;
}

/* On a thread of its own: a device that hangs must not block the loop, which gives up after a time. */
/* Signals are handled by other threads, and the threads that a plug-in starts inherit this thread's mask.
 * Signals of its own faults must still reach the daemon's handlers. */
int plugin_thread_start(pthread_t *thread_p, void *(*main)(void *arg), void *arg)
{
    sigset_t most, before;
    sigfillset(&most);
    sigdelset(&most, SIGBUS);
    sigdelset(&most, SIGSEGV);
    sigdelset(&most, SIGFPE);
    sigdelset(&most, SIGILL);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    int failed = pthread_create(thread_p, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

void plugins_close_if_due(struct plugins *plugins)
{
    if (!plugins->closing || plugins->change)
        return;
    plugins->closed.deliver = on_instances_closed;
    if (plugin_thread_start(&plugins->closer, closer_main, plugins) == 0)
        return;
    close_instances(plugins);
    list_init(&plugins->transports);
    list_init(&plugins->memory_kinds);
    plugin_events_close(&plugins->events, on_events_closed);
}

void plugins_close(struct plugins *plugins, void (*on_closed)(void *arg), void *arg)
{
    assert(on_closed);
    plugins->on_closed = on_closed;
    plugins->arg = arg;
    plugins->closing = true;
    plugins_close_if_due(plugins);
}

void plugins_await_copies(struct plugins *plugins, void (*on_copied)(void *arg), void *arg)
{
    plugin_copies_await(&plugins->events, on_copied, arg);
}

unsigned plugins_copies(const struct plugins *plugins)
{
    return plugins->events.copies;
}

/* ---- look-ups ---- */

struct list *plugins_memory_kinds(struct plugins *plugins)
{
    return &plugins->memory_kinds;
}

struct list *plugins_transports(struct plugins *plugins)
{
    return &plugins->transports;
}

struct memory_kind *plugins_memory_kind(struct plugins *plugins, const char *name)
{
    list_each (struct memory_kind, kind, &plugins->memory_kinds, link)
        if (strcasecmp(kind->name, name[0] != 0 ? name : "host") == 0)
            return kind;
    return NULL;
}

struct transport *plugins_transport(struct plugins *plugins, const char *name)
{
    list_each (struct transport, transport, &plugins->transports, link)
        if (strcasecmp(transport->name, name) == 0)
            return transport;
    return NULL;
}

void plugins_transport_names(const struct plugins *plugins, char *text_p, size_t size)
{
    snprintf(text_p, size, "%s", list_empty(&plugins->transports) ? "none" : "");
    size_t used = 0;
    list_for_each (node, &plugins->transports) {
        const char *name = container_of(node, struct transport, link)->name;
        if (used < size)
            used += (size_t)snprintf(text_p + used, size - used, "%s%s", used > 0 ? ", " : "", name);
    }
}

const char *transport_sides(const struct transport *transport)
{
    bool one = transport->ops.post_read, two = transport->ops.post_send;
    return one && two ? "one and two" : one ? "one" : "two";
}

bool transport_moves(const struct transport *transport, const char *memory_kind)
{
    for (const char *const *kind = transport->ops.memory_kinds; *kind; kind++) {
        if (strcasecmp(*kind, memory_kind) == 0)
            return true;
    }
    return false;
}

void plugins_dump(const struct plugins *plugins, const struct options *options, FILE *out)
{
    plugin_host_dump(&plugins->files, options, out);
}

const char *plugin_name(const struct plugin *plugin)
{
    return plugin->name;
}

static bool has_name(const struct plugin *plugin, const char *name, unsigned pass)
{
    if (pass == 0)
        return strcasecmp(plugin->name, name) == 0;
    if (pass == 1)
        return plugin->instance && strcasecmp(plugin->instance->name, name) == 0;
    return plugin->kind && strcasecmp(plugin->kind->name, name) == 0;
}

enum rdt_status plugins_find(struct plugins *plugins, const char *name, struct plugin_roles *roles_p, struct rdt_error *err)
{
    char loaded[256] = "none";
    size_t used = 0;
    for (unsigned pass = 0; pass < 3; pass++)
        list_each (struct plugin, plugin, &plugins->files, link) {
            if (has_name(plugin, name, pass)) {
                *roles_p = roles_of(plugin);
                return RDT_OK;
            }
            if (pass == 0 && used < sizeof loaded)
                used += (size_t)snprintf(loaded + used, sizeof loaded - used, "%s%s", used > 0 ? ", " : "", plugin->name);
        }
    return rdt_error_set(err, RDT_NOT_FOUND, "no backend \"%.64s\" is loaded; loaded: %s", name, loaded);
}
