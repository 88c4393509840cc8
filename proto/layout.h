/* Lists of tensors as columns: the only place where the wire's layout becomes ours and back, every product and sum checked.
 *
 * The columns have the wire's own types, so that sending one copies nothing. Offsets are bytes from the start of the region
 * that region[i] names (an index into whatever list of regions stands beside the layout).
 *
 * Thousands of tensors are often alike, one behind the other. Such a list travels in runs, as a few rows, to who reads them; in memory each
 * tensor has its own place in every column.
 */
#ifndef PROTO_LAYOUT_H
#define PROTO_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt.pb-c.h"
#include "rdt_dtype.h"
#include "rdt_status.h"

#define LAYOUT_ALIGN_BYTES 64u /* where each tensor of a packed layout starts */
#define LAYOUT_ROWS 64u        /* a list that needs more goes tensor by tensor */
#define LAYOUT_ROW_DIMS 256u
#define LAYOUT_RUNS_LEAST 16u  /* tensors: below that a list is short anyway */

struct layout {
    uint32_t count;      /* tensors */
    uint32_t n_dims;     /* sum of ndim */
    uint32_t *dtype;     /* [count] enum rdt_dtype */
    uint32_t *ndim;      /* [count] */
    uint32_t *first_dim; /* [count] where tensor i's dimensions start in shape and strides */
    uint32_t *region;    /* [count] */
    uint64_t *offset;    /* [count] bytes: element [0, 0, ...] */
    uint64_t *shape;     /* [n_dims] elements */
    int64_t *strides;    /* [n_dims] elements */
};                       /* one allocation: free() ends it */

/* From the wire (list NULL: no tensors). RDT_INVALID names the tensor and what is wrong with it: unknown dtype, ndim above
 * RDT_MAX_NDIM, columns of the wrong length, an element count or byte extent that overflows 2^63. RDT_LIMIT: too many tensors, before
 * memory is taken for any. Does not know regions: check those with layout_extent. */
enum rdt_status layout_from_wire(const Rdt__Pb__TensorList *list, struct layout **layout_p, struct rdt_error *err);

/* Tensors that the list's runs stand for; 0: it is none of runs. Checks nothing. */
uint64_t layout_run_tensors(const Rdt__Pb__TensorList *list);

struct layout_rows { /* room for the columns of a list in runs */
    uint32_t dtype[LAYOUT_ROWS], ndim[LAYOUT_ROWS], region[LAYOUT_ROWS], run[LAYOUT_ROWS];
    uint64_t offset[LAYOUT_ROWS], step[LAYOUT_ROWS], shape[LAYOUT_ROW_DIMS];
    int64_t strides[LAYOUT_ROW_DIMS];
};

/* Points the message's columns into the layout (which must outlive it). with_place false: without region_index and offset. rows (the
 * caller's, uninitialised, outliving the message): the columns are there if that makes few of many; NULL: the reader knows no runs. */
void layout_to_wire(const struct layout *layout, bool with_place, struct layout_rows *rows, Rdt__Pb__TensorList *list_p);

/* An uninitialised one of the given size; NULL without memory. */
struct layout *layout_create(uint32_t count, uint32_t n_dims);
struct layout *layout_dup(const struct layout *layout);

static inline size_t layout_heap_bytes(const struct layout *layout) /* what one of its size takes */
{
    return sizeof *layout + (size_t)layout->count * (sizeof(uint64_t) + 4 * sizeof(uint32_t)) +
           (size_t)layout->n_dims * (sizeof(uint64_t) + sizeof(int64_t));
}

/* rdt_dtype_bytes, of which lists of thousands ask several times for each. */
static inline uint64_t layout_item_bytes(uint32_t dtype)
{
    static const uint8_t sizes[] = {
#define X(number, name, bytes, text, safetensors) [number] = (bytes),
        RDT_DTYPE_MAP(X)
#undef X
    };

    return dtype < sizeof sizes ? sizes[dtype] : 0;
}

/* Elements; bytes of all elements, packed. */
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

/* The bytes that tensor i touches: [*lo_p, *hi_p) from the region's start; lo == hi if it has no elements. RDT_INVALID: below
 * the region's start, or beyond 2^63. */
