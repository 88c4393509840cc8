/* SPDX-License-Identifier: Apache-2.0 */
/* What people read about the configuration: the file, its template, the keys in rdtd.conf(5), and --help. All
 * four are printed from the table of keys, so that none of them can differ from what the daemon does. */
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/config/options_keys.h"

#define FILE_COLUMNS 110u
#define TEXT_BYTES 2048u
#define MAN_COLUMNS 76u

/* Prints text word by word, in lines that begin with prefix and have at most `columns` bytes. */
static void print_wrapped(const char *text, const char *prefix, size_t columns, FILE *out)
{
    size_t at = 0;

    for (const char *word = text; *word != 0;) {
        size_t bytes = strcspn(word, " ");
        if (at == 0 || at + 1 + bytes > columns) {
            fprintf(out, "%s%s%.*s", at == 0 ? "" : "\n", prefix, (int)bytes, word);
            at = strlen(prefix) + bytes;
        } else {
            fprintf(out, " %.*s", (int)bytes, word);
            at += 1 + bytes;
        }
        word += bytes + (word[bytes] == ' ');
    }
    fputc('\n', out);
}

static const char *value_of(const struct option_key *key)
{
    static const char *const values[] = {[OPTION_STRING] = "TEXT",  [OPTION_BOOL] = "yes|no", [OPTION_UINT] = "NUMBER",
                                         [OPTION_COUNT] = "NUMBER", [OPTION_BYTES] = "BYTES", [OPTION_DURATION] = "TIME"};

    return key->value ? key->value : values[key->type];
}

static void format_number(const struct option_key *key, uint64_t number, char text_p[OPTION_TEXT_BYTES])
{
    if (key->type == OPTION_BYTES)
        option_format_bytes(number, text_p);
    else if (key->type == OPTION_DURATION)
        option_format_duration(number, text_p);
    else
        snprintf(text_p, OPTION_TEXT_BYTES, "%" PRIu64, number);
}

/* " From 10ms to 1h.", " At most 30m."; "" if every value is possible. */
static void format_range(const struct option_key *key, char text_p[2 * OPTION_TEXT_BYTES + 16])
{
    char min[OPTION_TEXT_BYTES], max[OPTION_TEXT_BYTES];

    text_p[0] = 0;
    if (key->type == OPTION_STRING || key->type == OPTION_BOOL)
        return;
    format_number(key, key->min, min);
    format_number(key, key->max, max);
    if (key->max < OPTION_UNBOUNDED && key->min > 0)
        sprintf(text_p, " From %s to %s.", min, max);
    else if (key->max < OPTION_UNBOUNDED)
        sprintf(text_p, " At most %s.", max);
    else if (key->min > 0)
        sprintf(text_p, " At least %s.", min);
}

/* Everything about a key in one paragraph. */
static void format_key(const struct option_key *key, char text_p[TEXT_BYTES])
{
    char range[2 * OPTION_TEXT_BYTES + 16];

    format_range(key, range);
    snprintf(text_p, TEXT_BYTES, "%s%s%s%s", key->help, range, key->why ? " " : "", key->why ? key->why : "");
}

/* ---- the file ---- */

static void print_key(const struct options *options, const struct option_key *key, bool as_template, FILE *out)
{
    char text[TEXT_BYTES];

    format_key(key, text);
    fputc('\n', out);
    print_wrapped(text, "# ", FILE_COLUMNS, out);
    fprintf(out, "%s%s =", as_template ? "#" : "", key->name);
    option_key_print(options, key, out);
    fputc('\n', out);
}

