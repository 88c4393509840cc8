/* SPDX-License-Identifier: Apache-2.0 */
/* An intrusive doubly linked list with a sentinel, for the daemon and for the library. Not thread-safe. */
#ifndef RDT_LIST_H
#define RDT_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/container_of.h"

struct list {
    struct list *prev, *next;
};

#define list_for_each(node, head) for (struct list *node = (head)->next; node != (head); node = node->next)

/* The body may remove `node`. */
#define list_for_each_safe(node, head)                                                \
    for (struct list *node = (head)->next, *node##_next = node->next; node != (head); \
         node = node##_next, node##_next = node->next)

/* Loops over the structures `at` of this type whose `member` is in the list. */
#define list_each(type, at, head, member)                                                    \
    for (type *at = container_of((head)->next, type, member); list_in(at, member) != (head); \
         at = container_of(at->member.next, type, member))

/* The same; the body may remove `at` and free it. */
#define list_each_safe(type, at, head, member)                                    \
    for (type *at = container_of((head)->next, type, member),                     \
              *at##_next = container_of(list_in(at, member)->next, type, member); \
         list_in(at, member) != (head); at = at##_next, at##_next = container_of(list_in(at, member)->next, type, member))

/* Takes the first structure again and again, until the body has emptied the list. */
#define list_drain(type, at, head, member) \
    for (type * at; !list_empty(head) && (at = container_of((head)->next, type, member));)

/* The member's address. It is computed without an access to *at, because at the end of a loop there is no structure around the
 * head. */
#define list_in(at, member) ((struct list *)(void *)((char *)(uintptr_t)(at) + offsetof(__typeof__(*(at)), member)))

static inline void list_init(struct list *head)
{
    head->prev = head->next = head;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_append(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_prepend(struct list *head, struct list *node)
{
    list_append(head->next, node);
}

/* Leaves the node empty, so that a second removal is harmless. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* Moves all nodes of `from` to the end of the other list. */
static inline void list_splice(struct list *head, struct list *from)
{
    if (list_empty(from))
        return;
    from->next->prev = head->prev;
    head->prev->next = from->next;
    from->prev->next = head;
    head->prev = from->prev;
    list_init(from);
}

static inline struct list *list_first(const struct list *head)
{
    return list_empty(head) ? NULL : head->next;
}

#endif
