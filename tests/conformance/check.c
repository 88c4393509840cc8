/* SPDX-License-Identifier: Apache-2.0 */
/* rdt-check-backend: runs every check against one plug-in, and reports. Knows no plug-in by name. */
#include "tests/conformance/check.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/backend_host.h"

#define SKIPPED 77
#define FAILED 99
#define REPORT_BYTES 4096
#define MOST_FILE_BYTES ((rlim_t)1 << 31) /* so that no check can use up the memory */

const char *check_so;

static struct check *checks, **last = &checks;
static const char *only = "";
static unsigned deadline_s = 60;
static int report_fd = -1; /* in a check's process: the descriptor for its sentence */
static unsigned n_ok, n_failed, n_skipped;

void check_add(struct check *check)
{
    *last = check;
    last = &check->next;
}

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vdprintf(report_fd, fmt, args);
    va_end(args);
}

void check_fail(const char *file, int line, const char *condition, const char *fmt, ...)
{
    const char *name = strrchr(file, '/');
    char text[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (text[1] != '\0')
        say("%s (%s:%d: %s)", text + 1, name ? name + 1 : file, line, condition);
    else
        say("not so: %s (%s:%d)", condition, name ? name + 1 : file, line);
    _exit(FAILED);
}

void check_skip(const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    say("%s", text);
    _exit(SKIPPED);
}

/* ---- one check ---- */

static void run_here(const struct check *check)
{
    struct rlimit limit = {MOST_FILE_BYTES, MOST_FILE_BYTES};

    (void)setpgid(0, 0); /* its peers end with it */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    if (check->before)
        check->before();
    check->run();
    if (check->after)
        check->after();
    exit(0); /* with its exit handlers: a sanitizer looks for leaks there */
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads what the check wrote until it ended, and returns its wait status. Peers that it started hold the pipe's other end
 * too. */
static int follow(pid_t pid, int fd, char text[REPORT_BYTES])
{
    int64_t end_ms = now_ms() + patience_ms((int)deadline_s * 1000);
    size_t used = 0;
    int status = -1;
    bool over = false;

    while (!over) {
        struct pollfd pollfd = {.fd = fd, .events = POLLIN};

        (void)poll(&pollfd, 1, 20);
        pid_t got = waitpid(pid, &status, WNOHANG);
        over = got == pid || now_ms() > end_ms;
        if (got != pid && over)
            status = -1;
        while (used < REPORT_BYTES - 1 && poll(&pollfd, 1, 0) == 1) {
            ssize_t n = read(fd, text + used, REPORT_BYTES - 1 - used);
            if (n <= 0)
                break;
            used += (size_t)n;
        }
    }
    text[used] = '\0';
    (void)kill(-pid, SIGKILL);
    if (status == -1)
        (void)waitpid(pid, NULL, 0);
    return status;
}

static void print_name(const char *verdict, const struct check *check)
{
    printf("%-4s  %-9s  ", verdict, check->suite);
    for (const char *at = check->name; *at; at++)
        putchar(*at == '_' ? ' ' : *at);
    fflush(stdout);
}

static void judge(const struct check *check, int status, const char *text)
{
    if (status == 0) {
        n_ok++;
        print_name("ok", check);
        putchar('\n');
    } else if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
        n_skipped++;
        print_name("skip", check);
        printf("\n        %s\n", text);
    } else {
        n_failed++;
        print_name("FAIL", check);
        putchar('\n');
        if (*text)
            printf("        %s\n", text);
        if (status == -1)
            printf("        it does not end: killed after %u s\n", deadline_s);
        else if (WIFSIGNALED(status))
            printf("        it crashed: %s\n", strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) != FAILED)
            printf("        it ended with status %d\n", WEXITSTATUS(status));
    }
    fflush(stdout);
}

static void run(const struct check *check)
{
    char text[REPORT_BYTES];
    int fds[2];
    pid_t pid;

    fflush(stdout);
    if (pipe(fds) || (pid = fork()) < 0) {
        perror("rdt-check-backend");
        exit(2);
    }
    if (pid == 0) {
        (void)close(fds[0]);
        report_fd = fds[1];
        run_here(check);
    }
    (void)close(fds[1]);
    judge(check, follow(pid, fds[0], text), text);
    (void)close(fds[0]);
}

/* ---- what it offers ---- */

static void list(const char *what, bool there, unsigned *n)
{
    if (there)
        printf("%s%s", (*n)++ ? ", " : "", what);
}

