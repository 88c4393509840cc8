/* SPDX-License-Identifier: Apache-2.0 */
/* Deltas between two versions of a tensor. Nothing here knows sessions or objects. */
#include "rdt_delta.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "deltas are little-endian, and are not swapped"
#endif

struct header {
    char magic[8];
    uint32_t version, elem_bytes;
    uint64_t elems, changed, gap_bytes, hash;
};
_Static_assert(sizeof(struct header) == 48, "rdt_delta.h says so");

#define MAGIC "rdtdelta"
#define VERSION 1
enum { GAP_U16 = 254, GAP_U64 = 255 };

static bool elem_bytes_ok(size_t bytes)
{
    return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

/* Where the values begin in a delta with so many bytes of gaps. */
static uint64_t values_at(uint64_t gap_bytes)
{
    return (sizeof(struct header) + gap_bytes + 7) & ~(uint64_t)7;
}

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
    size_t gap_bytes = gap < GAP_U16 ? 1 : gap <= UINT16_MAX ? 3 : 9;

    if (w->back - w->front < gap_bytes + elem_bytes)
        return false;
    w->out[w->front++] = gap_bytes == 1 ? (uint8_t)gap : gap_bytes == 3 ? GAP_U16 : GAP_U64;
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
    struct header header = {.version = VERSION, .elem_bytes = (uint32_t)elem_bytes, .elems = elems};
    struct writer w = {.out = out, .front = sizeof header, .back = out_bytes & ~(size_t)7};
    size_t bytes = elems * elem_bytes, end;

    if (!elem_bytes_ok(elem_bytes))
        return rdt_error_set(err, RDT_INVALID, "the elements of a delta have 1, 2, 4 or 8 bytes, not %zu", elem_bytes);
    if (w.back < sizeof header + 8)
        return rdt_error_set(err, RDT_LIMIT, "a delta has at least %zu bytes, and there is room for %zu", sizeof header + 8,
                             out_bytes);
    end = w.back;
    w.back -= 8; /* room to align the values */
    if (!write_changes(&w, old, new, bytes, elem_bytes))
        return rdt_error_set(err, RDT_LIMIT, "the delta is longer than %zu bytes", out_bytes);
    memcpy(header.magic, MAGIC, sizeof header.magic);
    header.changed = w.changed;
    header.gap_bytes = w.front - sizeof header;
    header.hash = XXH3_64bits(new, bytes);
    memmove(w.out + values_at(header.gap_bytes), w.out + w.back, end - 8 - w.back);
    memset(w.out + w.front, 0, values_at(header.gap_bytes) - w.front); /* now, because the first value may have lain there */
    reverse_values(w.out + values_at(header.gap_bytes), w.changed, elem_bytes);
    memcpy(w.out, &header, sizeof header);
    *used_p = values_at(header.gap_bytes) + w.changed * elem_bytes;
    return RDT_OK;
}

/* ---- applying ---- */

struct reader {
    const uint8_t *at, *end;
};

static bool read_gap(struct reader *r, uint64_t *gap_p)
{
    size_t more;

    if (r->at == r->end)
        return false;
    *gap_p = *r->at++;
    more = *gap_p == GAP_U16 ? 2 : *gap_p == GAP_U64 ? 8 : 0;
    if ((size_t)(r->end - r->at) < more)
        return false;
    if (more) {
        *gap_p = 0;
        memcpy(gap_p, r->at, more);
        r->at += more;
    }
    return true;
}

/* True if the gaps name as many elements as the header says, all of them in the tensor. */
static bool gaps_fit(const struct header *header, struct reader gaps)
{
    uint64_t next = 0, gap;

    for (uint64_t i = 0; i < header->changed; i++) {
        if (!read_gap(&gaps, &gap) || gap >= header->elems - next)
            return false;
        next += gap + 1;
    }
    return gaps.at == gaps.end;
}

/* False if the gaps leave the tensor: the delta lies in memory that its publisher can write, and has changed since gaps_fit. */
static bool apply(uint8_t *target, const struct header *header, struct reader gaps, const uint8_t *values)
{
    size_t elem_bytes = header->elem_bytes;
    uint64_t next = 0, gap = 0;

    for (uint64_t i = 0; i < header->changed; i++) {
        if (!read_gap(&gaps, &gap) || gap >= header->elems - next)
            return false;
        next += gap;
        memcpy(target + next * elem_bytes, values + i * elem_bytes, elem_bytes);
        next++;
    }
    return true;
}

enum rdt_status rdt_delta_apply(void *target, size_t elems, size_t elem_bytes, const void *delta, size_t delta_bytes,
                                struct rdt_error *err)
{
    const uint8_t *bytes = delta;
    struct header header;
    struct reader gaps;

    if (delta_bytes < sizeof header)
        return rdt_error_set(err, RDT_INVALID, "a delta has at least %zu bytes, and this one has %zu", sizeof header,
                             delta_bytes);
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.magic, MAGIC, sizeof header.magic) != 0)
        return rdt_error_set(err, RDT_INVALID, "these bytes are not a delta");
    if (header.version != VERSION)
        return rdt_error_set(err, RDT_INVALID, "the delta has version %u, and this librdt reads version %d", header.version,
                             VERSION);
    if (header.elems != elems || header.elem_bytes != elem_bytes || !elem_bytes_ok(elem_bytes))
        return rdt_error_set(err, RDT_INVALID, "the delta is for %llu elements of %u bytes, and the tensor has %zu of %zu",
                             (unsigned long long)header.elems, header.elem_bytes, elems, elem_bytes);
    if (header.changed > elems || header.gap_bytes > delta_bytes || values_at(header.gap_bytes) > delta_bytes ||
        header.changed > (delta_bytes - values_at(header.gap_bytes)) / elem_bytes ||
        values_at(header.gap_bytes) + header.changed * elem_bytes != delta_bytes)
        return rdt_error_set(err, RDT_INVALID, "the delta has %zu bytes, which is not what its header says", delta_bytes);
    gaps = (struct reader){bytes + sizeof header, bytes + sizeof header + header.gap_bytes};
    if (!gaps_fit(&header, gaps))
        return rdt_error_set(err, RDT_INVALID, "the delta names elements that the tensor does not have");
    if (!apply(target, &header, gaps, bytes + values_at(header.gap_bytes)))
        return rdt_error_set(err, RDT_MISMATCH, "the delta has changed while it was applied");
    if (XXH3_64bits(target, elems * elem_bytes) != header.hash)
        return rdt_error_set(err, RDT_MISMATCH, "the tensor did not hold the version that the delta begins with");
    return RDT_OK;
}
