/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc says about another process. */
#ifndef DAEMON_PROCESS_H
#define DAEMON_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* When the process started: field 22 of /proc/PID/stat. Together with the pid it names one process. 0: it cannot be read. */
uint64_t process_started(pid_t pid);

/* Whether none of its code will run any more although the kernel keeps the process: a thread of it waits in the kernel, for
 * example in the close of a file whose file system does not answer, or its memory is being dumped. Such a process keeps its
 * descriptors, and so its locks and sockets. started: as above; 0: any process of that pid. false also for a process that
 * cannot be seen from here. */
bool process_is_dying(pid_t pid, uint64_t started);

#endif
