/* SPDX-License-Identifier: Apache-2.0 */
/* Deltas between two versions of a tensor. Nothing here knows sessions or objects. */
#include "rdt_delta.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/delta.h"
#include "proto/wire_ref.h"

/* ---- encoding ---- */

/* The gaps grow from the front of the output, and the values from its end; the values are moved to the gaps at last. */
struct writer {
    uint8_t *out;
    size_t front, back; /* between them is room */
    uint64_t changed;
    size_t next; /* the element after the last changed one */
};

static bool write_change(struct writer *w, size_t elem, const uint8_t *value, size_t elem_bytes)
{
    uint64_t gap = elem - w->next;
    size_t gap_bytes = gap < DELTA_GAP_U16 ? 1 : gap <= UINT16_MAX ? 3 : 9;

    if (w->back - w->front < gap_bytes + elem_bytes)
        return false;
    w->out[w->front++] = gap_bytes == 1 ? (uint8_t)gap : gap_bytes == 3 ? DELTA_GAP_U16 : DELTA_GAP_U64;
    if (gap_bytes > 1) {
        memcpy(w->out + w->front, &gap, gap_bytes - 1);
        w->front += gap_bytes - 1;
    }
    w->back -= elem_bytes;
    memcpy(w->out + w->back, value, elem_bytes);
    w->changed++;
    w->next = elem + 1;
    return true;
}

/* Writes the changes. Words of eight bytes are compared, because nearly all of them are equal. */
static bool write_changes(struct writer *w, const uint8_t *base, const uint8_t *next, size_t bytes, size_t elem_bytes)
{
    const uint64_t element = elem_bytes == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * elem_bytes) - 1;
    size_t at = 0;

    for (; bytes - at >= 8; at += 8) {
        uint64_t old, new;

        memcpy(&old, base + at, 8);
        memcpy(&new, next + at, 8);
        for (uint64_t differ = old ^ new; differ;) {
            size_t byte = (size_t)__builtin_ctzll(differ) / 8 & ~(elem_bytes - 1); /* where the changed element begins */

            if (!write_change(w, (at + byte) / elem_bytes, next + at + byte, elem_bytes))
                return false;
            differ &= ~(element << 8 * byte);
        }
    }
    for (; at < bytes; at += elem_bytes)
        if (memcmp(base + at, next + at, elem_bytes) != 0 && !write_change(w, at / elem_bytes, next + at, elem_bytes))
            return false;
    return true;
}

/* The values lie in reverse order in out [back, end): turns them round. */
static void reverse_values(uint8_t *values, uint64_t count, size_t elem_bytes)
{
    uint8_t held[8];

    for (uint64_t i = 0, j = count; i + 1 < j; i++) {
        j--;
        memcpy(held, values + i * elem_bytes, elem_bytes);
        memcpy(values + i * elem_bytes, values + j * elem_bytes, elem_bytes);
        memcpy(values + j * elem_bytes, held, elem_bytes);
    }
}

enum rdt_status rdt_delta_encode(const void *base, const void *next, size_t elems, size_t elem_bytes, void *out,
                                 size_t out_bytes, size_t *used_p, struct rdt_error *err)
{
    const uint8_t *old = base, *new = next;
    struct delta_header header = {.version = DELTA_VERSION, .elem_bytes = (uint32_t)elem_bytes, .elems = elems};
    struct writer w = {.out = out, .front = sizeof header, .back = out_bytes & ~(size_t)7};
    size_t bytes = elems * elem_bytes, end;

    if (!out || !used_p)
        return rdt_error_set(err, RDT_INVALID, "%s is NULL, so there is no place for the result", out ? "used_p" : "out");
    if (!delta_elem_bytes_ok(elem_bytes))
        return rdt_error_set(err, RDT_INVALID, "the elements of a delta have 1, 2, 4 or 8 bytes, not %zu", elem_bytes);
    if (w.back < sizeof header + 8)
        return rdt_error_set(err, RDT_LIMIT, "a delta has at least %zu bytes, and there is room for %zu", sizeof header + 8,
                             out_bytes);
    end = w.back;
    w.back -= 8; /* room to align the values */
    if (!write_changes(&w, old, new, bytes, elem_bytes))
        return rdt_error_set(err, RDT_LIMIT, "the delta is longer than %zu bytes", out_bytes);
    memcpy(header.magic, DELTA_MAGIC, sizeof header.magic);
    header.changed = w.changed;
    header.gap_bytes = w.front - sizeof header;
    header.hash = XXH3_64bits(new, bytes);
    memmove(w.out + delta_values_at(header.gap_bytes), w.out + w.back, end - 8 - w.back);
    memset(w.out + w.front, 0,
           delta_values_at(header.gap_bytes) - w.front); /* now, because the first value may have lain there */
    reverse_values(w.out + delta_values_at(header.gap_bytes), w.changed, elem_bytes);
    memcpy(w.out, &header, sizeof header);
    *used_p = delta_values_at(header.gap_bytes) + w.changed * elem_bytes;
    return RDT_OK;
}

/* ---- applying ---- */

enum rdt_status rdt_delta_apply(void *target, size_t elems, size_t elem_bytes, const void *delta, size_t delta_bytes,
                                struct rdt_error *err)
{
    struct delta open;
    enum rdt_status status = delta_open(delta, delta_bytes, elems, elem_bytes, &open, err);

    if (status == RDT_OK && open.bytes != delta_bytes)
        status = rdt_error_set(err, RDT_INVALID, "the delta has %zu bytes, which is not what its header says", delta_bytes);
    if (status == RDT_OK && !delta_fits(&open))
        status = rdt_error_set(err, RDT_INVALID, "the delta names elements that the tensor does not have");
    if (status != RDT_OK)
        return status;
    if (delta_apply_some(&open, target, UINT64_MAX) != RDT_OK)
        return rdt_error_set(err, RDT_MISMATCH, "the delta has changed while it was applied");
    if (XXH3_64bits(target, elems * elem_bytes) != open.header.hash)
        return rdt_error_set(err, RDT_MISMATCH, "the tensor did not hold the version that the delta begins with");
    return RDT_OK;
}

/* ---- the note for other nodes ---- */

enum rdt_status rdt_delta_note(const struct rdt_ref *base, const struct rdt_ref *delta, void *out, size_t out_bytes,
                               size_t *used_p, struct rdt_error *err)
{
    Rdt__Pb__Delta note = RDT__PB__DELTA__INIT;
    Rdt__Pb__Ref refs[2];
    size_t bytes;

    if (!out || !used_p)
        return rdt_error_set(err, RDT_INVALID, "%s is NULL, so there is no place for the result", out ? "used_p" : "out");
    if (!base || !delta || base->is_name || delta->is_name || base->generation == 0 || delta->generation == 0)
        return rdt_error_set(err, RDT_INVALID, "a delta's note names two objects, by refs that a put has returned");
    wire_ref_from(base, &refs[0]);
    wire_ref_from(delta, &refs[1]);
    note.from = &refs[0];
    note.changes = &refs[1];
    bytes = DELTA_NOTE_BYTES + protobuf_c_message_get_packed_size(&note.base);
    if (bytes > out_bytes)
        return rdt_error_set(err, RDT_LIMIT, "the note has %zu bytes, and there is room for %zu", bytes, out_bytes);
    memcpy(out, DELTA_NOTE, DELTA_NOTE_BYTES);
    (void)protobuf_c_message_pack(&note.base, (uint8_t *)out + DELTA_NOTE_BYTES);
    *used_p = bytes;
    return RDT_OK;
}
