/* rdtctl: what the daemon of this node holds and does, and put and fetch of files. The subcommands' table, nothing else. */
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_progress.h"

/* One row makes a subcommand, its --help, its line in the overview and its completion. */
static const struct ctl_command commands[] = {
    {"status", ctl_status, "", "the daemon: version, address, memory, counters", NULL},
    {"ping", ctl_ping, "", "round trips to the daemon", NULL},
    {"objects", ctl_objects, "", "objects and what holds them", NULL},
    {"regions", ctl_regions, "", "ranges of memory the daemon knows", NULL},
    {"clients", ctl_clients, "", "connected actor processes", NULL},
    {"limits", ctl_limits, "", "what each user and client uses of what is limited",
     "A limit is set by client_max_WHAT or owner_max_WHAT in the daemon's configuration, section [limits]."},
    {"peers", ctl_peers, "", "other nodes and the links to them", NULL},
    {"backends", ctl_backends, "", "loaded plug-ins: memory kinds and transports", NULL},
    {"backend", ctl_backend, "load PATH [KEY=VALUE ...]|list|unload NAME", "loads a plug-in into the running daemon, or takes one out",
     "For root and the daemon's own user. A file that others can write, or put another in its place, is refused; so is a plug-in\n"
     "that is in use, with who uses it. What is loaded so is gone with the daemon's end: backend_dir or `rdtd --backend` keep it.\n"
     "KEY=VALUE are settings of the plug-in's own section, before those of the configuration. `list` is what `rdtctl backends` shows."},
    {"transfers", ctl_transfers, "", "moves of objects, those that run and the latest that ended", NULL},
    {"names", ctl_names, "", "published names and their newest versions", NULL},
    {"groups", ctl_groups, "[create NAME MEMBER MEMBER ... | destroy NAME]", "groups that transports move bytes within",
     "Without arguments it lists them. MEMBER is CLIENT, an actor of this node by the name that it connected with, or CLIENT@NODE of\n"
     "another one (HOST:PORT, a name in the nodes file, or a uuid), in rank order; MEMBER,DEVICE is one whose tensors are on that device\n"
     "(its uuid, as in `rdtctl backends`). create returns when all their nodes are ready."},
    {"broadcast", ctl_broadcast, "REF GROUP", "gives every other node of a group a copy of a snapshot, which serves fetches there",
     "For the object's owner, on its node: put it with --snapshot. Returns when every copy is whole, at the latest after --timeout (a\n"
     "minute); the first failure names its node, and those that have their copy by then keep it."},
    {"watch", ctl_watch, "[KIND ...]", "what happens, one line each, until it is interrupted, --count or --timeout",
     "KIND is objects, regions, clients, peers, backends, transfers, names, owners or groups; without one it is all of them. Who reads too slowly is "
     "told how\n"
     "many events were lost. With --json each line is one object: {\"sequence\": ..., \"what\": \"put\", \"object\": {...}}."},
    {"explain", ctl_explain, "REF|TRANSFER", "which path a transfer took, which were rejected and why",
     "TRANSFER is the number that `rdtctl fetch` and `rdtctl transfers` show; with a REF, its latest transfers."},
    {"stat", ctl_stat, "REF|--name NAME", "one object: what it is and what still keeps it",
     "Of a name: the object of its newest version."},
    {"put", ctl_put, "FILE", "offers a safetensors or npy file as an object, while this command runs",
     "Reads the file into the daemon's memory, prints the object's ref and stays in the foreground: the connection is the\n"
     "lease, so the object is freed when the command ends (SIGINT, SIGTERM, or --for). A safetensors file's header travels\n"
     "as the object's metadata; it may have 4 MiB. An npy file is one tensor, in the order that it has in the file."},
    {"fetch", ctl_fetch, "REF|--name NAME -o FILE", "brings an object here and writes it as a safetensors or npy file",
     "Waits until somebody puts the object, or publishes a version of the name above --after, then until its last byte is "
     "here\n"
     "(both within --timeout; without it, for ever).\n"
     "FILE appears whole or not at all, so it is a regular file. A safetensors file that `rdtctl put` offered comes back byte\n"
     "for byte. Of other objects the tensors are named \"0\", \"1\", ... unless their metadata is a safetensors header that "
     "fits them.\n"
     "A FILE whose name ends in .npy becomes an npy file, row-major: the object must be one tensor of a dtype that numpy has."},
    {"wait", ctl_wait, "REF|--name NAME", "waits until an object is put, or a name has a version above --after",
     "Without --timeout it waits for ever."},
    {"free", ctl_free, "REF", "drops the producer's hold, or with --force the object for all later readers", NULL},
    {"publish", ctl_publish, "NAME REF", "makes an object the next version of a name",
     "The name is on the object's node and holds the object by itself, until the next version or unpublish. Prints the name's\n"
     "ref, which is good on every node, and the version. `rdtctl put FILE --publish NAME` does both for a file."},
    {"unpublish", ctl_unpublish, "NAME|REF", "ends a name: those who wait for its next version are told", NULL},
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static const struct ctl_command *find(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static void print_overview(FILE *out)
{
    fprintf(out, "usage: rdtctl COMMAND [arguments] [options]\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\noptions of every command:\n");
    ctl_print_shared_options(out);
    fprintf(out, "\n"
                 "A REF is the text that put prints (rdt:NODE/ID?...) or an id of your own on this node. `rdtctl COMMAND "
                 "--help` says more.\n"
                 "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon, 4 timed out.\n");
}

static int run(struct ctl *ctl, int argc, char **argv)
{
    bool help = false, version = false;
    char *help_argv[] = {NULL, "--help", NULL};
    int next, result = ctl_parse_shared(ctl, argc, argv, &next, &help, &version);

    if (result != CTL_GO)
        return result;
    if (version) {
        printf("rdtctl %s\n", RDT_VERSION);
        return CTL_OK;
    }
    if (!help && next < argc && strcmp(argv[next], "help") == 0) {
        help = true;
        next++;
    }
    if (help && next == argc) {
        print_overview(stdout);
        return CTL_OK;
    }
    if (next == argc) {
        print_overview(stderr);
        return CTL_USAGE;
    }
    ctl->command = find(argv[next]);
    if (!ctl->command)
        return ctl_usage_error(ctl, "unknown command '%s'", argv[next]);
    if (help) {
        help_argv[0] = argv[next];
        return ctl->command->run(ctl, 2, help_argv);
    }
    return ctl->command->run(ctl, argc - next, argv + next);
}

int main(int argc, char **argv)
{
    struct ctl ctl = {.started_ns = ctl_now_ns()};
    int code = run(&ctl, argc, argv);

    rdt_close(ctl.rdt);
    return ctl_flush(code);
}
