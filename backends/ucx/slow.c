/* SPDX-License-Identifier: Apache-2.0 */
/* See slow.h. A list of lanes is a text for people: "TRANSPORT/DEVICE, ...". */
#include "backends/ucx/slow.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* ---- lists ---- */

/* Returns the next lane of a list ("tcp/eth0"), with its length in *bytes_p; NULL at the end. */
static const char *next_lane(const char **at, size_t *bytes_p)
{
    const char *lane = *at + strspn(*at, ", ");

    *bytes_p = strcspn(lane, ",");
    *at = lane + *bytes_p;
    return *bytes_p ? lane : NULL;
}

void lanes_add(char *list, size_t size, const char *lane, size_t bytes)
{
    size_t used = strlen(list), other;
    const char *at = list, *next;

    while ((next = next_lane(&at, &other)))
        if (other == bytes && !strncmp(next, lane, bytes))
            return;
    (void)snprintf(list + used, size - used, "%s%.*s", used ? ", " : "", (int)bytes, lane);
}

/* A line of the text: "#    lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/...". The connection manager's: "lane[0]: cm rdmacm". */
void lanes_read_printed(const char *text, char *list, size_t size)
{
    list[0] = '\0';
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *end = line + strcspn(line, "\n"), *at = strstr(line, "lane[");
        size_t bytes;

        at = at && at < end ? strstr(at, "]:") : NULL;
        if (!at || at >= end)
            continue;
        at += 2;
        at += strspn(at, " ");
        bytes = strspn(at, "0123456789");
        if (!bytes || at[bytes] != ':')
            continue;
        at += bytes + 1;
        bytes = strcspn(at, " \n");
        while (bytes && at[bytes - 1] != '.') /* the number of the path is left out */
            bytes--;
        if (bytes > 1)
            lanes_add(list, size, at, bytes - 1);
    }
}

static bool in_list(const char *list, const char *word, size_t bytes)
{
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == bytes && !strncmp(at, word, bytes))
            return true;
    return false;
}

/* ---- transports ---- */

static bool is_rdma(const char *transport, size_t bytes)
{
    static const char *const prefixes[] = {"rc", "dc", "ud", "srd", "gga"};

    for (unsigned i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        if (bytes >= n && !strncmp(transport, prefixes[i], n) && (bytes == n || transport[n] == '_'))
            return true;
    }
    return false;
}

/* Returns whether a transport is meant by the name `wanted`: its own name, or a family ("rc" stands for rc_verbs and rc_mlx5),
 * "rdma" or UCX's "ib" for any RDMA, "shm" for memory shared within a machine. */
static bool matches_name(const char *transport, size_t bytes, const char *wanted, size_t n)
{
    static const char shm[] = "posix,sysv,xpmem,cma,knem";

    if ((n == 4 && !strncmp(wanted, "rdma", n)) || (n == 2 && !strncmp(wanted, "ib", n)))
        return is_rdma(transport, bytes);
    if (n == 3 && !strncmp(wanted, "shm", n))
        return in_list(shm, transport, bytes);
    return bytes >= n && !strncmp(transport, wanted, n) && (bytes == n || transport[n] == '_');
}

static bool any_matches_name(const char *list, const char *wanted, size_t n)
{
    const char *at = list, *lane;
    size_t bytes;

    while ((lane = next_lane(&at, &bytes)))
        if (matches_name(lane, strcspn(lane, "/,"), wanted, n))
            return true;
    return false;
}

bool lanes_copy(const char *list)
{
    const char *at = list, *lane;
    size_t bytes;

    while ((lane = next_lane(&at, &bytes)))
        if (strncmp(lane, "tcp/", 4) != 0)
            return false;
    return true;
}

bool lanes_have_rdma(const char *list)
{
    return any_matches_name(list, "rdma", 4);
}

bool lanes_have_cma(const char *list)
{
    return any_matches_name(list, "cma", 3);
}

/* ---- devices of this machine ---- */

/* Finds the RDMA device of a network interface, which shares its PCI function. */
static bool rdma_of_interface(const char *sys, const char *interface, size_t n, char *device_p, size_t size)
{
    char path[192];
    const struct dirent *entry;
    bool found = false;
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/class/net/%.*s/device/infiniband", sys, (int)n, interface);
    dir = opendir(path);
    while (dir && !found && (entry = readdir(dir)))
        if (entry->d_name[0] != '.') {
            (void)snprintf(device_p, size, "%.63s", entry->d_name);
            found = true;
        }
    if (dir)
        (void)closedir(dir);
    return found;
}

/* The key interfaces may also name an RDMA device itself ("mlx5_0:1"). */
static bool is_rdma_device(const char *sys, const char *name, size_t n, char *device_p, size_t size)
{
    char path[192];
    DIR *dir;

    (void)snprintf(device_p, size, "%.*s", (int)(n < strcspn(name, ":") ? n : strcspn(name, ":")), name);
    (void)snprintf(path, sizeof path, "%s/class/infiniband/%s", sys, device_p);
    dir = opendir(path);
    if (dir)
        (void)closedir(dir);
    return dir;
}

static bool has_idle_rdma(const struct slow_rule *rule, const char *list, char *why, size_t size)
{
    char device[64];

    if (lanes_have_rdma(list))
        return false;
    for (const char *at = rule->interfaces; *at; at += strcspn(at, ","), at += *at == ',') {
        size_t n = strcspn(at, ",");

        if (!rdma_of_interface(rule->sys, at, n, device, sizeof device) &&
            !is_rdma_device(rule->sys, at, n, device, sizeof device))
            continue;
        (void)snprintf(why, size, "%.*s has the RDMA device %s, but no lane uses it (check tls, and the peer's devices)",
                       (int)n, at, device);
        return true;
    }
    return false;
}

/* Returns whether a lane uses a network interface that is not among `interfaces`. Only lanes of TCP have the name of an
 * interface: RDMA devices have other names, and shared memory has none. */
static bool leaves_interfaces(const struct slow_rule *rule, const char *list, char *why, size_t size)
{
    const char *at = list, *lane;
    size_t bytes;

    while (*rule->interfaces && (lane = next_lane(&at, &bytes)))
        if (bytes > 4 && !strncmp(lane, "tcp/", 4) && !in_list(rule->interfaces, lane + 4, bytes - 4)) {
            (void)snprintf(why, size, "%.*s is not among interfaces = %s", (int)bytes, lane, rule->interfaces);
            return true;
        }
    return false;
}

bool lanes_are_slow(const struct slow_rule *rule, const char *list, char *why, size_t size)
{
    if (!*list)
        return false;
    if (leaves_interfaces(rule, list, why, size))
        return true;
    if (!*rule->least)
        return has_idle_rdma(rule, list, why, size);
    for (const char *at = rule->least; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") && any_matches_name(list, at, strcspn(at, ",")))
            return false;
    (void)snprintf(why, size, "no lane is in least_lane = %s", rule->least);
    return true;
}
