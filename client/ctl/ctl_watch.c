/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl watch: prints each change in the daemon on a line until it is told to stop. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "client/watch.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"

/* The kinds of rows, in the order of ListKind and of the bits of RDT_KIND_. An Event names its row so; on the command line an s
 * is added. */
static const char *const things[] = {"object", "region", "client", "peer", "backend", "transfer", "name", "owner", "group"};
#define N_KINDS (sizeof things / sizeof *things)

struct watching {
    uint64_t count, left; /* --count; how many events are still to be printed, UINT64_MAX without --count */
    int64_t end_ns;       /* INT64_MAX: never */
    int signals;
};

/* ---- lines for people ---- */

static void print_ref(const char *ref)
{
    char id[64];

    printf(" %s", ctl_id_of(ref, id, sizeof id));
}

static void print_owner(const char *tenant, uint32_t uid)
{
    char text[64];

    printf(", uid %" PRIu32 "%s%s", uid, *tenant ? " of " : "", ctl_plain(tenant, text, sizeof text));
}

/* Prints ", " and the text, unless it is empty. */
static void print_also(const char *text)
{
    if (*text)
        printf(", ");
    ctl_print_plain(text, stdout);
}

static void print_object(const Rdt__Pb__ObjectInfo *o)
{
    char id[64], text[CTL_HUMAN_BYTES];

    printf(" %s: %s, %s, held %" PRIu32, ctl_plain(o->id, id, sizeof id), o->state, ctl_human_bytes(o->bytes, text), o->holds);
    print_owner(o->tenant, o->uid);
}

static void print_region(const Rdt__Pb__RegionInfo *r)
{
    char text[CTL_HUMAN_BYTES];

    printf(" %" PRIu64 ": %s %s, %s", r->region, ctl_human_bytes(r->bytes, text), r->memory, r->origin);
    if (r->client)
        printf(", client %" PRIu64, r->client);
    print_owner(r->tenant, r->uid);
}

static void print_client(const Rdt__Pb__ClientInfo *c)
{
    char name[80];

    printf(" %" PRIu64 ": %s, pid %" PRId32, c->client, ctl_plain(c->name, name, sizeof name), c->pid);
    print_owner(c->tenant, c->uid);
}

static void print_peer(const Rdt__Pb__PeerInfo *p)
{
    char name[80];

    printf(" %s: %s", ctl_plain(p->name, name, sizeof name), p->state);
    print_also(p->last_error);
}

static void print_backend(const Rdt__Pb__BackendInfo *b)
{
    char name[80];

    printf(" %s: %s", ctl_plain(b->name, name, sizeof name), b->kind);
    if (!b->available)
        print_also(b->why_not);
}

static void print_transfer(const Rdt__Pb__TransferInfo *t)
{
    char text[CTL_HUMAN_BYTES], peer[80];

    printf(" %" PRIu64 ":", t->transfer);
    print_ref(t->ref);
    printf(" %s", t->direction);
    if (*t->peer)
        printf(" %s %s", strcmp(t->direction, "in") == 0 ? "from" : "to", ctl_plain(t->peer, peer, sizeof peer));
    printf(", %s", t->state);
    if (*t->path)
        printf(" by %s", t->path);
    if (t->bytes)
        printf(", %s", ctl_human_bytes(t->bytes, text));
    if (t->elapsed_ns > 0)
        printf(" in %s", ctl_human_duration(t->elapsed_ns, text));
    print_also(t->error);
}

static void print_name(const Rdt__Pb__NameInfo *n)
{
    char name[64], text[CTL_HUMAN_BYTES];

    printf(" %s: version %" PRIu64, ctl_plain(n->name, name, sizeof name), n->version);
    if (*n->ref) {
        printf(" is");
        print_ref(n->ref);
        printf(", %s", ctl_human_bytes(n->bytes, text));
    }
    print_owner(n->tenant, n->uid);
}

static void print_group(const Rdt__Pb__GroupInfo *g)
{
    char name[80];

    printf(" %s: %s, %s, epoch %" PRIu32, ctl_plain(g->name, name, sizeof name), g->transport, g->state, g->epoch);
    print_also(g->why);
}

static void print_line(const Rdt__Pb__Event *event)
{
    struct timeval now;
    struct tm local;
    char clock[16] = "", what[32];

    if (gettimeofday(&now, NULL) == 0 && localtime_r(&now.tv_sec, &local))
        (void)strftime(clock, sizeof clock, "%H:%M:%S", &local);
    if (event->lost)
        printf("%s.%03d %" PRIu64 " event%s lost\n", clock, (int)(now.tv_usec / 1000), event->lost,
               event->lost == 1 ? "" : "s");
    if (strcmp(event->what, "lost") == 0)
        return;
    printf("%s.%03d %s %s", clock, (int)(now.tv_usec / 1000), (size_t)event->kind < N_KINDS ? things[event->kind] : "thing",
           ctl_plain(event->what, what, sizeof what));
    if (event->object)
        print_object(event->object);
    else if (event->region)
        print_region(event->region);
    else if (event->client)
        print_client(event->client);
    else if (event->peer)
        print_peer(event->peer);
    else if (event->backend)
        print_backend(event->backend);
    else if (event->owner)
        printf(" uid %" PRIu32 "%s%s: %" PRIu32 " clients", event->owner->uid, *event->owner->tenant ? " of " : "",
               ctl_plain(event->owner->tenant, what, sizeof what), event->owner->clients);
    else if (event->transfer)
        print_transfer(event->transfer);
    else if (event->name)
        print_name(event->name);
    else if (event->group)
        print_group(event->group);
    putchar('\n');
}

