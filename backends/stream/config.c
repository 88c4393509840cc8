/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the configuration of this transport. */
#include <stdio.h>
#include <string.h>

#include "backends/common/address.h"
#include "backends/common/configured.h"
#include "backends/stream/stream.h"

static enum rdt_status config_ports(const struct rdt_host *host, struct settings *settings, struct rdt_error *err)
{
    const char *text = configured_text(host, "ports"), *end;
    uint64_t first = 0, last;

    end = configured_digits(text, 0, 65535, &first);
    last = first;
    if (end && *end == '-' && first > 0)
        end = configured_digits(end + 1, first, 65535, &last);
    if (!end || *end)
        return rdt_error_set(err, RDT_INVALID, "ports = %s: expected a port, FIRST-LAST, or 0", text);
    settings->first_port = (uint16_t)first;
    settings->last_port = (uint16_t)last;
    return RDT_OK;
}

/* "PORT", "ADDRESS" or "ADDRESS:PORT", with an IPv6 address in brackets. */
static enum rdt_status config_advertise(const struct rdt_host *host, struct settings *settings, struct rdt_error *err)
{
    const char *text = configured_text(host, "advertise"), *end = configured_digits(text, 1, 65535, &(uint64_t){0}), *colon;
    char address[INET6_ADDRSTRLEN];
    uint64_t port = 0;

    if (end && !*end) {
        (void)configured_digits(text, 1, 65535, &port);
    } else if (*text) {
        colon = *text == '[' ? strchr(text, ']') : strchr(text, ':');
        if (colon && *text == '[')
            colon++;
        end = colon && *colon == ':' ? configured_digits(colon + 1, 1, 65535, &port) : colon ? colon : text + strlen(text);
        (void)snprintf(address, sizeof address, "%.*s", (int)((colon ? colon : end) - text - 2 * (*text == '[')),
                       text + (*text == '['));
        if (!end || *end || !address_parse(address, &settings->advertise) || address_is_wildcard(address))
            return rdt_error_set(err, RDT_INVALID,
                                 "advertise = %s: expected a port, or a numeric address, or both as ADDRESS:PORT", text);
    }
    ((struct sockaddr_in *)&settings->advertise)->sin_port = htons((uint16_t)port); /* at the same offset in both kinds */
    return RDT_OK;
}

/* Without an address of its own, and where the peer link listens at every address or at none, the transport listens at every
 * address, too, unless that is left to certain interfaces: the machine's first address may be on a network of which other
 * nodes have no part. */
static enum rdt_status config_listen(const struct rdt_host *host, struct settings *settings, struct rdt_error *err)
{
    const char *text = configured_text(host, "listen");

    if (!*text)
        text = configured_text(host, "listen_host");
    if ((*text && !address_is_wildcard(text)) || *configured_text(host, "interfaces"))
        return configured_listen(host, "stream", settings->listen, err);
    (void)snprintf(settings->listen, sizeof settings->listen, "%s", *text && !strchr(text, ':') ? "0.0.0.0" : "::");
    return RDT_OK;
}

enum rdt_status settings_read(const struct rdt_host *host, struct settings *settings_p, struct rdt_error *err)
{
    static const char *const yes_or_no[] = {"yes", "no", NULL}, *const encrypt[] = {"unless_trusted", "always", NULL};
    struct settings settings = {0};
    uint64_t threads, connections, dead_after;
    unsigned off, always = 0;
    enum rdt_status status = configured_word(host, "enabled", yes_or_no, &off, err);

    if (status == RDT_OK)
        status = configured_word(host, "encrypt", encrypt, &always, err);
    if (status == RDT_OK)
        status = config_ports(host, &settings, err);
    if (status == RDT_OK)
        status = configured_number(host, "threads", 0, MAX_THREADS, &threads, err);
    if (status == RDT_OK)
        status = configured_number(host, "connections", 0, MAX_CHANNELS, &connections, err);
    if (status == RDT_OK)
        status = configured_number(host, "rekey_bytes", 1 << 20, (uint64_t)1 << 37, &settings.rekey_bytes, err);
    if (status == RDT_OK)
        status = configured_number(host, "dead_after", 1, 3600, &dead_after, err);
    if (status == RDT_OK && off)
        status = rdt_error_set(err, RDT_UNSUPPORTED, "it is switched off by enabled = no in [stream]");
    if (status == RDT_OK)
        status = configured_peers(host, err);
    if (status == RDT_OK)
        status = config_advertise(host, &settings, err);
    if (status == RDT_OK)
        status = config_listen(host, &settings, err);
    if (status != RDT_OK)
        return status;

    settings.threads = configured_threads(threads);
    settings.connections = connections ? (unsigned)connections : settings.threads;
    settings.dead_after_s = (unsigned)dead_after;
    settings.plain = !always && !strcmp(configured_text(host, "trusted_network"), "yes");
    *settings_p = settings;
    return RDT_OK;
}
