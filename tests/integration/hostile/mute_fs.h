/* SPDX-License-Identifier: Apache-2.0 */
/* A file system that does not answer, for tests of how long a client can make the kernel wait. Only those tests include
 * this header. */
#ifndef TESTS_MUTE_FS_H
#define TESTS_MUTE_FS_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUTE_BYTES (1 << 20) /* of the file */

struct mute_counts {
    _Atomic unsigned reads, flushes; /* pages and closes that somebody waits for */
};

/* A file system with one file, that answers everything but FLUSH, which is what close asks for, and READ, which is what a page
 * fault asks for. A process of its own serves it, and dies with the thread that mounted it: no signal ends a process while its
 * threads wait for a file system that it serves itself, so a test that failed there would never end. */
struct mute_fs {
    struct mute_counts *counts;
    char folder[64];
    pid_t server;
};

static inline void mute_answer(int device, uint64_t unique, int error, const void *data, size_t bytes)
{
    uint8_t message[512];
    struct fuse_out_header header = {.len = (uint32_t)(sizeof header + bytes), .error = error, .unique = unique};

    memcpy(message, &header, sizeof header);
    if (bytes > 0)
        memcpy(message + sizeof header, data, bytes);
    (void)!write(device, message, header.len);
}

static inline void mute_serve(int device, struct mute_counts *counts)
{
    static uint8_t request[1 << 20];
    ssize_t n;

    while ((n = read(device, request, sizeof request)) > 0 || errno == EINTR) {
        struct fuse_in_header in;
        struct fuse_attr attr = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 1};
        struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096, .max_background = 8};
        struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 1000, .attr_valid = 1000};
        struct fuse_attr_out attr_out = {.attr_valid = 1000};
        struct fuse_open_out opened = {0};

        if (n <= 0)
            continue;
        memcpy(&in, request, sizeof in);
        if (in.nodeid == 2 || in.opcode == FUSE_LOOKUP)
            attr = (struct fuse_attr){.ino = 2, .mode = S_IFREG | 0644, .nlink = 1, .size = MUTE_BYTES};
        attr_out.attr = entry.attr = attr;
        switch (in.opcode) {
        case FUSE_INIT:
            mute_answer(device, in.unique, 0, &init, sizeof init);
            break;
        case FUSE_LOOKUP:
            mute_answer(device, in.unique, 0, &entry, sizeof entry);
            break;
        case FUSE_GETATTR:
            mute_answer(device, in.unique, 0, &attr_out, sizeof attr_out);
            break;
        case FUSE_OPEN:
            mute_answer(device, in.unique, 0, &opened, sizeof opened);
            break;
        case FUSE_READ:
            counts->reads++;
            break;
        case FUSE_FLUSH:
            counts->flushes++;
            break;
        case FUSE_INTERRUPT:
        case FUSE_RELEASE:
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
            break;
        default:
            mute_answer(device, in.unique, -ENOSYS, NULL, 0);
        }
    }
}

/* false: this kernel or container has no FUSE. */
static inline bool mute_mount(struct mute_fs *fs)
{
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    pid_t self = getpid();
    char options[128];

    if (device < 0)
        return false;
    (void)snprintf(fs->folder, sizeof fs->folder, "/tmp/rdtd-mute-%d", (int)self);
    (void)mkdir(fs->folder, 0755);
    (void)snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("rdtd-mute", fs->folder, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        (void)rmdir(fs->folder);
        (void)close(device);
        return false;
    }
    fs->counts = mmap(NULL, sizeof *fs->counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(fs->counts != MAP_FAILED);
    fs->server = fork();
    cr_assert(fs->server >= 0);
    if (fs->server == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == self)
            mute_serve(device, fs->counts);
        _exit(0);
    }
    (void)close(device); /* the server has the only one: its end ends the file system */
    return true;
}

/* Ends every close and every page fault that waits for it. */
static inline void mute_end(struct mute_fs *fs)
{
    (void)kill(fs->server, SIGKILL);
    (void)waitpid(fs->server, NULL, 0);
    (void)umount2(fs->folder, MNT_DETACH);
    (void)rmdir(fs->folder);
    (void)munmap(fs->counts, sizeof *fs->counts);
}

#endif
