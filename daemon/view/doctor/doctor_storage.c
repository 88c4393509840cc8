/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of stored objects: whether the daemon can still use it, how much room it has, and what failed there. */
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <unistd.h>

#include "daemon/persist/storage.h"
#include "daemon/view/doctor/doctor.h"
#include "proto/plain_text.h"

#define LITTLE_PERCENT 5u /* of the file system that is free */

/* File systems whose files other machines can change or lose, or which a reboot empties. */
static const char *unsuitable(long type)
{
    switch (type) {
    case TMPFS_MAGIC:
        return "tmpfs, which is memory: a reboot empties it";
    case NFS_SUPER_MAGIC:
        return "NFS, where other machines can change files, and where storing is as slow as the network";
    default:
        return NULL;
    }
}

static bool is_off(struct doctor *doctor)
{
    if (doctor->rpc->options->storage_dir[0] != '\0')
        return false;
    doctor_find(doctor, FINDING_OK, "", "storage_dir is empty, so no object outlasts a reboot of this node.");
    return true;
}

void doctor_storage(struct doctor *doctor)
{
    const char *path = doctor->rpc->options->storage_dir, *why;
    struct stat st;

    if (is_off(doctor) || !doctor_has_seen(doctor, DOCTOR_STORAGE_DIR, "storage_dir"))
        return;
    st = doctor->files->storage;
    if (doctor->files->storage_errno != 0) {
        doctor_find(doctor, FINDING_FAIL,
                    "Put the directory back: without it nothing can be stored, and the next start is empty.",
                    "The daemon cannot examine storage_dir %s: %s.", path, strerror(doctor->files->storage_errno));
        return;
    }
    why = unsuitable(doctor->files->storage_fs.f_type);
    if (st.st_uid != geteuid() || st.st_mode & 077 || !S_ISDIR(st.st_mode))
        doctor_find(doctor, FINDING_FAIL, "Run chown and chmod 0700: the next start would fail.",
                    "storage_dir %s belongs to uid %u and has mode %04o; it must be the daemon's (uid %u), mode 0700.", path,
                    st.st_uid, st.st_mode & 07777, geteuid());
    else if (why)
        doctor_find(doctor, FINDING_WARN, "Set storage_dir to a directory on a local disk.", "storage_dir %s is on %s.", path,
                    why);
    else
        doctor_find(doctor, FINDING_OK, "", "storage_dir %s is the daemon's own, on a local file system.", path);
}

void doctor_storage_room(struct doctor *doctor)
{
    const char *path = doctor->rpc->options->storage_dir;
    uint64_t used = doctor->rpc->objects->accounts->node.used[USAGE_STORED_BYTES],
             most = doctor->rpc->options->storage_max_bytes, left, all;
    struct statfs fs;

    if (is_off(doctor) || !doctor_has_seen(doctor, DOCTOR_STORAGE_DIR, "storage_dir"))
        return;
    fs = doctor->files->storage_fs;
    if (doctor->files->storage_errno != 0) {
        doctor_find(doctor, FINDING_FAIL, "Put the directory back.", "The daemon cannot examine storage_dir %s: %s.", path,
                    strerror(doctor->files->storage_errno));
        return;
    }
    left = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    all = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
    if (most > 0 && used > most / 10 * 8) /* the last eighth is not for everyone */
        doctor_find(doctor, FINDING_WARN, "Free stored objects (`rdtctl objects` shows them), or raise storage_max.",
                    "Stored objects use %" PRIu64 " of the %" PRIu64 " bytes of storage_max.", used, most);
    else if (left < all / 100 * LITTLE_PERCENT)
        doctor_find(doctor, FINDING_WARN, "Make room on that disk, or free stored objects (`rdtctl objects` shows them).",
                    "The file system of storage_dir has %" PRIu64 " of %" PRIu64 " bytes left; stored objects use %" PRIu64 ".",
                    left, all, used);
    else
        doctor_find(doctor, FINDING_OK, "", "Stored objects use %" PRIu64 " bytes, and %" PRIu64 " bytes are free there.", used,
                    left);
}

void doctor_storage_files(struct doctor *doctor)
{
    const struct storage *storage = doctor->rpc->storage;
    const Rdt__Pb__StatusReply *counts = storage->counts;

    if (is_off(doctor))
        return;
    if (counts->storage_bad_files > 0)
        doctor_find(doctor, FINDING_WARN, "The daemon's log names them and says why: repair or remove them.",
                    "%" PRIu64 " file%s in storage_dir could not be used at the start.", counts->storage_bad_files,
                    text_plural(counts->storage_bad_files));
    if (counts->storage_damaged > 0)
        doctor_find(doctor, FINDING_FAIL,
                    "The daemon's log names them. Examine the disk, put the objects again, and remove the files *.damaged.",
                    "%" PRIu64 " stored file%s had other bytes than those that were stored.", counts->storage_damaged,
                    text_plural(counts->storage_damaged));
    if (counts->storage_without_sums > 0)
        doctor_find(doctor, FINDING_OK, "",
                    "%" PRIu64 " restored files were written by an earlier rdtd and have no checksums: "
                    "what is stored anew has.",
                    counts->storage_without_sums);
    if (counts->stores_failed > 0)
        doctor_find(doctor, FINDING_WARN, "The daemon's log says why; store the objects again when there is room.",
                    "%" PRIu64 " objects or versions of names could not be stored since the start.", counts->stores_failed);
    if (counts->storage_bad_files == 0 && counts->stores_failed == 0 && counts->storage_damaged == 0)
        doctor_find(doctor, FINDING_OK, "",
                    "Stored: %" PRIu64 " object%s and %" PRIu64 " name%s; restored at the start: %" PRIu64 ".",
                    storage->n_objects, text_plural(storage->n_objects), storage->n_names, text_plural(storage->n_names),
                    counts->storage_restored);
}
