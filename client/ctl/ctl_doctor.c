/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl doctor: checks the installation. The checks of the socket's path, and of what is the same for all processes of
 * this machine, are made here; the others are the daemon's (daemon/view/doctor/rpc_doctor.c), and are shown as it sends
 * them. */
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"
#include "doctor/doctor.h"
#include "rdt.pb-c.h"

static int status_of(const char *name)
{
    for (int i = 0; i < STATUSES; i++)
        if (strcmp(name, report_status_names[i]) == 0)
            return i;
    return SKIP;
}

/* ---- the path of the socket ---- */

static bool check_socket(struct report *report)
{
    static const char id[] = "RDT001", name[] = "socket";
    struct rdt_error err = {0};
    int64_t began_ns = ctl_now_ns();
    char took[CTL_HUMAN_BYTES];
    struct stat st;

    if (stat(report->path, &st) < 0) {
        report_find(report, id, name, FAIL,
                    "Start the daemon (systemctl start rdtd.socket), or name another socket with --socket or RDT_SOCKET.",
                    "There is no socket at %s: %s.", report->path, strerror(errno));
        return false;
    }
    report->owner = st.st_uid;
    if (!S_ISSOCK(st.st_mode)) {
        report_find(report, id, name, FAIL, "Name the daemon's socket with --socket or RDT_SOCKET.", "%s is not a socket.",
                    report->path);
        return false;
    }
    if (access(report->path, W_OK) < 0) {
        report_find(
            report, id, name, FAIL,
            "Join the socket's group, or change SocketMode= of rdtd.socket (without systemd: socket_mode in rdtd.conf).",
            "User %u may not connect to %s: its mode is %04o.", (unsigned)geteuid(), report->path, st.st_mode & 07777u);
        return false;
    }
    if (ctl_connect(report->ctl, &err) || rdt_ping(report->ctl->rdt, ctl_timeout(report->ctl, CTL_DEFAULT_TIMEOUT_NS), &err)) {
        if (err.status == RDT_DENIED)
            report_find(report, id, name, FAIL, "Ask who runs the daemon here; its log says which users it refuses.",
                        "No session at %s: %s.", report->path, err.msg);
        else
            report_find(report, id, name, FAIL, "Look into the daemon's log (journalctl -u rdtd), and restart it if it hangs.",
                        "The daemon does not answer: %s.", err.msg);
        return false;
    }
    report_find(report, id, name, OK, "", "The daemon answers at %s; connecting took %s.", report->path,
                ctl_human_duration(ctl_now_ns() - began_ns, took));
    return true;
}

/* Whoever may write to a folder of that path can put a socket of his own there. */
static void check_permissions(struct report *report)
{
    static const char id[] = "RDT002", name[] = "permissions";
    char real[PATH_MAX], *dir = realpath(report->path, real);
    struct stat st;

    if (!dir) {
        report_find(report, id, name, SKIP, "", "The folder of the socket cannot be checked: %s.", strerror(errno));
        return;
    }
    do {
        dir = dirname(dir);
        if (stat(dir, &st) < 0) {
            report_find(report, id, name, SKIP, "", "The folder %s cannot be checked: %s.", dir, strerror(errno));
            return;
        }
        if (st.st_mode & (S_IWGRP | S_IWOTH) && !(st.st_mode & S_ISVTX)) {
            report_find(report, id, name, FAIL, "Take the right to write from the group and from others (chmod go-w).",
                        "Other users may write to %s (mode %04o), so they can put a socket of their own in the daemon's place.",
                        dir, st.st_mode & 07777u);
            return;
        }
        if (st.st_uid != 0 && st.st_uid != report->owner && st.st_uid != geteuid()) {
            report_find(report, id, name, FAIL, "Give the folder to root or to the daemon's user.",
                        "The folder %s belongs to user %u, who can put a socket in the daemon's place.", dir,
                        (unsigned)st.st_uid);
            return;
        }
    } while (dir[1]);
    report_find(report, id, name, OK, "", "Only root, the daemon's user and this user can replace the socket.");
}

