/* The subcommands: one function each, in ctl_<name>.c; rdtctl.c has the table. */
#ifndef CLIENT_CTL_COMMANDS_H
#define CLIENT_CTL_COMMANDS_H

struct ctl;

int ctl_status(struct ctl *ctl, int argc, char **argv);
int ctl_ping(struct ctl *ctl, int argc, char **argv);
int ctl_objects(struct ctl *ctl, int argc, char **argv);
int ctl_regions(struct ctl *ctl, int argc, char **argv);
int ctl_clients(struct ctl *ctl, int argc, char **argv);
int ctl_peers(struct ctl *ctl, int argc, char **argv);
int ctl_backends(struct ctl *ctl, int argc, char **argv);
int ctl_backend(struct ctl *ctl, int argc, char **argv);
int ctl_transfers(struct ctl *ctl, int argc, char **argv);
int ctl_explain(struct ctl *ctl, int argc, char **argv);
int ctl_stat(struct ctl *ctl, int argc, char **argv);
int ctl_put(struct ctl *ctl, int argc, char **argv);
int ctl_fetch(struct ctl *ctl, int argc, char **argv);
int ctl_wait(struct ctl *ctl, int argc, char **argv);
int ctl_free(struct ctl *ctl, int argc, char **argv);
int ctl_publish(struct ctl *ctl, int argc, char **argv);
int ctl_unpublish(struct ctl *ctl, int argc, char **argv);
int ctl_limits(struct ctl *ctl, int argc, char **argv);
int ctl_names(struct ctl *ctl, int argc, char **argv);
int ctl_list_groups(struct ctl *ctl); /* what `groups` alone does */
int ctl_broadcast(struct ctl *ctl, int argc, char **argv);
int ctl_groups(struct ctl *ctl, int argc, char **argv);
int ctl_watch(struct ctl *ctl, int argc, char **argv);

#endif
