/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel and the configuration of this machine allow the daemon. The files that are read here are in /proc and /sys,
 * where reading does not block. */
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/memory_room.h"
#include "daemon/config/limits.h"
#include "daemon/view/doctor/doctor.h"

#define FEW_ORPHANS 1024u

/* The first line of the file; "": it cannot be read. */
static void read_line(const char *path, char *text_p, int size)
{
    FILE *file = fopen(path, "re");

    if (!file || !fgets(text_p, size, file))
        text_p[0] = '\0';
    text_p[strcspn(text_p, "\n")] = '\0';
    if (file)
        (void)fclose(file);
}

/* The number behind a word at the beginning of a line; false: there is none. */
static bool read_number(const char *path, const char *word, uint64_t *number_p)
{
    FILE *file = fopen(path, "re");
    size_t length = strlen(word);
    bool found = false;
    char line[256];

    while (file && !found && fgets(line, sizeof line, file)) {
        found = strncmp(line, word, length) == 0 && (line[length] == ' ' || line[length] == ':');
        if (found)
            *number_p = strtoull(line + length + 1, NULL, 10);
    }
    if (file)
        (void)fclose(file);
    return found;
}

void doctor_open_files(struct doctor *doctor)
{
    const struct accounts *accounts = doctor->rpc->objects->accounts;
    uint64_t used = accounts->node.used[USAGE_FDS], limit = accounts->limits.node[USAGE_FDS];
    uint64_t connections = 2 * (uint64_t)doctor->rpc->options->max_clients;
    char mappings[ACCOUNT_FULL_BYTES];
    struct rlimit files = {0};

    (void)getrlimit(RLIMIT_NOFILE, &files);
    if (limits_file_bytes() != UINT64_MAX)
        doctor_find(doctor, FINDING_WARN, "Set LimitFSIZE=infinity in the daemon's unit, or `ulimit -f unlimited` before it.",
                    "No file of the daemon may have more than %" PRIu64 " bytes, and so no piece of memory either.",
                    limits_file_bytes());
    if (account_is_full(&accounts->node, USAGE_MAPPINGS, mappings))
        doctor_find(doctor, FINDING_WARN, "Raise the kernel's vm.max_map_count (sysctl), or put fewer and larger objects.",
                    "The daemon has mapped nearly as much memory of objects as it may: %s.", mappings);
    if (used >= limit - limit / 10)
        doctor_find(doctor, FINDING_WARN, "Raise LimitNOFILE in the daemon's unit, or the limit of the container.",
                    "The daemon has %" PRIu64 " of %" PRIu64 " descriptors open for clients.", used, limit);
    else if (connections > files.rlim_cur / 2)
        doctor_find(doctor, FINDING_WARN,
                    "Raise LimitNOFILE in the daemon's unit, or the limit of the container; or lower max_clients.",
                    "The daemon may open %" PRIu64 " files, but max_clients alone can need %" PRIu64 ".",
                    (uint64_t)files.rlim_cur, connections);
    else
        doctor_find(doctor, FINDING_OK, "", "The daemon may open %" PRIu64 " files; %" PRIu64 " are open for clients.",
                    (uint64_t)files.rlim_cur, used);
}

static bool may_lock_everything(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2] = {0};

    return syscall(SYS_capget, &head, sets) == 0 && sets[0].effective & (1u << CAP_IPC_LOCK);
}

static bool has_rdma_device(void)
{
    DIR *dir = opendir("/sys/class/infiniband");
    const struct dirent *entry = NULL;

    while (dir && (entry = readdir(dir)) && entry->d_name[0] == '.')
        ;
    if (dir)
        (void)closedir(dir);
    return entry != NULL;
}

void doctor_locked_memory(struct doctor *doctor)
{
    uint64_t wanted = doctor->rpc->regions->limit_bytes;
    struct rlimit locked = {0};

    (void)getrlimit(RLIMIT_MEMLOCK, &locked);
    if (locked.rlim_cur >= wanted || may_lock_everything())
        doctor_find(doctor, FINDING_OK, "", "The daemon may lock as much memory as it may use.");
    else if (!has_rdma_device())
        doctor_find(doctor, FINDING_OK, "", "This machine has no RDMA device, so no memory has to be locked.");
    else
        doctor_find(doctor, FINDING_WARN, "Set LimitMEMLOCK=infinity in the daemon's unit, or for the container.",
                    "RDMA needs locked memory, and the daemon may lock only %" PRIu64 " of the %" PRIu64
                    " bytes of memory_limit.",
                    (uint64_t)locked.rlim_cur, wanted);
}

