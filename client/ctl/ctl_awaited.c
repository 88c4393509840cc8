/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for an object that nobody has put, or a version that nobody has published: from the list of transfers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

enum rdt_status ctl_awaited(struct ctl *ctl, const struct rdt_ref *wanted, ctl_on_awaited each, void *arg,
                            struct rdt_error *err)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    struct rdt_ref ref;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS;
    do {
        Rdt__Pb__ListReply *page;
        enum rdt_status status = ctl_page(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), &request, &page, err);

        if (status != RDT_OK)
            return status;
        for (size_t i = 0; i < page->n_transfers; i++) {
            const Rdt__Pb__TransferInfo *t = page->transfers[i];

            if (t->awaits_put && t->elapsed_ns == 0 && rdt_ref_from_text(t->ref, &ref, NULL) == RDT_OK &&
                (wanted ? ref.is_name == wanted->is_name && ref.id_bytes == wanted->id_bytes &&
                              memcmp(ref.id, wanted->id, ref.id_bytes) == 0
                        : ref.is_name))
                each(arg, t);
        }
        ctl_reply_free(&page->base);
    } while (request.after);
    return RDT_OK;
}

const char *ctl_awaiting(const Rdt__Pb__TransferInfo *t, char *text_p, size_t size)
{
    char who[80], age[CTL_HUMAN_BYTES];

    if (strcmp(t->direction, "out") == 0)
        (void)snprintf(who, sizeof who, "node %s", t->peer);
    else
        (void)snprintf(who, sizeof who, "client %" PRIu64, t->client);
    (void)snprintf(text_p, size, "%s has waited for %s (transfer %" PRIu64 ")", who, ctl_human_duration(t->age_ns, age),
                   t->transfer);
    return text_p;
}
