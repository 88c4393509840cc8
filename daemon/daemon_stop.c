/* SPDX-License-Identifier: Apache-2.0 */
/* How the daemon ends.
 *
 *   drain:  after SIGTERM the daemon refuses new clients and puts, and waits for its transfers to end, until drain_timeout
 *           or a second signal
 *   close:  listener -> clients -> transports -> groups -> peers -> copies on devices -> storage -> work pool -> owner work
 *           -> plug-ins -> loop
 *
 * Below, the steps of the close are in reverse order, because each names the next one as its callback. */
#include <signal.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/sdnotify.h"
#include "daemon/daemon_impl.h"
#include "daemon/objects/detached.h"
#include "daemon/objects/transit.h"
#include "daemon/rpc/rpc.h"
#include "proto/plain_text.h"

#define CLOSE_TIMEOUT_NS 10000000000ll
#define LINGER_NS 300000000ll
#define IDLE_CHECKS 8 /* in one idle_exit */

/* ---- the rooms close ---- */

/* libuv restores the default action, which would kill a process that is about to exit with 0, and so does UCX for SIGHUP when
 * it is unloaded. So the signal is blocked for good, and ignored in threads of libraries that do not block it. */
static void close_signal(uv_signal_t *handle)
{
    int number = handle->signum;
    sigset_t mask;

    (void)sigemptyset(&mask);
    if (number > 0 && sigaddset(&mask, number) == 0)
        (void)pthread_sigmask(SIG_BLOCK, &mask, NULL);
    uv_close((uv_handle_t *)handle, NULL);
    if (number > 0)
        (void)signal(number, SIG_IGN);
}

static void close_loop_handles(void *arg)
{
    struct daemon *daemon = arg;

    close_signal(&daemon->signals.sigterm);
    close_signal(&daemon->signals.sigint);
    close_signal(&daemon->signals.sighup);
    if (daemon->watchdog.runs)
        uv_close((uv_handle_t *)&daemon->watchdog.timer, NULL);
    watches_fini(&daemon->rpc);
    deadlines_close(&daemon->deadlines, NULL);
}

static void close_plugins(void *arg)
{
    struct daemon *daemon = arg;

    plugins_close(daemon->plugins, close_loop_handles, daemon);
}

/* Comes before the plug-ins, whose functions end imported memory on the threads of owners. */
static void close_owner_work(void *arg)
{
    struct daemon *daemon = arg;

    daemon->fresh.persons.owner_work = NULL;
    owner_work_close(daemon->owner_work, close_plugins, daemon);
}

static void close_pool(void *arg);

/* Memory that a device still reads or writes, and what the callbacks of these copies use, must outlive the copies. */
static void await_copies(void *arg)
{
    struct daemon *daemon = arg;

    plugins_await_copies(daemon->plugins, close_pool, daemon);
}

static void close_pool_itself(void *arg)
{
    struct daemon *daemon = arg;

    work_pool_close(daemon->pool, close_owner_work, daemon);
}

/* Work on the threads of owners ends in memory that the pool frees, as when objects were packed for a client that has gone. */
static void await_owner_works(void *arg)
{
    struct daemon *daemon = arg;

    slabs_fini(&daemon->slabs); /* the objects in it have ended with their clients */
    regions_close(&daemon->regions);
    owner_work_await_works(daemon->owner_work, close_pool_itself, daemon);
}

static void close_pool(void *arg)
{
    struct daemon *daemon = arg;

    storage_close(&daemon->storage, await_owner_works, daemon);
}

static void close_peers(void *arg)
{
    struct daemon *daemon = arg;

    directory_close(&daemon->cluster.directory, daemon->options->keeper[0] != '\0');
    directory_names_close(&daemon->cluster.directory_names);
    calls_close(&daemon->rpc);
    if (daemon->cluster.peers)
        peers_close(daemon->cluster.peers, await_copies, daemon);
    else
        await_copies(daemon);
}

static void close_groups(void *arg)
{
    struct daemon *daemon = arg;

    groups_close(&daemon->groups, close_peers, daemon);
}

static void close_transfers(void *arg)
{
    struct daemon *daemon = arg;

    object_notifies_end(&daemon->objects);
    object_forced_end(&daemon->objects);
    detached_end_all(&daemon->objects);
    cache_end_all(&daemon->objects);
    transit_end_all(&daemon->objects);
    shards_clear(&daemon->shards); /* they hold objects, here and on other nodes */
    follows_clear(&daemon->cluster.follows);
    holds_clear(&daemon->cluster.holds);
    if (daemon->options->keeper[0] != '\0') /* the next daemon restores the names: other nodes must not take them over */
        directory_names_mute(&daemon->cluster.directory_names);
    names_clear(&daemon->names); /* names hold objects, and the work pool, which frees their memory, still runs */
    transfers_close(&daemon->transfers, close_groups, daemon);
}

static void close_clients(void *arg)
{
    struct daemon *daemon = arg;

    conns_close(&daemon->conns, close_transfers, daemon);
}

/* A backend that never reports the end of a close or of a copy must not keep the process alive. Its threads end with
 * the process. */
static void on_close_timeout(struct deadline *deadline)
{
    struct daemon *daemon = container_of(deadline, struct daemon, end.close_limit);

    if (plugins_copies(daemon->plugins) > 0)
        log_error("%u copies on devices do not end: the daemon exits without waiting for them",
                  plugins_copies(daemon->plugins));
    else
        log_error("a backend does not close: the daemon exits without waiting for it");
    daemon->end.stuck = true;
    uv_stop(&daemon->loop);
}

