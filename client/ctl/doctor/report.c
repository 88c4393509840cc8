/* SPDX-License-Identifier: Apache-2.0 */
/* See doctor.h. */
#include <stdarg.h>
#include <stdio.h>

#include "client/ctl/ctl_json.h"
#include "client/ctl/ctl_table.h"
#include "client/ctl/doctor/doctor.h"

const char *const report_status_names[STATUSES] = {"ok", "warn", "fail", "skip"};

void report_add(struct report *report, const char *id, const char *name, int status, const char *sentence, const char *remedy)
{
    report->n[status]++;
    if (report->rows) {
        json_array_append_new(report->rows, json_pack("{s:o, s:o, s:s, s:o, s:o}", "id", ctl_json_text(id), "name",
                                                      ctl_json_text(name), "status", report_status_names[status], "sentence",
                                                      ctl_json_text(sentence), "remedy", ctl_json_text(remedy)));
        return;
    }
    if (report->ctl->quiet && status == OK)
        return;
    ctl_line("%-5s %s %-16s %s", report_status_names[status], id, name, sentence);
    if (remedy[0])
        ctl_line("%30s%s", "", remedy);
}

void report_find(struct report *report, const char *id, const char *name, int status, const char *remedy, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    report_add(report, id, name, status, text, remedy);
}
