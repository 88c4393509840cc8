/* SPDX-License-Identifier: Apache-2.0 */
/* Starts every room, connects the rooms by callbacks, and runs the loop:
 *
 *   plug-ins, work pool -> tables -> peers -> listener -> READY
 */
#include <inttypes.h>
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/base/sdnotify.h"
#include "daemon/base/sigbus_guard.h"
#include "daemon/config/limits.h"
#include "daemon/conn_hello.h"
#include "daemon/conn_session.h"
#include "daemon/daemon_impl.h"
#include "daemon/memory/region_orphans.h"
#include "daemon/persist/persist.h"
#include "daemon/plugins/plugin_blame.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/rpc_read.h"

#define SLICE_NS 100000 /* the shortest slice that the kernel accepts */

/* ---- callbacks of peers: their links carry transfers, groups, holds and calls ---- */

static void fill_hello(void *arg, struct peer *peer, Rdt__Pb__LinkHello *hello)
{
    struct daemon *daemon = arg;

    /* transports are offered when the link is up, since only then the node at its other end is known */
    hello->version = (char *)RDTD_VERSION;
    hello->tensor_runs = true;
    hello->names = true;
    hello->keeps_sessions = daemon->recovery.journal != NULL;
}

static void on_peer_up(void *arg, struct peer *peer, const Rdt__Pb__LinkHello *hello, bool boot_changed)
{
    struct daemon *daemon = arg;

    log_info("node %s at %s is up%s", peer->name, peer->address, boot_changed ? ", and was restarted since its last link" : "");
    groups_peer_up(&daemon->groups, peer, boot_changed);
    transfers_peer_up(&daemon->transfers, peer);
    holds_peer_up(&daemon->cluster.holds, peer, boot_changed, hello->keeps_sessions);
    calls_peer_up(&daemon->rpc, peer);
    directory_names_peer_up(&daemon->cluster.directory_names, peer);
}

/* Adds what a transport has found out about the way to that node: if large packets are lost, the link ends with the first
 * message that is no small one. */
static void add_trouble(const struct peer *peer, struct rdt_error *lost)
{
    struct peer_summary summary;
    size_t used = strlen(lost->msg);

    transfers_peer_summary(peer, &summary);
    if (summary.n_troubles > 0)
        (void)snprintf(lost->msg + used, sizeof lost->msg - used, "; known of the way to it: %s", summary.trouble[0]);
}

static void on_peer_down(void *arg, struct peer *peer, bool was_up, const struct rdt_error *why)
{
    struct daemon *daemon = arg;
    struct rdt_error lost = *why;

    lost.status = RDT_PEER_LOST; /* requests to that node fail with this, whatever ended the link */
    rdt_error_prefix(&lost, was_up ? "node %s is lost" : "node %s cannot be reached", peer->name);
    if (was_up) {
        add_trouble(peer, &lost);
        log_warn("%s", lost.msg);
    }
    transfers_peer_down(&daemon->transfers, peer, &lost);
    groups_peer_down(&daemon->groups, peer, &lost);
    calls_peer_down(&daemon->rpc, peer, &lost);
    holds_peer_down(&daemon->cluster.holds, peer);
}

static void on_peer_merged(void *arg, struct peer *from, struct peer *into)
{
    struct daemon *daemon = arg;
    struct rdt_error why;

    groups_peer_merged(&daemon->groups, from, into);
    if (into) {
        transfers_peer_merged(&daemon->transfers, from, into);
        calls_peer_merged(&daemon->rpc, from, into);
        return;
    }
    (void)rdt_error_set(&why, RDT_INVALID, "the node at %s is this node itself", from->address);
    transfers_peer_down(&daemon->transfers, from, &why);
    calls_peer_down(&daemon->rpc, from, &why);
}

static enum rdt_status on_peer_message(void *arg, struct peer *peer, const struct peer_message *message, struct rdt_error *err)
{
    struct daemon *daemon = arg;

    if (message->type == RDT_PEER_CALL || message->type == RDT_PEER_CALL_REPLY) {
        calls_on_message(&daemon->rpc, peer, message);
        return RDT_OK;
    }
    if (message->type == RDT_PEER_NAME)
        return directory_names_on_message(&daemon->cluster.directory_names, peer, message->body, err);
    if (message->type == RDT_PEER_HOLDS)
        return holds_on_message(&daemon->cluster.holds, peer, message->body, err);
    if (groups_message_is_ours(message->type))
        return groups_on_message(&daemon->groups, peer, message, err);
    return transfers_on_message(&daemon->transfers, peer, message, err);
}

