/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl doctor's own checks, beside those of the daemon: where a file of them puts what it finds. */
#ifndef CTL_DOCTOR_H
#define CTL_DOCTOR_H

#include "client/ctl/ctl.h"

enum { OK, WARN, FAIL, SKIP, STATUSES };

struct report;

/* Adds a finding: a sentence, and what to do, which is "" if all is well. */
void report_find(struct report *report, const char *id, const char *name, int status, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* gpus.c: what the management library of NVIDIA's driver (NVML) says of the GPUs that the daemon serves. owner: the daemon's
 * user. Loads the library, which makes no context. */
void doctor_gpus(struct report *report, struct ctl *ctl, uid_t owner);

#endif
