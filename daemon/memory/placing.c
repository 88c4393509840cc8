/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/placing.h"

#include <stdlib.h>

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* Returns the index of the place of a device, new or old; PLACING_MAX: there are too many. */
static uint32_t place_of(struct placing *placing, struct memory_device *device)
{
    uint32_t i = 0;

    while (i < placing->n && placing->at[i].device != device)
        i++;
    if (i == placing->n && i < PLACING_MAX) {
        placing->at[i].device = device;
        placing->at[i].bytes = 0;
        placing->at[i].gaps.n = 0;
        placing->n++;
    }
    return i;
}

bool placing_add(struct placing *placing, struct memory_device *device, uint64_t bytes, uint32_t *region_p, uint64_t *offset_p)
{
    uint32_t place = place_of(placing, device);

    if (place == PLACING_MAX)
        return false;
    *region_p = place;
    *offset_p = align_up(placing->at[place].bytes);
    gaps_add(&placing->at[place].gaps, placing->at[place].bytes, *offset_p);
    placing->at[place].bytes = *offset_p + bytes;
    return true;
}

enum rdt_status placing_make(const struct layout *source, struct memory_device *const *to, struct placing *placing,
                             struct layout **layout_p, struct rdt_error *err)
{
    struct layout *layout;
    uint64_t ignored;
    enum rdt_status status = layout_packed(source, &layout, &ignored, err);

    if (status != RDT_OK)
        return status;
    placing->n = 0;
    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t bytes = layout_bytes(layout, i);

        layout->region[i] = 0;
        layout->offset[i] = 0;
        if (bytes > 0 && !placing_add(placing, to[i], bytes, &layout->region[i], &layout->offset[i])) {
            free(layout);
            return rdt_error_set(err, RDT_LIMIT, "the tensors would lie on more than %u devices", PLACING_MAX);
        }
    }
    *layout_p = layout;
    return RDT_OK;
}
