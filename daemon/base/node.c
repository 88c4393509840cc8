/* SPDX-License-Identifier: Apache-2.0 */
/* The node's permanent uuid, stored as 32 hex digits in a file of state_dir. A file with something else is set aside and not
 * overwritten, because other nodes know this one by its uuid, and somebody may be able to read it. */
#include "daemon/base/node.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/process/folder_lock.h"

static enum rdt_status random_bytes(uint8_t bytes[16], struct rdt_error *err)
{
    ssize_t n;
    do {
        n = getrandom(bytes, 16, 0);
    } while (n < 0 && errno == EINTR);
    return n == 16 ? RDT_OK : rdt_error_sys(err, errno, "the kernel gave no random numbers");
}

static enum rdt_status random_uuid(uint8_t uuid[16], struct rdt_error *err)
{
    enum rdt_status status = random_bytes(uuid, err);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* version 4 */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80); /* the variant of RFC 4122 */
    return status;
}

bool node_is_here(const struct node *node, const uint8_t uuid[16], const char *address)
{
    static const uint8_t nobody[16];

    if (memcmp(uuid, nobody, sizeof nobody) == 0)
        return address[0] == '\0' || strcmp(address, node->address) == 0;
    return memcmp(uuid, node->uuid, sizeof node->uuid) == 0;
}

void node_hex(const uint8_t uuid[16], char text_p[33])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        *text_p++ = digits[uuid[i] >> 4];
        *text_p++ = digits[uuid[i] & 15];
    }
    *text_p = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

/* Accepts 32 digits and at most one newline. */
static enum rdt_status read_uuid(int fd, const char *path, uint8_t uuid[16], struct rdt_error *err)
{
    char text[64];
    struct stat st;
    ssize_t n = fstat(fd, &st) == 0 && !S_ISREG(st.st_mode) ? 0 : read(fd, text, sizeof text);
    if (n < 0)
        return rdt_error_sys(err, errno, "cannot read %s", path);
    if (n == 33 && text[32] == '\n')
        n = 32;
    for (int i = 0; n == 32 && i < 16; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            n = -1;
        else
            uuid[i] = (uint8_t)(high << 4 | low);
    }
    if (n != 32)
        return rdt_error_set(err, RDT_INVALID,
                             "%s does not contain 32 hex digits: restore it, or remove it if this node may get a new uuid",
                             path);
    return RDT_OK;
}

static enum rdt_status sync_dir(const char *dir, struct rdt_error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    return failed == 0 ? RDT_OK : rdt_error_sys(err, failed, "cannot sync %s", dir);
}

/* If two daemons start at once, the first wins and the second reads its file: link, unlike rename, never
 * replaces. */
static enum rdt_status write_uuid(const char *dir, const char *path, const uint8_t uuid[16], struct rdt_error *err)
{
    char temporary[PATH_MAX], text[34];
    if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= (int)sizeof temporary)
        return rdt_error_set(err, RDT_INVALID, "state_dir is too long");
    int fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */
    if (fd < 0)
        return rdt_error_sys(err, errno, "cannot write in %s", dir);
    node_hex(uuid, text);
    text[32] = '\n';
    int failed = 0;
    errno = ENOSPC; /* a short write has no errno of its own */
    if (write(fd, text, 33) != 33 || fsync(fd) != 0)
        failed = errno;
    if (close(fd) != 0 && failed == 0)
        failed = errno;
    if (failed == 0 && link(temporary, path) != 0 && errno != EEXIST)
        failed = errno;
    unlink(temporary);
    if (failed != 0)
        return rdt_error_sys(err, failed, "cannot write %s", path);
    return sync_dir(dir, err);
}

/* damaged_p: the file has something else, and the uuid is a new one. */
static enum rdt_status load_uuid(const char *dir, uint8_t uuid[16], bool *damaged_p, struct rdt_error *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/node_uuid", dir) >= (int)sizeof path)
        return rdt_error_set(err, RDT_INVALID, "state_dir is too long");
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return rdt_error_sys(err, errno, "cannot create %s", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) {
        uint8_t fresh[16];
        enum rdt_status status = random_uuid(fresh, err);
        if (status == RDT_OK)
            status = write_uuid(dir, path, fresh, err);
        if (status != RDT_OK)
            return status;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    }
    enum rdt_status status = RDT_INVALID; /* a link that leads nowhere, or a socket */
    if (fd >= 0) {
        status = read_uuid(fd, path, uuid, err);
        close(fd);
    } else if (errno != ENOENT && errno != ELOOP && errno != ENXIO) {
        return rdt_error_sys(err, errno, "cannot read %s", path);
    }
    *damaged_p = status == RDT_INVALID;
    return *damaged_p ? random_uuid(uuid, err) : status;
}

