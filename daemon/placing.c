#include "daemon/placing.h"

#include <stdlib.h>

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* PLACING_MAX: there are too many. */
static uint32_t place_of(struct placing *placing, struct memory_device *device)
{
    uint32_t i = 0;

    while (i < placing->n && placing->at[i].device != device)
        i++;
    if (i == placing->n && i < PLACING_MAX) {
        placing->at[i].device = device;
        placing->at[i].bytes = 0;
        placing->n++;
    }
    return i;
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
        uint32_t place;

        layout->region[i] = 0;
        layout->offset[i] = 0;
        if (bytes == 0)
            continue;
        place = place_of(placing, to[i]);
        if (place == PLACING_MAX) {
            free(layout);
            return rdt_error_set(err, RDT_LIMIT, "tensors on more than %u devices", PLACING_MAX);
        }
        layout->region[i] = place;
        layout->offset[i] = align_up(placing->at[place].bytes);
        placing->at[place].bytes = layout->offset[i] + bytes;
    }
    *layout_p = layout;
    return RDT_OK;
}
