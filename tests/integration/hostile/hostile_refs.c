/* SPDX-License-Identifier: Apache-2.0 */
/* Refs that name nodes: a node that has become another, refs that lie, refs by the thousand, and strangers at the port where
 * nodes meet. Whoever is at an address is reached there, whatever others asked for before. */
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/rdt_info.h"
#include "tests/integration/hostile/protocol_fixture.h"
#include "tests/support/cluster.h"

TestSuite(hostile_refs, .timeout = 120);

#define STRANGER 12345

static const char *const meant[] = {"(pid ", "node ", "connection from", NULL};
static struct test_node other;
static rdt *owner; /* a client there, with the object "there" */
static char other_address[65];
static struct rdt_error err;

static void put_there(void)
{
    char *addr;

    owner = node_client(&other, "owner");
    addr = alloc_memory(owner, 4096);
    fill_pattern(addr, 4096, 7);
    (void)put_one(owner, &VECTOR(RDT_U8, 4096, addr), "there");
}

static void both_begin(const char *nodes_line, const char *const *flags)
{
    char nodes[128] = "";

    free_address(0, "127.0.0.1", other_address);
    if (nodes_line)
        (void)snprintf(nodes, sizeof nodes, "%s %s\n", nodes_line, other_address);
    node_start(&other, &(struct node_options){.name = "other", .listen = other_address, .awaited = nodes_line});
    put_there();
    begin(&(struct node_options){.listen = "127.0.0.1:0", .nodes = nodes_line ? nodes : NULL, .flags = flags});
}

static void both_end(void)
{
    others_are_well();
    rdt_close(owner);
    rdt_close(bystander);
    node.fds++; /* the link between them */
    other.fds++;
    node_end(&node, meant);
    node_end(&other, meant);
}

/* By the place alone: an address, or a name of the nodes file. */
static struct rdt_ref there(const char *place)
{
    struct rdt_ref ref = ref_named("there");

    (void)snprintf(ref.address, sizeof ref.address, "%s", place);
    return ref;
}

static rdt *client_of(uid_t uid, const char *name)
{
    rdt *conn;

    must(seteuid(uid) == 0);
    conn = node_client(&node, name);
    must(seteuid(0) == 0);
    return conn;
}

static enum rdt_status fetch_status(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns)
{
    rdt_object *object;
    enum rdt_status status = try_fetch(conn, ref, RDT_FETCH_COPY, timeout_ns, &object, &err);

    if (status == RDT_OK)
        rdt_release(object);
    return status;
}

static void must_be_reached(const char *place)
{
    struct rdt_ref ref = there(place);

    must_say(fetch_status(bystander, &ref, LONG) == RDT_OK, "by %s: %s", place, err.msg);
}

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
    rdt *there_client;

    other_gets_an_alias(alias);
    (void)snprintf(state_dir, sizeof state_dir, "%s", other.state_dir);
    (void)snprintf(place, sizeof place, "%s", other_address);
    kill_other();
    free_address(0, "127.0.0.1", other_address);
    other_dials_in(state_dir);
    node_start(&newcomer, &(struct node_options){.name = "newcomer", .listen = place});
    there_client = node_client(&newcomer, "owner");
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
    struct rdt_ref ref;

    both_begin(NULL, NULL);
    ref = there(other_address);
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
    struct rdt_ref ref;
    char nowhere[65];
    unsigned n_limited = 0;
    rdt *liar;

    both_begin(NULL, NULL);
    free_address(0, "127.0.0.1", nowhere);
    liar = client_of(STRANGER, "liar");
    ref = there(nowhere);
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

/* In /etc, for whoever shares this mount namespace. */
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
    struct node_status status;
    char place[65];
    rdt *user;

    if (geteuid() != 0 || !mute_name_server())
        cr_skip_test("a name server of its own needs root and namespaces");
    both_begin(NULL, NULL);
    user = client_of(STRANGER, "user");
    for (unsigned i = 0; i < N - 1; i++) {
        struct rdt_ref ref;
        (void)snprintf(place, sizeof place, "nobody%u.invalid:7411", i);
        ref = there(place);
        requests[i] = start_one(user, &ref, LONG);
    }
    (void)snprintf(place, sizeof place, "bee.test%s", strrchr(other_address, ':'));
    struct rdt_ref bee = there(place);
    requests[N - 1] = start_one(user, &bee, LONG); /* another user's request for that host does not wait for this one */
    wait_until(LONG, (node_status(&node, &status), status.peers_known >= N));
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

