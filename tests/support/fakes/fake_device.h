/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of the fake device (tests/fake_device): how a process maps its memory, and memory that a process
 * allocates there itself. An ordinary mapping stands for a device's address here, so that tests can look at the bytes. */
#ifndef TESTS_SUPPORT_FAKE_DEVICE_H
#define TESTS_SUPPORT_FAKE_DEVICE_H

#include "tests/fake_device/control.h"
#include "tests/support/rdtd.h"

/* Flags of a daemon with the fake device, and the page that is shared with it. settings: "devices=1", NULL at the end; NULL:
 * none. */
struct fake_devices {
    struct fake_control *control;
    char path[160];
    char text[8][200];
    const char *flags[9];
};
void fake_device_init(struct fake_devices *gpu, const char *name, const char *const *settings);
void fake_device_fini(struct fake_devices *gpu);

/* From now on the connection maps fake memory. */
void fake_device_use(rdt *conn);
unsigned fake_device_mappings(void); /* of this process that stand */

/* Daemon memory on a device (NULL: the only one). */
void *fake_device_alloc(rdt *conn, const char *device, size_t bytes);

/* Memory of this process's own on a device: n chunks of so many bytes, mapped in a row; one chunk is what a legacy handle
 * names, too. */
struct fake_memory_own {
    uint8_t *addr;
    int fds[200];
    uint64_t chunk_bytes[200];
    unsigned n;
    uint64_t bytes;
    struct fake_handle handle;
};
void fake_device_malloc(struct fake_memory_own *own, unsigned n, uint64_t chunk_bytes);
void fake_device_free(struct fake_memory_own *own);
struct rdt_shared fake_device_chunks(const struct fake_memory_own *own, const char *device);
struct rdt_shared fake_device_handle(const struct fake_memory_own *own, const char *device);

#endif
