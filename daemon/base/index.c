/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/index.h"

#include <assert.h>
#include <stdlib.h>

#define BITS 5u
#define FAN (1u << BITS)
#define MAX_HEIGHT ((64u + BITS - 1) / BITS)

struct index_node {
    void *slots[FAN]; /* child nodes; in the lowest level values */
    uint32_t used;    /* a bit for each slot that is not NULL */
};

void index_init(struct index *index, uint64_t base)
{
    *index = (struct index){.base = base};
}

static void node_free(struct index_node *node, unsigned height)
{
    for (unsigned i = 0; height > 1 && i < FAN; i++)
        if (node->slots[i])
            node_free(node->slots[i], height - 1);
    free(node);
}

void index_fini(struct index *index)
{
    if (index->root)
        node_free(index->root, index->height);
    *index = (struct index){.base = index->base};
}

static unsigned slot_of(uint64_t key, unsigned level) /* level 1 is the lowest */
{
    return (unsigned)(key >> (BITS * (level - 1))) & (FAN - 1);
}

static bool fits(uint64_t key, unsigned height)
{
    return BITS * height >= 64 || key >> (BITS * height) == 0;
}

void *index_get(const struct index *index, uint64_t number)
{
    uint64_t key = number - index->base;
    struct index_node *node = index->root;

    if (number < index->base || !fits(key, index->height))
        return NULL;
    for (unsigned level = index->height; node && level > 1; level--)
        node = node->slots[slot_of(key, level)];
    return node ? node->slots[slot_of(key, 1)] : NULL;
}

/* Frees the empty nodes on the path to the key, from `level` up. */
static void prune(struct index *index, struct index_node **path, uint64_t key, unsigned level)
{
    for (; level <= index->height && path[level] && path[level]->used == 0; level++) {
        free(path[level]);
        if (level == index->height) {
            index->root = NULL;
            index->height = 0;
            return;
        }
        path[level + 1]->slots[slot_of(key, level + 1)] = NULL;
        path[level + 1]->used &= ~(1u << slot_of(key, level + 1));
    }
}

bool index_put(struct index *index, uint64_t number, void *value)
{
    struct index_node *path[MAX_HEIGHT + 2] = {NULL};
    uint64_t key = number - index->base;

    assert(number >= index->base && value);
    while (index->height == 0 || !fits(key, index->height)) { /* adds a root above */
        struct index_node *root = calloc(1, sizeof *root);
        if (!root)
            return false;
        if (index->root) {
            root->slots[0] = index->root;
            root->used = 1;
        }
        index->root = root;
        do
            index->height++;
        /* a tree without entries gets its full height at once */
        while (!root->used && !fits(key, index->height));
    }
    path[index->height] = index->root;
    for (unsigned level = index->height; level > 1; level--) {
        unsigned slot = slot_of(key, level);
        if (!path[level]->slots[slot]) {
            path[level]->slots[slot] = calloc(1, sizeof *path[level]);
            if (!path[level]->slots[slot]) {
                prune(index, path, key, level);
                return false;
            }
            path[level]->used |= 1u << slot;
        }
        path[level - 1] = path[level]->slots[slot];
    }
    assert(!path[1]->slots[slot_of(key, 1)]);
    path[1]->slots[slot_of(key, 1)] = value;
    path[1]->used |= 1u << slot_of(key, 1);
    index->used++;
    return true;
}

void *index_remove(struct index *index, uint64_t number)
{
    struct index_node *path[MAX_HEIGHT + 2] = {NULL};
    uint64_t key = number - index->base;
    void *value;

    if (number < index->base || index->height == 0 || !fits(key, index->height))
        return NULL;
    path[index->height] = index->root;
    for (unsigned level = index->height; level > 1; level--)
        if (!(path[level - 1] = path[level]->slots[slot_of(key, level)]))
            return NULL;
    value = path[1]->slots[slot_of(key, 1)];
    if (!value)
        return NULL;
    path[1]->slots[slot_of(key, 1)] = NULL;
    path[1]->used &= ~(1u << slot_of(key, 1));
    index->used--;
    prune(index, path, key, 1);
    return value;
}

void *index_next(const struct index *index, uint64_t from, uint64_t *number_p)
{
    struct index_node *path[MAX_HEIGHT + 2] = {NULL};
    uint64_t key = from > index->base ? from - index->base : 0;
    unsigned level = index->height;

    if (level == 0 || !fits(key, level))
        return NULL;
    path[level] = index->root;
    for (;;) {
        unsigned slot = slot_of(key, level);
        uint32_t left = path[level]->used & (UINT32_MAX << slot);
        if (!left) { /* nothing more below this node: continue with the next slot of its parent */
            uint64_t last = key;
            do {
                if (level == index->height)
                    return NULL;
                level++;
            } while (slot_of(key, level) == FAN - 1);
            key = ((key >> (BITS * (level - 1))) + 1) << (BITS * (level - 1));
            if (key < last)
                return NULL;
            continue;
        }
        if ((unsigned)__builtin_ctz(left) != slot) { /* continue with the first key of a later subtree */
            key &= ~(((uint64_t)FAN << (BITS * (level - 1))) - 1);
            key |= (uint64_t)(unsigned)__builtin_ctz(left) << (BITS * (level - 1));
            slot = (unsigned)__builtin_ctz(left);
        }
        if (level == 1) {
            *number_p = index->base + key;
            return path[1]->slots[slot];
        }
        path[level - 1] = path[level]->slots[slot];
        level--;
    }
}