/* ---- the daemon is no port scanner ---- */

Test(hostile_refs, dial_listed_refuses_other_addresses)
{
    static const char *const listed_only[] = {"--dial=listed", NULL};
    struct rdt_ref ref;
    char nowhere[65];

    both_begin("bee", listed_only);
    must_be_reached("bee");
    must_be_reached(other_address);
    free_address(0, "127.0.0.1", nowhere);
    ref = there(nowhere);
    must(fetch_status(bystander, &ref, LONG) == RDT_DENIED);
    must_say(strstr(err.msg, nowhere) && strstr(err.msg, "dial = listed"), "%s", err.msg);
    both_end();
}

/* A service that is no node. */
static int service_at(char address_p[65])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    must(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 8) == 0);
    must(getsockname(listener, (struct sockaddr *)&at, &bytes) == 0);
    (void)snprintf(address_p, 65, "127.0.0.1:%u", ntohs(at.sin_port));
    return listener;
}

/* What the error says of the ref's address, without the address itself. listener: of the service there; -1: there is none. */
static void failure_at(rdt *conn, const struct rdt_ref *ref, int listener, char text_p[256])
{
    rdt_request *request = start_one(conn, ref, LONG);
    int accepted = listener >= 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    char *at;

    must((accepted >= 0) == (listener >= 0));
    if (accepted >= 0)
        must(send(accepted, "220 welcome\r\n", 13, MSG_NOSIGNAL) == 13);
    (void)rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, NULL);
    must(rdt_request_status(request, &err) != RDT_OK);
    rdt_request_destroy(request);
    (void)close(accepted);
    (void)snprintf(text_p, 256, "%.255s", err.msg);
    while ((at = strstr(text_p, ref->address)))
        memmove(at, at + strlen(ref->address), strlen(at + strlen(ref->address)) + 1);
    at = strstr(text_p, " (next try"); /* its number differs */
    if (at)
        *at = '\0';
}

static void must_look_the_same(rdt *user, struct rdt_ref ref)
{
    char service[65], closed[256], refused[256];
    int listener = service_at(service);

    free_address(0, "127.0.0.1", ref.address);
    failure_at(user, &ref, -1, closed);
    (void)snprintf(ref.address, sizeof ref.address, "%s", service);
    failure_at(user, &ref, listener, refused);
    must_say(strcmp(closed, refused) == 0, "\"%s\" is not \"%s\"", closed, refused);
    (void)close(listener);
}

Test(hostile_refs, user_cannot_tell_a_closed_port_from_another_service)
{
    rdt *user;

    both_begin(NULL, NULL);
    user = client_of(STRANGER, "user");
    must_look_the_same(user, there(""));
    rdt_close(user);
    both_end();
}

/* A known node may have moved to where a ref says that it is. */
Test(hostile_refs, user_cannot_tell_them_by_refs_of_a_node_that_is_away_either)
{
    struct peer_view view;
    struct rdt_ref ref;
    rdt *user;

    both_begin(NULL, NULL);
    must_be_reached(other_address);
    user = client_of(STRANGER, "user");
    ref = there("");
    memcpy(ref.node, other.uuid_bytes, sizeof ref.node);
    rdt_close(owner);
    node_kill(&other, SIGKILL);
    wait_until(LONG, peer_seen(&node, &other, &view) && strcmp(view.state, "up") != 0);
    must_look_the_same(user, ref);
    rdt_close(user);
    others_are_well();
    rdt_close(bystander);
    node_end(&node, meant);
}

static bool says_refused(void *arg, const struct rdt_node_row *row)
{
    bool *found = arg;

    *found |= strstr(row->last_error, "refused") != NULL;
    return true;
}

