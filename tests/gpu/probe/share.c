/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that two processes share: by VMM descriptors and by legacy handles, across users, PID namespaces and visible GPUs. */
#include "tests/gpu/probe/probe.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NOBODY 65534
#define VALUE 0x5a

static const char *asked; /* for the second process, which begins as a copy of the first */
static bool again;        /* its answer has more rows */

static const char *seen(CUdeviceptr address)
{
    unsigned char value = 0;
    CUresult result = peek(address, &value);

    return result != CUDA_SUCCESS ? name_of(result) : value == VALUE ? "right" : "WRONG";
}

/* Gives the importer what it imports, and waits until it has. False after a row. */
static bool hand_over(struct other *importer, const void *what, size_t bytes, int fd)
{
    char text;

    if (give(importer->link, what, bytes, fd) && take(importer->link, &text, 1, NULL))
        return true;
    say(asked, "the importer has given no more answers");
    return false;
}

/* Starts the exporter, which starts an importer of its own, and kills it when the importer has the memory. The importer then
 * says what it still sees. */
static void ask_with_kill(const char *question, void (*begin)(int link))
{
    struct other exporter;
    int importer = -1;
    char text = 0;

    asked = question;
    again = true;
    if (!other_start(&exporter, asked, &(struct other_options){0}, begin))
        return;
    if (!take(exporter.link, &text, 1, &importer)) {
        say(asked, "the exporter has given no more answers");
        return;
    }
    other_kill(&exporter);
    (void)give(importer, &text, 1, -1);
    (void)take(importer, &text, 1, NULL); /* until it ends */
}

/* ---- VMM ---- */

