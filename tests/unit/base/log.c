/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/log: each event is one line, whatever characters it contains. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "daemon/base/log.h"

static FILE *file;
static int real_stderr;

static void setup(void)
{
    file = tmpfile();
    real_stderr = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    unsetenv("JOURNAL_STREAM");
}

static void teardown(void)
{
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    fclose(file);
}

TestSuite(log, .init = setup, .fini = teardown);

static char text[8192];

static const char *written(void)
{
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    return text;
}

Test(log, line_has_time_and_level)
{
    log_info("conn %d", 12);
    int end = 0;
    cr_assert_eq(sscanf(written(), "%*4d-%*2d-%*2dT%*2d:%*2d:%*2d.%*3dZ info: conn 12\n%n", &end), 0);
    cr_assert_eq((size_t)end, strlen(text), "'%s'", text);
}

Test(log, journal_gets_priority_instead)
{
    struct stat st;
    char stream[64];
    fstat(STDERR_FILENO, &st);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_warn("degraded");
    cr_assert_str_eq(written(), "<4>degraded\n");
}

Test(log, journal_of_another_file_does_not_count)
{
    setenv("JOURNAL_STREAM", "1:1", 1);
    log_warn("degraded");
    cr_assert_not_null(strstr(written(), " warn: degraded\n"));
}

Test(log, threshold_holds)
{
    log_debug("quiet");
    cr_assert_str_eq(written(), "");
    log_threshold = LOG_LEVEL_TRACE;
    log_trace("loud");
    cr_assert_not_null(strstr(written(), " trace: loud\n"));
}

Test(log, control_characters_cannot_forge_lines)
{
    log_error("name '%s'", "a\nb\033[31m\x7f");
    cr_assert_not_null(strstr(written(), "name 'a?b?[31m?'\n"));
}

Test(log, what_terminals_obey_or_turns_text_round_is_not_shown)
{
    log_error("name '%s'", "\xc2\x9b"
                           "31m \xe2\x80\xae"
                           "txt.exe \xe2\x81\xa6 \xff \xc3");
    cr_assert_not_null(strstr(written(), "name '??31m ???txt.exe ??? ? ?'\n"), "%s", text);
    log_error("name '%s'", "Zo\xc3\xab \xe2\x82\xac \xf0\x9f\x90\xa7");
    cr_assert_not_null(strstr(written(), "name 'Zo\xc3\xab \xe2\x82\xac \xf0\x9f\x90\xa7'\n"), "%s", text);
}

Test(log, long_line_is_cut)
{
    char *big = malloc(5000);
    memset(big, 'x', 4999);
    big[4999] = 0;
    log_error("%s", big);
    size_t n = strlen(written());
    cr_assert_lt(n, 2049);
    cr_assert_str_eq(text + n - 4, "...\n");
    free(big);
}

Test(log, errno_survives)
{
    errno = ENOENT;
    log_error("cannot open: %m");
    cr_assert_eq(errno, ENOENT);
    cr_assert_not_null(strstr(written(), "cannot open: No such file or directory\n"));
}

Test(log, levels_have_names)
{
    enum log_level level;
    for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_TRACE; i++) {
        cr_assert(log_level_parse(log_level_name((enum log_level)i), &level));
        cr_assert_eq((int)level, i);
    }
    cr_assert_not(log_level_parse("loud", &level));
}

/* ---- nobody reads ---- */

static char taken[1 << 18];

static const char *read_all(int fd)
{
    size_t bytes = 0;
    ssize_t n;

    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    while ((n = read(fd, taken + bytes, sizeof taken - 1 - bytes)) > 0)
        bytes += (size_t)n;
    taken[bytes] = '\0';
    return taken;
}

/* The log fills standard error, whose other end is `reader`, without waiting; what it says when it goes on counts what is
 * missing. */
static void fill_and_go_on(int take_err, int reader)
{
    uint64_t before = log_lines_dropped();
    unsigned written = 0, missing = 0, all = 0;

    dup2(take_err, STDERR_FILENO);
    close(take_err);
    while (log_lines_dropped() < before + 3) {
        log_info("line %u of many, and it is long enough to fill a buffer soon ...........................", written++);
        cr_assert_lt(written, 100000u);
    }
    cr_assert_not(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK, "others share this file");
    for (unsigned i = 0; i < 2; i++) {
        const char *at = read_all(reader);
        cr_assert_not_null(strstr(at, i == 0 ? "line 0 of many" : "info: the log goes on"), "%s", at);
        while ((at = strstr(at, " warn: ")) != NULL && sscanf(at++, " warn: %u lines of the log are missing", &missing) == 1)
            all += missing;
        log_info("the log goes on");
    }
    cr_assert_eq(all, log_lines_dropped() - before, "%u of %u", all, (unsigned)(log_lines_dropped() - before));
}

Test(log, pipe_that_nobody_reads_holds_up_nobody)
{
    int ends[2];

    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    fill_and_go_on(ends[1], ends[0]);
}

Test(log, socket_that_nobody_reads_holds_up_nobody)
{
    int ends[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    fill_and_go_on(ends[1], ends[0]);
}

/* A pipe that another user has made cannot be opened again. */
Test(log, pipe_of_another_user_holds_up_nobody)
{
    int ends[2], status;

    if (geteuid() != 0)
        cr_skip_test("needs root, to become another user");
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (setresuid(2000, 2000, 2000) != 0 || open("/proc/self/fd/2", O_WRONLY | O_CLOEXEC) >= 0)
            _exit(3);
        fill_and_go_on(ends[1], ends[0]);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
}

/* As a file on a full disk: what is lost is counted, and said when there is room again. */
Test(log, file_that_takes_no_more_is_counted)
{
    char path[] = "/tmp/rdt-log-XXXXXX";
    struct rlimit before, small = {0};
    uint64_t dropped = log_lines_dropped();
    int fd = mkostemp(path, O_CLOEXEC);

    cr_assert(fd >= 0 && unlink(path) == 0);
    dup2(fd, STDERR_FILENO);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    log_info("nobody sees this");
    log_info("nor this");
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    cr_assert_eq(log_lines_dropped(), dropped + 2);
    log_info("the log goes on");
    (void)lseek(fd, 0, SEEK_SET);
    cr_assert_not_null(strstr(read_all(fd), "warn: 2 lines of the log are missing here"), "%s", taken);
    cr_assert_not_null(strstr(taken, "info: the log goes on"));
}

/* ^S at a terminal. */
Test(log, stopped_terminal_holds_up_nobody)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;
    uint64_t before = log_lines_dropped();

    if (master < 0)
        cr_skip_test("no pseudo-terminal can be opened: %m");
    cr_assert(grantpt(master) == 0 && unlockpt(master) == 0);
    slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    cr_assert_geq(slave, 0);
    cr_assert_eq(tcflow(slave, TCOOFF), 0);
    dup2(slave, STDERR_FILENO);
    log_info("nobody sees this");
    cr_assert_eq(log_lines_dropped(), before + 1);
    cr_assert_eq(tcflow(slave, TCOON), 0);
    close(slave);
    log_info("the log goes on");
    cr_assert_not_null(strstr(read_all(master), "warn: 1 lines of the log are missing here"), "%s", taken);
    cr_assert_not_null(strstr(taken, "info: the log goes on"));
}