static void on_peer_answer(void *arg, struct peer *peer)
{
    struct daemon *daemon = arg;

    transfers_peer_answer(&daemon->transfers, peer);
}

static bool may_forget_peer(void *arg, struct peer *peer)
{
    struct daemon *daemon = arg;

    return !groups_name_peer(&daemon->groups, peer) && !calls_name_peer(&daemon->rpc, peer) &&
           holds_forget_peer(&daemon->cluster.holds, peer) && transfers_forget_peer(&daemon->transfers, peer);
}

/* ---- callbacks of groups ---- */

static enum rdt_status send_for_group(void *arg, struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message,
                                      struct rdt_error *err)
{
    return peer_send(peer, type, message, err);
}

static enum rdt_status find_for_group(void *arg, const uint8_t node[16], const char *address, struct account *account,
                                      struct peer **peer_p, struct rdt_error *err)
{
    struct daemon *daemon = arg;

    *peer_p = NULL;
    if (node_is_here(&daemon->cluster.node, node, address))
        return RDT_OK;
    if (!daemon->cluster.peers)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "it is on another node, and this daemon has no peer link: set listen, and key_file or peer_cert");
    return peers_find(daemon->cluster.peers, node, address, account, peer_p, err);
}

static bool check_requester_for_group(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p,
                                      struct rdt_error *err)
{
    return transfers_check_requester(&((struct daemon *)arg)->transfers, requester, owner_p, err);
}

static bool has_client(void *arg, const struct owner *owner, const char *name)
{
    const struct daemon *daemon = arg;

    list_each (const struct client, client, &daemon->rpc.clients.all, link)
        if (!client->conn.gone && strcmp(client->name, name) == 0 && owner_equal(&client->account->owner, owner))
            return true;
    return false;
}

static void on_group(void *arg, struct group *group, enum group_change change)
{
    transfers_on_group(&((struct daemon *)arg)->transfers, group, change);
}

/* ---- callbacks of objects and regions ---- */

static bool drop_holds(void *arg, struct object *object, uint64_t until_ns)
{
    struct daemon *daemon = arg;

    return names_object_freed(&daemon->names, object, until_ns) && remote_holds_object_freed(object, until_ns) &&
           holds_object_freed(object, until_ns);
}

static void on_object_ended(void *arg, const struct object *object)
{
    struct daemon *daemon = arg;

    transfers_object_ended(&daemon->transfers, object);
    storage_object_ended(&daemon->storage, object);
}

static void on_lost_id(void *arg, const struct object *object)
{
    storage_object_ended(&((struct daemon *)arg)->storage, object); /* the next start would find two files of one id */
}

/* Replicas without users are evicted first, then objects of the cache, in later turns, then the memory of stored objects;
 * nothing is freed if all together are too little. */
static uint64_t evict(void *arg, uint64_t bytes)
{
    struct daemon *daemon = arg;
    uint64_t replicas = transfers_evict_replicas(&daemon->transfers, bytes), left = bytes - replicas;
    uint64_t cached = daemon->objects.cache.sums.idle_bytes, spilled = 0;

    if (replicas >= bytes)
        return replicas;
    if (cached < left)
        spilled = storage_spill(&daemon->storage, left - cached);
    if (cached + spilled < left)
        return replicas + cached + spilled;
    if (replicas > 0)
        (void)transfers_evict_replicas(&daemon->transfers, replicas);
    if (cached > 0)
        cache_make_memory(&daemon->objects.cache, left - spilled);
    return replicas + cached + spilled;
}

/* ---- the heap ---- */

/* malloc_trim walks through all free memory and has the lock of the heap meanwhile, for which the loop waits whenever it
 * allocates: 10 to 50 ms for 24 MiB, 700 ms for 256 MiB. Users can have the heap grow and shrink, so trims take at most so
 * small a part of the time. */
#define TRIM_PART 100

static void run_trim(struct work *work)
{
    struct daemon_trim *trim = (struct daemon_trim *)work;
    uint64_t began_ns = uv_hrtime();

    (void)malloc_trim(0);
    trim->took_ns = uv_hrtime() - began_ns;
}

static void on_heap_freed(void *arg);

static void on_trim_pause_over(struct deadline *deadline)
{
    struct daemon *daemon = container_of(deadline, struct daemon, trim.pause);

    daemon->trim.pauses = false;
    if (daemon->trim.again)
        on_heap_freed(daemon);
}

