/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl groups: lists, creates and destroys groups. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"

/* Cuts "CLIENT@NODE,DEVICE" into its fields. */
static struct rdt_member member_of(char *text)
{
    char *at = strrchr(text, '@'), *comma = strrchr(at ? at : text, ',');

    if (comma)
        *comma = '\0';
    if (at)
        *at = '\0';
    return (struct rdt_member){
        .client = text, .node = at && at[1] ? at + 1 : NULL, .device = comma && comma[1] ? comma + 1 : NULL};
}

static int create(struct ctl *ctl, const char *transport, char **operands, int count)
{
    struct rdt_group_options options = RDT_INIT(options);
    struct rdt_member *members;
    struct rdt_error err = {0};
    enum rdt_status status;
    char name[160];

    if (count < 3)
        return ctl_usage_error(ctl, "create needs a name and members");
    if (!transport)
        return ctl_usage_error(ctl, "create needs --transport");
    members = calloc((size_t)count, sizeof *members);
    if (!members)
        status = rdt_error_set(&err, RDT_NO_MEMORY, "there is no memory for the members");
    else
        status = ctl_connect(ctl, &err);
    for (int i = 2; status == RDT_OK && i < count; i++)
        members[i - 2] = member_of(operands[i]);
    options.timeout_ns = ctl_timeout(ctl, 0);
    if (status == RDT_OK)
        status = rdt_group_create(ctl->rdt, operands[1], transport, members, (size_t)count - 2, &options, &err);
    free(members);
    if (status != RDT_OK)
        return ctl_fail(ctl, &err);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:i}", "group", ctl_json_text(operands[1]), "members", count - 2));
    if (!ctl->quiet)
        printf("group %s of %d members is ready\n", ctl_plain(operands[1], name, sizeof name), count - 2);
    return CTL_OK;
}

static int destroy(struct ctl *ctl, char **operands, int count)
{
    struct rdt_error err = {0};
    char name[160];

    if (count != 2)
        return ctl_usage_error(ctl, "destroy needs the name of one group");
    if (ctl_connect(ctl, &err) || rdt_group_destroy(ctl->rdt, operands[1], &err))
        return ctl_fail(ctl, &err);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:b}", "group", ctl_json_text(operands[1]), "destroyed", 1));
    if (!ctl->quiet)
        printf("group %s is destroyed\n", ctl_plain(operands[1], name, sizeof name));
    return CTL_OK;
}

int ctl_groups(struct ctl *ctl, int argc, char **argv)
{
    const char *transport = NULL;
    const struct ctl_option options[] = {
        {0, "transport", CTL_TEXT, "NAME", "with create: the transport that moves the bytes", &transport},
        {0},
    };
    char **operands;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1026, &operands, &count);

    if (code != CTL_GO)
        return code;
    if (count == 0)
        return ctl_list_groups(ctl);
    if (strcmp(operands[0], "create") == 0)
        return create(ctl, transport, operands, count);
    if (strcmp(operands[0], "destroy") == 0)
        return destroy(ctl, operands, count);
    return ctl_usage_error(ctl, "'%.40s' is neither create nor destroy", operands[0]);
}
