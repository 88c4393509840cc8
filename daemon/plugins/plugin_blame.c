/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/plugins/plugin_blame.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"

#define MAGIC "rdtblam1"
#define MAX_RECORDS 32
#define MAX_RANGES 1024 /* of code, of all libraries */
#define MAX_FRAMES 64
#define NOBODY (-1)

struct record {
    char path[232]; /* "": it is free */
    uint64_t build; /* of the file */
    uint64_t count;
    int64_t last_s;
    int32_t signal;
    uint32_t opening;
};

struct blame_file {
    char magic[8];
    struct record records[MAX_RECORDS];
};

/* The handler reads ranges without a lock. A free one has hi 0, which is written last and cleared first. */
static struct range {
    atomic_uintptr_t lo, hi;
    atomic_int owner; /* index of a record, or NOBODY */
    bool seen;
} ranges[MAX_RANGES];

static struct blame_file *_Atomic file;                   /* NULL: nothing is recorded */
static _Thread_local int opening = NOBODY;                /* the record of the plug-in that this thread loads or opens */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* for the records, but for what the handler changes */
static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

/* ---- the handler ---- */

static int owner_of(uintptr_t pc)
{
    for (int i = 0; i < MAX_RANGES; i++)
        if (pc < atomic_load(&ranges[i].hi) && pc >= atomic_load(&ranges[i].lo))
            return atomic_load(&ranges[i].owner);
    return NOBODY;
}

/* backtrace was called before, so that it neither loads nor allocates here. */
static int whose_code_runs(void)
{
    void *frames[MAX_FRAMES];
    int n = backtrace(frames, MAX_FRAMES), owner = NOBODY;

    for (int i = 0; i < n && owner == NOBODY; i++)
        owner = owner_of((uintptr_t)frames[i]);
    return owner != NOBODY ? owner : opening;
}

/* The default action follows: at the same instruction, or, of a signal that was sent, when the handler returns. */
static void on_fatal(int number, siginfo_t *info, void *context)
{
    struct blame_file *records = atomic_load(&file);
    bool sent = info->si_code <= 0, aborted = info->si_code == SI_TKILL && info->si_pid == getpid();
    int owner = records && (!sent || aborted) ? whose_code_runs() : NOBODY;
    struct timespec now;

    if (owner != NOBODY) {
        struct record *record = &records->records[owner];
        (void)clock_gettime(CLOCK_REALTIME, &now);
        record->count++;
        record->last_s = now.tv_sec;
        record->signal = number;
        record->opening = owner == opening;
        atomic_store(&file, NULL); /* the thread is not the only one that may crash now */
    }
    (void)signal(number, SIG_DFL);
    if (sent)
        (void)raise(number);
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO}, now;
    void *frame;

    (void)backtrace(&frame, 1);
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
            (void)sigaction(signals[i], &action, NULL); /* otherwise it belongs to a sanitizer */
}

/* ---- whose code lies where ---- */

static void note_range(uintptr_t lo, uintptr_t hi, int owner)
{
    struct range *unused = NULL;

    for (int i = 0; i < MAX_RANGES; i++) {
        if (ranges[i].hi == hi && ranges[i].lo == lo) {
            ranges[i].seen = true;
            return;
        }
        if (ranges[i].hi == 0 && !unused)
            unused = &ranges[i];
    }
    if (!unused)
        return;
    atomic_store(&unused->owner, owner);
    atomic_store(&unused->lo, lo);
    atomic_store(&unused->hi, hi);
    unused->seen = true;
}

static int note_library(struct dl_phdr_info *info, size_t bytes, void *owner)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && segment->p_flags & PF_X)
            note_range(info->dlpi_addr + segment->p_vaddr, info->dlpi_addr + segment->p_vaddr + segment->p_memsz,
                       *(const int *)owner);
    }
    return 0;
}

/* What was loaded since the last time belongs to that record. */
static void note_libraries(int owner)
{
    for (int i = 0; i < MAX_RANGES; i++)
        ranges[i].seen = false;
    (void)dl_iterate_phdr(note_library, &owner);
    for (int i = 0; i < MAX_RANGES; i++)
        if (!ranges[i].seen)
            atomic_store(&ranges[i].hi, 0);
}

/* ---- records ---- */

/* 0: there is no such file. */
static uint64_t build_of(const char *path)
{
    struct stat st;

    if (stat(path, &st))
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec + (uint64_t)st.st_size + 1;
}

static bool is_crashed(const struct record *record)
{
    return record->path[0] != '\0' && record->count > 0;
}

static void fill(const struct record *record, struct plugin_crashes *crashes_p)
{
    *crashes_p = (struct plugin_crashes){.path = record->path,
                                         .count = record->count,
                                         .last_s = record->last_s,
                                         .signal = record->signal,
                                         .opening = record->opening != 0};
}

