/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of an endpoint: the UCX transports and devices that move its bytes.
 *
 * UCX chooses the lanes of each endpoint itself, and does not report slow ones. Since 1.14 it can be asked for them; 1.13
 * only prints them, and this file reads what it prints. The lane of the connection manager moves no bytes and is left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/ucx/ucx.h"

#define MAX_LANES 16

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

bool ucx_is_at_least(unsigned wanted_major, unsigned wanted_minor)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    return major != wanted_major ? major > wanted_major : minor >= wanted_minor;
}

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
        lanes_add(list, size, lane, strlen(lane));
    }
}

static void parse_printed(ucp_ep_h ep, char *list, size_t size)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    if (!file)
        return;
    ucp_ep_print_info(ep, file);
    if (!fclose(file) && text)
        lanes_read_printed(text, list, size);
    free(text);
}

void lanes_of(ucp_ep_h ep, char *list_p, size_t size)
{
    list_p[0] = '\0';
    if (ucx_is_at_least(1, 14))
        query_lanes(ep, list_p, size);
    else
        parse_printed(ep, list_p, size);
}

/* ---- judging lanes ---- */

/* Returns true once for each peer node, and again for a node after MAX_WARNED others. The memory is limited because a node
 * without a state_dir returns under a new uuid each time, and is never known to be gone for good. */
static bool first_warning(struct engine *engine, const uint8_t uuid[16])
{
    for (unsigned i = 0; i < engine->n_warned && i < MAX_WARNED; i++)
        if (!memcmp(engine->warned[i], uuid, 16))
            return false;
    memcpy(engine->warned[engine->n_warned++ % MAX_WARNED], uuid, 16);
    return true;
}

bool lanes_judge(struct engine *engine, const uint8_t peer_uuid[16], const char *lanes, char *why_p, size_t size)
{
    const struct settings *settings = &engine->settings;
    const struct slow_rule rule = {settings->least_lane, settings->interfaces, "/sys"};

    if (settings->on_slow == SLOW_IGNORE || !lanes_are_slow(&rule, lanes, why_p, size))
        return false;
    if (engine->index == 0 && first_warning(engine, peer_uuid)) /* the other engines have the same lanes */
        engine->host.log(engine->host.ctx, RDT_LOG_WARN, "node %02x%02x%02x%02x is %s slow lanes, %s: %s", peer_uuid[0],
                         peer_uuid[1], peer_uuid[2], peer_uuid[3],
                         settings->on_slow == SLOW_REFUSE ? "not used over" : "reached by", lanes, why_p);
    return true;
}
