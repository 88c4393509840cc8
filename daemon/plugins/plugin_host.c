/* SPDX-License-Identifier: Apache-2.0 */
/* The log and config entries of the host table, and the check of the configuration against the keys that
 * plug-ins declare. */
#include "daemon/plugins/plugin_host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/plugins/plugin_events.h"
#include "suggest.h"

static void host_log(void *ctx, enum rdt_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void host_log(void *ctx, enum rdt_log_level level, const char *fmt, ...)
{
    const struct plugin *plugin = ctx;
    static const enum log_level ours[] = {
        [RDT_LOG_ERROR] = LOG_LEVEL_ERROR, [RDT_LOG_WARN] = LOG_LEVEL_WARN,   [RDT_LOG_INFO] = LOG_LEVEL_INFO,
        [RDT_LOG_DEBUG] = LOG_LEVEL_DEBUG, [RDT_LOG_TRACE] = LOG_LEVEL_TRACE,
    };
    enum log_level at = (unsigned)level < sizeof ours / sizeof ours[0] ? ours[level] : LOG_LEVEL_ERROR;
    if (at > log_threshold)
        return;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    log_write(at, "%s: %s", plugin->name, text);
}

static const struct rdt_config_key *find_key(const struct plugin *plugin, const char *name)
{
    const struct rdt_config_key *key = plugin->backend.config_keys;
    while (key && key->name && (!key->fallback || strcmp(key->name, name) != 0))
        key++;
    return key && key->name ? key : NULL;
}

static const char *key_value(const struct plugin *plugin, const struct options *options, const struct rdt_config_key *key)
{
    for (unsigned i = 0; i < plugin->n_refused; i++)
        if (plugin->refused[i] == key)
            return key->fallback;
    for (const struct options_extra *extra = plugin->settings; extra; extra = extra->next) {
        if (strcmp(extra->key, key->name) == 0)
            return extra->value;
    }
    for (const struct options_extra *extra = options->extras; extra; extra = extra->next) {
        if (strcasecmp(extra->section, plugin->name) == 0 && strcmp(extra->key, key->name) == 0)
            return extra->value;
    }
    return key->fallback;
}

void plugin_host_dump(const struct list *plugins, const struct options *options, FILE *out)
{
    list_each (const struct plugin, plugin, plugins, link) {
        const struct rdt_config_key *key = plugin->backend.config_keys;
        if (!key || !key->name)
            continue;
        fprintf(out, "\n[%s]\n", plugin->name);
        for (; key->name; key++) {
            if (!key->fallback)
                continue;
            const char *value = key_value(plugin, options, key);
            fprintf(out, "\n# %s\n%s =%s%s\n", key->help, key->name, value[0] ? " " : "", value);
        }
    }
}

static bool is_own_address(const char *host)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    bool is_in = inet_pton(AF_INET, host, &in.sin_addr) == 1, is_in6 = !is_in && inet_pton(AF_INET6, host, &in6.sin6_addr) == 1;
    int fd = is_in || is_in6 ? socket(is_in ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    bool is = fd >= 0 &&
              !bind(fd, is_in ? (const struct sockaddr *)&in : (const struct sockaddr *)&in6, is_in ? sizeof in : sizeof in6);
    if (fd >= 0)
        (void)close(fd);
    return is;
}

/* Of a node that listens at every address and advertises one of them, that one: the others may be of networks on which no
 * other node is. */
static const char *listen_host(struct plugin *plugin, const struct options *options)
{
    char advertised[sizeof plugin->listen_host];
    uint16_t port;
    if (options->listen[0] == 0 || options_split_address(options->listen, plugin->listen_host, &port, NULL) != RDT_OK)
        return "";
    if ((strcmp(plugin->listen_host, "0.0.0.0") == 0 || strcmp(plugin->listen_host, "::") == 0) &&
        options_split_address(options->advertise, advertised, &port, NULL) == RDT_OK && is_own_address(advertised))
        snprintf(plugin->listen_host, sizeof plugin->listen_host, "%s", advertised);
    return plugin->listen_host;
}

static const char *host_config(void *ctx, const char *name)
{
    struct plugin *plugin = ctx;
    const struct options *options = plugin->options;
    const struct rdt_config_key *key = find_key(plugin, name);
    if (!options)
        return NULL;
    if (key)
        return key_value(plugin, options, key);
    if (strcmp(name, "trusted_network") == 0)
        return options->trusted_network ? "yes" : "no";
    if (strcmp(name, "peers") == 0)
        return options_have_peers(options) ? "yes" : "no";
    if (strcmp(name, "interfaces") == 0)
        return options->interfaces;
    if (strcmp(name, "pool_idle") == 0) {
        (void)snprintf(plugin->pool_idle, sizeof plugin->pool_idle, "%llu", (unsigned long long)options->pool_idle_ns);
        return plugin->pool_idle;
    }
    if (strcmp(name, "listen_host") == 0)
        return listen_host(plugin, options);
    return NULL;
}

void plugin_host_init(struct plugin *plugin)
{
    plugin->host = (struct rdt_host){
        .abi_version = RDT_BACKEND_ABI,
        .struct_size = sizeof(struct rdt_host),
        .ctx = plugin,
        .log = host_log,
        .config = host_config,
    };
    plugin_events_host(&plugin->host);
    plugin_group_host(&plugin->host);
    plugin_memory_host(&plugin->host);
}

static enum rdt_status unknown_section(const struct list *plugins, const struct options_extra *extra, struct rdt_error *err)
{
    static const char *const ours[] = {"daemon", "limits", "network", "transfer"};
    struct suggest suggest;
    char hint[96];
    suggest_init(&suggest, extra->section);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        suggest_try(&suggest, ours[i]);
    list_for_each (node, plugins)
        suggest_try(&suggest, container_of(node, struct plugin, link)->name);
    suggest_hint(&suggest, "", hint, sizeof hint);
    return rdt_error_set(err, RDT_INVALID, "neither the daemon nor a loaded backend has a section of this name%s", hint);
}

static enum rdt_status unknown_key(const struct plugin *plugin, const struct options_extra *extra, struct rdt_error *err)
{
    struct suggest suggest;
    char hint[96];
    suggest_init(&suggest, extra->key);
    for (const struct rdt_config_key *key = plugin->backend.config_keys; key && key->name; key++) {
        if (!key->fallback && strcmp(key->name, extra->key) == 0)
            return rdt_error_set(err, RDT_INVALID, "%s", key->help);
        if (key->fallback)
            suggest_try(&suggest, key->name);
    }
    suggest_hint(&suggest, "", hint, sizeof hint);
    return rdt_error_set(err, RDT_INVALID, "the backend has no such key%s", hint);
}

enum rdt_status plugin_host_check_own(const struct plugin *plugin, struct rdt_error *err)
{
    for (const struct options_extra *extra = plugin->settings; extra; extra = extra->next) {
        if (find_key(plugin, extra->key))
            continue;
        enum rdt_status status = unknown_key(plugin, extra, err);
        rdt_error_prefix(err, "backend %s: %s=%s", plugin->name, extra->key, extra->value);
        return status;
    }
    return RDT_OK;
}

void plugin_host_check(const struct list *plugins, const struct options *options, struct option_faults *faults)
{
    struct rdt_error fault;

    for (const struct options_extra *extra = options->extras; extra; extra = extra->next) {
        const struct plugin *plugin = NULL;
        list_each (const struct plugin, candidate, plugins, link)
            if (strcasecmp(candidate->name, extra->section) == 0)
                plugin = candidate;
        if (plugin && find_key(plugin, extra->key))
            continue;
        (void)(plugin ? unknown_key(plugin, extra, &fault) : unknown_section(plugins, extra, &fault));
        rdt_error_prefix(&fault, "[%s] %s", extra->section, extra->key);
        if (extra->line > 0)
            option_fault(faults, &fault, "%s:%d", options->config, extra->line);
        else
            option_fault(faults, &fault, "--set %s.%s", extra->section, extra->key);
    }
}

bool plugin_host_disregard(struct plugin *plugin, const char *sentence)
{
    for (const struct rdt_config_key *key = plugin->backend.config_keys; key && key->name; key++) {
        size_t bytes = strlen(key->name);
        if (!key->fallback || strncmp(sentence, key->name, bytes) != 0 || strncmp(sentence + bytes, " = ", 3) != 0)
            continue;
        for (unsigned i = 0; i < plugin->n_refused; i++)
            if (plugin->refused[i] == key)
                return false;
        if (plugin->n_refused == PLUGIN_MAX_REFUSED)
            return false;
        plugin->refused[plugin->n_refused++] = key;
        return true;
    }
    return false;
}
