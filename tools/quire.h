/* The commands of quire; each gets what stands behind its name, and gives the exit status. */
#ifndef QUIRE_TOOLS_QUIRE_H
#define QUIRE_TOOLS_QUIRE_H

int quire_bench(int argc, char **argv);
int quire_plan(int argc, char **argv);
int quire_top(int argc, char **argv);

#endif