/* Forgets the records of plug-ins that are gone or were built again, and of those that never crashed. */
static void check_records(struct blame_file *records)
{
    struct plugin_crashes crashes;
    char text[200];

    for (int i = 0; i < MAX_RECORDS; i++) {
        struct record *record = &records->records[i];
        record->path[sizeof record->path - 1] = '\0'; /* whoever wrote the file may have gone wild */
        if (!is_crashed(record) || build_of(record->path) != record->build)
            memset(record, 0, sizeof *record);
        if (!is_crashed(record))
            continue;
        fill(record, &crashes);
        plugin_blame_describe(&crashes, text, sizeof text);
        log_warn("backend %s: %s", record->path, text);
    }
}

static int record_of(struct blame_file *records, const char *path)
{
    int free_one = NOBODY;

    for (int i = 0; i < MAX_RECORDS; i++) {
        if (strcmp(records->records[i].path, path) == 0)
            return i;
        if (records->records[i].path[0] == '\0' && free_one == NOBODY)
            free_one = i;
    }
    return free_one;
}

bool plugin_blame_next(size_t *cursor, struct plugin_crashes *crashes_p)
{
    struct blame_file *records = atomic_load(&file);
    bool found = false;

    (void)pthread_mutex_lock(&mutex);
    while (records && !found && *cursor < MAX_RECORDS) {
        const struct record *record = &records->records[(*cursor)++];
        found = is_crashed(record);
        if (found)
            fill(record, crashes_p);
    }
    (void)pthread_mutex_unlock(&mutex);
    return found;
}

bool plugin_blame_find(const char *path, struct plugin_crashes *crashes_p)
{
    size_t cursor = 0;

    while (plugin_blame_next(&cursor, crashes_p))
        if (strcmp(crashes_p->path, path) == 0)
            return true;
    return false;
}

void plugin_blame_describe(const struct plugin_crashes *crashes, char *text_p, size_t size)
{
    time_t last = (time_t)crashes->last_s;
    char when[40] = "an unknown date";
    struct tm tm;

    if (gmtime_r(&last, &tm))
        (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    (void)snprintf(text_p, size, "it has crashed the daemon %llu time%s, last on %s by \"%s\"%s",
                   (unsigned long long)crashes->count, crashes->count == 1 ? "" : "s", when, strsignal(crashes->signal),
                   crashes->opening ? ", when it was loaded" : "");
}

/* ---- for the room ---- */

void plugin_blame_begin(const char *path)
{
    struct blame_file *records = atomic_load(&file);
    int i;

    if (!records || strlen(path) >= sizeof records->records[0].path)
        return;
    note_libraries(NOBODY);
    (void)pthread_mutex_lock(&mutex);
    i = record_of(records, path);
    if (i != NOBODY) {
        struct record *record = &records->records[i];
        uint64_t build = build_of(path);
        if (record->path[0] == '\0' || record->build != build)
            memset(record, 0, sizeof *record);
        record->build = build;
        (void)stpcpy(record->path, path);
    }
    (void)pthread_mutex_unlock(&mutex);
    opening = i;
}

void plugin_blame_end(void)
{
    if (!atomic_load(&file))
        return;
    note_libraries(opening);
    opening = NOBODY;
}

/* ---- the file ---- */

static enum rdt_status map_file(const char *path, struct blame_file **file_p, struct rdt_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), failed;
    void *at;

    if (fd < 0)
        return rdt_error_sys(err, errno, "opening %s", path);
    failed = posix_fallocate(fd, 0, sizeof **file_p); /* so that the handler finds pages */
    at = failed ? MAP_FAILED : mmap(NULL, sizeof **file_p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!failed && at == MAP_FAILED)
        failed = errno;
    (void)close(fd);
    if (failed)
        return rdt_error_sys(err, failed, "mapping %s", path);
    *file_p = at;
    return RDT_OK;
}

enum rdt_status plugin_blame_start(const char *state_dir, struct rdt_error *err)
{
    struct blame_file *records = NULL;
    char path[PATH_MAX];
    enum rdt_status status;

    if (state_dir[0] == '\0')
        return RDT_OK;
    if (snprintf(path, sizeof path, "%s/plugin-crashes", state_dir) >= (int)sizeof path)
        return rdt_error_set(err, RDT_INVALID, "state_dir is too long");
    status = map_file(path, &records, err);
    if (status != RDT_OK)
        return status;
    if (memcmp(records->magic, MAGIC, sizeof records->magic) != 0) {
        memset(records, 0, sizeof *records);
        memcpy(records->magic, MAGIC, sizeof records->magic);
    }
    check_records(records);
    note_libraries(NOBODY);
    atomic_store(&file, records);
    install();
    return RDT_OK;
}
