/* SPDX-License-Identifier: Apache-2.0 */
/* Files whose paths are in the configuration may lie on a file system that does not answer, as that of a lost NFS server. The
 * loop must not wait for it, and whoever runs the doctor wants to know of it. So a thread looks at them:
 *
 *   doctor_look ──► the thread: storage_dir, state_dir, the configuration, key and certificates ──► on_seen
 *        `───────── PATIENCE_NS has passed ──► on_seen, with the steps that are done; the thread ends when it can
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/owner_work.h"
#include "daemon/view/doctor/doctor.h"

#define PATIENCE_NS INT64_C(3000000000)
#define LOOKS_MAX 4u /* that have not come back: each has a thread */

struct look {
    struct work work;
    struct deadline patience;
    struct rpc *rpc;
    struct call *call; /* NULL: it has been answered, or has ended */
    void (*on_seen)(struct call *call, struct doctor_files *files);
    struct doctor_files files;
};

static void look_at_storage(struct doctor_files *files)
{
    const char *path = files->options->storage_dir;

    if (path[0] != '\0' && (stat(path, &files->storage) != 0 || statfs(path, &files->storage_fs) != 0))
        files->storage_errno = errno;
}

static void look_at_key(struct doctor_files *files)
{
    if (files->configuration.status != RDT_OK || !options_have_peers(&files->fresh))
        return;
    if (peers_check(&files->fresh, &files->peers) == RDT_OK)
        (void)peers_open_tls(&files->fresh, &files->key, NULL, &files->peers);
}

static void run(struct work *work)
{
    struct doctor_files *files = &container_of(work, struct look, work)->files;

    look_at_storage(files);
    atomic_store(&files->n_done, DOCTOR_STORAGE_DIR + 1);
    (void)node_check(files->options->state_dir, &files->state_dir);
    atomic_store(&files->n_done, DOCTOR_STATE_DIR + 1);
    (void)options_load_again(files->options, &files->fresh, &files->configuration);
    atomic_store(&files->n_done, DOCTOR_CONFIGURATION + 1);
    look_at_key(files);
    atomic_store(&files->n_done, DOCTOR_KEY + 1);
}

static void answer(struct look *look)
{
    struct call *call = look->call;

    deadline_unset(look->rpc->deadlines, &look->patience);
    look->call = NULL;
    if (call)
        look->on_seen(call, &look->files);
}

static void done(struct work *work)
{
    struct look *look = container_of(work, struct look, work);

    look->rpc->doctor.n_looks--;
    answer(look);
    options_fini(&look->files.fresh);
    peers_drop_key(look->files.key);
    free(look);
}

static void on_patience(struct deadline *deadline)
{
    answer(container_of(deadline, struct look, patience));
}

static void on_call_ends(struct call *call)
{
    struct look *look = call->waiting;

    look->call = NULL;
    deadline_unset(look->rpc->deadlines, &look->patience);
}

enum rdt_status doctor_look(struct call *call, void (*on_seen)(struct call *call, struct doctor_files *files),
                            struct rdt_error *err)
{
    struct rpc *rpc = call->rpc;
    struct look *look;
    enum rdt_status status;

    if (rpc->doctor.n_looks == LOOKS_MAX) {
        on_seen(call, NULL);
        return RDT_OK;
    }
    look = calloc(1, sizeof *look);
    if (!look)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the doctor");
    *look = (struct look){.work = {.run = run, .done = done}, .rpc = rpc, .call = call, .on_seen = on_seen};
    look->patience.on_passed = on_patience;
    look->files.options = rpc->options;
    look->files.since_ns = uv_hrtime();
    call->waiting = look;
    status = call_defer(call, -1, on_call_ends, err);
    if (status == RDT_OK && !deadline_set(rpc->deadlines, &look->patience, PATIENCE_NS))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the doctor");
    if (status != RDT_OK) {
        free(look);
        return status;
    }
    rpc->doctor.n_looks++;
    owner_work_submit(rpc->owner_work, &look->work, NULL, false);
    return RDT_OK;
}

bool doctor_has_seen(struct doctor *doctor, enum doctor_step step, const char *what)
{
    struct doctor_files *files = doctor->files;
    unsigned n_done = files ? atomic_load(&files->n_done) : 0;

    if (n_done > (unsigned)step)
        return true;
    if (files && n_done == (unsigned)step)
        doctor_find(doctor, FINDING_FAIL,
                    "Find out why its file system does not answer: a server that is away, or a failing disk.",
                    "%s has not answered for %llu s.", what, (unsigned long long)(uv_hrtime() - files->since_ns) / 1000000000);
    else
        doctor_find(doctor, FINDING_SKIP, "", "%s was not looked at, because a file system does not answer.", what);
    return false;
}
