/* SPDX-License-Identifier: Apache-2.0 */
/* DOCTOR: the table of checks, and those that look at the daemon's own rooms. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "daemon/persist/recovery.h"
#include "daemon/plugins/plugin_blame.h"
#include "daemon/view/doctor/doctor.h"
#include "proto/plain_text.h"
#include "proto/wire_limits.h"

#define EXPIRES_SOON_DAYS 7
#define NEAR_PERCENT 90u              /* percentage of a limit from which the check warns */
#define PAUSE_NS UINT64_C(1000000000) /* for users, because the loop serves nobody else for about a millisecond meanwhile */
#define MOVES_NOTHING_NS UINT64_C(30000000000)
#define TAKES_LONG_NS UINT64_C(600000000000)
#define WAITS_LONG_NS UINT64_C(10000000000) /* ranks of one step publish within seconds of each other */

/* ---- limits ---- */

static bool is_near(uint64_t used, uint64_t limit)
{
    return limit > 0 && used >= limit / 100 * NEAR_PERCENT + limit % 100 * NEAR_PERCENT / 100;
}

static void check_account(struct doctor *doctor, const struct account *account)
{
    char remedy[160];

    for (unsigned i = 0; account->limits && i < USAGE_COUNT; i++) {
        if (!is_near(account->used[i], account->limits[i]))
            continue;
        (void)snprintf(remedy, sizeof remedy, "Let the user free some, or raise owner_max_%s in [limits] of rdtd.conf.",
                       usage_name((enum usage)i));
        doctor_find(doctor, FINDING_WARN, remedy, "User %" PRIu32 "%s%s uses %" PRIu64 " of %" PRIu64 " %s.",
                    account->owner.uid, account->owner.tenant[0] ? " of tenant " : "", account->owner.tenant, account->used[i],
                    account->limits[i], usage_name((enum usage)i));
    }
}

static void check_limits(struct doctor *doctor)
{
    const struct rpc *rpc = doctor->rpc;
    struct accounts *accounts = rpc->objects->accounts;
    uint64_t used = regions_used_bytes(rpc->regions);
    const struct account *account;
    size_t cursor = 0, before = doctor->n;

    if (rpc->regions->bytes > rpc->regions->limit_bytes)
        doctor_find(doctor, FINDING_WARN,
                    "Free objects (`rdtctl limits` shows whose they are), or raise memory_limit in [daemon] of rdtd.conf.",
                    "Objects take %" PRIu64 " bytes, which is more than the memory_limit of %" PRIu64
                    " with which the daemon was started or reloaded: nobody gets new memory until enough of them are freed.",
                    rpc->regions->bytes, rpc->regions->limit_bytes);
    else if (is_near(used, rpc->regions->limit_bytes))
        doctor_find(doctor, FINDING_WARN,
                    "Free objects (`rdtctl limits` shows whose they are), or raise memory_limit in [daemon] of rdtd.conf.",
                    "Objects use %" PRIu64 " of the %" PRIu64 " bytes of memory_limit.", used, rpc->regions->limit_bytes);
    while ((account = map_next(&accounts->by_owner, &cursor)))
        if (call_may_see(doctor->call, &account->owner))
            check_account(doctor, account);
    if (accounts->n_waiting > 0)
        doctor_find(doctor, FINDING_WARN, "Free objects, or raise the limit that `rdtctl limits` shows as full.",
                    "%u request%s for room under a limit.", accounts->n_waiting,
                    accounts->n_waiting == 1 ? " waits" : "s wait");
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "Nobody has used %u percent of a limit.", NEAR_PERCENT);
}

/* ---- files ---- */

static void check_state_dir(struct doctor *doctor)
{
    const char *state_dir = doctor->rpc->options->state_dir;

    if (state_dir[0] == '\0')
        doctor_find(doctor, FINDING_OK, "", "state_dir is empty, so the node has a new uuid after each start.");
    else if (!doctor_has_seen(doctor, DOCTOR_STATE_DIR, "state_dir"))
        return;
    else if (doctor->files->state_dir.status != RDT_OK)
        doctor_find(doctor, FINDING_FAIL, "Give the folder back to the daemon's user: without it the next start fails.",
                    "The daemon cannot use its state_dir any more: %s.", doctor->files->state_dir.msg);
    else
        doctor_find(doctor, FINDING_OK, "", "The node's uuid is in %s.", state_dir);
}

