/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of operations. priv[0] of an operation links it to the next one. */
#include "backends/gloo/gloo.h"

static struct rdt_op **next_of(struct rdt_op *op)
{
    return (struct rdt_op **)&op->priv[0];
}

void queue_init(struct queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

void queue_add(struct queue *queue, struct rdt_op *op)
{
    op->priv[0] = NULL;
    *queue->last = op;
    queue->last = next_of(op);
}

struct rdt_op *queue_take(struct queue *queue, const struct rdt_op *op, const struct head *head)
{
    for (struct rdt_op **at = &queue->first; *at; at = next_of(*at)) {
        struct rdt_op *found = *at;
        if (op ? found != op : found->transfer != head->transfer || found->chunk != head->chunk)
            continue;
        *at = *next_of(found);
        if (queue->last == next_of(found))
            queue->last = at;
        return found;
    }
    return NULL;
}

void queue_end(struct queue *queue, const struct rdt_host *host)
{
    while (queue->first) {
        struct rdt_op *op = queue->first;
        queue->first = *next_of(op);
        host->op_done(op, RDT_CANCELLED, NULL);
    }
    queue_init(queue);
}
