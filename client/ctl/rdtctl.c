/* rdtctl: what the daemon of this node holds and does, and put and fetch of files. The subcommands' table, nothing else. */
#include <stdio.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_progress.h"

/* One row makes a subcommand, its --help, its line in the overview and its completion. */
static const struct ctl_command commands[] = {
    {"status", ctl_status, "", "shows the daemon: version, address, memory, counters", NULL},
    {"ping", ctl_ping, "", "measures round trips to the daemon", "With --timeout each round trip gets that time."},
    {"objects", ctl_objects, "", "lists objects and what holds them", NULL},
    {"regions", ctl_regions, "", "lists the ranges of memory that the daemon knows", NULL},
    {"clients", ctl_clients, "", "lists connected actor processes", NULL},
    {"limits", ctl_limits, "", "shows what each user and client uses of each limit",
     "client_max_WHAT or owner_max_WHAT in section [limits] of the daemon's configuration sets a limit."},
    {"peers", ctl_peers, "", "lists other nodes and the links to them", NULL},
    {"backends", ctl_backends, "", "lists loaded plug-ins: memory kinds and transports", NULL},
    {"backend", ctl_backend, "load PATH [KEY=VALUE ...]|list|unload NAME", "loads a plug-in into the running daemon, or unloads one",
     "Only root and the daemon's own user may load and unload. The daemon refuses a file that others can write\n"
     "or replace, and refuses to unload a plug-in that is in use; the error says who uses it. A plug-in that\n"
     "was loaded here is gone when the daemon ends; backend_dir or `rdtd --backend` loads it at each start.\n"
     "KEY=VALUE are settings of the plug-in's own section and take precedence over the configuration. `list`\n"
     "does the same as `rdtctl backends`."},
    {"transfers", ctl_transfers, "", "lists running transfers and those that ended last", NULL},
    {"names", ctl_names, "", "lists published names and their newest versions", NULL},
    {"groups", ctl_groups, "[create NAME MEMBER MEMBER ... | destroy NAME]", "lists, creates or destroys groups of actors",
     "Some transports move bytes within a group only. Without arguments the groups are listed. A MEMBER is\n"
     "CLIENT, the name with which an actor of this node connected, or CLIENT@NODE of another node (HOST:PORT,\n"
     "a name in the nodes file, or a uuid), in rank order. MEMBER,DEVICE has its tensors on the device with\n"
     "that uuid (`rdtctl backends` shows it). create returns when all nodes of the members are ready."},
    {"broadcast", ctl_broadcast, "REF GROUP", "copies a snapshot to every other node of a group",
     "The copies serve fetches on their nodes. Only the object's owner may do it, on the object's node, and\n"
     "the object must be a snapshot (`rdtctl put --snapshot`). Returns when every copy is complete, or after\n"
     "--timeout (a minute). The first failure names its node; nodes whose copy is complete by then keep it."},
    {"watch", ctl_watch, "[KIND ...]", "prints changes in the daemon, one line each",
     "Ends when it is interrupted, after --count events, or after --timeout. KIND is objects, regions,\n"
     "clients, peers, backends, transfers, names, owners or groups; without one, all kinds are watched. If the\n"
     "output is read too slowly, events are lost, and a line says how many. With --json each line is one\n"
     "object: {\"sequence\": ..., \"what\": \"put\", \"object\": {...}}."},
    {"explain", ctl_explain, "REF|TRANSFER", "shows which path a transfer took, and why others were rejected",
     "TRANSFER is the number that `rdtctl fetch` and `rdtctl transfers` show. With a REF, its latest transfers\n"
     "are shown."},
    {"stat", ctl_stat, "REF|--name NAME", "shows one object: what it is and what keeps it",
     "With --name it shows the object of the name's newest version."},
    {"put", ctl_put, "FILE", "puts a safetensors or npy file as an object, while this command runs",
     "Reads the file into the daemon's memory, prints the object's ref, and stays in the foreground: the\n"
     "object is freed when the command ends (by SIGINT, SIGTERM or --for). The header of a safetensors file,\n"
     "at most 4 MiB, becomes the object's metadata. An npy file is one tensor, in the order that it has in the\n"
     "file."},
    {"fetch", ctl_fetch, "REF|--name NAME -o FILE", "fetches an object and writes it as a safetensors or npy file",
     "Waits until somebody puts the object, or publishes a version of the name above --after, and until its\n"
     "last byte has arrived; --timeout limits both together, and without it there is no limit. FILE appears\n"
     "complete or not at all, so it must be a regular file. A safetensors file of `rdtctl put` comes back byte\n"
     "for byte. The tensors of other objects are named \"0\", \"1\", ... unless their metadata is a safetensors\n"
     "header that fits them. If FILE ends in .npy it becomes an npy file, row-major: then the object must be\n"
     "one tensor of a dtype that numpy has."},
    {"wait", ctl_wait, "REF|--name NAME", "waits until an object is put, or a name has a version above --after",
     "Without --timeout it waits without end."},
    {"free", ctl_free, "REF", "drops the producer's hold, or with --force ends the object for later readers", NULL},
    {"publish", ctl_publish, "NAME REF", "makes an object the next version of a name",
     "The name lives on the object's node and holds the object until the next version or unpublish. Prints a\n"
     "ref of the name, which is valid on every node, and the version. `rdtctl put FILE --publish NAME` puts\n"
     "and publishes a file."},
    {"unpublish", ctl_unpublish, "NAME|REF", "ends a name; waits for its next version fail", NULL},
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
                 "A REF is the text that put prints (rdt:NODE/ID?...), or the id of an object of yours on this node.\n"
                 "`rdtctl COMMAND --help` describes a command.\n"
                 "Exit status: 0 success, 1 refused or failed, 2 wrong usage, 3 no daemon, 4 timed out.\n");
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
