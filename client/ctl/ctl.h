/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands of rdtctl share: the options of every command, the connection, output and exit codes. This header knows
 * no subcommand. A new one is a file client/ctl/ctl_NAME.c and a row in ctl_commands.h.
 *
 * rdtctl is linked with librdt's objects and uses three things of theirs that rdt.h does not offer, because no other program
 * needs them:
 * - call (client/call.h) sends any request. --json prints whole replies, field by field, so a new field of a message is shown
 *   without a change of rdtctl; the structs of rdt.h and rdt_info.h would leave fields out.
 * - watch_next (client/watch.h) brings an event with its whole row, for the same reason.
 * - put_snapshot_of (client/put.h) turns the memory that a file was read into into the snapshot. rdt_put would copy it, so
 *   putting a file would need room for it twice.
 * Everything else goes through rdt.h. */
#ifndef CLIENT_CTL_H
#define CLIENT_CTL_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/rdt.h"
#include "messages.h"
#include "rdt.pb-c.h"

#define CTL_DEFAULT_TIMEOUT_NS (INT64_C(10) * 1000000000)

enum ctl_exit {
    CTL_OK = 0,
    CTL_FAILED = 1, /* the daemon refused the request, or a file could not be read or written */
    CTL_USAGE = 2,
    CTL_NO_DAEMON = 3, /* the daemon cannot be reached, or the connection to it is lost */
    CTL_TIMED_OUT = 4,
    CTL_GO = -1, /* no exit code: the command goes on */
};

struct ctl;

struct ctl_command {
    char name[16];
    int (*run)(struct ctl *ctl, int argc, char **argv); /* argv[0] is the subcommand; returns enum ctl_exit */
    const char *arguments;                              /* for the usage line: "REF -o FILE" */
    const char *help;                                   /* one line */
    const char *more;                                   /* further paragraphs of --help; NULL: none */
};

enum ctl_timeout {
    CTL_TIMEOUT_DEFAULT,
    CTL_TIMEOUT_GIVEN,
    CTL_NO_WAIT, /* --timeout 0: fetch, wait and watch do not wait for what is not there; for others it is the default */
};

struct ctl {                           /* one run of one subcommand */
    const struct ctl_command *command; /* NULL before it is known */
    const char *socket;                /* NULL: librdt's default */
    uint64_t daemon_uid;               /* 0: librdt's default */
    int64_t started_ns;                /* when the program started; --timeout counts from then */
    enum ctl_timeout timeout;
    int64_t timeout_ns; /* valid if timeout is CTL_TIMEOUT_GIVEN; RDT_FOREVER is possible */
    bool json, quiet;
    rdt *rdt; /* NULL until ctl_connect; main closes it */
};

struct timeline;

/* Adds the stages of this transfer, 0: of all, that the daemon remembers, in order. The caller ends the time line by
 * timeline_fini, also after an error. */
enum rdt_status ctl_stages(struct ctl *ctl, uint64_t transfer, struct timeline *timeline, struct rdt_error *err);

/* ---- options ---- */

enum ctl_option_kind {
    CTL_FLAG,     /* bool */
    CTL_TEXT,     /* const char *, never empty */
    CTL_NUMBER,   /* uint64_t */
    CTL_DURATION, /* int64_t, ns; RDT_FOREVER for "forever" */
    CTL_LIFETIME, /* the same, but not 0 */
    CTL_CHOICE,   /* int: the index of one of the words in `argument`, which is "a|b|c" */
};

struct ctl_option {
    char letter; /* 0: long only */
    const char *name;
    enum ctl_option_kind kind;
    const char *argument; /* "FILE"; NULL for CTL_FLAG */
    const char *help;
    void *value_p; /* written when the option is given */
};

/* Takes the shared options and `options` (ended by a row without a name; NULL: none) out of argv, which it reorders. Checks
 * that min_operands to max_operands words are left, and points *operands_p to them; *count_p, may be NULL, is their number.
 * Returns CTL_GO, CTL_OK after --help, or CTL_USAGE after printing the error. */
int ctl_parse(struct ctl *ctl, const struct ctl_option *options, int argc, char **argv, int min_operands, int max_operands,
              char ***operands_p, int *count_p);

/* Parses the options before the subcommand. *next_p is the index of the first other word. *help_p and *version_p say whether
 * --help and --version were given. Returns as ctl_parse. */
int ctl_parse_shared(struct ctl *ctl, int argc, char **argv, int *next_p, bool *help_p, bool *version_p);

void ctl_print_shared_options(FILE *out);

