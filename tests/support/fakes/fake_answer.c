/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a FETCH_DONE. */
#include "tests/support/fakes/fake_answer.h"

#include <string.h>

void fake_answer_add(struct fake_answer *answer, uint64_t rows, uint64_t columns, int64_t row_stride, int64_t column_stride,
                     uint64_t offset)
{
    size_t i = answer->tensors.n_dtype;

    answer->dtype[i] = RDT_U8;
    answer->ndim[i] = 2;
    answer->shape[2 * i] = rows;
    answer->shape[2 * i + 1] = columns;
    answer->strides[2 * i] = row_stride;
    answer->strides[2 * i + 1] = column_stride;
    answer->offset[i] = offset;
    answer->tensors.n_dtype = answer->tensors.n_ndim = answer->tensors.n_offset = i + 1;
    answer->tensors.n_shape = answer->tensors.n_strides = 2 * (i + 1);
}

void fake_answer_init(struct fake_answer *answer, uint64_t handle, uint64_t hold, uint64_t region, uint64_t bytes, int fd_index)
{
    memset(answer, 0, sizeof *answer);
    rdt__pb__fetch_done__init(&answer->done);
    rdt__pb__ref__init(&answer->ref);
    rdt__pb__tensor_list__init(&answer->tensors);
    rdt__pb__shared_region__init(&answer->region);
    answer->done.handle = handle;
    answer->done.hold = hold;
    answer->done.ref = &answer->ref;
    answer->done.tensors = &answer->tensors;
    answer->done.path = (char *)"local/share";
    answer->ref.id.data = (uint8_t *)"x";
    answer->ref.id.len = 1;
    answer->ref.generation = 9;
    answer->tensors.dtype = answer->dtype;
    answer->tensors.ndim = answer->ndim;
    answer->tensors.shape = answer->shape;
    answer->tensors.strides = answer->strides;
    answer->tensors.offset = answer->offset;
    answer->region.region = region;
    answer->region.generation = 1;
    answer->region.bytes = bytes;
    answer->region.fd_index = fd_index;
    answer->regions = &answer->region;
    answer->done.regions = &answer->regions;
    answer->done.n_regions = 1;
}

uint64_t fake_take_fetch(struct fake *fake)
{
    fake_take(fake, RDT_MSG_FETCH);
    Rdt__Pb__Fetch *message = FAKE_MESSAGE(fake, Fetch);
    MUST(message->n_items == 1);
    uint64_t handle = message->items[0]->handle;
    fake_free(message);
    fake_empty(fake);
    return handle;
}

void fake_take_release(struct fake *fake, uint64_t hold)
{
    fake_take(fake, RDT_MSG_RELEASE);
    Rdt__Pb__Release *release = FAKE_MESSAGE(fake, Release);
    MUST(release->hold == hold);
    fake_free(release);
    fake_empty(fake);
}
