/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of one plug-in, from open to close. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/options.h"
#include "daemon/plugins/plugin_blame.h"
#include "daemon/plugins/plugin_impl.h"

static void lower(char *to, const char *text)
{
    for (; *text != 0; text++)
        *to++ = (char)tolower((unsigned char)*text);
    *to = 0;
}

/* A copy, because the list in the file is unmapped with it, while reports may show it until the end. */
static const char *const *copy_strings(const char *const *strings)
{
    size_t n = 0, bytes = 0;
    for (; strings[n]; n++)
        bytes += strlen(strings[n]) + 1;
    char **copy = malloc((n + 1) * sizeof(*copy) + bytes);
    if (!copy)
        return NULL;
    char *text = (char *)(copy + n + 1);
    for (size_t i = 0; i < n; i++) {
        copy[i] = strcpy(text, strings[i]);
        text += strlen(text) + 1;
    }
    copy[n] = NULL;
    return (const char *const *)copy;
}

static void memory_kind_free(struct memory_kind *kind)
{
    if (!kind)
        return;
    plugin_memory_fini(kind);
    free(atomic_load(&kind->why_unpinned));
    free((char *)(uintptr_t)kind->name);
    free(kind);
}

static void transport_free(struct transport *transport)
{
    if (!transport)
        return;
    free(transport->own_name);
    free((char *)(uintptr_t)transport->version);
    free((void *)(uintptr_t)transport->ops.memory_kinds);
    free(transport);
}

static struct memory_kind *memory_kind_new(struct plugins *plugins, struct plugin *plugin)
{
    struct memory_kind *kind = calloc(1, sizeof(*kind));
    char *name = malloc(strlen(plugin->memory.name) + 1);
    if (!kind || !name) {
        free(kind);
        free(name);
        return NULL;
    }
    lower(name, plugin->memory.name);
    kind->ops = plugin->memory;
    kind->name = name;
    kind->path = plugin->path;
    kind->plugin = plugin;
    kind->events = &plugins->events;
    list_init(&kind->link);
    return kind;
}

static struct transport *transport_new(struct plugins *plugins, struct plugin *plugin)
{
    struct transport *transport = calloc(1, sizeof(*transport));
    if (!transport)
        return NULL;
    transport->ops = plugin->transport;
    transport->ops.memory_kinds = copy_strings(plugin->transport.memory_kinds);
    transport->own_name = malloc(sizeof(*transport->own_name) + strlen(plugin->transport.name) + 1);
    if (!transport->own_name || !transport->ops.memory_kinds) {
        transport_free(transport);
        return NULL;
    }
    list_init(&transport->own_name->link);
    lower(transport->own_name->text, plugin->transport.name);
    transport->name = transport->own_name->text;
    transport->path = plugin->path;
    transport->plugin = plugin;
    transport->plugins = plugins;
    transport->events = &plugins->events;
    list_init(&transport->link);
    return transport;
}

/* Interprets the status of an open operation. Returns true if it succeeded. Returns false with OK in
 * *status_p if the role stays loaded as not available. */
static bool open_result(enum rdt_status *status_p, const struct plugin *plugin, const struct rdt_error *why, char why_not[192],
                        struct rdt_error *err)
{
    if (*status_p == RDT_OK)
        return true;
    if (*status_p == RDT_UNSUPPORTED) {
        snprintf(why_not, 192, "%.191s", why->msg[0] != 0 ? why->msg : "the plug-in gave no reason");
        *status_p = RDT_OK;
        return false;
    }
    rdt_error_set(err, *status_p, "backend %s: %s", plugin->path, why->msg[0] != 0 ? why->msg : rdt_status_sentence(*status_p));
    return false;
}

static enum rdt_status open_memory(struct plugin *plugin, struct memory_kind *kind, const struct options *options,
                                   struct rdt_error *err)
{
    struct rdt_error why = {0};
    enum rdt_status status = kind->ops.open(&plugin->host, &kind->instance, &why);
    kind->opened = kind->available = open_result(&status, plugin, &why, kind->why_not, err);
    if (kind->available)
        status = plugin_memory_devices(kind, options->device_limit_bytes, options->device_pool_max_bytes, err);
    return status;
}

static void note_not_moved(struct transport *transport, const char *kind)
{
    const char *why = transport->ops.why_not_moved ? transport->ops.why_not_moved(transport->instance, kind) : NULL;
    size_t used = strlen(transport->not_moved);

    if (why)
        (void)snprintf(transport->not_moved + used, sizeof transport->not_moved - used, "%s%s memory is not moved: %s",
                       used ? "; " : "", kind, why);
}

