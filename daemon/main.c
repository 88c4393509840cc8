/* SPDX-License-Identifier: Apache-2.0 */
/* rdtd: reads its configuration and runs. */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/base/reserve.h"
#include "daemon/daemon.h"
#include "proto/std_fds.h"

/* The daemon allocates and frees messages of up to 16 MiB. malloc must keep their pages instead of returning them to the
 * kernel, which would clear new ones for the next message while the loop waits for the lock of the address space. (While
 * one client sends messages of 4 MiB, the 99th percentile of another client's put is 2 to 4 times that of an idle daemon;
 * with MMAP_BYTES of 2 MiB and KEEP_BYTES of 8 MiB it is 9 times.) */
#define KEEP_BYTES (32 << 20) /* the most free memory that malloc keeps */
#define MMAP_BYTES (32 << 20) /* larger allocations get their own mapping */

#define EXIT_CONFIG 2 /* the configuration must be changed first: the unit does not start the daemon again */

int main(int argc, char **argv)
{
    bool options_check_failed = false;
    struct rdt_error err = {0};
    static struct options options; /* A thread that waits for a file may read them until the process has ended. */
    enum log_level level;
    enum rdt_status status = RDT_OK;
    sigset_t none;

    (void)sigemptyset(&none);
    std_fds_open();
    (void)sigprocmask(SIG_SETMASK, &none, NULL); /* whoever started the daemon may block signals that end it */
    (void)signal(SIGPIPE, SIG_IGN);              /* of a log whose reader has ended */
    (void)signal(SIGIO, SIG_IGN);                /* somebody opens memory during is_alone (memory/pool.c) */
    (void)mallopt(M_TRIM_THRESHOLD, KEEP_BYTES);
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    (void)signal(SIGXFSZ, SIG_IGN); /* memory above a limit of the size of files: the request fails, and the error names it */
    /* UCX installs handlers for SIGSEGV and others in its library's constructor: this must come before any backend
     * is loaded. */
    (void)setenv("UCX_HANDLE_ERRORS", "none", 0);
    reserve_install();
    if (options_load(argc, argv, &options, &err) != RDT_OK) {
        log_fatal("%s", err.msg);
        if (options.check_config && daemon_check_backends(&options, NULL, &err) != RDT_OK)
            log_fatal("%s", err.msg);
        return EXIT_CONFIG;
    }
    if (log_level_parse(options.log_level, &level))
        log_threshold = level;
    if (options.help) {
        options_help(stdout);
    } else if (options.version) {
        printf("rdtd %s\n", RDTD_VERSION);
    } else if (options.dump_config != OPTIONS_DUMP_NONE) {
        options_dump(&options, options.dump_config, stdout);
        if (options.dump_config == OPTIONS_DUMP_EFFECTIVE && daemon_check(&options, stdout, &err) != RDT_OK)
            printf("\n# the backends' own sections are not shown: %s\n", err.msg);
    } else if (options.check_config) {
        status = daemon_check(&options, NULL, &err);
        options_check_failed = status != RDT_OK;
        if (status == RDT_OK)
            printf("the configuration is valid\n");
    } else {
        status = daemon_run(&options, &err);
    }
    if (status == RDT_OK)
        return 0;
    log_fatal("%s", err.msg);
    return options_check_failed ? EXIT_CONFIG : 1;
}
