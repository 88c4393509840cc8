/* SPDX-License-Identifier: Apache-2.0 */
/* Refs of users name addresses, which the daemon dials: what a user learns of them, how many addresses it may have dialled,
 * and that nobody else is delayed. */
#include "tests/integration/hostile/hostile_refs.h"

TestSuite(hostile_dials, .timeout = 120);

/* ---- the daemon is no port scanner ---- */

Test(hostile_dials, dial_listed_refuses_other_addresses)
{
    static const char *const listed_only[] = {"--dial=listed", NULL};
    char nowhere[65];

    both_begin("bee", listed_only);
    must_be_reached("bee");
    must_be_reached(other_address);
    free_address(0, "127.0.0.1", nowhere);
    struct rdt_ref ref = there(nowhere);
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

/* Returns what the error says of the ref's address, without the address itself. listener: the service at that address; -1:
 * none. */
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
    at = strstr(text_p, " (next try"); /* the port number differs */
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

Test(hostile_dials, user_cannot_tell_a_closed_port_from_another_service)
{
    both_begin(NULL, NULL);
    rdt *user = client_of(STRANGER, "user");
    must_look_the_same(user, there(""));
    rdt_close(user);
    both_end();
}

/* A user, and a ref of a known node that has ended since, as the view shows. */
static rdt *begin_away(struct rdt_ref *ref_p, struct peer_view *view_p)
{
    both_begin(NULL, NULL);
    must_be_reached(other_address);
    rdt *user = client_of(STRANGER, "user");
    *ref_p = there("");
    memcpy(ref_p->node, other.uuid_bytes, sizeof ref_p->node);
    rdt_close(owner);
    node_kill(&other, SIGKILL);
    wait_until(LONG, peer_seen(&node, &other, view_p) && strcmp(view_p->state, "up") != 0);
    return user;
}

/* A known node may have moved to where a ref says that it is. */
Test(hostile_dials, user_cannot_tell_them_by_refs_of_a_node_that_is_away_either)
{
    struct peer_view view;
    struct rdt_ref ref;
    rdt *user = begin_away(&ref, &view);

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

/* What an administrator's request found at an address is not shown to users, in errors or in the list of nodes. */
Test(hostile_dials, user_does_not_learn_what_an_administrator_found)
{
    char after_root[256], alone[256];
    bool refused = false;

    both_begin(NULL, NULL);
    rdt *user = client_of(STRANGER, "user");
    struct rdt_ref ref = there("");
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

Test(hostile_dials, user_has_few_addresses_dialled_and_others_are_not_held_up)
{
    struct rdt_ref shown, elsewhere = there("");
    struct test_node third;
    int64_t since = now_ns();
    rdt *greedy, *user, *there_client;
    char address[65];

    free_address(0, "127.0.0.1", address);
    node_start(&third, &(struct node_options){.name = "third", .listen = address});
    there_client = node_client(&third, "owner");
    shown = put_shown(there_client, &VECTOR(RDT_U8, 16, "sixteen bytes .."), "shown", RDT_VISIBLE_TO_ALL);
    both_begin("bee", NULL);
    greedy = client_of(STRANGER, "greedy");
    unsigned n_refused = dial_nowhere(greedy, 64);
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
Test(hostile_dials, hints_of_a_user_do_not_fill_the_log)
{
    struct peer_view view;
    struct rdt_ref ref;
    rdt *user = begin_away(&ref, &view);
    unsigned before = node_log_count(&node, " warn: ");

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
Test(hostile_dials, hints_of_a_user_keep_nobody_from_a_node)
{
    char state_dir[160], uuid[33];
    struct peer_view view;
    struct rdt_ref ref;
    rdt *user = begin_away(&ref, &view);

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

        (void)snprintf(path, sizeof path, "/proc/%d/net/%s", (int)pid, tables[i]);
        FILE *file = fopen(path, "re");
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

Test(hostile_dials, node_without_peers_opens_no_port)
{
    struct rdt_member members[] = {{.client = "one"}, {.client = "two"}};

    begin(&(struct node_options){.trusted_network = true});
    rdt *one = node_client(&node, "one");
    rdt *two = node_client(&node, "two");
    if (access(build_path("backends/rdt_gloo.so"), F_OK) == 0) { /* it would open a port for each rank of a group */
        cr_assert_eq(rdt_group_create(one, "g", "gloo", members, 2, NULL, &err), RDT_UNSUPPORTED);
        cr_assert(strstr(err.msg, "no port is opened: set listen, and key_file or peer_cert"), "%s", err.msg);
    }
    cr_assert_eq(ports_of(node.pid), 0);
    rdt_close(one);
    rdt_close(two);
    end();
    begin(&(struct node_options){.listen = "127.0.0.1:0", .trusted_network = true});
    cr_assert_gt(ports_of(node.pid), 0);
    end();
}
