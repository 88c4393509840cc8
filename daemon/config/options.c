/* SPDX-License-Identifier: Apache-2.0 */
/* Combines defaults, file, environment and flags in one struct, and checks the values together. Faults are
 * collected, so that the writer of a configuration sees all of them at once. */
#include "daemon/config/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/config/options_keys.h"
#include "daemon/config/options_sources.h"
#include "suggest.h"

#define MISSPELT_LETTERS 2u

enum rdt_status option_faults_end(const struct option_faults *faults, struct rdt_error *err)
{
    if (faults->n == 0)
        return RDT_OK;
    if (err)
        *err = faults->first;
    if (faults->n > 1)
        rdt_error_prefix(err, "%u faults, the first of them", faults->n);
    return faults->first.status;
}

/* ---- what several values together must satisfy ---- */

bool options_have_peers(const struct options *options)
{
    return options->key_file[0] != 0 || options->peer_cert[0] != 0;
}

static void check_readable(const char *key, const char *path, struct option_faults *faults)
{
    struct rdt_error why;
    if (path[0] == 0 || access(path, R_OK) == 0)
        return;
    rdt_error_sys(&why, errno, "cannot be read");
    option_fault(faults, &why, "%s = %s", key, path);
}

/* A file that may come later, as one of a volume that is mounted late. Returns whether it is missing. */
static bool check_late(const char *key, const char *path, struct option_faults *faults)
{
    if (path[0] != 0 && access(path, F_OK) != 0 && errno == ENOENT)
        return true;
    check_readable(key, path, faults);
    return false;
}

static void check_etcd(const struct options *options, struct option_faults *faults)
{
    const struct {
        const char *name, *path;
    } files[] = {{"etcd_ca", options->etcd_ca},
                 {"etcd_cert", options->etcd_cert},
                 {"etcd_key", options->etcd_key},
                 {"etcd_password_file", options->etcd_password_file}};
    struct rdt_error why;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (check_late(files[i].name, files[i].path, faults) && !faults->quiet)
            log_warn("%s = %s: No such file or directory: this node uses etcd when it is there", files[i].name, files[i].path);
    if (!options->etcd_cert[0] != !options->etcd_key[0]) {
        rdt_error_set(&why, RDT_INVALID, "a certificate for etcd needs both etcd_cert and etcd_key");
        option_fault(faults, &why, "%s is not set", options->etcd_cert[0] ? "etcd_key" : "etcd_cert");
    }
    if (!options->etcd_user[0] != !options->etcd_password_file[0]) {
        rdt_error_set(&why, RDT_INVALID, "a user of etcd needs both etcd_user and etcd_password_file");
        option_fault(faults, &why, "%s is not set", options->etcd_user[0] ? "etcd_password_file" : "etcd_user");
    }
    if (options->etcd_endpoints[0] != 0 && !options_have_peers(options)) {
        rdt_error_set(&why, RDT_INVALID, "needs key_file or peer_cert: without a peer link there are no other nodes");
        option_fault(faults, &why, "etcd_endpoints = %s", options->etcd_endpoints);
    }
}

