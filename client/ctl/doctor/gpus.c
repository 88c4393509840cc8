/* SPDX-License-Identifier: Apache-2.0 */
/* See doctor.h. The functions of NVML that are used are declared here, because its header comes in a package of its own. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/ctl_table.h"
#include "client/ctl/doctor/doctor.h"
#include "rdt.pb-c.h"

#define MOST 64u

struct memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

enum { EXCLUSIVE_PROCESS = 3, READS = 0 }; /* of nvmlComputeMode_t and nvmlGpuP2PCapsIndex_t */

static struct {
    int (*init)(void);
    int (*by_uuid)(const char *uuid, void **device_p);
    int (*memory)(void *device, struct memory *memory_p);
    int (*mode)(void *device, int *mode_p);
    int (*peers)(void *a, void *b, int what, int *status_p); /* status 0: they may */
} nvml;

static bool load(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library)
        return false;
    *(void **)(void *)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)(void *)&nvml.by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
    *(void **)(void *)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    *(void **)(void *)&nvml.mode = dlsym(library, "nvmlDeviceGetComputeMode");
    *(void **)(void *)&nvml.peers = dlsym(library, "nvmlDeviceGetP2PStatus");
    return nvml.init && nvml.by_uuid && nvml.memory && nvml.mode && nvml.peers && nvml.init() == 0;
}

struct gpus {
    const Rdt__Pb__DeviceInfo *info[MOST]; /* of the daemon */
    void *nvml[MOST];
    unsigned n;
};

/* Adds the devices of the kind "cuda" that NVML knows, too. */
static void add_all(struct gpus *gpus, const Rdt__Pb__ListReply *page, const char **why_none_p)
{
    for (size_t i = 0; i < page->n_backends; i++) {
        const Rdt__Pb__BackendInfo *backend = page->backends[i];

        if (strcmp(backend->name, "cuda") == 0 && !backend->available)
            *why_none_p = backend->why_not;
        for (size_t k = 0; k < backend->n_devices && gpus->n < MOST && strcmp(backend->name, "cuda") == 0; k++)
            if (nvml.by_uuid(backend->devices[k]->uuid, &gpus->nvml[gpus->n]) == 0)
                gpus->info[gpus->n++] = backend->devices[k];
    }
}

/* Puts fail for want of memory that the daemon may still allocate. */
static void check_memory(struct report *report, const struct gpus *gpus)
{
    static const char id[] = "RDT080", name[] = "gpu-memory";
    char free[CTL_HUMAN_BYTES], more[CTL_HUMAN_BYTES], used[CTL_HUMAN_BYTES];
    unsigned n = 0;

    for (unsigned i = 0; i < gpus->n; i++) {
        const Rdt__Pb__DeviceInfo *info = gpus->info[i];
        uint64_t left = info->limit_bytes > info->used_bytes ? info->limit_bytes - info->used_bytes : 0;
        struct memory memory;

        if (nvml.memory(gpus->nvml[i], &memory) != 0 || left <= memory.free || memory.free >= memory.total / 16)
            continue; /* by default device_limit is nine tenths of the memory, whoever else is there */
        n++;
        report_find(report, id, name, WARN,
                    "Lower device_limit in [daemon] of rdtd.conf to what the processes that compute there leave free, or what "
                    "they take; or "
                    "keep snapshots in host memory (device=\"host\").",
                    "GPU %s has %s free, and device_limit lets the daemon take %s beside the %s that it has: what does not fit "
                    "fails with "
                    "NO_MEMORY.",
                    info->uuid, ctl_human_bytes(memory.free, free), ctl_human_bytes(left, more),
                    ctl_human_bytes(info->used_bytes, used));
    }
    if (n == 0)
        report_find(report, id, name, OK, "", "No GPU is nearly full while device_limit lets the daemon take more.");
}

/* Whose MPS this process sees; false: none. */
static bool find_mps(uid_t *user_p)
{
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[300];
    struct stat st;

    (void)snprintf(path, sizeof path, "%.280s/control", dir && dir[0] ? dir : "/tmp/nvidia-mps");
    if (stat(path, &st) != 0)
        return false;
    *user_p = st.st_uid;
    return true;
}

/* NVIDIA's MPS serves the processes of one user. A GPU whose mode is exclusive takes only its processes. why_none: why the
 * daemon serves no GPU of this machine; NULL: it does, or there is none. */
static void check_modes(struct report *report, const struct gpus *gpus, uid_t owner, const char *why_none)
{
    static const char id[] = "RDT081", name[] = "gpu-mode";
    unsigned n = why_none != NULL;
    uid_t user = owner;
    bool mps = find_mps(&user);

    if (why_none)
        report_find(report, id, name, WARN, "Remove the cause and restart rdtd; to do without GPUs set enabled = no in [cuda].",
                    "This machine has GPUs, and the daemon serves none: %s.", why_none);

    for (unsigned i = 0; i < gpus->n; i++) {
        int mode;

        if (nvml.mode(gpus->nvml[i], &mode) != 0 || mode != EXCLUSIVE_PROCESS || (mps && user == owner))
            continue;
        n++;
        report_find(report, id, name, WARN,
                    "Set its mode to default (nvidia-smi -c DEFAULT), or run rdtd and the actors as one user within one MPS.",
                    "GPU %s is in the mode EXCLUSIVE_PROCESS, and the daemon is in no MPS with the actors: only one process "
                    "can use it.",
                    gpus->info[i]->uuid);
    }
    if (n == 0 && mps && user != owner)
        report_find(report, id, name, OK, "",
                    "The MPS here serves user %u alone; the daemon, of user %u, uses the GPUs beside it, and copies take turns "
                    "with its "
                    "kernels.",
                    (unsigned)user, (unsigned)owner);
    else if (n == 0)
        report_find(report, id, name, OK, "", "No mode of a GPU keeps the daemon or the actors out.");
}

static void check_peers(struct report *report, const struct gpus *gpus)
{
    static const char id[] = "RDT082", name[] = "gpu-peers";
    unsigned n = 0, a = 0, b = 0;

    for (unsigned i = 0; i < gpus->n; i++)
        for (unsigned k = i + 1; k < gpus->n; k++) {
            int status;

            if (nvml.peers(gpus->nvml[i], gpus->nvml[k], READS, &status) != 0 || status == 0)
                continue;
            if (n++ == 0) {
                a = i;
                b = k;
            }
        }
    if (n > 0)
        report_find(report, id, name, WARN,
                    "`nvidia-smi topo -p2p r` shows why: often IOMMU or ACS of PCIe, or a virtual machine. Bring tensors to "
                    "the GPU where "
                    "they are used, or keep snapshots in host memory.",
                    "GPUs %s and %s have no peer access%s, so copies between them go through host memory.", gpus->info[a]->uuid,
                    gpus->info[b]->uuid, n > 1 ? ", nor have others" : "");
    else
        report_find(report, id, name, OK, "", "%s",
                    gpus->n > 1 ? "All GPUs have peer access to one another." : "There are no two GPUs.");
}

void doctor_gpus(struct report *report, struct ctl *ctl, uid_t owner)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    Rdt__Pb__ListReply *page = NULL;
    struct gpus gpus = {.n = 0};
    struct rdt_error err = {0};
    const char *why_none = NULL;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_BACKENDS;
    if (load() && ctl_page(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), &request, &page, &err) == RDT_OK)
        add_all(&gpus, page, &why_none);
    check_memory(report, &gpus);
    check_modes(report, &gpus, owner, why_none);
    check_peers(report, &gpus);
    if (page)
        ctl_reply_free(&page->base);
}