static const char *names_peer(const struct options *options)
{
    return !options->peer_cert[0] ? "key_file" : !options->key_file[0] ? "peer_cert" : "key_file and peer_cert";
}

static void check_key(struct doctor *doctor)
{
    const struct options *options = doctor->rpc->options;

    if (!doctor_has_seen(doctor, DOCTOR_KEY, "The key or a certificate of the peer link"))
        return;
    if (!options_have_peers(options))
        doctor_find(doctor, FINDING_OK, "", "Neither key_file nor peer_cert is set, so this node has no peers.");
    else if (doctor->files->peers.status != RDT_OK)
        doctor_find(
            doctor, FINDING_FAIL,
            "Correct what the sentence names: the running daemon has what it read before, but the next start would fail.",
            "The peer link could not be started again: %s.", doctor->files->peers.msg);
    else if (peers_listen_is_away(options))
        doctor_find(
            doctor, FINDING_WARN,
            "Wait until the interface has it, or set listen to an address of this machine; behind NAT, set advertise to "
            "the other one.",
            "No interface has the address of listen = %s, so no other node reaches this one.", options->listen);
    else if (doctor->rpc->peers && peers_loopback(doctor->rpc->peers)[0])
        doctor_find(doctor, FINDING_WARN,
                    "Set advertise in [network] of rdtd.conf to an address of this node that others reach, and restart rdtd.",
                    "Refs of this node carry %s, which this machine itself leads to %s.", doctor->rpc->node->address,
                    peers_loopback(doctor->rpc->peers));
    else if (options->listen[0] == '\0')
        doctor_find(
            doctor, FINDING_OK, "",
            "The files of %s are usable. listen is not set, so this node fetches from others, and no other node can fetch "
            "from it.",
            names_peer(options));
    else
        doctor_find(doctor, FINDING_OK, "", "The files of %s are usable, and this node listens at %s.", names_peer(options),
                    doctor->rpc->node->address);
}

/* A certificate that expires shuts this node out, and a list of revoked certificates that expires shuts all nodes out. */
static void check_expiry(struct doctor *doctor, const char *what, int64_t expires_s, const char *remedy)
{
    int64_t left = expires_s - (int64_t)time(NULL), day = 24 * 3600;

    if (expires_s == 0)
        return;
    if (left <= 0)
        doctor_find(doctor, FINDING_FAIL, remedy, "%s has expired: no node accepts this one any more.", what);
    else if (left < EXPIRES_SOON_DAYS * day)
        doctor_find(doctor, FINDING_WARN, remedy, "%s expires in %" PRId64 " hours.", what, left / 3600);
    else
        doctor_find(doctor, FINDING_OK, "", "%s is valid for %" PRId64 " days.", what, left / day);
}

static void check_certificates(struct doctor *doctor)
{
    const struct options *options = doctor->rpc->options;
    int64_t certificate = 0, crl = 0;

    if (doctor->rpc->peers)
        peers_certificate_expires(doctor->rpc->peers, &certificate, &crl);
    if (certificate == 0)
        doctor_find(doctor, FINDING_OK, "", "This node has no certificate for other nodes.");
    check_expiry(doctor, "The certificate in peer_cert", certificate, "Renew peer_cert, then run `rdtctl reload`.");
    check_expiry(doctor, "A list of revoked certificates in peer_crl", crl, "Get a new peer_crl, then run `rdtctl reload`.");
    if (certificate != 0 && options->key_file[0] != '\0')
        doctor_find(doctor, FINDING_WARN, "When all nodes have certificates, empty key_file and run `rdtctl reload`.",
                    "Nodes that have the key of key_file need no certificate.");
}

struct differences {
    unsigned reload, restart;
    char first[64]; /* the first key */
};

static void on_change(void *arg, const char *section, const char *key, const char *before, const char *after, bool reloads)
{
    struct differences *differences = arg;

    if (differences->reload + differences->restart == 0)
        (void)snprintf(differences->first, sizeof differences->first, "[%.24s] %.32s", section, key);
    *(reloads ? &differences->reload : &differences->restart) += 1;
}

