/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/cache_queue.h"

#include <assert.h>

void cache_queue_init(struct cache_queue *queue)
{
    *queue = (struct cache_queue){.n = 0};
    for (unsigned i = 0; i < CACHE_PRIORITIES; i++)
        for (unsigned k = 0; k < CACHE_SEGMENTS; k++)
            list_init(&queue->classes[i].segments[k]);
}

static void append(struct cache_class *class, struct cache_entry *entry, enum cache_segment segment)
{
    entry->segment = (uint8_t)segment;
    list_append(&class->segments[segment], &entry->link);
    class->bytes[segment] += entry->bytes;
}

static struct cache_entry *first(const struct cache_class *class, enum cache_segment segment)
{
    struct list *link = list_first(&class->segments[segment]);

    return link ? container_of(link, struct cache_entry, link) : NULL;
}

static void take(struct cache_class *class, struct cache_entry *entry)
{
    assert(class->bytes[entry->segment] >= entry->bytes);
    list_remove(&entry->link);
    class->bytes[entry->segment] -= entry->bytes;
}

void cache_queue_remove(struct cache_queue *queue, struct cache_entry *entry)
{
    assert(queue->n > 0);
    take(&queue->classes[entry->priority], entry);
    queue->n--;
}

/* More than half is protected: what is new would have too little time to be used again. */
static bool is_crowded(const struct cache_class *class)
{
    return class->bytes[CACHE_PROTECTED] > class->bytes[CACHE_PROBATION];
}

void cache_queue_add(struct cache_queue *queue, struct cache_entry *entry, bool used)
{
    struct cache_class *class = &queue->classes[entry->priority];
    struct cache_entry *least;

    append(class, entry, used ? CACHE_PROTECTED : (enum cache_segment)entry->segment);
    queue->n++;
    while (is_crowded(class) && (least = first(class, CACHE_PROTECTED)) != entry) {
        take(class, least);
        append(class, least, CACHE_PROBATION);
    }
}

struct cache_entry *cache_queue_victim(const struct cache_queue *queue)
{
    struct cache_entry *victim = NULL;

    for (unsigned i = 0; i < CACHE_PRIORITIES && !victim; i++) {
        victim = first(&queue->classes[i], CACHE_PROBATION);
        if (!victim)
            victim = first(&queue->classes[i], CACHE_PROTECTED);
    }
    return victim;
}
