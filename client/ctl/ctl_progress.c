/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl_progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "ctl_table.h"

#define REDRAW_NS INT64_C(100000000)
#define BAR_CELLS 30
#define PATIENCE_NS INT64_C(1000000000) /* how long a wait lasts before it is reported where there is no terminal */

int64_t ctl_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int columns(void)
{
    struct winsize size;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

void ctl_progress_start(struct ctl_progress *progress, const char *label, bool quiet)
{
    const char *term = getenv("TERM");

    *progress = (struct ctl_progress){
        .shown = !quiet && isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0,
        .started_ns = ctl_now_ns(),
    };
    progress->may_say = !quiet && !progress->shown;
    ctl_plain(label, progress->label, sizeof progress->label);
}

static void draw(struct ctl_progress *progress, const char *text)
{
    fprintf(stderr, "\r\033[K%.*s", columns() - 1, text);
    fflush(stderr);
    progress->drawn = true;
}

static bool due(struct ctl_progress *progress)
{
    int64_t now = ctl_now_ns();

    if (!progress->shown || (progress->drawn && now - progress->drawn_ns < REDRAW_NS))
        return false;
    progress->drawn_ns = now;
    return true;
}

void ctl_progress_update(struct ctl_progress *progress, uint64_t done, uint64_t total)
{
    char text[256], bar[BAR_CELLS + 3] = "", numbers[128];
    char total_text[CTL_HUMAN_BYTES], rate_text[CTL_HUMAN_BYTES], left_text[CTL_HUMAN_BYTES];
    uint64_t here;
    int64_t spent;
    double part, left;
    int cells;

    if (!due(progress))
        return;
    if (done > total)
        total = done;
    if (progress->first_bytes > done)
        progress->first_bytes = 0;
    spent = ctl_now_ns() - progress->started_ns;
    here = done - progress->first_bytes;
    part = total ? (double)done / (double)total : 1;
    left = here ? (double)spent * (double)(total - done) / (double)here : -1;
    ctl_human_duration(left < 1e18 ? (int64_t)left : -1, left_text);
    snprintf(numbers, sizeof numbers, "%.0f%% of %s, %s, %s left", part * 100, ctl_human_bytes(total, total_text),
             ctl_human_rate(here, spent, rate_text), left_text);

    cells = columns() - (int)strlen(progress->label) - (int)strlen(numbers) - 5; /* the room that is left for the bar */
    cells = cells > BAR_CELLS ? BAR_CELLS : cells;
    if (cells >= 5) {
        memset(bar, '.', (size_t)cells + 2);
        memset(bar + 1, '#', (size_t)(part * cells));
        bar[0] = '[';
        bar[cells + 1] = ']';
        bar[cells + 2] = '\0';
    }
    snprintf(text, sizeof text, "%s %s%s%s", progress->label, bar, *bar ? " " : "", numbers);
    draw(progress, text);
}

void ctl_progress_say(struct ctl_progress *progress, const char *what)
{
    char text[256], spent[CTL_HUMAN_BYTES];

    if (progress->may_say && ctl_now_ns() - progress->started_ns >= PATIENCE_NS) {
        progress->may_say = false;
        fprintf(stderr, "%s: %s\n", progress->label, what);
    }
    if (!due(progress))
        return;
    snprintf(text, sizeof text, "%s: %s (%s)", progress->label, what,
             ctl_human_duration(ctl_now_ns() - progress->started_ns, spent));
    draw(progress, text);
}

void ctl_progress_end(struct ctl_progress *progress)
{
    if (progress->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    progress->drawn = false;
}
