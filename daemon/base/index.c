#include "daemon/base/index.h"

#include <assert.h>
#include <stdlib.h>

#define BITS 5u
#define FAN (1u << BITS)
#define MAX_HEIGHT ((64u + BITS - 1) / BITS)

struct index_node {
    void *slots[FAN]; /* nodes; in the lowest level values */
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

/* Frees what is empty of the way to the key, from `level` up. */
static void prune(struct index *index, struct index_node **way, uint64_t key, unsigned level)
{
    for (; level <= index->height && way[level] && way[level]->used == 0; level++) {
        free(way[level]);
        if (level == index->height) {
            index->root = NULL;
            index->height = 0;
            return;
        }
        way[level + 1]->slots[slot_of(key, level + 1)] = NULL;
        way[level + 1]->used &= ~(1u << slot_of(key, level + 1));
    }
}

bool index_put(struct index *index, uint64_t number, void *value)
{
    struct index_node *way[MAX_HEIGHT + 2] = {NULL};
    uint64_t key = number - index->base;

    assert(number >= index->base && value);
    while (index->height == 0 || !fits(key, index->height)) { /* a new root above */
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
        while (!root->used && !fits(key, index->height)); /* empty so far: as high as it must be, at once */
    }
    way[index->height] = index->root;
    for (unsigned level = index->height; level > 1; level--) {
        unsigned slot = slot_of(key, level);
        if (!way[level]->slots[slot]) {
            way[level]->slots[slot] = calloc(1, sizeof *way[level]);
            if (!way[level]->slots[slot]) {
                prune(index, way, key, level);
                return false;
            }
            way[level]->used |= 1u << slot;
        }
        way[level - 1] = way[level]->slots[slot];
    }
    assert(!way[1]->slots[slot_of(key, 1)]);
    way[1]->slots[slot_of(key, 1)] = value;
    way[1]->used |= 1u << slot_of(key, 1);
    index->used++;
    return true;
}

void *index_remove(struct index *index, uint64_t number)
{
    struct index_node *way[MAX_HEIGHT + 2] = {NULL};
    uint64_t key = number - index->base;
    void *value;

    if (number < index->base || index->height == 0 || !fits(key, index->height))
        return NULL;
    way[index->height] = index->root;
    for (unsigned level = index->height; level > 1; level--)
        if (!(way[level - 1] = way[level]->slots[slot_of(key, level)]))
            return NULL;
    value = way[1]->slots[slot_of(key, 1)];
    if (!value)
        return NULL;
    way[1]->slots[slot_of(key, 1)] = NULL;
    way[1]->used &= ~(1u << slot_of(key, 1));
    index->used--;
    prune(index, way, key, 1);
    return value;
}

void *index_next(const struct index *index, uint64_t from, uint64_t *number_p)
{
    struct index_node *way[MAX_HEIGHT + 2] = {NULL};
    uint64_t key = from > index->base ? from - index->base : 0;
    unsigned level = index->height;

    if (level == 0 || !fits(key, level))
        return NULL;
    way[level] = index->root;
    for (;;) {
        unsigned slot = slot_of(key, level);
        uint32_t left = way[level]->used & (UINT32_MAX << slot);
        if (!left) { /* nothing here any more: on to the next slot above */
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
        if ((unsigned)__builtin_ctz(left) != slot) { /* a later subtree: from its first */
            key &= ~(((uint64_t)FAN << (BITS * (level - 1))) - 1);
            key |= (uint64_t)(unsigned)__builtin_ctz(left) << (BITS * (level - 1));
            slot = (unsigned)__builtin_ctz(left);
        }
        if (level == 1) {
            *number_p = index->base + key;
            return way[1]->slots[slot];
        }
        way[level - 1] = way[level]->slots[slot];
        level--;
    }
}
