/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_backend_load and rdt_backend_unload. */
#include <stdlib.h>

#include "call.h"
#include "rdt.pb-c.h"
#include "session/connection.h"

/* The daemon ends the request at its deadline and says what was missing. librdt waits a little longer for that answer. */
#define SLACK_NS INT64_C(2000000000)

static int64_t answer_ns(int64_t timeout_ns)
{
    return timeout_ns < 0 || timeout_ns > INT64_MAX - SLACK_NS ? -1 : timeout_ns + SLACK_NS;
}

enum rdt_status rdt_backend_load(rdt *conn, const char *path, const char *const *settings, int64_t timeout_ns,
                                 struct rdt_error *err)
{
    Rdt__Pb__BackendLoad request = RDT__PB__BACKEND_LOAD__INIT;
    enum rdt_status status = connection_check(conn, err);
    char *real;

    if (status == RDT_OK && !path)
        status = rdt_error_set(err, RDT_INVALID, "the path is NULL");
    if (status != RDT_OK)
        return status;
    real = realpath(path, NULL); /* NULL: this process does not see the file, but the daemon may */
    request.path = real ? real : (char *)path;
    request.settings = (char **)settings;
    while (settings && settings[request.n_settings])
        request.n_settings++;
    request.timeout_ns = timeout_ns;
    status = call(conn, RDT_MSG_BACKEND_LOAD, &request.base, answer_ns(timeout_ns), NULL, err);
    free(real);
    return status;
}

enum rdt_status rdt_backend_unload(rdt *conn, const char *name, int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__BackendUnload request = RDT__PB__BACKEND_UNLOAD__INIT;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !name)
        status = rdt_error_set(err, RDT_INVALID, "the name is NULL");
    if (status != RDT_OK)
        return status;
    request.name = (char *)name;
    request.timeout_ns = timeout_ns;
    return call(conn, RDT_MSG_BACKEND_UNLOAD, &request.base, answer_ns(timeout_ns), NULL, err);
}
