/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of the control socket: hello, welcome, and the objects that a front uploads.
 *
 * The socket is a SEQPACKET unix socket; attach.h has the calls. Hello and welcome begin with magic
 * and layout in every build, whatever fields follow, so that two different builds can recognise
 * each other and log the cause. */
#ifndef QUIRE_IPC_WIRE_CONTROL_H
#define QUIRE_IPC_WIRE_CONTROL_H

#include <stdint.h>

#include "ipc/wire.h"

#define WIRE_EOS_MAX      8
#define WIRE_AUTOMATA_MAX 256 /* of one lane at a time */

/* The first message on a connection. A front gets a lane; one that has several engines also wants
 * to know what this one has in its cache (wire_held.h). An observer (quire top) only reads the
 * statistics: it gets the descriptor of the statistics page twice, because a welcome always carries
 * two, and the engine closes the connection. */
enum wire_visitor { WIRE_FRONT = 0, WIRE_OBSERVER = 1, WIRE_FRONT_CHOOSES = 2 };

struct wire_hello {
    uint64_t magic;
    uint64_t layout;
    uint64_t visitor; /* enum wire_visitor */
};

/* An upload of an attached front. One descriptor travels with it: a memfd of `bytes` bytes that is
 * sealed against writing and resizing.
 *
 * The engine reads an upload before it takes a request that was queued afterwards. If it has no
 * room for an upload, it leaves the place empty and refuses requests that name it with ERR_NO_FORM;
 * the front then uploads the vocabulary and the automaton again. A place may be filled again as
 * soon as no running or queued request names it. */
enum wire_upload_kind {
    WIRE_VOCABULARY = 1, /* grammar/trie.h; sent before the first automaton. The engine keeps the
                          * first one that it could map */
    WIRE_AUTOMATON = 2,  /* grammar/automaton.h */
};

struct wire_upload {
    uint32_t kind; /* enum wire_upload_kind */
    uint32_t idx;  /* of an automaton: 0 .. WIRE_AUTOMATA_MAX - 1 */
    uint64_t bytes;
};

/* The engine's answer to a front's hello. With error == 0 it carries two descriptors: the lane and
 * the statistics page. From then on each side sends single bytes to wake the other. */
struct wire_welcome {
    uint64_t magic;
    uint64_t layout;
    uint64_t epoch;
    uint64_t lane_bytes;
    int32_t error; /* enum err */
    uint32_t n_vocab;
    uint32_t n_pooled; /* floats of a pooled answer; 0: the model generates */
    uint32_t max_model_len;
    uint32_t page_tokens;
    uint32_t n_eos;
    int32_t eos[WIRE_EOS_MAX];
    uint8_t fingerprint[32];
};

#endif
