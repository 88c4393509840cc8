/* SPDX-License-Identifier: Apache-2.0 */
/* The answer of a fake rdtd to a fetch: an object of u8 tensors with two dimensions, all in one region. */
#ifndef SUPPORT_FAKE_ANSWER_H
#define SUPPORT_FAKE_ANSWER_H

#include "tests/support/fakes/fake_daemon.h"

struct fake_answer {
    Rdt__Pb__FetchDone done;
    Rdt__Pb__Ref ref;
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__SharedRegion region, *regions;
    uint32_t dtype[4], ndim[4];
    uint64_t shape[8], offset[4];
    int64_t strides[8];
};

/* Region and hold; without tensors. The region's bytes are fd `fd_index` of the event. */
void fake_answer_init(struct fake_answer *answer, uint64_t handle, uint64_t hold, uint64_t region, uint64_t bytes,
                      int fd_index);

/* At most 4. Strides and offset count bytes, which are elements here. */
void fake_answer_add(struct fake_answer *answer, uint64_t rows, uint64_t columns, int64_t row_stride, int64_t column_stride,
                     uint64_t offset);

/* Takes a FETCH of one item and answers it as a whole; returns its handle. */
uint64_t fake_take_fetch(struct fake *fake);

/* Takes the RELEASE of this hold. */
void fake_take_release(struct fake *fake, uint64_t hold);

#endif
