/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of the checks of DOCTOR. */
#include "daemon/rpc/doctor/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const finding_names[] = {"ok", "warn", "fail", "skip"};

void doctor_find(struct doctor *doctor, enum finding finding, const char *remedy, const char *fmt, ...)
{
    Rdt__Pb__Check *check = arena_alloc(doctor->arena, sizeof *check);
    char text[768], *copies[2];
    const char *texts[2] = {text, remedy};
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (unsigned i = 0; i < 2; i++) {
        copies[i] = arena_alloc(doctor->arena, strlen(texts[i]) + 1);
        if (copies[i])
            strcpy(copies[i], texts[i]);
    }
    if (!check || !copies[0] || !copies[1]) {
        doctor->failed = true;
        return;
    }
    rdt__pb__check__init(check);
    check->id = (char *)doctor->id;
    check->name = (char *)doctor->name;
    check->status = (char *)finding_names[finding];
    check->sentence = copies[0];
    check->remedy = copies[1];
    if (doctor->n < DOCTOR_ROWS)
        doctor->rows[doctor->n++] = check;
}
