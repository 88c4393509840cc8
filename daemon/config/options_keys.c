/* SPDX-License-Identifier: Apache-2.0 */
/* The table of configuration keys, and the checks of a single value. Checks of several values together are in options.c. */
#include "daemon/config/options_keys.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/manifest.h"
#include "wire_limits.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define UNBOUNDED OPTION_UNBOUNDED
#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)
#define HOUR (3600 * S)
#define PATH_BYTES 4000
#define SOCKET_BYTES 107 /* of sockaddr_un */

#ifndef RDT_BACKEND_DIR
#define RDT_BACKEND_DIR "/usr/local/lib/rdtd"
#endif
#ifndef RDT_CONFIG_FILE
#define RDT_CONFIG_FILE "/etc/rdtd/rdtd.conf"
#endif

const char option_backend_dir[] = RDT_BACKEND_DIR;
const char option_config_file[] = RDT_CONFIG_FILE;

static enum rdt_status check_mode(const char *text, struct rdt_error *err)
{
    size_t digits = strspn(text, "01234567");
    if (digits == 0 || text[digits] != 0 || strtoul(text, NULL, 8) > 0777)
        return rdt_error_set(err, RDT_INVALID, "expected an octal mode, as in 0660");
    return RDT_OK;
}

static enum rdt_status check_dial(const char *text, struct rdt_error *err)
{
    if (strcmp(text, "any") == 0 || strcmp(text, "listed") == 0)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "expected any or listed");
}

static enum rdt_status check_nodes_dns(const char *text, struct rdt_error *err)
{
    char host[65];
    uint16_t port;
    enum rdt_status status;
    if (text[0] == 0)
        return RDT_OK;
    if (text[0] == '_' && strlen(text) < 256 && strcspn(text, ": \t/,") == strlen(text) && strchr(text, '.'))
        return RDT_OK;
    status = options_split_address(text, host, &port, err);
    if (status == RDT_OK && port == 0)
        status = rdt_error_set(err, RDT_INVALID, "port 0 cannot be reached");
    if (status != RDT_OK)
        rdt_error_prefix(err, "expected HOST:PORT, or _SERVICE._tcp.NAME of SRV records");
    return status;
}

static enum rdt_status check_endpoints(const char *text, struct rdt_error *err)
{
    char host[65], one[80];
    uint16_t port;
    for (const char *at = text; *at != 0;) {
        size_t scheme = strncmp(at, "https://", 8) == 0 ? 8 : strncmp(at, "http://", 7) == 0 ? 7 : 0;
        size_t n = strcspn(at, ",");
        enum rdt_status status = RDT_INVALID;
        if (scheme > 0 && n - scheme < sizeof one) {
            memcpy(one, at + scheme, n - scheme);
            one[n - scheme] = 0;
            status = strpbrk(one, "/@? \t") ? RDT_INVALID : options_split_address(one, host, &port, err);
        }
        if (status != RDT_OK || port == 0)
            return rdt_error_set(err, RDT_INVALID, "expected https://HOST:PORT, several separated by commas");
        at += n + (at[n] == ',');
    }
    return RDT_OK;
}

static enum rdt_status check_prefix(const char *text, struct rdt_error *err)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            n = 0;
    if (n == 0 || text[n - 1] == '/')
        return rdt_error_set(err, RDT_INVALID, "expected printable characters without a slash at the end, as in /rdtd");
    return RDT_OK;
}

static enum rdt_status check_names(const char *text, struct rdt_error *err)
{
    if (strcmp(text, "nodes") == 0 || strcmp(text, "local") == 0)
        return RDT_OK;
    if (strcmp(text, "etcd") == 0)
        return rdt_error_set(
            err, RDT_INVALID,
            "names are no longer in etcd: write nodes, on all nodes, and names are known on a few of the nodes "
            "that etcd_endpoints lists");
    return rdt_error_set(err, RDT_INVALID, "expected nodes or local");
}

static enum rdt_status check_log_level(const char *text, struct rdt_error *err)
{
    enum log_level level;
    if (!log_level_parse(text, &level))
        return rdt_error_set(err, RDT_INVALID, "expected error, warn, info, debug or trace");
    return RDT_OK;
}

/* Only numbers: a host name could resolve to another address tomorrow. */
static enum rdt_status check_listen(const char *text, struct rdt_error *err)
{
    char host[65];
    uint16_t port;
    uint8_t binary[sizeof(struct in6_addr)];
    if (text[0] == 0)
        return RDT_OK;
    enum rdt_status status = options_split_address(text, host, &port, err);
    if (status == RDT_OK && inet_pton(AF_INET, host, binary) != 1 && inet_pton(AF_INET6, host, binary) != 1)
        status = rdt_error_set(err, RDT_INVALID, "expected a numeric address, as in 192.0.2.1:7171 or [2001:db8::1]:7171");
    return status;
}

static enum rdt_status check_advertise(const char *text, struct rdt_error *err)
{
    char host[65];
    uint16_t port;
    if (text[0] == 0)
        return RDT_OK;
    return options_split_address(text, host, &port, err);
}

#define ROW(SECTION, NAME, TYPE, FIELD, MIN, MAX) \
    .section = SECTION, .name = NAME, .type = TYPE, .offset = offsetof(struct options, FIELD), .min = MIN, .max = MAX

