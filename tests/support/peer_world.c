/* SPDX-License-Identifier: Apache-2.0 */
/* See peer_world.h. */
#include "tests/support/peer_world.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "tests/support/port.h"

/* ---- callbacks ---- */

static void fill_hello(void *arg, struct peer *peer, Rdt__Pb__LinkHello *hello)
{
    static char version[] = "9.9-test";

    hello->version = version;
}

static void on_up(void *arg, struct peer *peer, const Rdt__Pb__LinkHello *hello, bool boot_changed)
{
    struct world_node *node = arg;

    node->n_up++;
    node->n_boot_changed += boot_changed;
    node->peer = peer;
    node->in_order = true;
    node->last_number = 0;
    cr_assert_eq(peer->state, PEER_UP);
    snprintf(node->hello_address, sizeof node->hello_address, "%s", hello->address);
    snprintf(node->hello_version, sizeof node->hello_version, "%s", hello->version);
}

static void on_down(void *arg, struct peer *peer, bool was_up, const struct rdt_error *why)
{
    struct world_node *node = arg;

    cr_assert_neq(peer->state, PEER_UP);
    cr_assert_lt(why->status, 0);
    node->n_down += was_up;
    node->n_failed += !was_up;
    node->peer = peer;
    node->why = *why;
}

static enum rdt_status on_message(void *arg, struct peer *peer, const struct peer_message *message, struct rdt_error *err)
{
    struct world_node *node = arg;
    const Rdt__Pb__CallReply *reply = message->body;

    cr_assert_eq(peer->state, PEER_UP);
    cr_assert_eq(message->type, RDT_PEER_CALL_REPLY);
    node->in_order &= reply->call == node->last_number + 1;
    node->last_number = reply->call;
    node->frame_bytes += reply->reply.len;
    node->n_frames++;
    return node->answer ? rdt_error_set(err, node->answer, "the test does not like it") : RDT_OK;
}

enum rdt_status world_send(struct world_node *node, uint64_t number, size_t bytes, struct rdt_error *err)
{
    Rdt__Pb__CallReply reply = RDT__PB__CALL_REPLY__INIT;

    reply.call = number;
    reply.reply.len = bytes;
    reply.reply.data = calloc(1, bytes ? bytes : 1);
    enum rdt_status status = peer_send(node->peer, RDT_PEER_CALL_REPLY, &reply.base, err);
    free(reply.reply.data);
    return status;
}

/* ---- nodes ---- */

void world_write_key(struct world *world, const char *name, const char *text)
{
    snprintf(world->key_path, sizeof world->key_path, "%s/%s", world->dir, name);
    int fd = open(world->key_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *file = fdopen(fd, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

void world_init(struct world *world)
{
    memset(world, 0, sizeof *world);
    signal(SIGPIPE, SIG_IGN);
    log_threshold = LOG_LEVEL_ERROR;
    strcpy(world->dir, "/tmp/rdt_peer.XXXXXX");
    cr_assert_not_null(mkdtemp(world->dir));
    world_write_key(world, "key", "a key that both nodes have");
    world->cable.listener = -1;
    for (unsigned i = 0; i < WORLD_NODES; i++) {
        struct world_node *node = &world->nodes[i];

        cr_assert_eq(uv_loop_init(&node->loop), 0);
        memset(node->node.uuid, (int)(0x11 * (i + 1)), sizeof node->node.uuid);
        strcpy(node->listen, "127.0.0.1:0");
        node->options.listen = node->listen;
        node->options.advertise = (char *)"";
        node->options.key_file = strdup(world->key_path);
        node->options.peer_cert = strdup("");
        node->options.dial = (char *)"any";
        cr_assert_eq(owner_work_create(&node->loop, 2, &node->owner_work, NULL), RDT_OK);
        node->options.peer_timeout_ns = 5000000000;
        node->options.connect_timeout_ns = 10000000000;
        node->options.backoff_max_ns = 200000000;
    }
}

void world_list(struct world_node *node, unsigned i, const char *name, const char *address, const uint8_t *uuid)
{
    struct node_entry *entry = &node->entries[i];

    snprintf(entry->name, sizeof entry->name, "%s", name);
    snprintf(entry->address, sizeof entry->address, "%s", address);
    if (uuid)
        memcpy(entry->uuid, uuid, 16);
    entry->next = node->options.node_list;
    node->options.node_list = entry;
}

static bool may_forget(void *arg, struct peer *peer)
{
    return true;
}

void world_start(struct world_node *node)
{
    const struct peers_callbacks callbacks = {.arg = node,
                                              .fill_hello = fill_hello,
                                              .on_up = on_up,
                                              .on_down = on_down,
                                              .on_message = on_message,
                                              .may_forget = may_forget,
                                              .owner_work = node->owner_work,
                                              .slices = node->slices};
    static unsigned boots;
    struct rdt_error err = {0};

    boots++;
    memset(node->node.boot_id, 0, 16);
    memcpy(node->node.boot_id, &boots, sizeof boots);
    node->closed = false;
    cr_assert_eq(peers_create(&node->loop, &node->options, &node->node, &callbacks, &node->peers, &err), RDT_OK, "%s", err.msg);
}

static void on_closed(void *arg)
{
    struct world_node *node = arg;

    node->closed = true;
}

void world_stop(struct world *world, struct world_node *node)
{
    if (!node->peers)
        return;
    node->frozen = false;
    peers_close(node->peers, on_closed, node);
    cr_assert_not(node->closed);
    world_until(world, node->closed);
    node->peers = NULL;
}

void world_fini(struct world *world)
{
    char command[64];

    world_close_wires(world);
    if (world->cable.listener >= 0)
        close(world->cable.listener);
    world->cable.listener = -1;
    for (unsigned i = 0; i < WORLD_NODES; i++)
        world_stop(world, &world->nodes[i]);
    for (unsigned i = 0; i < WORLD_NODES; i++) {
        owner_work_close(world->nodes[i].owner_work, NULL, NULL);
        (void)uv_run(&world->nodes[i].loop, UV_RUN_DEFAULT);
        cr_assert_eq(uv_loop_close(&world->nodes[i].loop), 0, "a handle was left open");
        free(world->nodes[i].options.key_file);
        free(world->nodes[i].options.peer_cert);
    }
    snprintf(command, sizeof command, "rm -r '%s'", world->dir);
    cr_assert_eq(system(command), 0);
}

/* ---- cables ---- */

static int listen_anywhere(char address_p[65], uint16_t *port_p)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    cr_assert_eq(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&in, &bytes), 0);
    *port_p = ntohs(in.sin_port);
    snprintf(address_p, 65, "127.0.0.1:%u", *port_p);
    return fd;
}

void world_free_address(char address_p[65])
{
    snprintf(address_p, 65, "127.0.0.1:%u", port_take("127.0.0.1"));
}

void world_lay_cable(struct world *world, const char *target)
{
    world->cable.listener = listen_anywhere(world->cable.address, &world->cable.port);
    cr_assert_eq(listen(world->cable.listener, 16), 0);
    snprintf(world->cable.target, sizeof world->cable.target, "%s", target);
}

void world_cut_cable(struct world *world)
{
    for (unsigned i = 0; i < world->cable.n_wires; i++)
        world->cable.wires[i].dead = true;
}

void world_close_wires(struct world *world)
{
    for (unsigned i = 0; i < world->cable.n_wires; i++) {
        close(world->cable.wires[i].ends[0]);
        close(world->cable.wires[i].ends[1]);
    }
    world->cable.n_wires = 0;
}

static void accept_wire(struct world_cable *cable)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int near = accept4(cable->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), far;

    if (near < 0)
        return;
    cr_assert_lt(cable->n_wires, WORLD_CABLES);
    far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    in.sin_port = htons((uint16_t)atoi(strrchr(cable->target, ':') + 1));
    if (connect(far, (struct sockaddr *)&in, sizeof in) < 0) {
        close(near);
        close(far);
        return;
    }
    cable->wires[cable->n_wires].ends[0] = near;
    cable->wires[cable->n_wires].ends[1] = far;
    cable->wires[cable->n_wires++].dead = false;
}

