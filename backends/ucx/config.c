/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the configuration of this transport, and creates UCX's context from it.
 *
 * A UCX_* variable of the environment overrides what is set here, because somebody who knows this machine has set it.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backends/common/address.h"
#include "backends/common/configured.h"
#include "backends/ucx/ucx.h"

#define SPEED_OF_TCP 40u
#define SPEED_OF_RDMA 100u

#define CARRIER_WAIT_MS 3000
#define SEGMENT "1028k" /* size of a TCP segment of UCX; see modify_all */

/* ---- interfaces ---- */

/* Finds the interface that has the address. All of 127.0.0.0/8 belongs to the loopback interface, which lists only one
 * address. */
static bool interface_of_address(const char *address, char *name_p, size_t size)
{
    bool loopback = !strncmp(address, "127.", 4);
    struct ifaddrs *all;
    char text[INET6_ADDRSTRLEN];
    bool found = false;

    if (getifaddrs(&all))
        return false;
    for (struct ifaddrs *at = all; at && !found; at = at->ifa_next)
        if (at->ifa_addr && address_text(at->ifa_addr, text) &&
            (!strcmp(text, address) || (loopback && (at->ifa_flags & IFF_LOOPBACK) && at->ifa_addr->sa_family == AF_INET))) {
            (void)snprintf(name_p, size, "%s", at->ifa_name);
            found = true;
        }
    freeifaddrs(all);
    return found;
}

static bool address_is_of_interface(const char *address)
{
    struct ifaddrs *all;
    char text[INET6_ADDRSTRLEN];
    bool found = false;

    if (getifaddrs(&all))
        return false;
    for (struct ifaddrs *at = all; at && !found; at = at->ifa_next)
        found = at->ifa_addr && address_text(at->ifa_addr, text) && !strcmp(text, address);
    freeifaddrs(all);
    return found;
}

/* Returns whether one of the interfaces exists but has no carrier yet. UCX ignores such an interface. */
static bool waits_for_carrier(const char *interfaces)
{
    struct ifaddrs *all;
    bool found = false;

    if (!*interfaces || getifaddrs(&all))
        return false;
    for (struct ifaddrs *at = all; at && !found; at = at->ifa_next)
        found = address_in_list(interfaces, at->ifa_name) && (at->ifa_flags & IFF_UP) && !(at->ifa_flags & IFF_RUNNING);
    freeifaddrs(all);
    return found;
}

/* ---- settings ---- */

static enum rdt_status config_copy(const struct rdt_host *host, const char *key, char *text_p, size_t size,
                                   struct rdt_error *err)
{
    const char *text = configured_text(host, key);

    if (strlen(text) >= size)
        return rdt_error_set(err, RDT_INVALID, "%s is longer than %zu characters", key, size - 1);
    (void)snprintf(text_p, size, "%s", text);
    return RDT_OK;
}

bool ucx_has_cuda_module(void)
{
    const char *folder = getenv("UCX_MODULE_DIR");
    char path[1024];
    Dl_info info;
    union {
        void (*function)(unsigned *, unsigned *, unsigned *);
        void *address;
    } of_ucx = {ucp_get_version};

    if (folder)
        (void)snprintf(path, sizeof path, "%s/libuct_cuda.so", folder);
    else if (dladdr(of_ucx.address, &info) && info.dli_fname && strrchr(info.dli_fname, '/'))
        (void)snprintf(path, sizeof path, "%.*s/ucx/libuct_cuda.so", (int)(strrchr(info.dli_fname, '/') - info.dli_fname),
                       info.dli_fname);
    else
        return false;
    if (access(path, R_OK) == 0)
        return true;
    (void)strncat(path, ".0", sizeof path - strlen(path) - 1);
    return access(path, R_OK) == 0;
}

/* The module for CUDA is of no use without a driver, and UCX warns of transports in its list that it lacks. */
static void add_cuda(struct settings *settings)
{
    struct ucx_memory memory = {.module = ucx_has_cuda_module()};
    char tls[sizeof settings->tls + 24];
    unsigned release;
    void *driver = memory.module ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) : NULL;

    if (!driver)
        return;
    (void)dlclose(driver);
    ucp_get_version(&memory.major, &memory.minor, &release);
    ucx_add_cuda(&memory, settings->tls, tls, sizeof tls);
    if (strlen(tls) < sizeof settings->tls)
        (void)strcpy(settings->tls, tls);
}

uint32_t settings_speed(const struct rdt_host *host)
{
    const char *at = getenv("UCX_TLS");
    bool tcp = false;

    for (at = at ? at : configured_text(host, "tls"); *at; at += strcspn(at, ","), at += *at == ',') {
        if (strncmp(at, "cuda", 4) == 0) /* they move nothing between nodes */
            continue;
        if (strcspn(at, ",") != 3 || strncmp(at, "tcp", 3) != 0)
            return SPEED_OF_RDMA;
        tcp = true;
    }
    return tcp ? SPEED_OF_TCP : SPEED_OF_RDMA;
}

