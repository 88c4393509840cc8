/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/persons.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/owner_work.h"

#define MOST_BYTES ((size_t)4 << 20) /* of one file; 200,000 users have about as much */
#define CHECK_NS UINT64_C(1000000000)
#define FIRST_USER 1000u /* lower ids are of system users */

struct person_range {
    uint32_t first, last, person;
};

struct line { /* of subuid: a range; of passwd: a user, whose id is first */
    const char *name;
    uint32_t first, last, person;
    unsigned number;
};

struct lines {
    char *text; /* which has the names */
    struct line *all;
    unsigned n;
};

struct reading {
    struct work work;
    struct persons *persons;
    uint64_t stamp[sizeof((struct persons *)0)->stamp / sizeof(uint64_t)];
    struct person_range *ranges;
    unsigned n;
    bool unchanged;
    struct rdt_error err;  /* nothing was read */
    struct rdt_error warn; /* a part was not understood */
};

/* ---- one file ---- */

static void stamp_file(const char *path, uint64_t stamp_p[5])
{
    struct stat st;

    memset(stamp_p, 0, 5 * sizeof *stamp_p);
    stamp_p[0] = UINT64_MAX; /* not the stamp of nothing, which has not been read yet */
    if (stat(path, &st) < 0)
        return;
    stamp_p[0] = st.st_dev;
    stamp_p[1] = st.st_ino;
    stamp_p[2] = (uint64_t)st.st_size;
    stamp_p[3] = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    stamp_p[4] = (uint64_t)st.st_ctim.tv_sec * 1000000000u + (uint64_t)st.st_ctim.tv_nsec;
}

/* A file that does not exist is an empty one. */
static char *read_text(const char *path, struct reading *reading)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = fd >= 0 || errno == ENOENT ? malloc(MOST_BYTES + 1) : NULL;
    size_t bytes = 0;
    ssize_t n = 0;

    while (text && fd >= 0 && bytes < MOST_BYTES && (n = read(fd, text + bytes, MOST_BYTES - bytes)) > 0)
        bytes += (size_t)n;
    if (!text || n < 0) {
        (void)rdt_error_sys(&reading->err, errno, "cannot read %s, so user ids are whose they were before", path);
        free(text);
        text = NULL;
    } else if (bytes == MOST_BYTES) {
        (void)rdt_error_set(&reading->warn, RDT_LIMIT, "%s has more than %zu bytes, and the rest is ignored", path, MOST_BYTES);
        while (bytes > 0 && text[bytes - 1] != '\n')
            bytes--;
    }
    if (fd >= 0)
        (void)close(fd);
    if (!text)
        return NULL;
    for (char *zero = text; (zero = memchr(zero, '\0', (size_t)(text + bytes - zero)));)
        *zero = '?';
    text[bytes] = '\0';
    return text;
}

static bool to_number(const char *text, uint64_t *number_p)
{
    size_t n = text ? strspn(text, "0123456789") : 0;

    if (n == 0 || n > 10 || text[n] != '\0')
        return false;
    *number_p = strtoull(text, NULL, 10);
    return true;
}

/* name:first:count */
static bool parse_range(char *text, struct line *line_p)
{
    char *name = strsep(&text, ":"), *first = strsep(&text, ":"), *count = text;
    uint64_t from, n;

    if (name[0] == '\0' || !to_number(first, &from) || from > UINT32_MAX || !to_number(count, &n))
        return false;
    line_p->name = name;
    line_p->first = (uint32_t)from;
    line_p->last = (uint32_t)(n > UINT32_MAX - from ? UINT32_MAX : from + n - 1);
    return n > 0;
}

/* name:password:uid:... */
static bool parse_user(char *text, struct line *line_p)
{
    const char *name = strsep(&text, ":"), *uid;
    uint64_t number;

    (void)strsep(&text, ":");
    uid = strsep(&text, ":");
    if (!to_number(uid, &number) || number > UINT32_MAX)
        return false;
    line_p->name = name;
    line_p->first = (uint32_t)number;
    return true;
}

