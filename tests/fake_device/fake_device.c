/* SPDX-License-Identifier: Apache-2.0 */
/* The memory kind "fake": devices that are memfds, for the daemon's device memory where there is no device.
 *
 * What it calls a device's address lies in a range that nobody may touch: a daemon that reads or writes it by
 * itself dies at once. The plug-in's own mapping of the same pages is known to its copy engine alone, one
 * thread that works off a queue, as slowly as a test wants.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake_device/fake_device.h"

struct fake fake;

/* ---- devices ---- */

static uint32_t fake_devices(void *memory, struct rdt_device *devices, uint32_t max)
{
    for (uint32_t i = 0; i < fake.n_devices && i < max; i++)
        devices[i] = (struct rdt_device){.uuid = fake.uuids[i],
                                         .name = "Fake Device",
                                         .bytes = fake.device_bytes,
                                         .opened = atomic_load(&fake.control->opened[i]) > 0,
                                         .overhead_bytes = atomic_load(&fake.control->opened[i]) ? 4096 : 0};
    return fake.n_devices;
}

/* ---- the engine ---- */

bool fake_take(_Atomic uint32_t *count)
{
    uint32_t n = atomic_load(count);

    while (n > 0)
        if (atomic_compare_exchange_weak(count, &n, n - 1))
            return true;
    return false;
}

static void copy_now(const struct rdt_memory_copy *copy)
{
    for (uint32_t i = 0; i < copy->n_pieces; i++) {
        const struct rdt_copy_piece *piece = &copy->pieces[i];
        uint8_t *to = copy->to ? fake_real_address(copy->to, piece->to) : piece->to;
        const uint8_t *from = copy->from ? fake_real_address(copy->from, piece->from) : piece->from;

        for (uint64_t row = 0; row < piece->rows; row++)
            memcpy(to + row * piece->to_step, from + row * piece->from_step, piece->bytes);
        if ((!copy->to || !copy->from) && !copy->host_pinned)
            atomic_fetch_add(&fake.control->unpinned_bytes, piece->bytes * piece->rows);
    }
}

static void *engine(void *arg)
{
    pthread_mutex_lock(&fake.mutex);
    while (!fake.stop || fake.first) {
        struct rdt_memory_copy *copy = fake.first;
        if (!copy) {
            pthread_cond_wait(&fake.changed, &fake.mutex);
            continue;
        }
        pthread_mutex_unlock(&fake.mutex);
        fake_await(fake.control); /* the device is slow: a test says for how long */
        pthread_mutex_lock(&fake.mutex);
        fake.first = copy->priv[0];
        if (!fake.first)
            fake.last = NULL;
        pthread_mutex_unlock(&fake.mutex);
        if (fake_take(&fake.control->fail_copies)) {
            fake.host->copy_done(copy, RDT_SYSTEM, "the device has fallen off the bus, as the test wants it");
        } else {
            copy_now(copy);
            atomic_fetch_add(&fake.control->done, 1);
            fake.host->copy_done(copy, RDT_OK, NULL);
        }
        pthread_mutex_lock(&fake.mutex);
    }
    pthread_mutex_unlock(&fake.mutex);
    return NULL;
}

static enum rdt_status fake_copy_start(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err)
{
    if (!copy->to && !copy->from)
        return rdt_error_set(err, RDT_INVALID, "neither end is on a device");
    copy->priv[0] = NULL;
    pthread_mutex_lock(&fake.mutex);
    if (fake.last)
        fake.last->priv[0] = copy;
    else
        fake.first = copy;
    fake.last = copy;
    pthread_cond_signal(&fake.changed);
    pthread_mutex_unlock(&fake.mutex);
    atomic_fetch_add(&fake.control->started, 1);
    return RDT_OK;
}

static enum rdt_status fake_pin(void *memory, void *addr, uint64_t bytes, void **pin_p, struct rdt_error *err)
{
    uint64_t *pin = atomic_load(&fake.control->refuse_pins) ? NULL : malloc(sizeof *pin);

