/* SPDX-License-Identifier: Apache-2.0 */
/* Reaches, and maintains, the state in which the list is complete, the watch runs and this node is registered. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd.h"
#include "proto/state_table.h"

#define PAUSE_MIN_MS 200
#define PAUSE_MAX_MS 5000
#define PROOF_MS 30000     /* between two checks that the watch works */
#define PROOF_WAIT_MS 5000 /* for the written key to come back */
#define CALM_MS 10000      /* after being up for this long, the next failure begins with short pauses again */
#define PASSWORD_BYTES 512
#define RANGE "nodes/"     /* so begin the keys of nodes */
#define RANGE_END "nodes0" /* and these come after them */

static void lease_check(struct etcd *etcd);
static void next_page(struct etcd *etcd);

/* The drawing is in etcd.h. */
static const struct sm_state phases[] = {
    [WAITING] = {"waiting", 1u << AUTHENTICATING | 1u << LEASING},
    [AUTHENTICATING] = {"authenticating", 1u << LEASING | 1u << WAITING},
    [LEASING] = {"leasing", 1u << LISTING | 1u << WAITING},
    [LISTING] = {"listing", 1u << WATCHING | 1u << WAITING},
    [WATCHING] = {"watching", 1u << REGISTERING | 1u << LISTING | 1u << WAITING},
    [REGISTERING] = {"registering", 1u << UP | 1u << LISTING | 1u << WAITING},
    [UP] = {"up", 1u << LISTING | 1u << WAITING},
};

static void leave_phase(struct etcd *etcd, enum phase phase)
{
    bool up = phase == UP;

    sm_check(phases, UP + 1, etcd->phase, phase, NULL, NULL); /* standard error is that of rdtd, whose log it is */
    etcd->phase = phase;
    if (etcd->state.up != up)
        etcd->state_changed = true;
    etcd->state.up = up;
}

/* Growing pauses, but every other endpoint is tried at once. */
void membership_fail(struct etcd *etcd, const char *fmt, ...)
{
    int64_t now = now_ms();
    size_t used;
    va_list args;

    if (etcd->leaving) { /* etcd does not answer: the lease ends by itself */
        etcd->done = true;
        return;
    }
    requests_drop(etcd);
    used = (size_t)snprintf(etcd->error, sizeof etcd->error, "etcd at %.200s: ", etcd->endpoint);
    va_start(args, fmt);
    (void)vsnprintf(etcd->error + used, sizeof etcd->error - used, fmt, args);
    va_end(args);
    etcd->state_changed = true;
    etcd->lease.busy = false;
    free(etcd->token);
    etcd->token = NULL;
    if (etcd->phase == UP && now - etcd->up_ms > CALM_MS) {
        etcd->pause_ms = 0;
        etcd->tried = 0;
    }
    if (etcd->cluster.rewound_ms > 0 &&
        now - etcd->cluster.rewound_ms > 3 * etcd->lease.ttl_ms) { /* it was restored, or built anew */
        etcd->cluster.rewound_ms = 0;
        etcd->state.revision = etcd->own_key.revision = etcd->own_key.proven_revision = 0;
        etcd->cluster.id[0] = '\0';
        etcd->lease.id = 0;
    }
    etcd->at_endpoint = (unsigned)((etcd->at_endpoint + 1) % etcd->config->n_endpoints);
    leave_phase(etcd, WAITING);
    if (++etcd->tried < etcd->config->n_endpoints) {
        etcd->retry_ms = now;
        return;
    }
    etcd->tried = 0;
    etcd->pause_ms = etcd->pause_ms == 0 ? PAUSE_MIN_MS : etcd->pause_ms * 2 < PAUSE_MAX_MS ? etcd->pause_ms * 2 : PAUSE_MAX_MS;
    etcd->retry_ms = now + etcd->pause_ms / 2 + rand() % (etcd->pause_ms / 2); /* not all nodes at once */
}