/* What parse does not accept is left out; the first such line of the ranges is remembered for the log. */
static bool read_lines(const char *path, bool (*parse)(char *, struct line *), struct reading *reading, struct lines *lines_p)
{
    char *text = read_text(path, reading), seen[64];
    const char *end = text ? text + strlen(text) : NULL;
    unsigned room = 1, number = 0;

    *lines_p = (struct lines){.text = text};
    if (!text)
        return false;
    for (const char *c = text; (c = memchr(c, '\n', (size_t)(end - c))); c++)
        room++;
    lines_p->all = calloc(room, sizeof *lines_p->all);
    if (!lines_p->all)
        return rdt_error_set(&reading->err, RDT_NO_MEMORY, "no memory for the lines of %s", path) == RDT_OK;
    for (char *line = text, *next; line; line = next) {
        next = memchr(line, '\n', (size_t)(end - line));
        if (next)
            *next++ = '\0';
        number++;
        if (line[0] == '\0' || line[0] == '#')
            continue;
        (void)snprintf(seen, sizeof seen, "%s", line);
        lines_p->all[lines_p->n] = (struct line){.number = number};
        if (parse(line, &lines_p->all[lines_p->n]))
            lines_p->n++;
        else if (parse == parse_range && reading->warn.status == RDT_OK)
            (void)rdt_error_set(&reading->warn, RDT_INVALID,
                                "%s, line %u: \"%s\" is not a name, a user id and a number of user ids, so such a line is "
                                "ignored",
                                path, number, seen);
    }
    return true;
}

static void lines_fini(struct lines *lines)
{
    free(lines->all);
    free(lines->text);
}

/* ---- who is who ---- */

static int by_name(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order != 0 ? order : (x->number > y->number) - (x->number < y->number);
}

static int by_name_only(const void *a, const void *b)
{
    return strcmp(((const struct line *)a)->name, ((const struct line *)b)->name);
}

static int by_first(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->number > y->number) - (x->number < y->number);
}

static bool is_engine(const char *name)
{
    return strcmp(name, "containers") == 0 || strcmp(name, "kubelet") == 0 || strcmp(name, "root") == 0;
}

/* Finds out whose each range is, and drops those of container engines. */
static void find_persons(struct lines *ranges, const struct lines *users)
{
    const struct line *before = NULL; /* of the same name */
    unsigned n = 0;

    qsort(ranges->all, ranges->n, sizeof *ranges->all, by_name);
    for (unsigned i = 0; i < ranges->n; i++) {
        struct line *range = &ranges->all[i];
        const struct line *user = bsearch(range, users->all, users->n, sizeof *users->all, by_name_only);
        uint64_t number;

        if (before && strcmp(before->name, range->name) != 0)
            before = NULL;
        if (user)
            range->person = user->first;
        else if (to_number(range->name, &number) && number <= UINT32_MAX)
            range->person = (uint32_t)number;
        else
            range->person = before ? before->person : range->first;
        if (range->person < FIRST_USER || (!user && is_engine(range->name)))
            continue;
        ranges->all[n] = *range;
        before = &ranges->all[n++];
    }
    ranges->n = n;
}

/* Where ranges overlap, the one that begins first has the ids. */
static void put_in_order(struct lines *ranges, struct reading *reading)
{
    uint64_t next = 0;

    qsort(ranges->all, ranges->n, sizeof *ranges->all, by_first);
    reading->ranges = malloc((ranges->n + 1) * sizeof *reading->ranges);
    if (!reading->ranges) {
        (void)rdt_error_set(&reading->err, RDT_NO_MEMORY, "no memory for %u ranges of user ids", ranges->n);
        return;
    }
    for (unsigned i = 0; i < ranges->n; i++) {
        const struct line *range = &ranges->all[i];
        if (range->last < next)
            continue;
        reading->ranges[reading->n++] = (struct person_range){
            .first = range->first < next ? (uint32_t)next : range->first, .last = range->last, .person = range->person};
        next = (uint64_t)range->last + 1;
    }
}

