/* SPDX-License-Identifier: Apache-2.0
 *
 * quire: commands for operators, a file each. */
#include "tools/quire.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"batch", quire_batch},       {"bench", quire_bench},   {"cache", quire_cache},
    {"chat", quire_chat},         {"doctor", quire_doctor}, {"eval", quire_eval},
    {"generate", quire_generate}, {"plan", quire_plan},     {"quantize", quire_quantize},
    {"serve", quire_serve},       {"top", quire_top}};

int main(int argc, char **argv)
{
    bool wants_help = argc >= 2 && strcmp(argv[1], "--help") == 0;

    for (size_t i = 0; argc >= 2 && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    fprintf(wants_help ? stdout : stderr,
            "usage: quire batch IN.jsonl OUT.jsonl [--model FOLDER | --url URL] [options]\n"
            "       quire bench latency|throughput|kernel --model FOLDER [options]\n"
            "       quire bench serve [--url URL] [--request-rate R] [options]\n"
            "       quire cache DIR | --host FILE [--summary] [--verify] [options]\n"
            "       quire chat [--url URL] [--model NAME] [--system TEXT] [options]\n"
            "       quire doctor [--config FILE]\n"
            "       quire eval perplexity|choices FOLDER FILE [--len N] [settings]\n"
            "       quire generate [--url URL] [--prompt TEXT]... [FILE|-] [options]\n"
            "       quire plan FOLDER [--card NAME] [--len TOKENS] [settings]\n"
            "       quire quantize FOLDER --to int4|int8|fp8|nvfp4 --out FOLDER [--text FILE]\n"
            "       quire serve FOLDER|FILE.gguf [--port N] [--host NAME] [options] [settings]\n"
            "       quire top [--engine-socket PATH] [--seconds N] [--once]\n"
            "       quire COMMAND --help\n");
    if (wants_help)
        return 0;
    return 2;
}
