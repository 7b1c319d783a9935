/* SPDX-License-Identifier: Apache-2.0
 *
 * lmdb-dump: the command `quire cache` as a program of its own, without the libraries of models. */
#include "tools/quire.h"

int main(int argc, char **argv)
{
    return quire_cache(argc, argv);
}
