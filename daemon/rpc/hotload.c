/* SPDX-License-Identifier: Apache-2.0 */
/* Backend hot-load: the order of the steps of a load and of an unload. The plug-in itself is opened and closed by
 * daemon/plugins. */
#include "daemon/rpc/hotload.h"

#include <stdio.h>
#include <strings.h>

#include "daemon/base/log.h"
#include "daemon/peers/peer.h"

#define CHECK_NS 1000000     /* between two checks whether the connections and registrations have ended */
#define LOOK_NS 1000000000l  /* between two looks whether the network is there */
#define CLOSE_NS 300000000ul /* other nodes may take this long to close their ends; then the daemon closes the connections */

enum { IDLE, LOADING, LEAVING, FORGETTING, CLOSING };

static const struct sm_state states[] = {
    [IDLE] = {"idle", 1u << LOADING | 1u << LEAVING},
    [LOADING] = {"loading", 1u << IDLE},
    [LEAVING] = {"leaving", 1u << FORGETTING},
    [FORGETTING] = {"forgetting", 1u << CLOSING},
    [CLOSING] = {"closing", 1u << IDLE},
};

static void on_tick(struct deadline *deadline);
static void look_again(struct deadline *deadline);

void hotload_init(struct hotload *hotload)
{
    sm_init(&hotload->sm, states, sizeof states / sizeof states[0], IDLE);
    hotload->tick.on_passed = on_tick;
    hotload->late.again.on_passed = look_again;
}

static void emit(const struct hotload *hotload, const char *what, const struct plugin_roles *roles)
{
    if (roles->kind)
        event(hotload->events, RDT__PB__LIST_KIND__LIST_KIND_BACKENDS, what,
              &(struct plugin_roles){.plugin = roles->plugin, .kind = roles->kind});
    if (roles->transport)
        event(hotload->events, RDT__PB__LIST_KIND__LIST_KIND_BACKENDS, what,
              &(struct plugin_roles){.plugin = roles->plugin, .transport = roles->transport});
}

static enum rdt_status check_idle(const struct hotload *hotload, struct rdt_error *err)
{
    if (hotload->sm.state == IDLE)
        return RDT_OK;
    return rdt_error_set(err, RDT_BUSY, "%s (%s, for %.1f s so far); only one change at a time is possible: try again later",
                         hotload->what, sm_name(&hotload->sm), (double)(uv_hrtime() - hotload->since_ns) / 1e9);
}

static void begin(struct hotload *hotload, unsigned state, hotload_done on_done, void *arg)
{
    sm_move(&hotload->sm, state);
    hotload->since_ns = uv_hrtime();
    hotload->on_done = on_done;
    hotload->arg = arg;
}

static void end(struct hotload *hotload, const struct plugin_roles *roles, const struct rdt_error *err)
{
    hotload_done on_done = hotload->on_done;

    sm_move(&hotload->sm, IDLE);
    hotload->on_done = NULL;
    if (on_done)
        on_done(hotload->arg, roles, err);
}

void hotload_cancel_wait(struct hotload *hotload, const void *arg)
{
    if (hotload->arg == arg)
        hotload->on_done = NULL;
}

/* ---- load ---- */

static void on_loaded(void *arg, const struct plugin_roles *roles, const struct rdt_error *err)
{
    struct hotload *hotload = arg;

    if (err) {
        log_info("no backend was loaded: %s", err->msg);
        end(hotload, NULL, err);
        return;
    }
    log_info("backend %s is loaded from %s", plugin_name(roles->plugin),
             roles->transport ? roles->transport->path : roles->kind->path);
    emit(hotload, "loaded", roles);
    if (roles->transport && !hotload->transfers->closing)
        transfers_transport_loaded(hotload->transfers, roles->transport);
    end(hotload, roles, NULL);
}

