#include "daemon/rpc/loading.h"

#include <stdio.h>
#include <strings.h>

#include "daemon/base/log.h"

#define LOOK_NS 1000000    /* how often it is seen to whether what leaves has left */
#define CUT_NS 300000000ul /* other nodes have so long to take their end down: to them it is then no failure */

enum { IDLE, LOADING, LEAVING, FORGETTING, CLOSING };

static const struct sm_state states[] = {
    [IDLE] = {"idle", 1u << LOADING | 1u << LEAVING},
    [LOADING] = {"loading", 1u << IDLE},
    [LEAVING] = {"leaving", 1u << FORGETTING},
    [FORGETTING] = {"forgetting", 1u << CLOSING},
    [CLOSING] = {"closing", 1u << IDLE},
};

static void on_tick(struct deadline *deadline);

void loading_init(struct loading *loading)
{
    sm_init(&loading->sm, states, sizeof states / sizeof states[0], IDLE);
    loading->tick.on_passed = on_tick;
}

static void tell(const struct loading *loading, const char *what, const struct plugin_parts *parts)
{
    if (parts->kind)
        event(loading->events, RDT__PB__LIST_KIND__LIST_KIND_BACKENDS, what,
              &(struct plugin_parts){.plugin = parts->plugin, .kind = parts->kind});
    if (parts->transport)
        event(loading->events, RDT__PB__LIST_KIND__LIST_KIND_BACKENDS, what,
              &(struct plugin_parts){.plugin = parts->plugin, .transport = parts->transport});
}

static enum rdt_status check_idle(const struct loading *loading, struct rdt_error *err)
{
    if (loading->sm.state == IDLE)
        return RDT_OK;
    return rdt_error_set(err, RDT_BUSY, "%s, for %.1f s (%s); one change at a time: try again when it has ended", loading->what,
                         (double)(uv_hrtime() - loading->since_ns) / 1e9, sm_name(&loading->sm));
}

static void begin(struct loading *loading, unsigned state, loading_done on_done, void *arg)
{
    sm_move(&loading->sm, state);
    loading->since_ns = uv_hrtime();
    loading->on_done = on_done;
    loading->arg = arg;
}

static void end(struct loading *loading, const struct plugin_parts *parts, const struct rdt_error *err)
{
    loading_done on_done = loading->on_done;

    sm_move(&loading->sm, IDLE);
    loading->on_done = NULL;
    if (on_done)
        on_done(loading->arg, parts, err);
}

void loading_leave(struct loading *loading, const void *arg)
{
    if (loading->arg == arg)
        loading->on_done = NULL;
}

/* ---- in ---- */

static void on_loaded(void *arg, const struct plugin_parts *parts, const struct rdt_error *err)
{
    struct loading *loading = arg;

    if (err) {
        log_info("nothing is loaded: %s", err->msg);
        end(loading, NULL, err);
        return;
    }
    log_info("backend %s is loaded from %s", plugin_name(parts->plugin),
             parts->transport ? parts->transport->path : parts->kind->path);
    tell(loading, "loaded", parts);
    if (parts->transport && !loading->transfers->closing)
        transfers_transport_loaded(loading->transfers, parts->transport);
    end(loading, parts, NULL);
}

enum rdt_status loading_load(struct loading *loading, const char *path, struct options_extra *take_settings,
                             loading_done on_done, void *arg, struct rdt_error *err)
{
    enum rdt_status status = check_idle(loading, err);

    if (status != RDT_OK) {
        options_extra_free(take_settings);
        return status;
    }
    status = plugins_load(loading->plugins, loading->options, path, take_settings, on_loaded, loading, err);
    if (status != RDT_OK)
        return status;
    (void)snprintf(loading->what, sizeof loading->what, "backend %.100s is being loaded", path);
    begin(loading, LOADING, on_done, arg);
    return RDT_OK;
}

/* ---- out ---- */

static enum rdt_status check_memory(const struct loading *loading, const struct memory_kind *kind, struct rdt_error *err)
{
    unsigned users = kind->users - device_pool_blocks(&loading->regions->kept, kind); /* which go first */
    const struct region *region;