static void out_of_memory(struct etcd *etcd)
{
    membership_fail(etcd, "no memory for a request");
}

/* ---- user and password ---- */

static void on_token(struct etcd *etcd, struct answer *answer)
{
    const char *token = json_string_value(json_object_get(answer->json, "token"));

    if (!answer->ok || !token)
        membership_fail(etcd, "user %.60s is refused: %s", etcd->config->user,
                        answer->ok ? "there is no token" : answer->error);
    else if (strlen(token) > TOKEN_BYTES)
        membership_fail(etcd, "the token of user %.60s has %zu bytes: it may have %d", etcd->config->user, strlen(token),
                        TOKEN_BYTES);
    else if (!(etcd->token = strdup(token)))
        out_of_memory(etcd);
    else
        lease_check(etcd);
}

static void authenticate(struct etcd *etcd)
{
    const char *path = etcd->config->password_file;
    char password[PASSWORD_BYTES] = "";
    FILE *file = fopen(path, "re");

    if (!file || !fgets(password, sizeof password, file)) {
        membership_fail(etcd, "the password in %.200s cannot be read: %s", path, file ? "it is empty" : strerror(errno));
    } else {
        password[strcspn(password, "\r\n")] = '\0';
        if (!request_send(etcd, "auth/authenticate", REQUEST_LEASE,
                          json_pack("{ss ss}", "name", etcd->config->user, "password", password), on_token))
            out_of_memory(etcd);
    }
    explicit_bzero(password, sizeof password);
    if (file)
        (void)fclose(file);
}

/* ---- the lease, and the node's key under it ---- */

static void on_registered(struct etcd *etcd, struct answer *answer)
{
    etcd->lease.busy = false;
    if (!answer->ok && answer->code == 5) { /* the lease has expired meanwhile */
        etcd->own_key.register_due = true;
        etcd->lease.due_ms = 0;
        return;
    }
    if (!answer->ok) {
        membership_fail(etcd, "cannot register this node: %s", answer->error);
        return;
    }
    etcd->own_key.revision = value_int(json_object_get(answer->json, "header"), "revision");
    etcd->own_key.proof_until_ms = etcd->own_key.proven_revision < etcd->own_key.revision ? now_ms() + PROOF_WAIT_MS : 0;
    etcd->own_key.proof_ms = now_ms() + PROOF_MS;
    if (etcd->phase == UP)
        return;
    leave_phase(etcd, UP);
    etcd->up_ms = now_ms();
    etcd->error[0] = '\0';
    etcd->cluster.rewound_ms = 0;
}

static json_t *key_of(const struct etcd *etcd, const char *rest)
{
    char key[400];
    int n = snprintf(key, sizeof key, "%.255s/%s", etcd->config->prefix, rest);

    return value_base64(key, (size_t)n);
}

static void register_node(struct etcd *etcd)
{
    char rest[64] = "nodes/", node[33], boot[33];
    json_t *value;
    char *text;

    value_to_hex(etcd->config->node.data, node);
    value_to_hex(etcd->config->boot_id.data, boot);
    (void)strcat(rest, node);
    value = json_pack("{ss ss}", "address", etcd->config->address, "boot", boot);
    text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    etcd->own_key.register_due = false;
    etcd->lease.busy = true;
    if (!text || !request_send(etcd, "kv/put", REQUEST_KEYS,
                               json_pack("{so so so}", "key", key_of(etcd, rest), "value", value_base64(text, strlen(text)),
                                         "lease", value_of_int(etcd->lease.id)),
                               on_registered))
        out_of_memory(etcd);
    free(text);
}

/* What comes after the lease. */
static void lease_done(struct etcd *etcd)
{
    etcd->lease.busy = false;
    if (etcd->phase == LEASING) {
        leave_phase(etcd, LISTING);
        next_page(etcd);
    } else if (etcd->own_key.register_due) {
        register_node(etcd);
    }
}