static void done_trim(struct work *work)
{
    struct daemon *daemon = container_of(work, struct daemon, trim.work);
    struct daemon_trim *trim = &daemon->trim;

    trim->runs = false;
    trim->pause.on_passed = on_trim_pause_over;
    trim->pauses =
        !daemon->end.stopping && deadline_set(&daemon->deadlines, &trim->pause, (int64_t)(TRIM_PART * trim->took_ns));
    if (trim->again && !trim->pauses)
        on_heap_freed(daemon);
}

static void on_heap_freed(void *arg)
{
    struct daemon *daemon = arg;
    struct daemon_trim *trim = &daemon->trim;

    trim->again = trim->runs || trim->pauses || daemon->end.stopping;
    if (trim->again)
        return;
    trim->work = (struct work){.run = run_trim, .done = done_trim};
    trim->runs = true;
    work_submit(daemon->pool, &trim->work);
}

/* ---- the start ---- */

static void init_rooms(struct daemon *daemon)
{
    const struct options *options = daemon->options;

    deadlines_init(&daemon->deadlines, &daemon->loop);
    regions_init(&daemon->regions, daemon->plugins, daemon->pool, options_effective_memory_limit(options));
    daemon_check_memory_limit(daemon);
    regions_set_reuse(&daemon->regions, &daemon->deadlines, daemon->regions.limit_bytes / 8,
                      options_effective_cache_max(options, daemon->regions.limit_bytes), options->pool_idle_ns);
    accounts_init(&daemon->accounts);
    persons_init(&daemon->fresh.persons, "/etc/subuid", "/etc/passwd", daemon->owner_work);
    daemon->accounts.person_of = persons_find;
    daemon->accounts.person_arg = &daemon->fresh.persons;
    daemon->accounts.heap_fits = memory_room_fits_heap;
    daemon->accounts.heap_arg = &daemon->regions.room;
    daemon->accounts.on_heap_freed = on_heap_freed;
    daemon->accounts.heap_freed_arg = daemon;
    limits_derive(options, daemon->open_files, &daemon->accounts.limits);
    daemon->own = (struct account){.owner.uid = geteuid(), .refs = 1};
    slabs_init(&daemon->slabs, &daemon->regions, &daemon->deadlines, "host", &daemon->own);
    object_table_init(&daemon->objects, &daemon->cluster.node, &daemon->accounts, &daemon->slabs, options->max_objects);
    daemon->objects.deadlines = &daemon->deadlines;
    daemon->objects.cache.slices = &daemon->deadlines.slices;
    cache_set_limits(&daemon->objects.cache, options->cache_limit_bytes, options->owner_cache_limit_bytes);
    cache_set_file_limits(&daemon->objects.cache, options->cache_storage_limit_bytes, options->owner_cache_storage_limit_bytes);
    daemon->regions.owner_work = daemon->owner_work;
    daemon->regions.accounts = &daemon->accounts;
    (void)region_orphans_create(&daemon->regions, &daemon->loop);
    names_init(&daemon->names, &daemon->accounts, &daemon->deadlines);
    daemon->objects.drop_holds = drop_holds;
    daemon->regions.left.on_no_room = objects_end_without_room;
    daemon->regions.left.arg = &daemon->objects;
    daemon->objects.arg = daemon;
    daemon->counts = (Rdt__Pb__StatusReply)RDT__PB__STATUS_REPLY__INIT;
    daemon->transfers = (struct transfers){.loop = &daemon->loop,
                                           .counts = &daemon->counts,
                                           .options = options,
                                           .node = &daemon->cluster.node,
                                           .plugins = daemon->plugins,
                                           .pool = daemon->pool,
                                           .deadlines = &daemon->deadlines,
                                           .regions = &daemon->regions,
                                           .objects = &daemon->objects,
                                           .names = &daemon->names,
                                           .groups = &daemon->groups,
                                           .directory_names = &daemon->cluster.directory_names};
    transfers_init(&daemon->transfers);
    daemon->objects.on_adopted = replica_settle;
    daemon->regions.evict = evict;
    daemon->regions.evict_arg = daemon;
    daemon->objects.on_ended = on_object_ended;
    daemon->objects.on_ended_arg = daemon;
    daemon->objects.on_lost_id = on_lost_id;
    daemon->rpc = (struct rpc){.loop = &daemon->loop,
                               .counts = &daemon->counts,
                               .options = options,
                               .node = &daemon->cluster.node,
                               .plugins = daemon->plugins,
                               .deadlines = &daemon->deadlines,
                               .regions = &daemon->regions,
                               .owner_work = daemon->owner_work,
                               .objects = &daemon->objects,
                               .names = &daemon->names,
                               .recovery = &daemon->recovery,
                               .storage = &daemon->storage,
                               .transfers = &daemon->transfers,
                               .hotload = &daemon->hotload,
                               .groups = &daemon->groups,
                               .directory = &daemon->cluster.directory,
                               .directory_names = &daemon->cluster.directory_names,
                               .holds = &daemon->cluster.holds,
                               .shards = &daemon->shards,
                               .calls = {.next_forward = 1},
                               .meters = {.started_ns = uv_hrtime()},
                               .above = {.arg = daemon,
                                         .read_again = daemon_read_again,
                                         .adopt = daemon_adopt,
                                         .compare = daemon_compare,
                                         .dispatch = rpc_dispatch}};
    holds_init(&daemon->cluster.holds, &daemon->deadlines, &daemon->recovery, options->hold_grace_ns);
    watches_init(&daemon->rpc);
    readings_init(&daemon->rpc);
    daemon->groups = (struct groups){.events = &daemon->rpc.events,
                                     .recovery = &daemon->recovery,
                                     .accounts = &daemon->accounts,
                                     .options = options,
                                     .node = &daemon->cluster.node,
                                     .plugins = daemon->plugins,
                                     .deadlines = &daemon->deadlines,
                                     .callbacks = {.arg = daemon,
                                                   .send = send_for_group,
                                                   .find = find_for_group,
                                                   .check_requester = check_requester_for_group,
                                                   .has_client = has_client,
                                                   .on_change = on_group}};
    groups_init(&daemon->groups);
    daemon->regions.events = daemon->objects.events = daemon->transfers.events = daemon->names.events = &daemon->rpc.events;
    daemon->accounts.events = &daemon->rpc.events;
    daemon->hotload = (struct hotload){.events = &daemon->rpc.events,
                                       .options = options,
                                       .plugins = daemon->plugins,
                                       .regions = &daemon->regions,
                                       .transfers = &daemon->transfers,
                                       .deadlines = &daemon->deadlines};
    list_init(&daemon->fresh.configs);
    hotload_init(&daemon->hotload);
    list_init(&daemon->rpc.clients.all);
    permutation_init(&daemon->rpc.page_tokens, 32);
    map_init(&daemon->rpc.calls.deferred);
    index_init(&daemon->rpc.calls.waiting, 1);
    list_init(&daemon->rpc.calls.link_ends);
    list_init(&daemon->rpc.retakes.holds);
    daemon->shards = (struct shards){
        .node = &daemon->cluster.node,
        .deadlines = &daemon->deadlines,
        .regions = &daemon->regions,
        .objects = &daemon->objects,
        .published = &daemon->names,
        .recovery = &daemon->recovery,
        .directory_names = &daemon->cluster.directory_names,
        .counts = &daemon->counts,
        .max_tensors = options->version_max_tensors,
        .above = {.arg = &daemon->rpc, .hold = rpc_hold_part, .holder_gone = rpc_holder_gone},
    };
    shards_init(&daemon->shards);
    daemon->cluster.follows = (struct follows){
        .node = &daemon->cluster.node,
        .deadlines = &daemon->deadlines,
        .regions = &daemon->regions,
        .objects = &daemon->objects,
        .transfers = &daemon->transfers,
        .counts = &daemon->counts,
        .above = {.arg = &daemon->rpc, .hold = rpc_hold_part, .holder_gone = rpc_holder_gone, .growing = rpc_ask_growing},
    };
    follows_init(&daemon->cluster.follows);
    daemon->transfers.held = (struct transfers_held){.follows = &daemon->cluster.follows, .find = follows_held};
    map_init(&daemon->rpc.calls.forwarded);
    map_init(&daemon->rpc.retakes.nodes);
    conns_init(&daemon->conns, &daemon->rpc, daemon->open_files);
    daemon->conns.on_hello = conn_hello;
    daemon->conns.on_end = conn_session_end;
    daemon->listener.conns = &daemon->conns;
}

