/* SPDX-License-Identifier: Apache-2.0 */
/* One picture: a row for each transfer, in which each stage is a bar. */
#include <inttypes.h>
#include <string.h>

#include "client/ctl/timeline/timeline.h"

#define ROWS_MAX 200u
#define ROW_HEIGHT 18
#define LEFT 260
#define WIDTH 1000
#define TOP 40

struct row {
    unsigned node;
    uint64_t transfer;
};

static void print_text(const char *text, FILE *out)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
            fprintf(out, "&#%d;", *text);
        else
            fputc((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f ? '?' : *text, out);
    }
}

static const char *colour(const char *stage)
{
    static const char *const colours[][2] = {
        {"new", "#bbbbbb"},       {"parked", "#dddddd"},    {"link", "#cc99ff"},      {"queued", "#ddccaa"},
        {"asked", "#99bbee"},     {"early", "#77ccdd"},     {"reserving", "#ffcc66"}, {"connecting", "#cc77cc"},
        {"ticket", "#eeaa99"},    {"moving", "#55aa55"},    {"sending", "#55aa55"},   {"offered", "#99bbee"},
        {"preparing", "#ffcc66"}, {"rewinding", "#ee7755"}, {"aborting", "#cc4444"},
    };

    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        if (strcmp(stage, colours[i][0]) == 0)
            return colours[i][1];
    return "#888888";
}

/* The row of the event's transfer, a new one if it has none; ROWS_MAX: there is no room. */
static unsigned row_of(struct row *rows, unsigned *n, const struct timeline_event *event)
{
    for (unsigned i = 0; i < *n; i++)
        if (rows[i].node == event->node && rows[i].transfer == event->transfer)
            return i;
    if (*n == ROWS_MAX)
        return ROWS_MAX;
    rows[*n] = (struct row){event->node, event->transfer};
    return (*n)++;
}

static void print_event(const struct timeline *timeline, const struct timeline_event *event, unsigned row, uint64_t from_ns,
                        double scale, FILE *out)
{
    double x = LEFT + (double)(event->at_ns - from_ns) * scale, width = (double)event->ns * scale;
    int y = TOP + (int)row * ROW_HEIGHT;

    if (event->first) {
        fprintf(out, "<text x=\"4\" y=\"%d\">", y + 12);
        print_text(timeline->nodes[event->node].name, out);
        fprintf(out, " %" PRIu64 " %s ", event->transfer, event->direction);
        print_text(event->id, out);
        fprintf(out, "</text>\n");
    }
    if (event->last)
        fprintf(out, "<path d=\"M%.2f %dv%d\" stroke=\"%s\"><title>%s</title></path>\n", x, y, ROW_HEIGHT - 2,
                strcmp(event->stage, "done") == 0 ? "#000000" : "#cc0000", event->stage);
    else
        fprintf(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s, %.3f us, %" PRIu64 " bytes",
                x, y + 1, width > 0.3 ? width : 0.3, ROW_HEIGHT - 4, colour(event->stage), event->stage,
                (double)event->ns / 1e3, event->bytes);
    if (!event->last) {
        fprintf(out, "%s", event->path[0] ? ", " : "");
        print_text(event->path, out);
        fprintf(out, "</title></rect>\n");
    }
}

enum rdt_status timeline_write_svg(const struct timeline *timeline, FILE *out, struct rdt_error *err)
{
    struct row rows[ROWS_MAX];
    unsigned n = 0, left_out = 0;
    uint64_t from_ns = timeline->n ? timeline->events[0].at_ns : 0, until_ns = from_ns + 1;
    double scale;

    for (size_t i = 0; i < timeline->n; i++) {
        const struct timeline_event *event = &timeline->events[i];
        if (row_of(rows, &n, event) == ROWS_MAX)
            left_out += event->first;
        else if (event->at_ns + event->ns > until_ns)
            until_ns = event->at_ns + event->ns;
    }
    scale = WIDTH / (double)(until_ns - from_ns);
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n<text x=\"4\" y=\"16\">%u transfers, "
        "%.3f ms from left to right%s",
        LEFT + WIDTH + 10, TOP + (n + 1) * ROW_HEIGHT, n, (double)(until_ns - from_ns) / 1e6,
        left_out ? "; later ones are left out" : "");
    fprintf(out, "</text>\n");
    for (size_t i = 0; i < timeline->n; i++) {
        unsigned row = row_of(rows, &n, &timeline->events[i]);
        if (row < ROWS_MAX)
            print_event(timeline, &timeline->events[i], row, from_ns, scale, out);
    }
    fprintf(out, "</svg>\n");
    return RDT_OK;
}
