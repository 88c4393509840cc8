/* SPDX-License-Identifier: Apache-2.0 */
/* fault_matrix [--rounds N] [--cell TEXT] [--sample] [--jobs N] [--seed N] [--list]: runs the cells of the fault matrix
 * whose name contains TEXT, N rounds each, each cell in its own process. --sample runs one place for each event and step,
 * chosen by the seed. --jobs limits how many cells run at the same time; cells that mostly wait may be twice as many.
 * Prints one line per cell. The exit status is 1 if a cell failed. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/actor.h"
#include "tests/support/fault_matrix.h"

#define MAX_JOBS 64
#define WAITING 2 /* so many cells that wait until silence is noticed use as much processor time as one other cell */

struct job {
    pid_t pid; /* 0: free */
    char name[96], log[160];
    int64_t start_ns;
    unsigned weight;
    struct fault_cell cell;
};

static unsigned rounds = 100, jobs = 2, load, passed, failed;
static uint64_t seed = 1;
static struct job running[MAX_JOBS * WAITING];
static char folder[] = "/tmp/rdt-faults.XXXXXX";

static int run_cell(struct actor *self, void *arg)
{
    struct job *job = arg;

    if (!freopen(job->log, "w", stdout) || dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
        return 1;
    fault_cell_run(&job->cell, rounds, seed);
    return 0;
}

static void show(const char *path)
{
    char line[512];
    FILE *file = fopen(path, "r");

    while (file && fgets(line, sizeof line, file))
        (void)printf("     | %s", line);
    if (file)
        (void)fclose(file);
}

static void finish(struct job *job, int status)
{
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;

    (void)printf("%-4s %-60s %u rounds, %.1f s\n", ok ? "ok" : "FAIL", job->name, rounds,
                 (double)(now_ns() - job->start_ns) / 1e9);
    if (!ok)
        show(job->log);
    (void)fflush(stdout);
    (void)unlink(job->log);
    *(ok ? &passed : &failed) += 1;
    job->pid = 0;
    load -= job->weight;
}

static void wait_for_one(void)
{
    int status;
    pid_t pid = waitpid(-1, &status, 0);

    for (unsigned i = 0; i < jobs * WAITING; i++)
        if (pid > 0 && running[i].pid == pid)
            finish(&running[i], status);
}

static struct job *free_job(unsigned weight)
{
    while (load + weight > jobs * WAITING)
        wait_for_one();
    for (unsigned i = 0;; i++)
        if (running[i].pid == 0)
            return &running[i];
}

static void start(const struct fault_cell *cell, const char *name)
{
    unsigned weight = fault_cell_waits(cell) ? 1 : WAITING;
    struct job *job = free_job(weight);
    struct actor actor;

    load += job->weight = weight;
    job->cell = *cell;
    job->start_ns = now_ns();
    (void)snprintf(job->name, sizeof job->name, "%s", name);
    (void)snprintf(job->log, sizeof job->log, "%s/%u-%u-%u.log", folder, cell->event, cell->step, cell->place);
    actor_start(&actor, run_cell, job);
    (void)close(actor.pidfd);
    job->pid = actor.pid;
}

static bool busy(void)
{
    return load > 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                            {"cell", required_argument, NULL, 'c'},
                                            {"jobs", required_argument, NULL, 'j'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"sample", no_argument, NULL, 'a'},
                                            {0}};
    const char *only = "";
    bool list = false, sample = false;
    unsigned skipped = 0;
    int option;

    while ((option = getopt_long(argc, argv, "r:c:j:s:la", options, NULL)) != -1) {
        switch (option) {
        case 'r':
            rounds = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'c':
            only = optarg;
            break;
        case 'j':
            jobs = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 's':
            seed = strtoull(optarg, NULL, 10);
            break;
        case 'l':
            list = true;
            break;
        case 'a':
            sample = true;
            break;
        default:
            return 2;
        }
    }
    if (jobs < 1 || jobs > MAX_JOBS || rounds < 1 || optind != argc)
        return (void)fprintf(stderr, "fault_matrix: --rounds from 1, --jobs 1 to %d, no arguments\n", MAX_JOBS), 2;
    if (!mkdtemp(folder) || setenv("TMPDIR", folder, 1) != 0)
        return perror(folder), 1;
    for (unsigned event = 0; event < FAULT_N_EVENTS; event++)
        for (unsigned step = 0; step < FAULT_N_STEPS; step++)
            for (unsigned k = 0, taken = 0; k < FAULT_N_PLACES && !(sample && taken); k++) {
                unsigned place = (unsigned)((seed + event + 3 * step + k) % FAULT_N_PLACES);
                struct fault_cell cell = {event, step, place};
                char name[96];
                fault_cell_name(&cell, name);
                if (!fault_cell_exists(&cell) || !strstr(name, only))
                    continue;
                taken++;
                if (list)
                    (void)puts(name);
                else if (fault_cell_needs_root(&cell) && geteuid() != 0)
                    skipped++;
                else
                    start(&cell, name);
            }
    while (busy())
        wait_for_one();
    (void)rmdir(folder);
    if (!list)
        (void)printf("%u cells passed, %u failed, %u rounds each; %u skipped: network namespaces need root\n", passed, failed,
                     rounds, skipped);
    return failed > 0;
}