/* The socket of a service manager is not what the configuration says, but what its unit says; listener.c compares the two. */
static void check_passed_socket(struct doctor *doctor)
{
    const struct options *now = doctor->rpc->options, *fresh = &doctor->files->fresh;
    bool path = options_is_set(fresh, "socket") && strcmp(fresh->socket, now->socket) != 0;
    bool mode = options_is_set(fresh, "socket_mode") && strcmp(fresh->socket_mode, now->socket_mode) != 0;

    if (doctor->rpc->intake.passed && (path || mode))
        doctor_find(
            doctor, FINDING_WARN,
            "Set ListenStream= and SocketMode= of rdtd.socket to the same (systemctl edit rdtd.socket), or remove the key.",
            "%s = %s is new in the configuration, but the service manager makes the socket: the next start fails, unless "
            "its unit says the same.",
            path ? "socket" : "socket_mode", path ? fresh->socket : fresh->socket_mode);
}

static void check_configuration(struct doctor *doctor)
{
    const struct rpc_above *above = &doctor->rpc->above;
    struct differences differences = {0};
    const struct rdt_error *fault;

    if (!doctor_has_seen(doctor, DOCTOR_CONFIGURATION, "The configuration, or the nodes file,") ||
        !doctor_has_seen(doctor, DOCTOR_KEY, "The key or a certificate of the peer link"))
        return;
    fault = doctor->files->configuration.status != RDT_OK ? &doctor->files->configuration : &doctor->files->peers;
    if (fault->status == RDT_OK)
        above->compare(above->arg, &doctor->files->fresh, doctor->files->key, on_change, &differences);
    if (fault->status != RDT_OK)
        doctor_find(doctor, FINDING_FAIL, "Correct it (rdtd --check-config prints every fault): the next start would fail.",
                    "The configuration has a fault since the daemon read it: %s.", fault->msg);
    else if (differences.reload + differences.restart > 0)
        doctor_find(
            doctor, FINDING_WARN, "`rdtctl reload --check` lists them, and `rdtctl reload` applies what needs no restart.",
            "The configuration has %u change%s that the daemon has not read, and %u that need%s a restart; the first is %s.",
            differences.reload, text_plural(differences.reload), differences.restart, differences.restart == 1 ? "s" : "",
            differences.first);
    if (fault->status == RDT_OK)
        check_passed_socket(doctor);
    if (fault->status == RDT_OK && differences.reload + differences.restart == 0)
        doctor_find(doctor, FINDING_OK, "", "The daemon uses the configuration as it is now.");
}

/* ---- other nodes ---- */

static void check_peer(struct doctor *doctor, const struct peer *peer, unsigned *up_p)
{
    const char *why = peer_why_away(peer, doctor->call->admin), *twin = peer_twin(peer);

    if (twin[0])
        doctor_find(doctor, FINDING_WARN, PEER_TWIN_REMEDY, "Two nodes share one uuid: %s.", twin);
    if (peer->state == PEER_UP)
        ++*up_p;
    else if (peer->state == PEER_CONNECTING)
        doctor_find(doctor, FINDING_SKIP, "Run the doctor again in some seconds.", "Node %s is being connected.", peer->name);
    else if (peer->state == PEER_BACKOFF)
        doctor_find(
            doctor, FINDING_WARN,
            strstr(why, "set advertise") ? "Set advertise in [network] of that node, and restart rdtd there."
            : strstr(why, "node_uuid")
                ? PEER_TWIN_REMEDY
                : "Check that rdtd runs there, that no firewall keeps this node from that port, and that both have the same "
                  "key.",
            "Node %s at %s cannot be reached%s%s.", peer->name, peer->address[0] ? peer->address : "an unknown address",
            why[0] ? ": " : "", why);
}

static void check_peers(struct doctor *doctor)
{
    unsigned up = 0;
    size_t before = doctor->n;

    if (doctor->rpc->peers && peers_twin(doctor->rpc->peers)[0])
        doctor_find(doctor, FINDING_WARN, PEER_TWIN_REMEDY, "Two nodes share one uuid: %s.", peers_twin(doctor->rpc->peers));
    if (doctor->rpc->peers)
        list_for_each (node, peers_all(doctor->rpc->peers))
            check_peer(doctor, container_of(node, struct peer, link), &up);
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "No node is out of reach; %u %s connected.", up, up == 1 ? "is" : "are");
}

static void check_peer_versions(struct doctor *doctor)
{
    size_t before = doctor->n;

    if (doctor->rpc->peers)
        list_each (const struct peer, peer, peers_all(doctor->rpc->peers), link)
            if (peer->state == PEER_UP && strcmp(peer->version, RDTD_VERSION) != 0)
                doctor_find(doctor, FINDING_WARN, "Upgrade the older one: nodes use only what both versions have.",
                            "Node %s has rdtd %s, and this node has %s.", peer->name, peer->version, RDTD_VERSION);
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "All connected nodes have rdtd %s.", RDTD_VERSION);
}

