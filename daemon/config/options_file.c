/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file, by inih. inih does not tell its handler the line, so the reader counts lines. */
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/options_sources.h"

#define LINE_BYTES 8192

struct seen {
    char *section, *name;
    int line;
    struct seen *next;
};

struct reader {
    FILE *file;
    const char *path;
    char *dir;
    int line;
    struct seen *seen;
    struct options *options;
    struct option_faults *faults;
};

static void fault(const struct reader *reader, int line, const struct rdt_error *why)
{
    option_fault(reader->faults, why, "%s:%d", reader->path, line);
}

/* fgets for inih. Refuses a line that does not fit, which inih would take for two lines. */
static char *read_line(char *line, int size, void *stream)
{
    struct reader *reader = stream;
    if (!fgets(line, size, reader->file))
        return NULL;
    reader->line++;
    size_t bytes = strlen(line);
    if (bytes + 1 < (size_t)size || line[bytes - 1] == '\n')
        return line;
    int c = fgetc(reader->file);
    if (c == EOF)
        return line;
    while (c != EOF && c != '\n')
        c = fgetc(reader->file);
    struct rdt_error why;
    rdt_error_set(&why, RDT_INVALID, "the line is longer than %d bytes", size - 2);
    fault(reader, reader->line, &why);
    strcpy(line, "\n");
    return line;
}

/* The line that has set this key before; 0: none. */
static int remember(struct reader *reader, const char *section, const char *name)
{
    for (struct seen *seen = reader->seen; seen; seen = seen->next) {
        if (strcmp(seen->section, section) == 0 && strcmp(seen->name, name) == 0)
            return seen->line;
    }
    struct seen *seen = malloc(sizeof(*seen));
    char *section_copy = strdup(section), *name_copy = strdup(name);
    if (!seen || !section_copy || !name_copy) { /* out of memory, which setting the value reports */
        free(seen);
        free(section_copy);
        free(name_copy);
        return 0;
    }
    *seen = (struct seen){.section = section_copy, .name = name_copy, .line = reader->line, .next = reader->seen};
    reader->seen = seen;
    return 0;
}

static int on_key(void *user, const char *section, const char *name, const char *value)
{
    struct reader *reader = user;
    struct rdt_error why;
    int before = remember(reader, section, name);
    if (section[0] == 0) {
        rdt_error_set(&why, RDT_INVALID, "'%s' is above the first [section]", name);
    } else if (before != 0) {
        rdt_error_set(&why, RDT_INVALID, "[%s] %s is already set in line %d", section, name, before);
    } else {
        enum rdt_status status = option_set(reader->options, section, name, value, reader->dir, reader->line, &why);
        if (status == RDT_OK)
            return 1;
        rdt_error_prefix(&why, "[%s] %s = %s", section, name, value);
    }
    fault(reader, reader->line, &why);
    return 1; /* so that inih's own errors are errors of syntax only */
}

static void parse(struct reader *reader)
{
    ini_max_line = LINE_BYTES;
    ini_allow_multiline = false; /* an indented key would silently continue the value above it */
    int bad = ini_parse_stream(read_line, reader, on_key, reader);
    struct rdt_error why;
    if (bad > 0) {
        rdt_error_set(&why, RDT_INVALID, "expected [section], key = value or a comment");
        fault(reader, bad, &why);
    } else if (bad < 0) {
        rdt_error_set(&why, RDT_NO_MEMORY, "no memory");
        fault(reader, reader->line, &why);
    } else if (ferror(reader->file)) {
        rdt_error_sys(&why, errno, "cannot read on");
        fault(reader, reader->line, &why);
    }
}

void option_read_file(struct options *options, const char *path, struct option_faults *faults)
{
    struct reader reader = {.path = path, .options = options, .faults = faults, .dir = strdup(path)};
    struct rdt_error why;
    reader.file = fopen(path, "re");
    if (!reader.file) {
        rdt_error_sys(&why, errno, "cannot open %s", path);
        option_fault(faults, &why, "configuration");
    } else if (!reader.dir) {
        rdt_error_set(&why, RDT_NO_MEMORY, "no memory");
        option_fault(faults, &why, "%s", path);
    } else {
        char *slash = strrchr(reader.dir, '/');
        if (!slash)
            strcpy(reader.dir, ".");
        else
            slash[slash == reader.dir ? 1 : 0] = 0;
        parse(&reader);
    }
    if (reader.file)
        fclose(reader.file);
    free(reader.dir);
    while (reader.seen) {
        struct seen *seen = reader.seen;
        reader.seen = seen->next;
        free(seen->section);
        free(seen->name);
        free(seen);
    }
}
