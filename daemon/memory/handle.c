/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/handle.h"

#include <string.h>

/* ---- a descriptor for each chunk ---- */

static enum rdt_status import_chunks(const struct rdt_import *import, struct rdt_error *err)
{
    uint64_t all = 0;

    for (uint32_t i = 0; i < import->n_fds; i++)
        all = import->chunk_bytes[i] > UINT64_MAX - all ? UINT64_MAX : all + import->chunk_bytes[i];
    if (import->n_fds > 0 && import->offset <= all && import->bytes <= all - import->offset)
        return RDT_OK;
    return rdt_error_set(
        err, RDT_INVALID, "an import of %llu bytes at offset %llu does not fit into its %u chunks, which have %llu bytes",
        (unsigned long long)import->bytes, (unsigned long long)import->offset, import->n_fds, (unsigned long long)all);
}

static bool exports_chunks(const struct rdt_export *exported)
{
    return exported->n_fds > 0 && exported->n_fds <= RDT_EXPORT_MAX_FDS && exported->fds && exported->chunk_bytes;
}

static void show_chunks(const struct rdt_export *exported, struct region_share *share_p)
{
    share_p->message.n_chunk_bytes = exported->n_fds;
    share_p->message.chunk_bytes = (uint64_t *)(uintptr_t)exported->chunk_bytes;
}

/* ---- bytes that only plug-ins understand ---- */

static enum rdt_status import_bytes(const struct rdt_import *import, struct rdt_error *err)
{
    if (import->n_fds > 0)
        return rdt_error_set(err, RDT_INVALID, "a legacy handle comes without chunks, not with %u", import->n_fds);
    if (import->handle_bytes == 0 || import->handle_bytes > RDT_EXPORT_HANDLE_BYTES)
        return rdt_error_set(err, RDT_INVALID, "a legacy handle has 1 to %u bytes, not %zu", RDT_EXPORT_HANDLE_BYTES,
                             import->handle_bytes);
    return RDT_OK;
}

static bool exports_bytes(const struct rdt_export *exported)
{
    return exported->handle_bytes > 0 && exported->handle_bytes <= sizeof exported->handle;
}

static void show_bytes(const struct rdt_export *exported, struct region_share *share_p)
{
    memcpy(share_p->handle, exported->handle, exported->handle_bytes);
    share_p->message.handle = (ProtobufCBinaryData){exported->handle_bytes, share_p->handle};
}

static const struct handle_kind kinds[] = {
    [RDT_IMPORT_VMM] = {true, import_chunks, exports_chunks, show_chunks},
    [RDT_IMPORT_LEGACY_IPC] = {false, import_bytes, exports_bytes, show_bytes},
};

const struct handle_kind *handle_kind(int kind)
{
    return kind >= 0 && (size_t)kind < sizeof kinds / sizeof kinds[0] && kinds[kind].show ? &kinds[kind] : NULL;
}
