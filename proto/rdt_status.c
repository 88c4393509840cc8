/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sentences of the statuses, and how an error is filled. */
#include "rdt_status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

const char *rdt_status_name(enum rdt_status status)
{
    switch (status) {
#define X(number, name, sentence) \
    case RDT_##name:              \
        return #name;
        RDT_STATUS_MAP(X)
#undef X
    }
    return "UNKNOWN";
}

const char *rdt_status_sentence(enum rdt_status status)
{
    switch (status) {
#define X(number, name, sentence) \
    case RDT_##name:              \
        return sentence;
        RDT_STATUS_MAP(X)
#undef X
    }
    return "a status that this version does not know";
}

enum rdt_status rdt_error_set(struct rdt_error *err, enum rdt_status status, const char *fmt, ...)
{
    if (err) {
        va_list args;
        err->status = status;
        err->sys_errno = 0;
        va_start(args, fmt);
        (void)vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
    }
    return status;
}

/* Memory that is shared is a file, too. */
static void name_file_limit(char *text, size_t size)
{
    size_t used = strlen(text);
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        (void)snprintf(text + used, size - used,
                       "; files and shared memory of this process may have at most %llu bytes (ulimit -f, LimitFSIZE=)",
                       (unsigned long long)limit.rlim_cur);
}

enum rdt_status rdt_error_sys(struct rdt_error *err, int sys_errno, const char *fmt, ...)
{
    if (err) {
        char reason[96];
        va_list args;
        int used;

        err->status = RDT_SYSTEM;
        err->sys_errno = sys_errno;
        va_start(args, fmt);
        used = vsnprintf(err->msg, sizeof err->msg, fmt, args);
        va_end(args);
        if (used >= 0 && (size_t)used < sizeof err->msg)
            (void)snprintf(err->msg + used, sizeof err->msg - (size_t)used, ": %s",
                           strerror_r(sys_errno, reason, sizeof reason));
        if (sys_errno == EFBIG)
            name_file_limit(err->msg, sizeof err->msg);
    }
    return RDT_SYSTEM;
}

void rdt_error_prefix(struct rdt_error *err, const char *fmt, ...)
{
    char rest[sizeof err->msg];
    va_list args;
    int used;

    if (!err)
        return;
    memcpy(rest, err->msg, sizeof rest);
    va_start(args, fmt);
    used = vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof err->msg)
        (void)snprintf(err->msg + used, sizeof err->msg - (size_t)used, ": %s", rest);
}
