/* SPDX-License-Identifier: Apache-2.0 */
/* Runs programs to their end, and returns their output and exit status. */
#ifndef TESTS_SUPPORT_PROGRAM_H
#define TESTS_SUPPORT_PROGRAM_H

#include <stddef.h>
#include <sys/types.h>

struct program {
    pid_t pid;
    int pidfd;
    char out_path[160], err_path[160];
    char *out, *err; /* after program_wait; zero-terminated */
    int status;      /* exit status, or 128 + the signal */
};

/* argv[0] is below the build folder ("rdtctl"), or a path; NULL at the end. The environment: the test's, and `env`
 * ("NAME=VALUE" ..., NULL at the end, or NULL). Dies with the test. */
void program_start(struct program *program, const char *const *argv, const char *const *env);
void program_wait(struct program *program); /* fails the test after LONG */
void program_free(struct program *program);

/* Both. */
void program_run(struct program *program, const char *const *argv, const char *const *env);

/* Waits for the first line of its output; into line_p without the newline. */
void program_first_line(struct program *program, char *line_p, size_t size);

#endif
