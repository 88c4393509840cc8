/* What the plug-in says of itself. */
#include <stdio.h>
#include <string.h>

#include "plugin.h"

enum rdt_status frozen_error(struct rdt_error *err, enum rdt_status status, int sys_errno, const char *what)
{
    if (err) {
        err->status = status;
        err->sys_errno = sys_errno;
        (void)snprintf(err->msg, sizeof err->msg, "%s%s%s", what, sys_errno ? ": " : "", sys_errno ? strerror(sys_errno) : "");
    }
    return status;
}

static const struct rdt_config_key config_keys[] = {
    {"directory", "/dev/shm", "folder that both nodes see"},
    {NULL, NULL, NULL},
};

const struct rdt_backend *rdt_backend_init(void)
{
    static const struct rdt_backend backend = {
        .abi_version = RDT_BACKEND_ABI,
        .struct_size = sizeof backend,
        .name = "Frozen",
        .version = "1",
        .config_keys = config_keys,
        .memory = &frozen_memory,
        .transport = &frozen_transport,
    };
    return &backend;
}
