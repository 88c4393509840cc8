/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_error.h"

#include <stdbool.h>

static bool is_failure(int32_t status)
{
    switch (status) {
#define X(number, name, sentence) case number:
        RDT_STATUS_MAP(X)
#undef X
        return status != RDT_OK && status != RDT_AGAIN && status != RDT_DISCONNECTED && status != RDT_FORKED;
    }
    return false;
}

enum rdt_status wire_error(int32_t status, int32_t sys_errno, const char *message, struct rdt_error *err)
{
    if (!is_failure(status))
        return rdt_error_set(err, RDT_PROTOCOL, "the other end reported a failure with status %d, which is not a failure%s%s",
                             (int)status, message[0] ? ": " : "", message);
    (void)rdt_error_set(err, (enum rdt_status)status, "%s",
                        message[0] ? message : rdt_status_sentence((enum rdt_status)status));
    if (err)
        err->sys_errno = sys_errno;
    return (enum rdt_status)status;
}
