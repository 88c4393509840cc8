/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h. */
#include <stdlib.h>
#include <unistd.h>

#include "client/cuda/gpu.h"

/* Tells the connection how GPU memory is mapped, and which GPUs this process sees. */
static enum rdt_status register_mapper(rdt *conn, const struct cuda_driver *driver, struct rdt_error *err)
{
    const char *devices[CUDA_MAX_GPUS];
    struct rdt_mapper mapper = cuda_mapper;

    for (unsigned i = 0; i < driver->n_gpus; i++)
        devices[i] = driver->gpu[i].uuid;
    mapper.devices = devices;
    mapper.n_devices = driver->n_gpus;
    return rdt_map_by(conn, &mapper, err);
}

/* The state of the process, as opposed to that of its handles. */
static void after_fork(void)
{
    cuda_driver_after_fork();
    export_after_fork();
    pool_after_fork();
    retained_after_fork();
    map_after_fork();
    work_after_fork();
    pinned_after_fork();
    closing_after_fork();
}

static void register_after_fork(void)
{
    (void)pthread_atfork(NULL, NULL, after_fork);
}

enum rdt_status rdt_cuda_open(rdt *conn, rdt_cuda **cuda_p, struct rdt_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct cuda_driver *driver;
    struct handle *handle;
    enum rdt_status status =
        conn && cuda_p ? cuda_driver_open(&driver, err) : rdt_error_set(err, RDT_INVALID, "rdt or cuda_p is NULL");

    if (status != RDT_OK)
        return status;
    (void)pthread_once(&once, register_after_fork);
    handle = calloc(1, sizeof *handle);
    if (!handle)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to open GPU memory");
    handle->cuda = (struct rdt_cuda){conn, driver, getpid()};
    status = register_mapper(conn, driver, err);
    if (status == RDT_OK && !closing_begin(conn))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to open GPU memory");
    if (status != RDT_OK) {
        free(handle);
        return status;
    }
    work_begin();
    offers_init(&handle->offers);
    streams_init(&handle->streams, conn, driver);
    *cuda_p = &handle->cuda;
    return RDT_OK;
}

void rdt_cuda_close(rdt_cuda *cuda)
{
    struct handle *handle = (struct handle *)cuda;

    if (!handle)
        return;
    if (cuda->pid == getpid()) {
        pool_forget(cuda);
        streams_fini(&handle->streams);
        pinned_forget(cuda);
        offers_fini(&handle->offers);
        closing_end(cuda->conn);
        work_forget(cuda->driver);
    } else {
        streams_forget(&handle->streams);
    }
    free(handle);
}
