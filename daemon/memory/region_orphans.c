/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/region_orphans.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/memory/region_impl.h"

/* Readers unmap memory soon after REGION_GONE, and the daemon on the work pool. During this time the memory counts as being
 * freed: it is charged to no account, and requests that wait for room wait for it. */
#define GRACE_NS UINT64_C(1000000000)

struct orphan {
    struct list link;    /* in region_orphans.recent; in no list after the grace period */
    struct orphan *same; /* the orphan of another region in the same file, which was imported twice; NULL: none */
    uint32_t watch;      /* inotify's number */
    uint64_t number;     /* counts all orphans */
    uint64_t device, inode;
    struct account *account; /* a reference */
    uint64_t bytes;
    uint64_t since_ns;
    bool stored;  /* a file of a stored object: charged to the account only, as USAGE_STORED_BYTES */
    bool charged; /* to memory_limit */
    bool late;    /* the grace period is over: also charged to the account */
};

/* The inotify descriptor stays open for the daemon's life, because closing it waits for all processors if it ever watched
 * a file. That takes ten milliseconds and more, in which the loop would serve nobody. */
struct watcher {
    uv_poll_t poll;
    int fd;
};

/* The kernel has lost events: finds out which files it still watches. */
struct check {
    struct work work;               /* first */
    struct region_orphans *orphans; /* NULL: they are closed */
    int fd;                         /* of the watcher */
    uint64_t most;                  /* later orphans are not meant */
    struct map alive;               /* inotify's numbers */
    bool failed;
};

struct region_orphans {
    struct regions *regions;
    uv_loop_t *loop;
    struct watcher *watcher; /* NULL: the kernel has refused one so far */
    struct map by_watch;     /* inotify's number -> struct orphan */
    struct list recent;      /* struct orphan: those in their grace period, the oldest first */
    struct deadline grace;   /* set while recent is not empty */
    uint64_t bytes;
    uint64_t n_orphans;  /* ever */
    struct check *check; /* that is running; NULL: none */
    bool again;          /* events were lost after it began, or it failed */
    struct deadline later;
    bool warned;
};

static void forget_one(struct region_orphans *orphans, struct orphan *orphan)
{
    struct regions *regions = orphans->regions;

    list_remove(&orphan->link);
    orphans->bytes -= orphan->stored ? 0 : orphan->bytes;
    if (orphan->charged && !orphan->late)
        regions->freeing.bytes -= orphan->bytes;
    if (orphan->late) {
        account_give(orphan->account, orphan->stored ? USAGE_STORED_BYTES : USAGE_BYTES, orphan->bytes);
        account_give(orphan->account, USAGE_ORPHANS, 1);
    }
    if (orphan->charged)
        regions_uncharge(regions, orphan->bytes);
    account_unref(orphan->account);
    free(orphan);
}

/* Nobody has the file any more: ends all its orphans. */
static void forget(struct region_orphans *orphans, struct orphan *orphan)
{
    (void)map_remove_u64(&orphans->by_watch, orphan->watch);
    for (struct orphan *next; orphan; orphan = next) {
        next = orphan->same;
        forget_one(orphans, orphan);
    }
}

static void forget_all(struct region_orphans *orphans)
{
    struct orphan *orphan;
    size_t cursor = 0;

    while ((orphan = map_next(&orphans->by_watch, &cursor)))
        forget(orphans, orphan);
}

/* Charges the memory to the owner and to memory_limit. */
static void charge(struct region_orphans *orphans, struct orphan *orphan)
{
    if (!orphan->charged && !orphan->stored)
        orphans->regions->bytes += orphan->bytes;
    orphan->charged = !orphan->stored;
    orphan->late = true;
    account_add(orphan->account, orphan->stored ? USAGE_STORED_BYTES : USAGE_BYTES, orphan->bytes);
    account_add(orphan->account, USAGE_ORPHANS, 1);
}

/* Processes still have the memory after the grace period. */
static void on_grace(struct deadline *deadline)
{
    struct region_orphans *orphans = container_of(deadline, struct region_orphans, grace);
    uint64_t now = uv_hrtime();

    list_drain (struct orphan, orphan, &orphans->recent, link) {
        if (now - orphan->since_ns < GRACE_NS) {
            (void)deadline_set(orphans->regions->deadlines, &orphans->grace, (int64_t)(orphan->since_ns + GRACE_NS - now));
            break;
        }
        list_remove(&orphan->link);
        if (orphan->charged)
            orphans->regions->freeing.bytes -= orphan->bytes;
        charge(orphans, orphan);
    }
    orphans->regions->on_freed(orphans->regions, NULL);
}