    if (!pin)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    *pin = bytes;
    atomic_fetch_add(&fake.control->pin_calls, 1);
    atomic_fetch_add(&fake.control->pinned, bytes);
    *pin_p = pin;
    return RDT_OK;
}

static void fake_unpin(void *memory, void *pin)
{
    atomic_fetch_sub(&fake.control->pinned, *(uint64_t *)pin);
    free(pin);
}

/* ---- the backend ---- */

static uint64_t number(const struct rdt_host *host, const char *key)
{
    const char *text = host->config(host->ctx, key);

    return text ? strtoull(text, NULL, 0) : 0;
}

static enum rdt_status fake_open(const struct rdt_host *host, void **memory_p, struct rdt_error *err)
{
    const char *path = host->config(host->ctx, "control"), *prefix = host->config(host->ctx, "prefix");
    char pointer[32];

    if (host->struct_size < offsetof(struct rdt_host, copy_done) + sizeof host->copy_done)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this rdtd knows no memory on devices");
    fake.host = host;
    fake.control = &fake.own;
    /* for a transport that moves fake memory: where it really lies */
    (void)snprintf(pointer, sizeof pointer, "%p", (void *)(uintptr_t)fake_real_anywhere);
    (void)setenv("RDT_FAKE_DEVICE_REAL", pointer, 1);
    if (path && path[0]) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        void *addr = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof fake.own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0)
            (void)close(fd);
        if (addr == MAP_FAILED)
            return rdt_error_sys(err, errno, "control %s", path);
        fake.control = addr;
    }
    fake.n_devices = (unsigned)number(host, "devices");
    if (fake.n_devices > FAKE_DEVICES)
        return rdt_error_set(err, RDT_INVALID, "devices: at most %d", FAKE_DEVICES);
    if (fake.n_devices == 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "there is no fake device");
    fake.device_bytes = number(host, "device_bytes");
    fake.granule = number(host, "granule");
    fake.chunk_bytes = number(host, "chunk");
    for (unsigned i = 0; i < fake.n_devices; i++)
        (void)snprintf(fake.uuids[i], sizeof fake.uuids[i], "%.8s-%u", prefix && prefix[0] ? prefix : "FAKE", i % 10);
    fake.stop = false;
    pthread_mutex_init(&fake.mutex, NULL);
    pthread_cond_init(&fake.changed, NULL);
    if (pthread_create(&fake.engine, NULL, engine, NULL) != 0)
        return rdt_error_set(err, RDT_SYSTEM, "no thread");
    *memory_p = &fake;
    return RDT_OK;
}

static void fake_close(void *memory)
{
    pthread_mutex_lock(&fake.mutex);
    fake.stop = true;
    pthread_cond_signal(&fake.changed);
    pthread_mutex_unlock(&fake.mutex);
    (void)pthread_join(fake.engine, NULL);
    pthread_mutex_destroy(&fake.mutex);
    pthread_cond_destroy(&fake.changed);
    if (fake.control != &fake.own)
        (void)munmap(fake.control, sizeof fake.own);
}

static const struct rdt_config_key config_keys[] = {
    {"control", "", "file with a page that tests share"},
    {"devices", "2", "how many there are"},
    {"device_bytes", "67108864", "memory of each"},
    {"granule", "65536", "what memory is made of"},
    {"chunk", "0", "an allocation is made of pieces of so many bytes; 0: of one"},
    {"prefix", "FAKE", "of their uuids"},
    {NULL, NULL, NULL},
};

static const struct rdt_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .alloc = fake_alloc,
    .import = fake_import,
    .free = fake_free,
    .map = fake_map,
    .round = fake_round,
    .devices = fake_devices,
    .export_block = fake_export,
    .copy_start = fake_copy_start,
    .zero = fake_zero,
    .pin = fake_pin,
    .unpin = fake_unpin,
    .alloc_unzeroed = fake_alloc_unzeroed,
    .zero_part = fake_zero_part,
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "fake",
    .version = "1",
    .config_keys = config_keys,
    .memory = &memory_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
