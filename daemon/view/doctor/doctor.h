/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `rdtctl doctor` that only the daemon can make. A check is a row of the table in rpc_doctor.c; it looks at the
 * daemon as it is now, changes nothing, and states one finding or several, each with what to do about it.
 *
 *   rpc_doctor.c         the request, the table of checks, and those of the daemon's own rooms
 *   doctor.c             findings
 *   doctor_files.c       what some checks need of files, which may lie where nothing answers: a thread looks at them first
 *   doctor_machine.c     checks of what the kernel and this machine allow
 *   doctor_storage.c     checks of stored objects
 *   doctor_devices.c     checks of memory on devices
 */
#ifndef DAEMON_DOCTOR_H
#define DAEMON_DOCTOR_H

#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "daemon/calls/call.h"
#include "proto/layout.h"

#define DOCTOR_CHECKS 40u          /* at most in the table */
#define DOCTOR_ROWS_OF_A_CHECK 32u /* doctor_finish_check counts the findings beyond these */
#define DOCTOR_ROWS (DOCTOR_CHECKS * (DOCTOR_ROWS_OF_A_CHECK + 1))

enum finding { FINDING_OK, FINDING_WARN, FINDING_FAIL, FINDING_SKIP };

/* What a thread has found, step by step. The results of a step are read after doctor_has_seen of it only. */
enum doctor_step { DOCTOR_STORAGE_DIR, DOCTOR_STATE_DIR, DOCTOR_CONFIGURATION, DOCTOR_KEY };

struct doctor_files {
    const struct options *options; /* of which no key that reloads may be read */
    _Atomic unsigned n_done;       /* steps */
    uint64_t since_ns;
    int storage_errno; /* 0: the two are valid */
    struct stat storage;
    struct statfs storage_fs;
    struct rdt_error state_dir, configuration, peers; /* status OK: there is no fault */
    struct options fresh;                             /* the configuration as it is now, unless it has a fault */
    struct tls_context *key;                          /* its key for other nodes; NULL: none, or it has a fault */
};

struct doctor {
    const struct call *call;
    const struct rpc *rpc;
    struct arena *arena;
    struct doctor_files *files; /* NULL: earlier looks at files have not come back, so there was none */
    const char *id, *name;      /* of the check that runs */
    unsigned shown;             /* findings of that check in rows */
    unsigned left_out;          /* findings of that check beyond DOCTOR_ROWS_OF_A_CHECK, and the worst of them */
    enum finding worst_left_out;
    Rdt__Pb__Check *rows[DOCTOR_ROWS];
    size_t n;
    bool failed; /* no memory for a finding */
};

/* Adds a finding of the present check: a sentence that ends in a full stop. remedy is a sentence, too; "" if there is nothing
 * to do. Both are copied. */
void doctor_find(struct doctor *doctor, enum finding finding, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether the thread has done the step. If not, adds a finding that it still looks at `what`. */
bool doctor_has_seen(struct doctor *doctor, enum doctor_step step, const char *what);

/* Has a thread look at the files; then on_seen runs, once, perhaps at once: after a few seconds it is told what has been found
 * until then. It does not run if the call has ended. Errors: NO_MEMORY, LIMIT. */
enum rdt_status doctor_look(struct call *call, void (*on_seen)(struct call *call, struct doctor_files *files),
                            struct rdt_error *err);

/* A check begins, and ends. At its end one more row says how many of its findings are not among the rows. */
void doctor_begin_check(struct doctor *doctor, const char *id, const char *name);
void doctor_finish_check(struct doctor *doctor);

/* doctor_machine.c: what the kernel and the configuration of this machine allow the daemon. */
void doctor_open_files(struct doctor *doctor);
void doctor_locked_memory(struct doctor *doctor);
void doctor_control_group(struct doctor *doctor);
void doctor_huge_pages(struct doctor *doctor);
void doctor_overcommit(struct doctor *doctor);
void doctor_orphans(struct doctor *doctor);

/* doctor_devices.c: whether devices can be used and shared, and which transports move their memory. */
void doctor_devices(struct doctor *doctor);
void doctor_device_transports(struct doctor *doctor);

/* doctor_storage.c: the directory of stored objects, the room there, and what was found or failed there. */
void doctor_storage(struct doctor *doctor);
void doctor_storage_room(struct doctor *doctor);
void doctor_storage_files(struct doctor *doctor);

#endif
