/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl wait: waits until an object is put, or a name has a newer version. */
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
    struct ctl_name name = CTL_NAME_INIT;
    const char *what;
    const struct ctl_option options[] = {
        CTL_NAME_OPTIONS(name, "wait for a version of this name"),
        CTL_AFTER_OPTION(name),
        {0},
    };
    char **operands;
    int64_t started = ctl_now_ns(), took;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1, &operands, &count);

    if (code == CTL_GO)
        code = ctl_ref_or_name(ctl, count ? operands[0] : NULL, &name, &ref);
    if (code != CTL_GO)
        return code;
    what = name.name ? name.name : operands[0];
    if (ctl_connect(ctl, &err) ||
        rdt_wait_put(ctl->rdt, &ref, ctl->timeout == CTL_NO_WAIT ? 0 : ctl_timeout(ctl, RDT_FOREVER), &err))
        return ctl_fail(ctl, &err);
    took = ctl_now_ns() - started;
    if (ctl->json)
        return ctl_print_json(
            json_pack("{s:o, s:b, s:I}", "ref", ctl_json_text(what), "put", 1, "waited_ns", (json_int_t)took));
    if (!ctl->quiet)
        printf("%s has been put (waited %s)\n", ctl_id_of(what, id, sizeof id), ctl_human_duration(took, text));
    return CTL_OK;
}
