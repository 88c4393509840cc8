/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches of a name whose ref leaves the node open. Such a fetch waits for the name on this node, and becomes a pull as soon
 * as the name is found on another one. */
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/transfers/transfer_impl.h"

static void on_found(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    struct transfer *transfer = container_of(seeker, struct transfer, local.seeker);

    name_waiter_remove(&transfer->local.named);
    transfer_set_state(transfer, TRANSFER_NEW); /* it goes on as if the ref had named the node from the start */
    memcpy(transfer->ref.node, node, sizeof transfer->ref.node);
    text_copy(transfer->ref.address, sizeof transfer->ref.address, address);
    transfer->record.ref = transfer->ref;
    transfer->kind = &transfer_pull_kind;
    transfer->kind->start(transfer);
}

void transfer_place(struct transfers *transfers, const struct client *client, struct rdt_ref *ref)
{
    struct owner owner = owner_of_ref(ref, &client->account->owner);

    if (transfers->directory_names && ref_is_unplaced(ref))
        (void)directory_names_find(transfers->directory_names, &owner, (const uint8_t *)ref->id, ref->id_bytes, ref->node,
                                   ref->address);
}

void transfer_seek(struct transfer *transfer)
{
    struct directory_names *all = transfer->transfers->directory_names;
    struct owner owner = owner_of_ref(&transfer->ref, &transfer->account->owner);
    struct rdt_error err;

    if (transfer->sm.state != TRANSFER_PARKED || !all || !ref_is_unplaced(&transfer->ref) || !directory_names_active(all))
        return;
    transfer->local.seeker.on_found = on_found;
    if (directory_names_seek(all, &owner, (const uint8_t *)transfer->ref.id, transfer->ref.id_bytes, &transfer->local.seeker,
                             &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}
