/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl scrub: makes the daemon compare all stored files with their checksums. */
#include <inttypes.h>
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

static void print(const Rdt__Pb__ScrubReply *reply)
{
    char size[CTL_HUMAN_BYTES];

    printf("%" PRIu64 " files are as they were stored (%s read), %" PRIu64 " are damaged, %" PRIu64
           " could not be read, %" PRIu64 " have no checksums\n",
           reply->checked, ctl_human_bytes(reply->bytes, size), reply->damaged, reply->failed, reply->without_sums);
    if (reply->damaged + reply->failed > 0)
        printf("the daemon's log names the files\n");
}

int ctl_scrub(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Scrub request = RDT__PB__SCRUB__INIT;
    const Rdt__Pb__ScrubReply *scrub;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    request.timeout_ns = ctl_timeout(ctl, RDT_FOREVER);
    if (ctl_call_within(ctl, request.timeout_ns, RDT_MSG_SCRUB, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    scrub = (const Rdt__Pb__ScrubReply *)reply;
    code = scrub->damaged + scrub->failed > 0 ? CTL_FAILED : CTL_OK;
    if (ctl->json)
        (void)ctl_print_json(ctl_json(reply));
    else if (!ctl->quiet || code != CTL_OK)
        print(scrub);
    ctl_reply_free(reply);
    return code;
}
