/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl config: the daemon's configuration as it is in force, and where each value comes from. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

static bool is_wanted(const Rdt__Pb__ConfigValue *value, const char *key, bool changed)
{
    if (changed && strcmp(value->source, "default") == 0)
        return false;
    return !key || strcmp(key, value->key) == 0 || strcmp(key, value->section) == 0;
}

static void add_value(struct ctl_table *table, const Rdt__Pb__ConfigValue *value)
{
    const char *key = value->key;
    bool bytes = strstr(key, "bytes") || strstr(key, "heap") || strcmp(value->section, "limits") != 0;
    char text[CTL_HUMAN_BYTES];

    ctl_table_add(table, "[%s] %s", value->section, key);
    if (value->derived && bytes)
        ctl_table_add(table, "%s, which is %s here", value->value, ctl_human_bytes(value->derived, text));
    else if (value->derived)
        ctl_table_add(table, "%s, which is %" PRIu64 " here", value->value, value->derived);
    else
        ctl_table_add(table, "%s", value->value);
    ctl_table_add(table, "%s", *value->where ? value->where : value->source);
}

int ctl_config(struct ctl *ctl, int argc, char **argv)
{
    static const struct ctl_column columns[] = {{"KEY", false}, {"VALUE", false}, {"FROM", false}};
    Rdt__Pb__Config request = RDT__PB__CONFIG__INIT;
    const Rdt__Pb__ConfigReply *config;
    ProtobufCMessage *reply;
    struct rdt_error err = {0};
    struct ctl_table table;
    json_t *array;
    bool changed = false;
    const struct ctl_option options[] = {
        {'c', "changed", CTL_FLAG, NULL, "only values that are not the default", &changed},
        {0},
    };
    char **words;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1, &words, &count);

    if (code != CTL_GO)
        return code;
    if (ctl_call(ctl, RDT_MSG_CONFIG, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    config = (const Rdt__Pb__ConfigReply *)reply;
    ctl_table_init(&table, columns, sizeof columns / sizeof *columns);
    array = ctl->json ? json_array() : NULL;
    for (size_t i = 0; i < config->n_values; i++) {
        if (!is_wanted(config->values[i], count ? words[0] : NULL, changed))
            continue;
        if (array)
            json_array_append_new(array, ctl_json(&config->values[i]->base));
        add_value(&table, config->values[i]);
    }
    code = CTL_OK;
    if (count && table.n_cells == 0 && !changed)
        rdt_error_set(&err, RDT_NOT_FOUND, "the configuration has no key or section '%.60s'", words[0]);
    else if (array)
        code = ctl_print_json(json_pack("{s:O}", "values", array));
    else if (!ctl_table_print(&table, "every value is the default", stdout))
        rdt_error_set(&err, RDT_NO_MEMORY, "there is no memory for the table");
    if (err.status != RDT_OK)
        code = ctl_fail(ctl, &err);
    json_decref(array);
    ctl_table_fini(&table);
    ctl_reply_free(reply);
    return code;
}
