/* SPDX-License-Identifier: Apache-2.0 */
/* CONFIG: the value that is in force for each key, and where it comes from. */
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/config/options.h"
#include "daemon/view/view.h"

#define MAX_VALUES 512u

struct values {
    struct call *call;
    Rdt__Pb__ConfigValue *rows[MAX_VALUES];
    size_t n;
    bool no_memory;
};

/* What the daemon uses for a limit of 0 in the options; 0: no limit, or the key is none. */
static uint64_t derived_limit(const struct account_limits *limits, const char *key)
{
    bool of_client = strncmp(key, "client_max_", 11) == 0;

    for (unsigned i = 0; i < USAGE_COUNT && (of_client || strncmp(key, "owner_max_", 10) == 0); i++)
        if (strcmp(key + (of_client ? 11 : 10), usage_name((enum usage)i)) == 0)
            return of_client ? limits->client[i] : limits->owner[i];
    return 0;
}

static uint64_t derived(const struct rpc *rpc, const struct option_value *value)
{
    if (strcmp(value->value, "0") != 0)
        return 0;
    if (strcmp(value->key, "memory_limit") == 0)
        return rpc->regions->limit_bytes;
    if (strcmp(value->key, "cache_max") == 0)
        return options_effective_cache_max(rpc->options, rpc->regions->limit_bytes);
    return strcmp(value->section, "limits") == 0 ? derived_limit(&rpc->objects->accounts->limits, value->key) : 0;
}

static void on_value(void *arg, const struct option_value *value)
{
    struct values *values = arg;
    struct arena *arena = values->call->request.arena;
    Rdt__Pb__ConfigValue *row = values->n < MAX_VALUES ? arena_message(arena, &rdt__pb__config_value__descriptor) : NULL;
    const char *level = log_level_name(log_threshold);
    bool requested = strcmp(value->key, "log_level") == 0 && strcmp(value->value, level) != 0;

    values->no_memory |= !row;
    if (!row)
        return;
    row->section = arena_text(arena, value->section, SIZE_MAX);
    row->key = arena_text(arena, value->key, SIZE_MAX);
    row->value = arena_text(arena, requested ? level : value->value, SIZE_MAX);
    row->source = arena_text(arena, requested ? "request" : value->source, SIZE_MAX);
    row->where = arena_text(arena, requested ? "rdtctl log-level" : value->where, SIZE_MAX);
    row->derived = derived(values->call->rpc, value);
    if (row->section && row->key && row->value && row->source && row->where)
        values->rows[values->n++] = row;
    else
        values->no_memory = true;
}

enum rdt_status rpc_config(struct call *call, const void *request, struct rdt_error *err)
{
    Rdt__Pb__ConfigReply reply = RDT__PB__CONFIG_REPLY__INIT;
    struct values *values = arena_alloc(call->request.arena, sizeof *values);

    if (values) {
        *values = (struct values){.call = call};
        options_each(call->rpc->options, on_value, values);
    }
    if (!values || values->no_memory)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the configuration");
    reply.values = values->rows;
    reply.n_values = values->n;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