static void print_file(const struct options *options, bool as_template, FILE *out)
{
    print_wrapped(
        "Configuration of rdtd, explained in rdtd.conf(5). Environment variables (RDTD_ and the key in capitals) and flags "
        "take "
        "precedence over this file. BYTES are written as 65536, 512K, 4M or 1GiB; a TIME as 500ms, 2s or 1m. The keys of a "
        "backend go to the section that has its name.",
        "# ", FILE_COLUMNS, out);
    for (size_t i = 0; i < n_option_sections; i++) {
        fprintf(out, "\n[%s]\n", option_sections[i].name);
        print_wrapped(option_sections[i].about, "# ", FILE_COLUMNS, out);
        for (size_t k = 0; k < n_option_keys; k++)
            if (strcmp(option_keys[k].section, option_sections[i].name) == 0)
                print_key(options, &option_keys[k], as_template, out);
    }
}

/* ---- the manual page: what daemon/config/rdtd.conf.5.scd includes ---- */

/* Escapes what scdoc takes for markup. */
static void escape(const char *text, char text_p[TEXT_BYTES])
{
    size_t used = 0;

    for (; *text != 0 && used + 3 < TEXT_BYTES; text++) {
        /* A list, at the start of a line */
        if (strchr("_*\\<>#[]", *text) || (*text == '-' && (used == 0 || text_p[used - 1] == ' ')))
            text_p[used++] = '\\';
        text_p[used++] = *text;
    }
    text_p[used] = 0;
}

static void print_man_key(const struct option_key *key, FILE *out)
{
    char text[TEXT_BYTES], escaped[TEXT_BYTES];

    escape(key->name, escaped);
    fprintf(out, "*%s* = ", escaped);
    escape(value_of(key), escaped);
    fprintf(out, "_%s_\n", escaped);
    format_key(key, text);
    escape(text, escaped);
    print_wrapped(escaped, "\t", MAN_COLUMNS, out);
    /* The page must not depend on where it was built. */
    escape(key->fallback == option_backend_dir ? "the folder rdtd in the installation's library folder" : key->fallback,
           escaped);
    fprintf(out, "\n\tDefault: %s.\n\n", escaped[0] != 0 ? escaped : "empty");
}

/* Which keys need no restart. */
static void print_man_reload(FILE *out)
{
    char text[TEXT_BYTES] = "*rdtctl reload* or SIGHUP makes a running daemon read the file again. All of it is checked "
                            "first, and if there is a fault nothing changes. New values of all keys of the section limits and "
                            "of these take effect at once:";
    size_t used = strlen(text);
    char name[TEXT_BYTES];

    for (size_t i = 0; i < n_option_keys; i++) {
        const struct option_key *key = &option_keys[i];
        if (key->reload == RELOAD_NEVER || strcmp(key->section, "limits") == 0)
            continue;
        escape(key->name, name);
        used += (size_t)snprintf(text + used, sizeof text - used, " *%s*,", name);
    }
    snprintf(
        text + used - 1, sizeof text - used,
        ". All others, and those of backends, take effect at the next start, and rdtctl names those that differ. Nodes that "
        "the nodes file no longer has are dialled no more. Links that are up stay up with the key that they have; new "
        "ones need the new one, so change the key on all nodes before the first link breaks.");
    fputs("\n# RELOADING\n\n", out);
    print_wrapped(text, "", MAN_COLUMNS, out);
}

static void print_man(FILE *out)
{
    char escaped[TEXT_BYTES];

    for (size_t i = 0; i < n_option_sections; i++) {
        fputs("\n# SECTION ", out);
        for (const char *p = option_sections[i].name; *p != 0; p++)
            fputc(toupper((unsigned char)*p), out);
        fputs("\n\n", out);
        escape(option_sections[i].about, escaped);
        print_wrapped(escaped, "", MAN_COLUMNS, out);
        fputc('\n', out);
        for (size_t k = 0; k < n_option_keys; k++)
            if (strcmp(option_keys[k].section, option_sections[i].name) == 0)
                print_man_key(&option_keys[k], out);
    }
    print_man_reload(out);
}

void options_dump(const struct options *options, enum options_dump dump, FILE *out)
{
    struct options defaults = {0};

    if (dump == OPTIONS_DUMP_EFFECTIVE) {
        print_file(options, false, out);
    } else if (dump == OPTIONS_DUMP_MAN) {
        print_man(out);
    } else if (dump == OPTIONS_DUMP_TEMPLATE) {
        if (options_set_defaults(&defaults, NULL) == RDT_OK)
            print_file(&defaults, true, out);
        options_fini(&defaults);
    }
}

