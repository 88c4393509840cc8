/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of the tests with several nodes. Only nodes*.c, holds_nodes.c and snapshot_nodes.c include this header. */
#ifndef TESTS_NODES_FIXTURE_H
#define TESTS_NODES_FIXTURE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/nodes/pair.h"

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static inline bool cables_can_be(void)
{
    int status = 1;
    pid_t pid = geteuid() == 0 ? fork() : -1;

    if (pid == 0)
        _exit(unshare(CLONE_NEWNET) == 0 && system("command -v ip >/dev/null 2>&1") == 0 ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static inline void begin_with(unsigned n, const struct cluster_options *options)
{
    struct cluster_options all = *options;

    all.cables = cables_can_be();
    if (!all.cables)
        (void)fprintf(stderr, "no network namespaces: on 127.0.0.1\n");
    begin_pair(n, &all);
}

static inline void begin(unsigned n)
{
    begin_with(n, &(struct cluster_options){0});
}

static inline struct rdt_fetch_options within(int64_t ns)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = ns};
    return options;
}

static inline struct rdt_ref put_for(rdt *conn, enum rdt_visibility visibility)
{
    uint8_t *data = malloc(100000);
    struct rdt_tensor tensor = VECTOR(RDT_U8, 100000, data);

    fill_pattern(data, 100000, 1);
    struct rdt_ref ref = put_shown(conn, &tensor, NULL, visibility);
    free(data);
    return ref;
}

/* Other users' actors must reach the sockets. */
static inline void open_the_way(void)
{
    char path[200];
    const char *tmp = getenv("TMPDIR");

    need_root();
    (void)snprintf(path, sizeof path, "%.150s/..", tmp ? tmp : "/tmp/t");
    (void)chmod(path, 0755);
}

#endif
