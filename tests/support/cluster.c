/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/gpu.h"

/* ---- starting ---- */

static void add_flags(struct cluster *cluster, unsigned i, const char *const *more)
{
    unsigned n = 0;

    while (cluster->flags[i][n])
        n++;
    for (unsigned k = 0; more && more[k]; k++) {
        must(n < CLUSTER_MAX_FLAGS);
        cluster->flags[i][n++] = strdup(more[k]);
    }
}

static void make_flags(struct cluster *cluster, unsigned i)
{
    char faults[256], backend[256];

    (void)snprintf(faults, sizeof faults, "--set=loopback.fault_file=%s", cluster->faults[i]);
    if (cluster->options.loopback)
        add_flags(cluster, i, (const char *const[]){faults, NULL});
    if (!cluster->options.stream)
        add_flags(cluster, i, (const char *const[]){"--set=stream.enabled=no", NULL});
    (void)snprintf(faults, sizeof faults, "--set=grouped.fault_file=%s", cluster->faults[i]);
    (void)snprintf(backend, sizeof backend, "--backend=%s", build_path("tests/rdt_grouped.so"));
    if (cluster->options.grouped)
        add_flags(cluster, i, (const char *const[]){backend, faults, NULL});
    add_flags(cluster, i, cluster->options.flags);
    add_flags(cluster, i, cluster->options.flags_of[i]);
    cluster->options.flags = i + 1 < cluster->n ? cluster->options.flags : NULL; /* the caller's; copied now */
    cluster->options.flags_of[i] = NULL;
}

static void start_node(struct cluster *cluster, unsigned i, bool again)
{
    const struct cluster_options *options = &cluster->options;
    char name[8], state_dir[sizeof cluster->node[i].state_dir], socket[sizeof cluster->node[i].socket];

    (void)snprintf(name, sizeof name, "n%u", i);
    (void)snprintf(state_dir, sizeof state_dir, "%s", cluster->node[i].state_dir);
    (void)snprintf(socket, sizeof socket, "%s", cluster->node[i].socket);
    node_start(&cluster->node[i], &(struct node_options){.name = name,
                                                         .netns = options->cables ? cluster->net.ns[i] : 0,
                                                         .listen = cluster->listen[i],
                                                         .nodes = options->table ? cluster->table : NULL,
                                                         .trusted_network = !options->no_ucx,
                                                         .interfaces = options->cables ? NULL : "lo",
                                                         .loopback = options->loopback,
                                                         .flags = (const char *const *)cluster->flags[i],
                                                         .env = options->env_of[i],
                                                         .state_dir = state_dir[0] ? state_dir : NULL,
                                                         .socket = again && options->same_socket ? socket : NULL,
                                                         .awaited = again});
}

