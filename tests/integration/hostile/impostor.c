/* SPDX-License-Identifier: Apache-2.0 */
/* Somebody else listens where a client expects its daemon. The client says nothing to him: not at its first connect, and not
 * when its session looks for the next daemon. Needs root to become other users. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/keeper.h"
#include "tests/support/raw.h"
#include "tests/support/tensors.h"

#define STRANGER 2000
#define OTHER 3000
#define UNMAPPED 65534
#define NO_NAMESPACES 77

static char top[128]; /* root's, below TMPDIR; the folders of the cases lie in it */
static char path[160];

static void make_top(void)
{
    (void)snprintf(top, sizeof top, "%s/i", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must((mkdir(top, 0755) == 0 || errno == EEXIST) && chmod(top, 0755) == 0);
}

static const char *below_top(const char *name)
{
    static char paths[4][160];
    static unsigned next;
    char *at = paths[next++ % 4];

    (void)snprintf(at, sizeof paths[0], "%s/%s", top, name);
    return at;
}

static void make_folder(const char *name, uid_t uid, mode_t mode)
{
    const char *at = below_top(name);

    must((mkdir(at, 0700) == 0 || errno == EEXIST) && chown(at, uid, uid) == 0 && chmod(at, mode) == 0);
}

static void become(uid_t uid)
{
    must(setgroups(0, NULL) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0);
    must(prctl(PR_SET_DUMPABLE, 1) == 0);
}

/* The folders of a test: root's own, with one below it in which all may write. */
static void begin(void)
{
    need_root();
    make_top();
    make_folder("all", 0, 01777);
}

/* ---- the impostor ---- */

struct impostor {
    uid_t uid;
    int listener;
    struct actor actor;
};

/* To everybody who says something it answers that there are too many clients. Steps the test when a client has left without
 * a word. */
static int serve(struct actor *self, void *arg)
{
    const struct impostor *impostor = arg;
    uint8_t packed[64];
    char said = 0;

    become(impostor->uid);
    must(listen(impostor->listener, 8) == 0);
    Rdt__Pb__ErrorReply reply = MESSAGE(error_reply, .status = RDT_LIMIT, .message = (char *)"believed");
    must(rdt__pb__error_reply__get_packed_size(&reply) <= sizeof packed);
    actor_step(self);
    for (;;) {
        struct raw raw = {.sock = accept4(impostor->listener, NULL, NULL, SOCK_CLOEXEC)};
        must(raw.sock >= 0);
        frame_reader_init(&raw.reader, RDT_MAX_FRAME_BYTES);
        said = raw_next(&raw) ? 'y' : 'n';
        if (said == 'y')
            (void)raw_frame(&raw, (uint32_t)rdt__pb__error_reply__pack(&reply, packed), RDT_MSG_HELLO, 0,
                            FRAME_REPLY | FRAME_ERROR, raw.frame.request_id, packed,
                            rdt__pb__error_reply__get_packed_size(&reply), NULL, 0);
        actor_send(self, &said, 1);
        raw_close(&raw);
    }
}

/* Root binds, so that every folder will do. */
static void impostor_start(struct impostor *impostor, uid_t uid, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)snprintf(path, sizeof path, "%s", below_top(name));
    must((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s", path) < sizeof address.sun_path);
    (void)unlink(path);
    *impostor = (struct impostor){.uid = uid, .listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    must(impostor->listener >= 0 && bind(impostor->listener, (struct sockaddr *)&address, sizeof address) == 0);
    must(chown(path, uid, uid) == 0 && chmod(path, 0777) == 0);
    actor_start_keeping(&impostor->actor, serve, impostor, impostor->listener);
    must(close(impostor->listener) == 0);
    actor_await(&impostor->actor);
}

static void impostor_end(struct impostor *impostor)
{
    actor_kill(&impostor->actor, SIGKILL);
}

static enum rdt_status try_connect(const char *at, uint32_t daemon_uid, struct rdt_error *err)
{
    rdt *conn = NULL;
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = at, .daemon_uid = daemon_uid};
    enum rdt_status status = rdt_connect(&options, &conn, err);

    must(status != RDT_OK);
    return status;
}

static void must_have_said(struct impostor *impostor, char expected)
{
    char said;

    actor_recv(&impostor->actor, &said, 1);
    must(said == expected);
}

static void must_refuse_it(struct impostor *impostor, const char *at, uint32_t daemon_uid)
{
    char who[32], names[32];

    must_refuse(RDT_DENIED, at, try_connect(at, daemon_uid, &err));
    (void)snprintf(who, sizeof who, "uid %u", impostor->uid);
    (void)snprintf(names, sizeof names, "RDT_DAEMON_UID=%u", impostor->uid);
    must_have_said(impostor, 'n');
    must_refuse(RDT_DENIED, who, try_connect(at, daemon_uid, &err));
    must_have_said(impostor, 'n');
    must_refuse(RDT_DENIED, names, try_connect(at, daemon_uid, &err));
    must_have_said(impostor, 'n');
}

static void must_believe_it(struct impostor *impostor, const char *at, uint32_t daemon_uid)
{
    must_refuse(RDT_LIMIT, "believed", try_connect(at, daemon_uid, &err));
    must_have_said(impostor, 'y');
}

/* ---- where the socket lies ---- */

Test(impostor, socket_in_a_folder_of_all_is_refused_unless_named)
{
    struct impostor impostor;

    begin();
    impostor_start(&impostor, STRANGER, "all/s");
    must_refuse_it(&impostor, path, 0);
    must_refuse_it(&impostor, path, OTHER);
    must_believe_it(&impostor, path, STRANGER);
    must(setenv("RDT_DAEMON_UID", "2000", 1) == 0);
    must_believe_it(&impostor, path, 0);
    must_refuse_it(&impostor, path, OTHER); /* the option comes before the variable */
    must(setenv("RDT_DAEMON_UID", "3000", 1) == 0);
    must_refuse_it(&impostor, path, 0);
    must(setenv("RDT_DAEMON_UID", "rdtd", 1) == 0);
    must_refuse(RDT_INVALID, "RDT_DAEMON_UID is \"rdtd\"", try_connect(path, 0, &err));
    must(unsetenv("RDT_DAEMON_UID") == 0);
    impostor_end(&impostor);
    impostor_start(&impostor, 0, "all/s");
    must_believe_it(&impostor, path, 0);
    must_believe_it(&impostor, path, OTHER);
    impostor_end(&impostor);
}

Test(impostor, owner_of_the_folder_is_believed_where_nobody_else_can_write)
{
    static const mode_t modes[] = {0775, 0757, 01777};
    struct impostor impostor;

    begin();
    make_folder("his", STRANGER, 0755);
    impostor_start(&impostor, STRANGER, "his/s");
    must_believe_it(&impostor, path, 0);
    must(chdir(top) == 0);
    must_believe_it(&impostor, "his/s", 0);
    must_believe_it(&impostor, "./his/../his//s", 0);
    must_refuse_it(&impostor, path, OTHER); /* another one was named */
    for (unsigned i = 0; i < 3; i++) {
        make_folder("his", STRANGER, modes[i]);
        must_refuse_it(&impostor, path, 0);
        must_refuse_it(&impostor, "his/s", 0);
    }
    make_folder("his", OTHER, 0755);
    must_refuse_it(&impostor, path, 0);
    make_folder("his", 0, 0755); /* all could write there when he came */
    must_refuse_it(&impostor, path, 0);
    impostor_end(&impostor);
}

/* Whoever can replace the folder, or the link to it, can put his own there. */
Test(impostor, every_folder_and_link_of_the_path_counts)
{
    struct impostor impostor;

    begin();
    make_folder("all/first", STRANGER, 0755);
    impostor_start(&impostor, STRANGER, "all/first/s");
    must_refuse_it(&impostor, path, 0);
    impostor_end(&impostor);

    make_folder("open", 0, 0777);
    make_folder("open/root", 0, 0755);
    make_folder("open/root/his", STRANGER, 0755);
    impostor_start(&impostor, STRANGER, "open/root/his/s");
    must_refuse_it(&impostor, path, 0);
    impostor_end(&impostor);

    make_folder("his", STRANGER, 0755);
    impostor_start(&impostor, STRANGER, "his/s");
    must(symlink("his", below_top("link")) == 0 && symlink(path, below_top("socket")) == 0);
    must(symlink("../his", below_top("all/link")) == 0);
    must_believe_it(&impostor, below_top("link/s"), 0);
    must_believe_it(&impostor, below_top("socket"), 0);
    must_believe_it(&impostor, below_top("all/link/s"), 0); /* root's own link */
    must(lchown(below_top("link"), OTHER, OTHER) == 0);
    must_refuse_it(&impostor, below_top("link/s"), 0);
    must(symlink("/proc/self/nothing", below_top("loop")) == 0);
    must_refuse(RDT_DISCONNECTED, "No such file", try_connect(below_top("loop"), 0, &err));
    impostor_end(&impostor);
}

/* ---- who connects ---- */

struct client {
    void (*become)(void);
    char path[160];
    uint32_t daemon_uid;
    enum rdt_status expected;
};

static int try_as(struct actor *self, void *arg)
{
    const struct client *client = arg;

    client->become();
    must_be(client->expected, try_connect(client->path, client->daemon_uid, &err));
    return 0;
}

/* Returns false if this machine has no namespaces. */
static bool comes(struct impostor *impostor, void (*as)(void), const char *at, uint32_t daemon_uid, enum rdt_status expected)
{
    struct client client = {.become = as, .daemon_uid = daemon_uid, .expected = expected};
    struct actor actor;

    (void)snprintf(client.path, sizeof client.path, "%s", at);
    actor_start(&actor, try_as, &client);
    int result = actor_result(&actor);
    if (result == NO_NAMESPACES)
        return false;
    must_say(result == 0, "the client ended with %d", result);
    must_have_said(impostor, expected == RDT_LIMIT ? 'y' : 'n');
    return true;
}

static void as_stranger(void)
{
    become(STRANGER);
}

static void as_other(void)
{
    become(OTHER);
}

Test(impostor, own_user_is_believed_everywhere)
{
    struct impostor impostor;

    begin();
    impostor_start(&impostor, STRANGER, "all/s");
    must(comes(&impostor, as_stranger, path, 0, RDT_LIMIT));
    must(comes(&impostor, as_other, path, 0, RDT_DENIED));
    impostor_end(&impostor);
}

#define or_skip(condition)                                                                     \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            (void)fprintf(stderr, "no container here: %s: %s\n", #condition, strerror(errno)); \
            _exit(NO_NAMESPACES);                                                              \
        }                                                                                      \
    } while (0)

