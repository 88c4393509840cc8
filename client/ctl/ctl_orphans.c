/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl regions --orphaned: memory whose region has ended and that processes still have open or mapped. The daemon knows the
 * files; which processes have them is in /proc, where each user sees the own ones, and root all. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "proto/grow.h"
#include "rdt.pb-c.h"

#define SHOWN_HOLDERS 4u /* further ones are counted */

struct orphan {
    uint64_t device, inode;
    uint64_t bytes;
    char whose[48];
    int64_t age_ns;
    unsigned n_holders;
    int last_pid;      /* that was counted: a process has a file open and mapped */
    char holders[400]; /* "pid 7 (python3 train.py)", separated by commas */
    bool stored;
};

struct orphans {
    struct orphan *all; /* in order of device and inode, when they are all there */
    size_t n, room;
};

static int by_file(const void *a, const void *b)
{
    const struct orphan *one = a, *other = b;

    if (one->device != other->device)
        return one->device < other->device ? -1 : 1;
    return (one->inode > other->inode) - (one->inode < other->inode);
}

static enum rdt_status add(struct orphans *orphans, const Rdt__Pb__OrphanInfo *o, struct rdt_error *err)
{
    struct orphan *all = array_grow(orphans->all, orphans->n, &orphans->room, sizeof *all), *orphan;

    if (!all)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the list");
    orphans->all = all;
    orphan = &all[orphans->n++];
    *orphan =
        (struct orphan){.device = o->device, .inode = o->inode, .bytes = o->bytes, .age_ns = o->age_ns, .stored = o->stored};
    (void)snprintf(orphan->whose, sizeof orphan->whose, "%.32s%s%" PRIu32, o->tenant, *o->tenant ? ":" : "", o->uid);
    return RDT_OK;
}

static enum rdt_status list(struct ctl *ctl, struct orphans *orphans, struct rdt_error *err)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_ORPHANS;
    do {
        Rdt__Pb__ListReply *page;
        enum rdt_status status = ctl_page(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), &request, &page, err);

        if (status != RDT_OK)
            return status;
        for (size_t i = 0; i < page->n_orphans && status == RDT_OK; i++)
            status = add(orphans, page->orphans[i], err);
        ctl_reply_free(&page->base);
        if (status != RDT_OK)
            return status;
    } while (request.after);
    if (orphans->n > 0)
        qsort(orphans->all, orphans->n, sizeof *orphans->all, by_file);
    return RDT_OK;
}

/* ---- /proc ---- */

