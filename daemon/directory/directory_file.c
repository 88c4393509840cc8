/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes file. It is read again when its path leads to another file than last time, or when the file has changed:
 * Kubernetes replaces a link in the path, and an editor renames a new file over the old one. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/directory/directory_impl.h"

enum rdt_status directory_read_file(struct directory_reading *reading, struct rdt_error *err)
{
    uint64_t now[6] = {0};
    struct stat st;

    _Static_assert(sizeof now == sizeof reading->stamp, "the stamp of a file");
    if (stat(reading->argument, &st) < 0)
        return rdt_error_sys(err, errno, "cannot open the nodes file %s", reading->argument);
    now[0] = st.st_dev;
    now[1] = st.st_ino;
    now[2] = (uint64_t)st.st_size;
    now[3] = (uint64_t)st.st_mtim.tv_sec;
    now[4] = (uint64_t)st.st_mtim.tv_nsec;
    now[5] = (uint64_t)st.st_ctim.tv_sec * 1000000000u + (uint64_t)st.st_ctim.tv_nsec;
    reading->unchanged = memcmp(now, reading->stamp, sizeof now) == 0;
    if (reading->unchanged)
        return RDT_OK;
    memcpy(reading->stamp, now, sizeof now);
    return options_read_nodes(reading->argument, &reading->nodes, err);
}