static bool tls_has_tcp(const struct settings *settings)
{
    const char *tls = getenv("UCX_TLS");

    if (!tls)
        tls = settings->tls;
    return *tls == '^' || address_in_list(tls, "tcp") || address_in_list(tls, "all");
}

static enum rdt_status config_one_sided(const struct rdt_host *host, struct settings *settings, struct rdt_error *err)
{
    static const char *const one_sided[] = {
        [ONE_SIDED_AUTO] = "auto", [ONE_SIDED_NEVER] = "never", [ONE_SIDED_ALWAYS] = "always", NULL};
    unsigned one = 0;
    enum rdt_status status = configured_word(host, "one_sided", one_sided, &one, err);

    settings->one_sided = (enum one_sided)one;
    settings->reads = one == ONE_SIDED_ALWAYS || (one == ONE_SIDED_AUTO && !tls_has_tcp(settings));
    return status;
}

/* Whether nothing says which address of this node is meant, so that ucx takes the first one. UCX cannot listen at all of them:
 * it chooses the interface of a connection by itself, even if it was reached at another one. */
static bool is_guess(const struct rdt_host *host)
{
    const char *text = configured_text(host, "listen");

    if (!*text)
        text = configured_text(host, "listen_host");
    return (!*text || address_is_wildcard(text)) && !*configured_text(host, "interfaces");
}

/* UCX looks for the interface that has the address at which it was reached, and finds none for 127.0.0.2 and the like. The
 * loopback interface's own address serves as well, because the port distinguishes the nodes. */
static enum rdt_status config_listen(const struct rdt_host *host, struct settings *settings, struct rdt_error *err)
{
    enum rdt_status status = configured_listen(host, "ucx", settings->listen, err);

    settings->guessed = status == RDT_OK && is_guess(host);
    if (status == RDT_OK && !strncmp(settings->listen, "127.", 4) && !address_is_of_interface(settings->listen))
        (void)snprintf(settings->listen, sizeof settings->listen, "127.0.0.1");
    return status;
}

enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err)
{
    struct settings settings = {0};
    uint64_t port, spin_polls, rails, slice_mib;
    enum rdt_status status;

    if (strcmp(configured_text(host, "trusted_network"), "yes"))
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "UCX does not authenticate peers; set trusted_network = yes if only trusted machines reach its interfaces");

    status = configured_peers(host, err);
    if (status == RDT_OK)
        status = config_copy(host, "tls", settings.tls, sizeof settings.tls, err);
    if (status == RDT_OK)
        add_cuda(&settings);
    if (status == RDT_OK)
        status = config_copy(host, "interfaces", settings.interfaces, sizeof settings.interfaces, err);
    if (status == RDT_OK)
        status = configured_number(host, "port", 0, 65535, &port, err);
    if (status == RDT_OK)
        status = configured_number(host, "spin_polls", 0, 1000000, &spin_polls, err);
    if (status == RDT_OK)
        status = configured_number(host, "rails", 0, 16, &rails, err);
    if (status == RDT_OK)
        status = configured_number(host, "slice_mib", 1, 1 << 24, &slice_mib, err);
    if (status == RDT_OK)
        status = config_one_sided(host, &settings, err);
    if (status == RDT_OK)
        status = config_listen(host, &settings, err);
    if (status != RDT_OK)
        return status;

    settings.port = (uint16_t)port;
    if (rails)
        (void)snprintf(settings.rails, sizeof settings.rails, "%u", (unsigned)rails);
    settings.spin_polls = (unsigned)spin_polls;
    settings.slice_bytes = slice_mib << 20;
    /* trusted_network refers to the network of that address, not to every interface of the machine. */
    if (!*settings.interfaces)
        (void)interface_of_address(settings.listen, settings.interfaces, sizeof settings.interfaces);
    *settings_p = settings;
    return RDT_OK;
}

/* ---- the context ---- */

static bool uses_ipv6(const struct settings *settings)
{
    return strchr(settings->listen, ':') != NULL;
}

static enum rdt_status modify(ucp_config_t *config, const char *key, const char *value, struct rdt_error *err)
{
    unsigned major, minor, release;
    char variable[64];
    ucs_status_t status;

    (void)snprintf(variable, sizeof variable, "UCX_%s", key);
    if (!*value || getenv(variable))
        return RDT_OK;
    /* UCX 1.13 has the keys of a transport without the transport's name, and accepts the others with a warning. */
    ucp_get_version(&major, &minor, &release);
    status = ucp_config_modify(config, major == 1 && minor <= 13 && !strncmp(key, "TCP_", 4) ? key + 4 : key, value);
    if (status == UCS_OK)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "UCX does not accept %s=%s: %s", key, value, ucs_status_string(status));
}

