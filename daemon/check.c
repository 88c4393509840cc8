/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of --check-config and --dump-config in addition to the options: the network interfaces, the key file, the
 * addresses, state_dir and the plug-ins. */
#include <net/if.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/daemon.h"
#include "daemon/peers/peer.h"
#include "daemon/plugins/plugin.h"

static enum rdt_status check_interfaces(const struct options *options, struct rdt_error *err)
{
    const char *rest = options->interfaces;

    while (*rest) {
        size_t n = strcspn(rest, ",");
        char name[IF_NAMESIZE];

        if (n > 0 && n < sizeof name) {
            memcpy(name, rest, n);
            name[n] = '\0';
        }
        if (n >= sizeof name || (n > 0 && if_nametoindex(name) == 0))
            return rdt_error_set(err, RDT_INVALID, "interfaces: this machine has no network interface \"%.*s\"", (int)n, rest);
        rest += n + (rest[n] == ',');
    }
    return RDT_OK;
}

static void on_closed(void *arg) {}

enum rdt_status daemon_check(const struct options *options, FILE *dump, struct rdt_error *err)
{
    struct plugins *plugins;
    uv_loop_t loop;
    enum rdt_status status;

    if (!dump) {
        if (log_threshold > LOG_LEVEL_WARN)
            log_threshold = LOG_LEVEL_WARN; /* backends are opened for a moment only: their reports may soon be outdated */
        status = check_interfaces(options, err);
        if (status == RDT_OK)
            status = node_check(options->state_dir, err);
        if (status == RDT_OK)
            status = peers_check(options, err);
        if (status != RDT_OK)
            return status;
    }
    (void)uv_loop_init(&loop);
    status = plugins_create(&loop, options, &plugins, err);
    if (status == RDT_OK) {
        if (dump)
            plugins_dump(plugins, options, dump);
        plugins_close(plugins, on_closed, NULL);
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    return status;
}
