/* SPDX-License-Identifier: Apache-2.0 */
/* Refs that name nodes: a node whose uuid has changed, false refs, thousands of refs, and strangers that connect to the
 * nodes' port. A fetch reaches the node that is at an address, whatever other clients asked for before. */
#include "tests/integration/hostile/hostile_refs.h"

TestSuite(hostile_refs, .timeout = 120);

/* ---- an address is not an identity ---- */

Test(hostile_refs, node_with_a_new_uuid_is_reached_by_name_and_by_address)
{
    struct peer_view view;
    char old[33];

    both_begin("bee", NULL);
    must_be_reached("bee");
    must_be_reached(other_address);
    memcpy(old, other.uuid, sizeof old);
    rdt_close(owner);
    node_kill(&other, SIGKILL);
    node_start(&other, &(struct node_options){.name = "other", .listen = other_address, .awaited = true}); /* a new state_dir */
    must(strcmp(old, other.uuid) != 0);
    put_there();
    wait_until(LONG, peer_seen(&node, &other, &view) && strcmp(view.state, "up") == 0);
    must_be_reached("bee");
    must_be_reached(other_address);
    both_end();
}

/* Starts a node at other_address that dials in to `node`, and waits until it is there. state_dir NULL: it has a new uuid. */
static void other_dials_in(const char *state_dir)
{
    struct peer_view view;
    char nodes[128];

    (void)snprintf(nodes, sizeof nodes, "a %s\n", node.address);
    node_start(&other, &(struct node_options){
                           .name = "other", .listen = other_address, .nodes = nodes, .state_dir = state_dir, .awaited = true});
    wait_until(LONG, peer_seen(&node, &other, &view) && strcmp(view.state, "up") == 0);
    put_there();
}

static void kill_other(void)
{
    struct peer_view view;

    rdt_close(owner);
    node_kill(&other, SIGKILL);
    wait_until(LONG, peer_seen(&node, &other, &view) && strcmp(view.state, "up") != 0);
}

/* "other" dials in, and then answers at a second address too, which is written to alias_p. */
static void other_gets_an_alias(char alias_p[65])
{
    begin(&(struct node_options){.listen = "127.0.0.1:0"});
    free_address(0, "127.0.0.1", other_address);
    (void)snprintf(alias_p, 65, "localhost%s", strrchr(other_address, ':'));
    other_dials_in(NULL);
    must_be_reached(alias_p);
}

Test(hostile_refs, second_address_leads_to_the_node_that_took_the_place_of_a_restarted_one)
{
    char alias[65], state_dir[160];

    other_gets_an_alias(alias);
    (void)snprintf(state_dir, sizeof state_dir, "%s", other.state_dir);
    kill_other();
    other_dials_in(state_dir);
    kill_other();
    other_dials_in(NULL);
    must_be_reached(other_address);
    must_be_reached(alias);
    both_end();
}

Test(hostile_refs, second_address_of_a_node_that_moved_leads_to_the_node_that_is_there_now)
{
    char alias[65], state_dir[160], place[65];
    struct test_node newcomer;

    other_gets_an_alias(alias);
    (void)snprintf(state_dir, sizeof state_dir, "%s", other.state_dir);
    (void)snprintf(place, sizeof place, "%s", other_address);
    kill_other();
    free_address(0, "127.0.0.1", other_address);
    other_dials_in(state_dir);
    node_start(&newcomer, &(struct node_options){.name = "newcomer", .listen = place});
    rdt *there_client = node_client(&newcomer, "owner");
    (void)put_one(there_client, &VECTOR(RDT_U8, 16, "sixteen bytes .."), "of the newcomer");
    struct rdt_ref ref = ref_named("of the newcomer");
    (void)snprintf(ref.address, sizeof ref.address, "%s", alias);
    must_say(fetch_status(bystander, &ref, LONG) == RDT_OK, "%s", err.msg);
    rdt_close(there_client);
    node.fds++; /* the link to the newcomer */
    newcomer.fds++;
    both_end();
    node_end(&newcomer, meant);
}

Test(hostile_refs, uuid_of_a_ref_is_insisted_on_for_that_request_alone)
{
    both_begin(NULL, NULL);
    struct rdt_ref ref = there(other_address);
    must(getrandom(ref.node, sizeof ref.node, 0) == sizeof ref.node);
    rdt *liar = client_of(STRANGER, "liar");
    for (unsigned i = 0; i < 3; i++)
        must(fetch_status(liar, &ref, LONG) != RDT_OK);
    must_be_reached(other_address);
    rdt_close(liar);
    both_end();
}

/* ---- the table forgets ---- */

Test(hostile_refs, refs_by_the_thousand_leave_room_for_real_nodes)
{
    char nowhere[65];
    unsigned n_limited = 0;

    both_begin(NULL, NULL);
    free_address(0, "127.0.0.1", nowhere);
    rdt *liar = client_of(STRANGER, "liar");
    struct rdt_ref ref = there(nowhere);
    for (unsigned i = 0; i < 4200; i++) {
        must(getrandom(ref.node, sizeof ref.node, 0) == sizeof ref.node);
        n_limited += fetch_status(liar, &ref, 0) == RDT_LIMIT;
    }
    must(n_limited > 0);
    must_be_reached(other_address);
    rdt_close(liar);
    both_end();
}