/* ---- what is in force, and where it comes from ---- */

void options_each(const struct options *options, void (*on_value)(void *arg, const struct option_value *value), void *arg)
{
    static const char *const sources[] = {"default", "file", "environment", "flag"};
    char number[OPTION_TEXT_BYTES], where[4200];

    for (size_t i = 0; i < n_option_keys; i++) {
        const struct option_key *key = &option_keys[i];
        const struct option_origin *origin = &options->origins[i];

        where[0] = 0;
        if (origin->source == OPTION_FROM_FILE)
            snprintf(where, sizeof where, "%s:%d", options->config, origin->line);
        else if (origin->source == OPTION_FROM_ENVIRONMENT)
            option_key_variable(key, where);
        else if (origin->source == OPTION_FROM_FLAG)
            snprintf(where, sizeof where, "--%s", key->name);
        for (char *at = where; origin->source == OPTION_FROM_FLAG && *at; at++)
            *at = *at == '_' ? '-' : *at;
        on_value(arg, &(struct option_value){key->section, key->name, option_key_text(options, key, number),
                                             sources[origin->source], where});
    }
    for (const struct options_extra *extra = options->extras; extra; extra = extra->next) {
        if (extra->line > 0)
            snprintf(where, sizeof where, "%s:%d", options->config, extra->line);
        on_value(arg, &(struct option_value){extra->section, extra->key, extra->value, extra->line > 0 ? "file" : "flag",
                                             extra->line > 0 ? where : "--set"});
    }
}

/* ---- --help ---- */

static void print_flag(const char *flag, const char *help, FILE *out)
{
    fprintf(out, "  %s\n", flag);
    if (help[0] != 0)
        print_wrapped(help, "        ", FILE_COLUMNS, out);
}

void options_help(FILE *out)
{
    char text[TEXT_BYTES];

    fputs("rdtd: owns memory, its registrations and transports, and hands tensors between processes and nodes\n"
          "\n"
          "usage: rdtd [FLAG VALUE | FLAG=VALUE]...\n\n",
          out);
    snprintf(text, sizeof text, "Reads this configuration file instead of %s; an empty name means none.", option_config_file);
    print_flag("--config FILE", text, out);
    print_flag("--set SECTION.KEY=VALUE", "Sets any key, those of backends included.", out);
    print_flag("--backend PATH", "Loads one more plug-in; may be repeated.", out);
    print_flag("--check-config", "Checks the configuration and exits.", out);
    print_flag("--dump-config[=template|man]",
               "Prints the configuration that would be used, the template of rdtd.conf, or what rdtd.conf(5) says of the keys, "
               "and exits.",
               out);
    print_flag("--version", "", out);
    print_flag("--help", "", out);
    for (size_t i = 0; i < n_option_keys; i++) {
        const struct option_key *key = &option_keys[i];
        if (i == 0 || strcmp(key->section, option_keys[i - 1].section) != 0)
            fprintf(out, "\n[%s]\n", key->section);
        char flag[96];
        int used = snprintf(flag, sizeof flag, "--%s %s", key->name, value_of(key));
        for (int at = 2; at < used && flag[at] != ' '; at++) {
            if (flag[at] == '_')
                flag[at] = '-';
        }
        snprintf(text, sizeof text, "%s%s%s%s", key->help, key->fallback[0] != 0 ? " [" : "", key->fallback,
                 key->fallback[0] != 0 ? "]" : "");
        print_flag(flag, text, out);
    }
    fputs("\nThe environment variable RDTD_KEY sets a key, as in RDTD_LOG_LEVEL=debug. It takes precedence over the file, "
          "and a flag takes precedence over it.\n"
          "rdtd.conf(5) says who changes which key, and why.\n",
          out);
}
