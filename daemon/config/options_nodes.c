/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, and the file that names the nodes of a cluster. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/options.h"

#define LINE_BYTES 512

enum rdt_status options_split_address(const char *text, char *host_p, uint16_t *port_p, struct rdt_error *err)
{
    const char *colon = strrchr(text, ':');
    const char *host = text;
    size_t host_bytes = colon ? (size_t)(colon - text) : 0;
    if (text[0] == '[' && host_bytes > 2 && colon[-1] == ']') {
        host++;
        host_bytes -= 2;
        /* An IPv4 address may have them too: who makes the text need not know which of the two an address is. */
        if ((!memchr(host, ':', host_bytes) && strspn(host, "0123456789.") < host_bytes) || memchr(host, '[', host_bytes) ||
            memchr(host, ']', host_bytes))
            return rdt_error_set(err, RDT_INVALID, "'%s' has no IPv6 address in its brackets, as in [::1]:7171", text);
    } else if (memchr(host, ':', host_bytes) || memchr(host, '[', host_bytes)) {
        return rdt_error_set(err, RDT_INVALID, "'%s' needs brackets around an IPv6 address, as in [::1]:7171", text);
    }
    if (host_bytes == 0 || host_bytes > 64 || strcspn(host, " \t/,") < host_bytes)
        return rdt_error_set(err, RDT_INVALID, "'%s' is not HOST:PORT, as in 192.0.2.1:7171", text);

    const char *port = colon + 1;
    size_t digits = strspn(port, "0123456789");
    unsigned long number = digits > 0 && digits <= 5 && port[digits] == 0 ? strtoul(port, NULL, 10) : 65536;
    if (number > 65535)
        return rdt_error_set(err, RDT_INVALID, "'%s' does not end in a port from 0 to 65535", text);
    memcpy(host_p, host, host_bytes);
    host_p[host_bytes] = 0;
    *port_p = (uint16_t)number;
    return RDT_OK;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != 0 ? strchr(digits, c >= 'A' && c <= 'F' ? c + ('a' - 'A') : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* 32 hex digits, dashes allowed. */
static enum rdt_status parse_uuid(const char *text, uint8_t uuid[16], struct rdt_error *err)
{
    unsigned n = 0;
    for (const char *p = text; *p != 0; p++) {
        int digit = hex_digit(*p);
        if (*p == '-')
            continue;
        if (digit < 0 || n == 32)
            return rdt_error_set(err, RDT_INVALID, "'%s' is not a uuid", text);
        uuid[n / 2] = (uint8_t)(uuid[n / 2] << 4 | digit);
        n++;
    }
    return n == 32 ? RDT_OK : rdt_error_set(err, RDT_INVALID, "'%s' is not a uuid", text);
}

static const struct node_entry *find_node(const struct node_entry *nodes, const char *name)
{
    while (nodes && strcmp(nodes->name, name) != 0)
        nodes = nodes->next;
    return nodes;
}

/* Parses one line without its newline, and modifies it. *entry_p stays NULL for a blank line or a comment. */
static enum rdt_status parse_line(char *line, const struct node_entry *before, struct node_entry **entry_p,
                                  struct rdt_error *err)
{
    char *rest, *words[4] = {0};
    line[strcspn(line, "#\r\n")] = 0;
    unsigned n = 0;
    for (char *word = strtok_r(line, " \t", &rest); word && n < 4; word = strtok_r(NULL, " \t", &rest))
        words[n++] = word;
    if (n == 0)
        return RDT_OK;
    if (n < 2 || n > 3)
        return rdt_error_set(err, RDT_INVALID, "expected NAME ADDRESS:PORT [UUID]");

    struct node_entry entry = {0};
    char host[65];
    uint16_t port;
    if (strlen(words[0]) >= sizeof entry.name || strlen(words[1]) >= sizeof entry.address)
        return rdt_error_set(err, RDT_INVALID, "a name or address has more than 64 bytes");
    enum rdt_status status = options_split_address(words[1], host, &port, err);
    if (status == RDT_OK && port == 0)
        status = rdt_error_set(err, RDT_INVALID, "port 0 cannot be reached");
    if (status == RDT_OK && n == 3)
        status = parse_uuid(words[2], entry.uuid, err);
    if (status == RDT_OK && find_node(before, words[0]))
        status = rdt_error_set(err, RDT_INVALID, "node '%s' is listed twice", words[0]);
    if (status != RDT_OK)
        return status;
    strcpy(entry.name, words[0]);
    strcpy(entry.address, words[1]);
    struct node_entry *copy = malloc(sizeof(*copy));
    if (!copy)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    *copy = entry;
    *entry_p = copy;
    return RDT_OK;
}

void options_free_nodes(struct node_entry *nodes)
{
    while (nodes) {
        struct node_entry *next = nodes->next;
        free(nodes);
        nodes = next;
    }
}

bool options_same_nodes(const struct node_entry *a, const struct node_entry *b)
{
    while (a && b && strcmp(a->name, b->name) == 0 && strcmp(a->address, b->address) == 0 &&
           memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0 && a->source == b->source) {
        a = a->next;
        b = b->next;
    }
    return !a && !b;
}

static enum rdt_status read_lines(FILE *file, struct node_entry **nodes_p, unsigned *line_p, struct rdt_error *err)
{
    char line[LINE_BYTES];
    struct node_entry *first = NULL, **last = &first;
    enum rdt_status status = RDT_OK;
    while (status == RDT_OK && fgets(line, sizeof line, file)) {
        ++*line_p;
        if (!strchr(line, '\n') && !feof(file)) {
            status = rdt_error_set(err, RDT_INVALID, "the line is too long");
            break;
        }
        status = parse_line(line, first, last, err);
        if (*last)
            last = &(*last)->next;
    }
    if (status == RDT_OK && ferror(file))
        status = rdt_error_sys(err, errno, "cannot read on");
    if (status != RDT_OK) {
        options_free_nodes(first);
        return status;
    }
    *nodes_p = first;
    return RDT_OK;
}

enum rdt_status options_read_nodes(const char *path, struct node_entry **nodes_p, struct rdt_error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return rdt_error_sys(err, errno, "cannot open the nodes file %s", path);
    unsigned line = 0;
    enum rdt_status status = read_lines(file, nodes_p, &line, err);
    fclose(file);
    if (status != RDT_OK)
        rdt_error_prefix(err, "%s:%u", path, line);
    return status;
}