static enum rdt_status restore_state(struct daemon *daemon, struct rdt_error *err)
{
    bool may_take_uuid = daemon->options->state_dir[0] == '\0' || daemon->cluster.node.damaged;
    enum rdt_status status;

    daemon->recovery = (struct recovery){.keeper = daemon->options->keeper,
                                         .node = &daemon->cluster.node,
                                         .accounts = &daemon->accounts,
                                         .plugins = daemon->plugins,
                                         .regions = &daemon->regions,
                                         .objects = &daemon->objects,
                                         .names = &daemon->names,
                                         .deadlines = &daemon->deadlines,
                                         .restore_session = conn_session_restore,
                                         .restore_arg = &daemon->conns,
                                         .restore_manifest = shards_restore,
                                         .manifest_arg = &daemon->shards};
    daemon->storage = (struct storage){.directory = daemon->options->storage_dir,
                                       .regions = &daemon->regions,
                                       .accounts = &daemon->accounts,
                                       .plugins = daemon->plugins,
                                       .objects = &daemon->objects,
                                       .names = &daemon->names,
                                       .counts = &daemon->counts};
    status = persist_start(&daemon->recovery, &daemon->storage, &daemon->loop, may_take_uuid, err);
    if (status == RDT_OK)
        node_renew(daemon->options->state_dir, &daemon->cluster.node);
    if (status == RDT_OK)
        conns_save_ids(&daemon->conns, recovery_session_ids(&daemon->recovery));
    return status;
}