void cluster_start(struct cluster *cluster, unsigned n, const struct cluster_options *options)
{
    const char *tmp = getenv("TMPDIR");

    *cluster = (struct cluster){.options = *options, .n = n};
    must(n <= CLUSTER_MAX);
    if (options->cables)
        net_create(&cluster->net, n);
    for (unsigned i = 0; i < n; i++) {
        size_t at = strlen(cluster->table);

        free_address(options->cables ? cluster->net.ns[i] : 0, options->cables ? cluster->net.address[i] : "127.0.0.1",
                     cluster->listen[i]);
        (void)snprintf(cluster->table + at, sizeof cluster->table - at, "n%u %s\n", i, cluster->listen[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(cluster->faults[i], sizeof cluster->faults[i], "%.100s/faults.%d.%u", tmp ? tmp : "/tmp", (int)getpid(),
                       i);
        write_file(cluster->faults[i], "");
        make_flags(cluster, i);
        start_node(cluster, i, false);
    }
    if (options->no_meeting)
        return;
    cluster_meet(cluster);
    cluster->met = true;
    for (unsigned i = 0; i < n; i++)
        cluster->fds[i] = fds_of(cluster->node[i].pid);
}

void cluster_restart(struct cluster *cluster, unsigned i)
{
    start_node(cluster, i, true);
}

void cluster_faults(struct cluster *cluster, unsigned i, const char *lines)
{
    char fresh[256];

    (void)snprintf(fresh, sizeof fresh, "%s.new", cluster->faults[i]); /* never seen half written */
    write_file(fresh, lines);
    must(rename(fresh, cluster->faults[i]) == 0);
}

/* ---- meeting ---- */

static bool have_met(const struct cluster *cluster, unsigned i, unsigned j)
{
    struct peer_view view;

    return peer_seen(&cluster->node[i], &cluster->node[j], &view) && strcmp(view.state, "up") == 0 &&
           (view.loopback || !cluster->options.loopback) && (view.ucx || cluster->options.no_ucx) &&
           (view.stream || !cluster->options.stream);
}

/* Every request to a node dials it; during back-off the request is refused at once. */
static void introduce(struct cluster *cluster, unsigned i, unsigned j)
{
    rdt *conn = node_client(&cluster->node[i], "introducer");
    struct rdt_ref ref = ref_on(&cluster->node[j], "nobody");
    struct rdt_stat stat;

    wait_until(20 * SEC, rdt_stat(conn, &ref, &stat, NULL) == RDT_NOT_FOUND);
    rdt_close(conn);
}

/* A fault may break something once more before everything works: a link that both ends dial, or a connection because of its
 * earlier operations (with a warning, which the test has to expect). */
static bool comes_back(enum rdt_status status)
{
    return status == RDT_TRANSPORT || status == RDT_PEER_LOST || status == RDT_NO_PATH;
}

/* Connections of some transports stand only when first used, by either side. */
static void warm_up(struct cluster *cluster, unsigned i, unsigned j, const char *transport)
{
    rdt *owner = node_client(&cluster->node[i], "owner"), *reader = node_client(&cluster->node[j], "reader");
    struct rdt_ref ref = put_pattern(owner, NULL, 300000, 1);
    struct rdt_error err = {0};
    enum rdt_status status;
    rdt_object *object;
    struct rdt_fetch_options options = {.struct_size = sizeof options, .transport = transport, .timeout_ns = LONG};

    wait_until(20 * SEC, !comes_back(status = rdt_fetch(reader, &ref, 1, &options, &object, &err)) || !cluster->met);
    must_say(status == RDT_OK, "%s from %s: %s", transport, cluster->node[i].name, err.msg);
    rdt_release(object);
    rdt_close(reader);
    rdt_close(owner);
}

void cluster_meet(struct cluster *cluster)
{
    for (unsigned i = 0; i < cluster->n; i++)
        for (unsigned j = 0; j < cluster->n; j++) {
            if (i == j)
                continue;
            introduce(cluster, i, j);
            wait_until(20 * SEC, have_met(cluster, i, j) && have_met(cluster, j, i));
        }
    for (unsigned i = 0; i < cluster->n; i++)
        for (unsigned j = 0; j < cluster->n; j++) {
            if (i != j && cluster->options.loopback)
                warm_up(cluster, i, j, "loopback");
            if (i != j && !cluster->options.no_ucx)
                warm_up(cluster, i, j, "ucx");
            if (i != j && cluster->options.stream)
                warm_up(cluster, i, j, "stream");
        }
}

/* ---- the end ---- */

void cluster_expect_idle(struct cluster *cluster)
{
    for (unsigned i = 0; i < cluster->n; i++)
        node_expect_idle(&cluster->node[i]);
}

static void expect_fds(const struct cluster *cluster, unsigned i)
{
    int64_t deadline = now_ns() + LONG;
    unsigned n;

    if (cluster->options.no_meeting || gpu_is_real()) /* what a link takes is not known, nor what the driver and NCCL take */
        return;
    for (unsigned round = 0; (n = fds_of(cluster->node[i].pid)) > cluster->fds[i]; wait_pause(&round))
        must_say(now_ns() < deadline, "%s has %u fds open, %u when all had met", cluster->node[i].name, n, cluster->fds[i]);
}

static void check_log(const struct cluster *cluster, unsigned i, const char *const *declared, const char *const *more)
{
    const char *both[40] = {0};
    unsigned n = 0;

    for (unsigned k = 0; declared && declared[k]; k++)
        both[n++] = declared[k];
    for (unsigned k = 0; more && more[k]; k++)
        both[n++] = more[k];
    must(n < sizeof both / sizeof both[0]);
    node_check_log(&cluster->node[i], both);
}

static bool loses_links(const char *const *declared)
{
    for (unsigned k = 0; declared && declared[k]; k++)
        if (strstr(declared[k], "lost"))
            return true;
    return false;
}

void cluster_end(struct cluster *cluster, const char *const *declared)
{
    static const char *const ends[] = {
        "is down: ", "is lost: ", "refused", "taken down and rebuilt: ", "shutting down", "closed the connection",
        "broke: ",   NULL};
    /* A node that dials another in the moment of its end may have been accepted. */
    static const char *const dialled[] = {"refused", "closed the connection", "broke: ", NULL};

    cluster_expect_idle(cluster);
    for (unsigned i = 0; i < cluster->n; i++) {
        expect_fds(cluster, i);
        check_log(cluster, i, declared, loses_links(declared) ? dialled : NULL);
    }
    for (unsigned i = 0; i < cluster->n; i++)
        node_stop(&cluster->node[i]);
    for (unsigned i = 0; i < cluster->n; i++)
        check_log(cluster, i, declared, ends);
    for (unsigned i = 0; i < cluster->n; i++)
        for (unsigned k = 0; cluster->flags[i][k]; k++)
            free(cluster->flags[i][k]);
    if (cluster->options.cables)
        net_destroy(&cluster->net);
}

/* ---- lists ---- */

static Rdt__Pb__ListReply *list_of(const struct test_node *node, Rdt__Pb__ListKind kind, uint32_t max)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    ProtobufCMessage *reply = NULL;
    rdt *conn = node_client(node, "onlooker");

    request.kind = kind;
    request.max = max;
    must_ok(call(conn, RDT_MSG_LIST, &request.base, LONG, &reply, &err));
    rdt_close(conn);
    return (Rdt__Pb__ListReply *)reply;
}

static void view_transfer(const Rdt__Pb__TransferInfo *info, struct transfer_view *view)
{
    *view = (struct transfer_view){.id = info->transfer,
                                   .client = info->client,
                                   .bytes = info->bytes,
                                   .bytes_done = info->bytes_done,
                                   .elapsed_ns = info->elapsed_ns};
    (void)snprintf(view->direction, sizeof view->direction, "%s", info->direction);
    (void)snprintf(view->state, sizeof view->state, "%s", info->state);
    (void)snprintf(view->path, sizeof view->path, "%s", info->path);
    if (info->n_sources > 0)
        (void)snprintf(view->left, sizeof view->left, "%s", info->sources[0]->left);
    (void)snprintf(view->route, sizeof view->route, "%s", info->route);
    (void)snprintf(view->error, sizeof view->error, "%s", info->error);
    (void)snprintf(view->waits, sizeof view->waits, "%s", info->waits);
    (void)snprintf(view->peer, sizeof view->peer, "%s", info->peer);
    for (size_t i = 0; i < info->n_candidates && i < 12; i++) {
        (void)snprintf(view->candidates[i].path, sizeof view->candidates[i].path, "%s", info->candidates[i]->path);
        (void)snprintf(view->candidates[i].reason, sizeof view->candidates[i].reason, "%s", info->candidates[i]->reason);
        view->candidates[i].chosen = info->candidates[i]->chosen;
        view->n_candidates++;
    }
}

unsigned transfers_of(const struct test_node *node, struct transfer_view *views, unsigned max)
{
    Rdt__Pb__ListReply *reply = list_of(node, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, max);
    unsigned n = 0;

    for (; n < reply->n_transfers && n < max; n++)
        view_transfer(reply->transfers[n], &views[n]);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return n;
}

bool transfer_under_way(const struct test_node *node, const char *direction, struct transfer_view *view_p)
{
    struct transfer_view views[64];
    unsigned n = transfers_of(node, views, 64);

    for (unsigned i = 0; i < n; i++)
        if (views[i].elapsed_ns == 0 && strcmp(views[i].direction, direction) == 0) {
            *view_p = views[i];
            return true;
        }
    return false;
}

struct transfer_view transfer_numbered(const struct test_node *node, uint64_t id)
{
    static struct transfer_view views[512];
    unsigned n = transfers_of(node, views, 512);

    for (unsigned i = 0; i < n; i++)
        if (views[i].id == id)
            return views[i];
    fail("%s does not know transfer %llu", node->name, (unsigned long long)id);
}

static bool is_one_of(const char *state, const char *states)
{
    const char *found = strstr(states, state);

    return found && (found == states || found[-1] == '|') && (found[strlen(state)] == '\0' || found[strlen(state)] == '|');
}

void await_transfer(const struct test_node *node, const char *direction, const char *states)
{
    struct transfer_view view = {0};
    int64_t deadline = now_ns() + LONG;

    for (unsigned round = 0;; wait_pause(&round)) {
        bool any = transfer_under_way(node, direction, &view);
        if (any && is_one_of(view.state, states))
            return;
        must_say(now_ns() < deadline, "%s has no transfer %s in state %s (but %s)", node->name, direction, states,
                 any ? view.state : "none");
    }
}

unsigned operations_of(const struct test_node *node)
{
    Rdt__Pb__ListReply *reply = list_of(node, RDT__PB__LIST_KIND__LIST_KIND_BACKENDS, 0);
    unsigned n = 0;

    for (size_t i = 0; i < reply->n_backends; i++)
        if (strcmp(reply->backends[i]->name, "loopback") == 0 || strcmp(reply->backends[i]->name, "grouped") == 0)
            n += (unsigned)reply->backends[i]->ops_active;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return n;
}

void await_engine(const struct test_node *node)
{
    await_transfer(node, "in", "moving");
    wait_until(20 * SEC, operations_of(node) > 0);
}

void cluster_expect_idle_of_transfers(const struct cluster *cluster)
{
    for (unsigned i = 0; i < cluster->n; i++) {
        wait_until(20 * SEC, node_now(&cluster->node[i]).transfers_active == 0);
    }
}

unsigned pins_of(const struct test_node *node)
{
    Rdt__Pb__ListReply *reply = list_of(node, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, 0);
    unsigned pins = 0;

    for (size_t i = 0; i < reply->n_regions; i++)
        pins += reply->regions[i]->pins;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return pins;
}

bool peer_seen(const struct test_node *node, const struct test_node *other, struct peer_view *view)
{
    Rdt__Pb__ListReply *reply = list_of(node, RDT__PB__LIST_KIND__LIST_KIND_PEERS, 0);
    bool found = false;

    for (size_t i = 0; i < reply->n_peers && !found; i++) {
        const Rdt__Pb__PeerInfo *info = reply->peers[i];
        if (strcmp(info->uuid, other->uuid) != 0)
            continue;
        found = true;
        *view = (struct peer_view){
            .retry_in_ns = info->retry_in_ns, .transfers_in = info->transfers_in, .transfers_out = info->transfers_out};
        (void)snprintf(view->state, sizeof view->state, "%s", info->state);
        (void)snprintf(view->last_error, sizeof view->last_error, "%s", info->last_error);
        (void)snprintf(view->boot_id, sizeof view->boot_id, "%s", info->boot_id);
        (void)snprintf(view->name, sizeof view->name, "%s", info->name);
        for (size_t t = 0; t < info->n_transports; t++) {
            view->loopback = view->loopback || strcmp(info->transports[t], "loopback") == 0;
            view->stream = view->stream || strcmp(info->transports[t], "stream") == 0;
            if (strcmp(info->transports[t], "ucx") != 0)
                continue;
            view->ucx = true;
            (void)snprintf(view->ucx_route, sizeof view->ucx_route, "%s", t < info->n_routes ? info->routes[t] : "");
        }
    }
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return found;
}

/* ---- in a line ---- */

struct rdt_ref put_pattern(rdt *conn, const char *id, size_t bytes, uint32_t seed)
{
    uint8_t *data = malloc(bytes + 1);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, data);

    must(data);
    fill_pattern(data, bytes, seed);
    struct rdt_ref ref = put_one(conn, &tensor, id);
    free(data);
    return ref;
}

