/* One line on stderr that moves: what, how far, how fast, how long still. Unless stderr is a terminal, nothing but what is waited for. */
#ifndef CLIENT_CTL_PROGRESS_H
#define CLIENT_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct ctl_progress {
    char label[32];
    bool shown;   /* there is a terminal and nobody asked for quiet */
    bool may_say; /* there is none: what is waited for is said once, when it has taken a while */
    bool drawn;   /* a line is on the screen */
    int64_t started_ns, drawn_ns;
    uint64_t first_bytes; /* done when the measurement began */
};

int64_t ctl_now_ns(void); /* monotonic */

void ctl_progress_start(struct ctl_progress *progress, const char *label, bool quiet);
void ctl_progress_update(struct ctl_progress *progress, uint64_t done_bytes,
                         uint64_t total_bytes);                         /* draws at most 10 times a second */
void ctl_progress_say(struct ctl_progress *progress, const char *text); /* a word in place of the bar */
void ctl_progress_end(struct ctl_progress *progress);                   /* clears the line */

#endif
