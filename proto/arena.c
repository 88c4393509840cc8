/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of decoded messages: blocks that are all freed at once. The cap counts whole blocks, so it
 * bounds what the process really uses, padding and headers included. */
#include "layout.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BLOCK_BYTES ((size_t)4 << 10)
#define MOST_BLOCK_BYTES ((size_t)256 << 10)

struct arena_block {
    struct arena_block *next;
    size_t size, used; /* bytes, this header included */
    _Alignas(max_align_t) uint8_t first_byte[];
};

static void *allocate(void *data, size_t bytes)
{
    return arena_alloc(data, bytes);
}

static void free_nothing(void *data, void *pointer)
{
    (void)data;
    (void)pointer;
}

void arena_init(struct arena *arena, size_t max_bytes)
{
    arena->allocator.alloc = allocate;
    arena->allocator.free = free_nothing;
    arena->allocator.allocator_data = arena;
    arena->blocks = arena->given = NULL;
    arena->used_bytes = 0;
    arena->max_bytes = max_bytes;
    arena->over = arena->short_of_memory = false;
    arena->on_block = NULL;
}

void arena_init_with(struct arena *arena, size_t max_bytes, void *buffer, size_t bytes)
{
    arena_init(arena, max_bytes);
    arena->blocks = arena->given = buffer;
    *arena->given = (struct arena_block){.size = bytes, .used = sizeof *arena->given};
}

/* Adds a block with room for `need` bytes, and more as far as the usual block size and the cap allow. */
static struct arena_block *add_block(struct arena *arena, size_t need)
{
    size_t left = arena->max_bytes - arena->used_bytes;
    size_t size = arena->used_bytes > 0 ? 2 * arena->blocks->size : FIRST_BLOCK_BYTES;
    struct arena_block *block;

    if (left < sizeof *block || need > left - sizeof *block) {
        arena->over = true;
        return NULL;
    }
    if (size > MOST_BLOCK_BYTES)
        size = MOST_BLOCK_BYTES;
    if (size > left)
        size = left;
    if (size < sizeof *block + need)
        size = sizeof *block + need;
    block = malloc(size);
    if (!block) {
        arena->short_of_memory = true;
        return NULL;
    }
    if (arena->on_block)
        arena->on_block(block, size);
    block->size = size;
    block->used = sizeof *block;
    arena->used_bytes += size;

    /* The block with the most free room stays in front, so that a large request does not waste the rest of
     * a new block. */
    if (arena->blocks && size - block->used - need < arena->blocks->size - arena->blocks->used) {
        block->next = arena->blocks->next;
        arena->blocks->next = block;
    } else {
        block->next = arena->blocks;
        arena->blocks = block;
    }
    return block;
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    struct arena_block *block = arena->blocks;
    void *result;

    if (bytes > arena->max_bytes) {
        arena->over = true;
        return NULL;
    }
    /* an empty allocation still has an address of its own, aligned for any type */
    if (bytes == 0)
        bytes = 1;
    if (bytes > SIZE_MAX - _Alignof(max_align_t))
        return NULL;
    bytes = (bytes + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t);

    if (!block || block->size - block->used < bytes) {
        block = add_block(arena, bytes);
        if (!block)
            return NULL;
    }
    result = (uint8_t *)block + block->used;
    block->used += bytes;
    return result;
}

char *arena_text(struct arena *arena, const char *text, size_t most_bytes)
{
    size_t bytes = strnlen(text, most_bytes);
    char *copy = arena_alloc(arena, bytes + 1);

    if (copy) {
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}

void *arena_message(struct arena *arena, const ProtobufCMessageDescriptor *type)
{
    void *message = arena_alloc(arena, type->sizeof_message);

    if (message)
        protobuf_c_message_init(type, message);
    return message;
}

void *arena_messages(struct arena *arena, const ProtobufCMessageDescriptor *type, size_t n)
{
    void **list = arena_alloc(arena, n * sizeof *list);
    char *messages = arena_alloc(arena, n * type->sizeof_message);

    if (!list || !messages)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        list[i] = messages + i * type->sizeof_message;
        protobuf_c_message_init(type, list[i]);
    }
    return list;
}

void arena_fini(struct arena *arena)
{
    while (arena->blocks) {
        struct arena_block *next = arena->blocks->next;

        if (arena->blocks != arena->given)
            free(arena->blocks);
        arena->blocks = next;
    }
    arena->used_bytes = 0;
}

enum rdt_status arena_unpack(struct arena *arena, const ProtobufCMessageDescriptor *type, const void *payload, size_t bytes,
                             const char *what, ProtobufCMessage **message_p, struct rdt_error *err)
{
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &arena->allocator, bytes, payload);

    if (message)
        *message_p = message;
    else if (arena->over)
        return rdt_error_set(err, RDT_LIMIT, "%s takes more than %zu bytes when it is decoded", what, arena->max_bytes);
    else if (arena->short_of_memory)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to decode %s", what);
    else
        return rdt_error_set(err, RDT_PROTOCOL, "%s cannot be decoded: it is not a message of its type", what);
    return RDT_OK;
}
