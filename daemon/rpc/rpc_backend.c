/* SPDX-License-Identifier: Apache-2.0 */
/* BACKEND_LOAD and BACKEND_UNLOAD. A plug-in runs as the daemon, so only root and the daemon's own user may load one. */
#include <limits.h>
#include <stdlib.h>

#include "daemon/rpc/rpc.h"
#include "daemon/view/view.h"
#include "proto/wire_limits.h"

#define MAX_SETTINGS 64u
#define MAX_SETTING_BYTES 4096u

static enum rdt_status add_setting(struct options_extra **extras, const char *setting, struct rdt_error *err)
{
    const char *equals = strchr(setting, '=');
    struct options_extra *extra;

    if (!equals || equals == setting || strlen(setting) > MAX_SETTING_BYTES)
        return rdt_error_set(err, RDT_INVALID, "'%.64s' is not a setting: write KEY=VALUE, with at most %u bytes", setting,
                             MAX_SETTING_BYTES);
    extra = calloc(1, sizeof *extra);
    if (!extra)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a setting");
    extra->next = *extras;
    *extras = extra; /* the last setting of a key wins */
    extra->section = strdup("");
    extra->key = strndup(setting, (size_t)(equals - setting));
    extra->value = strdup(equals + 1);
    return extra->section && extra->key && extra->value ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for a setting");
}

static enum rdt_status take_settings(const Rdt__Pb__BackendLoad *message, struct options_extra **extras_p,
                                     struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    if (message->n_settings > MAX_SETTINGS)
        return rdt_error_set(err, RDT_INVALID, "%zu settings: at most %u are possible", message->n_settings, MAX_SETTINGS);
    for (size_t i = 0; i < message->n_settings && status == RDT_OK; i++)
        status = add_setting(extras_p, message->settings[i], err);
    if (status != RDT_OK)
        options_extra_free(*extras_p);
    return status;
}

/* ---- the end of a change, or of the wait for it ---- */

static void answer(struct call *call, const struct plugin_roles *roles)
{
    Rdt__Pb__BackendReply reply = RDT__PB__BACKEND_REPLY__INIT;
    Rdt__Pb__BackendInfo *rows[2];
    struct rdt_error err = {0};
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    reply.backends = rows;
    if (roles && roles->kind)
        rows[reply.n_backends++] = row_memory(&arena, roles->kind);
    if (roles && roles->transport)
        rows[reply.n_backends++] = row_transport(&arena, roles->transport);
    for (size_t i = 0; i < reply.n_backends; i++)
        if (!rows[i])
            (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the answer, but the backend has been loaded");
    if (err.status != RDT_OK)
        call_fail(call, &err);
    else
        call_reply(call, &reply.base, NULL, 0);
    arena_fini(&arena);
}

static void on_changed(void *arg, const struct plugin_roles *roles, const struct rdt_error *err)
{
    struct call *call = arg;

    if (err)
        call_fail(call, err);
    else
        answer(call, roles);
}

static void on_end(struct call *call)
{
    hotload_cancel_wait(call->rpc->hotload, call);
}

enum rdt_status rpc_backend_load(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__BackendLoad *message = request;
    struct options_extra *settings = NULL;
    enum rdt_status status = RDT_OK;

    if (message->path[0] != '/' || strlen(message->path) >= PATH_MAX)
        status = rdt_error_set(err, RDT_INVALID, "'%.200s' is not the absolute path of a file", message->path);
    if (status == RDT_OK)
        status = take_settings(message, &settings, err);
    if (status != RDT_OK)
        return status;
    status = call_defer(call, message->timeout_ns, on_end, err);
    if (status != RDT_OK) {
        options_extra_free(settings);
        return status;
    }
    return hotload_load(call->rpc->hotload, message->path, settings, on_changed, call, err);
}

enum rdt_status rpc_backend_unload(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__BackendUnload *message = request;
    enum rdt_status status;

    if (message->name[0] == '\0' || strlen(message->name) > RDT_MAX_NAME_BYTES)
        return rdt_error_set(err, RDT_INVALID, "'%.64s' is not the name of a backend", message->name);
    status = call_defer(call, message->timeout_ns, on_end, err);
    return status == RDT_OK ? hotload_unload(call->rpc->hotload, message->name, on_changed, call, err) : status;
}
