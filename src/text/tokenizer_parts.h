/* What a tokenizer is made of; for tokenizer.c and tokenizer_load.c alone. */
#ifndef QUIRE_TEXT_TOKENIZER_PARTS_H
#define QUIRE_TEXT_TOKENIZER_PARTS_H

#include "base/json.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/pretoken.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct pretoken pretoken;
    struct added_set raw;        /* added tokens looked for in the text as it is */
    struct added_set normalized; /* and in the normalized text */
    bool nfc;                    /* the normalizer */
    struct token_list before;    /* what add_special puts in front */
    struct token_list after;     /* and behind */
    int32_t bos;
    int32_t eos;
    int32_t pad;
};

#endif
