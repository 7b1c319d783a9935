/* SPDX-License-Identifier: Apache-2.0
 *
 * quire: commands for people. `quire bench` measures a model in this process. */
#include "tools/quire.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "bench") == 0)
        return quire_bench(argc - 1, argv + 1);
    fprintf(argc >= 2 && strcmp(argv[1], "--help") == 0 ? stdout : stderr,
            "usage: quire bench latency|throughput|kernel --model FOLDER [options]\n"
            "       quire bench --help\n");
    return argc >= 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
}
