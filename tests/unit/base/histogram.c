/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "daemon/base/histogram.h"

static unsigned bucket_of(uint64_t ns)
{
    struct histogram histogram = {0};
    unsigned bucket = 0;

    histogram_add(&histogram, ns);
    cr_assert_eq(histogram.sum_ns, ns);
    while (bucket < HISTOGRAM_BUCKETS && histogram.counts[bucket] == 0)
        bucket++;
    return bucket;
}

Test(histogram, duration_is_below_the_bound_of_its_bucket_and_not_below_the_one_before)
{
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS - 1; i++) {
        cr_assert_eq(bucket_of(histogram_bound_ns(i) - 1), i);
        cr_assert_eq(bucket_of(histogram_bound_ns(i)), i + 1);
    }
    cr_assert_eq(bucket_of(0), 0);
    cr_assert_eq(bucket_of(UINT64_MAX), HISTOGRAM_BUCKETS - 1);
}
