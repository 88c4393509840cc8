/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors as columns. This is the only place where the wire's layout is converted to and from
 * struct layout; every product and sum is checked.
 *
 * The columns have the wire's types, so that sending a list copies nothing. Offsets are bytes from the
 * start of the region that region[i] names, an index into the list of regions beside the layout.
 *
 * Thousands of tensors are often alike and lie one behind the other. Such a list is sent in runs, as a few
 * rows, to receivers that understand runs; in memory each tensor has its own entry in every column. */
#ifndef PROTO_LAYOUT_H
#define PROTO_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt.pb-c.h"
#include "rdt_dtype.h"
#include "rdt_status.h"

#define LAYOUT_ALIGN_BYTES 64u /* alignment of the tensors of a packed layout */
#define LAYOUT_ROWS 64u        /* a list that needs more rows is sent tensor by tensor */
#define LAYOUT_ROW_DIMS 256u
#define LAYOUT_RUNS_LEAST 16u /* shorter lists are never sent in runs */

struct layout {
    uint32_t count;      /* tensors */
    uint32_t n_dims;     /* sum of ndim */
    uint32_t *dtype;     /* [count], enum rdt_dtype */
    uint32_t *ndim;      /* [count] */
    uint32_t *first_dim; /* [count], index of tensor i's first dimension in shape and strides */
    uint32_t *region;    /* [count] */
    uint64_t *offset;    /* [count], bytes to element [0, 0, ...] */
    uint64_t *shape;     /* [n_dims], elements */
    int64_t *strides;    /* [n_dims], elements */
};                       /* one allocation, released by free() */

/* Converts and checks a list (NULL: no tensors). The caller frees *layout_p. INVALID names the tensor and
 * its fault: unknown dtype, ndim above RDT_MAX_NDIM, columns of the wrong length, a number of elements or
 * an extent above 2^63. LIMIT: too many tensors; nothing has been allocated for them. Regions are not
 * known here: check extents with layout_extent. */
enum rdt_status layout_from_wire(const Rdt__Pb__TensorList *list, struct layout **layout_p, struct rdt_error *err);

/* The number of tensors for which the list's runs stand; 0 if it has no runs. Checks nothing. */
uint64_t layout_run_tensors(const Rdt__Pb__TensorList *list);

struct layout_rows { /* room for the columns of a list in runs */
    uint32_t dtype[LAYOUT_ROWS], ndim[LAYOUT_ROWS], region[LAYOUT_ROWS], run[LAYOUT_ROWS];
    uint64_t offset[LAYOUT_ROWS], step[LAYOUT_ROWS], shape[LAYOUT_ROW_DIMS];
    int64_t strides[LAYOUT_ROW_DIMS];
};

/* Makes the message's columns point into the layout, which must outlive it. with_place false: without
 * region_index and offset. rows, if the receiver understands runs: uninitialised memory of the caller that
 * outlives the message; the list is sent in runs if that makes it much shorter. NULL: tensor by tensor. */
void layout_to_wire(const struct layout *layout, bool with_place, struct layout_rows *rows, Rdt__Pb__TensorList *list_p);

/* An uninitialised layout of that size, which the caller frees; NULL: out of memory. */
struct layout *layout_create(uint32_t count, uint32_t n_dims);
struct layout *layout_dup(const struct layout *layout);

static inline size_t layout_heap_bytes(const struct layout *layout) /* size of the allocation */
{
    return sizeof *layout + (size_t)layout->count * (sizeof(uint64_t) + 4 * sizeof(uint32_t)) +
           (size_t)layout->n_dims * (sizeof(uint64_t) + sizeof(int64_t));
}

/* The same as rdt_dtype_bytes, inline for lists of thousands of tensors. */
static inline uint64_t layout_item_bytes(uint32_t dtype)
{
    static const uint8_t sizes[] = {
#define X(number, name, bytes, text, safetensors) [number] = (bytes),
        RDT_DTYPE_MAP(X)
#undef X
    };

    return dtype < sizeof sizes ? sizes[dtype] : 0;
}

