/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration is read again: everything is checked first, then each room gets what has changed for it. A thread reads the
 * files, so a file system that does not answer holds up only those who reload. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/base/memory_room.h"
#include "daemon/base/sdnotify.h"
#include "daemon/config/limits.h"
#include "daemon/daemon_impl.h"

void daemon_check_memory_limit(const struct daemon *daemon)
{
    uint64_t limit = daemon->regions.limit_bytes, group = memory_group_limit_bytes("/proc/self/cgroup", "/sys/fs/cgroup");
    uint64_t heap = options_heap_limit();

    if (group != UINT64_MAX && limit > group - group / 16 - heap)
        log_warn("memory_limit is %" PRIu64 " bytes and the heap may need %" PRIu64
                 ", but the daemon's control group may have %" PRIu64
                 " in all: what does not fit fails with NO_MEMORY; lower memory_limit, or raise the group's limit "
                 "(MemoryMax of a systemd unit)",
                 limit, heap, group);
}

struct reload {
    options_on_change on_change; /* NULL: nobody but the log wants to know */
    void *arg;
    bool check;
    unsigned applied, left;
};

static void note(void *arg, const char *section, const char *key, const char *before, const char *after, bool reloads)
{
    struct reload *reload = arg;

    if (reload->on_change)
        reload->on_change(reload->arg, section, key, before, after, reloads);
    *(reloads ? &reload->applied : &reload->left) += 1;
    if (reload->check)
        return;
    if (reloads)
        log_info("reload: [%s] %s is \"%s\" now; it was \"%s\"", section, key, after, before);
    else
        log_warn("reload: [%s] %s = \"%s\" is for the next start; until then it stays \"%s\"", section, key, after, before);
}

/* rdtctl log-level may have changed it, too. */
static void reload_log_level(const struct daemon *daemon, const struct options *fresh, struct reload *reload)
{
    enum log_level level = log_threshold;

    if (!log_level_parse(fresh->log_level, &level) || level == log_threshold)
        return;
    if (strcmp(fresh->log_level, daemon->options->log_level) == 0)
        note(reload, "daemon", "log_level", log_level_name(log_threshold), fresh->log_level, true);
    if (!reload->check)
        log_threshold = level;
}

/* Reports that the key or the certificates have changed. If no path has changed, the content of a file has. */
static void note_files(const struct options *now, const struct options *fresh, struct reload *reload)
{
    if (strcmp(now->key_file, fresh->key_file) != 0 || strcmp(now->peer_cert, fresh->peer_cert) != 0 ||
        strcmp(now->peer_key, fresh->peer_key) != 0 || strcmp(now->peer_ca, fresh->peer_ca) != 0 ||
        strcmp(now->peer_crl, fresh->peer_crl) != 0 || strcmp(now->peer_allow, fresh->peer_allow) != 0)
        return;
    if (fresh->peer_cert[0] == '\0')
        note(reload, "network", "key_file", "a file with an earlier key", "a file with another key", true);
    else
        note(reload, "network", "peer_cert", "certificate files with earlier content", "the files' new content", true);
}

static void spread_limits(struct daemon *daemon)
{
    const struct options *options = daemon->options;
    uint64_t limit = options_effective_memory_limit(options);

    limits_derive(options, daemon->open_files, &daemon->accounts.limits);
    daemon->objects.max_objects = options->max_objects;
    daemon->shards.max_tensors = options->version_max_tensors;
    daemon->cluster.holds.grace_ns = options->hold_grace_ns;
    regions_set_limits(&daemon->regions, limit, limit / 8, options_effective_cache_max(options, limit));
    cache_set_limits(&daemon->objects.cache, options->cache_limit_bytes, options->owner_cache_limit_bytes);
    cache_set_file_limits(&daemon->objects.cache, options->cache_storage_limit_bytes, options->owner_cache_storage_limit_bytes);
    daemon_check_memory_limit(daemon);
    list_for_each (node, &daemon->rpc.clients.all)
        account_limits_changed(container_of(node, struct client, link)->account);
    accounts_limits_changed(&daemon->accounts);
}