/* What an administrator has found out at an address is no news for users: in errors, and in the list of nodes. */
Test(hostile_refs, user_does_not_learn_what_an_administrator_found)
{
    char after_root[256], alone[256];
    struct rdt_ref ref;
    bool refused = false;
    rdt *user;

    both_begin(NULL, NULL);
    user = client_of(STRANGER, "user");
    ref = there("");
    free_address(0, "127.0.0.1", ref.address);
    failure_at(user, &ref, -1, alone);
    free_address(0, "127.0.0.1", ref.address);
    must(fetch_status(bystander, &ref, LONG) == RDT_PEER_LOST);
    must_say(strstr(err.msg, "refused"), "an administrator learns why: %s", err.msg);
    failure_at(user, &ref, -1, after_root);
    must_say(strcmp(after_root, alone) == 0, "\"%s\" is not \"%s\"", after_root, alone);
    must(rdt_each_node(user, says_refused, &refused, NULL) == RDT_OK);
    cr_assert_not(refused, "the list of nodes tells it");
    must(rdt_each_node(bystander, says_refused, &refused, NULL) == RDT_OK);
    cr_assert(refused, "an administrator sees it there");
    rdt_close(user);
    both_end();
}

/* ---- how many addresses a user may have dialled ---- */

/* Has N addresses dialled where nobody listens. Returns how many of the dials were refused. */
static unsigned dial_nowhere(rdt *conn, unsigned n)
{
    struct rdt_ref ref = there("");
    unsigned n_refused = 0;

    for (unsigned i = 0; i < n; i++) {
        static unsigned next;

        (void)snprintf(ref.address, sizeof ref.address, "127.77.%u.%u:7", 1 + next / 250, 1 + next % 250);
        next++;
        if (fetch_status(conn, &ref, LONG) != RDT_LIMIT)
            continue;
        n_refused++;
        must_say(strstr(err.msg,
                        "uid 12345 has had 64 unlisted addresses dialled, and 4 more a second are allowed: try again in ") &&
                     strstr(err.msg, "or list the nodes in the nodes file"),
                 "%s", err.msg);
    }
    return n_refused;
}

Test(hostile_refs, user_has_few_addresses_dialled_and_others_are_not_held_up)
{
    struct rdt_ref shown, elsewhere = there("");
    struct test_node third;
    int64_t since = now_ns();
    rdt *greedy, *user, *there_client;
    unsigned n_refused;
    char address[65];

    free_address(0, "127.0.0.1", address);
    node_start(&third, &(struct node_options){.name = "third", .listen = address});
    there_client = node_client(&third, "owner");
    shown = put_shown(there_client, &VECTOR(RDT_U8, 16, "sixteen bytes .."), "shown", RDT_VISIBLE_TO_ALL);
    both_begin("bee", NULL);
    greedy = client_of(STRANGER, "greedy");
    n_refused = dial_nowhere(greedy, 64);
    must_say(n_refused == 0, "%u of the first 64 were refused", n_refused);
    n_refused = dial_nowhere(greedy, 200);
    must_say(n_refused + 1 >= 200 - (unsigned)((now_ns() - since) / (SEC / 4)), "only %u of 200 were refused", n_refused);

    rdt_close(greedy); /* the limit is the user's, not the session's */
    greedy = client_of(STRANGER, "greedy");
    since = now_ns();
    n_refused = dial_nowhere(greedy, 60);
    must_say(n_refused + 1 >= 60 - (unsigned)((now_ns() - since) / (SEC / 4)), "only %u of 60 were refused after a new session",
             n_refused);
    must_say(node_log_count(&node, " warn: node 127.77.") <= 2, "%u warnings", node_log_count(&node, " warn: node 127.77."));

    must_be_reached("bee"); /* a listed node, by whomever */
    (void)snprintf(elsewhere.address, sizeof elsewhere.address, "%s", other_address);
    must(fetch_status(greedy, &elsewhere, MSEC) != RDT_LIMIT); /* nobody has put that id for this user */
    user = client_of(STRANGER + 1, "user");                    /* another user's dial */
    must_say(fetch_status(user, &shown, LONG) == RDT_OK, "%s", err.msg);
    must_say(fetch_status(greedy, &shown, LONG) == RDT_OK, "%s", err.msg); /* it has been met now */
    rdt_close(user);
    rdt_close(greedy);
    node.fds++; /* the link to the third node */
    third.fds++;
    both_end();
    rdt_close(there_client);
    node_end(&third, meant);
}

