/* SPDX-License-Identifier: Apache-2.0
 *
 * quire: commands for operators. `quire bench` measures a model in its own process, `quire top`
 * shows the work of a running engine. */
#include "tools/quire.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "bench") == 0)
        return quire_bench(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "plan") == 0)
        return quire_plan(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "top") == 0)
        return quire_top(argc - 1, argv + 1);
    fprintf(argc >= 2 && strcmp(argv[1], "--help") == 0 ? stdout : stderr,
            "usage: quire bench latency|throughput|kernel --model FOLDER [options]\n"
            "       quire plan FOLDER [--card NAME] [--len TOKENS] [settings]\n"
            "       quire top [--engine-socket PATH] [--seconds N] [--once]\n"
            "       quire bench --help\n");
    if (argc >= 2 && strcmp(argv[1], "--help") == 0)
        return 0;
    return 2;
}