/* The number of elements; the bytes of all elements when packed. */
static inline uint64_t layout_elems(const struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    uint64_t elems = 1;

    for (uint32_t d = 0; d < layout->ndim[i]; d++)
        elems *= shape[d];
    return elems;
}

static inline uint64_t layout_bytes(const struct layout *layout, uint32_t i)
{
    return layout_elems(layout, i) * layout_item_bytes(layout->dtype[i]);
}

uint64_t layout_total_bytes(const struct layout *layout);

/* The bytes that tensor i covers: [*lo_p, *hi_p) from the region's start; lo == hi if it has no elements.
 * INVALID: it begins before the region, or ends above 2^63. */
enum rdt_status layout_extent(const struct layout *layout, uint32_t i, uint64_t *lo_p, uint64_t *hi_p, struct rdt_error *err);

/* Whether the tensor is row-major without holes. Strides of dimensions of size 1 do not matter; a tensor
 * without elements is contiguous. */
bool layout_is_contiguous(const struct layout *layout, uint32_t i);

/* Gives tensor i row-major strides. */
void layout_set_row_major(struct layout *layout, uint32_t i);

/* Returns the view that the slice describes (NULL: everything), over the same memory. The caller frees
 * *layout_p. INVALID names the tensor and dimension. */
enum rdt_status layout_slice(const struct layout *layout, const Rdt__Pb__Slice *slice, struct layout **layout_p,
                             struct rdt_error *err);

/* Returns the layout of the same tensors packed into one region (index 0): row-major, in order, each at a
 * multiple of LAYOUT_ALIGN_BYTES. *bytes_p is the end of the last one. This is also the byte stream of a
 * transfer. The caller frees *layout_p. */
enum rdt_status layout_packed(const struct layout *layout, struct layout **layout_p, uint64_t *bytes_p, struct rdt_error *err);
/* only the size */
enum rdt_status layout_packed_bytes(const struct layout *layout, uint64_t *bytes_p, struct rdt_error *err);

/* MISMATCH, with the first tensor that differs, unless both have the same count, dtypes and shapes. */
enum rdt_status layout_same_shape(const struct layout *object, const struct layout *target, struct rdt_error *err);

/* Copies bytes [from, from + bytes) of tensor i's packed row-major stream out of the tensor (gather) or
 * into it (scatter). base is the start of its region. The caller has checked the extents. Any strides are
 * allowed. */
void layout_gather(const struct layout *layout, uint32_t i, const void *base, uint64_t from, uint64_t bytes, void *packed_p);
void layout_scatter(const struct layout *layout, uint32_t i, void *base, uint64_t from, uint64_t bytes, const void *packed);

/* Describes the same bytes as runs in memory, for callers that copy them in another way: on_runs gets
 * `runs` runs of run_bytes each, the first at byte `place` of the region, each step_bytes after the one
 * before; in the packed stream they are adjacent. Stops and returns false when on_runs returns false. */
typedef bool (*layout_on_runs)(void *arg, uint64_t place, int64_t step_bytes, uint64_t run_bytes, uint64_t runs);
bool layout_runs(const struct layout *layout, uint32_t i, uint64_t from, uint64_t bytes, layout_on_runs on_runs, void *arg);

/* Returns the tensors that indices[n] name, in ascending order, as a layout of its own over the same
 * memory. The caller frees *layout_p. INVALID: no such tensor, or not ascending. */
enum rdt_status layout_select(const struct layout *layout, const uint32_t *indices, size_t n, struct layout **layout_p,
                              struct rdt_error *err);

/* ---- decoding with a cap ---- */

/* A protobuf-c allocator with a cap, so that the memory for a message is bounded before the message is
 * trusted. An arena serves one message; arena_fini frees everything at once. */