/* A lower memory_limit takes nothing from objects of the earlier daemon. */
static void check_restored(const struct daemon *daemon)
{
    const struct regions *regions = &daemon->regions;

    if (regions->bytes > regions->limit_bytes)
        log_warn("the objects of the earlier daemon take %" PRIu64 " bytes, and memory_limit is %" PRIu64
                 ": they stay, and nobody gets new memory until enough of them have been freed",
                 regions->bytes, regions->limit_bytes);
}

static enum rdt_status start_serving(struct daemon *daemon, struct rdt_error *err)
{
    struct peers_callbacks callbacks = {.arg = daemon,
                                        .events = &daemon->rpc.events,
                                        .owner_work = daemon->owner_work,
                                        .slices = &daemon->deadlines.slices,
                                        .busy_poll = &daemon->rpc.meters.busy_poll,
                                        .may_forget = may_forget_peer,
                                        .fill_hello = fill_hello,
                                        .on_up = on_peer_up,
                                        .on_down = on_peer_down,
                                        .on_merged = on_peer_merged,
                                        .on_message = on_peer_message,
                                        .on_answer = on_peer_answer};
    enum rdt_status status = RDT_OK;

    if (!plugins_memory_kind(daemon->plugins, "host"))
        return rdt_error_set(err, RDT_INVALID,
                             "no backend for host memory in %s: set backend_dir to the directory of rdt_host.so",
                             daemon->options->backend_dir);
    status = restore_state(daemon, err);
    if (status == RDT_OK)
        check_restored(daemon);
    if (status == RDT_OK && options_have_peers(daemon->options))
        status = peers_create(&daemon->loop, daemon->options, &daemon->cluster.node, &callbacks, &daemon->cluster.peers, err);
    daemon->transfers.peers = daemon->rpc.peers = daemon->cluster.peers;
    daemon->cluster.directory = (struct directory){.loop = &daemon->loop,
                                                   .options = daemon->options,
                                                   .node = &daemon->cluster.node,
                                                   .peers = daemon->cluster.peers,
                                                   .owner_work = daemon->owner_work,
                                                   .deadlines = &daemon->deadlines};
    daemon->cluster.directory_names = (struct directory_names){.options = daemon->options,
                                                               .node = &daemon->cluster.node,
                                                               .peers = daemon->cluster.peers,
                                                               .names = &daemon->names,
                                                               .deadlines = &daemon->deadlines,
                                                               .arg = daemon,
                                                               .check_requester = check_requester_for_group};
    directory_names_start(&daemon->cluster.directory_names);
    if (status == RDT_OK)
        directory_start(&daemon->cluster.directory);
    if (status == RDT_OK)
        status = listener_start(&daemon->listener, &daemon->conns, err);
    if (status == RDT_OK) {
        daemon->rpc.intake.passed = daemon->listener.path[0] == '\0';
        holds_restore(&daemon->cluster.holds, daemon->cluster.peers, daemon->options->restart_grace_ns);
        groups_restore(&daemon->groups);
        retakes_start(&daemon->rpc);
        conn_sessions_wait(&daemon->conns);
    }
    return status;
}

/* Asks the kernel for short time slices (since Linux 6.12; elsewhere this does nothing), before any thread starts,
 * so that the threads of plug-ins inherit them. The loop works for some microseconds at a time, and with short
 * slices it preempts other threads sooner. Threads that copy and receive work for milliseconds, and the kernel
 * checks only at its clock tick whether another thread should run: they call sched_yield after each piece. A yield
 * gives away the rest of the slice, so their slices are short, too. */