enum rdt_status layout_extent(const struct layout *layout, uint32_t i, uint64_t *lo_p, uint64_t *hi_p, struct rdt_error *err);

/* Row-major without holes (strides of dimensions of size 1 do not matter; a tensor without elements is). */
bool layout_is_contiguous(const struct layout *layout, uint32_t i);

/* Gives tensor i row-major strides. */
void layout_set_row_major(struct layout *layout, uint32_t i);

/* The view that the slice names (NULL: all): same places, smaller shapes. RDT_INVALID names tensor and dimension. */
enum rdt_status layout_slice(const struct layout *layout, const Rdt__Pb__Slice *slice, struct layout **layout_p,
                             struct rdt_error *err);

/* The same tensors, row-major in one region (index 0), in order, each starting at a multiple of LAYOUT_ALIGN_BYTES; *bytes_p is
 * where the last one ends. This is also the byte stream of a transfer. */
enum rdt_status layout_packed(const struct layout *layout, struct layout **layout_p, uint64_t *bytes_p, struct rdt_error *err);
enum rdt_status layout_packed_bytes(const struct layout *layout, uint64_t *bytes_p, struct rdt_error *err); /* that alone */

/* RDT_MISMATCH, naming the first tensor that differs, unless both have the same count, dtypes and shapes. */
enum rdt_status layout_same_shape(const struct layout *object, const struct layout *target, struct rdt_error *err);

/* Copies bytes [from, from + bytes) of tensor i's packed row-major stream out of the tensor whose region starts at base (gather),
 * or into it (scatter). The caller has checked extents. Tensor elements may have any strides. */
void layout_gather(const struct layout *layout, uint32_t i, const void *base, uint64_t from, uint64_t bytes, void *packed_p);
void layout_scatter(const struct layout *layout, uint32_t i, void *base, uint64_t from, uint64_t bytes, const void *packed);

/* The same bytes as runs in memory, for whoever copies them by other means: `runs` runs of run_bytes each, the first at byte `place` of the
 * region, each step_bytes after the one before; in the packed stream they follow one another. Ends early, with false, when on_runs says
 * false. */
typedef bool (*layout_on_runs)(void *arg, uint64_t place, int64_t step_bytes, uint64_t run_bytes, uint64_t runs);
bool layout_runs(const struct layout *layout, uint32_t i, uint64_t from, uint64_t bytes, layout_on_runs on_runs, void *arg);

/* The tensors that indices[n] name, ascending, as a layout of their own: same places. RDT_INVALID: no such tensor, or not ascending. */
enum rdt_status layout_select(const struct layout *layout, const uint32_t *indices, size_t n, struct layout **layout_p,
                              struct rdt_error *err);

/* ---- decoding with a cap ---- */

/* A protobuf-c allocator that gives up after max_bytes: what a message may cost is bounded before it is believed. One arena
 * serves one message; fini frees everything at once. */
struct arena {
    ProtobufCAllocator allocator; /* hand &arena.allocator to X__unpack */
    struct arena_block *blocks;
    struct arena_block *given;  /* the caller's buffer, among the blocks; NULL: none */
    bool over, short_of_memory; /* why the last one that failed did */
    size_t used_bytes, max_bytes;
    void (*on_block)(void *memory, size_t bytes); /* fresh memory is about to be written; NULL: nobody minds */
};
void arena_init(struct arena *arena, size_t max_bytes);
/* Takes from the buffer (the caller's, aligned for anything, outliving the arena) before it asks for memory: small messages need none. */
void arena_init_with(struct arena *arena, size_t max_bytes, void *buffer, size_t bytes);
void *arena_alloc(struct arena *arena, size_t bytes); /* NULL past the cap, or when memory is short */
/* A message, valid until arena_fini; `what` names it. PROTOCOL: no such message; LIMIT: it would take more than the cap; NO_MEMORY. */
enum rdt_status arena_unpack(struct arena *arena, const ProtobufCMessageDescriptor *type, const void *payload, size_t bytes,
                             const char *what, ProtobufCMessage **message_p, struct rdt_error *err);
void arena_fini(struct arena *arena);

#endif
