/* SPDX-License-Identifier: Apache-2.0 */
/* A lock that keeps a folder for one process. It is a flock of a file there, which says which process has it.
 *
 *   free ──► taken ──► free                 the file is closed, or its process has ended
 *              └─────► the holder is dying ──► taken by the next process, on a new file of that name
 *
 * The kernel keeps the descriptors of a process until its last thread has ended, and a thread in the close of a file of a
 * user's file system may never end. Therefore a lock whose holder is dying is taken from it (process_is_dying). A holder that
 * cannot be seen, such as one in another container, counts as alive. */
#ifndef DAEMON_FOLDER_LOCK_H
#define DAEMON_FOLDER_LOCK_H

#include <sys/types.h>

#include "rdt_status.h"

/* Takes the lock `file` of the folder. *fd_p: close it to give the lock back. *dying_p: in, a process
 * that is known to be dying, or 0; out, the process from which the lock was taken, or 0. EXISTS: another process has the lock,
 * or is taking it; the caller says which folder that is. SYSTEM, INVALID. Waits two seconds for a holder that is dying, unless
 * that is known. */
enum rdt_status folder_lock_take(const char *folder, const char *file, int *fd_p, pid_t *dying_p, struct rdt_error *err);

#endif
