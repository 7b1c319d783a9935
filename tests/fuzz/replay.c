/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target over the files and folders named as arguments: the corpus as a test.
 * Without arguments it takes tests/fuzz/corpus/<the program's name behind "fuzz_">. */
#include <dirent.h>
#include <stdint.h>

#include "tests/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc((size_t)1 << 20);
    size_t len = 0;

    if (f == NULL || bytes == NULL) {
        if (f != NULL)
            (void)fclose(f);
        free(bytes);
        return 0;
    }
    len = fread(bytes, 1, (size_t)1 << 20, f);
    (void)fclose(f);
    (void)LLVMFuzzerTestOneInput(bytes, len);
    free(bytes);
    return 1;
}

int main(int argc, char **argv)
{
    const char *name = strstr(argv[0], "fuzz_");
    char folder[200];
    char path[8192];
    const struct dirent *entry;
    DIR *d;
    int n = 0;

    (void)argc;
    (void)snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name == NULL ? "" : name + 5);
    d = opendir(tap_path(folder));
    if (d == NULL)
        tap_skip_all("the corpus is not there");
    while ((entry = readdir(d)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", tap_path(folder), entry->d_name);
        n += replay_file(path);
    }
    (void)closedir(d);
    ok(n > 0, "%d files of %s end without a fault", n, folder);
    return tap_done();
}