struct arena {
    ProtobufCAllocator allocator; /* pass &arena.allocator to X__unpack */
    struct arena_block *blocks;
    struct arena_block *given;  /* the caller's buffer, among the blocks; NULL: none */
    bool over, short_of_memory; /* why the last allocation failed */
    size_t used_bytes, max_bytes;
    void (*on_block)(void *memory, size_t bytes); /* called before new memory is written; NULL: no call */
};
void arena_init(struct arena *arena, size_t max_bytes);
/* Uses the caller's buffer before it allocates, so that small messages need no allocation. The buffer is
 * aligned for any type and outlives the arena. */
void arena_init_with(struct arena *arena, size_t max_bytes, void *buffer, size_t bytes);

/* Each of these returns NULL above the cap, or out of memory. arena_text copies at most so many bytes of a text. arena_message
 * creates an initialised message, and arena_messages a list of n pointers to such messages. */
void *arena_alloc(struct arena *arena, size_t bytes);
char *arena_text(struct arena *arena, const char *text, size_t most_bytes);
void *arena_message(struct arena *arena, const ProtobufCMessageDescriptor *type);
void *arena_messages(struct arena *arena, const ProtobufCMessageDescriptor *type, size_t n);

/* Decodes a message, which is valid until arena_fini. `what` names it in errors. PROTOCOL: the payload is
 * not such a message; LIMIT: it would exceed the cap; NO_MEMORY. */
enum rdt_status arena_unpack(struct arena *arena, const ProtobufCMessageDescriptor *type, const void *payload, size_t bytes,
                             const char *what, ProtobufCMessage **message_p, struct rdt_error *err);
void arena_fini(struct arena *arena);

/* ---- checksums ----
 *
 * Checksums of tensors and of whole objects, which show that bytes have changed by accident: on a disk, in memory, on another
 * node. They protect from no attacker, who could compute them as well.
 *
 * The checksum of a tensor is the XXH3 hash (64 bits) of its elements, row-major without gaps. That of an object is the same
 * hash of its metadata's hash and of dtype, shape and checksum of each tensor in order, as 64-bit little-endian numbers. So it
 * does not depend on strides, on where the tensors lie, or on how they came there. 0 stands for "no checksum", and no
 * checksum is 0.
 *
 * Any thread may call these functions. */
/* The checksum of bytes that come one after another. */
struct byte_sum;
struct byte_sum *byte_sum_create(void); /* NULL: no memory */
void byte_sum_destroy(struct byte_sum *sum);
void byte_sum_add(struct byte_sum *sum, const void *data, size_t bytes);
uint64_t byte_sum_end(struct byte_sum *sum); /* returns the checksum, and begins again */

#if defined __x86_64__ && !defined __clang__ /* which has no pragma for it */
#define LAYOUT_SUM_AVX2
void byte_sum_add_avx2(struct byte_sum *sum, const void *data, size_t bytes); /* byte_sum_add, on processors with AVX2 */
#endif

/* The checksum of an object from those of its tensors, sums [layout->count]. Its metadata is without boxes. */
uint64_t tensor_sum_object(const struct layout *layout, const uint64_t *sums, const void *metadata, size_t metadata_bytes);

/* The checksum of tensors in memory, computed in steps. */
struct tensor_sums {
    const struct layout *layout; /* borrowed */
    const uint8_t *const *bases; /* by the layout's region indices; borrowed */
    uint64_t *sums;              /* [layout->count] */
    struct byte_sum *sum;        /* of the tensor `at` */
    uint8_t *buffer;             /* for tensors with holes */
    uint32_t at;
    uint64_t from; /* byte of its packed form */
};

/* false: no memory. The caller calls tensor_sums_fini in either case. */
bool tensor_sums_init(struct tensor_sums *sums, const struct layout *layout, const uint8_t *const *bases);
void tensor_sums_fini(struct tensor_sums *sums);

/* Reads about `bytes` more bytes. Returns false when all have been read: sums->sums is complete. */
bool tensor_sums_step(struct tensor_sums *sums, uint64_t bytes);

/* The same for a packed layout (layout_packed) whose region has been written up to `end`. Returns false when nothing more can
 * be read for now. */
bool tensor_sums_step_to(struct tensor_sums *sums, uint64_t bytes, uint64_t end);

#endif
