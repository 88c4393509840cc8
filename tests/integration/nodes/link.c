/* SPDX-License-Identifier: Apache-2.0 */
/* The peer link against other keys, garbage, floods, and nodes that claim to be another node. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/program.h"

TestSuite(link, .timeout = 120);

#define OTHER_KEY "b3RoZXJub2RlcyBoYXZlIGFub3RoZXIga2V5IG9mIDMyIGJ5dGU=\n"

static struct cluster c;

static void begin(const char *const *flags)
{
    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .flags = flags});
}

static int dial(const char *address)
{
    char host[65];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(host, sizeof host, "%.*s", (int)(strrchr(address, ':') - address), address);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1))};
    must(fd >= 0 && inet_pton(AF_INET, host, &to.sin_addr) == 1);
    must_say(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "nobody listens at %s", address);
    return fd;
}

/* Until the other end has closed it; what it says meanwhile does not matter. */
static void await_end(int fd)
{
    struct timeval most = {.tv_sec = LONG / SEC};
    char bytes[4096];
    ssize_t n;

    must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) == 0);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        ;
    must_say(n == 0 || errno == ECONNRESET, "it was left open");
    (void)close(fd);
}

static bool node_sees_up(const struct test_node *node, const struct test_node *other)
{
    struct peer_view view;

    return peer_seen(node, other, &view) && strcmp(view.state, "up") == 0;
}

static bool link_is_up(void)
{
    return node_sees_up(&c.node[0], &c.node[1]);
}

/* ---- keys ---- */

