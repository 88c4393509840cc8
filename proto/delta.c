/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/delta.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "deltas are little-endian, and are not swapped"
#endif

bool delta_elem_bytes_ok(size_t bytes)
{
    return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

uint64_t delta_values_at(uint64_t gap_bytes)
{
    return (sizeof(struct delta_header) + gap_bytes + 7) & ~(uint64_t)7;
}

enum rdt_status delta_open(const void *bytes, size_t most, uint64_t elems, size_t elem_bytes, struct delta *delta_p,
                           struct rdt_error *err)
{
    struct delta_header header;
    uint64_t values_at;

    if (most < sizeof header)
        return rdt_error_set(err, RDT_INVALID, "a delta has at least %zu bytes, and this one has %zu", sizeof header, most);
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.magic, DELTA_MAGIC, sizeof header.magic) != 0)
        return rdt_error_set(err, RDT_INVALID, "these bytes are not a delta");
    if (header.version != DELTA_VERSION)
        return rdt_error_set(err, RDT_INVALID, "the delta has version %u, and this release reads version %u", header.version,
                             DELTA_VERSION);
    if (header.elems != elems || header.elem_bytes != elem_bytes || !delta_elem_bytes_ok(elem_bytes))
        return rdt_error_set(err, RDT_INVALID, "the delta is for %llu elements of %u bytes, and the tensor has %llu of %zu",
                             (unsigned long long)header.elems, header.elem_bytes, (unsigned long long)elems, elem_bytes);
    values_at = header.gap_bytes <= most ? delta_values_at(header.gap_bytes) : UINT64_MAX;
    if (header.changed > elems || values_at > most || header.changed > (most - values_at) / elem_bytes)
        return rdt_error_set(err, RDT_INVALID, "the delta has %zu bytes, which is not what its header says", most);
    *delta_p = (struct delta){.header = header,
                              .bytes = values_at + header.changed * elem_bytes,
                              .at = (const uint8_t *)bytes + sizeof header,
                              .gap_end = (const uint8_t *)bytes + sizeof header + header.gap_bytes,
                              .values = (const uint8_t *)bytes + values_at};
    return RDT_OK;
}

static bool read_gap(struct delta *delta, uint64_t *gap_p)
{
    size_t more;

    if (delta->at == delta->gap_end)
        return false;
    *gap_p = *delta->at++;
    more = *gap_p == DELTA_GAP_U16 ? 2 : *gap_p == DELTA_GAP_U64 ? 8 : 0;
    if ((size_t)(delta->gap_end - delta->at) < more)
        return false;
    if (more) {
        *gap_p = 0;
        memcpy(gap_p, delta->at, more);
        delta->at += more;
    }
    return true;
}

bool delta_fits(const struct delta *delta)
{
    struct delta walk = *delta;
    uint64_t gap;

    for (; walk.done < walk.header.changed; walk.done++) {
        if (!read_gap(&walk, &gap) || gap >= walk.header.elems - walk.next)
            return false;
        walk.next += gap + 1;
    }
    return walk.at == walk.gap_end;
}

enum rdt_status delta_apply_some(struct delta *delta, void *target, uint64_t most)
{
    size_t elem_bytes = delta->header.elem_bytes;
    uint64_t left = delta->header.changed - delta->done, gap;

    for (uint64_t n = left < most ? left : most; n > 0; n--) {
        if (!read_gap(delta, &gap) || gap >= delta->header.elems - delta->next)
            return RDT_INVALID;
        delta->next += gap;
        memcpy((uint8_t *)target + delta->next * elem_bytes, delta->values, elem_bytes);
        delta->values += elem_bytes;
        delta->next++;
        delta->done++;
    }
    return delta->done < delta->header.changed ? RDT_AGAIN : delta->at == delta->gap_end ? RDT_OK : RDT_INVALID;
}