/* Prints "rdtctl: SUBCOMMAND: INVALID: TEXT" and how to get help on stderr. Returns CTL_USAGE. */
int ctl_usage_error(struct ctl *ctl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- output ---- */

/* Prints the error as "rdtctl: fetch: TIMED_OUT: ..." on stderr, and with --json also as an object on stdout. Returns the exit
 * code for err->status. */
int ctl_fail(struct ctl *ctl, const struct rdt_error *err);

/* Prints the value on stdout. NULL means that there was no memory for it. Returns CTL_OK, or CTL_FAILED after printing why. */
int ctl_print_json(json_t *take_value);

/* Flushes stdout. Returns `code`, or CTL_FAILED if the output could not be written, after printing why on stderr. */
int ctl_flush(int code);

/* ---- the daemon ---- */

/* Returns what is left of --timeout, at least 1 ns; RDT_FOREVER for "forever"; unless_given_ns if it was not given. */
int64_t ctl_timeout(const struct ctl *ctl, int64_t unless_given_ns);

/* Connects, unless ctl->rdt is connected already. DISCONNECTED: there is no daemon. */
enum rdt_status ctl_connect(struct ctl *ctl, struct rdt_error *err);

/* Sends one request, after connecting if necessary, and waits for its reply until --timeout, or 10 s without it; _within waits
 * until timeout_ns. The caller frees *reply_p by ctl_reply_free. */
enum rdt_status ctl_call(struct ctl *ctl, enum rdt_message type, const ProtobufCMessage *request, ProtobufCMessage **reply_p,
                         struct rdt_error *err);
enum rdt_status ctl_call_within(struct ctl *ctl, int64_t timeout_ns, enum rdt_message type, const ProtobufCMessage *request,
                                ProtobufCMessage **reply_p, struct rdt_error *err);
void ctl_reply_free(ProtobufCMessage *reply);

/* Fetches the page of a list that `request` asks for, and makes it ask for the next page; request->after is 0 after the last
 * one. The caller frees *page_p by ctl_reply_free. */
enum rdt_status ctl_page(struct ctl *ctl, int64_t timeout_ns, Rdt__Pb__List *request, Rdt__Pb__ListReply **page_p,
                         struct rdt_error *err);

/* Sends the request, and shows its reply: by `print`, or with --json as it is. Returns the exit code. */
int ctl_show(struct ctl *ctl, enum rdt_message type, const ProtobufCMessage *request,
             int (*print)(struct ctl *ctl, const ProtobufCMessage *reply));

/* Reads a REF of the command line. Returns CTL_GO, or CTL_USAGE after printing what is wrong with it. */
int ctl_ref(struct ctl *ctl, const char *text, struct rdt_ref *ref_p);

/* Makes the ref of an id, without a generation, the ref of the object that it means now: the one that has the id, else the
 * newest one of this user on this node that was freed and that somebody still holds. NOT_FOUND: there is neither. */
enum rdt_status ctl_object_of(struct ctl *ctl, struct rdt_ref *ref, struct rdt_error *err);

/* Prints, after the label, why the memory of the object's producer is not shared; nothing if it is. */
void ctl_print_refusal(const Rdt__Pb__ObjectInfo *object, const char *label);

/* Calls `each` for each fetch, wait and hold that waits for this object or name, or, if wanted is NULL, for any name, because
 * nobody has put or published it: with the ref, and with who waits and for what, as in "client 7 has waited for 3.0 s
 * (transfer 12)" and "for somebody to put it". */
typedef void (*ctl_on_awaited)(void *arg, const char *ref, const char *who, const char *waits);
enum rdt_status ctl_awaited(struct ctl *ctl, const struct rdt_ref *wanted, ctl_on_awaited each, void *arg,
                            struct rdt_error *err);

/* Reads the number of a transfer or a client. False: the word does not consist of digits alone, so it is a REF. */
bool ctl_transfer(const char *text, uint64_t *number_p);

struct ctl_name {                    /* options that give a name in place of a REF */
    const char *name, *node, *owner; /* NULL: not given */
    uint64_t after;                  /* CTL_NO_VERSION: not given */
};
#define CTL_NO_VERSION UINT64_MAX
#define CTL_NAME_INIT            \
    {                            \
        .after = CTL_NO_VERSION, \
    }

/* Their rows in a table of options. */
/* clang-format off */
#define CTL_NAME_OPTIONS(ctl_name, help) \
    {0, "name", CTL_TEXT, "NAME", help, &(ctl_name).name}, \
    {0, "node", CTL_TEXT, "ADDRESS", "the name's node: HOST:PORT or a name in the nodes file (the one that has it)", \
     &(ctl_name).node}, \
    {0, "owner", CTL_TEXT, "USER", "the name's owner: a login name or a uid (the caller)", &(ctl_name).owner}
#define CTL_AFTER_OPTION(ctl_name) \
    {0, "after", CTL_NUMBER, "N", "with --name: wait for a version above N (0)", &(ctl_name).after}
/* clang-format on */

/* Makes a ref of a REF (NULL: none is given) or of the options. Connects if an owner is given. Returns CTL_GO, or CTL_USAGE or
 * the error's exit code after printing what is wrong. */
int ctl_ref_or_name(struct ctl *ctl, const char *text, const struct ctl_name *name, struct rdt_ref *ref_p);

/* Writes the object's id of a ref's text to text_p [size] for people; the text itself if it is no ref. Returns text_p. */
const char *ctl_id_of(const char *text, char *text_p, size_t size);

/* Returns an fd that is readable after SIGINT, SIGTERM or SIGHUP, which no longer end the process by themselves. The caller
 * closes it. -1 with err. */
int ctl_signals(struct rdt_error *err);
bool ctl_signalled(int signals); /* does not block */

#endif
