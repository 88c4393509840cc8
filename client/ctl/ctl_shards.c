/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl shards: which box of which tensor each part of a version has, and what later versions still lack. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_table.h"
#include "proto/cover.h"
#include "proto/manifest.h"
#include "rdt.pb-c.h"
#include "wire_ref.h"

static const char *where(const Rdt__Pb__Ref *ref, char *text, size_t size)
{
    struct rdt_ref value;
    char hex[33] = "";

    if (wire_ref_to(ref, &value, NULL) != RDT_OK)
        return "?";
    for (int i = 0; i < 16; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", value.node[i]);
    (void)snprintf(text, size, "%s", value.address[0] ? value.address : hex);
    return text;
}

/* One row for each tensor of the part. */
static void add_part(struct ctl_table *table, const Rdt__Pb__ManifestPart *part, const Rdt__Pb__Boxes *boxes,
                     const struct layout *layout)
{
    char node[80], plain[80], key[200], box[BOX_TEXT_BYTES], whole[BOX_TEXT_BYTES], size[CTL_HUMAN_BYTES];
    uint64_t zero[32] = {0};

    for (uint32_t i = 0; i < layout->count; i++) {
        uint32_t at = layout->first_dim[i];

        box_text(layout->ndim[i], boxes->start + at, layout->shape + at, box);
        box_text(layout->ndim[i], zero, boxes->global_shape + at, whole);
        ctl_table_add(table, "%u", part->rank);
        ctl_table_add(table, "%s", ctl_plain(where(part->ref, node, sizeof node), plain, sizeof plain));
        ctl_table_add(table, "%s", ctl_plain(boxes->key[i], key, sizeof key));
        ctl_table_add(table, "%s", rdt_dtype_name((enum rdt_dtype)layout->dtype[i]));
        ctl_table_add(table, "%s", box);
        ctl_table_add(table, "%s", whole);
        ctl_table_add(table, "%s", ctl_human_bytes(layout_bytes(layout, i), size));
    }
}

static enum rdt_status print_manifest(const Rdt__Pb__ShardsReply *reply, struct rdt_error *err)
{
    static const struct ctl_column columns[] = {{"RANK", true}, {"NODE", false}, {"TENSOR", false}, {"DTYPE", false},
                                                {"BOX", false}, {"OF", false},   {"BYTES", true}};
    const Rdt__Pb__Manifest *message = reply->manifest;
    char age[CTL_HUMAN_BYTES];
    struct ctl_table table;
    struct manifest manifest;
    enum rdt_status status = manifest_open(message, &manifest, err);

    if (status != RDT_OK) { /* it is somebody's metadata, and says anything */
        manifest_close(&manifest);
        return status;
    }
    printf("version %" PRIu64 ", step %" PRIu64 ": complete, %zu parts, %s old\n", message->version, message->step,
           message->n_parts, ctl_human_duration(reply->age_ns, age));
    ctl_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < message->n_parts; i++) {
        Rdt__Pb__Boxes boxes;
        const struct layout *layout = manifest_part(&manifest, i, &boxes);

        add_part(&table, message->parts[i], &boxes, layout);
    }
    if (!ctl_table_print(&table, "no tensors", stdout))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the list");
    ctl_table_fini(&table);
    manifest_close(&manifest);
    return status;
}

/* Parts that did not survive a restart of a daemon. */
static void print_lost(const Rdt__Pb__ShardsReply *reply)
{
    if (reply->n_lost == 0)
        return;
    printf("lost, so that readers fail until the next version is published: the parts of ranks");
    for (size_t i = 0; i < reply->n_lost && i < 16; i++)
        printf(" %u", reply->lost[i]);
    printf("%s\n", reply->n_lost > 16 ? " ..." : "");
}

/* Names the ranks that have not published yet, at most a few. */
static void print_pending(const Rdt__Pb__PendingVersion *pending)
{
    char age[CTL_HUMAN_BYTES];
    size_t at = 0, named = 0;

    printf("step %" PRIu64 ": %zu of %u parts for %s; missing:", pending->step, pending->n_ranks, pending->of,
           ctl_human_duration(pending->age_ns, age));
    for (uint32_t rank = 0; rank < pending->of; rank++) {
        if (at < pending->n_ranks && pending->ranks[at] == rank) {
            at++;
            continue;
        }
        if (named++ < 16)
            printf(" %u", rank);
    }
    printf("%s\n", named > 16 ? " ..." : named == 0 ? " none, the parts are being held" : "");
}

static int print(struct ctl *ctl, const ProtobufCMessage *message)
{
    const Rdt__Pb__ShardsReply *reply = (const Rdt__Pb__ShardsReply *)message;
    struct rdt_error err = {0};
    char age[CTL_HUMAN_BYTES];
    enum rdt_status status = RDT_OK;

    if (reply->manifest)
        status = print_manifest(reply, &err);
    else
        printf("no complete version\n");
    print_lost(reply);
    for (size_t i = 0; i < reply->n_pending; i++)
        print_pending(reply->pending[i]);
    if (reply->failure[0])
        ctl_line("last failure, %s ago: %s", ctl_human_duration(reply->failure_age_ns, age), reply->failure);
    return status == RDT_OK ? CTL_OK : ctl_fail(ctl, &err);
}

int ctl_shards(struct ctl *ctl, int argc, char **argv)
{
    struct ctl_name name = CTL_NAME_INIT;
    const struct ctl_option options[] = {
        {0, "node", CTL_TEXT, "ADDRESS", "the name's node: HOST:PORT or a name in the nodes file (this node)", &name.node},
        {0, "owner", CTL_TEXT, "USER", "the name's owner: a login name or a uid (the caller)", &name.owner},
        {0},
    };
    Rdt__Pb__Shards request = RDT__PB__SHARDS__INIT;
    struct rdt_ref ref;
    Rdt__Pb__Ref wire;
    char **operands;
    int code = ctl_parse(ctl, options, argc, argv, 1, 1, &operands, NULL);

    if (code != CTL_GO)
        return code;
    if (strncmp(operands[0], "rdt:", 4) != 0)
        name.name = operands[0];
    code = ctl_ref_or_name(ctl, name.name ? NULL : operands[0], &name, &ref);
    if (code != CTL_GO)
        return code;
    wire_ref_from(&ref, &wire);
    request.name = &wire;
    return ctl_show(ctl, RDT_MSG_SHARDS, &request.base, print);
}
