/* SPDX-License-Identifier: Apache-2.0 */
/* The holds that other nodes had on objects of this node before its daemon restarted. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/base/text.h"
#include "daemon/peers/holds_impl.h"

/* Takes over the references of the record, and frees it. false: no memory; then the hold ends. */
static bool restore_hold(struct holds *holds, struct node_hold_record *record)
{
    struct holds_node *node = holds_awaited(holds, record->image.node);
    struct node_hold *hold = calloc(1, sizeof *hold);
    bool restored = false;

    if (!node)
        node = holds_node_create(holds, record->image.node);
    if (hold && node && object_hold_by(record->object, HOLDER_NODE, &hold->by_object)) {
        hold->node = node;
        hold->object = record->object;
        hold->number = record->image.number;
        hold->transit_until_ns = record->image.transit_until_ns;
        memcpy(hold->boot_id, record->image.boot_id, sizeof hold->boot_id);
        /* of two daemons of that node with the same number, one has ended, and its hold is stale anyhow */
        restored = map_get_u64(&node->here, hold->number) || map_put_u64(&node->here, hold->number, hold);
        if (!restored)
            object_drop_by(record->object, HOLDER_NODE, &hold->by_object);
    }
    if (!restored) {
        free(hold);
        recovery_end_node_hold(holds->recovery, record->account, record->record);
        recovery_free_node_hold(record);
        return false;
    }
    hold->record = record->record;
    hold->account = record->account;
    record->account = NULL;
    if (record->address[0] != '\0')
        text_copy(node->address, sizeof node->address, record->address);
    list_append(map_get_u64(&node->here, hold->number) == hold ? &node->taken : &node->stale, &hold->by_node);
    recovery_free_node_hold(record);
    return true;
}

static void await_node(struct holds_node *node, uint64_t restart_grace_ns)
{
    if (node->address[0] != '\0')
        text_copy(node->name, sizeof node->name, node->address);
    else
        node_hex(node->uuid, node->name);
    if (!node->holds->peers || !deadline_set(node->holds->deadlines, &node->grace, (int64_t)restart_grace_ns)) {
        holds_give_up(node);
        return;
    }
    holds_dial(node);
}

void holds_restore(struct holds *holds, struct peers *peers, uint64_t restart_grace_ns)
{
    struct list *records = &holds->recovery->node_holds;
    size_t n_lost = 0;

    holds->peers = peers;
    while (holds->recovery->journal && !list_empty(records))
        n_lost += !restore_hold(holds, container_of(list_first(records), struct node_hold_record, link));
    if (n_lost > 0)
        log_error("%zu holds that other nodes had on objects of this node before the restart are lost: there is no memory",
                  n_lost);
    list_for_each_safe (at, &holds->nodes)
        await_node(container_of(at, struct holds_node, link), restart_grace_ns);
}