/* Writes the command line of the process, with spaces between its words. */
static void command_of(int process, char *text_p, size_t size)
{
    int fd = openat(process, "cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text_p, size - 1) : 0;

    if (fd >= 0)
        (void)close(fd);
    for (ssize_t i = 0; i < n - 1; i++)
        if (text_p[i] == '\0')
            text_p[i] = ' ';
    text_p[n > 0 ? n : 0] = '\0';
}

static void found(struct orphans *orphans, int process, int pid, uint64_t device, uint64_t inode)
{
    const struct orphan wanted = {.device = device, .inode = inode};
    struct orphan *orphan = bsearch(&wanted, orphans->all, orphans->n, sizeof wanted, by_file);
    size_t used;
    char command[64];

    if (!orphan || orphan->last_pid == pid)
        return;
    orphan->last_pid = pid;
    if (orphan->n_holders++ >= SHOWN_HOLDERS)
        return;
    command_of(process, command, sizeof command);
    used = strlen(orphan->holders);
    (void)snprintf(orphan->holders + used, sizeof orphan->holders - used, "%spid %d (%s)", used ? ", " : "", pid, command);
}

static void look_at_files(struct orphans *orphans, int process, int pid)
{
    int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *files = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    struct stat file;

    if (!files && fd >= 0)
        (void)close(fd);
    while (files && (entry = readdir(files)))
        if (isdigit((unsigned char)entry->d_name[0]) && fstatat(dirfd(files), entry->d_name, &file, 0) == 0)
            found(orphans, process, pid, file.st_dev, file.st_ino);
    if (files)
        (void)closedir(files);
}

static void look_at_mappings(struct orphans *orphans, int process, int pid)
{
    int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
    FILE *maps = fd >= 0 ? fdopen(fd, "r") : NULL;
    unsigned major, minor;
    uint64_t inode;
    char *line = NULL;
    size_t size = 0;

    if (!maps && fd >= 0)
        (void)close(fd);
    while (maps && getline(&line, &size, maps) > 0)
        if (sscanf(line, "%*x-%*x %*s %*x %x:%x %" SCNu64, &major, &minor, &inode) == 3 && inode != 0)
            found(orphans, process, pid, makedev(major, minor), inode);
    free(line);
    if (maps)
        (void)fclose(maps);
}

static void find_holders(struct orphans *orphans)
{
    DIR *processes = orphans->n > 0 ? opendir("/proc") : NULL;
    const struct dirent *entry;

    while (processes && (entry = readdir(processes))) {
        int pid = isdigit((unsigned char)entry->d_name[0]) ? atoi(entry->d_name) : 0;
        int process = pid > 0 ? openat(dirfd(processes), entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

        if (process < 0)
            continue;
        look_at_files(orphans, process, pid);
        look_at_mappings(orphans, process, pid);
        (void)close(process);
    }
    if (processes)
        (void)closedir(processes);
}

/* ---- the answer ---- */

static const char *holders_of(const struct orphan *orphan, char *text_p, size_t size)
{
    if (orphan->n_holders == 0)
        return "no process that this user may look at";
    if (orphan->n_holders <= SHOWN_HOLDERS)
        return orphan->holders;
    (void)snprintf(text_p, size, "%s and %u more", orphan->holders, orphan->n_holders - SHOWN_HOLDERS);
    return text_p;
}

static json_t *to_json(const struct orphans *orphans)
{
    json_t *array = json_array();
    char text[440];

    for (size_t i = 0; i < orphans->n; i++) {
        const struct orphan *o = &orphans->all[i];

        json_array_append_new(array, json_pack("{s:I, s:s, s:I, s:b, s:i, s:o}", "bytes", (json_int_t)o->bytes, "owner",
                                               o->whose, "age_ns", (json_int_t)o->age_ns, "stored", o->stored, "processes",
                                               (int)o->n_holders, "held_by", ctl_json_text(holders_of(o, text, sizeof text))));
    }
    return json_pack("{s:o}", "orphans", array);
}

static bool print(const struct orphans *orphans)
{
    static const struct ctl_column columns[] = {
        {"BYTES", true}, {"OF", false}, {"OWNER", false}, {"AGE", true}, {"HELD BY", false}};
    struct ctl_table table;
    char text[440];
    bool ok;

    ctl_table_init(&table, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < orphans->n; i++) {
        const struct orphan *o = &orphans->all[i];

        ctl_table_add(&table, "%s", ctl_human_bytes(o->bytes, text));
        ctl_table_add(&table, "%s", o->stored ? "a file" : "memory");
        ctl_table_add(&table, "%s", o->whose);
        ctl_table_add(&table, "%s", ctl_human_duration(o->age_ns, text));
        ctl_table_add(&table, "%s", holders_of(o, text, sizeof text));
    }
    ok = ctl_table_print(&table, "no process keeps memory of an ended region", stdout);
    ctl_table_fini(&table);
    return ok;
}

int ctl_list_orphans(struct ctl *ctl)
{
    struct orphans orphans = {0};
    struct rdt_error err = {0};
    int code = CTL_OK;

    if (list(ctl, &orphans, &err) != RDT_OK) {
        free(orphans.all);
        return ctl_fail(ctl, &err);
    }
    find_holders(&orphans);
    if (ctl->json)
        code = ctl_print_json(to_json(&orphans));
    else if (!print(&orphans))
        code = CTL_FAILED;
    free(orphans.all);
    return code;
}
