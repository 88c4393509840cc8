/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl metrics: the daemon's counters for Prometheus and its kind. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/rdt_info.h"
#include "ctl.h"
#include "ctl_commands.h"

/* Readers of the file see the text before or the new one, never a part. */
static enum rdt_status replace_file(const char *path, const char *text, struct rdt_error *err)
{
    char *temporary = NULL;
    enum rdt_status status = RDT_OK;
    FILE *file = NULL;
    int fd;

    if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a file name");
    fd = mkstemp(temporary);
    if (fd >= 0)
        file = fdopen(fd, "w");
    if (!file || fchmod(fd, 0644) < 0 || fputs(text, file) < 0 || fflush(file) != 0)
        status = rdt_error_sys(err, errno, "%s", temporary);
    if (file && fclose(file) != 0 && status == RDT_OK)
        status = rdt_error_sys(err, errno, "%s", temporary);
    if (status == RDT_OK && rename(temporary, path) < 0)
        status = rdt_error_sys(err, errno, "%s", path);
    if (status != RDT_OK && fd >= 0)
        (void)unlink(temporary);
    free(temporary);
    return status;
}

int ctl_metrics(struct ctl *ctl, int argc, char **argv)
{
    int format = RDT_METRICS_OPENMETRICS;
    const char *file = NULL;
    const struct ctl_option options[] = {
        {0, "format", CTL_CHOICE, "openmetrics|prometheus", "the text format (openmetrics)", &format},
        {'o', "output", CTL_TEXT, "FILE", "replaces FILE, which readers always see whole", &file},
        {0},
    };
    struct rdt_error err = {0};
    enum rdt_status status;
    char *text;
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (ctl->json)
        return ctl_usage_error(ctl, "metrics are not available as JSON: see --format");
    if (ctl_connect(ctl, &err) || rdt_metrics(ctl->rdt, (enum rdt_metrics_format)format, &text, &err))
        return ctl_fail(ctl, &err);
    status = file ? replace_file(file, text, &err) : RDT_OK;
    if (!file)
        (void)fputs(text, stdout);
    free(text);
    return status == RDT_OK ? ctl_flush(CTL_OK) : ctl_fail(ctl, &err);
}
