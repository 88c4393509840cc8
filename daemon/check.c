/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of --check-config and --dump-config in addition to the options: the network, the key file, state_dir and the
 * plug-ins. */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/daemon.h"
#include "daemon/peers/peer.h"
#include "daemon/plugins/plugin.h"

static void on_closed(void *arg) {}

/* ---- what the daemon's user may read ---- */

/* In a child that has become the user: returns the errno of reading the file, or 0. */
static int errno_of_reading(const struct passwd *user, const char *path)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        bool became = initgroups(user->pw_name, user->pw_gid) == 0 && setgid(user->pw_gid) == 0 && setuid(user->pw_uid) == 0;
        _exit(became && access(path, R_OK) != 0 && errno < 256 ? errno : 0);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* Root reads everything, the daemon's user does not: that is the one that owns the state_dir. */
static enum rdt_status check_as_user(const struct options *options, struct rdt_error *err)
{
    const struct {
        const char *name, *path;
    } files[] = {{"key_file", options->key_file},   {"peer_cert", options->peer_cert},
                 {"peer_key", options->peer_key},   {"peer_ca", options->peer_ca},
                 {"peer_crl", options->peer_crl},   {"etcd_ca", options->etcd_ca},
                 {"etcd_cert", options->etcd_cert}, {"etcd_key", options->etcd_key},
                 {"nodes", options->nodes},         {"etcd_password_file", options->etcd_password_file}};
    const struct passwd *user;
    struct stat state;
    struct option_faults faults = {0};

    if (geteuid() != 0 || stat(options->state_dir, &state) != 0 || state.st_uid == 0 || !(user = getpwuid(state.st_uid)))
        return RDT_OK;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct rdt_error fault;
        int why = files[i].path[0] ? errno_of_reading(user, files[i].path) : 0;

        if (why == 0 || why == ENOENT) /* a missing file may come later */
            continue;
        (void)rdt_error_sys(&fault, why, "the daemon's user %s, who owns state_dir, cannot read it", user->pw_name);
        option_fault(&faults, &fault, "%s = %s", files[i].name, files[i].path);
    }
    return option_faults_end(&faults, err);
}

enum rdt_status daemon_check_backends(const struct options *options, FILE *dump, struct rdt_error *err)
{
    struct plugins *plugins;
    uv_loop_t loop;
    enum rdt_status status;

    if (!dump && log_threshold > LOG_LEVEL_WARN)
        log_threshold = LOG_LEVEL_WARN; /* backends are opened for a moment only: their reports may soon be outdated */
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

enum rdt_status daemon_check(const struct options *options, FILE *dump, struct rdt_error *err)
{
    char away[256];
    enum rdt_status status;

    if (!dump) {
        status = node_check(options->state_dir, err);
        if (status == RDT_OK)
            status = peers_check(options, err);
        if (status == RDT_OK)
            status = check_as_user(options, err);
        if (status != RDT_OK)
            return status;
        if (peers_network_is_away(options, away, sizeof away))
            log_warn("%s: the daemon starts now, and opens its transports when the network is there", away);
    }
    return daemon_check_backends(options, dump, err);
}
