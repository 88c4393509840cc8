/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl stat: shows one object and who holds it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"
#include "wire_ref.h"

void ctl_print_refusal(const Rdt__Pb__ObjectInfo *o, const char *label)
{
    char text[CTL_HUMAN_BYTES];

    if (o->refusals > 0)
        ctl_line("%srdtd cannot map memory of client %" PRIu64 " (%" PRIu32
                 " time%s in a row, first %s ago), so it is copied: %s",
                 label, o->producer, o->refusals, o->refusals == 1 ? "" : "s", ctl_human_duration(o->refusal_age_ns, text),
                 o->refusal);
}

static int print(struct ctl *ctl, const ProtobufCMessage *reply)
{
    const Rdt__Pb__ObjectInfo *o = (const Rdt__Pb__ObjectInfo *)reply;
    char text[CTL_HUMAN_BYTES];

    ctl_line("object      %s", o->id);
    ctl_line("ref         %s", o->ref);
    ctl_line("state       %s, %s old",
             strcmp(o->state, "draining") == 0 ? "draining: it was freed, and ends with its last holder" : o->state,
             ctl_human_duration(o->age_ns, text));
    ctl_line("owner       uid %" PRIu32 "%s%s", o->uid, *o->tenant ? ", tenant " : "", o->tenant);
    ctl_line("visible to  %s", o->visibility);
    ctl_line("producer    client %" PRIu64, o->producer);
    if (o->manifest)
        ctl_line("content     the list of a version's parts, %" PRIu64 " bytes: rdtctl shards shows them",
                 o->metadata_bytes + o->bytes);
    else
        ctl_line("content     %" PRIu64 " tensor%s, %s, %" PRIu64 " bytes of metadata", o->tensors, o->tensors == 1 ? "" : "s",
                 ctl_human_bytes(o->bytes, text), o->metadata_bytes);
    if (*o->transport)
        ctl_line("transport   %s preferred", o->transport);
    if (o->snapshot)
        ctl_line("snapshot    it never changes");
    ctl_print_refusal(o, "not shared  ");
    if (o->detached && o->ttl_left_ns >= 0)
        ctl_line("detached    it outlives client %" PRIu64 " and stays for %s", o->producer,
                 ctl_human_duration(o->ttl_left_ns, text));
    else if (o->detached)
        ctl_line("detached    it outlives client %" PRIu64, o->producer);
    if (o->kept)
        ctl_line("kept        it survives a restart of the daemon");
    if (*o->stored_file)
        ctl_line("%s%s/%s", o->storing ? "stored      it is being written to " : "stored in   ", o->stored_dir, o->stored_file);
    printf("held by     %" PRIu32 " hold%s and %" PRIu32 " pin%s of transfers; %" PRIu32 " request%s for it\n", o->holds,
           o->holds == 1 ? "" : "s", o->pins, o->pins == 1 ? "" : "s", o->waiters, o->waiters == 1 ? " waits" : "s wait");
    for (size_t i = 0; i < o->n_holders; i++)
        ctl_line("%s%s", i ? "            " : "because     ", o->holders[i]->sentence);
    return CTL_OK;
}

static void print_awaiting(void *arg, const char *ref, const char *who, const char *waits)
{
    ctl_line("waiting     %s", who);
}

static void add_awaiting(void *arg, const char *ref, const char *who, const char *waits)
{
    struct rdt_error *err = arg;
    size_t used = strlen(err->msg);

    (void)snprintf(err->msg + used, sizeof err->msg - used, "; %s", who);
}

/* Nobody has published the name: says who waits for it. */
static int fail(struct ctl *ctl, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct rdt_error ignored;

    if (err->status == RDT_NOT_FOUND)
        (void)ctl_awaited(ctl, ref, add_awaiting, err, &ignored);
    return ctl_fail(ctl, err);
}

int ctl_stat(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT;
    Rdt__Pb__Ref ref_msg = RDT__PB__REF__INIT;
    struct rdt_ref ref;
    struct ctl_name name = CTL_NAME_INIT;
    const struct ctl_option options[] = {
        CTL_NAME_OPTIONS(name, "show the newest version of this name"),
        {0},
    };
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    char **operands;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1, &operands, &count);

    if (code == CTL_GO)
        code = ctl_ref_or_name(ctl, count ? operands[0] : NULL, &name, &ref);
    if (code != CTL_GO)
        return code;
    if (ctl_object_of(ctl, &ref, &err))
        return fail(ctl, &ref, &err);
    wire_ref_from(&ref, &ref_msg);
    request.ref = &ref_msg;
    if (ctl_call(ctl, RDT_MSG_STAT, &request.base, &reply, &err))
        return fail(ctl, &ref, &err);
    code = ctl->json ? ctl_print_json(ctl_json(reply)) : print(ctl, reply);
    if (!ctl->json && ((const Rdt__Pb__ObjectInfo *)reply)->waiters > 0)
        (void)ctl_awaited(ctl, &ref, print_awaiting, NULL, &err);
    ctl_reply_free(reply);
    return code;
}