Test(link, other_key_has_no_peers)
{
    struct test_node stranger;
    rdt_object *object;

    begin(NULL);
    node_start(&stranger, &(struct node_options){.name = "stranger", .listen = "127.0.0.1:0", .key = OTHER_KEY});
    rdt *conn = node_client(&stranger, "stranger");
    struct rdt_ref ref = ref_on(&c.node[0], "x");
    must_refuse(RDT_PEER_LOST, "key", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(conn);
    conn = node_client(&c.node[0], "victim"); /* and the other way round */
    ref = ref_on(&stranger, "x");
    must_refuse(RDT_PEER_LOST, "key", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(conn);
    must(link_is_up());
    bystander_round(&c, 3);
    must(node_log_has(&c.node[0], "key") && node_log_has(&stranger, "key"));
    node_end(&stranger, (const char *const[]){"key", "connection from", NULL});
    cluster_end(&c, (const char *const[]){"key", "connection from", NULL});
}

Test(link, bad_key_file_is_refused)
{
    static const char *const keys[] = {"", "short\n", " \n\t \n                                      \n"};

    for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct test_node node;
        int status;

        must(!node_try_start(&node, &(struct node_options){.listen = "127.0.0.1:0", .key = keys[i]}, &status));
        must(status > 0 && status < 128);
        must(node_log_has(&node, "key"));
    }
}

/* ---- garbage ---- */

Test(link, garbage_disturbs_nobody)
{
    static const uint8_t http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n", zeros[64],
                         old_tls[] = {0x16, 0x03, 0x00, 0x00, 0x05, 1, 0, 0, 1, 0},
                         odd_tls[] = {0x16, 0x09, 0x09, 0x40, 0x00, 1, 2, 3}, alert[] = {0x15, 0x03, 0x03, 0x00, 0x02, 2, 40},
                         frame[] = {16, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
    static const struct {
        const uint8_t *bytes;
        size_t n;
    } rows[] = {{http, sizeof http - 1},   {zeros, sizeof zeros}, {old_tls, sizeof old_tls},
                {odd_tls, sizeof odd_tls}, {alert, sizeof alert}, {frame, sizeof frame}};
    uint8_t noise[3000];
    char timeout[48];

    (void)snprintf(timeout, sizeof timeout, "--connect-timeout=%lldms", (long long)(patience(300 * MSEC) / MSEC));
    begin((const char *const[]){timeout, NULL});
    for (unsigned round = 0; round < 10; round++)
        for (size_t i = 0; i <= sizeof(rows) / sizeof rows[0]; i++) {
            bool known = i < sizeof(rows) / sizeof rows[0];
            int fd = dial(c.node[round % 2].address);
            fill_pattern(noise, sizeof noise, round);
            (void)send(fd, known ? rows[i].bytes : noise, known ? rows[i].n : sizeof noise, MSG_NOSIGNAL);
            if (round % 3 == 0)
                (void)close(fd);
            else
                await_end(fd); /* refused, or its time is over */
            if (i == 0)
                bystander_round(&c, 3);
        }
    must(link_is_up());
    bystander_round(&c, 3);
    cluster_end(&c, (const char *const[]){"connection from", NULL});
}

/* ---- floods ---- */

Test(link, flood_disturbs_nobody)
{
    enum { N = 300 };
    static int fds[N];
    struct test_node late;

    begin((const char *const[]){"--connect-timeout=1s", NULL});
    for (unsigned i = 0; i < N; i++)
        fds[i] = dial(c.node[0].address); /* and says nothing */
    bystander_round(&c, 3);
    must(link_is_up());
    for (unsigned i = 0; i < N; i++) {
        await_end(fds[i]); /* turned away, or its time is over */
        if (i % 100 == 0)
            bystander_round(&c, 3);
    }
    /* Nodes with the key can connect again. */
    node_start(&late, &(struct node_options){.name = "late", .listen = "127.0.0.1:0"});
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *conn = node_client(&late, "late");
    struct rdt_ref ref = put_pattern(owner, NULL, 100, 1);
    fetch_pattern(conn, &ref, 100, 1, "inline");
    rdt_close(conn);
    rdt_close(owner);
    node_expect_idle(&late);
    node_stop(&late);
    wait_until(5 * SEC, !node_sees_up(&c.node[0], &late));
    cluster_end(&c, (const char *const[]){"connection from", "is down", "is lost", NULL});
}

/* ---- the identity of nodes ---- */

/* The folder was copied with the machine's image: both nodes have one uuid. */
Test(link, copied_state_dir_is_refused)
{
    static const char sentence[] = "two nodes share one state_dir";
    struct test_node first, second;
    char nodes[200], command[600];

    node_start(&first, &(struct node_options){.name = "first", .listen = "127.0.0.1:0"});
    (void)snprintf(command, sizeof command, "cp -r %s %s/copy", first.state_dir, first.dir);
    must(system(command) == 0);
    (void)snprintf(command, sizeof command, "%s/copy", first.dir);
    (void)snprintf(nodes, sizeof nodes, "first %s\n", first.address);
    node_start(&second,
               &(struct node_options){.name = "second", .listen = "127.0.0.1:0", .nodes = nodes, .state_dir = command});
    must(strcmp(first.uuid, second.uuid) == 0);
    wait_until(10 * SEC, node_log_has(&first, sentence) || node_log_has(&second, sentence));
    wait_until(10 * SEC, node_log_has(&second, sentence));
    node_expect_idle(&first);
    node_expect_idle(&second);
    node_stop(&second);
    node_stop(&first);
    node_check_log(&first, (const char *const[]){sentence, "connection from", NULL});
    node_check_log(&second, (const char *const[]){sentence, "first", NULL});
}

/* A third node, which uses both, keeps its link to one of them and says why it refuses the other. */
Test(link, copied_state_dir_is_named_by_a_third_node)
{
    static const char sentence[] = "two daemons have the uuid of";
    struct test_node first, second, third;
    char nodes[200], copy[200], command[600];
    struct program doctor;

    node_start(&first, &(struct node_options){.name = "first", .listen = "127.0.0.1:0"});
    (void)snprintf(copy, sizeof copy, "%s/copy", first.dir);
    (void)snprintf(command, sizeof command, "cp -r %s %s", first.state_dir, copy);
    must(system(command) == 0);
    node_start(&third, &(struct node_options){.name = "third", .listen = "127.0.0.1:0"});
    node_stop(&first);
    (void)snprintf(nodes, sizeof nodes, "third %s\n", third.address);
    node_start(&first, &(struct node_options){
                           .name = "first", .listen = "127.0.0.1:0", .nodes = nodes, .state_dir = copy, .awaited = true});
    wait_until(10 * SEC, node_sees_up(&third, &first));
    (void)snprintf(command, sizeof command, "cp -r %s %s2", copy, copy);
    must(system(command) == 0);
    (void)snprintf(copy + strlen(copy), sizeof copy - strlen(copy), "2");
    node_start(&second, &(struct node_options){
                            .name = "second", .listen = "127.0.0.1:0", .nodes = nodes, .state_dir = copy, .awaited = true});
    wait_until(10 * SEC,
               node_log_has(&third, sentence) && (node_log_has(&first, "node_uuid") || node_log_has(&second, "node_uuid")));
    must(node_log_count(&third, "it restarted") <= 1);
    program_run(&doctor, (const char *const[]){"rdtctl", "--socket", third.socket, "doctor", NULL}, NULL);
    must_say(strstr(doctor.out, sentence) && strstr(doctor.out, "remove node_uuid"), "%s", doctor.out);
    program_free(&doctor);

    rdt *conn = node_client(&second, "reader");
    struct rdt_ref ref = ref_on(&first, "x");
    rdt_object *object;
    ref.generation = 1;
    must_refuse(RDT_NOT_FOUND, "remove node_uuid", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(conn);
    node_stop(&second);
    node_stop(&first);
    node_stop(&third);
    node_check_log(&third, (const char *const[]){sentence, "it restarted", "is lost", "is down", "connection from", NULL});
}

/* The address leads to another node than the name says. */
Test(link, node_is_not_who_it_should_be)
{
    struct test_node a, b, seeker;
    rdt_object *object;
    char nodes[300];

    node_start(&a, &(struct node_options){.name = "a", .listen = "127.0.0.1:0"});
    node_start(&b, &(struct node_options){.name = "b", .listen = "127.0.0.1:0"});
    (void)snprintf(nodes, sizeof nodes, "bee %s %s\n", a.address, b.uuid);
    node_start(&seeker, &(struct node_options){.name = "seeker", .listen = "127.0.0.1:0", .nodes = nodes});
    wait_until(10 * SEC, node_log_has(&seeker, "as the nodes file says"));
    rdt *conn = node_client(&seeker, "seeker");
    struct rdt_ref ref = ref_on(&b, "x");
    must_refuse(RDT_PEER_LOST, "bee", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err)); /* the file's word stands */
    rdt_close(conn);
    node_stop(&seeker);

    conn = node_client(&a, "a");
    ref = ref_on(&b, "x");
    memset(ref.node, 7, sizeof ref.node);
    must_refuse(RDT_PEER_LOST, "as a ref says", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(conn);
    node_stop(&a);
    node_stop(&b);
    node_check_log(&seeker, (const char *const[]){"as the nodes file says", NULL});
    node_check_log(&a, (const char *const[]){"as a ref says", "connection from", NULL});
    node_check_log(&b, (const char *const[]){"connection from", NULL});
}
