/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of --check-config and --dump-config in addition to the options: the network, the key file, state_dir and the
 * plug-ins. */
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/daemon.h"
#include "daemon/peers/peer.h"
#include "daemon/plugins/plugin.h"

static void on_closed(void *arg) {}

enum rdt_status daemon_check(const struct options *options, FILE *dump, struct rdt_error *err)
{
    struct plugins *plugins;
    char away[256];
    uv_loop_t loop;
    enum rdt_status status;

    if (!dump) {
        if (log_threshold > LOG_LEVEL_WARN)
            log_threshold = LOG_LEVEL_WARN; /* backends are opened for a moment only: their reports may soon be outdated */
        status = node_check(options->state_dir, err);
        if (status == RDT_OK)
            status = peers_check(options, err);
        if (status != RDT_OK)
            return status;
        if (peers_network_is_away(options, away, sizeof away))
            log_warn("%s: the daemon starts now, and opens its transports when the network is there", away);
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
