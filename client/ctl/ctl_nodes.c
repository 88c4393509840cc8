/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl nodes: the node table, where each node is known from, and the state of its link. */
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

static const struct ctl_column columns[] = {
    {"NODE", false},  {"ADDRESS", false}, {"UUID", false}, {"SOURCE", false},
    {"LISTED", true}, {"LINK", false},    {"SINCE", true}, {"WHY", false},
};

static void add_node(struct ctl_table *table, const Rdt__Pb__NodeInfo *n)
{
    char text[CTL_HUMAN_BYTES], word[128];

    ctl_table_add(table, "%s", ctl_plain(n->name, word, sizeof word));
    ctl_table_add(table, "%s", ctl_plain(n->address, word, sizeof word));
    ctl_table_add(table, "%s", n->node);
    ctl_table_add(table, "%s", n->source);
    ctl_table_add(table, "%s", n->listed_age_ns < 0 ? "" : ctl_human_duration(n->listed_age_ns, text));
    ctl_table_add(table, "%s", n->state);
    ctl_table_add(table, "%s", ctl_human_duration(n->state_age_ns, text));
    ctl_table_add(table, "%s", ctl_plain(n->error, word, sizeof word));
}

static void print_provider(const Rdt__Pb__ProviderInfo *p)
{
    char text[CTL_HUMAN_BYTES], word[200];

    if (*p->error == '\0')
        return;
    printf("%s cannot be read: %s", p->source, ctl_plain(p->error, word, sizeof word));
    if (p->age_ns < 0)
        printf(" (it has named no node yet)\n");
    else
        printf(" (the list is %s old)\n", ctl_human_duration(p->age_ns, text));
}

int ctl_nodes(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Nodes request = RDT__PB__NODES__INIT;
    const Rdt__Pb__NodesReply *nodes;
    ProtobufCMessage *reply;
    struct rdt_error err = {0};
    struct ctl_table table;
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (ctl_call(ctl, RDT_MSG_NODES, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    nodes = (const Rdt__Pb__NodesReply *)reply;
    if (ctl->json) {
        code = ctl_print_json(ctl_json(reply));
    } else {
        ctl_table_init(&table, columns, sizeof columns / sizeof *columns);
        for (size_t i = 0; i < nodes->n_nodes; i++)
            add_node(&table, nodes->nodes[i]);
        code = ctl_table_print(&table, "no nodes", stdout) ? CTL_OK : CTL_FAILED;
        ctl_table_fini(&table);
        for (size_t i = 0; i < nodes->n_providers; i++)
            print_provider(nodes->providers[i]);
    }
    ctl_reply_free(reply);
    return code;
}