static void check_peer_link(const struct options *options, struct option_faults *faults)
{
    const struct {
        const char *name, *path;
    } files[] = {{"key_file", options->key_file},
                 {"peer_cert", options->peer_cert},
                 {"peer_key", options->peer_key},
                 {"peer_ca", options->peer_ca},
                 {"peer_crl", options->peer_crl}};
    bool all = options->peer_cert[0] && options->peer_key[0] && options->peer_ca[0];
    bool any =
        options->peer_cert[0] || options->peer_key[0] || options->peer_ca[0] || options->peer_crl[0] || options->peer_allow[0];
    struct rdt_error why;
    if (options->listen[0] != 0 && !options_have_peers(options)) {
        rdt_error_set(&why, RDT_INVALID,
                      "needs key_file: the peer link is TLS with a pre-shared key; make one with "
                      "`head -c 32 /dev/urandom | base64` and give the same file to every node. Or set peer_cert, peer_key and "
                      "peer_ca");
        option_fault(faults, &why, "listen = %s", options->listen);
    }
    if (any && !all) {
        rdt_error_set(&why, RDT_INVALID, "certificates need all of peer_cert, peer_key and peer_ca");
        option_fault(faults, &why, "%s",
                     !options->peer_cert[0]  ? "peer_cert is not set"
                     : !options->peer_key[0] ? "peer_key is not set"
                                             : "peer_ca is not set");
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        (void)check_late(files[i].name, files[i].path, faults); /* peers_create says it */
}

static void check_whole(struct options *options, struct option_faults *faults)
{
    struct rdt_error why;
    check_peer_link(options, faults);
    check_etcd(options, faults);
    if (options->nodes[0] != 0 && options_read_nodes(options->nodes, &options->node_list, &why) != RDT_OK)
        option_fault(faults, &why, "nodes = %s", options->nodes);
    if (options->memory_limit_bytes != 0 && options->memory_limit_bytes < options->chunk_bytes) {
        rdt_error_set(&why, RDT_INVALID, "is less than one chunk of a transfer");
        option_fault(faults, &why, "memory_limit");
    }
    if (options->cache_storage_limit_bytes > 0 && options->storage_dir[0] == 0) {
        rdt_error_set(&why, RDT_INVALID, "needs storage_dir, which is empty: set it, or leave evicted objects no files");
        option_fault(faults, &why, "cache_storage_limit");
    }
    if (options->storage_max_bytes > 0 && options->cache_storage_limit_bytes > options->storage_max_bytes) {
        rdt_error_set(&why, RDT_INVALID, "is more than storage_max, under which these files count, too");
        option_fault(faults, &why, "cache_storage_limit");
    }
}

/* ---- all together ---- */

enum rdt_status options_set_defaults(struct options *options, struct rdt_error *err)
{
    *options = (struct options){0};
    for (size_t i = 0; i < n_option_keys; i++) {
        enum rdt_status status = option_key_set(options, &option_keys[i], option_keys[i].fallback, err);
        if (status != RDT_OK) {
            rdt_error_prefix(err, "default of %s", option_keys[i].name);
            return status;
        }
    }
    options->config = strdup("");
    return options->config ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory");
}

/* Reads the configuration file. The one that --config names must exist; the default file need not. An
 * empty name means no file. */
static void apply_file(struct options *options, bool named, struct option_faults *faults)
{
    if (!named && access(option_config_file, F_OK) == 0) {
        free(options->config);
        options->config = strdup(option_config_file);
    }
    struct rdt_error why;
    if (!options->config) {
        rdt_error_set(&why, RDT_NO_MEMORY, "no memory");
        option_fault(faults, &why, "%s", option_config_file);
    } else if (options->config[0] != 0) {
        option_read_file(options, options->config, faults);
    }
}

/* A variable whose name is nearly that of a key was probably meant for it. `variable` ends at its "=". */
static void warn_if_misspelt(const char *variable)
{
    char word[OPTION_VARIABLE_BYTES] = "", meant[OPTION_VARIABLE_BYTES] = "";
    int n = (int)strcspn(variable, "=");
    struct suggest nearest;

    if (n >= (int)sizeof word)
        return;
    for (int at = 5; at < n; at++)
        word[at - 5] = (char)tolower((unsigned char)variable[at]);
    suggest_init(&nearest, word);
    nearest.distance = MISSPELT_LETTERS;
    for (size_t i = 0; i < n_option_keys; i++) {
        const char *before = nearest.best;
        suggest_try(&nearest, option_keys[i].name);
        if (nearest.best != before)
            option_key_variable(&option_keys[i], meant);
    }
    if (nearest.best && (strlen(meant) != (size_t)n || strncmp(variable, meant, (size_t)n) != 0))
        log_warn("environment: %.*s names no key and is ignored; did you mean %s?", n, variable, meant);
}

static void apply_environment(struct options *options, struct option_faults *faults)
{
    /* Only the names of our keys are looked up. Others that begin with RDTD_ are not faults: Kubernetes puts
     * RDTD_PORT and more into every pod beside a service called rdtd. */
    for (char **variable = environ; !faults->quiet && variable && *variable; variable++)
        if (strncmp(*variable, "RDTD_", 5) == 0)
            warn_if_misspelt(*variable);
    for (size_t i = 0; i < n_option_keys; i++) {
        const struct option_key *key = &option_keys[i];
        char name[OPTION_VARIABLE_BYTES];
        option_key_variable(key, name);
        const char *text = getenv(name);
        struct rdt_error why;
        if (text && option_key_set(options, key, text, &why) != RDT_OK)
            option_fault(faults, &why, "environment: %s=%s", name, text);
        else if (text)
            option_key_origin(options, key, OPTION_FROM_ENVIRONMENT, 0);
    }
}

static enum rdt_status keep_flags(struct options *options, int argc, char **argv, struct rdt_error *err)
{
    options->argv = calloc((size_t)argc + 1, sizeof *options->argv);
    while (options->argv && options->argc < argc) {
        char *copy = strdup(argv[options->argc]);
        if (!copy)
            break;
        options->argv[options->argc++] = copy;
    }
    return options->argc == argc ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory");
}

static enum rdt_status load(int argc, char **argv, bool quiet, struct options *options_p, struct rdt_error *err)
{
    struct options options;
    struct option_faults faults = {.quiet = quiet};
    enum rdt_status status = options_set_defaults(&options, err);
    if (status == RDT_OK)
        status = keep_flags(&options, argc, argv, err);
    if (status == RDT_OK) {
        bool named = option_scan_flags(&options, argc, argv);
        /* the other dumps print what is compiled in */
        if (!options.help && !options.version && options.dump_config <= OPTIONS_DUMP_EFFECTIVE) {
            apply_file(&options, named, &faults);
            apply_environment(&options, &faults);
            option_apply_flags(&options, argc, argv, &faults);
            check_whole(&options, &faults);
        }
        status = option_faults_end(&faults, err);
    }
    if (status == RDT_OK || options.check_config)
        *options_p = options;
    else
        options_fini(&options);
    return status;
}

enum rdt_status options_load(int argc, char **argv, struct options *options_p, struct rdt_error *err)
{
    return load(argc, argv, false, options_p, err);
}

enum rdt_status options_load_again(const struct options *options, struct options *fresh_p, struct rdt_error *err)
{
    return load(options->argc, options->argv, true, fresh_p, err);
}

void options_fini(struct options *options)
{
    while (options->argc > 0)
        free(options->argv[--options->argc]);
    free(options->argv);
    for (size_t i = 0; i < n_option_keys; i++) {
        if (option_keys[i].type == OPTION_STRING)
            free(*(char **)((char *)options + option_keys[i].offset));
    }
    free(options->config);
    options_extra_free(options->extras);
    while (options->node_list) {
        struct node_entry *node = options->node_list;
        options->node_list = node->next;
        free(node);
    }
    *options = (struct options){0};
}
