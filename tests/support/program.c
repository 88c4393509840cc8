/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/rdtd.h"

static void run(const struct program *program, const char *const *argv, const char *const *env, pid_t parent)
{
    int out = open(program->out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int err = open(program->err_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(CHECK_FAILED);
    for (int number = 1; number < 32; number++)
        (void)signal(number, SIG_DFL);
    (void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    for (; env && *env; env++)
        (void)putenv((char *)(uintptr_t)*env);
    (void)execv(strchr(argv[0], '/') ? argv[0] : build_path(argv[0]), (char *const *)(uintptr_t)argv);
    _exit(127);
}

void program_start(struct program *program, const char *const *argv, const char *const *env)
{
    const char *dir = getenv("TMPDIR");
    pid_t parent = getpid();
    static unsigned n;

    *program = (struct program){.pid = -1};
    (void)snprintf(program->out_path, sizeof program->out_path, "%.120s/out.%d.%u", dir ? dir : "/tmp", (int)parent, ++n);
    (void)snprintf(program->err_path, sizeof program->err_path, "%.120s/err.%d.%u", dir ? dir : "/tmp", (int)parent, n);
    write_file(program->out_path, "");
    write_file(program->err_path, "");
    (void)fflush(NULL);
    program->pid = fork();
    must(program->pid >= 0);
    if (program->pid == 0)
        run(program, argv, env, parent);
    program->pidfd = (int)syscall(SYS_pidfd_open, program->pid, 0);
    must(program->pidfd >= 0);
    harness_fds++;
}

void program_wait(struct program *program)
{
    must_say(child_ends(program->pid, program->pidfd, LONG, &program->status), "the program does not end: %s",
             read_file(program->err_path, NULL));
    (void)close(program->pidfd);
    harness_fds--;
    program->out = read_file(program->out_path, NULL);
    program->err = read_file(program->err_path, NULL);
    (void)unlink(program->out_path);
    (void)unlink(program->err_path);
}

void program_free(struct program *program)
{
    free(program->out);
    free(program->err);
    program->out = program->err = NULL;
}

void program_run(struct program *program, const char *const *argv, const char *const *env)
{
    program_start(program, argv, env);
    program_wait(program);
}

static bool has_line(const struct program *program, char *line_p, size_t size)
{
    char *text = read_file(program->out_path, NULL), *end = strchr(text, '\n');

    if (end) {
        *end = '\0';
        (void)snprintf(line_p, size, "%s", text);
    }
    free(text);
    return end;
}

void program_first_line(struct program *program, char *line_p, size_t size)
{
    wait_until(20 * SEC, has_line(program, line_p, size));
}
