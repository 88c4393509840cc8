/* SPDX-License-Identifier: Apache-2.0 */
/* See nccl_api.h. */
#include "backends/nccl/nccl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#if __has_include(<nccl.h>) && __has_include(<cuda_fp16.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
_Static_assert(sizeof(struct nccl_id) == sizeof(ncclUniqueId), "ncclUniqueId");
_Static_assert(offsetof(struct nccl_config, size) == offsetof(ncclConfig_t, size), "size");
_Static_assert(offsetof(struct nccl_config, magic) == offsetof(ncclConfig_t, magic), "magic");
_Static_assert(offsetof(struct nccl_config, version) == offsetof(ncclConfig_t, version), "version");
_Static_assert(offsetof(struct nccl_config, blocking) == offsetof(ncclConfig_t, blocking), "blocking");
_Static_assert(sizeof(struct nccl_config) <= sizeof(ncclConfig_t), "ncclConfig_t");
_Static_assert(NCCL_SUCCESS == (int)ncclSuccess && NCCL_IN_PROGRESS == (int)ncclInProgress, "ncclResult_t");
_Static_assert(NCCL_BYTES == (int)ncclUint8, "ncclDataType_t");
_Static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int), "enums are ints");
#endif

static struct nccl_api loaded_api;
static struct rdt_error open_failure; /* its status is RDT_OK if the library is open */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_once(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const char *missing = NULL;
    int version = 0;

    if (!library) {
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED, "there is no NCCL: %s", dlerror());
        return;
    }
#define NCCL_LOAD(name, result, arguments)                      \
    *(void **)(void *)&loaded_api.name = dlsym(library, #name); \
    if (!loaded_api.name)                                       \
        missing = #name;
    NCCL_FUNCTIONS(NCCL_LOAD)
#undef NCCL_LOAD
    if (missing)
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED, "NCCL is too old: it has no %s; 2.14 or later is needed", missing);
    else if (loaded_api.ncclGetVersion(&version) != NCCL_SUCCESS)
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED, "NCCL does not report its version");
    if (open_failure.status != RDT_OK) {
        (void)dlclose(library);
        return;
    }
    (void)snprintf(loaded_api.version, sizeof loaded_api.version, "%d.%d.%d", version / 10000, version / 100 % 100,
                   version % 100);
}

enum rdt_status nccl_api_open(const struct nccl_api **api_p, struct rdt_error *err)
{
    (void)pthread_once(&once, open_once);
    if (open_failure.status != RDT_OK) {
        if (err)
            *err = open_failure;
        return open_failure.status;
    }
    *api_p = &loaded_api;
    return RDT_OK;
}