/* ---- lost events ---- */

/* Runs on the work pool, because there may be very many watches. */
static void run_check(struct work *work)
{
    struct check *check = (struct check *)work;
    char path[48], line[512];
    unsigned watch;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", check->fd);
    file = fopen(path, "re");
    check->failed = !file;
    while (!check->failed && fgets(line, sizeof line, file))
        if (sscanf(line, "inotify wd:%x", &watch) == 1 && !map_get_u64(&check->alive, watch))
            check->failed = !map_put_u64(&check->alive, watch, check);
    if (file) {
        check->failed |= ferror(file) != 0;
        (void)fclose(file);
    }
}

static void begin_check(struct region_orphans *orphans);

static void done_check(struct work *work)
{
    struct check *check = (struct check *)work;
    struct region_orphans *orphans = check->orphans;
    struct orphan *orphan;
    size_t cursor = 0;

    if (orphans) {
        orphans->check = NULL;
        while (!check->failed && (orphan = map_next(&orphans->by_watch, &cursor)))
            if (orphan->number <= check->most && !map_get_u64(&check->alive, orphan->watch))
                forget(orphans, orphan);
        if (check->failed)
            (void)deadline_set(orphans->regions->deadlines, &orphans->later, (int64_t)GRACE_NS);
        else if (orphans->again)
            begin_check(orphans);
        orphans->regions->on_freed(orphans->regions, NULL);
    }
    map_fini(&check->alive);
    free(check);
}

static void begin_check(struct region_orphans *orphans)
{
    struct check *check;

    orphans->again = orphans->check != NULL;
    if (orphans->check)
        return;
    check = calloc(1, sizeof *check);
    if (!check) {
        (void)deadline_set(orphans->regions->deadlines, &orphans->later, (int64_t)GRACE_NS);
        return;
    }
    *check = (struct check){.work = {.run = run_check, .done = done_check},
                            .orphans = orphans,
                            .fd = orphans->watcher->fd,
                            .most = orphans->n_orphans};
    map_init(&check->alive);
    orphans->check = check;
    work_submit(orphans->regions->pool, &check->work);
}

static void on_later(struct deadline *deadline)
{
    begin_check(container_of(deadline, struct region_orphans, later));
}

/* ---- watching ---- */

static void on_closed(uv_handle_t *handle)
{
    struct watcher *watcher = (struct watcher *)handle;

    (void)close(watcher->fd);
    free(watcher);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct region_orphans *orphans = poll->data;
    _Alignas(struct inotify_event) char buffer[4096];
    ssize_t n;

    while ((n = read(orphans->watcher->fd, buffer, sizeof buffer)) > 0) {
        const struct inotify_event *event;
        for (char *at = buffer; at < buffer + n; at += sizeof *event + event->len) {
            struct orphan *orphan;
            event = (const struct inotify_event *)(void *)at;
            if (event->mask & IN_Q_OVERFLOW) { /* the ends of some files were lost */
                begin_check(orphans);
                continue;
            }
            orphan = map_get_u64(&orphans->by_watch, (uint32_t)event->wd);
            if (orphan)
                forget(orphans, orphan);
        }
    }
    orphans->regions->on_freed(orphans->regions, NULL);
}

/* Returns 0 or an errno. */
static int open_watcher(struct region_orphans *orphans)
{
    struct watcher *watcher = calloc(1, sizeof *watcher);
    int error = 0;

    if (!watcher)
        return ENOMEM;
    watcher->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watcher->fd < 0)
        error = errno;
    else if (uv_poll_init(orphans->loop, &watcher->poll, watcher->fd) != 0)
        error = ENOMEM;
    if (error) {
        if (watcher->fd >= 0)
            (void)close(watcher->fd);
        free(watcher);
        return error;
    }
    watcher->poll.data = orphans;
    (void)uv_poll_start(&watcher->poll, UV_READABLE, on_readable);
    orphans->watcher = watcher;
    return 0;
}

