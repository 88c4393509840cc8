/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines: parses the shared options and those of a subcommand. --help is made from the same tables. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "proto/suggest.h"

#define MAX_OPTIONS 32
#define LONG_ONLY 256 /* getopt's value of option i is LONG_ONLY + i */

struct parser {
    struct ctl_option all[MAX_OPTIONS];
    unsigned count;
    struct option longs[MAX_OPTIONS + 1];
    char shorts[2 * MAX_OPTIONS + 3];
    bool help, version;
};

static const struct ctl_option *shared_options(struct ctl *ctl, struct parser *parser, unsigned i)
{
    const struct ctl_option rows[] = {
        {0, "socket", CTL_TEXT, "PATH", "the daemon's socket ($RDT_SOCKET, else /run/rdtd/rdtd.sock)", &ctl->socket},
        {0, "daemon-uid", CTL_NUMBER, "UID", "the daemon's user ($RDT_DAEMON_UID, else root, you, or the folder's owner)",
         &ctl->daemon_uid},
        {0, "timeout", CTL_DURATION, "TIME", "time limit: 500ms, 30s, 5m, 2h or forever; 0: do not wait", &ctl->timeout_ns},
        {0, "json", CTL_FLAG, NULL, "print JSON", &ctl->json},
        {'q', "quiet", CTL_FLAG, NULL, "print no progress and no summary", &ctl->quiet},
        {'h', "help", CTL_FLAG, NULL, "print this help", &parser->help},
        {'V', "version", CTL_FLAG, NULL, "print the version", &parser->version},
    };

    if (i >= sizeof(rows) / sizeof *rows)
        return NULL;
    parser->all[parser->count] = rows[i];
    return &parser->all[parser->count++];
}

static void parser_init(struct parser *parser, struct ctl *ctl, const struct ctl_option *own, const char *mode)
{
    char *shorts = parser->shorts;

    memset(parser, 0, sizeof *parser);
    while (own && own->name)
        parser->all[parser->count++] = *own++;
    for (unsigned i = 0; shared_options(ctl, parser, i);)
        i++;
    shorts = stpcpy(shorts, mode);
    for (unsigned i = 0; i < parser->count; i++) {
        const struct ctl_option *o = &parser->all[i];

        parser->longs[i] =
            (struct option){o->name, o->kind == CTL_FLAG ? no_argument : required_argument, NULL, LONG_ONLY + (int)i};
        if (o->letter)
            *shorts++ = o->letter;
        if (o->letter && o->kind != CTL_FLAG)
            *shorts++ = ':';
    }
    *shorts = '\0';
    optind = 0;
    opterr = 0;
}

/* Reads "250ms", "30s", "5m", "2h", "1.5" (seconds) or "forever". False: it is no duration. */
static bool parse_duration(const char *text, int64_t *ns_p)
{
    static const struct {
        const char *suffix;
        double ns;
    } units[] = {{"", 1e9},   {"ns", 1},     {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                 {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
    char *end;
    double value;

    if (strcmp(text, "forever") == 0) {
        *ns_p = RDT_FOREVER;
        return true;
    }
    if (!((*text >= '0' && *text <= '9') || *text == '.'))
        return false;
    value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].suffix) == 0 && isfinite(value) && value * units[i].ns < 9e18) {
            *ns_p = (int64_t)(value * units[i].ns);
            return true;
        }
    }
    return false;
}

static bool parse_choice(const char *words, const char *text, int *choice_p)
{
    size_t length = strlen(text);

    for (int i = 0; words; i++) {
        const char *end = strchrnul(words, '|');

        if ((size_t)(end - words) == length && strncmp(words, text, length) == 0) {
            *choice_p = i;
            return true;
        }
        words = *end ? end + 1 : NULL;
    }
    return false;
}

/* Stores one option's argument. Returns CTL_GO, or CTL_USAGE after printing what is wrong. */
static int store(struct ctl *ctl, const struct ctl_option *o, const char *text)
{
    unsigned long long number;
    char *end;

    switch (o->kind) {
    case CTL_FLAG:
        *(bool *)o->value_p = true;
        return CTL_GO;
    case CTL_TEXT:
        if (!*text)
            return ctl_usage_error(ctl, "--%s: %s must not be empty", o->name, o->argument);
        *(const char **)o->value_p = text;
        return CTL_GO;
    case CTL_NUMBER:
        errno = 0;
        number = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || errno)
            return ctl_usage_error(ctl, "--%s: '%s' is not a whole number", o->name, text);
        if (o->value_p == &ctl->daemon_uid && number >= UINT32_MAX)
            return ctl_usage_error(ctl, "--%s: %s is no uid", o->name, text);
        *(uint64_t *)o->value_p = number;
        return CTL_GO;
    case CTL_DURATION:
    case CTL_LIFETIME:
        if (!parse_duration(text, o->value_p))
            return ctl_usage_error(ctl, "--%s: '%s' is not a time such as 500ms, 30s, 5m, 2h or forever", o->name, text);
        if (o->kind == CTL_LIFETIME && *(int64_t *)o->value_p == 0)
            return ctl_usage_error(ctl, "--%s: the time must be more than 0", o->name);
        if (o->value_p == &ctl->timeout_ns) {
            ctl->timeout = ctl->timeout_ns == 0 ? CTL_NO_WAIT : CTL_TIMEOUT_GIVEN;
        }
        return CTL_GO;
    case CTL_CHOICE:
        if (!parse_choice(o->argument, text, o->value_p))
            return ctl_usage_error(ctl, "--%s: '%s' is none of %s", o->name, text, o->argument);
        return CTL_GO;
    }
    return CTL_GO;
}

