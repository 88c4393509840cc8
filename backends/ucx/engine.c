/* SPDX-License-Identifier: Apache-2.0 */
/* An engine: a UCX context with its data thread. Each engine has its own context, so that UCX shares nothing between threads
 * and needs no locks. */
#include <stdlib.h>

#include "backends/ucx/ucx.h"

static void engine_free(struct engine *engine)
{
    if (engine->context)
        ucp_cleanup(engine->context);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

/* If UCX does not answer, memory.types stays 0, and the transport moves host memory only. */
static void query_memory(struct engine *engine)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    unsigned release;

    ucp_get_version(&engine->memory.major, &engine->memory.minor, &release);
    engine->memory.module = ucx_has_cuda_module();
    if (ucp_context_query(engine->context, &attr) == UCS_OK)
        engine->memory.types = attr.memory_types;
}

enum rdt_status engine_create(const struct rdt_host *host, const struct settings *settings, unsigned index,
                              struct engine **engine_p, struct rdt_error *err)
{
    struct engine *engine = calloc(1, sizeof *engine);
    enum rdt_status status;

    if (!engine)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for an engine");
    engine->host = *host;
    engine->settings = *settings;
    engine->index = index;
    if (settings->port)
        engine->settings.port = (uint16_t)(settings->port + index);
    (void)pthread_mutex_init(&engine->lock, NULL);
    ring_init(&engine->conns);
    ring_init(&engine->active);
    ring_init(&engine->ending);
    ring_init(&engine->dying);
    strangers_init(&engine->strangers, MAX_STRANGERS, MAX_STRANGERS_OF_SOURCE);
    for (unsigned i = 0; i < LINK_BUCKETS; i++)
        ring_init(&engine->links[i]);
    status = settings_context(settings, &engine->context, err);
    if (status == RDT_OK)
        query_memory(engine);
    if (status == RDT_OK)
        status = thread_start(engine, err);
    if (status != RDT_OK) {
        engine_free(engine);
        return status;
    }
    *engine_p = engine;
    return RDT_OK;
}

void engine_destroy(struct engine *engine)
{
    thread_stop(engine);
    thread_join(engine);
    engine_free(engine);
}
