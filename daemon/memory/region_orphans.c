#include "daemon/memory/region_orphans.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/memory/region_impl.h"

/* Readers unmap when they have been heard, and this daemon on the work pool: so long nobody's limit is charged, and who waits for room
 * waits for this, too. */
#define GRACE_NS (UINT64_C(1) * 1000000000)

struct remnant {
    struct list link; /* in region_orphans.recent, the oldest first; or in nothing */
    struct remnant *same; /* another region's, of the same file: imported twice */
    uint32_t watch;
    struct account *account; /* a reference */
    uint64_t bytes;
    uint64_t since_ns;
    bool charged; /* to the node */
    bool late;    /* to the account */
};

/* Kept for the daemon's life: where one ever watched something its close waits for all processors, ten milliseconds and more, in which the
 * loop would serve nobody. */
struct watcher {
    uv_poll_t poll;
    int fd;
};

struct region_orphans {
    struct regions *regions;
    uv_loop_t *loop;
    struct watcher *watcher; /* NULL: the kernel had none to give yet */
    struct map by_watch;
    struct list recent;
    struct deadline grace;
    uint64_t bytes;
    bool warned;
};

static void forget_one(struct region_orphans *left, struct remnant *remnant)
{
    struct regions *regions = left->regions;

    list_remove(&remnant->link);
    left->bytes -= remnant->bytes;
    if (remnant->charged && !remnant->late)
        regions->freeing_bytes -= remnant->bytes;
    if (remnant->late)
        account_give(remnant->account, USAGE_BYTES, remnant->bytes);
    if (remnant->charged)
        regions_give_back(regions, remnant->bytes);
    account_unref(remnant->account);
    free(remnant);
}

static void forget(struct region_orphans *left, struct remnant *remnant)
{
    (void)map_remove_u64(&left->by_watch, remnant->watch);
    for (struct remnant *next; remnant; remnant = next) {
        next = remnant->same;
        forget_one(left, remnant);
    }
}

static void forget_all(struct region_orphans *left)
{
    struct remnant *remnant;
    size_t cursor = 0;

    while ((remnant = map_next(&left->by_watch, &cursor)))
        forget(left, remnant);
}

/* They are kept, then: their owners and the node have so much less. */
static void on_grace(struct deadline *deadline)
{
    struct region_orphans *left = container_of(deadline, struct region_orphans, grace);
    struct regions *regions = left->regions;
    uint64_t now = uv_hrtime();

    while (!list_empty(&left->recent)) {
        struct remnant *remnant = container_of(list_first(&left->recent), struct remnant, link);
        if (now - remnant->since_ns < GRACE_NS) {
            (void)deadline_set(regions->deadlines, &left->grace, (int64_t)(remnant->since_ns + GRACE_NS - now));
            break;
        }
        list_remove(&remnant->link);
        if (remnant->charged)
            regions->freeing_bytes -= remnant->bytes;
        else
            regions->bytes += remnant->bytes;
        remnant->charged = remnant->late = true;
        account_add(remnant->account, USAGE_BYTES, remnant->bytes);
    }
    regions_admit(regions);
}

static void on_closed(uv_handle_t *handle)
{
    struct watcher *watcher = (struct watcher *)handle;

    (void)close(watcher->fd);
    free(watcher);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct region_orphans *left = poll->data;
    _Alignas(struct inotify_event) char buffer[4096];
    ssize_t n;

    (void)status;
    (void)events;
    while ((n = read(left->watcher->fd, buffer, sizeof buffer)) > 0) {
        const struct inotify_event *event;
        for (char *at = buffer; at < buffer + n; at += sizeof *event + event->len) {
            struct remnant *remnant;
            event = (const struct inotify_event *)(void *)at;
            if (event->mask & IN_Q_OVERFLOW) { /* which of them are gone nobody says any more */
                forget_all(left);
                continue;
            }
            remnant = map_get_u64(&left->by_watch, (uint32_t)event->wd);
            if (remnant)
                forget(left, remnant);
        }
    }
    regions_admit(left->regions);
}

/* 0, or errno. */
static int open_watcher(struct region_orphans *left)
{
    struct watcher *watcher = calloc(1, sizeof *watcher);
    int error = 0;

    if (!watcher)
        return ENOMEM;
    watcher->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watcher->fd < 0)
        error = errno;
    else if (uv_poll_init(left->loop, &watcher->poll, watcher->fd) != 0)
        error = ENOMEM;
    if (error) {
        if (watcher->fd >= 0)
            (void)close(watcher->fd);
        free(watcher);
        return error;
    }
    watcher->poll.data = left;
    (void)uv_poll_start(&watcher->poll, UV_READABLE, on_readable);
    left->watcher = watcher;
    return 0;
}

bool region_orphans_create(struct regions *regions, uv_loop_t *loop)
{
    struct region_orphans *left = calloc(1, sizeof *left);

    if (!left)
        return false;
    left->regions = regions;
    left->loop = loop;
    left->grace.on_passed = on_grace;
    map_init(&left->by_watch);
    list_init(&left->recent);
    regions->orphans = left;
    (void)open_watcher(left); /* when it is wanted it is asked for again */
    return true;
}

void region_orphans_close(struct region_orphans *left)
{
    if (!left)
        return;
    forget_all(left);
    if (left->watcher)
        uv_close((uv_handle_t *)&left->watcher->poll, on_closed);
    map_fini(&left->by_watch);
    deadline_unset(left->regions->deadlines, &left->grace);
    left->regions->orphans = NULL;
    free(left);
}

/* Its number, or -errno. */
static int watch_region(struct region_orphans *left, const struct region *region, struct remnant *remnant)
{
    char path[32];
    int watch, error = left->watcher ? 0 : open_watcher(left);

    if (error)
        return -error;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", region->block.fd);
    watch = inotify_add_watch(left->watcher->fd, path, IN_DELETE_SELF);
    error = errno;
    if (watch >= 0)
        remnant->same = map_remove_u64(&left->by_watch, (uint32_t)watch);
    if (watch >= 0 && !map_put_u64(&left->by_watch, (uint32_t)watch, remnant)) {
        (void)inotify_rm_watch(left->watcher->fd, watch);
        if (remnant->same)
            forget(left, remnant->same);
        watch = -1;
        error = ENOMEM;
    }
    return watch < 0 ? -error : watch;
}

bool region_orphans_watch(struct region_orphans *left, const struct region *region, uint64_t bytes, bool charged)
{
    struct remnant *remnant = left && region->block.fd >= 0 ? calloc(1, sizeof *remnant) : NULL;
    int watch;

    if (!remnant)
        return false;
    watch = watch_region(left, region, remnant);
    if (watch < 0) {
        if (!left->warned)
            log_warn("memory that clients keep open after its end is not counted: %s (/proc/sys/fs/inotify)", strerrordesc_np(-watch));
        left->warned = true;
        free(remnant);
        return false;
    }
    remnant->watch = (uint32_t)watch;
    remnant->account = account_ref(region->account);
    remnant->bytes = bytes;
    remnant->since_ns = uv_hrtime();
    remnant->charged = charged;
    if (charged)
        left->regions->freeing_bytes += remnant->bytes;
    left->bytes += remnant->bytes;
    list_append(&left->recent, &remnant->link);
    if (left->grace.index == 0)
        (void)deadline_set(left->regions->deadlines, &left->grace, (int64_t)GRACE_NS);
    return true;
}

uint64_t region_orphans_bytes(const struct region_orphans *left)
{
    return left ? left->bytes : 0;
}