/* Each such failure has another text. */
Test(hostile_refs, hints_of_a_user_do_not_fill_the_log)
{
    struct peer_view view;
    struct rdt_ref ref;
    unsigned before;
    rdt *user;

    both_begin(NULL, NULL);
    must_be_reached(other_address);
    user = client_of(STRANGER, "user");
    ref = there("");
    memcpy(ref.node, other.uuid_bytes, sizeof ref.node);
    rdt_close(owner);
    node_kill(&other, SIGKILL);
    wait_until(LONG, peer_seen(&node, &other, &view) && strcmp(view.state, "up") != 0);
    before = node_log_count(&node, " warn: ");
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(ref.address, sizeof ref.address, "127.78.0.%u:7", i + 1);
        must(fetch_status(user, &ref, LONG) != RDT_OK);
    }
    must_say(node_log_count(&node, " warn: ") <= before + 3, "%u more warnings", node_log_count(&node, " warn: ") - before);
    rdt_close(user);
    others_are_well();
    rdt_close(bystander);
    node_end(&node, meant);
}

/* A user's refs say every moment that the node has moved. The node is dialled where it is all the same. */
Test(hostile_refs, hints_of_a_user_keep_nobody_from_a_node)
{
    char state_dir[160], uuid[33];
    struct peer_view view;
    struct rdt_ref ref;
    rdt *user;

    both_begin(NULL, NULL);
    must_be_reached(other_address);
    user = client_of(STRANGER, "user");
    ref = there("");
    memcpy(ref.node, other.uuid_bytes, sizeof ref.node);
    rdt_close(owner);
    node_kill(&other, SIGKILL);
    wait_until(LONG, peer_seen(&node, &other, &view) && strcmp(view.state, "up") != 0);
    for (unsigned i = 0; i < 20; i++) { /* the wait between two dials grows */
        (void)snprintf(ref.address, sizeof ref.address, "127.79.0.%u:7", i + 1);
        must(fetch_status(user, &ref, LONG) != RDT_OK);
    }
    memcpy(uuid, other.uuid, sizeof uuid);
    (void)snprintf(state_dir, sizeof state_dir, "%s", other.state_dir);
    node_start(&other, &(struct node_options){.name = "other", .listen = other_address, .state_dir = state_dir});
    must(strcmp(uuid, other.uuid) == 0);
    put_there();
    for (unsigned i = 0; i < 10 && strcmp(view.state, "up") != 0; i++) {
        (void)snprintf(ref.address, sizeof ref.address, "127.79.1.%u:7", i + 1);
        (void)fetch_status(user, &ref, SEC);
        must(peer_seen(&node, &other, &view));
    }
    must_say(strcmp(view.state, "up") == 0, "the node is %s", view.state);
    rdt_close(user);
    both_end();
}

/* ---- no peers, no ports ---- */

/* Listening TCP sockets, and bound UDP sockets, among the descriptors of the process. */
static unsigned ports_of(pid_t pid)
{
    static const char *const tables[] = {"tcp", "tcp6", "udp", "udp6"};
    unsigned n = 0;

    for (unsigned i = 0; i < 4; i++) {
        char path[64], line[512];
        FILE *file;

        (void)snprintf(path, sizeof path, "/proc/%d/net/%s", (int)pid, tables[i]);
        file = fopen(path, "re");
        while (file && fgets(line, sizeof line, file)) {
            char command[160];
            unsigned state;
            unsigned long inode;

            if (sscanf(line, " %*d: %*[0-9A-F:] %*[0-9A-F:] %x %*s %*s %*s %*s %*s %lu", &state, &inode) != 2 ||
                (i < 2 && state != 10))
                continue;
            (void)snprintf(command, sizeof command, "ls -l /proc/%d/fd | grep -q 'socket:.%lu.$'", (int)pid, inode);
            n += system(command) == 0;
        }
        if (file)
            (void)fclose(file);
    }
    return n;
}

Test(hostile_refs, node_without_peers_opens_no_port)
{
    struct rdt_member members[] = {{.client = "one"}, {.client = "two"}};
    rdt *one, *two;

    begin(&(struct node_options){.trusted_network = true});
    one = node_client(&node, "one");
    two = node_client(&node, "two");
    if (access(build_path("backends/rdt_gloo.so"), F_OK) == 0) { /* it would open a port for each rank of a group */
        cr_assert_eq(rdt_group_create(one, "g", "gloo", members, 2, NULL, &err), RDT_UNSUPPORTED);
        cr_assert(strstr(err.msg, "no port is opened: set listen and key_file"), "%s", err.msg);
    }
    cr_assert_eq(ports_of(node.pid), 0);
    rdt_close(one);
    rdt_close(two);
    end();
    begin(&(struct node_options){.listen = "127.0.0.1:0", .trusted_network = true});
    cr_assert_gt(ports_of(node.pid), 0);
    end();
}
