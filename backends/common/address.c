/* SPDX-License-Identifier: Apache-2.0 */
/* See address.h. */
#include "backends/common/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

bool address_parse(const char *text, struct sockaddr_storage *address_p)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};

    memset(address_p, 0, sizeof *address_p);
    if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
        memcpy(address_p, &in, sizeof in);
    else if (inet_pton(AF_INET6, text, &in6.sin6_addr) == 1)
        memcpy(address_p, &in6, sizeof in6);
    else
        return false;
    return true;
}

bool address_is_wildcard(const char *text)
{
    struct sockaddr_storage address;
    const struct in6_addr *in6;

    if (!address_parse(text, &address))
        return false;
    if (address.ss_family == AF_INET)
        return ((struct sockaddr_in *)&address)->sin_addr.s_addr == INADDR_ANY;
    in6 = &((struct sockaddr_in6 *)&address)->sin6_addr;
    return IN6_IS_ADDR_UNSPECIFIED(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr32[3] == INADDR_ANY);
}

bool address_text(const struct sockaddr *address, char text_p[INET6_ADDRSTRLEN])
{
    if (address->sa_family == AF_INET)
        return inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, text_p, INET6_ADDRSTRLEN);
    /* A link-local address means nothing without the peer's own interface index. */
    if (address->sa_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        return !IN6_IS_ADDR_LINKLOCAL(in6) && inet_ntop(AF_INET6, in6, text_p, INET6_ADDRSTRLEN);
    }
    return false;
}

bool address_in_list(const char *list, const char *word)
{
    size_t bytes = strlen(word);

    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == bytes && !strncmp(at, word, bytes))
            return true;
    return false;
}

bool address_of_interfaces(const char *interfaces, char text_p[INET6_ADDRSTRLEN])
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *all;
    bool found = false;

    if (getifaddrs(&all))
        return false;
    for (unsigned i = 0; i < 2 && !found; i++)
        for (struct ifaddrs *at = all; at && !found; at = at->ifa_next) {
            if (!at->ifa_addr || at->ifa_addr->sa_family != families[i] || !(at->ifa_flags & IFF_UP))
                continue;
            if (*interfaces ? address_in_list(interfaces, at->ifa_name) : !(at->ifa_flags & IFF_LOOPBACK))
                found = address_text(at->ifa_addr, text_p);
        }
    freeifaddrs(all);
    return found;
}