void fetch_pattern(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed, const char *path)
{
    rdt_object *object;
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};

    must_ok(rdt_fetch(conn, ref, 1, &options, &object, &err));
    must(rdt_object_count(object) == 1);
    struct rdt_tensor tensor = tensor_of(object, 0);
    must(tensor.dtype == RDT_U8 && tensor.ndim == 1 && tensor.shape[0] == (int64_t)bytes);
    must(bytes == 0 || holds_pattern(tensor.data, bytes, seed));
    if (path)
        must_go_by(path, object);
    rdt_release(object);
}

struct rdt_ref ref_on(const struct test_node *node, const char *id)
{
    struct rdt_ref ref = ref_named(id);

    memcpy(ref.node, node->uuid_bytes, sizeof ref.node);
    (void)snprintf(ref.address, sizeof ref.address, "%s", node->address);
    return ref;
}

void bystander_round(struct cluster *cluster, unsigned mask)
{
    rdt *conns[CLUSTER_MAX] = {0};

    for (unsigned i = 0; i < cluster->n; i++)
        if (mask & 1u << i)
            conns[i] = node_client(&cluster->node[i], "bystander");
    for (unsigned i = 0; i < cluster->n; i++) {
        if (!conns[i])
            continue;
        struct rdt_ref ref = put_pattern(conns[i], NULL, 5000, i + 1);
        for (unsigned j = 0; j < cluster->n; j++)
            if (conns[j])
                fetch_pattern(conns[j], &ref, 5000, i + 1, NULL);
        must_ok(rdt_free(conns[i], &ref, false, &err));
    }
    for (unsigned i = 0; i < cluster->n; i++)
        rdt_close(conns[i]);
}
