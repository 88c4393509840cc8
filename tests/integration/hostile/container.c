/* SPDX-License-Identifier: Apache-2.0 */
/* A client in a container with its own mount, pid, net, ipc and user namespaces and without root, which sees nothing of the
 * host but the folder of the socket. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define INNER_UID 54321
#define NO_NAMESPACES 77
#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn;

/* Something that did not work says so and ends the actor: containers are not everywhere. */
#define or_skip(condition)                                                                     \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            (void)fprintf(stderr, "no container here: %s: %s\n", #condition, strerror(errno)); \
            _exit(NO_NAMESPACES);                                                              \
        }                                                                                      \
    } while (0)

static void write_map(int proc, const char *name, const char *text)
{
    int fd = openat(proc, name, O_WRONLY | O_CLOEXEC);

    or_skip(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
}

/* First as root: a root folder that holds only /run. Then as an ordinary user: namespaces, with uid 0 inside. */
static void enter_container(void)
{
    char root[256], run[272];

    (void)snprintf(root, sizeof root, "%s/root", node.dir);
    (void)snprintf(run, sizeof run, "%s/run", root);
    or_skip(mkdir(root, 0755) == 0 && unshare(CLONE_NEWNS) == 0);
    or_skip(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    or_skip(mount("none", root, "tmpfs", 0, "mode=0755") == 0 && mkdir(run, 0755) == 0);
    or_skip(mount(node.dir, run, NULL, MS_BIND, NULL) == 0);
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    or_skip(proc >= 0 && chdir(root) == 0);
    or_skip(syscall(SYS_pivot_root, ".", ".") == 0 && umount2(".", MNT_DETACH) == 0 && chdir("/") == 0);
    or_skip(access("/proc", F_OK) != 0 && access("/usr", F_OK) != 0);
    or_skip(setgroups(0, NULL) == 0 && setresgid(INNER_UID, INNER_UID, INNER_UID) == 0);
    or_skip(setresuid(INNER_UID, INNER_UID, INNER_UID) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    or_skip(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) == 0);
    write_map(proc, "self/setgroups", "deny");
    write_map(proc, "self/uid_map", "0 54321 1");
    write_map(proc, "self/gid_map", "0 54321 1");
    (void)close(proc);
}

static int work_inside(struct actor *self)
{
    struct rdt_tensor target;
    const struct rdt_tensor *targets = &target;
    struct rdt_node_info info;
    size_t one = 1;
    struct rdt_ref shown, mine;
    rdt_object *object;
    struct canary canary;
    rdt *client = NULL;

    must(getpid() == 1 && getuid() == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "/run/s", .timeout_ns = LONG};
    must_ok(rdt_connect(&options, &client, &err));
    must_ok(rdt_node(client, &info, &err));
    must(info.uid == INNER_UID);
    char *addr = alloc_memory(client, MIB);
    fill_pattern(addr, MIB, 2);
    mine = put_shown(client, &VECTOR(RDT_U8, MIB, addr), "inner", RDT_VISIBLE_TO_ALL);
    actor_send(self, &mine, sizeof mine);
    actor_recv(self, &shown, sizeof shown);
    for (unsigned mode = 0; mode < 3; mode++) {
        object = fetch_one(client, &shown, (enum rdt_fetch_mode)mode);
        must(holds_pattern(tensor_of(object, 0).data, MIB, 1));
        must(info_of(object).writable == (mode == RDT_FETCH_COPY));
        rdt_release(object);
    }
    canary_create(&canary, MIB);
    target = VECTOR(RDT_U8, MIB, canary.addr);
    struct rdt_fetch_options fetch = {.struct_size = sizeof fetch, .targets = &targets, .target_counts = &one};
    must_ok(rdt_fetch(client, &shown, 1, &fetch, &object, &err));
    must(holds_pattern(canary.addr, MIB, 1) && canary_alive(&canary));
    rdt_release(object);
    canary_destroy(&canary);
    int fd = memfd_create("inner", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(fd >= 0 && ftruncate(fd, 4096) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(memory != MAP_FAILED);
    must_ok(rdt_import(client, fd, memory, 4096, &err));
    mine = put_one(client, &VECTOR(RDT_U8, 4096, memory), NULL);
    object = fetch_one(client, &mine, RDT_FETCH_COPY);
    rdt_release(object);
    must_ok(rdt_free(client, &mine, false, &err));
    must_ok(rdt_wait_freed(client, &mine, LONG, &err));
    actor_step(self);
    actor_await(self);
    must_ok(rdt_dealloc(client, addr, &err));
    rdt_close(client);
    return 0;
}

static int in_container(struct actor *self, void *arg)
{
    int status;

    enter_container();
    pid_t pid = fork();
    or_skip(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(work_inside(self));
    }
    must(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int only_enter(struct actor *self, void *arg)
{
    enter_container();
    return 0;
}

static void begin(void)
{
    struct actor actor;
    char path[256];

    need_root();
    node_start(&node, NULL);
    actor_start(&actor, only_enter, NULL);
    if (actor_result(&actor) == NO_NAMESPACES) {
        node_end(&node, NULL);
        cr_skip_test("the kernel or the sandbox gives no namespaces here");
    }
    (void)snprintf(path, sizeof path, "%s/root", node.dir);
    must(rmdir(path) == 0);
}

Test(container, client_with_nothing_but_the_socket_does_everything)
{
    struct rdt_ref theirs, shown;
    struct actor actor;

    begin();
    actor_start(&actor, in_container, NULL);
    conn = node_client(&node, "host");
    char *addr = alloc_memory(conn, MIB);
    fill_pattern(addr, MIB, 1);
    shown = put_shown(conn, &VECTOR(RDT_U8, MIB, addr), "shown", RDT_VISIBLE_TO_ALL);
    actor_recv(&actor, &theirs, sizeof theirs);
    cr_assert_eq(theirs.uid, INNER_UID);
    rdt_object *object = fetch_one(conn, &theirs, RDT_FETCH_AUTO);
    must_go_by("local/share", object);
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 2));
    actor_send(&actor, &shown, sizeof shown);
    actor_await(&actor);
    rdt_release(object);
    actor_step(&actor);
    actor_wait(&actor);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* The lease ends with a process of another pid namespace, too. */
static int die_inside(struct actor *self, void *arg)
{
    enter_container();
    if (fork() == 0) {
        rdt *client = NULL;
        struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "/run/s"};
        must_ok(rdt_connect(&options, &client, &err));
        struct rdt_ref ref = put_shown(client, &VECTOR(RDT_U8, MIB, alloc_memory(client, MIB)), "inner", RDT_VISIBLE_TO_ALL);
        actor_send(self, &ref, sizeof ref);
        actor_await(self);
        (void)kill(getpid(), SIGKILL); /* ignored: it is the init of its namespace */
        _exit(3);
    }
    (void)wait(NULL);
    return 0;
}

Test(container, lease_ends_with_the_process_inside)
{
    struct actor actor;
    struct rdt_ref ref;

    begin();
    actor_start(&actor, die_inside, NULL);
    conn = node_client(&node, "host");
    actor_recv(&actor, &ref, sizeof ref);
    must_ok(rdt_wait_put(conn, &ref, LONG, &err));
    actor_step(&actor);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_OWNER_DIED, rdt_wait_put(conn, &ref, LONG, &err));
    actor_wait(&actor);
    rdt_close(conn);
    node_end(&node, NULL);
}