/* ---- plug-ins ---- */

/* Whether it moves memory that this node has, so that its absence makes transfers slower. */
static bool would_be_used(const struct transport *transport, struct plugins *plugins)
{
    list_each (const struct memory_kind, kind, plugins_memory_kinds(plugins), link)
        if (kind->available && transport_moves(transport, kind->name))
            return true;
    return false;
}

static void check_transports_to(struct doctor *doctor, const struct peer *peer)
{
    struct peer_summary summary;

    transfers_peer_summary(peer, &summary);
    for (unsigned i = 0; i < summary.n_unusable; i++)
        doctor_find(doctor, FINDING_WARN, "Remove the cause on the node that has it, or unload the transport there.",
                    "A transport cannot be used with node %s: %s.", peer->name, summary.unusable[i]);
    for (unsigned i = 0; i < summary.n_troubles; i++)
        doctor_find(
            doctor, FINDING_WARN,
            "Let that port through the firewalls, in at least one direction (ports in [stream] says which one it is). Where "
            "ports are mapped, set advertise in [stream] of that node. If only large messages are lost, look at the MTU.",
            "Objects of more than 32 KiB do not pass between node %s and this one. %s.", peer->name, summary.trouble[i]);
    if (summary.fell_back > 0)
        doctor_find(doctor, FINDING_WARN, "`rdtctl explain REF` says for each transfer which transports were rejected and why.",
                    "%" PRIu64 " transfer%s from node %s did not take the fastest transport that both nodes have.",
                    summary.fell_back, text_plural(summary.fell_back), peer->name);
}

/* Some transports run only if the configuration trusts the network, and their reason names that key (open in rdt_backend.h).
 * Where it does not, they are off by choice, and nothing is wrong. */
static bool is_off_by_choice(const struct transport *transport, const struct options *options)
{
    return !options->trusted_network && strstr(transport->why_not, "trusted_network");
}

static void check_transports(struct doctor *doctor)
{
    struct plugins *plugins = doctor->rpc->plugins;
    size_t before = doctor->n, off = 0;
    char names[256];

    if (!doctor->rpc->peers) {
        doctor_find(doctor, FINDING_OK, "", "This node has no peers, so it needs no transport.");
        return;
    }
    list_each (const struct transport, transport, plugins_transports(plugins), link) {
        if (transport->available)
            continue;
        if (is_off_by_choice(transport, doctor->rpc->options)) {
            doctor_find(doctor, FINDING_OK, "", "Transport %s is off: %s.", transport->name, transport->why_not);
            off++;
        } else if (would_be_used(transport, plugins)) {
            doctor_find(doctor, FINDING_WARN, "Remove the cause, or the plug-in from backend_dir if it is not wanted.",
                        "Transport %s is loaded, but cannot be used: %s.", transport->name, transport->why_not);
        }
    }
    list_for_each (node, peers_all(doctor->rpc->peers))
        if (container_of(node, struct peer, link)->state == PEER_UP)
            check_transports_to(doctor, container_of(node, struct peer, link));
    plugins_transport_names(plugins, names, sizeof names);
    if (doctor->n == before + off)
        doctor_find(doctor, FINDING_OK, "", "No transport has a fault. Loaded: %s.", names);
}

/* Ends with different libraries are not connected, because they might exchange wrong bytes. */
static void check_library_versions(struct doctor *doctor)
{
    struct peer_summary summary;
    size_t before = doctor->n;
    unsigned up = 0;

    if (doctor->rpc->peers)
        list_each (const struct peer, peer, peers_all(doctor->rpc->peers), link) {
            if (peer->state != PEER_UP)
                continue;
            up++;
            transfers_peer_summary(peer, &summary);
            for (unsigned i = 0; i < summary.n_versions; i++)
                doctor_find(doctor, FINDING_WARN, "Install the same version of the library on both nodes.",
                            "The library of a transport differs from that on node %s, so it moves nothing between them: %s.",
                            peer->name, summary.versions[i]);
        }
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "The libraries of transports are the same here and on the %u connected nodes.", up);
}

/* ---- what survives a restart ---- */

