/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's configuration: the configuration file, its flags (one per line), and the nodes file.
 *
 *   | which 1 | text |
 */
#include <unistd.h>

#include "daemon/config/options.h"
#include "tests/fuzz/harness/fuzz.h"

#define MOST_FLAGS 30

static void load(int argc, char **argv)
{
    struct options options;
    struct rdt_error err = {0};
    enum rdt_status status = options_load(argc, argv, &options, &err);
    FILE *out;

    if (status != RDT_OK) {
        fuzz_refused(status, &err);
        return;
    }
    if (!options.help && !options.version) {
        out = fopen("/dev/null", "w");
        fuzz_must(out && options.socket && options.listen && options.tenant);
        options_dump(&options, OPTIONS_DUMP_EFFECTIVE, out);
        (void)fclose(out);
    }
    options_fini(&options);
}

static void flags(char *text)
{
    char *argv[MOST_FLAGS + 4] = {(char *)"rdtd", (char *)"--config", (char *)"/dev/null"};
    int argc = 3;

    for (char *rest, *word = strtok_r(text, "\n", &rest); word && argc < MOST_FLAGS + 3; word = strtok_r(NULL, "\n", &rest))
        argv[argc++] = word;
    load(argc, argv);
}

static void file(const char *path)
{
    char *argv[] = {(char *)"rdtd", (char *)"--config", (char *)(uintptr_t)path, NULL};

    load(3, argv);
}

static void nodes(const char *path)
{
    struct node_entry *entries = NULL;
    struct rdt_error err;
    enum rdt_status status = options_read_nodes(path, &entries, &err);

    if (status != RDT_OK)
        fuzz_refused(status, &err);
    while (status == RDT_OK && entries) {
        struct node_entry *next = entries->next;
        char host[65];
        uint16_t port;

        fuzz_must(entries->name[0] && memchr(entries->name, 0, sizeof entries->name));
        fuzz_must(options_split_address(entries->address, host, &port, &err) == RDT_OK);
        free(entries);
        entries = next;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[32];
    char *text;
    int fd;

    if (bytes == 0)
        return 0;
    text = fuzz_copy(data + 1, bytes - 1, true);
    if (strstr(text, "/dev/") ||
        strstr(text, "/proc/")) { /* files that the configuration names are read: not those without end */
        free(text);
        return 0;
    }
    if (data[0] % 3 == 0) {
        flags(text);
    } else {
        fd = fuzz_file(data + 1, bytes - 1);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (data[0] % 3 == 1)
            file(path);
        else
            nodes(path);
        close(fd);
    }
    free(text);
    return 0;
}
