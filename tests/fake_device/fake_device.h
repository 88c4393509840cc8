/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake device's own files share.
 *
 *   fake_device.c   the table, the devices, and the engine that copies
 *   blocks.c        memory: allocating, importing, mapping, exporting, clearing
 */
#ifndef TESTS_FAKE_DEVICE_H
#define TESTS_FAKE_DEVICE_H

#include <pthread.h>

#include "backends/rdt_backend.h"
#include "tests/fake_device/control.h"

struct fake {
    const struct rdt_host *host;
    struct fake_control *control, own;
    unsigned n_devices;
    uint64_t device_bytes, granule, chunk_bytes;
    char uuids[FAKE_DEVICES][16];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct handle *handles;
    struct fake_block *blocks; /* mapped */
    struct rdt_memory_copy *first, *last;
    bool stop;
    pthread_t engine;
};
extern struct fake fake;

bool fake_take(_Atomic uint32_t *count); /* counts down; false: it is 0 */

/* ---- blocks.c ---- */

/* Where the plug-in itself sees what the daemon takes for an address of the block. */
uint8_t *fake_real_address(const struct rdt_block *block, const void *addr);

/* The same for an address of any block that is mapped. NULL: it is in none. */
void *fake_real_anywhere(const void *addr);

/* Operations of struct rdt_memory_ops. */
enum rdt_status fake_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err);
enum rdt_status fake_alloc_unzeroed(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                    struct rdt_error *err);
enum rdt_status fake_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                            struct rdt_error *err);
enum rdt_status fake_map(void *memory, struct rdt_block *block_p, bool warm, struct rdt_error *err);
void fake_free(void *memory, struct rdt_block *block_p);
uint64_t fake_round(void *memory, uint64_t bytes);
enum rdt_status fake_zero(void *memory, struct rdt_block *block_p, struct rdt_error *err);
enum rdt_status fake_zero_part(void *memory, struct rdt_block *block_p, uint64_t offset, uint64_t bytes, struct rdt_error *err);
enum rdt_status fake_export(void *memory, const struct rdt_block *block_p, struct rdt_export *export_p, struct rdt_error *err);

#endif
