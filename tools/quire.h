/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of quire. Each gets the arguments from its own name on, and returns the exit
 * status. */
#ifndef QUIRE_TOOLS_QUIRE_H
#define QUIRE_TOOLS_QUIRE_H

int quire_batch(int argc, char **argv);
int quire_bench(int argc, char **argv);
int quire_bench_serve(int argc, char **argv); /* called by quire_bench() */
int quire_cache(int argc, char **argv);       /* also the program lmdb-dump */
int quire_chat(int argc, char **argv);
int quire_doctor(int argc, char **argv);
int quire_eval(int argc, char **argv);
int quire_generate(int argc, char **argv);
int quire_plan(int argc, char **argv);
int quire_quantize(int argc, char **argv);
int quire_serve(int argc, char **argv);
int quire_top(int argc, char **argv);

#endif
