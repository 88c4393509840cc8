/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl shards: which box of which tensor each part of a version has, and what later versions still lack. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/rdt_plan.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "proto/cover.h"
#include "proto/manifest.h"
#include "rdt.pb-c.h"
#include "wire_ref.h"

static const char *where(const struct rdt_ref *ref, char *text, size_t size)
{
    char hex[33] = "";

    for (int i = 0; i < 16; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", ref->node[i]);
    (void)snprintf(text, size, "%s", ref->address[0] ? ref->address : hex);
    return text;
}

static void add_row(struct ctl_table *table, size_t rank, const struct rdt_ref *ref, const struct rdt_box *of)
{
    char node[80], plain[80], key[200], box[BOX_TEXT_BYTES], whole[BOX_TEXT_BYTES], size[CTL_HUMAN_BYTES];
    const uint64_t *count = (const uint64_t *)of->count;
    uint64_t zero[32] = {0};

    box_text(of->ndim, (const uint64_t *)of->start, count, box);
    box_text(of->ndim, zero, (const uint64_t *)of->global_shape, whole);
    ctl_table_add(table, "%zu", rank);
    ctl_table_add(table, "%s", ctl_plain(where(ref, node, sizeof node), plain, sizeof plain));
    ctl_table_add(table, "%s", ctl_plain(of->key, key, sizeof key));
    ctl_table_add(table, "%s", rdt_dtype_name(of->dtype));
    ctl_table_add(table, "%s", box);
    ctl_table_add(table, "%s", whole);
    ctl_table_add(table, "%s", ctl_human_bytes(box_elems(of->ndim, count) * rdt_dtype_bytes(of->dtype), size));
}

/* One row for each tensor of each part, by what the reply has. */
static enum rdt_status add_parts(struct ctl_table *table, const Rdt__Pb__Manifest *message, struct rdt_error *err)
{
    struct manifest manifest;
    enum rdt_status status = manifest_open(message, &manifest, err); /* it is somebody's metadata, and says anything */

    for (size_t i = 0; i < message->n_parts && status == RDT_OK; i++) {
        Rdt__Pb__Boxes boxes;
        const struct layout *layout = manifest_part(&manifest, i, &boxes);
        struct rdt_ref ref;

        status = wire_ref_to(message->parts[i]->ref, &ref, err);
        for (uint32_t t = 0; t < layout->count && status == RDT_OK; t++) {
            uint32_t at = layout->first_dim[t];
            struct rdt_box box = {boxes.key[t],
                                  (enum rdt_dtype)layout->dtype[t],
                                  layout->ndim[t],
                                  (const int64_t *)boxes.global_shape + at,
                                  (const int64_t *)boxes.start + at,
                                  (const int64_t *)layout->shape + at};
            add_row(table, message->parts[i]->rank, &ref, &box);
        }
    }
    manifest_close(&manifest);
    return status;
}

/* The same by a fetch: the reply has not all of a manifest with a tensor. *info_p: of the version that the fetch has
 * brought. */
static enum rdt_status add_large(struct ctl *ctl, struct ctl_table *table, const struct rdt_ref *name,
                                 struct rdt_manifest_info *info_p, struct rdt_error *err)
{
    rdt_manifest *manifest = NULL;
    enum rdt_status status = rdt_manifest_fetch(ctl->rdt, name, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), &manifest, err);

    if (status == RDT_OK)
        rdt_manifest_info(manifest, info_p);
    for (size_t i = 0; status == RDT_OK && i < info_p->parts; i++) {
        struct rdt_ref ref;
        struct rdt_box box;
        size_t n = 0;

        status = rdt_manifest_part(manifest, i, &ref, &n, err);
        for (size_t t = 0; t < n && status == RDT_OK; t++) {
            status = rdt_manifest_box(manifest, i, t, &box, err);
            if (status == RDT_OK)
                add_row(table, i, &ref, &box);
        }
    }
    rdt_manifest_release(manifest);
    return status;
}

static enum rdt_status print_manifest(struct ctl *ctl, const Rdt__Pb__ShardsReply *reply, const struct rdt_ref *name,
                                      struct rdt_error *err)
{
    static const struct ctl_column columns[] = {{"RANK", true}, {"NODE", false}, {"TENSOR", false}, {"DTYPE", false},
                                                {"BOX", false}, {"OF", false},   {"BYTES", true}};
    const Rdt__Pb__Manifest *message = reply->manifest;
    struct rdt_manifest_info info = {message->version, message->step, message->n_parts};
    char age[CTL_HUMAN_BYTES];
    struct ctl_table table;
    enum rdt_status status;

    ctl_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    if (message->n_layouts == 0 && message->n_parts > 0)
        status = add_large(ctl, &table, name, &info, err);
    else
        status = add_parts(&table, message, err);
    if (status == RDT_OK) {
        printf("version %" PRIu64 ", step %" PRIu64 ": complete, %zu parts, %s old\n", info.version, info.step, info.parts,
               ctl_human_duration(reply->age_ns, age));
        if (!ctl_table_print(&table, "no tensors", stdout))
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the list");
    }
    ctl_table_fini(&table);
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

/* Names the ranks that have not published yet, at most a few, and says what is there. */
static void print_pending(const Rdt__Pb__PendingVersion *pending)
{
    char age[CTL_HUMAN_BYTES], bytes[CTL_HUMAN_BYTES];
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
    printf("%s", named > 16 ? " ..." : named == 0 ? " none, the parts are being held" : "");
    if (pending->n_growing > 0)
        printf("; still adding tensors:");
    for (size_t i = 0; i < pending->n_growing && i < 16; i++)
        printf(" %u", pending->growing[i]);
    printf("%s\n", pending->n_growing > 16 ? " ..." : "");
    if (pending->pieces > 0)
        printf("  %" PRIu64 " tensors in %u pieces are there, %s\n", pending->tensors, pending->pieces,
               ctl_human_bytes(pending->bytes, bytes));
}

static int print(struct ctl *ctl, const Rdt__Pb__ShardsReply *reply, const struct rdt_ref *name)
{
    struct rdt_error err = {0};
    char age[CTL_HUMAN_BYTES];
    enum rdt_status status = RDT_OK;

    if (reply->manifest)
        status = print_manifest(ctl, reply, name, &err);
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
    ProtobufCMessage *reply;
    struct rdt_error err = {0};
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
    if (ctl_call(ctl, RDT_MSG_SHARDS, &request.base, &reply, &err) != RDT_OK)
        return ctl_fail(ctl, &err);
    code = ctl->json ? ctl_print_json(ctl_json(reply)) : print(ctl, (const Rdt__Pb__ShardsReply *)reply, &ref);
    ctl_reply_free(reply);
    return code;
}
