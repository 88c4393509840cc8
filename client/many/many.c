/* SPDX-License-Identifier: Apache-2.0 */
/* Questions and ends of many objects or names, in one message or a few. */
#include "client/rdt_many.h"

#include "client/call.h"
#include "client/options.h"
#include "client/session/connection.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"

static enum rdt_status check_refs(const rdt *conn, const struct rdt_ref *refs, size_t count, const void *results,
                                  struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && count > 0 && (!refs || !results))
        status = rdt_error_set(err, RDT_INVALID, "%s is NULL, and count is %zu", refs ? "statuses_p" : "refs", count);
    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        status = options_check_ref(&refs[i], err);
        if (status != RDT_OK)
            rdt_error_prefix(err, "ref %zu", i);
    }
    return status;
}

/* ---- exists ---- */

static bool is_known(enum rdt_status status)
{
    return status == RDT_OK || status == RDT_NOT_PUT || status == RDT_FREED || status == RDT_OWNER_DIED ||
           status == RDT_NOT_FOUND;
}

/* Of refs [n], at most RDT_MAX_FETCH_REFS. *why_p is filled by the first of all of which nothing is known. */
static enum rdt_status ask(rdt *conn, const struct rdt_ref *refs, size_t n, enum rdt_status *statuses, struct rdt_error *why_p,
                           struct rdt_error *err)
{
    Rdt__Pb__Exists request = RDT__PB__EXISTS__INIT;
    const Rdt__Pb__ExistsReply *reply;
    ProtobufCMessage *answer = NULL;
    struct arena arena;
    enum rdt_status status;

    arena_init(&arena, SIZE_MAX / 2);
    status = ref_list_make(&arena, refs, n, &request.refs, err);
    if (status == RDT_OK)
        status = call(conn, RDT_MSG_EXISTS, &request.base, CALL_TIMEOUT_NS, &answer, err);
    arena_fini(&arena);
    if (status != RDT_OK)
        return status;
    reply = (const Rdt__Pb__ExistsReply *)answer;
    if (reply->n_status != n)
        status = rdt_error_set(err, RDT_PROTOCOL, "rdtd answered EXISTS for %zu of %zu refs", reply->n_status, n);
    for (size_t i = 0; status == RDT_OK && i < n; i++) {
        struct rdt_error why;

        statuses[i] = (enum rdt_status)reply->status[i];
        if (is_known(statuses[i]))
            continue;
        statuses[i] = wire_error(reply->status[i], 0, reply->why, &why);
        if (why_p->status == RDT_OK)
            *why_p = why;
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

enum rdt_status rdt_exists(rdt *conn, const struct rdt_ref *refs, size_t count, enum rdt_status *statuses_p,
                           struct rdt_error *err)
{
    struct rdt_error why = {0};
    enum rdt_status status = check_refs(conn, refs, count, statuses_p, err);

    for (size_t first = 0; status == RDT_OK && first < count; first += RDT_MAX_FETCH_REFS) {
        size_t n = count - first < RDT_MAX_FETCH_REFS ? count - first : RDT_MAX_FETCH_REFS;
        status = ask(conn, refs + first, n, statuses_p + first, &why, err);
    }
    if (status != RDT_OK || why.status == RDT_OK)
        return status;
    if (err)
        *err = why;
    return why.status;
}
