/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl wait: waits until an object is put, or a name has a newer version. rdtctl exists: which there are already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/rdt_many.h"
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

/* ---- exists ---- */

static int show(struct ctl *ctl, char *const *operands, int count, const enum rdt_status *statuses)
{
    json_t *rows = ctl->json ? json_array() : NULL;
    int code = CTL_OK;

    for (int i = 0; i < count; i++) {
        bool exists = statuses[i] == RDT_OK;
        char text[160];

        if (!exists)
            code = CTL_FAILED;
        if (ctl->json)
            json_array_append_new(rows, json_pack("{s:o, s:b}", "name", ctl_json_text(operands[i]), "exists", exists));
        else if (!ctl->quiet)
            printf("%-3s %s\n", exists ? "yes" : "no", ctl_plain(operands[i], text, sizeof text));
    }
    return ctl->json && ctl_print_json(rows) != CTL_OK ? CTL_FAILED : code;
}

int ctl_exists(struct ctl *ctl, int argc, char **argv)
{
    struct rdt_error err = {0};
    enum rdt_status *statuses;
    struct rdt_ref *refs;
    char **operands;
    int count, code = ctl_parse(ctl, NULL, argc, argv, 1, 1 << 20, &operands, &count);

    if (code != CTL_GO)
        return code;
    refs = calloc((size_t)count, sizeof *refs);
    statuses = calloc((size_t)count, sizeof *statuses);
    for (int i = 0; refs && code == CTL_GO && i < count; i++) {
        if (strncmp(operands[i], "rdt:", 4) == 0)
            code = ctl_ref(ctl, operands[i], &refs[i]);
        else if (rdt_ref_from_name(operands[i], 0, NULL, &refs[i], &err))
            code = ctl_usage_error(ctl, "%s", err.msg);
    }
    if (!refs || !statuses)
        rdt_error_set(&err, RDT_NO_MEMORY, "there is no memory for %d names", count);
    if (code == CTL_GO && (err.status || ctl_connect(ctl, &err) || rdt_exists(ctl->rdt, refs, (size_t)count, statuses, &err)))
        code = ctl_fail(ctl, &err);
    if (code == CTL_GO)
        code = show(ctl, operands, count, statuses);
    free(refs);
    free(statuses);
    return code;
}
