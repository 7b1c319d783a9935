/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading models_dir, and the settings of one of its files. */
#include "base/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/settings.h"
#include "tests/tap.h"

static char folder[] = "/tmp/quire-models-XXXXXX";

static void make(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "we");
    if (file == NULL || fputs(text, file) == EOF || fclose(file) != 0)
        abort();
}

static void forget(const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
}

static void test_folder(void)
{
    static struct models models;

    is_int(models_read(&models, "/nonexistent"), ERR_IO, "no folder");
    is_int(models_read(&models, folder), ERR_INVALID, "no model in it");
    make("zeta.conf", "");
    make("Alpha-1.5_b.conf", "");
    make("README", "");
    make(".conf", "");
    is_int(models_read(&models, folder), ERR_OK, "two models");
    is_int(models.n, 2, "other files are ignored");
    is_text(models.names[0], "Alpha-1.5_b", "sorted");
    is_text(models.names[1], "zeta", "the last");
    make("two words.conf", "");
    is_int(models_read(&models, folder), ERR_OK, "a blank in a name");
    is_int(models.n, 2, "is left out");
    ok(models.unusable != 0, "and known");
    forget("two words.conf");
    make("a23456789012345678901234567890123456789012345678901234567890123.conf", "");
    is_int(models_read(&models, folder), ERR_OK, "63 bytes");
    make("a234567890123456789012345678901234567890123456789012345678901234.conf", "");
    is_int(models_read(&models, folder), ERR_OK, "64 bytes");
    is_int(models.n, 3, "are left out");
    forget("a23456789012345678901234567890123456789012345678901234567890123.conf");
    forget("a234567890123456789012345678901234567890123456789012345678901234.conf");
}

static void test_settings(void)
{
    char base[300], own[300];
    char program[] = "quire-front", option[] = "--max-choices=7";
    char *argv[] = {program, base, option, NULL};
    struct settings settings;

    make("base", "model = /base\nmax_choices = 5\nfront_threads = 3\nresponse_role = base\n");
    make("zeta.conf", "model = /zeta\nmax_choices = 6\nresponse_role = zeta\n");
    (void)snprintf(base, sizeof base, "--config=%s/base", folder);
    models_file(own, sizeof own, folder, "zeta");
    must_ok(settings_read_over(&settings, 'F', 3, argv, own));
    is_text(settings.model, "/zeta", "the model's file is above --config");
    is_text(settings.response_role, "zeta", "for every setting");
    is_int(settings.front_threads, 3, "what it does not set stays");
    is_int(settings.max_choices, 7, "the command line is above both");
    settings_fini(&settings);
    make("zeta.conf", "max_choices = many\n");
    is_int(settings_read_over(&settings, 'F', 3, argv, own), ERR_INVALID, "a bad value");
    is_int(settings_read_over(&settings, 'F', 3, argv, "/nonexistent"), ERR_IO, "no file");
    models_socket(own, sizeof own, "/run/m", "zeta");
    is_text(own, "/run/m/zeta.sock", "a socket");
}

int main(void)
{
    if (mkdtemp(folder) == NULL)
        abort();
    test_folder();
    test_settings();
    forget("zeta.conf");
    forget("Alpha-1.5_b.conf");
    forget("README");
    forget(".conf");
    forget("base");
    (void)rmdir(folder);
    return tap_done();
}