/* With the vendor's library that was found, a transport may move fewer kinds than its table lists. */
static void ask_memory_kinds(struct transport *transport)
{
    const char **kinds = (const char **)(uintptr_t)transport->ops.memory_kinds; /* a copy */
    size_t n = 0;

    for (size_t i = 0; kinds[i]; i++)
        if (transport->ops.moves(transport->instance, kinds[i]))
            kinds[n++] = kinds[i];
        else
            note_not_moved(transport, kinds[i]);
    kinds[n] = NULL;
}

static enum rdt_status open_transport(struct plugin *plugin, struct transport *transport, struct rdt_error *err)
{
    struct rdt_error why = {0};
    struct rdt_transport_ops *ops = &transport->ops;
    transport->speed = ops->configured_speed ? ops->configured_speed(&plugin->host) : ops->speed;
    enum rdt_status status = ops->open(&plugin->host, &transport->instance, &why);
    if (status == RDT_OK && ops->reads && ops->post_send && !ops->reads(transport->instance)) {
        ops->register_memory = NULL;
        ops->unregister_memory = NULL;
        ops->pack_key = NULL;
        ops->post_read = NULL;
    }
    transport->opened = transport->available = open_result(&status, plugin, &why, transport->why_not, err);
    if (transport->available && ops->moves)
        ask_memory_kinds(transport);
    const char *version = transport->available && transport->ops.version ? transport->ops.version(transport->instance) : NULL;
    transport->version = strdup(version ? version : "");
    if (status == RDT_OK && !transport->version)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for backend %s", plugin->path);
    return status;
}

enum rdt_status plugin_open(struct plugins *plugins, struct plugin *plugin, const struct options *options,
                            struct plugin_roles *roles_p, struct rdt_error *err)
{
    struct plugin_roles roles = {.plugin = plugin,
                                 .kind = plugin->has_memory ? memory_kind_new(plugins, plugin) : NULL,
                                 .transport = plugin->has_transport ? transport_new(plugins, plugin) : NULL};
    enum rdt_status status = RDT_OK;
    if ((plugin->has_memory && !roles.kind) || (plugin->has_transport && !roles.transport))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for backend %s", plugin->path);
    plugin->options = options;
    plugin_blame_begin(plugin->path);
    if (status == RDT_OK && roles.kind)
        status = open_memory(plugin, roles.kind, options, err);
    if (status == RDT_OK && roles.transport)
        status = open_transport(plugin, roles.transport, err);
    plugin_blame_end();
    plugin->options = NULL;
    if (status != RDT_OK) {
        plugin_close(&roles);
        plugin_roles_free(&roles);
        return status;
    }
    *roles_p = roles;
    return RDT_OK;
}

static void intern_name(struct plugins *plugins, struct transport *transport)
{
    struct plugin_name *fresh = transport->own_name;
    transport->own_name = NULL;
    list_each (struct plugin_name, name, &plugins->transport_names, link) {
        if (strcmp(name->text, fresh->text) == 0) {
            transport->name = name->text;
            free(fresh);
            return;
        }
    }
    list_append(&plugins->transport_names, &fresh->link);
}

static void insert_by_speed(struct list *transports, struct transport *transport)
{
    struct list *before = transports;
    list_for_each (node, transports) {
        if (container_of(node, struct transport, link)->speed < transport->speed) {
            before = node;
            break;
        }
    }
    list_append(before, &transport->link); /* in front of `before`, or at the end */
}

void plugin_link(struct plugins *plugins, struct plugin_roles *roles)
{
    if (list_empty(&roles->plugin->link))
        list_append(&plugins->files, &roles->plugin->link);
    roles->plugin->kind = roles->kind;
    roles->plugin->instance = roles->transport;
    if (roles->kind)
        list_append(&plugins->memory_kinds, &roles->kind->link);
    if (roles->transport) {
        intern_name(plugins, roles->transport);
        insert_by_speed(&plugins->transports, roles->transport);
    }
}

void plugin_unlink(struct plugin_roles *roles)
{
    list_remove(&roles->plugin->link);
    if (roles->kind)
        list_remove(&roles->kind->link);
    if (roles->transport)
        list_remove(&roles->transport->link);
}

void plugin_close(const struct plugin_roles *roles)
{
    if (roles->transport && roles->transport->opened)
        roles->transport->ops.close(roles->transport->instance);
    if (roles->kind && roles->kind->opened)
        roles->kind->ops.close(roles->kind->instance);
}

void plugin_roles_free(struct plugin_roles *roles)
{
    transport_free(roles->transport);
    memory_kind_free(roles->kind);
    *roles = (struct plugin_roles){0};
}