static int unknown_option(struct ctl *ctl, const struct parser *parser, const char *word)
{
    struct suggest nearest;
    char name[64], hint[96];

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    suggest_init(&nearest, name + strspn(name, "-"));
    for (unsigned i = 0; i < parser->count; i++)
        suggest_try(&nearest, parser->all[i].name);
    suggest_hint(&nearest, "--", hint, sizeof hint);
    return ctl_usage_error(ctl, "unknown option %s%s", word, hint);
}

static int run_parser(struct parser *parser, struct ctl *ctl, int argc, char **argv)
{
    for (;;) {
        int found = getopt_long(argc, argv, parser->shorts, parser->longs, NULL), result = CTL_GO;

        if (found < 0)
            return CTL_GO;
        if (found == ':')
            return ctl_usage_error(ctl, "%s needs an argument", argv[optind - 1]);
        if (found == '?' && optopt && optopt < LONG_ONLY)
            return ctl_usage_error(ctl, "unknown option -%c", optopt);
        if (found == '?' && optopt)
            return ctl_usage_error(ctl, "%s takes no argument", argv[optind - 1]);
        if (found == '?')
            return unknown_option(ctl, parser, argv[optind - 1]);
        for (unsigned i = 0; i < parser->count; i++) {
            const struct ctl_option *o = &parser->all[i];

            if (found == LONG_ONLY + (int)i || (o->letter && found == o->letter)) {
                result = store(ctl, o, optarg);
                break;
            }
        }
        if (result != CTL_GO)
            return result;
    }
}

static void print_option(const struct ctl_option *o, FILE *out)
{
    const char *argument = o->argument ? o->argument : "";
    char left[64];

    if (snprintf(left, sizeof left, "%c%c%s --%s %s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ', o->letter ? "," : " ",
                 o->name, argument) <= 60) {
        fprintf(out, "  %-38s %s\n", left, o->help);
        return;
    }
    /* The words of a long choice are printed on lines of their own. */
    fprintf(out, "      --%s WORD%*s%s, which is one of\n", o->name, 28 - (int)strlen(o->name), "", o->help);
    while (*argument) {
        size_t bytes = strlen(argument);

        for (bytes = bytes < 68 ? bytes : 68; argument[bytes] && argument[bytes - 1] != '|';)
            bytes--;
        fprintf(out, "%41s%.*s\n", "", (int)bytes, argument);
        argument += bytes;
    }
}

static void print_help(const struct ctl *ctl, const struct parser *parser, unsigned n_own)
{
    const struct ctl_command *command = ctl->command;

    printf("usage: rdtctl %s%s%s [options]\n\n%s\n", command->name, *command->arguments ? " " : "", command->arguments,
           command->help);
    if (command->more)
        printf("\n%s\n", command->more);
    printf("\noptions:\n");
    for (unsigned i = 0; i < n_own; i++)
        print_option(&parser->all[i], stdout);
    ctl_print_shared_options(stdout);
}

void ctl_print_shared_options(FILE *out)
{
    struct ctl ctl = {0};
    struct parser parser = {0};
    const struct ctl_option *o;

    for (unsigned i = 0; (o = shared_options(&ctl, &parser, i)); i++)
        print_option(o, out);
}

int ctl_parse(struct ctl *ctl, const struct ctl_option *options, int argc, char **argv, int min_operands, int max_operands,
              char ***operands_p, int *count_p)
{
    struct parser parser;
    unsigned n_own = 0;
    int result;

    while (options && options[n_own].name)
        n_own++;
    parser_init(&parser, ctl, options, ":");
    result = run_parser(&parser, ctl, argc, argv);
    if (result != CTL_GO)
        return result;
    if (parser.help) {
        print_help(ctl, &parser, n_own);
        return CTL_OK;
    }
    if (parser.version) {
        printf("rdtctl %s\n", RDT_VERSION);
        return CTL_OK;
    }
    if (argc - optind < min_operands)
        return ctl_usage_error(ctl, "needs %s", ctl->command->arguments);
    if (argc - optind > max_operands)
        return ctl_usage_error(ctl, "unexpected argument '%s'", argv[optind + max_operands]);
    if (operands_p)
        *operands_p = argv + optind;
    if (count_p)
        *count_p = argc - optind;
    return CTL_GO;
}

int ctl_parse_shared(struct ctl *ctl, int argc, char **argv, int *next_p, bool *help_p, bool *version_p)
{
    struct parser parser;
    int result;

    parser_init(&parser, ctl, NULL, "+:");
    result = run_parser(&parser, ctl, argc, argv);
    *next_p = optind;
    *help_p = parser.help;
    *version_p = parser.version;
    return result;
}

int ctl_usage_error(struct ctl *ctl, const char *fmt, ...)
{
    struct rdt_error err = {.status = RDT_INVALID};
    const char *name = ctl->command ? ctl->command->name : NULL;
    va_list args;

    va_start(args, fmt);
    vsnprintf(err.msg, sizeof err.msg, fmt, args);
    va_end(args);
    ctl_fail(ctl, &err);
    fprintf(stderr, "Try 'rdtctl %s%s--help'.\n", name ? name : "", name ? " " : "");
    return CTL_USAGE;
}
