/* SPDX-License-Identifier: Apache-2.0 */
/* See configured.h. */
#include "backends/common/configured.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/common/address.h"

const char *configured_text(const struct rdt_host *host, const char *key)
{
    const char *value = host->config(host->ctx, key);

    return value ? value : "";
}

const char *configured_digits(const char *text, uint64_t least, uint64_t most, uint64_t *number_p)
{
    char *end;

    if (*text < '0' || *text > '9')
        return NULL;
    errno = 0;
    *number_p = strtoull(text, &end, 10);
    return errno || *number_p < least || *number_p > most ? NULL : end;
}

enum rdt_status configured_number(const struct rdt_host *host, const char *key, uint64_t least, uint64_t most,
                                  uint64_t *number_p, struct rdt_error *err)
{
    const char *text = configured_text(host, key), *end = configured_digits(text, least, most, number_p);

    if (end && !*end)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "%s = %s: expected a number from %llu to %llu", key, text, (unsigned long long)least,
                         (unsigned long long)most);
}

enum rdt_status configured_word(const struct rdt_host *host, const char *key, const char *const *words, unsigned *index_p,
                                struct rdt_error *err)
{
    const char *text = configured_text(host, key);
    char list[128] = "";

    for (unsigned i = 0; words[i]; i++) {
        size_t length = strlen(list);

        if (!strcmp(text, words[i])) {
            *index_p = i;
            return RDT_OK;
        }
        (void)snprintf(list + length, sizeof list - length, "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    }
    return rdt_error_set(err, RDT_INVALID, "%s = %s: expected %s", key, text, list);
}

enum rdt_status configured_listen(const struct rdt_host *host, const char *section, char text_p[INET6_ADDRSTRLEN],
                                  struct rdt_error *err)
{
    const char *text = configured_text(host, "listen"), *interfaces = configured_text(host, "interfaces");
    struct sockaddr_storage address;

    if (!*text)
        text = configured_text(host, "listen_host");
    if (*text && !address_parse(text, &address))
        return rdt_error_set(err, RDT_INVALID, "listen = %s: expected a numeric IPv4 or IPv6 address", text);
    if (*text && !address_is_wildcard(text)) {
        (void)snprintf(text_p, INET6_ADDRSTRLEN, "%.45s", text);
        return RDT_OK;
    }
    if (address_of_interfaces(interfaces, text_p))
        return RDT_OK;
    return rdt_error_set(err, RDT_UNSUPPORTED,
                         "found no address to offer to peers%s%s: set listen in [%s] to an address of this node",
                         *interfaces ? " on " : "", interfaces, section);
}

/* The default is one thread for every four processors, and at most 4: a thread moves 4 to 5 GB/s over TCP, or 1.5 GB/s
 * over TLS, and the other processors have work of their own. */
unsigned configured_threads(uint64_t configured)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    return configured ? (unsigned)configured : processors < 8 ? 1 : processors < 16 ? (unsigned)processors / 4 : 4;
}

enum rdt_status configured_peers(const struct rdt_host *host, struct rdt_error *err)
{
    if (strcmp(configured_text(host, "peers"), "no") != 0)
        return RDT_OK;
    return rdt_error_set(err, RDT_UNSUPPORTED,
                         "this daemon has no other nodes, so no port is opened: set listen, and key_file or peer_cert");
}