static void write_map(const char *file, const char *text)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);

    or_skip(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
}

/* A user namespace, with the folders of the case at /mnt, where nobody who is not mapped can have changed the path. */
static void enter(bool mapped)
{
    or_skip(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    or_skip(mount(top, "/mnt", NULL, MS_BIND, NULL) == 0);
    become(OTHER);
    or_skip(unshare(CLONE_NEWUSER) == 0);
    if (mapped) {
        write_map("/proc/self/setgroups", "deny");
        write_map("/proc/self/uid_map", "0 3000 1");
        must(geteuid() == 0);
    } else {
        must(geteuid() == UNMAPPED);
    }
}

static void in_container(void)
{
    enter(true);
}

static void unmapped(void)
{
    enter(false);
}

Test(impostor, users_that_are_not_mapped_are_not_one_user)
{
    struct impostor impostor;

    begin();
    make_folder("all/first", STRANGER, 0755);
    make_folder("his", STRANGER, 0755);
    impostor_start(&impostor, STRANGER, "all/s");
    if (!comes(&impostor, in_container, "/mnt/all/s", 0, RDT_DENIED)) {
        impostor_end(&impostor);
        cr_skip_test("the kernel or the sandbox gives no namespaces here");
    }
    must(comes(&impostor, unmapped, "/mnt/all/s", 0, RDT_DENIED));
    must(comes(&impostor, in_container, "/mnt/all/s", UNMAPPED, RDT_LIMIT));
    impostor_end(&impostor);
    impostor_start(&impostor, STRANGER, "all/first/s");
    must(comes(&impostor, in_container, "/mnt/all/first/s", 0, RDT_DENIED));
    must(comes(&impostor, unmapped, "/mnt/all/first/s", 0, RDT_DENIED));
    impostor_end(&impostor);
    impostor_start(&impostor, STRANGER, "his/s");
    must(comes(&impostor, in_container, "/mnt/his/s", 0, RDT_LIMIT));
    must(comes(&impostor, unmapped, "/mnt/his/s", 0, RDT_LIMIT));
    impostor_end(&impostor);
    impostor_start(&impostor, 0, "all/s"); /* root of the host is not mapped either */
    must(comes(&impostor, in_container, "/mnt/all/s", 0, RDT_DENIED));
    must(comes(&impostor, in_container, "/mnt/all/s", UNMAPPED, RDT_LIMIT));
    impostor_end(&impostor);
}

/* ---- a session that looks for the next daemon ---- */

Test(impostor, session_does_not_resume_with_somebody_else)
{
    char keeper_flag[192];
    const char *flags[] = {"--restart-grace=1s", keeper_flag, NULL};
    struct impostor impostor;
    struct test_keeper keeper = {0};
    struct test_node node;
    rdt *conn = NULL;

    begin();
    keeper_start(&keeper);
    (void)snprintf(keeper_flag, sizeof keeper_flag, "--keeper=%s", keeper.socket);
    node_start(&node, &(struct node_options){.flags = flags, .socket = below_top("all/s")});
    conn = node_client(&node, "host");
    node_kill(&node, SIGKILL);
    impostor_start(&impostor, STRANGER, "all/s");
    must_refuse(RDT_RESTARTED, "uid 2000 serves", rdt_ping(conn, LONG, &err));
    must_have_said(&impostor, 'n');
    impostor_end(&impostor);
    rdt_close(conn);
    keeper_stop(&keeper, SIGKILL);
}

/* ---- the keeper ---- */

Test(impostor, daemon_gives_its_memory_to_no_keeper_of_somebody_else)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char keeper_flag[192];
    const char *flags[] = {keeper_flag, NULL};
    struct test_node node;
    int status;

    begin();
    must((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s", below_top("all/k")) < sizeof address.sun_path);
    struct impostor impostor = {.uid = STRANGER, .listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    must(impostor.listener >= 0 && bind(impostor.listener, (struct sockaddr *)&address, sizeof address) == 0);
    actor_start_keeping(&impostor.actor, serve, &impostor, impostor.listener);
    actor_await(&impostor.actor);
    (void)snprintf(keeper_flag, sizeof keeper_flag, "--keeper=%s", address.sun_path);
    must(!node_try_start(&node, &(struct node_options){.flags = flags}, &status) && status == 1);
    cr_assert(node_log_has(&node, "uid 2000 serves the keeper's socket"));
    must_have_said(&impostor, 'n');
    must(close(impostor.listener) == 0);
    impostor_end(&impostor);
}
