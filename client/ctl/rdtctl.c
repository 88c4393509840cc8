/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl: shows and changes what the daemon of this node holds and does, and puts and fetches files. This file finds the
 * subcommand and runs it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_progress.h"
#include "proto/std_fds.h"
#include "proto/suggest.h"

static struct ctl_command commands[] = {/* main gives them their names */
#define X(name, arguments, help, more) {#name, ctl_##name, arguments, help, more},
                                        CTL_COMMAND_MAP(X)
#undef X
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

/* C has no hyphens in names. */
static void name_commands(void)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        for (char *at = commands[i].name; (at = strchr(at, '_'));)
            *at = '-';
}

static const struct ctl_command *find(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

/* next: the word behind it, or NULL. */
static int unknown_command(struct ctl *ctl, const char *name, const char *next)
{
    struct suggest nearest;
    char hint[64];

    if (next && find(next))
        return ctl_usage_error(ctl, "the command comes first: rdtctl %s %s", next, name);
    suggest_init(&nearest, name);
    for (size_t i = 0; i < N_COMMANDS; i++)
        suggest_try(&nearest, commands[i].name);
    suggest_hint(&nearest, "", hint, sizeof hint);
    return ctl_usage_error(ctl, "unknown command '%s'%s", name, hint);
}

static void print_overview(FILE *out)
{
    fprintf(out, "usage: rdtctl COMMAND [arguments] [options]\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\noptions of every command:\n");
    ctl_print_shared_options(out);
    fprintf(out, "\n"
                 "A REF is the text that put prints (rdt:NODE/ID?...), or the id of an object of yours on this node.\n"
                 "`rdtctl COMMAND --help` describes a command.\n"
                 "Exit status: 0 success, 1 refused or failed, 2 wrong usage, 3 no daemon, 4 timed out.\n");
}

static int run(struct ctl *ctl, int argc, char **argv)
{
    bool help = false, version = false;
    char *help_argv[] = {NULL, "--help", NULL};
    int next, result = ctl_parse_shared(ctl, argc, argv, &next, &help, &version);

    if (result != CTL_GO)
        return result;
    if (version) {
        printf("rdtctl %s\n", RDT_VERSION);
        return CTL_OK;
    }
    if (!help && next < argc && strcmp(argv[next], "help") == 0) {
        help = true;
        next++;
    }
    if (help && next == argc) {
        print_overview(stdout);
        return CTL_OK;
    }
    if (next == argc) {
        print_overview(stderr);
        return CTL_USAGE;
    }
    ctl->command = find(argv[next]);
    if (!ctl->command)
        return unknown_command(ctl, argv[next], argv[next + 1]);
    if (help) {
        help_argv[0] = argv[next];
        return ctl->command->run(ctl, 2, help_argv);
    }
    return ctl->command->run(ctl, argc - next, argv + next);
}

int main(int argc, char **argv)
{
    struct ctl ctl = {.started_ns = ctl_now_ns()};
    int code;

    std_fds_open();
    (void)signal(SIGXFSZ, SIG_IGN); /* a file above a limit fails with an error that names the limit */
    name_commands();
    code = run(&ctl, argc, argv);
    rdt_close(ctl.rdt);
    return ctl_flush(code);
}
