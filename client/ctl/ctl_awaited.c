/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for an object that nobody has put, or a version that nobody has published: from the lists of transfers and of
 * waits. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

struct awaited {
    const struct rdt_ref *wanted; /* NULL: every name */
    ctl_on_awaited each;
    void *arg;
};

/* number: of the transfer; 0: it is no fetch. */
static void tell(const struct awaited *awaited, const char *text, uint64_t client, const char *peer, int64_t age_ns,
                 const char *request, uint64_t number, const char *waits)
{
    const struct rdt_ref *wanted = awaited->wanted;
    char who[160], age[CTL_HUMAN_BYTES];
    struct rdt_ref ref;
    int used;

    if (rdt_ref_from_text(text, &ref, NULL) != RDT_OK ||
        !(wanted ? ref.is_name == wanted->is_name && ref.id_bytes == wanted->id_bytes &&
                       memcmp(ref.id, wanted->id, ref.id_bytes) == 0
                 : ref.is_name))
        return;
    used = client ? snprintf(who, sizeof who, "client %" PRIu64, client) : snprintf(who, sizeof who, "node %.60s", peer);
    used += snprintf(who + used, sizeof who - (size_t)used, " has waited for %s (%s", ctl_human_duration(age_ns, age), request);
    if (number)
        (void)snprintf(who + used, sizeof who - (size_t)used, " %" PRIu64 ")", number);
    else
        (void)snprintf(who + used, sizeof who - (size_t)used, ")");
    awaited->each(awaited->arg, text, who,
                  *waits        ? waits
                  : ref.is_name ? "for somebody to publish the name"
                                : "for somebody to put it");
}

static void tell_page(const struct awaited *awaited, const Rdt__Pb__ListReply *page)
{
    for (size_t i = 0; i < page->n_transfers; i++) {
        const Rdt__Pb__TransferInfo *t = page->transfers[i];

        if (t->awaits_put && t->elapsed_ns == 0)
            tell(awaited, t->ref, strcmp(t->direction, "out") == 0 ? 0 : t->client, t->peer, t->age_ns, "transfer", t->transfer,
                 t->waits);
    }
    for (size_t i = 0; i < page->n_waits; i++)
        tell(awaited, page->waits[i]->ref, page->waits[i]->client, page->waits[i]->peer, page->waits[i]->age_ns,
             page->waits[i]->holds ? "hold" : "wait", 0, "");
}

enum rdt_status ctl_awaited(struct ctl *ctl, const struct rdt_ref *wanted, ctl_on_awaited each, void *arg,
                            struct rdt_error *err)
{
    static const Rdt__Pb__ListKind kinds[] = {RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, RDT__PB__LIST_KIND__LIST_KIND_WAITS};
    const struct awaited awaited = {wanted, each, arg};

    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        Rdt__Pb__List request = RDT__PB__LIST__INIT;

        request.kind = kinds[i];
        do {
            Rdt__Pb__ListReply *page;
            enum rdt_status status = ctl_page(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), &request, &page, err);

            if (status == RDT_INVALID && i > 0)
                return RDT_OK; /* an older daemon, which lists no waits */
            if (status != RDT_OK)
                return status;
            tell_page(&awaited, page);
            ctl_reply_free(&page->base);
        } while (request.after);
    }
    return RDT_OK;
}
