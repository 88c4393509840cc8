/* SPDX-License-Identifier: Apache-2.0 */
/* Checks one backend file before any of its operations is called. Of its tables only sizes, versions and names are read,
 * and they are checked. */
#include "daemon/plugins/plugin_load.h"
#include "daemon/plugins/plugin_blame.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/plugins/plugin.h"
#include "wire_limits.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

/* Copies a plug-in's table into one of this daemon's size. Missing entries become NULL. */
static void copy_table(void *ours, size_t our_bytes, const void *theirs, uint32_t their_bytes)
{
    memset(ours, 0, our_bytes);
    memcpy(ours, theirs, their_bytes < our_bytes ? their_bytes : our_bytes);
}

struct required {
    const char *name;
    bool present;
};

static enum rdt_status check_required(const char *table, const struct required *rows, size_t n, struct rdt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].present)
            return rdt_error_set(err, RDT_INVALID, "%s: %s is missing", table, rows[i].name);
    }
    return RDT_OK;
}
#define CHECK_REQUIRED(table, rows, err) check_required((table), (rows), sizeof(rows) / sizeof((rows)[0]), (err))

static enum rdt_status check_name(const char *what, const char *name, struct rdt_error *err)
{
    size_t bytes = name ? strlen(name) : 0;
    if (bytes == 0 || bytes > RDT_MAX_NAME_BYTES || strspn(name, NAME_CHARS) != bytes)
        return rdt_error_set(err, RDT_INVALID, "the %s's name must be letters, digits, '_' and '-', %u at most", what,
                             RDT_MAX_NAME_BYTES);
    return RDT_OK;
}

static enum rdt_status copy_memory(struct plugin *plugin, struct rdt_error *err)
{
    struct rdt_memory_ops *ops = &plugin->memory;
    copy_table(ops, sizeof(*ops), plugin->backend.memory, plugin->backend.memory->struct_size);
    bool devices = ops->devices;
    const struct required rows[] = {
        {"open", ops->open},
        {"close", ops->close},
        {"alloc", ops->alloc},
        {"free", ops->free},
        {"map", ops->map},
        {"copy", ops->copy || devices},
        /* the processor cannot move, share or clear such memory, so the plug-in must */
        {"export_block", ops->export_block || !devices},
        {"copy_start", ops->copy_start || !devices},
        {"zero", ops->zero || !devices},
        {"zero_part", ops->zero_part || !ops->alloc_unzeroed},
        {"unpin", ops->unpin || !ops->pin},
        {"unmap_part", ops->unmap_part || !ops->map_part},
    };
    enum rdt_status status = check_name("memory kind", ops->name, err);
    if (status == RDT_OK)
        status = CHECK_REQUIRED("memory kind", rows, err);
    plugin->has_memory = status == RDT_OK;
    return status;
}

static enum rdt_status copy_transport(struct plugin *plugin, struct rdt_error *err)
{
    struct rdt_transport_ops *ops = &plugin->transport;
    copy_table(ops, sizeof(*ops), plugin->backend.transport, plugin->backend.transport->struct_size);
    bool grouped = ops->group_create, alone = ops->connection_create || !grouped;
    bool one = ops->pack_key || ops->post_read, two = ops->post_send || ops->post_recv;
    const struct required rows[] = {
        {"memory_kinds", ops->memory_kinds && ops->memory_kinds[0]},
        {"open", ops->open},
        {"close", ops->close},
        {"connection_create", ops->connection_create || !alone},
        {"connection_destroy", ops->connection_destroy || !alone},
        {"offer", ops->offer || !alone},
        {"connect", ops->connect || !alone},
        {"sides", ops->sides},
        {"disconnect", ops->disconnect || !alone},
        {"group_offer", ops->group_offer || !grouped},
        {"group_connect", ops->group_connect || !grouped},
        {"group_conn", ops->group_conn || !grouped},
        {"group_close", ops->group_close || !grouped},
        {"group_destroy", ops->group_destroy || !grouped},
        {"a way to move bytes (post_send and post_recv, or pack_key and post_read)", one || two},
        /* one operation of a pair without the other is a bug of the plug-in */
        {"post_send", ops->post_send || !two},
        {"post_recv", ops->post_recv || !two},
        {"pack_key", ops->pack_key || !one},
        {"post_read", ops->post_read || !one},
        {"register_memory", ops->register_memory || (!one && !ops->unregister_memory)},
        {"unregister_memory", ops->unregister_memory || !ops->register_memory},
    };
    enum rdt_status status = check_name("transport", ops->name, err);
    if (status == RDT_OK)
        status = CHECK_REQUIRED("transport", rows, err);
    plugin->has_transport = status == RDT_OK;
    return status;
}

