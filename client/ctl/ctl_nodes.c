/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl nodes: the node table, where each node is known from, and the state of its link. */
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
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
    char text[CTL_HUMAN_BYTES];

    if (*p->error == '\0')
        return;
    if (p->age_ns < 0)
        ctl_line("%s cannot be read: %s (it has listed no node yet)", p->source, p->error);
    else
        ctl_line("%s cannot be read: %s (the list is %s old)", p->source, p->error, ctl_human_duration(p->age_ns, text));
}

static int print(struct ctl *ctl, const ProtobufCMessage *reply)
{
    const Rdt__Pb__NodesReply *nodes = (const Rdt__Pb__NodesReply *)reply;
    struct ctl_table table;
    bool printed;

    ctl_table_init(&table, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < nodes->n_nodes; i++)
        add_node(&table, nodes->nodes[i]);
    printed = ctl_table_print(&table, "no nodes", stdout);
    ctl_table_fini(&table);
    for (size_t i = 0; i < nodes->n_providers; i++)
        print_provider(nodes->providers[i]);
    return printed ? CTL_OK : CTL_FAILED;
}

int ctl_nodes(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Nodes request = RDT__PB__NODES__INIT;
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    return code == CTL_GO ? ctl_show(ctl, RDT_MSG_NODES, &request.base, print) : code;
}