static void describe_memory(const struct rdt_memory_ops *ops)
{
    unsigned n = 0;

    printf("  memory kind %s: ", ops->name);
    list("allocates", ops->alloc, &n);
    list("imports", ops->import, &n);
    list("shares", ops->share, &n);
    list("seals", HAS_OP(ops, seal), &n);
    list("discards", HAS_OP(ops, discard), &n);
    putchar('\n');
}

static void describe_transport(const struct rdt_transport_ops *ops)
{
    unsigned n = 0;

    printf("  transport %s: ", ops->name);
    list("two-sided", HAS_OP(ops, post_send), &n);
    list("one-sided", HAS_OP(ops, post_read), &n);
    list("groups", HAS_OP(ops, group_create), &n);
    list("registers memory", HAS_OP(ops, register_memory), &n);
    list("takes lists of pieces", HAS_OP(ops, max_pieces), &n);
    list(HAS_OP(ops, cancel) ? "can abort" : "cannot abort", true, &n);
    printf("; speed %u; moves", ops->speed);
    for (unsigned i = 0; ops->memory_kinds && ops->memory_kinds[i]; i++)
        printf(" %s", ops->memory_kinds[i]);
    putchar('\n');
}

/* In a process of its own too: it may crash at once. */
static void check_describe(void)
{
    struct backend_host host;
    struct rdt_error err = {0};

    if (backend_host_load(&host, check_so, &err) != RDT_OK) {
        say("%s", err.msg);
        _exit(FAILED);
    }
    if (host.backend->abi_version != RDT_BACKEND_ABI) {
        say("it is made for ABI version %u, and this is version %u", host.backend->abi_version, RDT_BACKEND_ABI);
        _exit(FAILED);
    }
    printf("backend %s %s (%s)\n", host.backend->name ? host.backend->name : "?",
           host.backend->version ? host.backend->version : "?", check_so);
    if (host.backend->memory)
        describe_memory(host.backend->memory);
    if (host.backend->transport)
        describe_transport(host.backend->transport);
    for (const struct rdt_config_key *key = host.backend->config_keys; key && key->name; key++)
        if (key->fallback)
            printf("  key %s = %s: %s\n", key->name, key->fallback, key->help ? key->help : "?");
    fflush(stdout);
}

static void add_setting(const char *setting)
{
    const char *before = getenv("RDT_BACKEND_CONFIG");
    char all[4096];

    (void)snprintf(all, sizeof all, "%s%s%s", before ? before : "", before ? "," : "", setting);
    (void)setenv("RDT_BACKEND_CONFIG", all, 1);
}

static int usage(FILE *out, int code)
{
    fprintf(
        out,
        "usage: rdt-check-backend [options] PLUGIN.so\n\n"
        "Checks a plug-in of rdtd against the interface's contract (rdt_backend.h). Each check runs in a process of its own,\n"
        "or in two or three that stand for nodes and are connected over the loopback interface.\n\n"
        "  --set KEY=VALUE   a setting of the plug-in's section; may be repeated\n"
        "  --only TEXT       checks whose name has this text (\"memory\", \"cancel\")\n"
        "  --deadline N      seconds for one check (60)\n"
        "  --list            prints the checks and runs none\n\n"
        "Exit status: 0 nothing failed, 1 a check failed, 2 wrong usage or no plug-in.\n");
    return code;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"set", required_argument, NULL, 's'},      {"only", required_argument, NULL, 'o'},
                                            {"deadline", required_argument, NULL, 'd'}, {"list", no_argument, NULL, 'l'},
                                            {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0}};
    struct check first = {.suite = "table", .name = "it_can_be_loaded", .run = check_describe};
    static char path[PATH_MAX];
    bool list_only = false;
    int c;

    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == 's')
            add_setting(optarg);
        else if (c == 'o')
            only = optarg;
        else if (c == 'd')
            deadline_s = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 'l')
            list_only = true;
        else
            return usage(c == 'h' ? stdout : stderr, c == 'h' ? 0 : 2);
    }
    for (const struct check *check = checks; list_only && check; check = check->next)
        printf("%s %s\n", check->suite, check->name);
    if (list_only)
        return 0;
    if (optind + 1 != argc || deadline_s == 0)
        return usage(stderr, 2);
    if (!realpath(argv[optind], path)) {
        fprintf(stderr, "rdt-check-backend: %s: %s\n", argv[optind], strerror(errno));
        return 2;
    }
    check_so = path;
    run(&first);
    if (n_failed) {
        printf("\nit is no plug-in that can be checked\n");
        return 2;
    }
    for (const struct check *check = checks; check; check = check->next)
        if (strstr(check->name, only) || strstr(check->suite, only))
            run(check);
    printf("\n%u ok, %u failed, %u skipped\n", n_ok, n_failed, n_skipped);
    return n_failed ? 1 : 0;
}