#define LIMIT_ROW(WHOSE, WHAT, TYPE, USAGE)                                                                                  \
    .section = "limits", .name = #WHOSE "_max_" #WHAT, .type = TYPE, .offset = offsetof(struct options, WHOSE##_max[USAGE]), \
    .min = 0, .max = UNBOUNDED, .reload = RELOAD_ALWAYS

const struct option_section option_sections[] = {
    {"daemon", "The daemon on its node: where it serves, what it loads, how much memory it uses."},
    {"limits", "Limits keep one client, or one user, from taking what the others need. A request above a limit waits "
               "for room or fails with LIMIT, and its error names the limit. Raise a limit if the work needs it; lower "
               "it on a node that many users share. A user is a uid within a tenant."},
    {"network", "The link to the daemons of other nodes."},
    {"transfer", "How tensors move between nodes and between memory."},
};
const size_t n_option_sections = sizeof option_sections / sizeof option_sections[0];

const struct option_key option_keys[] = {
    {ROW("daemon", "socket", OPTION_STRING, socket, 1, SOCKET_BYTES), .fallback = "/run/rdtd/rdtd.sock", .value = "PATH",
     .help = "The path of the Unix socket where clients connect.",
     .why = "Change it to run a second daemon on the same machine, together with state_dir. Under systemd, rdtd.socket "
            "makes the socket: set ListenStream= there (systemctl edit rdtd.socket); the daemon does not start with another "
            "path here."},
    {ROW("daemon", "socket_mode", OPTION_STRING, socket_mode, 1, 5), .check = check_mode, .fallback = "0666", .value = "MODE",
     .help = "The permissions of the socket, in octal. Every user may connect by default, because the daemon checks the "
             "credentials of each caller itself.",
     .why = "Set it to 0660 to admit only one Unix group. Under systemd, set SocketMode= of rdtd.socket to the same."},
    {ROW("daemon", "tenant", OPTION_STRING, tenant, 0, RDT_MAX_TENANT_BYTES), .fallback = "", .value = "NAME",
     .help = "The tenant that the socket's clients belong to; empty is the unnamed tenant.",
     .why = "Set it where several tenants share machines or a network; see share_tenants."},
    {ROW("daemon", "state_dir", OPTION_STRING, state_dir, 0, PATH_BYTES), .fallback = "/var/lib/rdtd", .value = "PATH",
     .help = "The directory where the daemon stores the node's uuid. If it is empty, the node has a new uuid after each "
             "start.",
     .why = "Each daemon on a machine needs its own."},
    {ROW("daemon", "keeper", OPTION_STRING, keeper, 0, PATH_BYTES), .fallback = "", .value = "PATH",
     .help = "The socket of rdtd-keeper(8), which keeps the sessions of clients, their objects and memory, and "
             "published names while the daemon restarts. If it is empty, they end with the daemon. The daemon does not start "
             "without the keeper that is named here.",
     .why = "Set it where objects must survive a crash or an upgrade; the systemd units do."},
    {ROW("daemon", "storage_dir", OPTION_STRING, storage_dir, 0, PATH_BYTES), .fallback = "", .value = "PATH",
     .help =
         "The directory where the daemon stores objects and versions of names that are put or published as stored, as "
         "safetensors files. After a restart, and after a reboot of the node, the daemon serves them from there. It is created "
         "with mode 0700 and must belong to the daemon's user. Under the systemd unit it must lie below /var/lib/rdtd, or be "
         "named by ReadWritePaths= in a drop-in. If it is empty, nothing is stored.",
     .why = "Set it where weights must survive a reboot, to a directory on a fast local disk."},
    {ROW("daemon", "storage_max", OPTION_BYTES, storage_max_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS, .fallback = "0",
     .help = "The most bytes of stored objects. The last eighth is for users who have little there. 0 means as many as the "
             "file system has room for.",
     .why = "Set it where storage_dir shares its disk with others."},
    {ROW("daemon", "restart_grace", OPTION_DURATION, restart_grace_ns, 1000000, HOUR), .reload = RELOAD_ALWAYS,
     .fallback = "10s",
     .help = "How long clients try to return to their sessions after the daemon is gone, and how long the next daemon waits "
             "for a session whose process it cannot watch. A session whose process is known to live waits for as long as "
             "the process lives. The key needs a keeper.",
     .why = "Raise it where the daemon takes longer to start, or to be replaced."},
    {ROW("daemon", "backend_dir", OPTION_STRING, backend_dir, 0, PATH_BYTES), .fallback = option_backend_dir, .value = "PATH",
     .help = "The directory from which the daemon loads every rdt_*.so at start. If it is empty, nothing is loaded from "
             "there.",
     .why = "Change it to run backends that are not installed."},
    {ROW("daemon", "backends", OPTION_STRING, backends, 0, PATH_BYTES), .fallback = "", .value = "PATH,...",
     .help = "The paths of further plug-ins to load at start, separated by commas; the flag --backend PATH adds one.",
     .why = "Set it to load a backend of your own."},
    {ROW("daemon", "log_level", OPTION_STRING, log_level, 1, 16), .reload = RELOAD_ALWAYS, .check = check_log_level,
     .fallback = "info", .value = "LEVEL",
     .help = "The least severe messages that the daemon logs: error, warn, info, debug or trace.",
     .why = "Set it to debug to follow every object, or to trace to follow every message. rdtctl log-level changes it while "
            "the daemon runs."},
    {ROW("daemon", "allow_overflow_uid", OPTION_BOOL, allow_overflow_uid, 0, 0), .fallback = "no",
     .help = "Whether the daemon serves clients whose uid has no mapping in the daemon's user namespace. All of them look "
             "like one user to it.",
     .why = "Set it to yes only in a container whose users trust one another."},
    {ROW("daemon", "memory_limit", OPTION_BYTES, memory_limit_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS, .fallback = "0",
     .help = "The most host memory that the daemon allocates for all clients together. 0 means half of the RAM, or half of "
             "the limit of the daemon's control group if that is less.",
     .why = "Set it to the memory that the other programs of the machine leave."},
    {ROW("daemon", "cache_max", OPTION_BYTES, cache_max_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS, .fallback = "0",
     .help = "The most memory under memory_limit that the daemon caches for one client, which has released it and may get it "
             "again. 0 means half of memory_limit.",
     .why = "Raise it to the size of the objects that a client puts or fetches again and again; lower it where memory is "
            "short."},
    {ROW("daemon", "cache_limit", OPTION_BYTES, cache_limit_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS, .fallback = "0",
     .help = "The most memory of all evictable objects together (EVICTABLE OBJECTS in rdt-concepts(7)): past it, those that "
             "were used least recently are evicted. 0 means that they may have all of memory_limit that nothing else needs.",
     .why = "Lower it to leave memory free for objects that come at once and are large."},
    {ROW("daemon", "owner_cache_limit", OPTION_BYTES, owner_cache_limit_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS,
     .fallback = "0",
     .help = "The same for the evictable objects of one user. 0 means that one user may have all of cache_limit, until others "
             "need it.",
     .why = "Set it where several users share a node, so that none of them has to wait for evictions of another's objects."},
    {ROW("daemon", "cache_storage_limit", OPTION_BYTES, cache_storage_limit_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS,
     .fallback = "0",
     .help = "The most bytes of files below storage_dir to which evictable objects move when their memory is wanted: they stay "
             "in the cache, also after a reboot, and past this limit the files that were used least recently go. They count "
             "under storage_max, too. 0 means that evicted objects end.",
     .why = "Set it where reading a block from the disk is faster than computing it."},
    {ROW("daemon", "owner_cache_storage_limit", OPTION_BYTES, owner_cache_storage_limit_bytes, 0, UNBOUNDED),
     .reload = RELOAD_ALWAYS, .fallback = "0",
     .help = "The same for the files of one user. 0 means that one user may have all of cache_storage_limit, until others need "
             "it.",
     .why = "Set it where several users share a node."},
    {ROW("daemon", "device_limit", OPTION_BYTES, device_limit_bytes, 0, UNBOUNDED), .fallback = "0",
     .help = "The most memory that the daemon allocates on each device. 0 means nine tenths of the device's memory.",
     .why = "Lower it to leave device memory to the processes that compute there."},
    {ROW("daemon", "device_pool_max", OPTION_BYTES, device_pool_max_bytes, 0, UNBOUNDED), .fallback = "0",
     .help = "The most unused memory under device_limit that the daemon keeps on each device, at most half of it, or one "
             "block, for one client. 0 means a quarter of device_limit.",
     .why = "Lower it to leave device memory to the processes that compute there."},
    {ROW("daemon", "pool_idle", OPTION_DURATION, pool_idle_ns, MS, HOUR), .fallback = "60s",
     .help = "The time after which the daemon frees pooled or cached memory that nobody has used.",
     .why = "Raise it if versions are published at longer intervals: each then needs new pages."},
    {ROW("daemon", "max_clients", OPTION_UINT, max_clients, 1, 1000000), .reload = RELOAD_ALWAYS, .fallback = "4096",
     .help = "The most clients that may be connected at one time. The last eighth is for users who have few.",
     .why = "Raise it on a node where more processes use the daemon."},
    {ROW("daemon", "max_objects", OPTION_UINT, max_objects, 1, 100000000), .reload = RELOAD_ALWAYS, .fallback = "1048576",
     .help = "The most objects that may exist at one time.", .why = "Raise it for workloads with very many small objects."},
    {ROW("daemon", "worker_threads", OPTION_UINT, worker_threads, 1, 256), .fallback = "2",
     .help = "The number of threads that allocate, copy and register memory.",
     .why = "Raise it on a machine with many cores where copies limit the speed."},
    {ROW("daemon", "busy_poll", OPTION_DURATION, busy_poll_ns, 0, RDT_BUSY_POLL_MAX_NS), .fallback = "200us",
     .help = "The longest time that the daemon and its clients poll for the next message before they sleep, while messages "
             "follow one another closely. 0 means that they always sleep.",
     .why = "Set it to 0 to save processor time at the price of latency."},
    {ROW("daemon", "detached_ttl_max", OPTION_DURATION, detached_max_ns, MS, 8760 * HOUR), .reload = RELOAD_ALWAYS,
     .fallback = "24h", .help = "The longest time to live that a put of a detached object may ask for.",
     .why = "Lower it on a shared node where forgotten objects must not occupy memory for a day."},
    {ROW("daemon", "drain_timeout", OPTION_DURATION, drain_timeout_ns, 0, HOUR), .reload = RELOAD_ALWAYS, .fallback = "10s",
     .help = "How long a daemon that is being stopped waits for its transfers to end.",
     .why = "Raise it to let large transfers end before a restart; systemd's TimeoutStopSec must be longer."},
    {ROW("daemon", "idle_exit", OPTION_DURATION, idle_exit_ns, 0, 8760 * HOUR), .fallback = "0s",
     .help = "The time without any client and without any object after which the daemon exits. 0 means that it never does.",
     .why = "Set it for a daemon that is started on demand, by a socket unit or by a script."},

    {LIMIT_ROW(client, bytes, OPTION_BYTES, USAGE_BYTES), .fallback = "0",
     .help = "The most host memory of one client. 0 means up to memory_limit."},
    {LIMIT_ROW(client, objects, OPTION_COUNT, USAGE_OBJECTS), .fallback = "0",
     .help = "The most objects of one client. 0 means seven eighths of max_objects."},
    {LIMIT_ROW(client, regions, OPTION_COUNT, USAGE_REGIONS), .fallback = "65536",
     .help =
         "The most memory regions that one client has allocated, imported or fetched into. Allocated ones are mappings, too."},
    {LIMIT_ROW(client, fds, OPTION_COUNT, USAGE_FDS), .fallback = "0",
     .help = "The most file descriptors that the daemon keeps open for one client. 0 means seven eighths of those that it "
             "may open."},
    {LIMIT_ROW(client, transfers, OPTION_COUNT, USAGE_TRANSFERS), .fallback = "65536",
     .help = "The most fetches of one client that have not ended."},
    {LIMIT_ROW(client, waiters, OPTION_COUNT, USAGE_WAITERS), .fallback = "65536",
     .help = "The most requests of one client that wait: for a put, for a release, for another node or for room."},
    {LIMIT_ROW(client, heap, OPTION_BYTES, USAGE_HEAP), .fallback = "1GiB",
     .help = "The most heap that the daemon uses for one client's metadata, tensor lists, requests and messages."},
    {LIMIT_ROW(client, device_bytes, OPTION_BYTES, USAGE_DEVICE_BYTES), .fallback = "0",
     .help = "The most memory of one client on all devices together. 0 means up to device_limit on each."},
    {LIMIT_ROW(client, holds, OPTION_COUNT, USAGE_HOLDS), .fallback = "65536",
     .help = "The most holds of one client on objects that it has not fetched."},
    {LIMIT_ROW(client, mappings, OPTION_COUNT, USAGE_MAPPINGS), .fallback = "0",
     .help =
         "The most regions of one client that the daemon has mapped. 0 means seven eighths of what all users may have, which "
         "is three quarters of the kernel's vm.max_map_count."},
    {LIMIT_ROW(client, mapped_bytes, OPTION_BYTES, USAGE_MAPPED_BYTES), .fallback = "0",
     .help =
         "The most address space that the daemon's mappings of one client's regions take, whether these have pages or not. 0 "
         "means seven eighths of what all users may have, which is three quarters of the daemon's address space, and less of a "
         "small one (LimitAS)."},
    {LIMIT_ROW(owner, bytes, OPTION_BYTES, USAGE_BYTES), .fallback = "0",
     .help = "The most host memory of all clients of one user. 0 means up to memory_limit."},
    {LIMIT_ROW(owner, objects, OPTION_COUNT, USAGE_OBJECTS), .fallback = "0",
     .help = "The most objects of one user. 0 means up to max_objects."},
    {LIMIT_ROW(owner, regions, OPTION_COUNT, USAGE_REGIONS), .fallback = "262144",
     .help = "The most memory regions of one user. Allocated ones are mappings, too."},
    {LIMIT_ROW(owner, fds, OPTION_COUNT, USAGE_FDS), .fallback = "0",
     .help = "The most file descriptors that the daemon keeps open for one user. 0 means all that it may open."},
    {LIMIT_ROW(owner, transfers, OPTION_COUNT, USAGE_TRANSFERS), .fallback = "262144",
     .help = "The most fetches of one user that have not ended, including those that other nodes ask for in the user's name."},
    {LIMIT_ROW(owner, waiters, OPTION_COUNT, USAGE_WAITERS), .fallback = "262144",
     .help = "The most requests of one user that wait."},
    {LIMIT_ROW(owner, heap, OPTION_BYTES, USAGE_HEAP), .fallback = "4GiB",
     .help =
         "The most heap that the daemon uses for one user's metadata, tensor lists, requests, messages and whatever else it "
         "remembers for the user. All users together have a quarter of the smaller of RAM and the limit of the daemon's "
         "control group."},
    {LIMIT_ROW(owner, device_bytes, OPTION_BYTES, USAGE_DEVICE_BYTES), .fallback = "0",
     .help = "The most memory of one user on all devices together. 0 means up to device_limit on each."},
    {LIMIT_ROW(owner, holds, OPTION_COUNT, USAGE_HOLDS), .fallback = "262144",
     .help = "The most holds of one user, including those that other nodes take in the user's name."},
    {LIMIT_ROW(owner, orphans, OPTION_COUNT, USAGE_ORPHANS), .fallback = "0",
     .help = "The most regions of one user that have ended and that a process still keeps open or mapped. With more of them, "
             "the user gets no new regions. 0 means a quarter of the kernel's fs.inotify.max_user_watches."},
    {LIMIT_ROW(owner, sessions, OPTION_COUNT, USAGE_SESSIONS), .fallback = "3584",
     .help = "The most clients of one user that may be connected at one time."},
    {LIMIT_ROW(owner, names, OPTION_COUNT, USAGE_NAMES), .fallback = "0",
     .help = "The most names that one user may have published at one time. 0 means a quarter of max_objects."},
    {LIMIT_ROW(owner, groups, OPTION_COUNT, USAGE_GROUPS), .fallback = "256",
     .help = "The most groups of one user that this node is a member of or has created. All users together may have 1024."},
    {LIMIT_ROW(owner, stored_bytes, OPTION_BYTES, USAGE_STORED_BYTES), .fallback = "0",
     .help = "The most bytes of one user's stored objects. 0 means up to storage_max, less the eighth that is for others."},
    {LIMIT_ROW(owner, mappings, OPTION_COUNT, USAGE_MAPPINGS), .fallback = "0",
     .help =
         "The most regions of one user that the daemon has mapped. 0 means all that it may have, less the eighth that is for "
         "others."},
    {LIMIT_ROW(owner, mapped_bytes, OPTION_BYTES, USAGE_MAPPED_BYTES), .fallback = "0",
     .help =
         "The most address space that the daemon's mappings of one user's regions take. 0 means all that they may take, less "
         "the eighth that is for others."},
    {LIMIT_ROW(owner, followed_bytes, OPTION_BYTES, USAGE_FOLLOWED_BYTES), .fallback = "0",
     .help = "The most memory of versions that the daemon keeps for one user's followers of names. A version that does not fit "
             "beside "
             "the one before waits until a follower has committed that one. 0 means up to memory_limit."},
    {ROW("limits", "version_max_tensors", OPTION_UINT, version_max_tensors, 1, MANIFEST_MAX_BOXES), .reload = RELOAD_ALWAYS,
     .fallback = "1000000",
     .help = "The most tensors of one version of a name that several processes publish in parts. The list of them is memory of "
             "the user who publishes: heap while the parts come, and then, if it is longer than 4 MiB, host memory.",
     .why = "Raise it for models with more tensors; 89,271 are those of DeepSeek-V3."},

    {ROW("network", "listen", OPTION_STRING, listen, 0, RDT_MAX_ADDRESS_BYTES), .check = check_listen, .fallback = "",
     .value = "ADDRESS:PORT",
     .help = "The numeric ADDRESS:PORT where other nodes connect; port 0 takes any free port. If it is empty, no "
             "other node can fetch from this one; with key_file, this node still fetches from others.",
     .why = "Set it, together with key_file, on every node that exchanges objects with others."},
    {ROW("network", "advertise", OPTION_STRING, advertise, 0, RDT_MAX_ADDRESS_BYTES), .check = check_advertise, .fallback = "",
     .value = "HOST:PORT",
     .help = "The HOST:PORT that refs carry and other nodes connect to; port 0 means the port of listen. If it is empty, it "
             "is the address of listen, or the host's name if listen is every address.",
     .why = "Set it behind address translation, or where other nodes cannot resolve the host's name."},
    {ROW("network", "nodes", OPTION_STRING, nodes, 0, PATH_BYTES), .reload = RELOAD_ALWAYS, .is_path = true, .fallback = "",
     .value = "PATH",
     .help = "A file that names the other nodes, a line for each: NAME ADDRESS:PORT [UUID]. The daemon reads it again when it "
             "has changed, and keeps the last good list while the file is missing or wrong. If the key is empty, nodes have no "
             "names.",
     .why = "Set it to write refs with node names, to find published names on every node, or to accept a node only with its "
            "known uuid."},
    {ROW("network", "nodes_dns", OPTION_STRING, nodes_dns, 0, 255), .reload = RELOAD_ALWAYS, .check = check_nodes_dns,
     .fallback = "", .value = "HOST:PORT",
     .help = "Finds the other nodes by DNS. HOST:PORT means every address of HOST, at PORT; _SERVICE._tcp.NAME means the hosts "
             "and ports of these SRV records. The daemon looks them up every 5 seconds; while no name server answers, the last "
             "list stays in force.",
     .why = "Set it where nodes come and go, for example to a headless Service of Kubernetes."},
    {ROW("network", "etcd_endpoints", OPTION_STRING, etcd_endpoints, 0, 1000), .reload = RELOAD_ALWAYS,
     .check = check_endpoints, .fallback = "", .value = "URL,...",
     .help =
         "Finds the other nodes by etcd: https://HOST:PORT of its members, separated by commas. The daemon registers itself "
         "there and learns of the others at once. It needs the program rdtd-etcd; while etcd is away, the last list stays in "
         "force.",
     .why = "Set it where there is an etcd, and nodes come and go."},
    {ROW("network", "etcd_prefix", OPTION_STRING, etcd_prefix, 1, 190), .reload = RELOAD_ALWAYS, .check = check_prefix,
     .fallback = "/rdtd", .value = "KEY", .help = "The prefix of all keys of rdtd in etcd.",
     .why = "Set it where several separate clusters of rdtd share an etcd."},
    {ROW("network", "etcd_ca", OPTION_STRING, etcd_ca, 0, PATH_BYTES), .reload = RELOAD_ALWAYS, .is_path = true, .fallback = "",
     .value = "PATH",
     .help =
         "The authorities that the certificates of etcd must lead to, in PEM format; if it is empty, those of the system. If "
         "this file or another one for etcd is missing at the start, the daemon serves its clients, and uses etcd when it is "
         "there.",
     .why = "Set it where etcd has certificates of an authority of its own."},
    {ROW("network", "etcd_cert", OPTION_STRING, etcd_cert, 0, PATH_BYTES), .reload = RELOAD_ALWAYS, .is_path = true,
     .fallback = "", .value = "PATH",
     .help = "The certificate that the daemon shows to etcd, in PEM format. If etcd has users, it must have no common name.",
     .why = "Set it, with etcd_key, where etcd asks for client certificates."},
    {ROW("network", "etcd_key", OPTION_STRING, etcd_key, 0, PATH_BYTES), .reload = RELOAD_ALWAYS, .is_path = true,
     .fallback = "", .value = "PATH", .help = "The private key of etcd_cert, in PEM format without passphrase.",
     .why = "Set it with etcd_cert."},
    {ROW("network", "etcd_user", OPTION_STRING, etcd_user, 0, 60), .reload = RELOAD_ALWAYS, .fallback = "", .value = "NAME",
     .help = "The user of etcd, whose role must permit reading and writing below etcd_prefix.",
     .why = "Set it, with etcd_password_file, where etcd has users."},
    {ROW("network", "etcd_password_file", OPTION_STRING, etcd_password_file, 0, PATH_BYTES), .reload = RELOAD_ALWAYS,
     .is_path = true, .fallback = "", .value = "PATH",
     .help = "The file whose first line is the password of etcd_user. It is read at each log-in.",
     .why = "Set it with etcd_user."},
    {ROW("network", "etcd_ttl", OPTION_DURATION, etcd_ttl_ns, 2 * S, HOUR), .reload = RELOAD_ALWAYS, .fallback = "15s",
     .help =
         "The time to live of the lease under which this node is registered. A node that has not renewed its lease for that "
         "long is removed from the table after the same time again.",
     .why = "Lower it to be rid of dead nodes sooner; raise it where etcd is slow."},
    {ROW("network", "names", OPTION_STRING, names, 1, 8), .reload = RELOAD_ALWAYS, .check = check_names, .fallback = "nodes",
     .value = "nodes|local",
     .help = "Where the nodes of published names are registered. nodes: on nodes of the table, if it has any; a name is then "
             "found from all of them without an address, and belongs to one node at a time. local: nowhere; a name of another "
             "node needs its address.",
     .why = "Set it to local where nodes publish different things under the same name. It must be the same on all nodes."},
    {ROW("network", "key_file", OPTION_STRING, key_file, 0, PATH_BYTES), .reload = RELOAD_OF_PEERS, .is_path = true,
     .fallback = "", .value = "PATH",
     .help =
         "The file with the pre-shared key of the peer link, which must be the same on all nodes. Without it and without "
         "peer_cert the daemon has no peers. If it, or a file of the certificates, is missing at the start, the daemon serves "
         "its own clients and looks for it each second. \"head -c 32 /dev/urandom | base64\" makes a key.",
     .why = "Set it on every node that exchanges objects with others, unless certificates are used. Beside peer_cert it lets "
            "nodes change from the key to certificates one after the other."},
    {ROW("network", "peer_cert", OPTION_STRING, peer_cert, 0, PATH_BYTES), .reload = RELOAD_OF_PEERS, .is_path = true,
     .fallback = "", .value = "PATH",
     .help = "This node's certificate for the peer link, in PEM format, followed by those of intermediate authorities. Its "
             "subject alternative names say who the node is.",
     .why = "Set it, with peer_key and peer_ca, where nodes must not share one key."},
    {ROW("network", "peer_key", OPTION_STRING, peer_key, 0, PATH_BYTES), .reload = RELOAD_OF_PEERS, .is_path = true,
     .fallback = "", .value = "PATH",
     .help = "The private key of peer_cert, in PEM format without passphrase, readable by its owner only.",
     .why = "Set it with peer_cert."},
    {ROW("network", "peer_ca", OPTION_STRING, peer_ca, 0, PATH_BYTES), .reload = RELOAD_OF_PEERS, .is_path = true,
     .fallback = "", .value = "PATH",
     .help = "The authorities that the certificates of other nodes must lead to, in PEM format.",
     .why = "Set it with peer_cert. While an authority is replaced, it contains the old and the new one."},
    {ROW("network", "peer_crl", OPTION_STRING, peer_crl, 0, PATH_BYTES), .reload = RELOAD_OF_PEERS, .is_path = true,
     .fallback = "", .value = "PATH",
     .help = "Lists of revoked certificates, in PEM format, one of each authority of peer_ca and of each intermediate one. If "
             "it is empty, no certificate is revoked.",
     .why = "Set it to shut a node out before its certificate expires. A list that has expired shuts all nodes out."},
    {ROW("network", "peer_allow", OPTION_STRING, peer_allow, 0, PATH_BYTES), .reload = RELOAD_OF_PEERS, .fallback = "",
     .value = "PATTERN,...",
     .help = "Which nodes are accepted: a URI or DNS name in their certificates must match one of these patterns. A * stands "
             "for any characters but a dot in a name, and any but a slash in a URI. If it is empty, any certificate of peer_ca "
             "will do.",
     .why = "Set it where the authority also signs certificates that are not of rdtd, as in spiffe://example.org/rdtd/*."},
    {ROW("network", "dial", OPTION_STRING, dial, 1, 8), .reload = RELOAD_ALWAYS, .check = check_dial, .fallback = "any",
     .value = "any|listed",
     .help = "Which nodes a request may make the daemon connect to: any, or only those of the node table (nodes, nodes_dns, "
             "etcd_endpoints) and those that have connected to this node.",
     .why = "Set it to listed where users must not be able to probe the network from this machine."},
    {ROW("network", "share_tenants", OPTION_STRING, share_tenants, 0, PATH_BYTES), .reload = RELOAD_ALWAYS, .fallback = "",
     .value = "NAME,...",
     .help = "The tenants for whose users other nodes may act, separated by commas; * means all of them, empty means only the "
             "unnamed tenant.",
     .why = "List the tenants whose uids mean the same people on all nodes."},
    {ROW("network", "trusted_pickles", OPTION_STRING, trusted_pickles, 0, PATH_BYTES), .reload = RELOAD_ALWAYS, .fallback = "",
     .value = "NODE,...",
     .help =
         "The nodes whose pickles Python programs on this node load without asking, if the object is of their own user. A "
         "pickle runs any code of the node that it comes from. A node is listed by its name in the node table, by its uuid, "
         "or by the URI or DNS name of its certificate. A node that has only the key can claim any name and uuid.",
     .why =
         "List the nodes that may run code as any user of this node, so that models and other objects with code of their own "
         "come from there without allow_pickle."},
    {ROW("network", "trusted_network", OPTION_BOOL, trusted_network, 0, 0), .fallback = "no",
     .help = "Whether transports that do not authenticate or encrypt (ucx, gloo, nccl) may run. Whoever reaches the node's "
             "interfaces can then write memory of the daemon.",
     .why = "Set it to yes on an isolated network only."},
    {ROW("network", "interfaces", OPTION_STRING, interfaces, 0, PATH_BYTES), .fallback = "", .value = "NAME,...",
     .help = "The network interfaces for tensor data, separated by commas; empty means any. A transport that finds no "
             "network at the start of the daemon starts when all of them are up.",
     .why = "Name the fast ones where the machine also has slow or public ones."},
    {ROW("network", "peer_timeout", OPTION_DURATION, peer_timeout_ns, 20 * MS, HOUR), .fallback = "5s",
     .help = "A peer that sends nothing for this time is lost. The daemon pings a silent peer five times in this period.",
     .why = "Lower it to notice dead nodes sooner; raise it for a network with longer interruptions."},
    {ROW("network", "connect_timeout", OPTION_DURATION, connect_timeout_ns, 10 * MS, HOUR), .fallback = "5s",
     .help = "The longest time that a connection to a peer may take, TLS included.",
     .why = "Raise it for a network with long round trips."},
    {ROW("network", "backoff_max", OPTION_DURATION, backoff_max_ns, 10 * MS, HOUR), .reload = RELOAD_ALWAYS, .fallback = "30s",
     .help = "The longest pause between two attempts to connect to a peer.",
     .why = "Lower it where nodes restart often, so that their links are up again sooner."},
    {ROW("network", "hold_grace", OPTION_DURATION, hold_grace_ns, 0, HOUR), .reload = RELOAD_ALWAYS, .fallback = "30s",
     .help = "How long the holds of a peer's clients stay in force after the link to that peer is lost.",
     .why = "Raise it if links fail for longer and readers must still find their objects."},

    {ROW("transfer", "chunk", OPTION_BYTES, chunk_bytes, 4 * KIB, GIB), .fallback = "4MiB",
     .help = "The bytes that one operation of a transport moves.",
     .why = "Lower it on a slow network, where one operation takes long and others wait behind it."},
    {ROW("transfer", "chunks_in_flight", OPTION_UINT, chunks_in_flight, 1, 1024), .fallback = "4",
     .help = "The most operations at one time for each peer and direction.",
     .why = "Raise it on links with a large product of bandwidth and delay."},
    {ROW("transfer", "quiesce_grace", OPTION_DURATION, quiesce_grace_ns, 0, HOUR), .reload = RELOAD_ALWAYS, .fallback = "2s",
     .help = "How long the operations of an aborted transfer may take to end before the daemon closes their connection.",
     .why = "Raise it for a transport that cancels slowly."},
    {ROW("transfer", "stall_timeout", OPTION_DURATION, stall_timeout_ns, 10 * MS, HOUR), .reload = RELOAD_ALWAYS,
     .fallback = "30s", .help = "A transfer that makes no progress for this time fails.",
     .why = "Raise it for a network with longer interruptions."},
    {ROW("transfer", "replicas_max", OPTION_BYTES, replicas_max_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS,
     .fallback = "4GiB",
     .help = "The most memory for replicas of other nodes' snapshots that the daemon keeps for later readers. Replicas that "
             "nobody reads are evicted when the memory is needed for anything else. 0 means that it keeps none.",
     .why = "Raise it on a node whose readers share large snapshots."},
    {ROW("transfer", "fanout_min", OPTION_BYTES, fanout_min_bytes, 0, UNBOUNDED), .reload = RELOAD_ALWAYS, .fallback = "4MiB",
     .help =
         "Snapshots of at least this size are also fetched from nodes that have or receive a replica, if several nodes want "
         "them; smaller ones as soon as the owner has that much to send. 0 means that all readers fetch from the owner.",
     .why = "Raise it if the owner's network is faster than its readers'."},
};
#undef LIMIT_ROW
#undef ROW

const size_t n_option_keys = sizeof option_keys / sizeof option_keys[0];
_Static_assert(sizeof option_keys / sizeof option_keys[0] <= OPTIONS_MAX_KEYS, "struct options has no room for a key's origin");

/* Flags have - for _. */
static bool is_name(const char *name, const char *key)
{
    for (; *key && (*name == *key || (*name == '-' && *key == '_')); key++)
        name++;
    return *key == 0 && *name == 0;
}

enum rdt_status option_key_unknown(const char *name, const char *what, const char *hint, struct rdt_error *err)
{
    static const struct {
        const char *name, *instead;
    } removed[] = {
        {"sealed_max", "delete it; all snapshots of ordinary memory above 32 KiB lie in memory that the daemon allocates"}};

    for (size_t i = 0; i < sizeof removed / sizeof removed[0]; i++)
        if (is_name(name, removed[i].name))
            return rdt_error_set(err, RDT_INVALID, "it was removed: %s", removed[i].instead);
    return rdt_error_set(err, RDT_INVALID, "no such %s%s", what, hint);
}

static void *field(const struct options *options, const struct option_key *key)
{
    return (char *)(uintptr_t)options + key->offset;
}

static enum rdt_status check_range(const struct option_key *key, uint64_t value, struct rdt_error *err)
{
    if (value >= key->min && value <= key->max)
        return RDT_OK;
    char min[OPTION_TEXT_BYTES], max[OPTION_TEXT_BYTES];
    if (key->type == OPTION_BYTES) {
        option_format_bytes(key->min, min);
        option_format_bytes(key->max, max);
    } else if (key->type == OPTION_DURATION) {
        option_format_duration(key->min, min);
        option_format_duration(key->max, max);
    } else {
        snprintf(min, sizeof min, "%" PRIu64, key->min);
        snprintf(max, sizeof max, "%" PRIu64, key->max);
    }
    return rdt_error_set(err, RDT_INVALID, "must be from %s to %s", min, max);
}

static enum rdt_status set_string(char **field_p, const struct option_key *key, const char *text, struct rdt_error *err)
{
    size_t bytes = strlen(text);
    if (bytes < key->min)
        return rdt_error_set(err, RDT_INVALID, "must not be empty");
    if (bytes > key->max)
        return rdt_error_set(err, RDT_INVALID, "must not be longer than %" PRIu64 " bytes", key->max);
    enum rdt_status status = key->check ? key->check(text, err) : RDT_OK;
    if (status != RDT_OK)
        return status;
    char *copy = strdup(text);
    if (!copy)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    free(*field_p);
    *field_p = copy;
    return RDT_OK;
}

enum rdt_status option_key_set(struct options *options, const struct option_key *key, const char *text, struct rdt_error *err)
{
    enum rdt_status status = RDT_INTERNAL;
    uint64_t value = 0;
    switch (key->type) {
    case OPTION_STRING:
        return set_string(field(options, key), key, text, err);
    case OPTION_BOOL:
        return option_parse_bool(text, field(options, key), err);
    case OPTION_UINT:
    case OPTION_COUNT:
        status = option_parse_uint(text, &value, err);
        break;
    case OPTION_BYTES:
        status = option_parse_bytes(text, &value, err);
        break;
    case OPTION_DURATION:
        status = option_parse_duration(text, &value, err);
        break;
    }
    if (status == RDT_OK)
        status = check_range(key, value, err);
    if (status != RDT_OK)
        return status;
    if (key->type == OPTION_UINT)
        *(uint32_t *)field(options, key) = (uint32_t)value;
    else
        *(uint64_t *)field(options, key) = value;
    return RDT_OK;
}

const char *option_key_text(const struct options *options, const struct option_key *key, char number_p[OPTION_TEXT_BYTES])
{
    const void *value = field(options, key);
    switch (key->type) {
    case OPTION_STRING:
        return *(char *const *)value;
    case OPTION_BOOL:
        return *(const bool *)value ? "yes" : "no";
    case OPTION_UINT:
        snprintf(number_p, OPTION_TEXT_BYTES, "%" PRIu32, *(const uint32_t *)value);
        break;
    case OPTION_COUNT:
        snprintf(number_p, OPTION_TEXT_BYTES, "%" PRIu64, *(const uint64_t *)value);
        break;
    case OPTION_BYTES:
        option_format_bytes(*(const uint64_t *)value, number_p);
        break;
    case OPTION_DURATION:
        option_format_duration(*(const uint64_t *)value, number_p);
        break;
    }
    return number_p;
}

void option_key_print(const struct options *options, const struct option_key *key, FILE *out)
{
    char number[OPTION_TEXT_BYTES];
    const char *text = option_key_text(options, key, number);
    fprintf(out, "%s%s", text[0] != 0 ? " " : "", text);
}

/* ---- where values come from ---- */

void option_key_origin(struct options *options, const struct option_key *key, enum option_source source, int line)
{
    options->origins[key - option_keys] = (struct option_origin){.source = source, .line = line};
}

void option_key_variable(const struct option_key *key, char name_p[OPTION_VARIABLE_BYTES])
{
    int used = snprintf(name_p, OPTION_VARIABLE_BYTES, "RDTD_%s", key->name);

    for (int at = 5; at < used && at < (int)OPTION_VARIABLE_BYTES; at++)
        name_p[at] = (char)toupper((unsigned char)name_p[at]);
}

bool options_is_set(const struct options *options, const char *key)
{
    for (size_t i = 0; i < n_option_keys; i++)
        if (strcmp(option_keys[i].name, key) == 0)
            return options->origins[i].source != OPTION_FROM_DEFAULT;
    return false;
}