static enum rdt_status modify_all(const struct settings *settings, ucp_config_t *config, struct rdt_error *err)
{
    const struct {
        const char *key, *value;
    } changes[] = {
        /* UCX (up to 1.22) reserves as many bytes for a peer's address as the address of its own interface has. An interface
         * with both families uses IPv4 by default, and the address of an IPv6 peer then overwrites other memory. */
        {"TCP_AF_PRIO", uses_ipv6(settings) ? "inet6" : ""},
        {"TLS", settings->tls},
        {"NET_DEVICES", settings->interfaces},
        {"TCP_CM_REUSEADDR", "y"}, /* otherwise a restart may find its fixed port in use */
        {"TCP_CONN_NB", "y"},      /* a blocking connect() would stall the bytes of every peer */
        /* Without PUT and zero copy, TCP sends and receives by copying to and from a segment. Each segment costs some 15 us
         * beside its bytes, so segments are long: 2.5 GB/s with 64 KiB, 4.4 with 512 KiB, 4.8 with 1 MiB and 4 KiB, 4.0 with
         * 2 MiB, which no cache holds. The 4 KiB are for headers, so that a message of 1 MiB is one segment. With PUT, bytes
         * were seen to arrive after the receiver had closed its endpoint. And with PUT or zero copy UCX 1.13, built with
         * assertions as in Debian 12, aborts the process when a peer goes away at a certain moment (PUT_TX_WAITING_ACK;
         * comp->count > 0). Newer versions have segments of 8 KiB by default, and are as fast as 1.13 with these settings,
         * with either protocol selection (UCX_PROTO_ENABLE). */
        {"TCP_PUT_ENABLE", "n"},
        {"ZCOPY_THRESH", settings->reads ? "" : "inf"}, /* one-sided reads must not copy */
        {"TCP_TX_SEG_SIZE", SEGMENT},
        {"TCP_RX_SEG_SIZE", SEGMENT},
        {"MAX_EAGER_RAILS", settings->rails},
        {"MAX_RNDV_RAILS", settings->rails},
        {"MAX_RMA_RAILS", ucx_is_at_least(1, 16) ? settings->rails : ""},
        /* Memory of a GPU is registered with the network cards that are nearest to it by PCI, so no other moves it. Otherwise
         * it is registered with all, and among cards that are slower than the way between two sockets UCX takes the first. */
        {"MAX_HCA_PER_GPU", ucx_is_at_least(1, 21) ? "auto" : ""},
    };
    enum rdt_status status = RDT_OK;

    for (unsigned i = 0; i < sizeof changes / sizeof *changes && status == RDT_OK; i++)
        status = modify(config, changes[i].key, changes[i].value, err);
    return status;
}

/* Two ends whose segments differ in size overrun each other's buffers, and an end that reads needs a peer that registers its
 * memory. So both are part of the version, which the core compares. */
void settings_version(const struct settings *settings, char *version_p, size_t size)
{
    const char *text = ucp_get_version_string(), *segment = getenv("UCX_TCP_RX_SEG_SIZE");

    (void)snprintf(version_p, size, "%.*s, segments %.16s%s", (int)strcspn(text, " "), text, segment ? segment : SEGMENT,
                   settings->reads ? ", one-sided" : "");
}

enum rdt_status settings_context(const struct settings *settings, ucp_context_h *context_p, struct rdt_error *err)
{
    /* RMA is requested only if the configuration asks for it, because its emulation over TCP lets a peer read any address of
     * the process (see read.c). With RMA, other threads register memory with the context. */
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | (settings->reads ? UCP_FEATURE_RMA : 0),
        .mt_workers_shared = settings->reads,
        .name = "rdtd",
    };
    ucp_config_t *config;
    ucs_status_t ucs;
    enum rdt_status status;

    ucs = ucp_config_read(NULL, NULL, &config);
    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_INVALID, "UCX cannot read its configuration (UCX_* in the environment): %s",
                             ucs_status_string(ucs));
    status = modify_all(settings, config, err);
    if (status == RDT_OK) {
        /* At boot the daemon may start before its network, so it waits a moment for a link that is coming up. */
        for (int left_ms = CARRIER_WAIT_MS; left_ms > 0 && waits_for_carrier(settings->interfaces); left_ms -= 20)
            (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        ucs = ucp_init(&params, config, context_p);
        if (ucs != UCS_OK)
            status = rdt_error_set(err, RDT_UNSUPPORTED, "UCX finds no usable transport (tls = %s, interfaces = %s%s): %s",
                                   settings->tls, settings->interfaces,
                                   uses_ipv6(settings) ? ", IPv6; UCX 1.13 supports no IPv6 on the loopback interface" : "",
                                   ucs_status_string(ucs));
    }
    ucp_config_release(config);
    return status;
}
