/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/config/options: the sources of settings, which of them wins, and the error for each fault. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/options.h"
#include "daemon/config/options_keys.h"

extern char **environ;

static char dir[] = "/tmp/rdt.XXXXXX";
static struct options options;
static struct rdt_error err;

static void setup(void)
{
    clearenv();
    cr_assert_not_null(mkdtemp(dir));
    cr_redirect_stderr();
}

static void teardown(void)
{
    char command[64];
    snprintf(command, sizeof command, "/bin/rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(options, .init = setup, .fini = teardown, .timeout = 20);

/* Writes a file of dir and gives its path, which the caller frees. */
static char *write_file(const char *name, const char *text)
{
    char *path;
    cr_assert_gt(asprintf(&path, "%s/%s", dir, name), 0);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

static enum rdt_status load_flags(const char *first, ...)
{
    char *argv[16] = {(char *)(uintptr_t) "rdtd"};
    int argc = 1;
    va_list args;
    va_start(args, first);
    for (const char *flag = first; flag; flag = va_arg(args, const char *))
        argv[argc++] = (char *)(uintptr_t)flag;
    va_end(args);
    err = (struct rdt_error){0};
    return options_load(argc, argv, &options, &err);
}
/* No file, whatever this machine has. */
#define LOAD(...) load_flags("--config=", __VA_ARGS__)

static enum rdt_status load_text(const char *text)
{
    char *path = write_file("rdtd.conf", text);
    enum rdt_status status = load_flags("--config", path, NULL);
    free(path);
    return status;
}

static void expect_fault(enum rdt_status status, const char *part)
{
    cr_assert_eq(status, RDT_INVALID, "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, part), "'%s' does not say '%s'", err.msg, part);
}

static char *read_all(FILE *file)
{
    char *text = calloc(1, 65536);
    rewind(file);
    cr_assert_lt(fread(text, 1, 65535, file), 65535);
    fclose(file);
    return text;
}

Test(options, defaults_are_as_documented)
{
    cr_assert_eq(LOAD(NULL), RDT_OK, "%s", err.msg);
    cr_assert_str_eq(options.socket, "/run/rdtd/rdtd.sock");
    cr_assert_str_eq(options.socket_mode, "0666");
    cr_assert_str_eq(options.tenant, "");
    cr_assert_str_eq(options.log_level, "info");
    cr_assert_str_eq(options.listen, "");
    cr_assert_str_eq(options.config, "");
    cr_assert_not(options.trusted_network || options.allow_overflow_uid);
    cr_assert_eq(options.memory_limit_bytes, 0);
    cr_assert_eq(options.max_clients, 4096);
    cr_assert_eq(options.max_objects, 1048576);
    cr_assert_eq(options.peer_timeout_ns, UINT64_C(5000000000));
    cr_assert_eq(options.chunk_bytes, 4u << 20);
    cr_assert_eq(options.busy_poll_ns, 200000);
    cr_assert_eq(options.stall_timeout_ns, UINT64_C(30000000000));
    cr_assert_null(options.extras);
    options_fini(&options);
}

Test(options, flag_beats_environment_beats_file)
{
    char *path = write_file("rdtd.conf", "[daemon]\nmax_clients = 1\nmax_objects = 1\nworker_threads = 1\n");
    setenv("RDTD_MAX_OBJECTS", "2", 1);
    setenv("RDTD_WORKER_THREADS", "2", 1);
    cr_assert_eq(load_flags("--config", path, "--worker-threads=3", NULL), RDT_OK, "%s", err.msg);
    cr_assert_eq(options.max_clients, 1);
    cr_assert_eq(options.max_objects, 2);
    cr_assert_eq(options.worker_threads, 3);
    cr_assert_str_eq(options.config, path);
    options_fini(&options);
    free(path);
}

Test(options, both_forms_of_flags)
{
    cr_assert_eq(LOAD("--memory-limit", "4G", "--socket=/tmp/a=b", "--trusted-network", "yes", "--check-config", NULL), RDT_OK,
                 "%s", err.msg);
    cr_assert_eq(options.memory_limit_bytes, UINT64_C(4) << 30);
    cr_assert_str_eq(options.socket, "/tmp/a=b");
    cr_assert(options.trusted_network && options.check_config && !options.dump_config);
    options_fini(&options);
}

Test(options, backends_add_up)
{
    char *path = write_file("rdtd.conf", "[daemon]\nbackends = /a.so\n");
    cr_assert_eq(load_flags("--backend", "/b.so", "--config", path, "--backend=/c.so", NULL), RDT_OK, "%s", err.msg);
    cr_assert_str_eq(options.backends, "/a.so,/b.so,/c.so");
    options_fini(&options);
    free(path);
}

Test(options, set_reaches_every_key)
{
    cr_assert_eq(
        LOAD("--set", "loopback.delay_ms=5", "--set=transfer.chunks_in_flight=8", "--set", "Loopback.delay_ms=6=7", NULL),
        RDT_OK, "%s", err.msg);
    cr_assert_eq(options.chunks_in_flight, 8);
    cr_assert_str_eq(options.extras->section, "loopback");
    cr_assert_str_eq(options.extras->key, "delay_ms");
    cr_assert_str_eq(options.extras->value, "6=7");
    cr_assert_null(options.extras->next);
    options_fini(&options);
    expect_fault(LOAD("--set", "transfer.chunks=8", NULL), "--set transfer.chunks=8: no such key");
    expect_fault(LOAD("--set", "nothing", NULL), "expected SECTION.KEY=VALUE");
}

Test(options, sections_of_backends_keep_their_lines)
{
    cr_assert_eq(load_text("[daemon]\n\n[ucx]\n# comment\n  tls = tcp\n"), RDT_OK, "%s", err.msg);
    cr_assert_str_eq(options.extras->section, "ucx");
    cr_assert_str_eq(options.extras->value, "tcp");
    cr_assert_eq(options.extras->line, 5);
    options_fini(&options);
}

static const struct {
    const char *text;
    uint64_t bytes;
} sizes[] = {
    {"0", 0},        {"1", 1},          {"1b", 1},          {"512k", 512 << 10},
    {"4M", 4 << 20}, {"4MiB", 4 << 20}, {"1 GiB", 1 << 30}, {"2T", UINT64_C(2) << 40},
};

Test(options, bytes_have_units)
{
    uint64_t bytes;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_assert_eq(option_parse_bytes(sizes[i].text, &bytes, &err), RDT_OK, "%s", sizes[i].text);
        cr_assert_eq(bytes, sizes[i].bytes, "%s", sizes[i].text);
    }
    static const char *const wrong[] = {
        "", "M", "-1", "+1", " 1", "1.5G", "1X", "4MB", "1 G x", "99999999999999999999", "99999999999T"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        cr_assert_eq(option_parse_bytes(wrong[i], &bytes, &err), RDT_INVALID, "%s", wrong[i]);
}

Test(options, durations_need_units)
{
    uint64_t ns;
    cr_assert_eq(option_parse_duration("500ms", &ns, &err), RDT_OK);
    cr_assert_eq(ns, 500000000);
    cr_assert_eq(option_parse_duration("2s", &ns, &err), RDT_OK);
    cr_assert_eq(ns, 2000000000);
    cr_assert_eq(option_parse_duration("1m", &ns, &err), RDT_OK);
    cr_assert_eq(ns, UINT64_C(60000000000));
    expect_fault(option_parse_duration("5", &ns, &err), "write 5ms, 5s or 5m");
    expect_fault(option_parse_duration("5 days", &ns, &err), "as in 500ms, 2s or 1m");
    expect_fault(option_parse_duration("99999999999h", &ns, &err), "as in");
}

Test(options, values_print_as_they_parse)
{
    char text[OPTION_TEXT_BYTES];
    static const uint64_t values[] = {0,         1, 1000, 1023, 1024, 1025, 4 << 20, UINT64_C(3) << 40, UINT64_C(90000000000),
                                      UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        uint64_t again = 1;
        option_format_bytes(values[i], text);
        cr_assert_eq(option_parse_bytes(text, &again, &err), RDT_OK, "%s", text);
        cr_assert_eq(again, values[i], "%s", text);
        option_format_duration(values[i], text);
        cr_assert_eq(option_parse_duration(text, &again, &err), RDT_OK, "%s", text);
        cr_assert_eq(again, values[i], "%s", text);
    }
}

Test(options, booleans)
{
    cr_assert_eq(LOAD("--trusted-network", "True", "--allow-overflow-uid=off", NULL), RDT_OK);
    cr_assert(options.trusted_network && !options.allow_overflow_uid);
    options_fini(&options);
    expect_fault(LOAD("--trusted-network", "maybe", NULL), "expected yes or no");
}

Test(options, ranges_are_named)
{
    expect_fault(LOAD("--max-clients", "0", NULL), "--max-clients 0: must be from 1 to 1000000");
    expect_fault(LOAD("--max-clients", "-1", NULL), "expected a whole number");
    expect_fault(LOAD("--chunk", "1", NULL), "must be from 4KiB to 1GiB");
    expect_fault(LOAD("--peer-timeout", "0s", NULL), "must be from 20ms to 1h");
    expect_fault(LOAD("--quiesce-grace", "2h", NULL), "must be from 0s to 1h");
    expect_fault(LOAD("--busy-poll", "2ms", NULL), "--busy-poll 2ms: must be from 0s to 1ms");
    expect_fault(LOAD("--busy-poll", "50", NULL), "--busy-poll 50: lacks a unit");
    expect_fault(LOAD("--busy-poll", "no", NULL), "--busy-poll no: expected a time");
    expect_fault(LOAD("--socket", "", NULL), "must not be empty");
    char path[200] = "";
    memset(path, 'a', sizeof path - 1);
    expect_fault(LOAD("--socket", path, NULL), "must not be longer than 107 bytes");
}

Test(options, unknown_names_get_suggestions)
{
    expect_fault(LOAD("--memroy-limit", "1G", NULL), "--memroy-limit: no such flag; did you mean --memory-limit?");
    expect_fault(LOAD("--completely-different", NULL), "no such flag");
    cr_assert_null(strstr(err.msg, "did you mean"));
    expect_fault(LOAD("--max-clients", NULL), "needs a value");
    expect_fault(LOAD("--check-config=yes", NULL), "takes no value");
    expect_fault(LOAD("file", NULL), "file: expected a flag");
    expect_fault(load_text("[daemon]\nsokcet = /a\n"), "rdtd.conf:2: [daemon] sokcet = /a: no such key; did you mean socket?");
    expect_fault(load_text("[daemon]\nlisten = 127.0.0.1:1\n"), "belongs in section [network]");
}

Test(options, removed_key_says_what_to_do_instead)
{
    expect_fault(load_text("[transfer]\nsealed_max = 4MiB\n"),
                 "rdtd.conf:2: [transfer] sealed_max = 4MiB: it was removed: delete it");
    expect_fault(LOAD("--sealed-max", "0", NULL), "--sealed-max: it was removed: delete it");
    expect_fault(LOAD("--set", "transfer.sealed_max=0", NULL), "--set transfer.sealed_max=0: it was removed: delete it");
}

Test(options, environment_faults_name_the_variable)
{
    setenv("RDTD_MAX_CLIENTS", "many", 1);
    expect_fault(LOAD(NULL), "environment: RDTD_MAX_CLIENTS=many: expected a whole number");
}

/* Kubernetes describes services in the environment of every pod. */
Test(options, foreign_variables_are_ignored)
{
    setenv("RDTD_PORT_7411_TCP_ADDR", "10.0.0.1", 1);
    setenv("RDTD_SERVICE_HOST", "10.0.0.1", 1);
    cr_assert_eq(LOAD(NULL), RDT_OK);
    options_fini(&options);
}

Test(options, file_faults_name_the_line)
{
    expect_fault(load_text("[daemon\n"), "rdtd.conf:1: expected [section]");
    expect_fault(load_text("[daemon]\n\nnonsense\n"), "rdtd.conf:3: expected [section]");
    expect_fault(load_text("socket = /a\n"), "rdtd.conf:1: 'socket' is above the first [section]");
    expect_fault(load_text("[daemon]\nsocket = /a\nsocket = /b\n"), "rdtd.conf:3: [daemon] socket is already set in line 2");
    expect_fault(load_text("[network]\n  peer_timeout = 3\n"), "rdtd.conf:2: [network] peer_timeout = 3: lacks a unit");
    char *text = calloc(1, 20000);
    strcpy(text, "[daemon]\nsocket = ");
    memset(text + strlen(text), 'a', 19000);
    expect_fault(load_text(text), "rdtd.conf:2: the line is longer");
    free(text);
}

Test(options, long_and_indented_lines_are_whole)
{
    char *text = calloc(1, 4000);
    strcpy(text, "[daemon]\n\tbackends = ");
    memset(text + strlen(text), 'a', 3000);
    strcat(text, "\n\t max_clients = 7");
    cr_assert_eq(load_text(text), RDT_OK, "%s", err.msg);
    cr_assert_eq(strlen(options.backends), 3000);
    cr_assert_eq(options.max_clients, 7);
    options_fini(&options);
    free(text);
}

Test(options, named_file_must_exist)
{
    cr_assert_eq(load_flags("--config", "/nonexistent/rdtd.conf", NULL), RDT_SYSTEM);
    cr_assert_not_null(strstr(err.msg, "/nonexistent/rdtd.conf"));
}

/* Reads what was printed until the text is there. */
static void await_printed(const char *wanted, char *text, size_t room)
{
    FILE *printed = cr_get_redirected_stderr();
    size_t used = 0;

    fflush(stderr);
    while (used < room - 1 && !strstr(text, wanted)) {
        int c = fgetc(printed);
        cr_assert_neq(c, EOF, "got only '%s'", text);
        text[used++] = (char)c;
    }
}

Test(options, variables_that_nearly_name_a_key_are_warned_of)
{
    char text[1024] = "";

    setenv("RDTD_PORT_7411_TCP_ADDR", "10.0.0.1", 1);
    setenv("RDTD_SERVICE_HOST", "10.0.0.1", 1);
    setenv("RDTD_LOG_LEVEL", "warn", 1);
    setenv("RDTD_MEMRY_LIMIT", "1G", 1);
    cr_assert_eq(LOAD(NULL), RDT_OK);
    await_printed("RDTD_MEMRY_LIMIT names no key and is ignored; did you mean RDTD_MEMORY_LIMIT?", text, sizeof text);
    cr_assert(!strstr(text, "TCP_ADDR") && !strstr(text, "SERVICE") && !strstr(text, "LOG_LEVEL"), "%s", text);
    options_fini(&options);
}

Test(options, several_faults_are_all_printed)
{
    expect_fault(LOAD("--max-clients=0", "--max-objects=0", "--chunk=x", NULL), "3 faults, the first of them: --max-clients 0");
    char text[1024] = "";
    await_printed("--chunk x", text, sizeof text);
    cr_assert_not_null(strstr(text, "--max-clients 0"));
    cr_assert_not_null(strstr(text, "--max-objects 0"));
}

Test(options, help_works_with_a_broken_file)
{
    char *path = write_file("rdtd.conf", "nonsense");
    cr_assert_eq(load_flags("--config", path, "--help", NULL), RDT_OK);
    cr_assert(options.help);
    options_fini(&options);
    cr_assert_eq(load_flags("--version", "--unknown", NULL), RDT_OK);
    cr_assert(options.version);
    options_fini(&options);
    free(path);
}

Test(options, listening_needs_a_key)
{
    expect_fault(LOAD("--listen", "127.0.0.1:0", NULL), "needs key_file: the peer link is TLS");
    char *key = write_file("key", "secret\n");
    cr_assert_eq(LOAD("--listen", "127.0.0.1:0", "--key-file", key, NULL), RDT_OK, "%s", err.msg);
    options_fini(&options);
    expect_fault(LOAD("--listen", "localhost:0", "--key-file", key, NULL), "expected a numeric address");
    cr_assert_eq(LOAD("--key-file", "/nonexistent/key", NULL), RDT_OK, "it may come later: %s", err.msg);
    options_fini(&options);
    cr_assert_eq(LOAD("--key-file", "/dev/null/key", NULL), RDT_SYSTEM);
    free(key);
}

Test(options, single_values_are_checked)
{
    expect_fault(LOAD("--socket-mode", "888", NULL), "expected an octal mode");
    expect_fault(LOAD("--socket-mode", "7777", NULL), "expected an octal mode");
    expect_fault(LOAD("--log-level", "loud", NULL), "expected error, warn, info, debug or trace");
    expect_fault(LOAD("--names", "dns", NULL), "expected nodes or local");
    expect_fault(LOAD("--names", "etcd", NULL), "names are no longer in etcd: write nodes");
    expect_fault(LOAD("--advertise", "host", NULL), "is not HOST:PORT");
}

Test(options, relative_paths_begin_at_the_file)
{
    free(write_file("nodes", "b 127.0.0.1:1\n"));
    free(write_file("key", "secret\n"));
    cr_assert_eq(load_text("[network]\nnodes = nodes\nkey_file = key\n"), RDT_OK, "%s", err.msg);
    cr_assert_eq(strncmp(options.nodes, dir, strlen(dir)), 0, "%s", options.nodes);
    cr_assert_eq(strncmp(options.key_file, dir, strlen(dir)), 0, "%s", options.key_file);
    cr_assert_str_eq(options.node_list->name, "b");
    options_fini(&options);
}

Test(options, addresses_are_split)
{
    char host[65];
    uint16_t port;
    cr_assert_eq(options_split_address("127.0.0.1:7411", host, &port, &err), RDT_OK);
    cr_assert_str_eq(host, "127.0.0.1");
    cr_assert_eq(port, 7411);
    cr_assert_eq(options_split_address("[::1]:0", host, &port, &err), RDT_OK);
    cr_assert_str_eq(host, "::1");
    cr_assert_eq(port, 0);
    static const char *const wrong[] = {"",        ":1",    "host", "host:", "host:65536", "host:-1", "host: 1",
                                        "host:1x", "::1:1", "[]:1", "[::1]", "[::1:1",     "a b:1",   "host:100000"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        cr_assert_eq(options_split_address(wrong[i], host, &port, &err), RDT_INVALID, "'%s'", wrong[i]);
    char text[80] = "";
    memset(text, 'h', 65);
    strcat(text, ":1");
    cr_assert_eq(options_split_address(text, host, &port, &err), RDT_INVALID);
}

Test(options, nodes_file_is_read)
{
    struct node_entry *nodes;
    char *path =
        write_file("nodes", "# cluster\n\n a\t10.0.0.1:7411 # first\nb [::1]:2 01234567-89ab-cdef-0123-456789ABCDEF\n");
    cr_assert_eq(options_read_nodes(path, &nodes, &err), RDT_OK, "%s", err.msg);
    cr_assert_str_eq(nodes->name, "a");
    cr_assert_str_eq(nodes->address, "10.0.0.1:7411");
    cr_assert_eq(nodes->uuid[0], 0);
    cr_assert_str_eq(nodes->next->name, "b");
    cr_assert_eq(nodes->next->uuid[0], 0x01);
    cr_assert_eq(nodes->next->uuid[15], 0xef);
    cr_assert_null(nodes->next->next);
    free(nodes->next);
    free(nodes);
    free(path);
}

Test(options, nodes_file_faults_name_the_line)
{
    static const struct {
        const char *text, *fault;
    } wrong[] = {
        {"a\n", "nodes:1: expected NAME"},
        {"a b c d\n", "nodes:1: expected NAME"},
        {"a h:1 x\n", "nodes:1: 'x' is not a uuid"},
        {"a h:1 0123456789abcdef0123456789abcdef0\n", "is not a uuid"},
        {"a h:1\n\na h:2\n", "nodes:3: node 'a' is listed twice"},
        {"a h\n", "nodes:1: 'h' is not HOST:PORT"},
        {"a h:0\n", "nodes:1: port 0"},
    };
    struct node_entry *nodes;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char *path = write_file("nodes", wrong[i].text);
        expect_fault(options_read_nodes(path, &nodes, &err), wrong[i].fault);
        free(path);
    }
    cr_assert_eq(options_read_nodes("/nonexistent/nodes", &nodes, &err), RDT_SYSTEM);
}

static char *dump(const struct options *from, enum options_dump what)
{
    FILE *file = tmpfile();
    options_dump(from, what, file);
    return read_all(file);
}

/* A dump, read as a file, gives the same dump. */
Test(options, dump_reads_back)
{
    cr_assert_eq(LOAD("--max-clients=7", "--backoff-max=20ms", NULL), RDT_OK);
    char *first = dump(&options, OPTIONS_DUMP_EFFECTIVE);
    options_fini(&options);
    cr_assert_not_null(strstr(first, "\nmax_clients = 7\n"));
    cr_assert_eq(load_text(first), RDT_OK, "%s", err.msg);
    char *second = dump(&options, OPTIONS_DUMP_EFFECTIVE);
    options_fini(&options);
    cr_assert_str_eq(first, second);
    free(first);
    free(second);
}

/* The template is the dump of the defaults with every key commented out. */
Test(options, template_is_the_dump)
{
    cr_assert_eq(LOAD(NULL), RDT_OK);
    char *template = dump(NULL, OPTIONS_DUMP_TEMPLATE), *effective = dump(&options, OPTIONS_DUMP_EFFECTIVE);
    const char *t = template, *d = effective;
    for (bool line_starts = true; *t != 0 || *d != 0; line_starts = *t++ == '\n', d++) {
        if (line_starts && *t == '#' && *d != '#')
            t++;
        cr_assert_eq(*t, *d, "differ at '%.40s'", t);
    }
    free(effective);
    free(template);
    options_fini(&options);
}

Test(options, manual_page_names_every_key)
{
    char *page = dump(NULL, OPTIONS_DUMP_MAN);
    for (size_t i = 0; i < n_option_keys; i++) {
        char entry[128] = "\n*";
        size_t used = 2;
        for (const char *p = option_keys[i].name; *p != 0; p++) {
            if (*p == '_')
                entry[used++] = '\\';
            entry[used++] = *p;
        }
        snprintf(entry + used, sizeof entry - used, "* = ");
        cr_assert_not_null(strstr(page, entry), "%s", option_keys[i].name);
    }
    free(page);
}

/* Whoever adds a key says what it means, in sentences. */
Test(options, every_key_is_described)
{
    for (size_t i = 0; i < n_option_keys; i++) {
        const struct option_key *key = &option_keys[i];
        cr_assert(key->help && strlen(key->help) > 20 && key->help[strlen(key->help) - 1] == '.', "%s", key->name);
        cr_assert(key->type != OPTION_STRING || key->value, "%s", key->name);
        cr_assert(key->why || strcmp(key->section, "limits") == 0 || key->is_path, "%s: who would change it, and why?",
                  key->name);
    }
}

/* --dump-config=template and =man say what is compiled in, whatever the configuration is. */
Test(options, what_to_dump)
{
    cr_assert_eq(LOAD("--dump-config", NULL), RDT_OK, "%s", err.msg);
    cr_assert_eq(options.dump_config, OPTIONS_DUMP_EFFECTIVE);
    options_fini(&options);
    cr_assert_eq(LOAD("--dump-config=man", "--max-clients=no", NULL), RDT_OK, "%s", err.msg);
    cr_assert_eq(options.dump_config, OPTIONS_DUMP_MAN);
    options_fini(&options);
    cr_assert_eq(LOAD("--dump-config=template", NULL), RDT_OK, "%s", err.msg);
    cr_assert_eq(options.dump_config, OPTIONS_DUMP_TEMPLATE);
    options_fini(&options);
    expect_fault(LOAD("--dump-config=woman", NULL), "expected template, man or no value");
}

Test(options, help_names_every_flag)
{
    FILE *file = tmpfile();
    options_help(file);
    char *text = read_all(file);
    for (size_t i = 0; i < n_option_keys; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "  --%s ", option_keys[i].name);
        for (char *p = flag; *p != 0; p++)
            *p = *p == '_' ? '-' : *p;
        if (option_keys[i].type == OPTION_BYTES)
            strcat(flag, "BYTES\n");
        else if (option_keys[i].type == OPTION_DURATION)
            strcat(flag, "TIME\n");
        cr_assert_not_null(strstr(text, flag), "%s", flag);
        for (size_t j = 0; j < i; j++)
            cr_assert_str_neq(option_keys[i].name, option_keys[j].name);
    }
    free(text);
}

Test(options, memory_limit_has_a_default)
{
    cr_assert_eq(LOAD("--memory-limit=5M", NULL), RDT_OK);
    cr_assert_eq(options_effective_memory_limit(&options), 5 << 20);
    options_fini(&options);
    cr_assert_eq(LOAD(NULL), RDT_OK);
    uint64_t limit = options_effective_memory_limit(&options);
    cr_assert_gt(limit, 0);
    cr_assert_leq(limit, (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2);
    options_fini(&options);
}
