/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl ping: measures round trips to the daemon. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_progress.h"
#include "ctl_table.h"

#define MAX_COUNT 65536u /* bounds the memory for the results */

static int report(struct ctl *ctl, const int64_t *ns, uint64_t count)
{
    char least[CTL_HUMAN_BYTES], mean[CTL_HUMAN_BYTES], most[CTL_HUMAN_BYTES];
    int64_t min = ns[0], max = ns[0], sum = 0;
    json_t *array = json_array();

    for (uint64_t i = 0; i < count; i++) {
        min = ns[i] < min ? ns[i] : min;
        max = ns[i] > max ? ns[i] : max;
        sum += ns[i];
        json_array_append_new(array, json_integer(ns[i]));
    }
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:I, s:I, s:I}", "round_trips_ns", array, "min_ns", (json_int_t)min, "mean_ns",
                                        (json_int_t)(sum / (int64_t)count), "max_ns", (json_int_t)max));
    json_decref(array);
    if (count > 1 && !ctl->quiet)
        printf("%" PRIu64 " round trips: min %s, mean %s, max %s\n", count, ctl_human_duration(min, least),
               ctl_human_duration(sum / (int64_t)count, mean), ctl_human_duration(max, most));
    return CTL_OK;
}

int ctl_ping(struct ctl *ctl, int argc, char **argv)
{
    uint64_t count = 1;
    int64_t interval_ns = 0, *ns;
    const struct ctl_option options[] = {
        {'c', "count", CTL_NUMBER, "N", "the number of round trips (1)", &count},
        {'i', "interval", CTL_DURATION, "TIME", "pause between round trips (none)", &interval_ns},
        {0},
    };
    struct rdt_error err = {0};
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (count == 0 || count > MAX_COUNT)
        return ctl_usage_error(ctl, "--count must be 1 to %u", MAX_COUNT);
    if (interval_ns < 0 || interval_ns > INT64_C(3600000000000))
        return ctl_usage_error(ctl, "--interval must be at most an hour");
    if (ctl_connect(ctl, &err))
        return ctl_fail(ctl, &err);
    ns = calloc(count, sizeof *ns);
    if (!ns) {
        rdt_error_set(&err, RDT_NO_MEMORY, "there is no memory for %" PRIu64 " results", count);
        return ctl_fail(ctl, &err);
    }
    for (uint64_t i = 0; i < count; i++) {
        char text[CTL_HUMAN_BYTES];
        int64_t started = ctl_now_ns();

        if (rdt_ping(ctl->rdt, ctl->timeout == CTL_TIMEOUT_GIVEN ? ctl->timeout_ns : CTL_DEFAULT_TIMEOUT_NS, &err)) {
            free(ns);
            return ctl_fail(ctl, &err);
        }
        ns[i] = ctl_now_ns() - started;
        if (!ctl->json && !ctl->quiet) {
            printf("the daemon answered in %s\n", ctl_human_duration(ns[i], text));
            fflush(stdout);
        }
        if (interval_ns && i + 1 < count)
            poll(NULL, 0, (int)(interval_ns / 1000000));
    }
    code = report(ctl, ns, count);
    free(ns);
    return code;
}
