/* SPDX-License-Identifier: Apache-2.0 */
/* The id of this process, without a system call: every public function compares it, rdt_object_tensor too. */
#ifndef CLIENT_PROCESS_H
#define CLIENT_PROCESS_H

#include <sys/types.h>

pid_t process_pid(void);

#endif
