/* SPDX-License-Identifier: Apache-2.0 */
/* Text for people: aligned columns, sizes and durations, and foreign text without control characters. */
#ifndef CLIENT_CTL_TABLE_H
#define CLIENT_CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CTL_HUMAN_BYTES 32                                                          /* enough for each of these */
const char *ctl_human_bytes(uint64_t bytes, char text[CTL_HUMAN_BYTES]);            /* "256.0 MiB" */
const char *ctl_human_rate(uint64_t bytes, int64_t ns, char text[CTL_HUMAN_BYTES]); /* "1.2 GiB/s" */
const char *ctl_human_duration(int64_t ns, char text[CTL_HUMAN_BYTES]);             /* "3.4 ms", "2h 05m"; "-" below 0 */

/* Copies text for a terminal to text_p [size]: a character that would act on the terminal (proto/plain_text.h) becomes '?', and
 * text that is too long ends in "...". NULL is "". Returns text_p. */
char *ctl_plain(const char *text, char *text_p, size_t size);
void ctl_print_plain(const char *text, FILE *out); /* prints all of it in the same way */

/* Prints a line, and the newline that ends it, on stdout; everything else that would act on the terminal becomes '?'. */
void ctl_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

struct ctl_column {
    const char *title;
    bool right; /* aligned on the right, as numbers are */
};

struct ctl_table {
    const struct ctl_column *columns; /* borrowed */
    unsigned n_columns;
    char **cells; /* row after row */
    size_t n_cells, size;
    bool no_memory;
};

void ctl_table_init(struct ctl_table *table, const struct ctl_column *columns, unsigned n_columns);
void ctl_table_fini(struct ctl_table *table);

/* Adds the next cell, from left to right, row after row. An empty cell is printed as "-". */
void ctl_table_add(struct ctl_table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints titles and rows, or `nothing` if there are no rows. False: there was no memory for a cell. */
bool ctl_table_print(const struct ctl_table *table, const char *nothing, FILE *out);

#endif
