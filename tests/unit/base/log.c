/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/log: each event is one line, whatever characters it contains. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
