/* What the user wants of this transport, checked. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/address.h"
#include "backends/stream/stream.h"

static const char *text_of(const struct rdt_host *host, const char *key)
{
    const char *value = host->config(host->ctx, key);

    return value ? value : "";
}

/* Up to `end` of the text; NULL: it is none, or not in the range. */
static const char *number(const char *text, uint64_t least, uint64_t most, uint64_t *number_p)
{
    char *end;

    if (*text < '0' || *text > '9')
        return NULL;
    errno = 0;
    *number_p = strtoull(text, &end, 10);
    return errno || *number_p < least || *number_p > most ? NULL : end;
}

static enum rdt_status config_number(const struct rdt_host *host, const char *key, uint64_t least, uint64_t most,
                                     uint64_t *number_p, struct rdt_error *err)
{
    const char *text = text_of(host, key), *end = number(text, least, most, number_p);

    if (end && !*end)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "%s = %s: expected a number from %llu to %llu", key, text, (unsigned long long)least,
                         (unsigned long long)most);
}

/* Which of two words. */
static enum rdt_status config_word(const struct rdt_host *host, const char *key, const char *yes, const char *no, bool *yes_p,
                                   struct rdt_error *err)
{
    const char *text = text_of(host, key);

    *yes_p = !strcmp(text, yes);
    if (*yes_p || !strcmp(text, no))
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "%s = %s: expected %s or %s", key, text, yes, no);
}

static enum rdt_status config_ports(const struct rdt_host *host, struct settings *settings, struct rdt_error *err)
{
    const char *text = text_of(host, "ports"), *end;
    uint64_t first = 0, last;

    end = number(text, 0, 65535, &first);
    last = first;
    if (end && *end == '-' && first > 0)
        end = number(end + 1, first, 65535, &last);
    if (!end || *end)
        return rdt_error_set(err, RDT_INVALID, "ports = %s: expected a port, or FIRST-LAST, or 0", text);
    settings->first_port = (uint16_t)first;
    settings->last_port = (uint16_t)last;
    return RDT_OK;
}

/* What is set for us, else where the peer link listens, else what the interfaces have. */
static enum rdt_status config_listen(const struct rdt_host *host, struct settings *settings, struct rdt_error *err)
{
    const char *text = text_of(host, "listen"), *interfaces = text_of(host, "interfaces");
    struct sockaddr_storage address;

    if (!*text)
        text = text_of(host, "listen_host");
    if (*text && !address_parse(text, &address))
        return rdt_error_set(err, RDT_INVALID, "listen = %s: expected a numeric IPv4 or IPv6 address", text);
    if (*text && !address_is_wildcard(text)) {
        (void)snprintf(settings->listen, sizeof settings->listen, "%.45s", text);
        return RDT_OK;
    }
    if (address_of_interfaces(interfaces, settings->listen))
        return RDT_OK;
    return rdt_error_set(err, RDT_UNSUPPORTED,
                         "found no address to offer to peers%s%s: set listen in [stream] to an address of this node",
                         *interfaces ? " on " : "", interfaces);
}

/* One thread moves some 3 GB/s with TLS and twice that without, and the rest of the machine has work of its own. */
static unsigned default_threads(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    return processors < 8 ? 1 : processors < 16 ? (unsigned)processors / 4 : 4;
}

enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err)
{
    struct settings settings = {0};
    uint64_t threads, connections, dead_after;
    bool enabled, unless_trusted;
    enum rdt_status status = config_word(host, "enabled", "yes", "no", &enabled, err);

    if (status == RDT_OK)
        status = config_word(host, "encrypt", "unless_trusted", "always", &unless_trusted, err);
    if (status == RDT_OK)
        status = config_ports(host, &settings, err);
    if (status == RDT_OK)
        status = config_number(host, "threads", 0, MAX_THREADS, &threads, err);
    if (status == RDT_OK)
        status = config_number(host, "connections", 0, MAX_LANES, &connections, err);
    if (status == RDT_OK)
        status = config_number(host, "rekey_bytes", 1 << 20, (uint64_t)1 << 37, &settings.rekey_bytes, err);
    if (status == RDT_OK)
        status = config_number(host, "dead_after", 1, 3600, &dead_after, err);
    if (status == RDT_OK && !enabled)
        status = rdt_error_set(err, RDT_UNSUPPORTED, "it is switched off: enabled = no in [stream]");
    if (status == RDT_OK)
        status = config_listen(host, &settings, err);
    if (status != RDT_OK)
        return status;

    settings.threads = threads ? (unsigned)threads : default_threads();
    settings.connections = connections ? (unsigned)connections : settings.threads;
    settings.dead_after_s = (unsigned)dead_after;
    settings.plain = unless_trusted && !strcmp(text_of(host, "trusted_network"), "yes");
    *settings_p = settings;
    return RDT_OK;
}
