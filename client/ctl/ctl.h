/* rdtctl's own frame: what every subcommand gets and how it answers. Owns the options that all share, the connection and the
 * exit codes; knows no subcommand. A new one is a file client/ctl/ctl_<name>.c and a row of the table in rdtctl.c. */
#ifndef CLIENT_CTL_H
#define CLIENT_CTL_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "messages.h"
#include "client/rdt.h"

#define CTL_DEFAULT_TIMEOUT_NS (INT64_C(10) * 1000000000)

enum ctl_exit {
    CTL_OK = 0,
    CTL_FAILED = 1, /* the daemon, or a file, refused */
    CTL_USAGE = 2,
    CTL_NO_DAEMON = 3, /* it cannot be reached, or is gone */
    CTL_TIMED_OUT = 4,
    CTL_GO = -1, /* of ctl_parse: no end yet, run the subcommand */
};

struct ctl;

struct ctl_command {
    const char *name;
    int (*run)(struct ctl *ctl, int argc, char **argv); /* argv[0] is the subcommand; returns enum ctl_exit */
    const char *arguments;                              /* for the usage line: "REF -o FILE" */
    const char *help;                                   /* one line */
    const char *more;                                   /* further paragraphs of --help, or NULL */
};

struct ctl {                           /* one run of one subcommand */
    const struct ctl_command *command; /* NULL before it is known */
    const char *socket;                /* NULL: librdt's default */
    int64_t started_ns;                /* when the program started; --timeout counts from then */
    int64_t timeout_ns;                /* valid if timeout_given; RDT_FOREVER is possible */
    bool timeout_given, json, quiet;
    rdt *rdt; /* NULL until ctl_connect; main closes it */
};

/* ---- options ---- */

enum ctl_option_kind {
    CTL_FLAG,     /* bool */
    CTL_TEXT,     /* const char *, never empty */
    CTL_NUMBER,   /* uint64_t */
    CTL_DURATION, /* int64_t, ns; RDT_FOREVER for "forever" */
    CTL_CHOICE,   /* int: which of `argument`'s words, from 0; the words are "a|b|c" */
};

struct ctl_option {
    char letter; /* 0: long only */
    const char *name;
    enum ctl_option_kind kind;
    const char *argument; /* "FILE"; NULL for CTL_FLAG */
    const char *help;
    void *value_p; /* written when the option is given */
};

/* Takes the shared options and `options` (ended by a row without a name; NULL: none) out of argv, which it reorders, checks
 * that min_operands..max_operands words are left and points *operands_p at them; *count_p, may be NULL, is how many. Returns
 * CTL_GO, CTL_OK after --help, or CTL_USAGE, having said why. */
int ctl_parse(struct ctl *ctl, const struct ctl_option *options, int argc, char **argv, int min_operands, int max_operands,
              char ***operands_p, int *count_p);

/* The options before the subcommand: stops at the first other word, *next_p. *help_p, *version_p: that was asked for. */
int ctl_parse_shared(struct ctl *ctl, int argc, char **argv, int *next_p, bool *help_p, bool *version_p);

void ctl_print_shared_options(FILE *out);

/* "250ms", "30s", "5m", "2h", "1.5" (seconds), "forever". */
bool ctl_parse_duration(const char *text, int64_t *ns_p);

/* "rdtctl: <subcommand>: <what>" and how to get help, on stderr; returns CTL_USAGE. */
int ctl_usage_error(struct ctl *ctl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- answers ---- */

/* Reports a failure once: "rdtctl: fetch: TIMED_OUT: ..." on stderr, under --json also an object on stdout. Returns the exit
 * code that belongs to err->status. */
int ctl_fail(struct ctl *ctl, const struct rdt_error *err);

/* Prints the value on stdout and takes it. */
int ctl_print_json(json_t *take_value);

/* Output that nobody received is a failure: flushes stdout and returns `code`, or CTL_FAILED with a line on stderr. */
int ctl_flush(int code);

/* ---- the daemon ---- */

/* What is left of --timeout, at least 1 ns; RDT_FOREVER for "forever"; unless_given_ns if it was not given. */
int64_t ctl_timeout(const struct ctl *ctl, int64_t unless_given_ns);

/* Connects unless it is already; ctl->rdt is valid afterwards. */
enum rdt_status ctl_connect(struct ctl *ctl, struct rdt_error *err);

/* One request and its reply, within --timeout or 10 s; _within: within timeout_ns. *reply_p is the caller's: ctl_reply_free. */
enum rdt_status ctl_call(struct ctl *ctl, enum rdt_message type, const ProtobufCMessage *request,
                         ProtobufCMessage **reply_p, struct rdt_error *err);
enum rdt_status ctl_call_within(struct ctl *ctl, int64_t timeout_ns, enum rdt_message type, const ProtobufCMessage *request,
                                ProtobufCMessage **reply_p,
                                struct rdt_error *err);
void ctl_reply_free(ProtobufCMessage *reply);

/* A ref from the command line; RDT_INVALID says what is wrong with it. */
enum rdt_status ctl_ref(const char *text, struct rdt_ref *ref_p, struct rdt_error *err);

struct ctl_name {            /* what commands take in place of a REF, from their options */
    const char *name, *node, *owner; /* NULL: not given */
    uint64_t after;                  /* CTL_NO_VERSION: not given */
};
#define CTL_NO_VERSION UINT64_MAX
#define CTL_NAME_INIT            \
    {                            \
        .after = CTL_NO_VERSION, \
    }

/* What REF (NULL: not given) or the options mean. With an owner it connects. CTL_GO, CTL_USAGE, or the error's code. */
int ctl_ref_or_name(struct ctl *ctl, const char *text, const struct ctl_name *name, struct rdt_ref *ref_p);

/* The object's id out of a ref's text, for people; text itself if it is no ref. text_p has `size` bytes. */
const char *ctl_id_of(const char *text, char *text_p, size_t size);

/* A fd that is readable when SIGINT, SIGTERM or SIGHUP has come, which from now on do not end the process by themselves; -1
 * with err. The caller closes it. */
int ctl_signals(struct rdt_error *err);
bool ctl_signalled(int signals); /* does not block */

#endif
