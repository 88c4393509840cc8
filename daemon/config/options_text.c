/* SPDX-License-Identifier: Apache-2.0 */
/* What people read about the configuration: the file, its template, the manual page rdtd.conf(5) and --help. All
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

/* ---- the manual page ---- */

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

static const char man_head[] = "rdtd.conf(5)\n"
                               "\n"
                               "# NAME\n"
                               "\n"
                               "rdtd.conf - configuration of the tensor daemon rdtd\n"
                               "\n"
                               "# SYNOPSIS\n"
                               "\n"
                               "_/etc/rdtd/rdtd.conf_, or the file that *rdtd --config* _FILE_ names\n"
                               "\n"
                               "# DESCRIPTION\n"
                               "\n"
                               "The file consists of sections, \\[name\\], with lines of the form _key_ =\n"
                               "_value_. A line that begins with \\# or ; is a comment. Every key has a\n"
                               "default, so the file may be empty or missing. *rdtd*(8) reads it at start,\n"
                               "and again when *rdtctl reload* or SIGHUP asks for that. An unknown key,\n"
                               "a value that is out of range or a key that is set twice is an error, and\n"
                               "all errors are printed with their lines.\n"
                               "\n"
                               "The same keys can be set elsewhere, too. From the weakest to the strongest:\n"
                               "the default, the file, the environment variable *RDTD\\_KEY* (as in\n"
                               "_RDTD\\_LOG\\_LEVEL=debug_), the flag *--key* (as in _--log-level debug_).\n"
                               "*--set* _SECTION.KEY=VALUE_ sets any key, also those of backends.\n"
                               "\n"
                               "Values are written as follows.\n"
                               "\n"
                               "*BYTES*\n"
                               "\tA number of bytes, or a number with the unit K, M, G or T, which are powers\n"
                               "\tof 1024: _512K_, _4MiB_, _1G_.\n"
                               "\n"
                               "*TIME*\n"
                               "\tA number with the unit ns, us, ms, s, m or h: _500ms_, _2s_, _1m_.\n"
                               "\n"
                               "*PATH*\n"
                               "\tA path of the file system. A relative path of _nodes_ or _key\\_file_\n"
                               "\tstarts at the folder of the configuration file.\n"
                               "\n"
                               "*rdtd --check-config* checks the configuration and exits.\n"
                               "*rdtd --dump-config* prints the values that would be used, also those of\n"
                               "loaded backends. *rdtd --dump-config=template* prints the template that\n"
                               "*make install* installs.\n";

static const char man_tail[] = "# SECTIONS OF BACKENDS\n"
                               "\n"
                               "A backend reads the section that has its name, for instance \\[ucx\\] or\n"
                               "\\[stream\\]. *rdtd --dump-config* lists the keys of the backends that are\n"
                               "loaded, each with its meaning.\n"
                               "\n"
                               "# FILES\n"
                               "\n"
                               "_/etc/rdtd/rdtd.conf_\n"
                               "\tThe configuration. *make install* installs a template in which every key\n"
                               "\tis commented out; it does not overwrite a file that was edited.\n"
                               "\n"
                               "_/run/rdtd/rdtd.sock_\n"
                               "\tThe socket where clients connect.\n"
                               "\n"
                               "_/var/lib/rdtd/_\n"
                               "\tThe uuid of the node.\n"
                               "\n"
                               "# EXAMPLES\n"
                               "\n"
                               "A node with 64 GiB for objects, which exchanges them with other nodes:\n"
                               "\n"
                               "```\n"
                               "[daemon]\n"
                               "memory_limit = 64GiB\n"
                               "\n"
                               "[network]\n"
                               "listen = 192.0.2.1:7171\n"
                               "key_file = /etc/rdtd/peer.key\n"
                               "```\n"
                               "\n"
                               "# SEE ALSO\n"
                               "\n"
                               "*rdtd*(8), *rdtctl*(1), *rdt-concepts*(7), *rdt-network*(7)\n";

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

    fputs(man_head, out);
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
    fputc('\n', out);
    fputs(man_tail, out);
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
    print_flag(
        "--dump-config[=template|man]",
        "Prints the configuration that would be used, the template of rdtd.conf, or the source of its manual page, and exits.",
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