static void begin(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    sdnotify("RELOADING=1\nMONOTONIC_USEC=%lld", (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
}

static void compare(const struct daemon *daemon, const struct options *fresh, bool new_key, struct reload *reload)
{
    options_compare(daemon->options, fresh, note, reload);
    if (new_key)
        note_files(daemon->options, fresh, reload);
    reload_log_level(daemon, fresh, reload);
}

void daemon_compare(void *arg, const struct options *fresh, const struct tls_context *key, options_on_change on_change,
                    void *change_arg)
{
    const struct daemon *daemon = arg;
    struct reload reload = {.on_change = on_change, .arg = change_arg, .check = true};

    compare(daemon, fresh, daemon->cluster.peers && key && peers_is_new_key(daemon->cluster.peers, key), &reload);
}

/* ---- reading ---- */

struct fresh_config {
    struct list link; /* daemon->fresh.configs: a thread reads the first, and the others wait */
    struct work work;
    struct daemon *daemon;
    void (*on_read)(void *read_arg, struct fresh_config *config); /* config is NULL when the daemon ends */
    void *arg;
    const struct options *now; /* of which no key that reloads may be read */
    bool has_peers;
    struct options options;
    struct tls_context *key; /* NULL: there is none, or daemon_adopt has taken it */
    struct rdt_error err;
};

static void run_reading(struct work *work)
{
    struct fresh_config *config = container_of(work, struct fresh_config, work);

    if (options_load_again(config->now, &config->options, &config->err) == RDT_OK && config->has_peers &&
        options_have_peers(&config->options))
        (void)peers_open_tls(&config->options, &config->key, NULL, &config->err);
}

static void read_first(struct daemon *daemon)
{
    if (!list_empty(&daemon->fresh.configs))
        owner_work_submit(daemon->owner_work, &container_of(daemon->fresh.configs.next, struct fresh_config, link)->work, NULL,
                          false);
}

static void end_reading(struct fresh_config *take_config, struct fresh_config *seen)
{
    take_config->on_read(take_config->arg, seen);
    options_fini(&take_config->options);
    peers_drop_key(take_config->key);
    free(take_config);
}

static void done_reading(struct work *work)
{
    struct fresh_config *config = container_of(work, struct fresh_config, work);
    struct daemon *daemon = config->daemon;

    list_remove(&config->link);
    if (!daemon->end.stopping) {
        read_first(daemon);
        end_reading(config, config);
        return;
    }
    list_drain (struct fresh_config, waiting, &daemon->fresh.configs, link) {
        list_remove(&waiting->link);
        end_reading(waiting, NULL);
    }
    end_reading(config, NULL);
}

enum rdt_status daemon_read_again(void *arg, void (*on_read)(void *read_arg, struct fresh_config *config), void *read_arg,
                                  struct rdt_error *err)
{
    struct daemon *daemon = arg;
    struct fresh_config *config = calloc(1, sizeof *config);
    bool first = list_empty(&daemon->fresh.configs);

    if (!config)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to read the configuration");
    *config = (struct fresh_config){.work = {.run = run_reading, .done = done_reading},
                                    .daemon = daemon,
                                    .on_read = on_read,
                                    .arg = read_arg,
                                    .now = daemon->options,
                                    .has_peers = daemon->cluster.peers != NULL};
    list_append(&daemon->fresh.configs, &config->link);
    if (first)
        read_first(daemon);
    return RDT_OK;
}

/* ---- adopting ---- */

enum rdt_status daemon_adopt(void *arg, struct fresh_config *config, bool check, options_on_change on_change, void *change_arg,
                             struct rdt_error *err)
{
    struct daemon *daemon = arg;
    struct reload reload = {.on_change = on_change, .arg = change_arg, .check = check};
    bool new_key = config->key && peers_is_new_key(daemon->cluster.peers, config->key);

    if (config->err.status != RDT_OK) {
        *err = config->err;
        return err->status;
    }
    if (!check)
        begin();
    compare(daemon, &config->options, new_key, &reload);
    if (check)
        return RDT_OK;
    options_adopt(daemon->options, &config->options);
    spread_limits(daemon);
    if (daemon->cluster.peers)
        peers_reload(daemon->cluster.peers, new_key ? config->key : NULL);
    if (new_key)
        config->key = NULL;
    directory_reload(&daemon->cluster.directory);
    persons_read_again(&daemon->fresh.persons);
    log_info("the configuration was reloaded; changes that took effect: %u, for the next start: %u", reload.applied,
             reload.left);
    sdnotify("READY=1");
    return RDT_OK;
}

static void on_read_after_hangup(void *arg, struct fresh_config *config)
{
    struct daemon *daemon = arg;
    struct rdt_error err;

    if (!config || daemon->rpc.intake.draining)
        log_warn("SIGHUP: the daemon ends, so it does not reload its configuration");
    else if (daemon_adopt(daemon, config, false, NULL, NULL, &err) != RDT_OK)
        log_error("SIGHUP: the configuration was not reloaded, and nothing has changed: %s", err.msg);
}

void daemon_on_hangup(uv_signal_t *handle, int number)
{
    struct daemon *daemon = handle->data;
    struct rdt_error err;

    (void)number;
    if (daemon->rpc.intake.draining || daemon->end.stopping) /* The threads may be gone. */
        log_warn("SIGHUP: the daemon ends, so it does not reload its configuration");
    else if (daemon_read_again(daemon, on_read_after_hangup, daemon, &err) != RDT_OK)
        log_error("SIGHUP: the configuration was not reloaded, and nothing has changed: %s", err.msg);
}
