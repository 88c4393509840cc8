/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes by DNS. "NAME:PORT" means all addresses of a host name, as a headless Service of Kubernetes has them;
 * "_SERVICE._tcp.NAME" means the SRV records of a service, which give ports, too. */
#include <arpa/nameser.h>
#include <errno.h>
#include <netdb.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/directory/directory_impl.h"

#define ANSWER_BYTES 65535
#define QUERY_TIMEOUT_S 2 /* of one name server; two are tried, twice at most */

struct found {
    struct node_entry *first;
    unsigned n;
};

/* Inserts in order of address, because name servers rotate their answers. Addresses that are too long are left out. */
static enum rdt_status add(struct found *found, const char *host, unsigned port, struct rdt_error *err)
{
    struct node_entry **at = &found->first, *entry;
    char address[sizeof entry->address];
    int n = snprintf(address, sizeof address, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);

    if (n < 0 || (size_t)n >= sizeof address)
        return RDT_OK;
    while (*at && strcmp((*at)->address, address) < 0)
        at = &(*at)->next;
    if (*at && strcmp((*at)->address, address) == 0)
        return RDT_OK;
    if (found->n == DIRECTORY_NODES_MAX)
        return rdt_error_set(err, RDT_LIMIT, "the answer names more than %u nodes", DIRECTORY_NODES_MAX);
    entry = calloc(1, sizeof *entry);
    if (!entry)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a node");
    memcpy(entry->address, address, sizeof address);
    memcpy(entry->name, address, sizeof address);
    entry->next = *at;
    *at = entry;
    found->n++;
    return RDT_OK;
}

static enum rdt_status read_addresses(const char *host, unsigned port, struct found *found, struct rdt_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *all = NULL;
    enum rdt_status status = RDT_OK;
    int rc = getaddrinfo(host, NULL, &hints, &all);

    if (rc != 0)
        return rdt_error_set(err, rc == EAI_AGAIN ? RDT_TIMED_OUT : RDT_NOT_FOUND, "host %s: %s", host,
                             rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    for (const struct addrinfo *info = all; info && status == RDT_OK; info = info->ai_next) {
        char text[65];
        if (getnameinfo(info->ai_addr, info->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0)
            status = add(found, text, port, err);
    }
    freeaddrinfo(all);
    return status;
}

static unsigned get16(const uint8_t *at)
{
    return (unsigned)at[0] << 8 | at[1];
}

#define RECORD_BYTES 10 /* type, class, time to live and length of the data, which follow the name of a record */

/* Takes the records of the answer that are SRV; others are aliases on the way. */
static enum rdt_status take_answer(const uint8_t *answer, int bytes, struct found *found, struct rdt_error *err)
{
    const uint8_t *end = answer + bytes, *at = answer + NS_HFIXEDSZ;
    enum rdt_status status = RDT_OK;
    char target[NS_MAXDNAME];
    unsigned questions, records;
    int n = 0;

    if (bytes < NS_HFIXEDSZ)
        return rdt_error_set(err, RDT_INVALID, "the name server's answer is malformed");
    questions = get16(answer + 4);
    records = get16(answer + 6);
    for (; questions > 0 && n >= 0 && at < end; questions--) {
        n = dn_skipname(at, end);
        at += n + NS_QFIXEDSZ;
    }
    for (; records > 0 && n >= 0 && at < end && status == RDT_OK; records--) {
        const uint8_t *data;
        n = dn_skipname(at, end);
        if (n < 0 || end - at < n + RECORD_BYTES)
            break;
        at += n;
        data = at + RECORD_BYTES;
        n = (int)get16(at + 8);
        if (end - data < n)
            break;
        at = data + n;
        if (get16(data - RECORD_BYTES) != ns_t_srv)
            continue;
        if (n < 7 || dn_expand(answer, end, data + 6, target, sizeof target) < 0)
            break;
        if (target[0] != '\0' && strcmp(target, ".") != 0) /* else the service is not available at this domain */
            status = add(found, target, get16(data + 4), err);
    }
    if (status == RDT_OK && (questions > 0 || records > 0 || n < 0))
        status = rdt_error_set(err, RDT_INVALID, "the name server's answer is malformed");
    return status;
}

static enum rdt_status read_service(const char *service, struct found *found, struct rdt_error *err)
{
    struct __res_state state = {0};
    uint8_t *answer = malloc(ANSWER_BYTES);
    enum rdt_status status = RDT_OK;
    int bytes;

    if (!answer)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer of a name server");
    if (res_ninit(&state) < 0) {
        free(answer);
        return rdt_error_sys(err, errno, "cannot read the configuration of the resolver");
    }
    state.retrans = QUERY_TIMEOUT_S;
    state.retry = 2;
    bytes = res_nsearch(&state, service, ns_c_in, ns_t_srv, answer, ANSWER_BYTES);
    if (bytes < 0 && (state.res_h_errno == HOST_NOT_FOUND || state.res_h_errno == NO_DATA))
        status = rdt_error_set(err, RDT_NOT_FOUND, "service %s: there are no such SRV records", service);
    else if (bytes < 0)
        status = rdt_error_set(err, RDT_TIMED_OUT, "service %s: no name server has answered", service);
    else
        status = take_answer(answer, bytes < ANSWER_BYTES ? bytes : ANSWER_BYTES, found, err);
    res_nclose(&state);
    free(answer);
    return status;
}

enum rdt_status directory_read_dns(struct directory_reading *reading, struct rdt_error *err)
{
    struct found found = {0};
    enum rdt_status status;
    char host[65];
    uint16_t port;

    if (reading->argument[0] == '_') {
        status = read_service(reading->argument, &found, err);
    } else {
        status = options_split_address(reading->argument, host, &port, err);
        if (status == RDT_OK)
            status = read_addresses(host, port, &found, err);
    }
    if (status == RDT_OK && found.n == 0)
        status = rdt_error_set(err, RDT_NOT_FOUND, "%s leads to no node", reading->argument);
    if (status == RDT_OK)
        reading->nodes = found.first;
    else
        options_free_nodes(found.first);
    return status;
}
