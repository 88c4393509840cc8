/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl broadcast: copies a snapshot to every node of a group. */
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"

#define TIMEOUT_NS (INT64_C(60) * 1000000000)

int ctl_broadcast(struct ctl *ctl, int argc, char **argv)
{
    char **operands, id[160], group[160], text[CTL_HUMAN_BYTES];
    struct rdt_error err = {0};
    struct rdt_ref ref;
    int64_t started = ctl_now_ns(), took;
    int code = ctl_parse(ctl, NULL, argc, argv, 2, 2, &operands, NULL);

    if (code == CTL_GO)
        code = ctl_ref(ctl, operands[0], &ref);
    if (code != CTL_GO)
        return code;
    if (ctl_connect(ctl, &err) || rdt_broadcast(ctl->rdt, &ref, operands[1], ctl_timeout(ctl, TIMEOUT_NS), &err))
        return ctl_fail(ctl, &err);
    took = ctl_now_ns() - started;
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:o, s:I}", "ref", ctl_json_text(operands[0]), "group",
                                        ctl_json_text(operands[1]), "elapsed_ns", (json_int_t)took));
    if (!ctl->quiet)
        printf("%s is on every node of group %s (%s)\n", ctl_id_of(operands[0], id, sizeof id),
               ctl_plain(operands[1], group, sizeof group), ctl_human_duration(took, text));
    return CTL_OK;
}