static void on_granted(struct etcd *etcd, struct answer *answer)
{
    int64_t id = answer->ok ? value_int(answer->json, "ID") : 0;

    if (id <= 0) {
        membership_fail(etcd, "cannot get a lease: %s", answer->ok ? "it has no id" : answer->error);
        return;
    }
    etcd->lease.id = id;
    etcd->lease.due_ms = now_ms() + etcd->lease.ttl_ms / 3;
    etcd->own_key.register_due = true;
    lease_done(etcd);
}

static void grant(struct etcd *etcd)
{
    if (!request_send(etcd, "lease/grant", REQUEST_LEASE,
                      json_pack("{so}", "TTL", value_of_int((etcd->lease.ttl_ms + 999) / 1000)), on_granted))
        out_of_memory(etcd);
}

static void on_alive(struct etcd *etcd, struct answer *answer)
{
    if (!answer->ok) {
        membership_fail(etcd, "cannot renew the lease: %s", answer->error);
    } else if (value_int(json_object_get(answer->json, "result"), "TTL") > 0) {
        etcd->lease.due_ms = now_ms() + etcd->lease.ttl_ms / 3;
        lease_done(etcd);
    } else {
        etcd->state.leases_lost++;
        etcd->state_changed = true;
        etcd->lease.id = 0;
        grant(etcd);
    }
}

static void lease_check(struct etcd *etcd)
{
    if (etcd->phase < LEASING) {
        leave_phase(etcd, LEASING);
        etcd->lease.due_ms = 0; /* whether it is still there */
    }
    etcd->lease.busy = true;
    if (etcd->lease.due_ms > now_ms())
        lease_done(etcd);
    else if (etcd->lease.id == 0)
        grant(etcd);
    else if (!request_send(etcd, "lease/keepalive", REQUEST_LEASE, json_pack("{so}", "ID", value_of_int(etcd->lease.id)),
                           on_alive))
        out_of_memory(etcd);
}

/* The registered node was deleted, or another daemon has written it. */
static void on_own_key(struct etcd *etcd, int64_t mod_revision, bool deleted, bool foreign)
{
    if (deleted) { /* the lease has expired, or somebody has deleted it */
        etcd->own_key.register_due = true;
        etcd->lease.due_ms = 0;
        return;
    }
    if (foreign && mod_revision <= etcd->own_key.revision)
        return; /* of this node before its restart */
    if (foreign != (etcd->own_error[0] != '\0'))
        etcd->state_changed = true;
    (void)snprintf(etcd->own_error, sizeof etcd->own_error, "%s",
                   foreign ? "another daemon registers with this node's uuid: give each node a state_dir of its own" : "");
    if (!foreign && mod_revision > etcd->own_key.proven_revision)
        etcd->own_key.proven_revision = mod_revision;
    if (etcd->own_key.proven_revision >= etcd->own_key.revision)
        etcd->own_key.proof_until_ms = 0;
}

/* ---- the list ---- */

static void on_watch_end(struct etcd *etcd, struct answer *answer)
{
    membership_fail(etcd, "the watch has ended: %s", answer->error);
}

static void relist(struct etcd *etcd)
{
    int64_t now = now_ms();

    if (now - etcd->cluster.listed_ms < 1000) {
        membership_fail(etcd, "its watch is cancelled again and again");
        return;
    }
    requests_drop(etcd);
    etcd->lease.busy = false;
    leave_phase(etcd, LISTING);
    next_page(etcd);
}

