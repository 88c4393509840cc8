/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/cache_queue.h"

#include <assert.h>

void cache_queue_init(struct cache_queue *queue)
{
    *queue = (struct cache_queue){.n = 0};
    for (unsigned i = 0; i < CACHE_SEGMENTS; i++)
        list_init(&queue->segments[i]);
}

static void append(struct cache_queue *queue, struct cache_entry *entry, enum cache_segment segment)
{
    entry->segment = (uint8_t)segment;
    list_append(&queue->segments[segment], &entry->link);
    queue->bytes[segment] += entry->bytes;
    queue->n++;
}

static struct cache_entry *first(const struct cache_queue *queue, enum cache_segment segment)
{
    struct list *link = list_first(&queue->segments[segment]);

    return link ? container_of(link, struct cache_entry, link) : NULL;
}

void cache_queue_remove(struct cache_queue *queue, struct cache_entry *entry)
{
    assert(queue->n > 0 && queue->bytes[entry->segment] >= entry->bytes);
    list_remove(&entry->link);
    queue->bytes[entry->segment] -= entry->bytes;
    queue->n--;
}

/* More than half is protected: what is new would have too little time to be used again. */
static bool is_crowded(const struct cache_queue *queue)
{
    return queue->bytes[CACHE_PROTECTED] > queue->bytes[CACHE_PROBATION];
}

void cache_queue_add(struct cache_queue *queue, struct cache_entry *entry, bool used)
{
    struct cache_entry *least;

    append(queue, entry, used ? CACHE_PROTECTED : (enum cache_segment)entry->segment);
    while (is_crowded(queue) && (least = first(queue, CACHE_PROTECTED)) != entry) {
        cache_queue_remove(queue, least);
        append(queue, least, CACHE_PROBATION);
    }
}

struct cache_entry *cache_queue_victim(const struct cache_queue *queue)
{
    struct cache_entry *victim = first(queue, CACHE_PROBATION);

    return victim ? victim : first(queue, CACHE_PROTECTED);
}
