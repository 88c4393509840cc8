/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "proto/grow.h"
#include "proto/plain_text.h"

const char *ctl_human_bytes(uint64_t bytes, char text[CTL_HUMAN_BYTES])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes / 1024;
    unsigned unit = 0;

    if (bytes < 1024) {
        snprintf(text, CTL_HUMAN_BYTES, "%" PRIu64 " B", bytes);
        return text;
    }
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(text, CTL_HUMAN_BYTES, "%.1f %s", value, units[unit]);
    return text;
}

const char *ctl_human_rate(uint64_t bytes, int64_t ns, char text[CTL_HUMAN_BYTES])
{
    double rate = ns > 0 ? (double)bytes * 1e9 / (double)ns : 0;

    if (ns <= 0 || rate >= 1e18) {
        snprintf(text, CTL_HUMAN_BYTES, "-");
        return text;
    }
    ctl_human_bytes((uint64_t)rate, text);
    strncat(text, "/s", CTL_HUMAN_BYTES - strlen(text) - 1);
    return text;
}

const char *ctl_human_duration(int64_t ns, char text[CTL_HUMAN_BYTES])
{
    double value = (double)ns;
    int64_t seconds = ns / 1000000000;

    if (ns < 0)
        snprintf(text, CTL_HUMAN_BYTES, "-");
    else if (value < 1e3)
        snprintf(text, CTL_HUMAN_BYTES, "%" PRId64 " ns", ns);
    else if (value < 999.95e3)
        snprintf(text, CTL_HUMAN_BYTES, "%.1f us", value / 1e3);
    else if (value < 999.95e6)
        snprintf(text, CTL_HUMAN_BYTES, "%.1f ms", value / 1e6);
    else if (value < 59.95e9)
        snprintf(text, CTL_HUMAN_BYTES, "%.1f s", value / 1e9);
    else if (seconds < 3600)
        snprintf(text, CTL_HUMAN_BYTES, "%" PRId64 "m %02" PRId64 "s", seconds / 60, seconds % 60);
    else if (seconds < 86400)
        snprintf(text, CTL_HUMAN_BYTES, "%" PRId64 "h %02" PRId64 "m", seconds / 3600, seconds / 60 % 60);
    else
        snprintf(text, CTL_HUMAN_BYTES, "%" PRId64 "d %02" PRId64 "h", seconds / 86400, seconds / 3600 % 24);
    return text;
}

char *ctl_plain(const char *text, char *text_p, size_t size)
{
    size_t length = text ? strlen(text) : 0;
    bool cut = length >= size;

    if (cut) {
        length = size > 4 ? size - 4 : 0;
        while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) /* a character must not be cut */
            length--;
    }
    if (length > 0)
        memcpy(text_p, text, length);
    text_clean(text_p, length);
    text_p[length] = '\0';
    if (cut && size > 4)
        memcpy(text_p + length, "...", 4);
    return text_p;
}

void ctl_print_plain(const char *text, FILE *out)
{
    size_t length = text ? strlen(text) : 0, i = 0;

    while (i < length) {
        size_t bytes = text_character((const unsigned char *)text + i, length - i);
        if (bytes > 0)
            (void)fwrite(text + i, 1, bytes, out);
        else
            fputc('?', out);
        i += bytes > 0 ? bytes : 1;
    }
}

void ctl_line(const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    int length;

    va_start(args, fmt);
    length = vasprintf(&text, fmt, args);
    va_end(args);
    if (length < 0)
        return;
    text_clean(text, (size_t)length);
    puts(text);
    free(text);
}

void ctl_table_init(struct ctl_table *table, const struct ctl_column *columns, unsigned n_columns)
{
    *table = (struct ctl_table){.columns = columns, .n_columns = n_columns};
}

void ctl_table_fini(struct ctl_table *table)
{
    for (size_t i = 0; i < table->n_cells; i++)
        free(table->cells[i]);
    free(table->cells);
}

void ctl_table_add(struct ctl_table *table, const char *fmt, ...)
{
    char *text = NULL, **cells = array_grow(table->cells, table->n_cells, &table->size, sizeof *cells);
    va_list args;
    int length;

    if (cells)
        table->cells = cells;
    va_start(args, fmt);
    length = cells ? vasprintf(&text, fmt, args) : -1;
    va_end(args);
    if (length < 0) {
        table->no_memory = true;
        return;
    }
    text_clean(text, (size_t)length);
    table->cells[table->n_cells++] = text;
}

/* Counts characters, not bytes. A wide character counts as one. */
static int width_of(const char *text)
{
    int width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

static const char *cell(const struct ctl_table *table, size_t row, unsigned column)
{
    const char *text = table->cells[row * table->n_columns + column];

    return *text ? text : "-";
}

static void print_cell(const struct ctl_table *table, const char *text, unsigned column, int width, FILE *out)
{
    int pad = width - width_of(text);
    bool last = column + 1 == table->n_columns;

    if (table->columns[column].right)
        fprintf(out, "%*s%s", pad, "", text);
    else
        fprintf(out, "%s%*s", text, last ? 0 : pad, "");
    fputs(last ? "\n" : "  ", out);
}

bool ctl_table_print(const struct ctl_table *table, const char *nothing, FILE *out)
{
    size_t rows = table->n_cells / table->n_columns;
    int *widths = calloc(table->n_columns, sizeof *widths);

    if (table->no_memory || !widths) {
        free(widths);
        return false;
    }
    if (rows == 0)
        fprintf(out, "%s\n", nothing);
    for (unsigned c = 0; rows && c < table->n_columns; c++) {
        widths[c] = width_of(table->columns[c].title);
        for (size_t r = 0; r < rows; r++) {
            int width = width_of(cell(table, r, c));

            widths[c] = width > widths[c] ? width : widths[c];
        }
    }
    for (unsigned c = 0; rows && c < table->n_columns; c++)
        print_cell(table, table->columns[c].title, c, widths[c], out);
    for (size_t r = 0; r < rows; r++) {
        for (unsigned c = 0; c < table->n_columns; c++)
            print_cell(table, cell(table, r, c), c, widths[c], out);
    }
    free(widths);
    return true;
}