/* How many processes of the daemon's control group (version 2) the kernel has killed for want of memory. */
static uint64_t kills(void)
{
    char line[PATH_MAX], path[PATH_MAX + 64];
    uint64_t n = 0;

    read_line("/proc/self/cgroup", line, sizeof line);
    if (strncmp(line, "0::", 3) != 0)
        return 0;
    (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.events", line + 3);
    return read_number(path, "oom_kill", &n) ? n : 0;
}

void doctor_control_group(struct doctor *doctor)
{
    uint64_t group = memory_group_limit_bytes("/proc/self/cgroup", "/sys/fs/cgroup");
    uint64_t limit = doctor->rpc->regions->limit_bytes, killed = kills();

    if (killed > 0)
        doctor_find(doctor, FINDING_WARN, "Lower memory_limit, or raise the group's limit (MemoryMax of a systemd unit).",
                    "The kernel has killed %" PRIu64 " process%s of the daemon's control group for want of memory.", killed,
                    killed == 1 ? "" : "es");
    if (group == UINT64_MAX)
        doctor_find(doctor, FINDING_OK, "", "The daemon's control group has no memory limit.");
    else if (limit > group - group / 16)
        doctor_find(doctor, FINDING_WARN, "Lower memory_limit, or raise the group's limit (MemoryMax of a systemd unit).",
                    "memory_limit is %" PRIu64 " bytes, but the daemon's control group may have %" PRIu64
                    " in all, so requests can fail with NO_MEMORY below memory_limit.",
                    limit, group);
    else
        doctor_find(doctor, FINDING_OK, "", "memory_limit fits into the %" PRIu64 " bytes of the daemon's control group.",
                    group);
}

void doctor_huge_pages(struct doctor *doctor)
{
    const char *mode = "no";
    char shmem[128];
    uint64_t pool = 0;

    for (const struct options_extra *extra = doctor->rpc->options->extras; extra; extra = extra->next)
        if (strcasecmp(extra->section, "host") == 0 && strcmp(extra->key, "huge_pages") == 0)
            mode = extra->value;
    if (strcasecmp(mode, "no") == 0) {
        doctor_find(doctor, FINDING_OK, "", "Huge pages are not configured (huge_pages in [host] of rdtd.conf).");
        return;
    }
    (void)read_number("/proc/meminfo", "HugePages_Total", &pool);
    read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shmem, sizeof shmem);
    if (pool > 0)
        doctor_find(doctor, FINDING_OK, "", "The kernel has a pool of %" PRIu64 " huge pages.", pool);
    else if (strcasecmp(mode, "try") == 0 && shmem[0] && !strstr(shmem, "[never]") && !strstr(shmem, "[deny]"))
        doctor_find(doctor, FINDING_OK, "", "The kernel makes huge pages for shared memory (shmem_enabled).");
    else
        doctor_find(doctor, strcasecmp(mode, "try") == 0 ? FINDING_WARN : FINDING_FAIL,
                    "Reserve huge pages with sysctl vm.nr_hugepages, or, for huge_pages = try, write advise to "
                    "/sys/kernel/mm/transparent_hugepage/shmem_enabled.",
                    "huge_pages = %s, but the kernel has no huge pages for the daemon.", mode);
}

void doctor_overcommit(struct doctor *doctor)
{
    uint64_t limit_kib = 0;
    char text[16];

    read_line("/proc/sys/vm/overcommit_memory", text, sizeof text);
    (void)read_number("/proc/meminfo", "CommitLimit", &limit_kib);
    if (strcmp(text, "2") == 0 && limit_kib * 1024 < doctor->rpc->regions->limit_bytes)
        doctor_find(doctor, FINDING_WARN, "Raise vm.overcommit_ratio, set vm.overcommit_memory to 0, or lower memory_limit.",
                    "The kernel promises %" PRIu64 " KiB to all processes together (vm.overcommit_memory = 2), which is less "
                    "than memory_limit.",
                    limit_kib);
    else
        doctor_find(doctor, FINDING_OK, "", "The kernel's accounting of promised memory leaves room for memory_limit.");
}

void doctor_orphans(struct doctor *doctor)
{
    uint64_t limit = doctor->rpc->objects->accounts->limits.owner[USAGE_ORPHANS];

    if (limit < FEW_ORPHANS)
        doctor_find(doctor, FINDING_WARN, "Raise sysctl fs.inotify.max_user_watches, or owner_max_orphans in [limits].",
                    "A user may keep only %" PRIu64 " ended regions mapped, and gets no new ones beyond that.", limit);
    else
        doctor_find(doctor, FINDING_OK, "", "A user may keep %" PRIu64 " ended regions mapped.", limit);
}