/* ---- strangers at the port ---- */

Test(hostile_refs, silent_connections_keep_no_node_away)
{
    enum { N = 320 };
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdt_ref back = ref_named("theirs");
    int socks[N];

    both_begin(NULL, NULL);
    to.sin_port = htons((uint16_t)atoi(strrchr(node.address, ':') + 1));
    for (unsigned i = 0; i < N; i++) {
        socks[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        must(connect(socks[i], (struct sockaddr *)&to, sizeof to) == 0);
    }
    (void)snprintf(back.address, sizeof back.address, "%s", node.address);
    must_say(fetch_status(owner, &back, LONG) == RDT_OK, "%s", err.msg); /* the other node dials this one */
    for (unsigned i = 0; i < N; i++)
        (void)close(socks[i]);
    both_end();
}

/* ---- names that cannot be looked up ---- */

/* Writes to /etc, for all processes in this mount namespace. */
static void replace_file(const char *folder, const char *name, const char *text)
{
    char from[96], to[64];

    (void)snprintf(from, sizeof from, "%s/%s", folder, name);
    (void)snprintf(to, sizeof to, "/etc/%s", name);
    write_file(from, text);
    must_say(mount(from, to, NULL, MS_BIND, NULL) == 0, "%s: %s", to, strerror(errno));
    must(unlink(from) == 0);
}

/* From now on, for this process and its daemons: a name server that never answers, and a hosts file with one name. */
static bool mute_name_server(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(53)};
    int server;
    char folder[] = "/tmp/rdt-names.XXXXXX";

    if (unshare(CLONE_NEWNS | CLONE_NEWNET) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return false;
    must(system("ip link set lo up") == 0);
    must(bind((server = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), (struct sockaddr *)&at, sizeof at) == 0);
    must(mkdtemp(folder));
    replace_file(folder, "resolv.conf", "nameserver 127.0.0.1\noptions timeout:3 attempts:2\n");
    replace_file(folder, "hosts", "127.0.0.1 bee.test\n127.0.0.5 cee.test\n");
    replace_file(folder, "nsswitch.conf", "hosts: files dns\n");
    must(rmdir(folder) == 0);
    return true;
}

Test(hostile_refs, names_that_are_looked_up_for_ever_delay_no_other_user)
{
    enum { N = 40 };
    rdt_request *requests[N];
    char place[65];

    if (geteuid() != 0 || !mute_name_server())
        cr_skip_test("a name server of its own needs root and namespaces");
    both_begin(NULL, NULL);
    rdt *user = client_of(STRANGER, "user");
    for (unsigned i = 0; i < N - 1; i++) {
        (void)snprintf(place, sizeof place, "nobody%u.invalid:7411", i);
        struct rdt_ref ref = there(place);
        requests[i] = start_one(user, &ref, LONG);
    }
    (void)snprintf(place, sizeof place, "bee.test%s", strrchr(other_address, ':'));
    struct rdt_ref bee = there(place);
    requests[N - 1] = start_one(user, &bee, LONG); /* another user's request for that host does not wait for this one */
    wait_until(LONG, node_now(&node).peers_known >= N);
    must_be_reached(place);
    for (unsigned i = 0; i < N; i++)
        rdt_request_destroy(requests[i]);
    rdt_close(user);
    both_end();
}

static int knock_from(const char *source)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)atoi(strrchr(node.address, ':') + 1));
    must(inet_pton(AF_INET, source, &from.sin_addr) == 1 && bind(sock, (struct sockaddr *)&from, sizeof from) == 0);
    must(connect(sock, (struct sockaddr *)&to, sizeof to) == 0);
    return sock;
}

static bool is_closed(int sock)
{
    char byte;
    ssize_t n = recv(sock, &byte, 1, MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

/* The nodes file gives a host name, and the limit of connections from one source is not for that node. */
Test(hostile_refs, listed_host_name_has_no_limit_of_its_own)
{
    enum { FRIENDS = 34, STRANGERS = 33 };
    int friends[FRIENDS], strangers[STRANGERS];

    if (geteuid() != 0 || !mute_name_server())
        cr_skip_test("a hosts file of its own needs root and namespaces");
    begin(&(struct node_options){
        .listen = "127.0.0.1:0", .nodes = "cee cee.test:9\n", .flags = (const char *[]){"--connect-timeout=60s", NULL}});
    wait_until(LONG, node_log_has(&node, "cannot connect to 127.0.0.5:9"));
    for (unsigned i = 0; i < FRIENDS; i++)
        friends[i] = knock_from("127.0.0.5");
    for (unsigned i = 0; i < STRANGERS; i++)
        strangers[i] = knock_from("127.0.0.6");
    wait_until(LONG, is_closed(strangers[0]));
    for (unsigned i = 0; i < FRIENDS; i++)
        cr_assert_not(is_closed(friends[i]), "connection %u of the listed node made room", i);
    for (unsigned i = 0; i < FRIENDS; i++)
        (void)close(friends[i]);
    for (unsigned i = 0; i < STRANGERS; i++)
        (void)close(strangers[i]);
    others_are_well();
    rdt_close(bystander);
    node_end(&node, meant);
}
