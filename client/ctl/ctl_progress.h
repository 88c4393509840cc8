/* SPDX-License-Identifier: Apache-2.0 */
/* A progress line on stderr: how far, how fast and how long still. If stderr is no terminal there is no line; a wait that takes
 * long is reported once. */
#ifndef CLIENT_CTL_PROGRESS_H
#define CLIENT_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct ctl_progress {
    char label[32];
    bool shown;   /* stderr is a terminal, and --quiet was not given */
    bool may_say; /* stderr is no terminal, and the wait has not been reported yet */
    bool drawn;   /* the line is on the screen */
    int64_t started_ns, drawn_ns;
    uint64_t first_bytes; /* those that were done when the measurement of the rate began */
};

int64_t ctl_now_ns(void); /* monotonic */

void ctl_progress_start(struct ctl_progress *progress, const char *label, bool quiet);
void ctl_progress_update(struct ctl_progress *progress, uint64_t done_bytes,
                         uint64_t total_bytes);                         /* at most 10 times a second */
void ctl_progress_say(struct ctl_progress *progress, const char *text); /* shows what is waited for in place of the bar */
void ctl_progress_end(struct ctl_progress *progress);                   /* clears the line */

#endif
