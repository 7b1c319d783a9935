/* The control socket's messages: hello, welcome, and what a front uploads beside its lane.
 *
 * A SEQPACKET unix socket; attach.h has the calls. Both first messages begin with magic and layout
 * in every build, whatever follows: so builds can tell that they are different. */
#ifndef QUIRE_IPC_WIRE_CONTROL_H
#define QUIRE_IPC_WIRE_CONTROL_H

#include <stdint.h>

#include "ipc/wire.h"

#define WIRE_EOS_MAX      8
#define WIRE_AUTOMATA_MAX 256 /* of one lane at a time */

/* First message of a front, or of somebody who only wants the statistics: he gets them twice in
 * place of a lane, and the connection ends. */
enum wire_visitor { WIRE_FRONT = 0, WIRE_OBSERVER = 1 };

struct wire_hello {
    uint64_t magic;
    uint64_t layout;
    uint64_t visitor; /* enum wire_visitor */
};

/* What a front sends once it is attached, one descriptor with each: a memfd of bytes bytes that is
 * sealed against writing and resizing. The engine has it before it takes a request that was queued
 * afterwards, or refuses that with ERR_NO_FORM: it had no room for what was uploaded, the place is
 * empty, and the vocabulary is to be uploaded again as well. A place may be filled again when no
 * request that names it is under way. */
enum wire_upload_kind {
    WIRE_VOCABULARY = 1, /* grammar/trie.h; before the first automaton. The first that the engine
                          * could take stays */
    WIRE_AUTOMATON = 2,  /* grammar/automaton.h */
};

struct wire_upload {
    uint32_t kind; /* enum wire_upload_kind */
    uint32_t idx;  /* of an automaton: 0 .. WIRE_AUTOMATA_MAX - 1 */
    uint64_t bytes;
};

/* The engine's answer. With error == 0 two descriptors travel with it: the lane and the
 * statistics page. Afterwards each side sends single bytes to wake the other. */
struct wire_welcome {
    uint64_t magic;
    uint64_t layout;
    uint64_t epoch;
    uint64_t lane_bytes;
    int32_t error; /* enum err */
    uint32_t n_vocab;
    uint32_t max_model_len;
    uint32_t page_tokens;
    uint32_t n_eos;
    int32_t eos[WIRE_EOS_MAX];
    uint8_t fingerprint[32];
};

#endif
