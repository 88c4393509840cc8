/* rdtctl wait: until an object is put. */
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"

int ctl_wait(struct ctl *ctl, int argc, char **argv)
{
    char id[160], text[CTL_HUMAN_BYTES];
    struct rdt_error err = {0};
    struct rdt_ref ref;
    char **operands;
    int64_t started = ctl_now_ns(), took;
    int code = ctl_parse(ctl, NULL, argc, argv, 1, 1, &operands, NULL);

    if (code != CTL_GO)
        return code;
    if (ctl_ref(operands[0], &ref, &err))
        return ctl_usage_error(ctl, "%s", err.msg);
    if (ctl_connect(ctl, &err) || rdt_wait_put(ctl->rdt, &ref, ctl_timeout(ctl, RDT_FOREVER), &err))
        return ctl_fail(ctl, &err);
    took = ctl_now_ns() - started;
    if (ctl->json)
        return ctl_print_json(
            json_pack("{s:o, s:b, s:I}", "ref", ctl_json_text(operands[0]), "put", 1, "waited_ns", (json_int_t)took));
    if (!ctl->quiet)
        printf("%s is there (waited %s)\n", ctl_id_of(operands[0], id, sizeof id), ctl_human_duration(took, text));
    return CTL_OK;
}
