/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes: two engine processes, usually on two hosts, that share the stages of a model.
 *
 * Node 0 has the first half of the stages, and after the last one the output matrix; it plans and
 * samples. Node 1 has the other half and follows: it does what messages over one TCP connection,
 * the control connection, tell it. Rows travel over one further connection for each rank of a
 * stage: to node 1 behind node 0's last layer, and back behind the last layer of all.
 *
 * The end of a node ends the other one: a closed connection is seen at once, keep-alive probes find
 * a dead host within seconds, and beats, bytes over a connection of their own, a process that is
 * stopped (3.5 s). Nodes trust each other: the port must be reachable by them
 * only.
 *
 * Rows travel between GPUs by NCCL where both nodes have it; otherwise over these connections. */
#ifndef QUIRE_MODEL_NODE_H
#define QUIRE_MODEL_NODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "device/device.h"

#define NODE_PARTS_MAX 16

struct node;

/* What nodes tell each other first. The first group must be equal; of the second the smaller number
 * holds for both. */
struct node_hello {
    struct hash config, build;
    int32_t page_tokens, max_num_seqs, max_num_batched_tokens, n_stages, n_parts, kv_type,
        bf16_states;
    int32_t n_pages, max_model_len, fused_max, sleeps;
    int32_t links; /* 1: devices make connections of their own (far_name() of device.h) */
    /* Their names, for each part: of rows to node 1, and of rows back. Node 0's hold for both. */
    char far_names[NODE_PARTS_MAX][2][DEVICE_FAR_NAME];
};

struct node_options {
    int rank;         /* 0 or 1 */
    const char *addr; /* where node 0 listens, and node 1 connects to */
    int port;
    int n_parts;            /* connections for rows */
    size_t row_bytes;       /* of the largest message of rows */
    size_t page_part_bytes; /* of node 1's parts of a page */
};

/* Wait for the other node, and exchange hellos: *hello becomes what holds for both. ERR_INVALID
 * (logged): the nodes do not match; ERR_AGAIN (logged): the other one did not come within minutes;
 * ERR_IO, ERR_NO_MEMORY. */
int node_open(struct node **out, const struct node_options *o,
              struct node_hello *hello) ERR_CHECKED;
void node_close(struct node *n); /* NULL is fine */

/* True once the other node has ended, which has been logged. Any thread. */
bool node_is_lost(const struct node *n);

/* What node_is_lost() returns, for devices. */
const atomic_bool *node_lost_flag(const struct node *n);

/* Rows of a step, to and from the same rank number of the other node; copied through host memory.
 * Each direction of a part is used by one thread. ERR_GPU: the other node has ended. */
int node_send_rows(struct node *n, int part, struct device *d,
                   const struct device_segment *segments, int n_segments) ERR_CHECKED;
int node_take_rows(struct node *n, int part, struct device *d,
                   const struct device_segment *segments, int n_segments) ERR_CHECKED;

/* Messages of node 0. */
enum node_order {
    NODE_STEP,
    NODE_PAGE_OUT,
    NODE_PAGE_IN,
    NODE_PAGE_COPY,
    NODE_SLEEP, /* answered by an enum err, as is the next */
    NODE_WAKE,
};
struct node_message {
    int32_t order;
    int32_t page, from;                          /* pages */
    int32_t n_tokens, n_seqs, n_rows, pages_max; /* a step's */
    int32_t unused;
    uint64_t bytes; /* that follow */
};

/* A run of memory of a message. */
struct node_piece {
    void *data;
    size_t bytes;
};

/* Send an order with what follows it. ERR_GPU. */
int node_order(struct node *n, struct node_message m, const struct node_piece *pieces,
               int n_pieces) ERR_CHECKED;

/* Give an order that is answered, and wait for the answer. ERR_GPU. */
int node_ask(struct node *n, enum node_order order, int32_t *answer) ERR_CHECKED;

/* Ask node 1 for its parts of a page, which go to the pieces; node_n_pages() counts those that have
 * come, in order. Waits while too many are asked for. ERR_GPU. */
#define NODE_PIECES_MAX 16
int node_ask_page(struct node *n, int32_t page, const struct node_piece *pieces,
                  int n_pieces) ERR_CHECKED;
uint64_t node_n_asked(const struct node *n);
uint64_t node_n_pages(struct node *n);
int node_await_pages(struct node *n, uint64_t n_pages) ERR_CHECKED;

/* Node 1: wait for the next order, or for stop_fd to become readable. ERR_DRAINING: it has;
 * ERR_GPU: node 0 has ended (logged). What follows the message is taken by node_take_bytes(). */
int node_next(struct node *n, int stop_fd, struct node_message *m) ERR_CHECKED;
int node_take_bytes(struct node *n, void *to, size_t bytes) ERR_CHECKED;
/* The answer to an order. */
int node_answer(struct node *n, const void *bytes, size_t n_bytes) ERR_CHECKED;

#endif