static void on_watch_line(struct etcd *etcd, json_t *line)
{
    const json_t *result = json_object_get(line, "result"), *header = json_object_get(result, "header");
    const json_t *events = json_object_get(result, "events"), *event, *error = json_object_get(line, "error");
    int64_t revision = value_int(header, "revision");
    size_t i;

    if (!line) {
        membership_fail(etcd, "the watch sends what is not JSON");
        return;
    }
    if (!json_is_object(result) || !json_is_object(header)) {
        const char *why = json_string_value(json_object_get(error, "message"));
        membership_fail(etcd, "the watch fails: %.200s",
                        why                        ? why
                        : json_string_value(error) ? json_string_value(error)
                                                   : "no reason");
        return;
    }
    if (json_is_true(json_object_get(result, "canceled"))) {
        if (value_int(result, "compact_revision") > 0) {
            etcd->state.compactions++;
            relist(etcd);
        } else {
            membership_fail(etcd, "it has cancelled the watch");
        }
        return;
    }
    if (json_is_true(json_object_get(result, "created")) && etcd->phase == WATCHING) {
        leave_phase(etcd, REGISTERING);
        register_node(etcd);
        if (etcd->phase != REGISTERING)
            return; /* it has failed, which drops the watch: another failure would skip an endpoint */
    }
    if (json_array_size(events) == 0)
        return;
    if (!revision_is_valid(revision)) {
        membership_fail(etcd, "the revision %" PRId64 " of its watch is no number that etcd counts to", revision);
        return;
    }
    if (revision < etcd->cluster.watch_revision) {
        if (etcd->cluster.rewound_ms == 0)
            etcd->cluster.rewound_ms = now_ms();
        membership_fail(etcd, "its watch goes back from revision %" PRId64 " to %" PRId64, etcd->cluster.watch_revision,
                        revision);
        return;
    }
    etcd->cluster.watch_revision = revision;
    if (revision > etcd->state.revision)
        etcd->state.revision = revision;
    json_array_foreach(events, i, event)
    {
        const char *type = json_string_value(json_object_get(event, "type"));
        etcd->state.events++;
        facts_take(etcd, json_object_get(event, "kv"), type && strcmp(type, "DELETE") == 0, on_own_key);
    }
}

static void watch(struct etcd *etcd)
{
    leave_phase(etcd, WATCHING);
    etcd->cluster.watch_revision = etcd->cluster.list_revision;
    etcd->own_key.proof_until_ms = now_ms() + PROOF_WAIT_MS; /* for its first line, too */
    if (!request_send(etcd, "watch", REQUEST_STREAM,
                      json_pack("{s{so so so}}", "create_request", "key", key_of(etcd, RANGE), "range_end",
                                key_of(etcd, RANGE_END), "start_revision", value_of_int(etcd->cluster.list_revision + 1)),
                      on_watch_end))
        out_of_memory(etcd);
    else
        etcd->requests->on_line = on_watch_line;
}

static bool keep_next_key(struct etcd *etcd, const json_t *kv)
{
    uint8_t key[VALUE_BYTES_MAX];
    int n = value_bytes(json_object_get(kv, "key"), key, sizeof key);

    free(etcd->cluster.next_key);
    etcd->cluster.next_key_bytes = (size_t)n + 1; /* the first key after it */
    etcd->cluster.next_key = n < 0 ? NULL : calloc(1, etcd->cluster.next_key_bytes);
    if (etcd->cluster.next_key)
        memcpy(etcd->cluster.next_key, key, (size_t)n);
    return etcd->cluster.next_key;
}

static void on_page(struct etcd *etcd, struct answer *answer)
{
    const json_t *kvs = json_object_get(answer->json, "kvs"), *kv;
    size_t i;

    if (!answer->ok) {
        membership_fail(etcd, "cannot list the keys below %.100s: %s", etcd->config->prefix, answer->error);
        return;
    }
    if (etcd->cluster.list_revision == 0)
        etcd->cluster.list_revision = etcd->state.revision;
    json_array_foreach(kvs, i, kv) facts_take(etcd, kv, false, NULL);
    if (json_is_true(json_object_get(answer->json, "more"))) {
        if (json_array_size(kvs) == 0 || !keep_next_key(etcd, json_array_get(kvs, json_array_size(kvs) - 1)))
            membership_fail(etcd, "its list of keys does not continue");
        else
            next_page(etcd);
        return;
    }
    free(etcd->cluster.next_key);
    etcd->cluster.next_key = NULL;
    facts_end(etcd);
    watch(etcd);
}

