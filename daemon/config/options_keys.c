/* The rows, and what can be said about one value by itself. What several values together must satisfy is in options.c. */
#include "daemon/config/options_keys.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "wire_limits.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)
#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)
#define HOUR (3600 * S)
#define PATH_BYTES 4000
#define SOCKET_BYTES 107 /* of sockaddr_un */

static enum rdt_status check_mode(const char *text, struct rdt_error *err)
{
    size_t digits = strspn(text, "01234567");
    if (digits == 0 || text[digits] != 0 || strtoul(text, NULL, 8) > 0777)
        return rdt_error_set(err, RDT_INVALID, "expected an octal mode, as in 0660");
    return RDT_OK;
}

static enum rdt_status check_log_level(const char *text, struct rdt_error *err)
{
    enum log_level level;
    if (!log_level_parse(text, &level))
        return rdt_error_set(err, RDT_INVALID, "expected error, warn, info, debug or trace");
    return RDT_OK;
}

/* A name to resolve could mean another address tomorrow: the daemon binds numbers. */
static enum rdt_status check_listen(const char *text, struct rdt_error *err)
{
    char host[65];
    uint16_t port;
    uint8_t binary[sizeof(struct in6_addr)];
    if (text[0] == 0)
        return RDT_OK;
    enum rdt_status status = options_split_address(text, host, &port, err);
    if (status == RDT_OK && inet_pton(AF_INET, host, binary) != 1 && inet_pton(AF_INET6, host, binary) != 1)
        status = rdt_error_set(err, RDT_INVALID, "expected a numeric address, as in 192.0.2.1:7411 or [2001:db8::1]:7411");
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
    .min = 0, .max = 1024 * TIB

const struct option_key option_keys[] = {
    {ROW("daemon", "socket", OPTION_STRING, socket, 1, SOCKET_BYTES), .fallback = "/run/rdtd/rdtd.sock",
     .help = "where clients connect"},
    {ROW("daemon", "socket_mode", OPTION_STRING, socket_mode, 1, 5), .check = check_mode, .fallback = "0666",
     .help = "permissions of the socket; the daemon judges callers itself, by their credentials"},
    {ROW("daemon", "tenant", OPTION_STRING, tenant, 0, RDT_MAX_TENANT_BYTES), .fallback = "",
     .help = "tenant of the socket's clients; empty is the unnamed one"},
    {ROW("daemon", "state_dir", OPTION_STRING, state_dir, 0, PATH_BYTES), .fallback = "/var/lib/rdtd",
     .help = "where the node's uuid is kept; empty: a new uuid at each start"},
    {ROW("daemon", "backend_dir", OPTION_STRING, backend_dir, 0, PATH_BYTES), .fallback = option_backend_dir,
     .help = "every rdt_*.so in it is loaded; empty: none"},
    {ROW("daemon", "backends", OPTION_STRING, backends, 0, PATH_BYTES), .fallback = "",
     .help = "further plug-ins, paths with commas between; --backend PATH adds one"},
    {ROW("daemon", "log_level", OPTION_STRING, log_level, 1, 16), .check = check_log_level, .fallback = "info",
     .help = "error, warn, info, debug or trace"},
    {ROW("daemon", "allow_overflow_uid", OPTION_BOOL, allow_overflow_uid, 0, 0), .fallback = "no",
     .help = "serve clients whose uid has no mapping in the daemon's user namespace"},
    {ROW("daemon", "memory_limit", OPTION_BYTES, memory_limit_bytes, 0, 1024 * TIB), .fallback = "0",
     .help = "all memory that the daemon may allocate; 0: half of the smaller of RAM and its control group's limit"},
    {ROW("daemon", "pool_max", OPTION_BYTES, pool_max_bytes, 0, 1024 * TIB), .fallback = "0",
     .help = "memory under memory_limit that is kept ready for whoever fetches next, at most; 0: an eighth of memory_limit"},
    {ROW("daemon", "warm_max", OPTION_BYTES, warm_max_bytes, 0, 1024 * TIB), .fallback = "0",
     .help = "memory under memory_limit that a client has let go of and may get again, at most; 0: an eighth of memory_limit"},
    {ROW("daemon", "device_limit", OPTION_BYTES, device_limit_bytes, 0, 1024 * TIB), .fallback = "0",
     .help = "memory that the daemon may allocate on each device; 0: nine tenths of the device's"},
    {ROW("daemon", "device_pool_max", OPTION_BYTES, device_pool_max_bytes, 0, 1024 * TIB), .fallback = "0",
     .help = "memory under device_limit that nobody uses and that is kept, on each device, at most (half of it for one client); 0: an eighth of device_limit"},
    {ROW("daemon", "pool_idle", OPTION_DURATION, pool_idle_ns, MS, HOUR), .fallback = "10s",
     .help = "ready, warm or kept memory that nobody wanted for so long goes back"},
    {ROW("daemon", "max_clients", OPTION_UINT, max_clients, 1, 1000000), .fallback = "4096", .help = "clients at one time"},
    {ROW("daemon", "max_objects", OPTION_UINT, max_objects, 1, 100000000), .fallback = "1048576",
     .help = "objects at one time"},
    {ROW("daemon", "max_names", OPTION_UINT, max_names, 1, 100000000), .fallback = "4096",
     .help = "names that one owner may have published at one time"},
    {ROW("daemon", "worker_threads", OPTION_UINT, worker_threads, 1, 256), .fallback = "2",
     .help = "threads that allocate, copy and register memory"},
    {ROW("daemon", "busy_poll", OPTION_DURATION, busy_poll_ns, 0, RDT_BUSY_POLL_MAX_NS), .fallback = "50us",
     .help = "while one message follows another closely, how long daemon and clients look for the next before they sleep; 0: never"},
    {ROW("daemon", "client_queue", OPTION_BYTES, client_queue_bytes, 64 * KIB, 4 * GIB), .fallback = "8MiB",
     .help = "unread replies past which a client's requests are not read"},
    {ROW("daemon", "detached_ttl", OPTION_DURATION, detached_ttl_ns, MS, 8760 * HOUR), .fallback = "10m",
     .help = "how long a detached object stays after its client's end, if its put says nothing"},
    {ROW("daemon", "detached_ttl_max", OPTION_DURATION, detached_max_ns, MS, 8760 * HOUR), .fallback = "24h",
     .help = "the longest time that a put may ask for"},
    {ROW("daemon", "drain_timeout", OPTION_DURATION, drain_timeout_ns, 0, HOUR), .fallback = "10s",
     .help = "how long a stop waits for transfers"},
    {ROW("daemon", "idle_exit", OPTION_DURATION, idle_exit_ns, 0, 8760 * HOUR), .fallback = "0s",
     .help = "the daemon ends when it had no client, and nothing is kept, for so long; 0: never"},

    {LIMIT_ROW(client, bytes, OPTION_BYTES, USAGE_BYTES), .fallback = "0",
     .help = "memory of one client; 0: up to memory_limit"},
    {LIMIT_ROW(client, objects, OPTION_COUNT, USAGE_OBJECTS), .fallback = "0",
     .help = "objects of one client; 0: seven eighths of max_objects"},
    {LIMIT_ROW(client, regions, OPTION_COUNT, USAGE_REGIONS), .fallback = "65536",
     .help = "regions of one client: allocated, imported or fetched into"},
    {LIMIT_ROW(client, fds, OPTION_COUNT, USAGE_FDS), .fallback = "0",
     .help = "file descriptors that the daemon keeps open for one client; 0: seven eighths of all it may open"},
    {LIMIT_ROW(client, transfers, OPTION_COUNT, USAGE_TRANSFERS), .fallback = "65536",
     .help = "fetches of one client that have not ended"},
    {LIMIT_ROW(client, waiters, OPTION_COUNT, USAGE_WAITERS), .fallback = "65536",
     .help = "requests of one client that wait: for a put, an end, another node, room"},
    {LIMIT_ROW(client, heap, OPTION_BYTES, USAGE_HEAP), .fallback = "1GiB",
     .help = "metadata, lists of tensors, requests and messages under way that the daemon keeps for one client"},
    {LIMIT_ROW(client, device_bytes, OPTION_BYTES, USAGE_DEVICE_BYTES), .fallback = "0",
     .help = "memory of one client on all devices together; 0: up to device_limit of each"},
    {LIMIT_ROW(client, holds, OPTION_COUNT, USAGE_HOLDS), .fallback = "65536",
     .help = "holds of one client on objects that it has not fetched"},
    {LIMIT_ROW(owner, bytes, OPTION_BYTES, USAGE_BYTES), .fallback = "0",
     .help = "memory of all clients of one user (and tenant); 0: up to memory_limit"},
    {LIMIT_ROW(owner, objects, OPTION_COUNT, USAGE_OBJECTS), .fallback = "0",
     .help = "objects of one user; 0: up to max_objects"},
    {LIMIT_ROW(owner, regions, OPTION_COUNT, USAGE_REGIONS), .fallback = "262144", .help = "regions of one user"},
    {LIMIT_ROW(owner, fds, OPTION_COUNT, USAGE_FDS), .fallback = "0",
     .help = "file descriptors that the daemon keeps open for one user; 0: all it may open"},
    {LIMIT_ROW(owner, transfers, OPTION_COUNT, USAGE_TRANSFERS), .fallback = "262144",
     .help = "fetches of one user that have not ended, those of other nodes in its name included"},
    {LIMIT_ROW(owner, waiters, OPTION_COUNT, USAGE_WAITERS), .fallback = "262144", .help = "requests of one user that wait"},
    {LIMIT_ROW(owner, heap, OPTION_BYTES, USAGE_HEAP), .fallback = "4GiB",
     .help = "metadata, lists of tensors, requests and messages under way that the daemon keeps for one user"},
    {LIMIT_ROW(owner, device_bytes, OPTION_BYTES, USAGE_DEVICE_BYTES), .fallback = "0",
     .help = "memory of one user on all devices together; 0: up to device_limit of each"},
    {LIMIT_ROW(owner, holds, OPTION_COUNT, USAGE_HOLDS), .fallback = "262144",
     .help = "such holds of one user, those of other nodes in its name included"},
    {LIMIT_ROW(owner, sessions, OPTION_COUNT, USAGE_SESSIONS), .fallback = "3584", .help = "clients of one user at one time"},
    {LIMIT_ROW(owner, groups, OPTION_COUNT, USAGE_GROUPS), .fallback = "256",
     .help = "groups of one user that this node is in, or has created; of all users there are at most 1024"},

    {ROW("network", "listen", OPTION_STRING, listen, 0, RDT_MAX_ADDRESS_BYTES), .check = check_listen, .fallback = "",
     .help = "numeric ADDRESS:PORT where other nodes connect; port 0 is any; empty: no peer link"},
    {ROW("network", "advertise", OPTION_STRING, advertise, 0, RDT_MAX_ADDRESS_BYTES), .check = check_advertise, .fallback = "",
     .help = "HOST:PORT that refs carry and other nodes connect to; port 0: that of listen; empty: the address of listen, or\n"
             "the host's name if that is every address"},
    {ROW("network", "nodes", OPTION_STRING, nodes, 0, PATH_BYTES), .is_path = true, .fallback = "",
     .help = "file that names the other nodes, a line each: NAME ADDRESS:PORT [UUID]; empty: none"},
    {ROW("network", "key_file", OPTION_STRING, key_file, 0, PATH_BYTES), .is_path = true, .fallback = "",
     .help = "the peer link's pre-shared key, the same on all nodes: head -c 32 /dev/urandom | base64; empty: no peers"},
    {ROW("network", "share_tenants", OPTION_STRING, share_tenants, 0, PATH_BYTES), .fallback = "",
     .help = "tenants that other nodes are believed for, with commas between; * is all, empty the unnamed one"},
    {ROW("network", "trusted_network", OPTION_BOOL, trusted_network, 0, 0), .fallback = "no",
     .help = "allow transports that authenticate nobody (ucx over TCP) on the interfaces below: whoever reaches them can\n"
             "write memory of the daemon"},
    {ROW("network", "interfaces", OPTION_STRING, interfaces, 0, PATH_BYTES), .fallback = "",
     .help = "network interfaces for data, with commas between; empty: any"},
    {ROW("network", "ping_interval", OPTION_DURATION, ping_interval_ns, 10 * MS, HOUR), .fallback = "1s",
     .help = "how often a silent peer is asked for a sign of life"},
    {ROW("network", "peer_timeout", OPTION_DURATION, peer_timeout_ns, 20 * MS, HOUR), .fallback = "5s",
     .help = "a peer that is silent for so long is lost"},
    {ROW("network", "connect_timeout", OPTION_DURATION, connect_timeout_ns, 10 * MS, HOUR), .fallback = "5s",
     .help = "for a connection to a peer, TLS included"},
    {ROW("network", "backoff_max", OPTION_DURATION, backoff_max_ns, 10 * MS, HOUR), .fallback = "30s",
     .help = "longest pause between two attempts to connect"},
    {ROW("network", "hold_grace", OPTION_DURATION, hold_grace_ns, 0, HOUR), .fallback = "30s",
     .help = "how long what a peer's clients hold here stays when its link is down; then it goes, and they are told when it is back"},

    {ROW("transfer", "chunk", OPTION_BYTES, chunk_bytes, 4 * KIB, GIB), .fallback = "4MiB",
     .help = "what one operation of a transport moves"},
    {ROW("transfer", "chunks_in_flight", OPTION_UINT, chunks_in_flight, 1, 1024), .fallback = "4",
     .help = "operations at one time, per peer and direction"},
    {ROW("transfer", "inline_max", OPTION_BYTES, inline_max_bytes, 0, RDT_INLINE_MAX_BYTES), .fallback = "32KiB",
     .help = "tensors up to this size ride in messages: with a put into the daemon's arena, with the reply of a fetch"},
    {ROW("transfer", "made_max", OPTION_BYTES, made_max_bytes, 0, RDT_MADE_MAX_BYTES), .fallback = "4MiB",
     .help = "snapshots up to this size may come in memory that their client makes, and that counts in its own control group;\n"
             "0: the daemon makes it"},
    {ROW("transfer", "quiesce_grace", OPTION_DURATION, quiesce_grace_ns, 0, HOUR), .fallback = "2s",
     .help = "after an abort, before the connection is torn down"},
    {ROW("transfer", "stall_timeout", OPTION_DURATION, stall_timeout_ns, 10 * MS, HOUR), .fallback = "30s",
     .help = "a transfer without progress for so long fails"},
    {ROW("transfer", "copies_max", OPTION_BYTES, copies_max_bytes, 0, 1024 * TIB), .fallback = "4GiB",
     .help = "copies of other nodes' snapshots that stay for later readers; those that nobody reads give way to everything else;\n"
             "0: none is kept"},
    {ROW("transfer", "fanout_min", OPTION_BYTES, fanout_min_bytes, 0, 1024 * TIB), .fallback = "4MiB",
     .help = "snapshots of at least this size are passed on from reader to reader where several nodes want one; 0: never"},
};
#undef LIMIT_ROW
#undef ROW

const size_t n_option_keys = sizeof option_keys / sizeof option_keys[0];

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

void option_key_print(const struct options *options, const struct option_key *key, FILE *out)
{
    const void *value = field(options, key);
    char number[OPTION_TEXT_BYTES];
    const char *text = number;
    switch (key->type) {
    case OPTION_STRING:
        text = *(char *const *)value;
        break;
    case OPTION_BOOL:
        text = *(const bool *)value ? "yes" : "no";
        break;
    case OPTION_UINT:
        snprintf(number, sizeof number, "%" PRIu32, *(const uint32_t *)value);
        break;
    case OPTION_COUNT:
        snprintf(number, sizeof number, "%" PRIu64, *(const uint64_t *)value);
        break;
    case OPTION_BYTES:
        option_format_bytes(*(const uint64_t *)value, number);
        break;
    case OPTION_DURATION:
        option_format_duration(*(const uint64_t *)value, number);
        break;
    }
    fprintf(out, "%s%s", text[0] != 0 ? " " : "", text);
}
