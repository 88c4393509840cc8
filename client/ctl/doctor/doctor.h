/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl doctor's own checks, beside those of the daemon, and what they report to. */
#ifndef CTL_DOCTOR_H
#define CTL_DOCTOR_H

#include <jansson.h>
#include <sys/types.h>

#include "client/ctl/ctl.h"

enum { OK, WARN, FAIL, SKIP, STATUSES };

extern const char *const report_status_names[STATUSES];

struct report {
    struct ctl *ctl;
    const char *path; /* of the daemon's socket */
    uid_t owner;      /* of the socket */
    unsigned n[STATUSES];
    json_t *rows; /* NULL without --json */
};

/* Adds a row, of this program or of the daemon: counts it, and prints it unless the rows are printed as JSON at the end. */
void report_add(struct report *report, const char *id, const char *name, int status, const char *sentence, const char *remedy);

/* Adds a finding: a sentence, and what to do, which is "" if all is well. */
void report_find(struct report *report, const char *id, const char *name, int status, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* gpus.c: what the management library of NVIDIA's driver (NVML) says of the GPUs that the daemon serves. owner: the daemon's
 * user. Loads the library, which makes no context. */
void doctor_gpus(struct report *report, struct ctl *ctl, uid_t owner);

#endif