static void next_page(struct etcd *etcd)
{
    if (!etcd->cluster.next_key) {
        etcd->cluster.list_revision = 0;
        etcd->cluster.listed_ms = now_ms();
        etcd->state.lists++;
        facts_begin(etcd);
    }
    if (!request_send(etcd, "kv/range", REQUEST_KEYS,
                      json_pack("{so so so so}", "key",
                                etcd->cluster.next_key ? value_base64(etcd->cluster.next_key, etcd->cluster.next_key_bytes)
                                                       : key_of(etcd, RANGE),
                                "range_end", key_of(etcd, RANGE_END), "limit", value_of_int(PAGE_KEYS), "revision",
                                value_of_int(etcd->cluster.list_revision)),
                      on_page))
        out_of_memory(etcd);
}

/* ---- time ---- */

static void attempt(struct etcd *etcd)
{
    (void)snprintf(etcd->endpoint, sizeof etcd->endpoint, "%s", etcd->config->endpoints[etcd->at_endpoint]);
    etcd->state.reconnects++;
    free(etcd->cluster.next_key);
    etcd->cluster.next_key = NULL;
    if (etcd->config->user[0] != '\0') {
        leave_phase(etcd, AUTHENTICATING);
        authenticate(etcd);
    } else {
        lease_check(etcd);
    }
}

void membership_begin(struct etcd *etcd)
{
    etcd->lease.ttl_ms = etcd->config->ttl_ns / 1000000;
    etcd->at_endpoint = (unsigned)rand() % (unsigned)etcd->config->n_endpoints; /* the nodes spread over the endpoints */
    etcd->retry_ms = now_ms();
    membership_tick(etcd);
}

void membership_tick(struct etcd *etcd)
{
    int64_t now = now_ms();

    if (etcd->phase == WAITING && now >= etcd->retry_ms)
        attempt(etcd);
    if (etcd->own_key.proof_until_ms > 0 && etcd->phase >= WATCHING && now >= etcd->own_key.proof_until_ms) {
        etcd->own_key.proof_until_ms = 0;
        membership_fail(etcd, "its watch is silent");
    }
    if (etcd->phase == UP && etcd->state.bad_keys > 0 && now - etcd->cluster.listed_ms > PROOF_MS)
        relist(etcd); /* somebody may have removed them */
    if (etcd->phase == UP && !etcd->lease.busy && (now >= etcd->lease.due_ms || now >= etcd->own_key.proof_ms)) {
        etcd->own_key.register_due |= now >= etcd->own_key.proof_ms;
        lease_check(etcd);
    }
}

int64_t membership_due_ms(const struct etcd *etcd)
{
    int64_t now = now_ms(), due = now + 1000;

    if (etcd->phase == WAITING && etcd->retry_ms < due)
        due = etcd->retry_ms;
    if (etcd->phase == UP && !etcd->lease.busy && etcd->lease.due_ms < due)
        due = etcd->lease.due_ms;
    if (etcd->own_key.proof_until_ms > 0 && etcd->own_key.proof_until_ms < due)
        due = etcd->own_key.proof_until_ms;
    return due > now ? due - now : 0;
}

static void on_revoked(struct etcd *etcd, struct answer *answer)
{
    etcd->done = true;
}

void membership_leave(struct etcd *etcd)
{
    etcd->leaving = true;
    if (etcd->phase < LISTING ||
        !request_send(etcd, "lease/revoke", REQUEST_LEASE, json_pack("{so}", "ID", value_of_int(etcd->lease.id)), on_revoked))
        etcd->done = true;
}