/* Prints the event on one line, without the members for other kinds of rows. */
static bool print_json(const Rdt__Pb__Event *event)
{
    json_t *json = ctl_json(&event->base);
    bool good;

    for (size_t i = 0; json && i < N_KINDS; i++) {
        if (json_is_null(json_object_get(json, things[i])))
            json_object_del(json, things[i]);
    }
    if (json && strcmp(event->what, "lost") == 0)
        json_object_del(json, "kind");
    good = json && json_dumpf(json, stdout, JSON_COMPACT | JSON_ENSURE_ASCII) == 0 && putchar('\n') != EOF;
    json_decref(json);
    return good;
}

/* ---- following ---- */

/* Prints the events that have arrived, as long as --count allows. */
static enum rdt_status drain(struct ctl *ctl, struct watching *watching, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    while (watching->left > 0) {
        Rdt__Pb__Event *event;
        bool good = true;

        status = watch_next(ctl->rdt, 0, &event, err);
        if (status != RDT_OK)
            break;
        if (ctl->json)
            good = print_json(event);
        else
            print_line(event);
        if (strcmp(event->what, "lost") != 0 && watching->left != UINT64_MAX)
            watching->left--;
        rdt__pb__event__free_unpacked(event, NULL);
        if (!good || ferror(stdout))
            return rdt_error_set(err, RDT_SYSTEM, "the events cannot be written");
    }
    if (fflush(stdout) != 0) /* a program that reads the pipe must not wait for a full buffer */
        return rdt_error_set(err, RDT_SYSTEM, "the events cannot be written");
    return status == RDT_TIMED_OUT ? RDT_OK : status;
}

static enum rdt_status follow(struct ctl *ctl, struct watching *watching, struct rdt_error *err)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = watching->signals, .events = POLLIN}, {.fd = rdt_fd(ctl->rdt), .events = POLLIN}};
        int64_t left_ms = watching->end_ns == INT64_MAX ? -1 : (watching->end_ns - ctl_now_ns()) / 1000000 + 1;
        enum rdt_status status = drain(ctl, watching, err);

        if (status || watching->left == 0)
            return status;
        if (watching->end_ns != INT64_MAX && left_ms <= 0)
            return watching->count == 0 ? RDT_OK
                                        : rdt_error_set(err, RDT_TIMED_OUT, "%" PRIu64 " of %" PRIu64 " events came",
                                                        watching->count - watching->left, watching->count);
        if (poll(fds, 2, left_ms < 0 ? -1 : left_ms < 3600000 ? (int)left_ms : 3600000) < 0 && errno != EINTR)
            return rdt_error_sys(err, errno, "poll");
        if (fds[0].revents)
            return RDT_OK;
    }
}

int ctl_watch(struct ctl *ctl, int argc, char **argv)
{
    struct watching watching = {.signals = -1, .end_ns = INT64_MAX};
    const struct ctl_option options[] = {
        {0, "count", CTL_NUMBER, "N", "end after N events", &watching.count},
        {0},
    };
    struct rdt_error err = {0};
    uint32_t wanted = 0;
    char **operands;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, N_KINDS, &operands, &count);

    if (code != CTL_GO)
        return code;
    for (int i = 0; i < count; i++) {
        size_t k = 0, length = strlen(operands[i]);

        while (k < N_KINDS && (strlen(things[k]) + 1 != length || operands[i][length - 1] != 's' ||
                               strncmp(things[k], operands[i], length - 1) != 0))
            k++;
        if (k == N_KINDS)
            return ctl_usage_error(
                ctl, "'%.40s' is none of objects, regions, clients, peers, backends, transfers, names, owners, groups",
                operands[i]);
        wanted |= 1u << k;
    }
    if (count == 0)
        wanted = (1u << N_KINDS) - 1;
    watching.left = watching.count ? watching.count : UINT64_MAX;
    if (ctl->timeout == CTL_NO_WAIT || (ctl->timeout == CTL_TIMEOUT_GIVEN && ctl->timeout_ns >= 0))
        watching.end_ns = ctl_now_ns() + ctl->timeout_ns;
    if (ctl_connect(ctl, &err) || (watching.signals = ctl_signals(&err)) < 0 || rdt_watch(ctl->rdt, wanted, &err)) {
        code = ctl_fail(ctl, &err);
    } else {
        if (!ctl->quiet && !ctl->json)
            fprintf(stderr, "watching\n"); /* tells scripts that every later event will be printed */
        code = follow(ctl, &watching, &err) ? ctl_fail(ctl, &err) : CTL_OK;
    }
    if (watching.signals >= 0)
        close(watching.signals);
    return code;
}