    if (strcasecmp(kind->name, "host") == 0)
        return rdt_error_set(err, RDT_INVALID, "the memory kind host cannot be unloaded: everything needs it");
    if (users == 0)
        return RDT_OK;
    region = regions_find_user(loading->regions, kind);
    if (!region)
        return rdt_error_set(err, RDT_BUSY,
                             "memory kind %s is in use: %u ranges of its memory are kept for their clients, wanted by a "
                             "fetch, or on their way back",
                             kind->name, users);
    return rdt_error_set(err, RDT_BUSY, "memory kind %s is in use: region %llu of uid %u (client %llu)%s", kind->name,
                         (unsigned long long)region->id, region->account->owner.uid, (unsigned long long)region->maker,
                         users > 1 ? ", and others" : "");
}

static void on_unloaded(void *arg, const struct plugin_parts *parts, const struct rdt_error *err)
{
    struct loading *loading = arg;

    (void)err; /* a close cannot fail */
    if (parts->transport)
        transfers_transport_forget(loading->transfers, parts->transport);
    log_info("backend %s is unloaded", plugin_name(parts->plugin));
    tell(loading, "unloaded", parts);
    end(loading, NULL, NULL);
}

static bool go_on(struct loading *loading)
{
    struct transport *transport = loading->parts.transport;

    if (loading->sm.state == LEAVING) {
        if (transport && !transfers_transport_gone(loading->transfers, transport)) {
            if (uv_hrtime() - loading->since_ns > CUT_NS)
                transfers_transport_cut(loading->transfers, transport);
            return false;
        }
        loading->cursor = 0;
        sm_move(&loading->sm, FORGETTING);
    }
    if (transport && !regions_forget_transport(loading->regions, transport, &loading->cursor))
        return false;
    if ((transport && transport->registered > 0) || (loading->parts.kind && loading->parts.kind->users > 0))
        return false;
    if (plugins_unload(loading->plugins, &loading->parts, on_unloaded, loading, NULL) != RDT_OK)
        return false; /* no memory or no thread now */
    sm_move(&loading->sm, CLOSING);
    return true;
}

static void on_tick(struct deadline *deadline)
{
    struct loading *loading = container_of(deadline, struct loading, tick);

    if (!loading->transfers->closing && !go_on(loading))
        (void)deadline_set(loading->deadlines, &loading->tick, LOOK_NS);
}

static void make_leave(struct plugin_parts *parts)
{
    static const char why[] = "it is being unloaded";

    if (parts->transport) {
        parts->transport->leaving = true;
        parts->transport->available = false;
        memcpy(parts->transport->why_not, why, sizeof why);
    }
    if (parts->kind) {
        parts->kind->available = false;
        memcpy(parts->kind->why_not, why, sizeof why);
    }
}

enum rdt_status loading_unload(struct loading *loading, const char *name, loading_done on_done, void *arg,
                               struct rdt_error *err)
{
    struct plugin_parts parts;
    enum rdt_status status = check_idle(loading, err);

    if (status == RDT_OK)
        status = plugins_find(loading->plugins, name, &parts, err);
    if (status == RDT_OK && parts.kind)
        status = check_memory(loading, parts.kind, err);
    if (status == RDT_OK && parts.transport)
        status = transfers_transport_idle(loading->transfers, parts.transport, err);
    if (status == RDT_OK && !deadline_set(loading->deadlines, &loading->tick, LOOK_NS))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to unload %.64s", name);
    if (status != RDT_OK)
        return status;
    (void)snprintf(loading->what, sizeof loading->what, "backend %.64s is being unloaded", plugin_name(parts.plugin));
    begin(loading, LEAVING, on_done, arg);
    loading->parts = parts;
    make_leave(&parts);
    if (parts.kind)
        device_pool_forget_kind(&loading->regions->kept, parts.kind);
    tell(loading, "unavailable", &parts);
    if (parts.transport)
        transfers_transport_leave(loading->transfers, parts.transport);
    return RDT_OK;
}
