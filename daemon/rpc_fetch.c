/* FETCH, CANCEL, RELEASE: all items start before any is served; each is answered by its own FETCH_DONE. */
#include <stdlib.h>

#include "daemon/rpc_call.h"

#define TWINS_TRIED 16 /* a message may ask for thousands of slices of one object: each is compared with the latest few */

/* Finds an earlier item of the message that one may share a transfer with. By id: few messages repeat one. */
struct seen {
    struct map by_id; /* id bytes -> index + 1 of the last item that began a transfer with it */
    size_t *earlier;  /* index + 1 of the one before with the same id; 0: none */
};

static struct transfer *find_twin(struct seen *seen, const Rdt__Pb__Fetch *message, struct transfer **started, size_t i)
{
    const Rdt__Pb__FetchItem *item = message->items[i];
    size_t last;
    unsigned tries = 0;

    if (!item->ref || item->ref->id.len == 0)
        return NULL;
    last = (size_t)map_get(&seen->by_id, item->ref->id.data, item->ref->id.len);
    for (size_t at = last; at != 0 && tries < TWINS_TRIED; at = seen->earlier[at - 1], tries++)
        if (started[at - 1] && fetch_joinable(message, item, message->items[at - 1]))
            return started[at - 1];
    if (last != 0)
        (void)map_remove(&seen->by_id, item->ref->id.data, item->ref->id.len);
    seen->earlier[i] = last;
    (void)map_put(&seen->by_id, item->ref->id.data, item->ref->id.len, (void *)(i + 1));
    return NULL;
}

/* Nothing was started: each item hears of it. */
static enum rdt_status refuse_all(struct call *call, const Rdt__Pb__Fetch *message, const struct rdt_error *why)
{
    for (size_t i = 0; i < message->n_items; i++)
        fetch_answer_error(call->client, message->items[i]->handle, why);
    call_reply_empty(call);
    return RDT_OK;
}

enum rdt_status rpc_fetch(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Fetch *message = request;
    struct client *client = call->client;
    struct rpc *rpc = call->rpc;
    struct transfer **started;
    struct seen seen;
    size_t n = message->n_items;

    if (rpc->draining) {
        (void)rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
        return refuse_all(call, message, err);
    }
    if (n > RDT_MAX_FETCH_REFS) {
        (void)rdt_error_set(err, RDT_LIMIT, "a fetch of %zu refs: at most %u in one message", n, RDT_MAX_FETCH_REFS);
        return refuse_all(call, message, err);
    }
    started = calloc(n + 1, sizeof *started);
    seen.earlier = calloc(n + 1, sizeof *seen.earlier);
    if (!started || !seen.earlier) {
        free(started);
        free(seen.earlier);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the fetch");
        return refuse_all(call, message, err);
    }
    if (n > 1)
        map_init(&seen.by_id);
    call_reply_empty(call); /* each item answers for itself */
    for (size_t i = 0; i < n; i++) {
        struct transfer *twin = n > 1 ? find_twin(&seen, message, started, i) : NULL;
        struct rdt_error why = {0};
        if (fetch_start(rpc->transfers, client, message, message->items[i], twin, &started[i], &why) != RDT_OK) {
            fetch_answer_error(client, message->items[i]->handle, &why);
            started[i] = NULL;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (started[i])
            transfer_go(started[i]);
    if (n > 1)
        map_fini(&seen.by_id);
    free(seen.earlier);
    free(started);
    return RDT_OK;
}

enum rdt_status rpc_cancel(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Cancel *message = request;
    struct fetch *fetch = map_get_u64(&call->client->fetches, message->handle);
    struct rdt_error why;

    (void)err;
    if (fetch) { /* else it ended meanwhile: nothing to do, and nothing wrong */
        (void)rdt_error_set(&why, RDT_CANCELLED, "the fetch was cancelled");
        fetch_fail(fetch, &why);
    }
    call_reply_empty(call);
    return RDT_OK;
}

enum rdt_status rpc_release(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Release *message = request;
    struct hold *hold = map_get_u64(&call->client->holds, message->hold);

    if (!hold)
        return rdt_error_set(err, RDT_NOT_FOUND, "this client has no hold %llu", (unsigned long long)message->hold);
    client_release(hold);
    call_reply_empty(call);
    return RDT_OK;
}