/* true: something moved. */
static bool carry(struct world_cable *cable)
{
    bool moved = false;

    if (cable->listener >= 0)
        accept_wire(cable);
    for (unsigned i = 0; i < cable->n_wires; i++) {
        for (int from = cable->deaf; from < 2 && !cable->wires[i].dead; from++) {
            char buf[65536];
            ssize_t n = recv(cable->wires[i].ends[from], buf, sizeof buf, MSG_DONTWAIT);

            if (n == 0 || (n > 0 && send(cable->wires[i].ends[!from], buf, (size_t)n, MSG_NOSIGNAL) != n)) {
                shutdown(cable->wires[i].ends[0], SHUT_RDWR);
                shutdown(cable->wires[i].ends[1], SHUT_RDWR);
                cable->wires[i].dead = true;
            }
            moved |= n > 0;
        }
    }
    return moved;
}

/* ---- time ---- */

void world_turn(struct world *world)
{
    struct pollfd polls[WORLD_NODES + 1 + 2 * WORLD_CABLES];
    unsigned n = 0;
    int wait_ms = 100;

    for (unsigned i = 0; i < WORLD_NODES; i++) {
        struct world_node *node = &world->nodes[i];

        if (node->frozen)
            continue;
        if (world->seed && rand_r(&world->seed) % 2) {
            wait_ms = 0;
            continue;
        }
        uv_run(&node->loop, UV_RUN_NOWAIT);
        uv_update_time(&node->loop);
        int timeout = uv_loop_alive(&node->loop) ? uv_backend_timeout(&node->loop) : -1;
        if (timeout >= 0 && timeout < wait_ms)
            wait_ms = timeout;
        polls[n++] = (struct pollfd){uv_backend_fd(&node->loop), POLLIN, 0};
    }
    if (carry(&world->cable))
        return;
    if (world->cable.listener >= 0)
        polls[n++] = (struct pollfd){world->cable.listener, POLLIN, 0};
    for (unsigned i = 0; i < world->cable.n_wires; i++) {
        for (int end = world->cable.deaf; end < 2 && !world->cable.wires[i].dead; end++)
            polls[n++] = (struct pollfd){world->cable.wires[i].ends[end], POLLIN, 0};
    }
    (void)poll(polls, n, wait_ms);
}

struct peer *world_find(struct world_node *from, const struct world_node *to)
{
    struct rdt_error err = {0};
    struct peer *peer = NULL;

    cr_assert_eq(peers_find(from->peers, to->node.uuid, to->node.address, NULL, &peer, &err), RDT_OK, "%s", err.msg);
    return peer;
}

unsigned world_count(struct world_node *node)
{
    unsigned n = 0;

    list_for_each (entry, peers_all(node->peers))
        n++;
    return n;
}
