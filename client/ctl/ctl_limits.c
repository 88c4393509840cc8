/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl limits: what owners and clients use of each limit. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

static const struct ctl_column columns[] = {
    {"WHOSE", false}, {"WHAT", false}, {"USED", true}, {"LIMIT", true}, {"OF LIMIT", false},
};

static const char *amount(const char *what, uint64_t n, char text[CTL_HUMAN_BYTES])
{
    if (strstr(what, "bytes") || strcmp(what, "heap") == 0)
        return ctl_human_bytes(n, text);
    (void)snprintf(text, CTL_HUMAN_BYTES, "%" PRIu64, n);
    return text;
}

static void add_rows(struct ctl_table *table, const char *whose, Rdt__Pb__Usage *const *usage, size_t n, bool all)
{
    char text[CTL_HUMAN_BYTES];

    for (size_t i = 0; i < n; i++) {
        const Rdt__Pb__Usage *u = usage[i];

        if (!all && u->used == 0)
            continue;
        ctl_table_add(table, "%s", whose);
        ctl_table_add(table, "%s", u->what);
        ctl_table_add(table, "%s", amount(u->what, u->used, text));
        ctl_table_add(table, "%s", u->limit ? amount(u->what, u->limit, text) : "none");
        if (u->limit) /* rounded down: 100% is all */
            ctl_table_add(table, "%" PRIu64 "%%%s", (uint64_t)((double)u->used * 100 / (double)u->limit),
                          u->used >= u->limit ? ": nothing is left" : "");
        else
            ctl_table_add(table, "%s", "");
    }
}

static void add_owner(struct ctl_table *table, const Rdt__Pb__OwnerInfo *owner, bool all)
{
    char whose[96], person[32] = "";

    if (owner->person != 0)
        (void)snprintf(person, sizeof person, " (user %" PRIu32 ")", owner->person);
    (void)snprintf(whose, sizeof whose, "owner %s%s%" PRIu32 "%s", owner->tenant, *owner->tenant ? ":" : "", owner->uid,
                   person);
    add_rows(table, whose, owner->usage, owner->n_usage, all);
}

static void add_client(struct ctl_table *table, const Rdt__Pb__ClientInfo *client, bool all)
{
    char whose[128], name[64];

    (void)snprintf(whose, sizeof whose, "client %" PRIu64 " (%s)", client->client, ctl_plain(client->name, name, sizeof name));
    add_rows(table, whose, client->usage, client->n_usage, all);
}

static enum rdt_status add_all(struct ctl *ctl, Rdt__Pb__ListKind kind, bool all, struct ctl_table *table, json_t *array,
                               struct rdt_error *err)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;

    request.kind = kind;
    do {
        Rdt__Pb__ListReply *page;
        enum rdt_status status = ctl_page(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), &request, &page, err);

        if (status)
            return status;
        for (size_t i = 0; i < page->n_owners; i++) {
            if (array)
                json_array_append_new(array, ctl_json(&page->owners[i]->base));
            else
                add_owner(table, page->owners[i], all);
        }
        for (size_t i = 0; i < page->n_clients; i++) {
            if (array)
                json_array_append_new(array, ctl_json(&page->clients[i]->base));
            else
                add_client(table, page->clients[i], all);
        }
        ctl_reply_free(&page->base);
    } while (request.after);
    return RDT_OK;
}

int ctl_limits(struct ctl *ctl, int argc, char **argv)
{
    bool all = false;
    const struct ctl_option options[] = {
        {'a', "all", CTL_FLAG, NULL, "show unused limits too", &all},
        {0},
    };
    json_t *owners, *clients;
    struct ctl_table table;
    struct rdt_error err = {0};
    enum rdt_status status;
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    ctl_table_init(&table, columns, sizeof columns / sizeof *columns);
    owners = ctl->json ? json_array() : NULL;
    clients = ctl->json ? json_array() : NULL;
    status = add_all(ctl, RDT__PB__LIST_KIND__LIST_KIND_OWNERS, all, &table, owners, &err);
    if (status == RDT_OK)
        status = add_all(ctl, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, all, &table, clients, &err);
    code = CTL_OK;
    if (status == RDT_OK && ctl->json)
        code = ctl_print_json(json_pack("{s:O, s:O}", "owners", owners, "clients", clients));
    else if (status == RDT_OK && !ctl_table_print(&table, "nothing is used", stdout))
        status = rdt_error_set(&err, RDT_NO_MEMORY, "there is no memory for the table");
    if (status)
        code = ctl_fail(ctl, &err);
    json_decref(owners);
    json_decref(clients);
    ctl_table_fini(&table);
    return code;
}