bool region_orphans_create(struct regions *regions, uv_loop_t *loop)
{
    struct region_orphans *orphans = calloc(1, sizeof *orphans);

    if (!orphans)
        return false;
    orphans->regions = regions;
    orphans->loop = loop;
    orphans->grace.on_passed = on_grace;
    orphans->later.on_passed = on_later;
    map_init(&orphans->by_watch);
    list_init(&orphans->recent);
    regions->orphans = orphans;
    (void)open_watcher(orphans); /* if it fails, the first watch tries again */
    return true;
}

void region_orphans_close(struct region_orphans *orphans)
{
    if (!orphans)
        return;
    if (orphans->check)
        orphans->check->orphans = NULL;
    forget_all(orphans);
    if (orphans->watcher)
        uv_close((uv_handle_t *)&orphans->watcher->poll, on_closed);
    map_fini(&orphans->by_watch);
    deadline_unset(orphans->regions->deadlines, &orphans->grace);
    deadline_unset(orphans->regions->deadlines, &orphans->later);
    orphans->regions->orphans = NULL;
    free(orphans);
}

/* Returns inotify's number for the file, or -errno. */
static int watch_file(struct region_orphans *orphans, int fd, struct orphan *orphan)
{
    char path[32];
    int watch, error = orphans->watcher ? 0 : open_watcher(orphans);

    if (error)
        return -error;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    watch = inotify_add_watch(orphans->watcher->fd, path, IN_DELETE_SELF);
    error = errno;
    if (watch >= 0)
        orphan->same = map_remove_u64(&orphans->by_watch, (uint32_t)watch);
    if (watch >= 0 && !map_put_u64(&orphans->by_watch, (uint32_t)watch, orphan)) {
        (void)inotify_rm_watch(orphans->watcher->fd, watch);
        if (orphan->same)
            forget(orphans, orphan->same);
        watch = -1;
        error = ENOMEM;
    }
    return watch < 0 ? -error : watch;
}

bool region_orphans_watch(struct region_orphans *orphans, const struct orphaned *orphaned)
{
    struct orphan *orphan = orphans && orphaned->fd >= 0 ? calloc(1, sizeof *orphan) : NULL;
    struct stat file;
    int watch;

    if (!orphan)
        return false;
    watch = watch_file(orphans, orphaned->fd, orphan);
    if (watch < 0) {
        if (!orphans->warned)
            log_warn("memory that processes keep open after its region's end is not counted: %s (see /proc/sys/fs/inotify)",
                     strerrordesc_np(-watch));
        orphans->warned = true;
        free(orphan);
        return false;
    }
    list_init(&orphan->link);
    orphan->watch = (uint32_t)watch;
    if (fstat(orphaned->fd, &file) == 0) {
        orphan->device = file.st_dev;
        orphan->inode = file.st_ino;
    }
    orphan->number = ++orphans->n_orphans;
    orphan->account = account_ref(orphaned->account);
    orphan->bytes = orphaned->bytes;
    orphan->since_ns = uv_hrtime();
    orphan->charged = orphaned->charged;
    orphan->stored = orphaned->stored;
    orphans->bytes += orphan->stored ? 0 : orphan->bytes;
    if (orphaned->at_once) {
        charge(orphans, orphan);
        return true;
    }
    if (orphan->charged)
        orphans->regions->freeing.bytes += orphan->bytes;
    list_append(&orphans->recent, &orphan->link);
    if (orphans->grace.index == 0)
        (void)deadline_set(orphans->regions->deadlines, &orphans->grace, (int64_t)GRACE_NS);
    return true;
}

bool region_orphans_next(const struct region_orphans *orphans, size_t *cursor_p, struct orphan_row *row_p)
{
    const struct orphan *orphan = orphans ? map_next(&orphans->by_watch, cursor_p) : NULL;

    if (!orphan)
        return false;
    *row_p = (struct orphan_row){.device = orphan->device,
                                 .inode = orphan->inode,
                                 .account = orphan->account,
                                 .since_ns = orphan->since_ns,
                                 .stored = orphan->stored};
    for (; orphan; orphan = orphan->same)
        row_p->bytes += orphan->bytes;
    return true;
}

uint64_t region_orphans_bytes(const struct region_orphans *orphans)
{
    return orphans ? orphans->bytes : 0;
}