/* On any thread. */
static void read_files(struct reading *reading)
{
    const struct persons *persons = reading->persons;
    struct lines ranges = {0}, users = {0};
    uint64_t now[sizeof reading->stamp / sizeof *reading->stamp];

    stamp_file(persons->subuid, now);
    stamp_file(persons->passwd, now + 5);
    reading->unchanged = memcmp(now, reading->stamp, sizeof now) == 0;
    if (reading->unchanged)
        return;
    memcpy(reading->stamp, now, sizeof now);
    if (read_lines(persons->subuid, parse_range, reading, &ranges) &&
        read_lines(persons->passwd, parse_user, reading, &users)) {
        qsort(users.all, users.n, sizeof *users.all, by_name);
        find_persons(&ranges, &users);
        put_in_order(&ranges, reading);
    }
    lines_fini(&ranges);
    lines_fini(&users);
}

/* ---- on the loop ---- */

static void adopt(struct persons *persons, struct reading *reading)
{
    if (reading->unchanged)
        return;
    memcpy(persons->stamp, reading->stamp, sizeof persons->stamp);
    if (reading->warn.status != RDT_OK)
        log_warn("subordinate user ids: %s", reading->warn.msg);
    if (reading->err.status != RDT_OK) {
        log_warn("subordinate user ids: %s", reading->err.msg);
        return;
    }
    if (reading->n > 0 || persons->n > 0)
        log_info("subordinate user ids: %s has %u ranges of users", persons->subuid, reading->n);
    free(persons->ranges);
    persons->ranges = reading->ranges;
    persons->n = reading->n;
}

static void start_reading(struct persons *persons);

static void run_reading(struct work *work)
{
    read_files(container_of(work, struct reading, work));
}

static void done_reading(struct work *work)
{
    struct reading *reading = container_of(work, struct reading, work);
    struct persons *persons = reading->persons;

    adopt(persons, reading);
    free(reading);
    persons->reading = false;
    if (persons->stale)
        start_reading(persons);
}

static void start_reading(struct persons *persons)
{
    struct reading *reading = persons->owner_work && !persons->reading ? calloc(1, sizeof *reading) : NULL;

    if (!reading)
        return;
    reading->work = (struct work){.run = run_reading, .done = done_reading};
    reading->persons = persons;
    if (!persons->stale)
        memcpy(reading->stamp, persons->stamp, sizeof reading->stamp);
    persons->stale = false;
    persons->reading = true;
    persons->checked_ns = uv_hrtime();
    owner_work_submit(persons->owner_work, &reading->work, NULL, false);
}

void persons_init(struct persons *persons, const char *subuid, const char *passwd, struct owner_work *owner_work)
{
    struct reading reading = {.persons = persons};

    *persons = (struct persons){.subuid = subuid, .passwd = passwd, .owner_work = owner_work, .checked_ns = uv_hrtime()};
    read_files(&reading);
    adopt(persons, &reading);
}

void persons_fini(struct persons *persons)
{
    free(persons->ranges);
}

void persons_read_again(struct persons *persons)
{
    persons->stale = true;
    start_reading(persons);
}

uint32_t persons_find(void *arg, uint32_t uid)
{
    struct persons *persons = arg;
    unsigned low = 0, high = persons->n;

    if (uv_hrtime() - persons->checked_ns >= CHECK_NS)
        start_reading(persons);
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        const struct person_range *range = &persons->ranges[middle];
        if (uid >= range->first && uid <= range->last)
            return range->person;
        if (uid < range->first)
            high = middle;
        else
            low = middle + 1;
    }
    return uid;
}
