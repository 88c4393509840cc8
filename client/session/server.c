/* SPDX-License-Identifier: Apache-2.0 */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LINKS 40 /* as the kernel's */
#define OTHERS_WRITE (S_IWGRP | S_IWOTH)

struct walk {
    uid_t server, own, unmapped;
    char rest[PATH_MAX]; /* of the path */
    int folder;          /* where the rest begins */
    struct stat in;      /* of that folder */
    unsigned links;
};

static uid_t unmapped_uid(void)
{
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");
    unsigned uid;

    if (!file || fscanf(file, "%u", &uid) != 1)
        uid = 65534;
    if (file)
        (void)fclose(file);
    return uid;
}

static bool is_own(const struct walk *walk, uid_t uid)
{
    return uid == 0 || (uid == walk->own && uid != walk->unmapped);
}

/* Only root, this process's user and the server can have put this entry into its folder, and only they can replace it. In a
 * sticky folder everybody can be the first to take a name. */
static bool entry_is_safe(const struct walk *walk, const struct stat *entry)
{
    if (!is_own(walk, entry->st_uid) && entry->st_uid != walk->server)
        return false;
    if ((walk->in.st_mode & OTHERS_WRITE) == 0)
        return true;
    return (walk->in.st_mode & S_ISVTX) && is_own(walk, entry->st_uid);
}

/* Takes the fd. */
static bool enter(struct walk *walk, int take_folder)
{
    if (walk->folder >= 0)
        (void)close(walk->folder);
    walk->folder = take_folder;
    return take_folder >= 0 && fstat(take_folder, &walk->in) == 0;
}

static bool enter_root(struct walk *walk)
{
    return enter(walk, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) &&
           (is_own(walk, walk->in.st_uid) || walk->in.st_uid == walk->server);
}

static bool follow(struct walk *walk, int link)
{
    char target[PATH_MAX], rest[PATH_MAX];
    ssize_t bytes = readlinkat(link, "", target, sizeof target - 1);

    if (bytes <= 0 || ++walk->links > MAX_LINKS)
        return false;
    target[bytes] = '\0';
    if ((size_t)snprintf(rest, sizeof rest, "%s/%s", target, walk->rest) >= sizeof rest)
        return false;
    memcpy(walk->rest, rest, sizeof rest);
    return target[0] != '/' || enter_root(walk);
}

/* Goes on by one name; the last one is the socket's. */
static bool take_step(struct walk *walk, const char *name, bool *there_p)
{
    int entry = openat(walk->folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    bool last = walk->rest[strspn(walk->rest, "/")] == '\0', safe;
    struct stat info;

    if (entry < 0) {
        *there_p = last && errno == ENOENT; /* the daemon has removed its socket meanwhile */
        return *there_p;
    }
    safe = fstat(entry, &info) == 0 && entry_is_safe(walk, &info);
    if (safe && S_ISDIR(info.st_mode))
        return enter(walk, entry);
    if (safe && S_ISLNK(info.st_mode))
        safe = follow(walk, entry);
    else
        *there_p = last;
    (void)close(entry);
    return safe;
}

/* Walks to the socket's folder as the kernel does. */
static bool owns_folder(struct walk *walk)
{
    bool there = false, safe = enter_root(walk);

    while (safe && !there) {
        char name[NAME_MAX + 1];
        const char *at = walk->rest + strspn(walk->rest, "/");
        size_t bytes = strcspn(at, "/");

        safe = bytes > 0 && bytes < sizeof name;
        if (!safe)
            break;
        memcpy(name, at, bytes);
        name[bytes] = '\0';
        memmove(walk->rest, at + bytes, strlen(at + bytes) + 1);
        safe = take_step(walk, name, &there);
    }
    if (walk->folder >= 0)
        (void)close(walk->folder);
    return safe && walk->in.st_uid == walk->server && (walk->in.st_mode & OTHERS_WRITE) == 0;
}

static bool set_path(struct walk *walk, const char *path)
{
    char here[PATH_MAX] = "";
    int length;

    if (path[0] != '/' && !getcwd(here, sizeof here))
        return false;
    length = snprintf(walk->rest, sizeof walk->rest, "%s/%s", here, path);
    return length > 0 && (size_t)length < sizeof walk->rest;
}

enum rdt_status server_check(int sock, const char *path, uint32_t daemon_uid, struct rdt_error *err)
{
    struct walk walk = {.folder = -1, .own = geteuid()};
    struct ucred server;
    socklen_t bytes = sizeof server;
    char named[48] = "";

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &server, &bytes) != 0)
        return rdt_error_sys(err, errno, "cannot find out who serves %s", path);
    if (server.uid == 0 || (daemon_uid != 0 && server.uid == daemon_uid))
        return RDT_OK;
    walk.server = server.uid;
    walk.unmapped = unmapped_uid();
    if (is_own(&walk, server.uid) || (daemon_uid == 0 && set_path(&walk, path) && owns_folder(&walk)))
        return RDT_OK;
    if (daemon_uid != 0)
        (void)snprintf(named, sizeof named, ", and not uid %u, which was named", daemon_uid);
    return rdt_error_set(
        err, RDT_DENIED,
        "uid %u%s serves %s%s: librdt talks only to root, to this process's user, and to the owner of a folder "
        "where nobody else can put a socket. If the daemon runs as this uid, set RDT_DAEMON_UID=%u",
        server.uid, server.uid == walk.unmapped ? " (a user that the kernel cannot map)" : "", path, named, server.uid);
}
