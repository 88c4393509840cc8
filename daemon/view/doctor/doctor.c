/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of the checks of DOCTOR. */
#include "daemon/view/doctor/doctor.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const finding_names[] = {"ok", "warn", "fail", "skip"};

/* How bad a finding is, for the exit status of rdtctl. */
static int severity(enum finding finding)
{
    static const int severities[] = {[FINDING_OK] = 0, [FINDING_SKIP] = 1, [FINDING_WARN] = 2, [FINDING_FAIL] = 3};

    return severities[finding];
}

void doctor_begin_check(struct doctor *doctor, const char *id, const char *name)
{
    doctor->id = id;
    doctor->name = name;
    doctor->shown = doctor->left_out = 0;
    doctor->worst_left_out = FINDING_OK;
}

void doctor_finish_check(struct doctor *doctor)
{
    unsigned left_out = doctor->left_out;

    if (left_out == 0)
        return;
    doctor->shown--; /* the row below is beyond the limit */
    doctor_find(doctor, doctor->worst_left_out, "Deal with the findings above, then run the doctor again.",
                "This check has %u more findings, which are not shown.", left_out);
}

void doctor_find(struct doctor *doctor, enum finding finding, const char *remedy, const char *fmt, ...)
{
    Rdt__Pb__Check *check = arena_message(doctor->arena, &rdt__pb__check__descriptor);
    char text[768], *sentence, *copy;
    va_list args;

    if (doctor->shown >= DOCTOR_ROWS_OF_A_CHECK) {
        doctor->left_out++;
        if (severity(finding) > severity(doctor->worst_left_out))
            doctor->worst_left_out = finding;
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    sentence = arena_text(doctor->arena, text, sizeof text);
    copy = arena_text(doctor->arena, remedy, SIZE_MAX);
    if (!check || !sentence || !copy) {
        doctor->failed = true;
        return;
    }
    check->id = (char *)doctor->id;
    check->name = (char *)doctor->name;
    check->status = (char *)finding_names[finding];
    check->sentence = sentence;
    check->remedy = copy;
    doctor->rows[doctor->n++] = check;
    doctor->shown++;
}