static void ask_for_short_slices(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t slice_ns, deadline_ns, period_ns;
    } attr = {.size = sizeof attr, .policy = SCHED_OTHER, .slice_ns = SLICE_NS};

    if (sched_getscheduler(0) != SCHED_OTHER)
        return; /* a scheduling policy was chosen from outside */
    attr.nice = getpriority(PRIO_PROCESS, 0);
    (void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void on_closed(void *arg) {}

enum rdt_status daemon_run(struct options *options, struct rdt_error *err)
{
    struct daemon *daemon = calloc(1, sizeof *daemon);
    struct rdt_error blame_err;
    char uuid[33], away[256];
    bool is_away;
    enum rdt_status status;
    int code, lock = -1;

    if (!daemon)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    ask_for_short_slices();
    daemon->options = options;
    daemon->open_files = limits_raise_open_files();
    if (limits_file_bytes() != UINT64_MAX)
        log_warn("files of this process may have at most %" PRIu64 " bytes (ulimit -f, LimitFSIZE=), and so may each piece of "
                 "memory: larger ones fail",
                 limits_file_bytes());
    is_away = options_have_peers(options) && peers_network_is_away(options, away, sizeof away);
    if (is_away)
        log_warn("%s: the daemon opens its transports, and other nodes reach it, when it is there", away);
    code = uv_loop_init(&daemon->loop);
    if (code != 0) {
        free(daemon);
        return rdt_error_set(err, RDT_SYSTEM, "cannot create the event loop: %s", uv_strerror(code));
    }
    status = node_load(options->state_dir, &daemon->cluster.node, err);
    if (status == RDT_OK)
        status = node_lock(options->state_dir, &daemon->cluster.node, &lock, err);
    if (status == RDT_OK && plugin_blame_start(options->state_dir, &blame_err) != RDT_OK)
        log_warn("crashes of plug-ins will not be recorded: %s", blame_err.msg);
    if (status == RDT_OK)
        status = plugins_create(&daemon->loop, options, &daemon->plugins, err);
    sigbus_guard_install();
    if (status == RDT_OK)
        status = owner_work_create(&daemon->loop, options->worker_threads, &daemon->owner_work, err);
    if (status == RDT_OK)
        status = work_pool_create(&daemon->loop, options->worker_threads, &daemon->pool, err);
    if (status != RDT_OK) {
        if (daemon->owner_work)
            owner_work_close(daemon->owner_work, on_closed, NULL);
        if (daemon->plugins)
            plugins_close(daemon->plugins, on_closed, NULL);
        (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
        (void)uv_loop_close(&daemon->loop);
        free(daemon);
        return status;
    }
    init_rooms(daemon);
    daemon_start_signals(daemon);
    status = start_serving(daemon, err);
    if (status == RDT_OK) {
        node_hex(daemon->cluster.node.uuid, uuid);
        log_info("rdtd %s: node %s serves %s%s%s", RDTD_VERSION, uuid, options->socket,
                 daemon->cluster.node.address[0] ? ", peers at " : "", daemon->cluster.node.address);
        sdnotify("READY=1\nSTATUS=serving");
        daemon_start_idle_exit(daemon);
        if (is_away)
            hotload_await_network(&daemon->hotload, daemon->owner_work);
    } else {
        daemon->rpc.intake.draining = true;
        daemon_close(daemon);
    }
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    if (daemon->end.stuck)
        return rdt_error_set(err, RDT_INTERNAL, "the daemon ended before its backends had closed");

    map_fini(&daemon->rpc.calls.forwarded);
    map_fini(&daemon->rpc.calls.deferred);
    index_fini(&daemon->rpc.calls.waiting);
    retakes_clear(&daemon->rpc);
    transfers_fini(&daemon->transfers);
    recovery_fini(&daemon->recovery);
    storage_fini(&daemon->storage);
    names_fini(&daemon->names);
    object_table_fini(&daemon->objects);
    accounts_fini(&daemon->accounts);
    persons_fini(&daemon->fresh.persons);
    regions_fini(&daemon->regions);
    if (uv_loop_close(&daemon->loop) != 0)
        log_warn("the loop still had open handles at its end");
    if (lock >= 0)
        (void)close(lock); /* a thread whose close of a client's file never returns keeps the process's descriptors open */
    if (status == RDT_OK)
        log_info("rdtd has ended cleanly");
    free(daemon);
    return status;
}
