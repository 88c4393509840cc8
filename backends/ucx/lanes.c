/* Which way the bytes of an endpoint go: UCX's transports and devices, its lanes.
 *
 * UCX chooses them itself, at each endpoint, and says nothing when what it found is slow. From 1.14 on it can be asked; 1.13 only
 * prints them, and what it prints is read here. The lane of the connection manager moves no bytes and is left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/ucx/ucx.h"

#define MAX_LANES 16

/* ucp_ep_attr_t as it is from 1.14 on; this file is compiled with older headers too. */
struct entry {
    const char *transport, *device;
};
struct attr_1_14 {
    ucp_ep_attr_t before;
    struct {
        struct entry *entries;
        unsigned n;
        size_t entry_size;
    } transports;
    void *user_data;
};
#define FIELD_TRANSPORTS (UINT64_C(1) << 3)

bool ucx_is_at_least(unsigned wanted_major, unsigned wanted_minor)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    return major != wanted_major ? major > wanted_major : minor >= wanted_minor;
}

/* "tcp/eth0" to the end of the list, once. */
static void add(char *list, size_t size, const char *lane, size_t bytes)
{
    size_t used = strlen(list);

    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, ",") == bytes && !strncmp(at, lane, bytes))
            return;
    (void)snprintf(list + used, size - used, "%s%.*s", used ? ", " : "", (int)bytes, lane);
}

static void ask(ucp_ep_h ep, char *list, size_t size)
{
    struct entry entries[MAX_LANES];
    struct attr_1_14 attr = {.before.field_mask = FIELD_TRANSPORTS,
                             .transports = {.entries = entries, .n = MAX_LANES, .entry_size = sizeof *entries}};
    char lane[96];

    if (ucp_ep_query(ep, (ucp_ep_attr_t *)(void *)&attr) != UCS_OK)
        return;
    for (unsigned i = 0; i < attr.transports.n && i < MAX_LANES; i++) {
        if (!entries[i].device || !*entries[i].device) /* the connection manager's */
            continue;
        (void)snprintf(lane, sizeof lane, "%s/%s", entries[i].transport, entries[i].device);
        add(list, size, lane, strlen(lane));
    }
}

/* "#    lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/..."; "lane[0]: cm rdmacm" is the connection manager's. */
static void read_printed(const char *text, char *list, size_t size)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *at = strstr(line, "lane["), *end = line + strcspn(line, "\n");
        size_t bytes;

        if (!at || at >= end || !(at = strstr(at, "]:")) || at >= end)
            continue;
        at += 2;
        at += strspn(at, " ");
        bytes = strspn(at, "0123456789");
        if (!bytes || at[bytes] != ':')
            continue;
        at += bytes + 1;
        bytes = strcspn(at, " \n");
        while (bytes && at[bytes - 1] != '.') /* the path's number is of no interest */
            bytes--;
        if (bytes > 1)
            add(list, size, at, bytes - 1);
    }
}

static void have_printed(ucp_ep_h ep, char *list, size_t size)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    if (!file)
        return;
    ucp_ep_print_info(ep, file);
    if (!fclose(file) && text)
        read_printed(text, list, size);
    free(text);
}

void lanes_of(ucp_ep_h ep, char *list_p, size_t size)
{
    list_p[0] = '\0';
    if (ucx_is_at_least(1, 14))
        ask(ep, list_p, size);
    else
        have_printed(ep, list_p, size);
}