enum rdt_status hotload_load(struct hotload *hotload, const char *path, struct options_extra *take_settings,
                             hotload_done on_done, void *arg, struct rdt_error *err)
{
    enum rdt_status status = check_idle(hotload, err);

    if (status != RDT_OK) {
        options_extra_free(take_settings);
        return status;
    }
    status = plugins_load(hotload->plugins, hotload->options, path, take_settings, on_loaded, hotload, err);
    if (status != RDT_OK)
        return status;
    (void)snprintf(hotload->what, sizeof hotload->what, "backend %.100s is being loaded", path);
    begin(hotload, LOADING, on_done, arg);
    return RDT_OK;
}

/* ---- transports that found no network ---- */

static void open_next(struct hotload *hotload);

static void on_opened(void *arg, const struct plugin_roles *roles, const struct rdt_error *err)
{
    struct hotload *hotload = arg;

    if (err)
        hotload->late.n_passed++;
    else
        transfers_transport_forget(hotload->transfers,
                                   roles->transport); /* what other nodes offered to the one that it replaces */
    on_loaded(hotload, roles, err);
    open_next(hotload);
}

/* Transports without memory of their own: nothing of them is in use while they are not available. */
static bool find_waiting(const struct hotload *hotload, unsigned n, struct plugin_roles *roles_p)
{
    list_each (const struct transport, transport, plugins_transports(hotload->plugins), link)
        if (!transport->available && !transport->unloading &&
            plugins_find(hotload->plugins, transport->name, roles_p, NULL) == RDT_OK && !roles_p->kind && n-- == 0)
            return true;
    return false;
}

/* Each transport that waits is tried once. */
static void open_next(struct hotload *hotload)
{
    struct late_network *late = &hotload->late;
    struct plugin_roles roles;
    struct rdt_error err;

    if (hotload->transfers->closing || !find_waiting(hotload, late->n_passed, &roles))
        return;
    if (check_idle(hotload, &err) != RDT_OK ||
        plugins_open_again(hotload->plugins, hotload->options, &roles, on_opened, hotload, &err) != RDT_OK) {
        (void)deadline_set(hotload->deadlines, &late->again, LOOK_NS);
        return;
    }
    (void)snprintf(hotload->what, sizeof hotload->what, "backend %.64s is being opened again", plugin_name(roles.plugin));
    begin(hotload, LOADING, NULL, NULL);
}

static void run_look(struct work *work)
{
    struct late_network *late = container_of(work, struct late_network, look);

    late->away = peers_network_is_away(container_of(late, struct hotload, late)->options, late->what, sizeof late->what);
}

static void done_look(struct work *work)
{
    struct hotload *hotload = container_of(work, struct hotload, late.look);

    if (hotload->late.away) {
        if (!hotload->transfers->closing)
            (void)deadline_set(hotload->deadlines, &hotload->late.again, LOOK_NS);
        return;
    }
    log_info("the network is complete now");
    open_next(hotload);
}

static void look_again(struct deadline *deadline)
{
    struct hotload *hotload = container_of(deadline, struct hotload, late.again);

    if (hotload->transfers->closing)
        return;
    if (hotload->late.away)
        owner_work_submit(hotload->late.owner_work, &hotload->late.look, NULL, true);
    else
        open_next(hotload);
}

void hotload_await_network(struct hotload *hotload, struct owner_work *owner_work)
{
    hotload->late.owner_work = owner_work;
    hotload->late.look = (struct work){.run = run_look, .done = done_look};
    hotload->late.away = true;
    look_again(&hotload->late.again);
}

/* ---- unload ---- */

static enum rdt_status check_memory(const struct hotload *hotload, const struct memory_kind *kind, struct rdt_error *err)
{
    /* the pool is emptied before the unload */
    unsigned users = kind->users - device_pool_blocks(&hotload->regions->device_pool, kind);
    const struct region *region;