static void check_keeper(struct doctor *doctor)
{
    const struct options *options = doctor->rpc->options;
    const struct recovery *recovery = doctor->rpc->recovery;
    struct recovery_counts counts = recovery_counts(recovery);

    if (options->keeper[0] == '\0') {
        doctor_find(doctor, FINDING_OK, "", "No keeper is configured, so all sessions and objects end with the daemon.");
        return;
    }
    if (!recovery_keeper_is_up(recovery))
        doctor_find(doctor, FINDING_FAIL,
                    "Start it (systemctl start rdtd-keeper): the daemon then gives it everything again by itself.",
                    "The keeper at %s is not connected, so a crash of the daemon would lose %" PRIu64 " object%s and %" PRIu64
                    " session%s.",
                    options->keeper, counts.objects, text_plural(counts.objects), counts.sessions,
                    text_plural(counts.sessions));
    else if (recovery->link.n_refused > 0)
        doctor_find(doctor, FINDING_WARN, "Raise LimitNOFILE of rdtd-keeper.service.",
                    "The keeper had no room for %" PRIu64 " descriptor%s.", recovery->link.n_refused,
                    text_plural(recovery->link.n_refused));
    else
        doctor_find(doctor, FINDING_OK, "",
                    "The keeper at %s is connected; %" PRIu64 " object%s, %" PRIu64 " name%s and %" PRIu64
                    " session%s would survive a restart.",
                    options->keeper, counts.objects, text_plural(counts.objects), counts.names, text_plural(counts.names),
                    counts.sessions, text_plural(counts.sessions));
}

static void check_journal(struct doctor *doctor)
{
    struct recovery_counts counts = recovery_counts(doctor->rpc->recovery);

    if (counts.lost > 0)
        doctor_find(doctor, FINDING_WARN, "The daemon's log (at level debug) names the objects; put them again.",
                    "Objects that should survive a restart, and were lost at the start or cannot be kept: %" PRIu64 ".",
                    counts.lost);
    else if (doctor->rpc->options->keeper[0] == '\0')
        doctor_find(doctor, FINDING_OK, "", "There is no journal, because no keeper is configured.");
    else
        doctor_find(doctor, FINDING_OK, "",
                    "The journal is whole: %" PRIu64 " object%s and %" PRIu64 " session%s came from it at the start. Sessions "
                    "that wait for their clients: %u.",
                    counts.restored, text_plural(counts.restored), counts.restored_sessions,
                    text_plural(counts.restored_sessions), doctor->rpc->clients.n_waiting);
}

/* ---- transfers ---- */

static void check_transfer(struct doctor *doctor, const struct transfer_record *record)
{
    uint64_t ran_ns = record->began_ns > 0 ? uv_hrtime() - record->began_ns : 0;
    char remedy[128];

    (void)snprintf(remedy, sizeof remedy, "`rdtctl explain %" PRIu64 "` says what it waits for.", record->id);
    if (record->bytes > 0 && record->bytes_done == 0 && ran_ns > MOVES_NOTHING_NS)
        doctor_find(doctor, FINDING_WARN, remedy, "Transfer %" PRIu64 " has moved no byte in %" PRIu64 " s; its state is %s.",
                    record->id, ran_ns / 1000000000, record->state);
    else if (ran_ns > TAKES_LONG_NS)
        doctor_find(doctor, FINDING_WARN, remedy,
                    "Transfer %" PRIu64 " has moved %" PRIu64 " of %" PRIu64 " bytes in %" PRIu64 " minutes.", record->id,
                    record->bytes_done, record->bytes, ran_ns / 60000000000);
}

static void check_transfers(struct doctor *doctor)
{
    const struct transfers *transfers = doctor->rpc->transfers;
    const struct transfer_record *record = NULL;
    size_t before = doctor->n;

    while ((record = transfers_next_active(transfers, record ? record->id : 0)))
        if (call_may_see(doctor->call, &record->requester))
            check_transfer(doctor, record);
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "No transfer is stuck; %u are running.", transfers_active(transfers));
}

static void check_replicas(struct doctor *doctor)
{
    const Rdt__Pb__StatusReply *counts = doctor->rpc->transfers->counts;

    if (counts->replicas_damaged > 0)
        doctor_find(
            doctor, FINDING_FAIL,
            "The daemon's log names the objects and the nodes that sent them. Examine the memory and the network cards of "
            "these nodes and of this one.",
            "%" PRIu64 " snapshots of other nodes arrived with other bytes than were put; no reader got them.",
            counts->replicas_damaged);
    else
        doctor_find(doctor, FINDING_OK, "", "%" PRIu64 " snapshots of other nodes were compared with their checksums.",
                    counts->replicas_checked);
}

