/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl publish and unpublish. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/rdt_many.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"

int ctl_publish(struct ctl *ctl, int argc, char **argv)
{
    int visibility = RDT_VISIBLE_TO_OWNER;
    int64_t ttl_ns = 0;
    bool stored = false;
    const struct ctl_option options[] = {
        {0, "visibility", CTL_CHOICE, "owner|tenant|all", "who else may fetch by the name, as far as the object allows (owner)",
         &visibility},
        {0, "stored", CTL_FLAG, NULL, "store this version in the daemon's storage_dir, and wait until it is there", &stored},
        {0, "ttl", CTL_LIFETIME, "TIME", "the name ends when nothing is published under it for that long (never)", &ttl_ns},
        {0},
    };
    struct rdt_publish_options publish = RDT_INIT(publish);
    char text[RDT_REF_TEXT_BYTES], name[160], **operands;
    struct rdt_error err = {0};
    struct rdt_ref ref, name_ref;
    uint64_t version;
    int code = ctl_parse(ctl, options, argc, argv, 2, 2, &operands, NULL);

    if (code != CTL_GO)
        return code;
    if (rdt_ref_from_name(operands[0], 0, NULL, &name_ref, &err))
        return ctl_usage_error(ctl, "%s", err.msg);
    code = ctl_ref(ctl, operands[1], &ref);
    if (code != CTL_GO)
        return code;
    publish.visibility = (enum rdt_visibility)visibility;
    publish.ttl_ns = ttl_ns < 0 ? 0 : ttl_ns;
    publish.name_ref = &name_ref;
    if (ctl_connect(ctl, &err) || rdt_publish(ctl->rdt, operands[0], &ref, &publish, &version, &err) ||
        (stored && rdt_store(ctl->rdt, &name_ref, ctl_timeout(ctl, RDT_FOREVER), NULL, 0, &err)))
        return ctl_fail(ctl, &err);
    rdt_ref_to_text(&name_ref, text);
    if (ctl->json)
        return ctl_print_json(
            json_pack("{s:o, s:s, s:o}", "name", ctl_json_text(operands[0]), "ref", text, "version", ctl_json_u64(version)));
    puts(text);
    if (!ctl->quiet)
        fprintf(stderr, "version %" PRIu64 " of %s\n", version, ctl_plain(operands[0], name, sizeof name));
    return CTL_OK;
}

static int unpublish_all(struct ctl *ctl, const char *prefix)
{
    struct rdt_error err = {0};
    size_t n = 0;

    if (ctl_connect(ctl, &err) || rdt_unpublish_prefix(ctl->rdt, prefix, &n, &err))
        return ctl_fail(ctl, &err);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:I}", "prefix", ctl_json_text(prefix), "unpublished", (json_int_t)n));
    if (!ctl->quiet)
        printf("%zu name%s unpublished\n", n, n == 1 ? " is" : "s are");
    return CTL_OK;
}

int ctl_unpublish(struct ctl *ctl, int argc, char **argv)
{
    const char *prefix = NULL;
    const struct ctl_option options[] = {
        {0, "prefix", CTL_TEXT, "TEXT", "unpublish all of the caller's names on this node that begin with TEXT", &prefix},
        {0},
    };
    char name[160], **operands;
    struct rdt_error err = {0};
    struct rdt_ref ref;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1, &operands, &count);

    if (code == CTL_GO && (count == 1) == (prefix != NULL))
        code = ctl_usage_error(ctl, "give a NAME, a REF or --prefix");
    if (code == CTL_GO && prefix)
        return unpublish_all(ctl, prefix);
    if (code == CTL_GO && strncmp(operands[0], "rdt:", 4) == 0)
        code = ctl_ref(ctl, operands[0], &ref);
    else if (code == CTL_GO && rdt_ref_from_name(operands[0], 0, NULL, &ref, &err))
        code = ctl_usage_error(ctl, "%s", err.msg);
    if (code != CTL_GO)
        return code;
    if (ctl_connect(ctl, &err) || rdt_unpublish(ctl->rdt, &ref, &err))
        return ctl_fail(ctl, &err);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:b}", "name", ctl_json_text(operands[0]), "unpublished", 1));
    if (!ctl->quiet)
        printf("%s is unpublished\n", ctl_plain(ref.id, name, sizeof name));
    return CTL_OK;
}
