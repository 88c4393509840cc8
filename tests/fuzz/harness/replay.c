/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces libFuzzer: TARGET FILE|FOLDER ... runs every file through the target once, and prints which one it is running. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "tests/fuzz/harness/fuzz.h"

static unsigned n_run;

static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    size_t size = 0, n = 0;
    uint8_t *bytes = NULL;

    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
    do {
        size = 2 * size + 4096;
        bytes = realloc(bytes, size);
        fuzz_must(bytes);
        n += fread(bytes + n, 1, size - n, file);
    } while (n == size);
    (void)fclose(file);
    printf("%s\n", path); /* the last line names the culprit */
    fflush(stdout);
    bytes = realloc(bytes, n ? n : 1);
    fuzz_must(LLVMFuzzerTestOneInput(bytes, n) == 0);
    free(bytes);
    n_run++;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct dirent **entries;
        struct stat st;
        int n;

        if (stat(argv[i], &st) != 0 || !S_ISDIR(st.st_mode)) {
            run_file(argv[i]);
            continue;
        }
        n = scandir(argv[i], &entries, NULL, alphasort);
        for (int e = 0; e < n; e++) {
            char path[4096];

            (void)snprintf(path, sizeof path, "%s/%s", argv[i], entries[e]->d_name);
            if (entries[e]->d_name[0] != '.')
                run_file(path);
            free(entries[e]);
        }
        if (n >= 0)
            free(entries);
    }
    printf("%u inputs\n", n_run);
    return n_run > 0 ? 0 : 2;
}