/* ---- the node table ---- */

static void check_directory(struct doctor *doctor)
{
    const struct directory *directory = doctor->rpc->directory;
    bool any = false;

    for (unsigned i = 0; i < DIRECTORY_SOURCES; i++) {
        const struct directory_provider *provider = &directory->providers[i];
        const char *key = directory_source_key((enum directory_source)i);
        unsigned n = 0;

        for (const struct node_entry *entry = provider->nodes; entry; entry = entry->next)
            n++;
        any |= provider->active;
        if (!provider->active)
            continue;
        if (provider->error[0] == '\0')
            doctor_find(doctor, FINDING_OK, "", "The option %s names %u node%s.", key, n, text_plural(n));
        else if (provider->confirmed_ns == 0)
            doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then reads it by itself.",
                        "The option %s has named no node yet: %s.", key, provider->error);
        else
            doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then reads it by itself.",
                        "The option %s cannot be read, so its nodes (%u) are those of %" PRIu64 " s ago: %s.", key, n,
                        (uv_hrtime() - provider->confirmed_ns) / 1000000000, provider->error);
    }
    if (!any)
        doctor_find(doctor, FINDING_OK, "", "None of nodes, nodes_dns and etcd_endpoints lists other nodes.");
}

static void check_etcd(struct doctor *doctor)
{
    const struct directory *directory = doctor->rpc->directory;
    const Rdt__Pb__EtcdInfo *etcd = &directory->etcd_info;
    const struct directory_provider *provider = &directory->providers[DIRECTORY_ETCD];

    if (!provider->active)
        doctor_find(doctor, FINDING_OK, "", "etcd_endpoints is not set, so etcd is not used.");
    else if (!etcd->up)
        doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then continues by itself.",
                    "This node is not registered in etcd now: %s.",
                    provider->error[0] != '\0' ? provider->error : "it is being connected");
    else if (provider->error[0] != '\0')
        doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then notices by itself.",
                    "This node is registered at %s, but: %s.", etcd->endpoint, provider->error);
    else
        doctor_find(doctor, FINDING_OK, "",
                    "This node is registered at %s (revision %" PRId64 "; %" PRIu64 " of %" PRIu64 " requests failed, %" PRIu64
                    " leases expired).",
                    etcd->endpoint, etcd->revision, etcd->failures, etcd->requests, etcd->leases_lost);
}

/* ---- versions of many parts: those that wait for parts, and those that have lost some ---- */

struct looking {
    struct doctor *doctor;
    unsigned n_waiting, n_found;
};

static void check_shard(void *arg, const struct shard_state *state)
{
    struct looking *looking = arg;
    struct doctor *doctor = looking->doctor;
    char remedy[320];

    if (!call_may_see(doctor->call, state->owner))
        return;
    looking->n_waiting += !state->complete;
    if (state->complete && state->ranks[0] != '\0') {
        looking->n_found++;
        doctor_find(doctor, FINDING_WARN, "Publish the next version, and give every node with parts a keeper.",
                    "The newest version of \"%.*s\", step %" PRIu64 ", has lost the parts of ranks %s: readers of them fail.",
                    state->id_bytes, state->id, state->step, state->ranks);
    } else if (!state->complete && state->age_ns > WAITS_LONG_NS) {
        looking->n_found++;
        (void)snprintf(remedy, sizeof remedy,
                       "Find out what these ranks do: they may be late, have ended, or publish another step or name. "
                       "`rdtctl shards %.*s` shows what is there.",
                       state->id_bytes < 64 ? state->id_bytes : 64, state->id);
        doctor_find(doctor, FINDING_WARN, remedy,
                    "Step %" PRIu64 " of \"%.*s\" has waited %" PRIu64 " s and has %u of %u parts: %s of ranks %s.",
                    state->step, state->id_bytes, state->id, state->age_ns / 1000000000u, state->n_parts, state->of,
                    state->n_parts == state->of ? "no answer has come from the nodes with those"
                    : state->grows              ? "its publishers, some of which are still adding tensors, lack those"
                                                : "it lacks those",
                    state->ranks);
    }
}

