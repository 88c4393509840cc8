/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of an endpoint: the UCX transports and devices that move its bytes, as the text "TRANSPORT/DEVICE, ...".
 *
 * UCX chooses the lanes of each endpoint itself. Since 1.14 it can be asked for them; 1.13 only prints them, and this file
 * reads what it prints. The lane of the connection manager moves no bytes and is left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/ucx/ucx.h"

#define MAX_LANES 16

bool ucx_is_at_least(unsigned wanted_major, unsigned wanted_minor)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    return major != wanted_major ? major > wanted_major : minor >= wanted_minor;
}

/* ---- lists ---- */

/* Returns the next lane of a list, with its length in *bytes_p; NULL at the end. */
static const char *next_lane(const char **at, size_t *bytes_p)
{
    const char *lane = *at + strspn(*at, ", ");

    *bytes_p = strcspn(lane, ",");
    *at = lane + *bytes_p;
    return *bytes_p ? lane : NULL;
}

/* Appends a lane to the list, unless the list has it. */
static void add_lane(char *list, size_t size, const char *lane, size_t bytes)
{
    size_t used = strlen(list), other;
    const char *at = list, *next;

    while ((next = next_lane(&at, &other)))
        if (other == bytes && !strncmp(next, lane, bytes))
            return;
    (void)snprintf(list + used, size - used, "%s%.*s", used ? ", " : "", (int)bytes, lane);
}

bool lanes_have(const char *list, const char *const *families)
{
    const char *at = list, *lane;
    size_t bytes;

    while ((lane = next_lane(&at, &bytes)))
        for (const char *const *family = families; *family; family++) {
            size_t n = strlen(*family);
            if (!strncmp(lane, *family, n) && strchr("_/,", lane[n]))
                return true;
        }
    return false;
}

/* ---- asking UCX ---- */

/* The end of ucp_ep_attr_t since 1.14, declared here because this file is compiled with older headers too. */
struct entry {
    const char *engine, *device;
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

static void query_lanes(ucp_ep_h ep, char *list, size_t size)
{
    struct entry entries[MAX_LANES];
    struct attr_1_14 attr = {.before.field_mask = FIELD_TRANSPORTS,
                             .transports = {.entries = entries, .n = MAX_LANES, .entry_size = sizeof *entries}};
    char lane[96];

    if (ucp_ep_query(ep, (ucp_ep_attr_t *)(void *)&attr) != UCS_OK)
        return;
    for (unsigned i = 0; i < attr.transports.n && i < MAX_LANES; i++) {
        if (!entries[i].device || !*entries[i].device) /* the lane of the connection manager */
            continue;
        (void)snprintf(lane, sizeof lane, "%s/%s", entries[i].engine, entries[i].device);
        add_lane(list, size, lane, strlen(lane));
    }
}

/* A line of the text: "#    lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/...". The connection manager's: "lane[0]: cm rdmacm". */
static void read_printed(const char *text, char *list, size_t size)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *end = line + strcspn(line, "\n"), *at = strstr(line, "lane[");
        size_t bytes;

        at = at && at < end ? strstr(at, "]:") : NULL;
        if (!at || at >= end)
            continue;
        at += 2;
        at += strspn(at, " ");
        bytes = strspn(at, "0123456789");
        if (!bytes || at[bytes] != ':')
            continue;
        at += bytes + 1;
        bytes = strcspn(at, " \n");
        while (bytes && at[bytes - 1] != '.') /* the number of the path is left out */
            bytes--;
        if (bytes > 1)
            add_lane(list, size, at, bytes - 1);
    }
}

static void read_lanes(ucp_ep_h ep, char *list, size_t size)
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
        query_lanes(ep, list_p, size);
    else
        read_lanes(ep, list_p, size);
}
