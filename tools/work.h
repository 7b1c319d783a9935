/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests that quire bench serve sends: their prompts, lengths and times. All of them are made
 * before the first is sent, so that nothing but sending and reading is left for the measurement. */
#ifndef QUIRE_TOOLS_WORK_H
#define QUIRE_TOOLS_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "tools/http.h"

enum work_kind {
    WORK_RANDOM,        /* lengths as asked for */
    WORK_SHAREGPT_LIKE, /* lengths drawn from the distribution of people's conversations */
    WORK_FILE,          /* prompts of a file */
};

struct work_options {
    enum work_kind kind;
    bool chat; /* prompts are texts; otherwise token ids, unless they come from a file */
    int n;
    uint64_t seed;
    int input_len, output_len; /* tokens, of WORK_RANDOM */
    int prefix_len;            /* tokens that all prompts of WORK_RANDOM begin with */
    double range_ratio;        /* 0 .. 1: lengths are uniform in [len * (1 - r), len * (1 + r)] */
    int vocab_size;            /* ids are WORK_FIRST_ID .. vocab_size - 1 */
    const char *path;          /* WORK_FILE: a list or lines of JSON objects */
    int file_output_len;       /* tokens of all outputs of WORK_FILE; 0: those of its answers */
    double rate;               /* requests per second; infinity: all at once */
    double burstiness;         /* shape of the gamma distribution of pauses; 1: Poisson */
    /* The server counts a file's tokens if it can. */
    const struct http_url *url;
    const char *model, *key;
};

#define WORK_FIRST_ID 100 /* below it are the special tokens of many vocabularies */

struct work_item {
    const char *prompt; /* JSON: a text, or a list of ids */
    int input_len;      /* tokens; of a text without a count by the server an estimate */
    int output_len;     /* tokens */
    uint64_t due_us;    /* after the start */
};

struct work {
    struct work_item *items; /* [n] */
    int n;
    bool counted; /* the lengths of WORK_FILE were counted by the server */
    struct arena arena;
};

/* Make n requests. The same options make the same ones. Blocks: a file's texts are counted by the
 * server. ERR_INVALID, ERR_IO: the file has no usable prompt, or cannot be read (printed);
 * ERR_NO_MEMORY. */
int work_make(struct work *w, const struct work_options *o) ERR_CHECKED;
void work_fini(struct work *w);

/* Draws of a generator whose state is *state: a uniform number in [0, 1), and one of a normal
 * distribution with mean 0 and deviation 1. */
double work_uniform(uint64_t *state);
double work_normal(uint64_t *state);

/* work_file.c: fill the items of WORK_FILE. Called by work_make(). */
int work_read_file(struct work *w, const struct work_options *o, uint64_t *state) ERR_CHECKED;

#endif
