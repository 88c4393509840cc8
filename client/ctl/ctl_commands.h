/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands. Each row makes one: its function ctl_NAME in ctl_NAME.c, its --help, its line in the overview and its
 * completion. Where NAME has an underscore, users write a hyphen. */
#ifndef CLIENT_CTL_COMMANDS_H
#define CLIENT_CTL_COMMANDS_H

struct ctl;

#ifdef RDT_HAVE_NCURSES
#define CTL_TOP(X)                                                                                                       \
    X(top, "", "shows clients, transfers and links by rate, and refreshes the view",                                     \
      "Keys: r sorts by rate, t by total, n by name; q quits. If the output is no terminal, or with --json, it prints\n" \
      "one table after --interval and ends. Sessions other than root's and the daemon's own user's see clients and\n"    \
      "transfers of their own user only.")
#else
#define CTL_TOP(X)
#endif

/* X(name, arguments, help, more); the last three are as in struct ctl_command. */
#define CTL_COMMAND_MAP(X)                                                                                                     \
    X(status, "", "shows the daemon: version, address, memory, counters", NULL)                                                \
    X(ping, "", "measures round trips to the daemon", "With --timeout each round trip gets that time.")                        \
    X(doctor, "", "checks the installation, and says what to do about each finding",                                           \
      "Each line has a status (ok, warn, fail, or skip for a check that could not be made), an id that never\n"                \
      "changes, a sentence, and below it the remedy. rdtctl(1) lists the ids. --quiet leaves out what is ok. The\n"            \
      "exit status is 0 if all is ok, 1 after warnings, 2 after failures, and 3 if a check could not be made and\n"            \
      "nothing was found. Sessions other than root's and the daemon's own user's see the limits and transfers of\n"            \
      "their user only.")                                                                                                      \
    X(metrics, "", "prints counters, gauges and histograms for Prometheus",                                                    \
      "The format prometheus is what node_exporter's textfile collector reads. Sessions other than root's and the\n"           \
      "daemon's own user's see the usage of their own user only.")                                                             \
    CTL_TOP(X)                                                                                                                 \
    X(objects, "", "lists objects and what holds them", NULL)                                                                  \
    X(regions, "", "lists the ranges of memory that the daemon knows", NULL)                                                   \
    X(clients, "[end CLIENT]", "lists connected actor processes, or ends the session of one",                                  \
      "CLIENT is the number that the list shows. What the client put and holds ends as if its process had ended; the\n"        \
      "process itself goes on, and its calls fail with DISCONNECTED. Users may end their own clients, and root and\n"          \
      "the daemon's own user may end all.")                                                                                    \
    X(limits, "", "shows what each user and client uses of each limit",                                                        \
      "client_max_WHAT or owner_max_WHAT in section [limits] of the daemon's configuration sets a limit.")                     \
    X(peers, "", "lists other nodes and the links to them", NULL)                                                              \
    X(backends, "", "lists loaded plug-ins: memory kinds and transports", NULL)                                                \
    X(backend, "load PATH [KEY=VALUE ...]|list|unload NAME", "loads a plug-in into the running daemon, or unloads one",        \
      "Only root and the daemon's own user may load and unload. The daemon refuses a file that others can write\n"             \
      "or replace, and refuses to unload a plug-in that is in use; the error says who uses it. A plug-in that\n"               \
      "was loaded here is gone when the daemon ends; backend_dir or `rdtd --backend` loads it at each start.\n"                \
      "KEY=VALUE are settings of the plug-in's own section and take precedence over the configuration. `list`\n"               \
      "does the same as `rdtctl backends`.")                                                                                   \
    X(log_level, "[error|warn|info|debug|trace]", "shows or changes what the running daemon logs",                             \
      "The level lasts until the next change, or until the daemon ends; the next start takes log_level from\n"                 \
      "rdtd.conf. Only root and the daemon's own user may ask.")                                                               \
    X(config, "[KEY|SECTION]", "shows the configuration that is in force, and where each value comes from",                    \
      "FROM is the line of the file, the environment variable or the flag that has set the value. Where a value leaves\n"      \
      "it to the daemon, the number that it uses is shown. Only root and the daemon's own user may ask.")                      \
    X(reload, "", "makes the running daemon read its configuration again",                                                     \
      "Prints each value that differs. Limits, the log level, the nodes and the key change at once; values that\n"             \
      "take effect at the next start are marked (rdtd.conf(5) lists both). If anything in the configuration is\n"              \
      "wrong, nothing changes. Only root and the daemon's own user may do it.")                                                \
    X(perf, "HOST:PORT|--serve PORT", "measures how fast objects come from another node",                                      \
      "Run `rdtctl perf --serve PORT` on the other node first, and open that port. Fetches objects of 4 KiB, 64 KiB\n"         \
      "and 64 MiB from there by each transport that both nodes have, into memory that is warm, and the same bytes\n"           \
      "by a plain TCP socket, and prints medians. --serve answers whoever connects, one at a time, until it is\n"              \
      "interrupted; everybody may fetch its objects, which contain zeros.")                                                    \
    X(drain, "", "lets the daemon run out of work before it is stopped",                                                       \
      "From now on puts, publishes, groups and broadcasts fail with BUSY, and everything else goes on. Returns when\n"         \
      "no transfer runs and a stop would lose no object, because all that are left survive a restart; or after\n"              \
      "--timeout (30 s; exit status 4), and says what is left. --undo ends the draining. Only root and the\n"                  \
      "daemon's own user may do it.")                                                                                          \
    X(scrub, "", "compares all stored files with their checksums",                                                             \
      "The daemon reads each file in storage_dir from the disk, while it serves everybody. A file whose bytes have\n"          \
      "changed gets the end .damaged; if its object is in memory, it is written again, otherwise fetches of it fail\n"         \
      "with DAMAGED. The exit status is 1 if a file is damaged or could not be read. --timeout ends it early. Only\n"          \
      "root and the daemon's own user may ask.")                                                                               \
    X(trace, "[TRANSFER|REF] -o FILE | --merge FILE FILE ... -o FILE", "writes a time line of transfers",                      \
      "The daemon always remembers the latest 8192 moments when a transfer entered one of its stages. The file is\n"           \
      "Chrome's JSON, which the viewers at ui.perfetto.dev and chrome://tracing open. With --merge, files of\n"                \
      "several nodes become one, in the time of the first node; their daemons know from their pings how their\n"               \
      "clocks differ. Transfers of one object are joined by arrows.\n"                                                         \
      "Sessions other than root's and the daemon's own user's see transfers of their own user only.")                          \
    X(cache, "", "shows what users have in the cache of evictable objects, or empties it",                                     \
      "IDLE is the part of BYTES that could be evicted now, because nobody holds its objects. HITS and MISSES count\n"         \
      "ids that look-ups and fetches asked for. The counters of a user begin again when nothing of that user is left there.\n" \
      "Sessions other than root's and the daemon's own user's see their own user's.")                                          \
    X(transfers, "", "lists running transfers and those that ended last", NULL)                                                \
    X(names, "", "lists published names and their newest versions", NULL)                                                      \
    X(followers, "", "lists who follows which name, and how far behind each follower is",                                      \
      "For programs that follow a name (rdt_follow.h). COMMITTED is the version that the program has copied, PREPARED\n"       \
      "one that is whole on this node, NEWEST what the daemon knows of, LAG their difference, and FOR since when.\n"           \
      "KEPT is the memory of the versions that the daemon has for all followers of the name and user together.\n"              \
      "Sessions other than root's and the daemon's own user's see their own user's.")                                          \
    X(nodes, "", "lists the nodes of the cluster, the sources that name them, and their links",                                \
      "SOURCE says where a node is known from: file, dns and etcd are the options nodes, nodes_dns and\n"                      \
      "etcd_endpoints; met is a node that has connected or that a ref named; self is this one. LISTED is the age\n"            \
      "of that list.")                                                                                                         \
    X(shards, "NAME|REF", "lists which part of a version has which box of which tensor, and what is missing",                  \
      "For names whose versions consist of many objects (rdt_publish_part). Shows the newest complete version,\n"              \
      "the steps that are not complete with the ranks that they lack, and why the last one failed. With --json, a\n"           \
      "version whose list of tensors is longer than 4 MiB has only its parts.")                                                \
    X(groups, "[create NAME MEMBER MEMBER ... | destroy NAME]", "lists, creates or destroys groups of actors",                 \
      "Some transports move bytes within a group only. Without arguments the groups are listed. A MEMBER is\n"                 \
      "CLIENT, the name with which an actor of this node connected, or CLIENT@NODE of another node (HOST:PORT,\n"              \
      "a name in the nodes file, or a uuid), in rank order. MEMBER,DEVICE has its tensors on the device with\n"                \
      "that uuid (`rdtctl backends` shows it). create returns when all nodes of the members are ready.")                       \
    X(broadcast, "REF GROUP", "copies a snapshot to every other node of a group",                                              \
      "The replicas serve fetches on their nodes. Only the object's owner may do it, on the object's node, and\n"              \
      "the object must be a snapshot (`rdtctl put --snapshot`). Returns when every replica is complete, or after\n"            \
      "--timeout (a minute). The first failure names its node; nodes whose replica is complete by then keep it.")              \
    X(watch, "[KIND ...]", "prints changes in the daemon, one line each",                                                      \
      "Ends when it is interrupted, after --count events, or after --timeout. KIND is objects, regions,\n"                     \
      "clients, peers, backends, transfers, names, owners or groups; without one, all kinds are watched. If the\n"             \
      "output is read too slowly, events are lost, and a line says how many. With --json each line is one\n"                   \
      "object: {\"sequence\": ..., \"what\": \"put\", \"object\": {...}}.")                                                    \
    X(explain, "REF|TRANSFER", "shows which path a transfer took, and why others were rejected",                               \
      "TRANSFER is the number that `rdtctl fetch` and `rdtctl transfers` show. With a REF, its latest transfers\n"             \
      "are shown.")                                                                                                            \
    X(stat, "REF|--name NAME", "shows one object: what it is and who holds it",                                                \
      "With --name it shows the object of the name's newest version.")                                                         \
    X(put, "FILE", "puts a safetensors file as an object, while this command runs",                                            \
      "Reads the file into the daemon's memory, prints the object's ref, and stays in the foreground: the\n"                   \
      "object is freed when the command ends (by SIGINT, SIGTERM or --for). The header of the file, at most\n"                 \
      "8 MiB, becomes the object's metadata.")                                                                                 \
    X(fetch, "REF|--name NAME -o FILE", "fetches an object and writes it as a safetensors file",                               \
      "Waits until somebody puts the object, or publishes a version of the name above --after, and until its\n"                \
      "last byte has arrived; --timeout limits both together, and without it there is no limit. FILE appears\n"                \
      "complete or not at all, so it must be a regular file. A safetensors file of `rdtctl put` comes back byte\n"             \
      "for byte. The tensors of other objects are named \"0\", \"1\", ... unless their metadata is a safetensors\n"            \
      "header that fits them.")                                                                                                \
    X(wait, "REF|--name NAME", "waits until an object is put, or a name has a version above --after",                          \
      "Without --timeout it waits for ever.")                                                                                  \
    X(exists, "NAME|REF ...", "says which names and objects could be fetched now",                                             \
      "A NAME is looked for at all nodes of the node table. Exit status 1: one of them does not exist.")                       \
    X(free, "REF|--prefix TEXT", "drops the producer's hold, or with --force ends the object for later readers", NULL)         \
    X(publish, "NAME REF", "makes an object the next version of a name",                                                       \
      "The name lives on the object's node and holds the object until the next version or unpublish. Prints a\n"               \
      "ref of the name, which is valid on every node, and the version. `rdtctl put FILE --publish NAME` puts\n"                \
      "and publishes a file.")                                                                                                 \
    X(unpublish, "NAME|REF|--prefix TEXT", "removes a name; waits for its next version fail", NULL)

#define X(name, arguments, help, more) int ctl_##name(struct ctl *ctl, int argc, char **argv);
CTL_COMMAND_MAP(X)
#undef X

int ctl_list_groups(struct ctl *ctl);  /* what `groups` without arguments does */
int ctl_list_orphans(struct ctl *ctl); /* what `regions --orphaned` does */

#endif
