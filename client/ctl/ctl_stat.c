/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl stat: shows one object and who holds it. */
#include <inttypes.h>
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"
#include "wire_ref.h"

static void print(const Rdt__Pb__ObjectInfo *o)
{
    char text[CTL_HUMAN_BYTES], word[160];

    printf("object      %s\n", ctl_plain(o->id, word, sizeof word));
    printf("ref         ");
    ctl_print_plain(o->ref, stdout);
    printf("\nstate       %s", ctl_plain(o->state, word, sizeof word));
    printf(", %s old\n", ctl_human_duration(o->age_ns, text));
    printf("owner       uid %" PRIu32 "%s%s\n", o->uid, *o->tenant ? ", tenant " : "", ctl_plain(o->tenant, word, sizeof word));
    printf("visible to  %s\n", ctl_plain(o->visibility, word, sizeof word));
    printf("producer    client %" PRIu64 "\n", o->producer);
    printf("content     %" PRIu64 " tensor%s, %s, %" PRIu64 " bytes of metadata\n", o->tensors, o->tensors == 1 ? "" : "s",
           ctl_human_bytes(o->bytes, text), o->metadata_bytes);
    if (*o->transport)
        printf("transport   %s preferred\n", ctl_plain(o->transport, word, sizeof word));
    if (o->snapshot)
        printf("snapshot    it never changes\n");
    if (o->detached && o->ttl_left_ns >= 0)
        printf("detached    client %" PRIu64 " is gone, it stays for %s\n", o->producer,
               ctl_human_duration(o->ttl_left_ns, text));
    else if (o->detached)
        printf("detached    it outlives client %" PRIu64 "\n", o->producer);
    if (o->kept)
        printf("kept        it survives a restart of the daemon\n");
    if (*o->stored_file) {
        printf("%s", o->storing ? "stored      it is being written to " : "stored in   ");
        ctl_print_plain(o->stored_dir, stdout);
        printf("/%s\n", ctl_plain(o->stored_file, word, sizeof word));
    }
    printf("held by     %" PRIu32 " hold%s and %" PRIu32 " pin%s of transfers; %" PRIu32 " request%s for it\n", o->holds,
           o->holds == 1 ? "" : "s", o->pins, o->pins == 1 ? "" : "s", o->waiters, o->waiters == 1 ? " waits" : "s wait");
    for (size_t i = 0; i < o->n_holders; i++) {
        printf("%s", i ? "            " : "because     ");
        ctl_print_plain(o->holders[i]->sentence, stdout);
        putchar('\n');
    }
}

int ctl_stat(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT;
    Rdt__Pb__Ref ref_msg = RDT__PB__REF__INIT;
    ProtobufCMessage *reply;
    struct rdt_error err = {0};
    struct rdt_ref ref;
    struct ctl_name name = CTL_NAME_INIT;
    const struct ctl_option options[] = {
        CTL_NAME_OPTIONS(name, "show the newest version of this name"),
        {0},
    };
    char **operands;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1, &operands, &count);

    if (code == CTL_GO)
        code = ctl_ref_or_name(ctl, count ? operands[0] : NULL, &name, &ref);
    if (code != CTL_GO)
        return code;
    wire_ref_from(&ref, &ref_msg);
    request.ref = &ref_msg;
    if (ctl_call(ctl, RDT_MSG_STAT, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    code = CTL_OK;
    if (ctl->json)
        code = ctl_print_json(ctl_json(reply));
    else
        print((const Rdt__Pb__ObjectInfo *)reply);
    ctl_reply_free(reply);
    return code;
}
