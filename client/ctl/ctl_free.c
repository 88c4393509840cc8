/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl free: drops the producer's hold. */
#include <stdio.h>

#include "client/rdt_many.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"

static int free_all(struct ctl *ctl, const char *prefix, bool force)
{
    struct rdt_error err = {0};
    size_t n = 0;

    if (ctl_connect(ctl, &err) || rdt_free_prefix(ctl->rdt, prefix, force, &n, &err))
        return ctl_fail(ctl, &err);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:I}", "prefix", ctl_json_text(prefix), "freed", (json_int_t)n));
    if (!ctl->quiet)
        printf("%zu object%s freed%s\n", n, n == 1 ? " is" : "s are",
               n == 0 && !force ? ": without --force only detached and evictable ones can be" : "");
    return CTL_OK;
}

int ctl_free(struct ctl *ctl, int argc, char **argv)
{
    const char *prefix = NULL;
    bool force = false;
    int64_t wait_ns = 0;
    const struct ctl_option options[] = {
        {0, "force", CTL_FLAG, NULL, "make later fetches fail on every node; holders keep the object", &force},
        {0, "prefix", CTL_TEXT, "TEXT", "free all of the caller's objects on this node whose ids begin with TEXT", &prefix},
        {0, "wait", CTL_DURATION, "TIME", "then wait until no hold or transfer is left on any node", &wait_ns},
        {0},
    };
    struct rdt_error err = {0};
    struct rdt_ref ref;
    char **operands, id[160];
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1, &operands, &count);

    if (code == CTL_GO && (count == 1) == (prefix != NULL))
        code = ctl_usage_error(ctl, "give a REF or --prefix");
    if (code == CTL_GO && prefix && wait_ns)
        code = ctl_usage_error(ctl, "--wait is for one REF");
    if (code == CTL_GO && prefix)
        return free_all(ctl, prefix, force);
    if (code == CTL_GO)
        code = ctl_ref(ctl, operands[0], &ref);
    if (code != CTL_GO)
        return code;
    /* An object gives up its id when it is freed, so the wait needs its complete ref. */
    if (ctl_connect(ctl, &err) || (wait_ns && ctl_object_of(ctl, &ref, &err)) || rdt_free(ctl->rdt, &ref, force, &err))
        return ctl_fail(ctl, &err);
    if (wait_ns && rdt_wait_freed(ctl->rdt, &ref, wait_ns, &err))
        return ctl_fail(ctl, &err);
    if (ctl->json)
        return ctl_print_json(
            json_pack("{s:o, s:b, s:b}", "ref", ctl_json_text(operands[0]), "freed", 1, "gone", wait_ns != 0));
    if (!ctl->quiet)
        printf("%s is freed%s\n", ctl_id_of(operands[0], id, sizeof id), wait_ns ? " and gone" : "");
    return CTL_OK;
}
