/* SPDX-License-Identifier: Apache-2.0
 *
 * quire: commands for operators, a file each. */
#include "tools/quire.h"

#include <config.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/near.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"batch", quire_batch},       {"bench", quire_bench},   {"cache", quire_cache},
    {"chat", quire_chat},         {"doctor", quire_doctor}, {"eval", quire_eval},
    {"generate", quire_generate}, {"plan", quire_plan},     {"quantize", quire_quantize},
    {"serve", quire_serve},       {"top", quire_top}};

static int unknown(const char *word)
{
    struct near near = {.word = word};

    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        near_try(&near, commands[i].name);
    (void)fprintf(stderr, "quire: there is no command \"%s\"", word);
    if (near.name != NULL)
        (void)fprintf(stderr, "; is \"%s\" meant?", near.name);
    (void)fprintf(stderr, "%s quire --help\n", near.name != NULL ? " See" : "; see");
    return 2;
}

/* A descriptor of 0 to 2 that is closed would be that of the next file or socket, and messages and
 * answers would be written into it. Answers to a closed standard output fail, because /dev/null is
 * open for reading there; error messages are lost. */
static void open_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) == -1)
            (void)open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY); /* gets fd */
    }
}

int main(int argc, char **argv)
{
    const char *first = argc >= 2 ? argv[1] : "";
    bool wants_help =
        strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || strcmp(first, "help") == 0;

    open_standard();
    if (strcmp(first, "--version") == 0)
        return printf("quire %s\n", PACKAGE_VERSION) < 0;
    if (argc > 2 && strcmp(argv[argc - 1], "-h") == 0) {
        static char help[] = "--help";

        argv[argc - 1] = help;
    }
    for (size_t i = 0; argc >= 2 && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(first, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    if (argc >= 2 && !wants_help)
        return unknown(first);
    fprintf(wants_help ? stdout : stderr,
            "usage: quire batch IN.jsonl OUT.jsonl [--model FOLDER | --url URL] [options]\n"
            "       quire bench latency|throughput|kernel --model FOLDER [options]\n"
            "       quire bench serve [--url URL] [--request-rate R] [options]\n"
            "       quire cache DIR | --host FILE [--summary] [--verify] [options]\n"
            "       quire chat [FOLDER|FILE.gguf | --url URL] [--system TEXT] [options]\n"
            "       quire doctor [--config FILE]\n"
            "       quire eval perplexity|choices FOLDER FILE [--len N] [settings]\n"
            "       quire generate [--model FOLDER | --url URL] [--prompt TEXT]... [FILE|-]\n"
            "       quire plan FOLDER [--card NAME] [--len TOKENS] [settings]\n"
            "       quire quantize FOLDER --to int4|int8|fp8|nvfp4 --out FOLDER [--text FILE]\n"
            "       quire serve FOLDER|FILE.gguf [--port N] [--host NAME] [options] [settings]\n"
            "       quire top [--engine-socket PATH] [--seconds N] [--once]\n"
            "       quire COMMAND --help\n"
            "       quire --version\n");
    if (wants_help)
        return 0;
    return 2;
}