static void check_shards(struct doctor *doctor)
{
    struct looking looking = {.doctor = doctor};

    shards_each(doctor->rpc->shards, check_shard, &looking);
    if (looking.n_found == 0)
        doctor_find(doctor, FINDING_OK, "", "No version of many parts has waited for long or lost parts; %u wait for parts.",
                    looking.n_waiting);
}

/* ---- the table ---- */

static void check_crashes(struct doctor *doctor)
{
    struct plugin_crashes crashes;
    size_t before = doctor->n, cursor = 0;
    char text[200];

    while (plugin_blame_next(&cursor, &crashes)) {
        plugin_blame_describe(&crashes, text, sizeof text);
        doctor_find(doctor, FINDING_WARN,
                    "Install another build of it, which ends this warning, or take it out of backend_dir; coredumpctl may have "
                    "a core dump for its author.",
                    "Backend %s: %s.", crashes.path, text);
    }
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "%s",
                    doctor->rpc->options->state_dir[0] == '\0'
                        ? "A crash of a plug-in is not recorded, because there is no state_dir."
                        : "No plug-in that is installed has crashed the daemon.");
}

/* Ids are fixed for ever. rdtctl(1) lists them. Those below RDT010 belong to rdtctl (client/ctl/ctl_doctor.c). */
static const struct {
    const char *id, *name;
    void (*check)(struct doctor *doctor);
} checks[] = {
    {"RDT010", "open-files", doctor_open_files},
    {"RDT011", "locked-memory", doctor_locked_memory},
    {"RDT012", "control-group", doctor_control_group},
    {"RDT013", "huge-pages", doctor_huge_pages},
    {"RDT014", "overcommit", doctor_overcommit},
    {"RDT015", "orphans", doctor_orphans},
    {"RDT016", "limits", check_limits},
    {"RDT019", "configuration", check_configuration},
    {"RDT020", "state-dir", check_state_dir},
    {"RDT021", "key", check_key},
    {"RDT022", "peers", check_peers},
    {"RDT023", "peer-versions", check_peer_versions},
    {"RDT024", "transports", check_transports},
    {"RDT025", "devices", doctor_devices},
    {"RDT026", "certificates", check_certificates},
    {"RDT027", "library-versions", check_library_versions},
    {"RDT028", "device-transports", doctor_device_transports},
    {"RDT030", "keeper", check_keeper},
    {"RDT031", "journal", check_journal},
    {"RDT032", "transfers", check_transfers},
    {"RDT033", "plug-in-crashes", check_crashes},
    {"RDT034", "replicas", check_replicas},
    {"RDT040", "directory", check_directory},
    {"RDT045", "etcd", check_etcd},
    {"RDT050", "shards", check_shards},
    {"RDT070", "storage", doctor_storage},
    {"RDT071", "storage-room", doctor_storage_room},
    {"RDT072", "storage-files", doctor_storage_files},
};

_Static_assert(sizeof checks / sizeof checks[0] <= DOCTOR_CHECKS, "raise DOCTOR_CHECKS");

static enum rdt_status look(struct call *call, struct doctor_files *files, struct arena *arena, struct rdt_error *err)
{
    struct doctor *doctor = arena_alloc(arena, sizeof *doctor);
    Rdt__Pb__DoctorReply reply = RDT__PB__DOCTOR_REPLY__INIT;

    if (!doctor)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    *doctor = (struct doctor){.call = call, .rpc = call->rpc, .arena = arena, .files = files};
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        doctor_begin_check(doctor, checks[i].id, checks[i].name);
        checks[i].check(doctor);
        doctor_finish_check(doctor);
    }
    if (doctor->failed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    reply.checks = doctor->rows;
    reply.n_checks = doctor->n;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

static void on_seen(struct call *call, struct doctor_files *files)
{
    struct rdt_error err;
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    if (look(call, files, &arena, &err) != RDT_OK)
        call_fail(call, &err);
    arena_fini(&arena);
}

enum rdt_status rpc_doctor(struct call *call, const void *request, struct rdt_error *err)
{
    (void)request;
    if (!call->admin && call->rpc->doctor.looked_ns > 0 && uv_hrtime() - call->rpc->doctor.looked_ns < PAUSE_NS)
        return rdt_error_set(err, RDT_BUSY, "the doctor has looked for a user less than a second ago: ask again in a second");
    if (!call->admin)
        call->rpc->doctor.looked_ns = uv_hrtime();
    return doctor_look(call, on_seen, err);
}
