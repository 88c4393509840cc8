/* Refs that name nodes: a node that has become another, refs that lie, refs by the thousand, and strangers at the port where
 * nodes meet. Whoever is at an address is reached there, whatever others asked for before. */
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

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

Test(hostile_refs, uuid_of_a_ref_is_insisted_on_for_that_request_alone)
{
    struct rdt_ref ref;

    both_begin(NULL, NULL);
    ref = there(other_address);
    must(getrandom(ref.node, sizeof ref.node, 0) == sizeof ref.node);
    must(seteuid(STRANGER) == 0);
    rdt *liar = node_client(&node, "liar");
    must(seteuid(0) == 0);
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
    must(seteuid(STRANGER) == 0);
    liar = node_client(&node, "liar");
    must(seteuid(0) == 0);
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
    replace_file(folder, "resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:2\n");
    replace_file(folder, "hosts", "127.0.0.1 bee.test\n");
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
    must(seteuid(STRANGER) == 0);
    user = node_client(&node, "user");
    must(seteuid(0) == 0);
    for (unsigned i = 0; i < N; i++) {
        struct rdt_ref ref;
        (void)snprintf(place, sizeof place, "nobody%u.invalid:7411", i);
        ref = there(place);
        requests[i] = start_one(user, &ref, LONG);
    }
    wait_until(LONG, (node_status(&node, &status), status.peers_known >= N));
    (void)snprintf(place, sizeof place, "bee.test%s", strrchr(other_address, ':'));
    must_be_reached(place);
    for (unsigned i = 0; i < N; i++)
        rdt_request_destroy(requests[i]);
    rdt_close(user);
    both_end();
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

/* What the error says of an address, without the address itself. */
static void failure_at(rdt *conn, const char *address, char text_p[256])
{
    struct rdt_ref ref = there(address);
    char *at;

    must(fetch_status(conn, &ref, LONG) != RDT_OK);
    (void)snprintf(text_p, 256, "%.255s", err.msg);
    while ((at = strstr(text_p, address)))
        memmove(at, at + strlen(address), strlen(at + strlen(address)) + 1);
    at = strstr(text_p, " (next try"); /* its number differs */
    if (at)
        *at = '\0';
}

Test(hostile_refs, user_cannot_tell_a_closed_port_from_another_service)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    char nowhere[65], service[65], closed[256], refused[256];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), accepted;
    rdt_request *request;
    struct rdt_ref ref;
    rdt *user;

    both_begin(NULL, NULL);
    must(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 8) == 0);
    must(getsockname(listener, (struct sockaddr *)&at, &bytes) == 0);
    (void)snprintf(service, sizeof service, "127.0.0.1:%u", ntohs(at.sin_port));
    free_address(0, "127.0.0.1", nowhere);
    must(seteuid(STRANGER) == 0);
    user = node_client(&node, "user");
    must(seteuid(0) == 0);
    failure_at(user, nowhere, closed);
    ref = there(service);
    request = start_one(user, &ref, LONG);
    must((accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
    must(send(accepted, "220 welcome\r\n", 13, MSG_NOSIGNAL) == 13);
    (void)rdt_wait(user, &request, 1, 1, LONG, NULL, NULL, NULL);
    rdt_request_destroy(request);
    failure_at(user, service, refused);
    failure_at(user, nowhere, closed);
    must_say(strcmp(closed, refused) == 0, "\"%s\" is not \"%s\"", closed, refused);
    (void)close(accepted);
    (void)close(listener);
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
