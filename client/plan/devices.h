/* SPDX-License-Identifier: Apache-2.0 */
/* Wants of a plan in memory of devices. A box is packed, and cast, into host memory of the device's writer (struct rdt_writer),
 * at most room_bytes at a time, while the device copies what was packed before. */
#ifndef CLIENT_PLAN_DEVICES_H
#define CLIENT_PLAN_DEVICES_H

#include "client/plan/strided.h"
#include "client/rdt_plan.h"

#define PLAN_HOST (-1)
#define PLAN_MAX_STREAMS 8u

struct plan_device {
    const struct rdt_writer *writer;
    void *arg;
    const char *uuid; /* the writer's */
    void *streams[PLAN_MAX_STREAMS];
    size_t n_streams;
    void *writing; /* NULL: it has not begun */
};

struct plan_devices { /* all 0 at first */
    struct plan_device *list;
    size_t n;
};

/* Finds where an address lies: PLAN_HOST, or the number of a device in the list, to which it is added. Errors: UNSUPPORTED (the
 * memory is a device's that nothing writes), NO_MEMORY, those of the writer. */
enum rdt_status devices_find(struct plan_devices *devices, rdt *conn, const void *addr, int *device_p, struct rdt_error *err);

/* Begins to write all devices of the list, and waits for their streams. An error has ended all. */
enum rdt_status devices_begin(struct plan_devices *devices, int64_t deadline_ns, struct rdt_error *err);

/* strided_copy to memory of a device. The bytes of `from` are read before this returns. */
enum rdt_status devices_copy(struct plan_devices *devices, int device, uint32_t ndim, const uint64_t *count,
                             const struct strided *from, const struct strided *to, struct rdt_error *err);

/* Waits until all copies have ended. status: of what came before; the first error is returned. */
enum rdt_status devices_end(struct plan_devices *devices, enum rdt_status status, struct rdt_error *err);
void devices_fini(struct plan_devices *devices);

#endif