static CUresult export(CUmemGenericAllocationHandle handle, int *fd_p)
{
    return CU(cuMemExportToShareableHandle, fd_p, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static void re_export(const struct chunk *chunk)
{
    CUmemGenericAllocationHandle retained;
    int fd = -1;
    CUresult by_handle = export(chunk->handle, &fd);
    CUresult by_address = CU(cuMemRetainAllocationHandle, &retained, (void *)(uintptr_t)chunk->address);

    say("re-export of an imported VMM handle", "%s", name_of(by_handle));
    if (by_address == CUDA_SUCCESS)
        by_address = export(retained, &fd);
    say("re-export by the mapped address", "%s", name_of(by_address));
}

static void import_chunk(int link)
{
    struct chunk chunk = {.bytes = 2 * MIB};
    int fd = -1;
    char text;

    if (!driver_open(asked, 0) || !take(link, &text, 1, &fd) || fd < 0)
        return;
    CUresult result =
        CU(cuMemImportFromShareableHandle, &chunk.handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) {
        say(asked, "import: %s", name_of(result));
    } else {
        result = chunk_map(&chunk, 0);
        say(asked, "import ok, map and access: %s, data: %s", name_of(result),
            result == CUDA_SUCCESS ? seen(chunk.address) : "-");
        if (result == CUDA_SUCCESS && again)
            re_export(&chunk);
    }
    (void)give(link, &text, 1, -1);
    if (again && take(link, &text, 1, NULL)) /* the exporter has died */
        say("VMM: exporter killed while it is mapped", "data: %s", seen(chunk.address));
}

/* The exporter, in the process that asks. False after a row. */
static bool share_chunk(struct other *importer, int gpu)
{
    CUmemAllocationProp kind = chunk_kind(gpu, false);
    struct chunk chunk = {.bytes = 2 * MIB};
    int fd = -1;
    char text = 0;

    if (!driver_open(asked, gpu) || !went_well(asked, "create", CU(cuMemCreate, &chunk.handle, chunk.bytes, &kind, 0)) ||
        !went_well(asked, "map", chunk_map(&chunk, gpu)) || !went_well(asked, "export", export(chunk.handle, &fd)) ||
        !went_well(asked, "fill", fill(chunk.address, VALUE, chunk.bytes)))
        return false;
    return hand_over(importer, &text, 1, fd);
}

static void ask_vmm(const char *question, const struct other_options *options, int gpu)
{
    struct other importer;

    asked = question;
    if (other_start(&importer, question, options, import_chunk) && share_chunk(&importer, gpu))
        other_end(&importer);
}

/* The one that asks kills this exporter when the importer, its child, has mapped. */
static void vmm_exporter(int link)
{
    struct other importer;
    char text = 0;

    if (other_start(&importer, asked, &(struct other_options){0}, import_chunk) && share_chunk(&importer, 0))
        (void)give(link, &text, 1, importer.link);
    (void)take(link, &text, 1, NULL);
}

static void ask_import(void)
{
    ask_with_kill("VMM: import by another process", vmm_exporter);
}

/* How many GPUs there are, without a call of the driver in this process. */
static void count(int link)
{
    int n = driver_open("number of GPUs", NO_CONTEXT) ? gpu_count() : 0;

    (void)give(link, &n, sizeof n, -1);
}

static int gpus_there(void)
{
    struct other other;
    int n = 0;

    if (other_start(&other, "number of GPUs", &(struct other_options){0}, count)) {
        (void)take(other.link, &n, sizeof n, NULL);
        other_end(&other);
    }
    return n;
}

static void ask_visible(void)
{
    if (gpus_there() < 2)
        say("VMM: importer sees only another GPU", "not asked: one GPU");
    else
        ask_vmm("VMM: importer sees only another GPU", &(struct other_options){.visible = "1"}, 0);
}

static void ask_ordinal(void)
{
    if (gpus_there() < 2)
        say("VMM: same GPU, another ordinal", "not asked: one GPU");
    else
        ask_vmm("VMM: same GPU, another ordinal", &(struct other_options){.visible = "1,0"}, 1);
}

static void ask_vmm_uid(void)
{
    ask_vmm("VMM: importer of another uid", &(struct other_options){.uid = NOBODY}, 0);
}

/* ---- legacy handles ---- */

struct parcel {
    CUipcMemHandle handle, second; /* of two blocks */
    size_t offset, bytes;          /* of the first block within its allocation, as the exporter sees it; of the allocation */
};

static void import_legacy(int link)
{
    struct parcel parcel;
    CUdeviceptr at = 0, twice = 0, base = 0;
    size_t bytes = 0;
    CUresult result, other;
    char text = 0;

    if (!driver_open(asked, 0) || !take(link, &parcel, sizeof parcel, NULL))
        return;
    result = CU(cuIpcOpenMemHandle, &at, parcel.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS)
        say(asked, "open ok, data: %s", seen(at + parcel.offset));
    else
        say(asked, "open: %s", name_of(result));
    if (result == CUDA_SUCCESS && again) {
        (void)CU(cuMemGetAddressRange, &base, &bytes, at);
        say("legacy: range at the importer", "%zu KiB, opened %zu bytes after its base", bytes >> 10, (size_t)(at - base));
        other = CU(cuIpcOpenMemHandle, &twice, parcel.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        say("legacy: opened twice", "%s%s", name_of(other),
            other != CUDA_SUCCESS ? ""
            : twice == at         ? ", same address"
                                  : ", another address");
        if (other == CUDA_SUCCESS) {
            other = CU(cuIpcCloseMemHandle, twice);
            say("legacy: closed once of twice", "%s, data then: %s", name_of(other), seen(at + parcel.offset));
        }
    }
    (void)give(link, &text, 1, -1);
    if (result == CUDA_SUCCESS && again && take(link, &text, 1, NULL)) {
        say("legacy: exporter killed while it is open", "data: %s", seen(at + parcel.offset));
        say("legacy: closed after that", "%s", name_of(CU(cuIpcCloseMemHandle, at)));
    }
}

static bool share_legacy(struct other *importer)
{
    CUdeviceptr first = 0, second = 0, base = 0;
    struct parcel parcel = {0};
    size_t bytes = 0;

    if (!driver_open(asked, 0) || !went_well(asked, "cuMemAlloc", CU(cuMemAlloc, &first, 64 << 10)) ||
        !went_well(asked, "cuMemAlloc", CU(cuMemAlloc, &second, 64 << 10)) ||
        !went_well(asked, "fill", fill(first, VALUE, 64 << 10)) ||
        !went_well(asked, "cuMemGetAddressRange", CU(cuMemGetAddressRange, &base, &bytes, first)) ||
        !went_well(asked, "cuIpcGetMemHandle", CU(cuIpcGetMemHandle, &parcel.handle, first)) ||
        !went_well(asked, "cuIpcGetMemHandle", CU(cuIpcGetMemHandle, &parcel.second, second)))
        return false;
    if (again) {
        say("legacy: range of 64 KiB at the exporter",
            "%zu KiB, %zu bytes after its base; the next block is %+lld bytes from it", bytes >> 10, (size_t)(first - base),
            (long long)second - (long long)first);
        say("legacy: handles of two blocks of 64 KiB", "%s",
            memcmp(&parcel.handle, &parcel.second, sizeof parcel.handle) == 0 ? "equal" : "differ");
    }
    return hand_over(importer, &parcel, sizeof parcel, -1);
}

static void ask_legacy_with(const char *question, const struct other_options *options)
{
    struct other importer;

    asked = question;
    if (other_start(&importer, question, options, import_legacy) && share_legacy(&importer))
        other_end(&importer);
}

static void legacy_exporter(int link)
{
    struct other importer;
    char text = 0;

    if (other_start(&importer, asked, &(struct other_options){0}, import_legacy) && share_legacy(&importer))
        (void)give(link, &text, 1, importer.link);
    (void)take(link, &text, 1, NULL);
}

static void ask_legacy(void)
{
    ask_with_kill("legacy: open by another process", legacy_exporter);
}

static void ask_legacy_uid(void)
{
    ask_legacy_with("legacy: importer of another uid", &(struct other_options){.uid = NOBODY});
}

static void nobody_exports(int link)
{
    struct other importer = {.link = link};

    (void)share_legacy(&importer);
}

static void ask_legacy_from_uid(void)
{
    struct other exporter;

    asked = "legacy: root opens what another uid exports";
    if (!other_start(&exporter, asked, &(struct other_options){.uid = NOBODY}, nobody_exports))
        return;
    import_legacy(exporter.link);
    other_end(&exporter);
}

static void ask_legacy_pids(void)
{
    ask_legacy_with("legacy: importer in another PID namespace", &(struct other_options){.new_pids = true});
}

static void ask_legacy_visible(void)
{
    if (gpus_there() < 2)
        say("legacy: importer sees only another GPU", "not asked: one GPU");
    else
        ask_legacy_with("legacy: importer sees only another GPU", &(struct other_options){.visible = "1"});
}

const struct question share_questions[] = {
    {"VMM: import, re-export, exporter killed", ask_import, 20},
    {"VMM: importer sees only another GPU", ask_visible, 20},
    {"VMM: same GPU, another ordinal", ask_ordinal, 20},
    {"VMM: importer of another uid", ask_vmm_uid, 15},
    {"legacy: sub-allocation, opened twice, killed", ask_legacy, 20},
    {"legacy: importer of another uid", ask_legacy_uid, 15},
    {"legacy: root opens what another uid exports", ask_legacy_from_uid, 15},
    {"legacy: importer in another PID namespace", ask_legacy_pids, 15},
    {"legacy: importer sees only another GPU", ask_legacy_visible, 15},
    {NULL, NULL, 0},
};
