/* SPDX-License-Identifier: Apache-2.0 */
/* Casts of contiguous elements, by any thread. rdt_plan.h says which there are. */
#ifndef CLIENT_CAST_H
#define CLIENT_CAST_H

#include <stddef.h>

#include "proto/rdt_dtype.h"
#include "proto/rdt_status.h"

/* UNSUPPORTED: there is no such cast. */
enum rdt_status cast_check(enum rdt_dtype from, enum rdt_dtype to, struct rdt_error *err);

/* Casts, or copies if the dtypes are equal. Only after cast_check. */
void cast_run(enum rdt_dtype from, const void *data, enum rdt_dtype to, void *data_p, size_t n);

/* The same by the loops for any processor; the dtypes differ. For tests. */
void cast_run_plain(enum rdt_dtype from, const void *data, enum rdt_dtype to, void *data_p, size_t n);

#endif