static void check_versions(struct report *report)
{
    static const char id[] = "RDT003", name[] = "versions";
    Rdt__Pb__Status request = RDT__PB__STATUS__INIT;
    const Rdt__Pb__StatusReply *status;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;

    if (ctl_call(report->ctl, RDT_MSG_STATUS, &request.base, &reply, &err)) {
        report_find(report, id, name, FAIL, "Look into the daemon's log (journalctl -u rdtd).",
                    "The daemon does not say its state: %s.", err.msg);
        return;
    }
    status = (const Rdt__Pb__StatusReply *)reply;
    if (strcmp(status->version, RDT_VERSION) != 0)
        report_find(report, id, name, WARN, "Restart the daemon if it was upgraded, and upgrade whichever is older.",
                    "The daemon has version %s, and this program and its library have %s.", status->version, RDT_VERSION);
    else
        report_find(report, id, name, OK, "", "The daemon and this program have version %s.", RDT_VERSION);
    if (strcmp(status->state, "drained") == 0)
        report_find(report, "RDT004", "state", WARN, "Stop it, or run `rdtctl drain --undo`.",
                    "The daemon is drained: it takes no new objects.");
    else if (strcmp(status->state, "serving") != 0)
        report_find(report, "RDT004", "state", WARN, "Wait for its end, and start it again.",
                    "The daemon is %s: it takes no new work.", status->state);
    else
        report_find(report, "RDT004", "state", OK, "", "The daemon serves its clients.");
    ctl_reply_free(reply);
}

static void check_clock(struct report *report)
{
    static const char id[] = "RDT005", name[] = "clock";
    struct timex now = {0};
    int state = adjtimex(&now);

    if (state < 0)
        report_find(report, id, name, SKIP, "", "The kernel does not say whether the clock is synchronised: %s.",
                    strerror(errno));
    else if (state == TIME_ERROR || now.status & STA_UNSYNC)
        report_find(
            report, id, name, WARN, "Run chrony, systemd-timesyncd or another NTP client on this machine.",
            "The clock is not synchronised, so times in logs of several nodes cannot be compared. Transfers do not need it.");
    else
        report_find(report, id, name, OK, "", "The clock is synchronised.");
}

static void check_daemon(struct report *report)
{
    Rdt__Pb__Doctor request = RDT__PB__DOCTOR__INIT;
    const Rdt__Pb__DoctorReply *answer;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;

    if (ctl_call(report->ctl, RDT_MSG_DOCTOR, &request.base, &reply, &err)) {
        report_find(report, "RDT009", "daemon", SKIP,
                    err.status == RDT_UNSUPPORTED ? "Restart the daemon with the version of this program."
                                                  : "Run the doctor again.",
                    "The daemon did not make its own checks: %s.", err.msg);
        return;
    }
    report_find(report, "RDT009", "daemon", OK, "", "The daemon has made its own checks.");
    answer = (const Rdt__Pb__DoctorReply *)reply;
    for (size_t i = 0; i < answer->n_checks; i++) {
        const Rdt__Pb__Check *check = answer->checks[i];
        report_add(report, check->id, check->name, status_of(check->status), check->sentence, check->remedy);
    }
    ctl_reply_free(reply);
}

/* ---- together ---- */

static int finish(struct report *report)
{
    const unsigned *n = report->n;
    int code = n[FAIL] ? 2 : n[WARN] ? 1 : n[SKIP] ? 3 : 0;

    if (report->rows) {
        int printed = ctl_print_json(json_pack("{s:s, s:i, s:i, s:i, s:i, s:o}", "status",
                                               report_status_names[n[FAIL]   ? FAIL
                                                                   : n[WARN] ? WARN
                                                                   : n[SKIP] ? SKIP
                                                                             : OK],
                                               "ok", (int)n[OK], "warn", (int)n[WARN], "fail", (int)n[FAIL], "skip",
                                               (int)n[SKIP], "checks", report->rows));
        return printed == CTL_OK ? code : 3;
    }
    if (!report->ctl->quiet)
        printf("\n%u ok, %u warning%s, %u failure%s, %u not checked\n", n[OK], n[WARN], n[WARN] == 1 ? "" : "s", n[FAIL],
               n[FAIL] == 1 ? "" : "s", n[SKIP]);
    return code;
}

int ctl_doctor(struct ctl *ctl, int argc, char **argv)
{
    const char *path;
    struct report report = {.ctl = ctl};
    bool reached;
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    path = ctl->socket ? ctl->socket : getenv("RDT_SOCKET");
    report.path = path && path[0] ? path : "/run/rdtd/rdtd.sock";
    report.rows = ctl->json ? json_array() : NULL;
    reached = check_socket(&report);
    check_permissions(&report);
    if (reached)
        check_versions(&report);
    check_clock(&report);
    if (reached)
        check_daemon(&report);
    else
        report_find(&report, "RDT009", "daemon", SKIP, "", "The daemon's own checks were not made, because it did not answer.");
    if (reached)
        doctor_gpus(&report, ctl, report.owner);
    return finish(&report);
}