void daemon_close(struct daemon *daemon)
{
    if (daemon->end.stopping)
        return;
    daemon->end.stopping = true;
    conns_stop(&daemon->conns); /* first, because answers after the next line would not be recorded */
    daemon->regions.ending = true;
    storage_freeze(&daemon->storage);
    recovery_close(&daemon->recovery); /* closing things below must not end them for the next daemon */
    daemon->end.close_limit.on_passed = on_close_timeout;
    (void)deadline_set(&daemon->deadlines, &daemon->end.close_limit, CLOSE_TIMEOUT_NS);
    deadline_unset(&daemon->deadlines, &daemon->end.drain_limit);
    deadline_unset(&daemon->deadlines, &daemon->idle.check);
    deadline_unset(&daemon->deadlines, &daemon->trim.pause);
    transfers_set_on_idle(&daemon->transfers, NULL);
    listener_close(&daemon->listener, close_clients, daemon);
}

/* ---- the daemon drains ---- */

/* Waits a little before the close: a transport reports that the buffer of a sent chunk is free, not that the reader has
 * received the bytes. */
static void on_transfers_ended(struct transfers *transfers)
{
    struct daemon *daemon = container_of(transfers, struct daemon, transfers);

    daemon->end.lingering = true;
    (void)deadline_set(&daemon->deadlines, &daemon->end.drain_limit, LINGER_NS);
}

static void on_drain_limit(struct deadline *deadline)
{
    struct daemon *daemon = container_of(deadline, struct daemon, end.drain_limit);

    unsigned active = transfers_active(&daemon->transfers);

    if (!daemon->end.lingering)
        log_warn("drain_timeout has passed with %u transfer%s still running", active, text_plural(active));
    daemon_close(daemon);
}

static void drain(struct daemon *daemon, const char *why)
{
    unsigned active;

    daemon->rpc.intake.draining = true;
    recovery_drain(&daemon->recovery);
    follows_drain(&daemon->cluster.follows);
    transfers_refuse_parked(&daemon->transfers);
    active = transfers_active(&daemon->transfers);
    log_info("%s: draining %u transfer%s", why, active, text_plural(active));
    sdnotify("STOPPING=1\nSTATUS=draining %u transfer%s", active, text_plural(active));
    daemon->end.drain_limit.on_passed = on_drain_limit;
    if (active == 0) {
        if (transfers_quiet_ns(&daemon->transfers) < (uint64_t)LINGER_NS)
            on_transfers_ended(&daemon->transfers);
        else
            daemon_close(daemon);
        return;
    }
    transfers_set_on_idle(&daemon->transfers, on_transfers_ended);
    (void)deadline_set(&daemon->deadlines, &daemon->end.drain_limit, (int64_t)daemon->options->drain_timeout_ns);
}

/* ---- reasons to end ---- */

static void on_idle_check(struct deadline *deadline)
{
    struct daemon *daemon = container_of(deadline, struct daemon, idle.check);
    uint64_t now_ns = uv_hrtime();

    if (daemon->rpc.intake.draining)
        return;
    if (daemon->conns.n > 0 || map_count(&daemon->objects.by_name) > 0 || transfers_active(&daemon->transfers) > 0)
        daemon->idle.needed_ns = now_ns;
    if (now_ns - daemon->idle.needed_ns >= daemon->options->idle_exit_ns)
        drain(daemon, "no client, object or transfer for idle_exit");
    else
        (void)deadline_set(&daemon->deadlines, deadline, (int64_t)daemon->options->idle_exit_ns / IDLE_CHECKS + 1);
}

void daemon_start_idle_exit(struct daemon *daemon)
{
    daemon->idle.check.on_passed = on_idle_check;
    daemon->idle.needed_ns = uv_hrtime();
    if (daemon->options->idle_exit_ns > 0)
        on_idle_check(&daemon->idle.check);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct daemon *daemon = handle->data;

    if (daemon->end.stopping)
        return;
    if (daemon->rpc.intake.draining) {
        log_info("%s again: the daemon ends without waiting for transfers", strsignal(number));
        daemon_close(daemon);
        return;
    }
    drain(daemon, strsignal(number));
}

static void on_watchdog(uv_timer_t *timer)
{
    sdnotify("WATCHDOG=1");
}

void daemon_start_signals(struct daemon *daemon)
{
    uint64_t interval_ns = sdnotify_watchdog_ns();

    (void)uv_signal_init(&daemon->loop, &daemon->signals.sigterm);
    (void)uv_signal_init(&daemon->loop, &daemon->signals.sigint);
    (void)uv_signal_init(&daemon->loop, &daemon->signals.sighup);
    daemon->signals.sigterm.data = daemon->signals.sigint.data = daemon->signals.sighup.data = daemon;
    (void)uv_signal_start(&daemon->signals.sigterm, on_signal, SIGTERM);
    (void)uv_signal_start(&daemon->signals.sigint, on_signal, SIGINT);
    (void)uv_signal_start(&daemon->signals.sighup, daemon_on_hangup, SIGHUP);
    if (interval_ns > 0) {
        daemon->watchdog.runs = true;
        (void)uv_timer_init(&daemon->loop, &daemon->watchdog.timer);
        (void)uv_timer_start(&daemon->watchdog.timer, on_watchdog, interval_ns / 1000000, interval_ns / 1000000);
    }
}