    if (strcasecmp(kind->name, "host") == 0)
        return rdt_error_set(err, RDT_INVALID, "the memory kind host cannot be unloaded: everything needs it");
    if (users == 0)
        return RDT_OK;
    region = regions_find_user(hotload->regions, kind);
    if (!region)
        return rdt_error_set(err, RDT_BUSY,
                             "memory kind %s is in use: %u ranges of its memory are cached for their clients, waited for by a "
                             "fetch, or being released",
                             kind->name, users);
    return rdt_error_set(err, RDT_BUSY, "memory kind %s is in use: region %llu of uid %u (client %llu)%s", kind->name,
                         (unsigned long long)region->id, region->account->owner.uid, (unsigned long long)region->creator,
                         users > 1 ? ", and others" : "");
}

static void on_unloaded(void *arg, const struct plugin_roles *roles, const struct rdt_error *err)
{
    struct hotload *hotload = arg;

    /* closing cannot fail */
    if (roles->transport)
        transfers_transport_forget(hotload->transfers, roles->transport);
    log_info("backend %s is unloaded", plugin_name(roles->plugin));
    emit(hotload, "unloaded", roles);
    end(hotload, NULL, NULL);
}

static bool step(struct hotload *hotload)
{
    struct transport *transport = hotload->roles.transport;
    struct memory_kind *kind = hotload->roles.kind;

    if (hotload->sm.state == LEAVING) {
        if (transport && !transfers_transport_gone(hotload->transfers, transport)) {
            if (uv_hrtime() - hotload->since_ns > CLOSE_NS)
                transfers_transport_cut(hotload->transfers, transport);
            return false;
        }
        hotload->cursor = hotload->pin_cursor = 0;
        sm_move(&hotload->sm, FORGETTING);
    }
    if (transport && !regions_forget_transport(hotload->regions, transport, &hotload->cursor))
        return false;
    if (kind && !regions_forget_pins(hotload->regions, kind, &hotload->pin_cursor))
        return false;
    if ((transport && transport->registered > 0) || (kind && (kind->users > 0 || kind->pinned > 0)))
        return false;
    if (plugins_unload(hotload->plugins, &hotload->roles, on_unloaded, hotload, NULL) != RDT_OK)
        return false; /* out of memory, or no thread: the next tick tries again */
    sm_move(&hotload->sm, CLOSING);
    return true;
}

static void on_tick(struct deadline *deadline)
{
    struct hotload *hotload = container_of(deadline, struct hotload, tick);

    if (!hotload->transfers->closing && !step(hotload))
        (void)deadline_set(hotload->deadlines, &hotload->tick, CHECK_NS);
}

static void make_unavailable(struct plugin_roles *roles)
{
    static const char why[] = "it is being unloaded";

    if (roles->transport) {
        roles->transport->unloading = true;
        roles->transport->available = false;
        memcpy(roles->transport->why_not, why, sizeof why);
    }
    if (roles->kind) {
        roles->kind->available = false;
        memcpy(roles->kind->why_not, why, sizeof why);
    }
}

enum rdt_status hotload_unload(struct hotload *hotload, const char *name, hotload_done on_done, void *arg,
                               struct rdt_error *err)
{
    struct plugin_roles roles;
    enum rdt_status status = check_idle(hotload, err);

    if (status == RDT_OK)
        status = plugins_find(hotload->plugins, name, &roles, err);
    if (status == RDT_OK && roles.kind)
        status = check_memory(hotload, roles.kind, err);
    if (status == RDT_OK && roles.transport)
        status = transfers_transport_idle(hotload->transfers, roles.transport, err);
    if (status == RDT_OK && !deadline_set(hotload->deadlines, &hotload->tick, CHECK_NS))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to unload %.64s", name);
    if (status != RDT_OK)
        return status;
    (void)snprintf(hotload->what, sizeof hotload->what, "backend %.64s is being unloaded", plugin_name(roles.plugin));
    begin(hotload, LEAVING, on_done, arg);
    hotload->roles = roles;
    make_unavailable(&roles);
    if (roles.kind)
        device_pool_forget_kind(&hotload->regions->device_pool, roles.kind);
    emit(hotload, "unavailable", &roles);
    if (roles.transport)
        transfers_transport_leave(hotload->transfers, roles.transport);
    return RDT_OK;
}