/* Whoever tries the daemon as an ordinary user gets this error first, because state_dir belongs to the system. */
static void add_remedy(struct rdt_error *err)
{
    size_t used = strlen(err->msg);
    const char *remedy = NULL;

    if (err->sys_errno == EACCES || err->sys_errno == EPERM || err->sys_errno == EROFS)
        remedy = "give --state-dir DIR, which this user may write, or --state-dir= for a new uuid at each start";
    else if (err->sys_errno == ENOSPC || err->sys_errno == EDQUOT)
        remedy = "make room there, or give --state-dir DIR on another disk";
    if (remedy)
        (void)snprintf(err->msg + used, sizeof err->msg - used, "; %s", remedy);
}

enum rdt_status node_load(const char *state_dir, struct node *node_p, struct rdt_error *err)
{
    struct node node = {0};
    enum rdt_status status =
        state_dir[0] != 0 ? load_uuid(state_dir, node.uuid, &node.damaged, err) : random_uuid(node.uuid, err);
    if (status != RDT_OK && err)
        add_remedy(err);
    if (status == RDT_OK)
        status = random_bytes(node.boot_id, err);
    if (status == RDT_OK)
        *node_p = node;
    return status;
}

void node_renew(const char *state_dir, struct node *node)
{
    char path[PATH_MAX], aside[PATH_MAX], text[33];
    struct rdt_error why = {0};
    enum rdt_status status = RDT_OK;

    if (!node->damaged)
        return;
    (void)snprintf(path, sizeof path, "%s/node_uuid", state_dir);
    node_hex(node->uuid, text);
    if (snprintf(aside, sizeof aside, "%s.damaged", path) >= (int)sizeof aside)
        status = rdt_error_set(&why, RDT_INVALID, "state_dir is too long");
    else if (rename(path, aside) != 0)
        status = rdt_error_sys(&why, errno, "cannot rename it to %s", aside);
    if (status == RDT_OK)
        status = write_uuid(state_dir, path, node->uuid, &why);
    if (status != RDT_OK) {
        add_remedy(&why);
        log_error("%s does not contain 32 hex digits, and cannot be written again: %s. This node is %s until rdtd ends", path,
                  why.msg, text);
        return;
    }
    node->damaged = false;
    log_error(
        "%s did not contain 32 hex digits, and is %s now. This node is %s: that of the keeper's objects if there are any, "
        "else a new uuid. If nodes of other machines list another, restore it there and restart rdtd",
        path, aside, text);
}

enum rdt_status node_check(const char *state_dir, struct rdt_error *err)
{
    char path[PATH_MAX], parent[PATH_MAX];
    uint8_t uuid[16];
    enum rdt_status status = RDT_OK;
    struct stat st;
    int fd;

    if (state_dir[0] == 0)
        return RDT_OK;
    if (snprintf(path, sizeof path, "%s/node_uuid", state_dir) >= (int)sizeof path)
        return rdt_error_set(err, RDT_INVALID, "state_dir is too long");
    (void)snprintf(parent, sizeof parent, "%s", state_dir);
    if (stat(state_dir, &st) != 0 && errno == ENOENT) { /* the daemon creates one folder, not those above it */
        if (access(dirname(parent), W_OK | X_OK) != 0)
            status = rdt_error_sys(err, errno, "state_dir: cannot create %s", state_dir);
    } else if (stat(state_dir, &st) == 0 && !S_ISDIR(st.st_mode)) {
        status = rdt_error_sys(err, ENOTDIR, "state_dir: cannot write in %s", state_dir);
    } else if (access(state_dir, W_OK | X_OK) != 0) {
        status = rdt_error_sys(err, errno, "state_dir: cannot write in %s", state_dir);
    } else if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY)) >= 0) {
        status = read_uuid(fd, path, uuid, err);
        (void)close(fd);
    } else if (errno != ENOENT) {
        status = rdt_error_sys(err, errno, "state_dir: cannot read %s", path);
    }
    if (status == RDT_SYSTEM && err)
        add_remedy(err);
    return status;
}

enum rdt_status node_lock(const char *state_dir, struct node *node, int *lock_p, struct rdt_error *err)
{
    struct rdt_error why = {0};

    *lock_p = -1;
    if (state_dir[0] == 0)
        return RDT_OK;
    node->dying = 0;
    if (folder_lock_take(state_dir, "lock", lock_p, &node->dying, &why) == RDT_OK) {
        if (node->dying != 0)
            log_warn(
                "process %d, the earlier daemon of state_dir %s, has been killed and does not end: the kernel waits for a file "
                "system that does not answer, or writes a core dump. This daemon takes its place",
                (int)node->dying, state_dir);
        return RDT_OK;
    }
    if (why.status == RDT_EXISTS)
        return rdt_error_set(err, RDT_EXISTS, "another daemon runs with state_dir %s (lock: %s): give each daemon its own",
                             state_dir, why.msg);
    rdt_error_prefix(&why, "%s/lock", state_dir);
    add_remedy(&why);
    if (err)
        *err = why;
    return why.status;
}