static enum rdt_status copy_tables(struct plugin *plugin, const struct rdt_backend *theirs, struct rdt_error *err)
{
    if (!theirs)
        return rdt_error_set(err, RDT_INVALID, "rdt_backend_init returned NULL");
    if (theirs->abi_version != RDT_BACKEND_ABI)
        return rdt_error_set(err, RDT_UNSUPPORTED, "was built for ABI version %u, but this rdtd has version %u: rebuild it",
                             theirs->abi_version, RDT_BACKEND_ABI);
    copy_table(&plugin->backend, sizeof plugin->backend, theirs, theirs->struct_size);
    enum rdt_status status = check_name("backend", plugin->backend.name, err);
    if (status != RDT_OK)
        return status;
    if (!plugin->backend.memory && !plugin->backend.transport)
        return rdt_error_set(err, RDT_INVALID, "has neither a memory kind nor a transport");
    if (plugin->backend.memory)
        status = copy_memory(plugin, err);
    if (status == RDT_OK && plugin->backend.transport)
        status = copy_transport(plugin, err);
    if (status != RDT_OK)
        return status;
    plugin->name = strdup(plugin->backend.name);
    if (!plugin->name)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    for (char *p = plugin->name; *p != 0; p++)
        *p = (char)tolower((unsigned char)*p);
    return RDT_OK;
}

static enum rdt_status open_library(struct plugin *plugin, struct rdt_error *err)
{
    plugin->library = dlopen(plugin->path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin->library) {
        const char *why = dlerror();
        return rdt_error_set(err, RDT_INVALID, "cannot be loaded: %s", why ? why : "no reason given");
    }
    /* ISO C has no conversion between void * and function pointers; POSIX guarantees the same
     * representation. */
    const struct rdt_backend *(*init)(void);
    void *symbol = dlsym(plugin->library, "rdt_backend_init");
    if (!symbol)
        return rdt_error_set(err, RDT_INVALID, "is not a backend: it exports no rdt_backend_init");
    memcpy(&init, &symbol, sizeof init);
    return copy_tables(plugin, init(), err);
}

/* The file is loaded by its path, so that the loader finds libraries beside it ($ORIGIN). If it is
 * guarded, only those who may change the file can make the path lead elsewhere meanwhile, and they get an
 * error. */
static enum rdt_status load(struct plugin *plugin, bool guarded, struct rdt_error *err)
{
    int fd;
    enum rdt_status status = plugin_file_open(plugin->path, guarded, &fd, err);
    if (status != RDT_OK)
        return status;
    status = open_library(plugin, err);
    if (status == RDT_OK && !plugin_file_is(plugin->path, fd))
        status = rdt_error_set(err, RDT_BUSY, "was replaced while it was being loaded: try again");
    close(fd);
    return status;
}

enum rdt_status plugin_load(const char *path, bool guarded, struct plugin **plugin_p, struct rdt_error *err)
{
    struct plugin *plugin = calloc(1, sizeof(*plugin));
    if (!plugin)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %s", path);
    list_init(&plugin->link);
    /* dlopen would search the system's directories for a bare name */
    plugin->path = realpath(path, NULL);
    if (!plugin->path) {
        int failed = errno;
        plugin_unload(plugin, false);
        if (failed == ENOENT || failed == ENOTDIR)
            return rdt_error_set(err, RDT_NOT_FOUND, "backend %s: there is no such file", path);
        return rdt_error_sys(err, failed, "backend %s", path);
    }
    plugin_blame_begin(plugin->path);
    enum rdt_status status = load(plugin, guarded, err);
    plugin_blame_end();
    if (status != RDT_OK) {
        rdt_error_prefix(err, "backend %s", path);
        plugin_unload(plugin, false);
        return status;
    }
    *plugin_p = plugin;
    return RDT_OK;
}

void plugin_unmap(struct plugin *plugin)
{
    if (plugin->library)
        dlclose(plugin->library);
    plugin->library = NULL;
}

void plugin_unload(struct plugin *plugin, bool keep_mapped)
{
    if (!plugin)
        return;
    if (!keep_mapped)
        plugin_unmap(plugin);
    options_extra_free(plugin->settings);
    free(plugin->path);
    free(plugin->name);
    free(plugin);
}
