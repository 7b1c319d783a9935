/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the files that a folder of the same model would have.
 *
 * A GGUF file names its tokenizer by two words. tokenizer.ggml.model is "gpt2" (byte-level BPE with
 * a list of merges), "llama" (SentencePiece BPE: scores in place of merges, bytes where a character
 * has no token) or "gemma4" (as SentencePiece's, with merges). tokenizer.ggml.pre names the pattern
 * by which a byte-level model cuts texts; the table `cuts` has the pre_tokenizer of the
 * tokenizer.json that the name stands for. An unknown name is refused, because pieces that are cut
 * differently give other tokens.
 *
 * Types of tokens decide which of them are searched for in a text as a whole: control tokens, which
 * are special, and added ones. One member is no part of the format of tokenizer.json: "scores", a
 * number per id, null for a token that no merge makes (tokenizer_vocab.c). */
#include "text/gguf_folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/gguf.h"
#include "base/json.h"
#include "base/mem.h"

/* --- how texts are cut ----------------------------------------------------------------------- */

#define BYTES(regex)                                                            \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true," \
    "\"use_regex\":" regex "}"
#define SPLIT(pattern)                                                           \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":" \
    "{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTES("false") "]}"
#define ANY_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD     "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+"
#define OTHERS   "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*"
#define TAIL     "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define LARGE    "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define SMALL    "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASED    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"

/* Byte-level BPE with the pattern of GPT-2; with each digit alone; Llama 3's; Qwen 2's; Qwen 3.5's,
 * with marks in words; Tekken's (Mistral); that of GPT-4o; Seed's. */
#define CUT_GPT2 BYTES("true")
#define CUT_DIGITS                                                                          \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":" \
    "true}," BYTES("true") "]}"
#define CUT_LLAMA3 SPLIT(ANY_CASE WORD "|\\\\p{N}{1,3}" OTHERS TAIL)
#define CUT_QWEN2  SPLIT(ANY_CASE WORD "|\\\\p{N}" OTHERS TAIL)
#define CUT_QWEN35                                                               \
    SPLIT(ANY_CASE "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}" \
                   "| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*" TAIL)
#define CUT_TEKKEN                                                      \
    SPLIT(CASED LARGE "*" SMALL "+|" CASED LARGE "+" SMALL "*|\\\\p{N}" \
                      "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" TAIL)
#define CUT_GPT4O                                                                    \
    SPLIT(CASED LARGE "*" SMALL "+" ANY_CASE "?|" CASED LARGE "+" SMALL "*" ANY_CASE \
                      "?|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" TAIL)
#define CUT_SEED SPLIT(ANY_CASE WORD "|\\\\p{N}{1}| ?[^\\\\s\\\\p{L}\\\\p{N}\\\\r\\\\n]+" TAIL)

/* Kimi's: as GPT-4o's, with runs of Han characters apart. */
#define NO_HAN_LARGE "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define NO_HAN_SMALL "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define CUT_KIMI                                                            \
    SPLIT("[\\\\p{Han}]+|" CASED NO_HAN_LARGE "*" NO_HAN_SMALL "+" ANY_CASE \
          "?|" CASED NO_HAN_LARGE "+" NO_HAN_SMALL "*" ANY_CASE "?|\\\\p{N}{1,3}" OTHERS TAIL)

/* One of several patterns that cut one after another. */
#define ONE_BEGIN "{\"type\":\"Split\",\"pattern\":{\"Regex\":\""
#define ONE_END   "\"},\"behavior\":\"Isolated\",\"invert\":false},"
/* DeepSeek's, of V3 and of Coder. */
#define DEEPSEEK_WORDS                                                                      \
    "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\["                                                   \
    "\\\\\\\\\\\\]^_`{|}~][A-Za-z]+"                                                        \
    "|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*" \
    "|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define CUT_DEEPSEEK3                                                                            \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" ONE_BEGIN "\\\\p{N}{1,3}" ONE_END ONE_BEGIN     \
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+" ONE_END ONE_BEGIN DEEPSEEK_WORDS ONE_END BYTES( \
        "false") "]}"
#define CUT_CODER                                                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" ONE_BEGIN "[\\r\\n]" ONE_END ONE_BEGIN \
    "\\\\s?\\\\p{L}+" ONE_END ONE_BEGIN "\\\\s?\\\\p{P}+" ONE_END ONE_BEGIN             \
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+" ONE_END                                \
    "{\"type\":\"Digits\",\"individual_digits\":true}," BYTES("false") "]}"

/* Patterns that differ in one part: Ling's, EXAONE MoE's and Jais 2's. */
#define CUT_BAILING                                                                 \
    SPLIT("'(?i:[sdmt]|ll|ve|re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?+\\\\p{L}+|\\\\p{N}" \
          "| ?[^\\\\s\\\\p{L}\\\\p{N}]++[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]|\\\\s+(?!\\\\S)|\\\\s+")
#define CUT_EXAONE_MOE                                                                            \
    SPLIT(ANY_CASE                                                                                \
          "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?(?:\\\\p{L}\\\\p{M}*(?: \\\\p{L}\\\\p{M}*)*)+|\\\\p{N}" \
          "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]?|\\\\s*[\\\\r\\\\n]|\\\\s+(?!\\\\S)|\\\\s+")
#define SPACES(n) "|\\\\s{" n "}(?!\\\\S)"
#define CUT_JAIS2                                                                                  \
    SPLIT(ANY_CASE WORD "|\\\\p{N}{1,3}" OTHERS "|\\\\s*[\\\\r\\\\n]+" SPACES("512") SPACES("256") \
              SPACES("128") SPACES("64") SPACES("32") SPACES("16") SPACES("8") SPACES("4")         \
                  SPACES("1,2") "|\\\\s{1}")
/* Trinity's: groups of three digits from the end of a number, Asian scripts, and DeepSeek's. */
#define CUT_AFMOE                                                                                  \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" ONE_BEGIN                                         \
    "\\\\p{N}{1,3}(?=(?:\\\\p{N}{3})*(?!\\\\p{N}))" ONE_END ONE_BEGIN                              \
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf" \
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"  \
    "\u1100-\u11ff]+" ONE_END ONE_BEGIN DEEPSEEK_WORDS ONE_END BYTES("false") "]}"
/* Youtu's: Asian scripts, and GPT-4o's with each digit alone. */
#define YOUTU_ASIAN                                                    \
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d"          \
    "\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+" \
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
#define YOUTU_WORDS                                                            \
    CASED LARGE "*" SMALL "+" ANY_CASE "?|" CASED LARGE "+" SMALL "*" ANY_CASE \
                "?|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" TAIL
#define CUT_YOUTU                                                                        \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" ONE_BEGIN YOUTU_ASIAN ONE_END ONE_BEGIN \
        YOUTU_WORDS ONE_END BYTES("false") "]}"
/* Llama 3's behind groups of three digits from the start of a number. */
#define CUT_MINICPM5                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" ONE_BEGIN \
    "\\\\p{N}{1,3}" ONE_END ONE_BEGIN ANY_CASE WORD        \
    "|\\\\p{N}+" OTHERS TAIL ONE_END BYTES("false") "]}"

#define NFC "{\"type\":\"NFC\"}"

static const struct cut {
    const char *name; /* tokenizer.ggml.pre */
    const char *pre_tokenizer;
    const char *normalizer; /* NULL: none */
    bool ignores_merges;    /* a piece that is a token needs no merges */
    bool adds_bos;          /* where add_bos_token is missing */
} cuts[] = {
    {"llama-bpe", CUT_LLAMA3, NULL, true, true},
    {"llama3", CUT_LLAMA3, NULL, true, true},
    {"llama-v3", CUT_LLAMA3, NULL, true, true},
    {"falcon3", CUT_LLAMA3, NULL, true, true},
    {"falcon-h1", CUT_LLAMA3, NULL, true, true},
    {"pixtral", CUT_LLAMA3, NULL, true, true},
    {"lfm2", CUT_LLAMA3, NULL, true, true},
    {"dbrx", CUT_LLAMA3, NULL, false, false},
    {"smaug-bpe", CUT_LLAMA3, NULL, false, false},
    {"glm4", CUT_LLAMA3, NULL, true, false},
    {"chatglm-bpe", CUT_LLAMA3, NULL, false, false},
    {"qwen2", CUT_QWEN2, NFC, false, false},
    {"qwen35", CUT_QWEN35, NFC, false, false},
    {"deepseek-r1-qwen", CUT_QWEN2, NFC, false, false},
    {"megrez", CUT_QWEN2, NFC, false, false},
    {"stablelm2", CUT_QWEN2, NULL, false, false},
    {"gpt-2", CUT_GPT2, NULL, false, false},
    {"phi-2", CUT_GPT2, NULL, false, false},
    {"olmo", CUT_GPT2, NULL, false, false},
    {"mpt", CUT_GPT2, NULL, false, false},
    {"exaone4", CUT_GPT2, NULL, false, false},
    {"a.x-4.0", CUT_GPT2, NULL, false, false},
    {"starcoder", CUT_DIGITS, NULL, false, false},
    {"refact", CUT_DIGITS, NULL, false, false},
    {"smollm", CUT_DIGITS, NULL, false, false},
    {"codeshell", CUT_DIGITS, NULL, false, false},
    {"exaone", CUT_DIGITS, NULL, false, false},
    {"minerva-7b", CUT_DIGITS, NULL, false, false},
    {"command-r", CUT_DIGITS, NFC, false, false},
    {"tekken", CUT_TEKKEN, NULL, true, true},
    {"gpt-4o", CUT_GPT4O, NULL, false, false},
    {"llama4", CUT_GPT4O, NULL, false, false},
    {"kanana2", CUT_GPT4O, NULL, false, false},
    {"seed-coder", CUT_SEED, NULL, false, false},
    {"deepseek-v3", CUT_DEEPSEEK3, NULL, false, false},
    {"kimi-k2", CUT_KIMI, NULL, false, false},
    {"hunyuan-dense", CUT_DEEPSEEK3, NULL, false, false},
    {"hunyuan", CUT_QWEN2, NULL, false, false},
    {"solar-open", CUT_QWEN2, NULL, false, false},
    {"minimax-m2", CUT_GPT4O, NULL, false, false},
    {"bailingmoe", CUT_BAILING, NULL, false, false},
    {"bailingmoe2", CUT_BAILING, NULL, false, false},
    {"exaone-moe", CUT_EXAONE_MOE, NULL, false, false},
    {"jais-2", CUT_JAIS2, NULL, false, false},
    {"afmoe", CUT_AFMOE, NULL, false, false},
    {"youtu", CUT_YOUTU, NULL, true, false},
    {"minicpm5", CUT_MINICPM5, NULL, true, false},
    {"glm5", CUT_LLAMA3, NULL, true, false},
    {"mellum", CUT_GPT2, NULL, false, false},
    {"mellum2", CUT_DIGITS, NULL, false, false},
    {"deepseek-coder", CUT_CODER, NULL, false, false},
};

/* --- the tokenizer of a file ----------------------------------------------------------------- */

/* The lists of the vocabulary, and the ids with a meaning; -1 without one. */
struct gguf_vocab {
    const struct gguf *g;
    const struct gguf_value *tokens, *kinds, *scores;
    const struct cut *cut; /* of a byte-level model; NULL: U+2581 marks spaces */
    bool has_merges;       /* else scores */
    int64_t bos, eos, unk, pad;
    bool adds_bos, adds_eos, adds_space;
};

/* An id that a setting gives. */
static int64_t gguf_folder_id(const struct gguf_vocab *v, const char *key, int64_t preset)
{
    int64_t id = preset;

    if (!gguf_whole(v->g, key, &id) || id < 0 || (uint64_t)id >= v->tokens->n)
        id = preset;
    if (id >= 0 && (uint64_t)id >= v->tokens->n)
        return -1;
    return id;
}

/* The row of a pattern; NULL (with a sentence) if it is unknown. */
static const struct cut *gguf_folder_cut(const struct gguf *g, char *why, size_t why_cap)
{
    struct gguf_text name = {"", 0};

    if (!gguf_get_text(g, "tokenizer.ggml.pre", &name)) {
        (void)snprintf(why, why_cap,
                       "tokenizer.ggml.pre is missing, and texts would be cut wrongly;"
                       " convert the model again");
        return NULL;
    }
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        if (gguf_text_is(name, cuts[i].name))
            return &cuts[i];
    }
    (void)snprintf(why, why_cap, "tokenizer.ggml.pre \"%.*s\" is not supported",
                   (int)(name.len < 40 ? name.len : 40), name.bytes);
    return NULL;
}

/* The named ids and the flags, with the defaults of the two kinds. */
static void gguf_folder_read_settings(struct gguf_vocab *v)
{
    bool is_spm = !v->has_merges;

    v->bos = gguf_folder_id(v, "tokenizer.ggml.bos_token_id", is_spm ? 1 : -1);
    v->eos = gguf_folder_id(v, "tokenizer.ggml.eos_token_id", is_spm ? 2 : -1);
    v->unk = gguf_folder_id(v, "tokenizer.ggml.unknown_token_id", is_spm ? 0 : -1);
    v->pad = gguf_folder_id(v, "tokenizer.ggml.padding_token_id", -1);
    v->adds_bos = v->cut == NULL || v->cut->adds_bos;
    v->adds_eos = false;
    v->adds_space = is_spm;
    /* Those that are missing keep their defaults. */
    (void)gguf_flag(v->g, "tokenizer.ggml.add_bos_token", &v->adds_bos);
    (void)gguf_flag(v->g, "tokenizer.ggml.add_eos_token", &v->adds_eos);
    (void)gguf_flag(v->g, "tokenizer.ggml.add_space_prefix", &v->adds_space);
}

/* Are the switches flags, if they are there? As defaults they would make other ids. */
static bool gguf_folder_are_flags(const struct gguf *g, char *why, size_t why_cap)
{
    static const char *const keys[] = {"tokenizer.ggml.add_bos_token",
                                       "tokenizer.ggml.add_eos_token",
                                       "tokenizer.ggml.add_space_prefix"};
    bool flag;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (gguf_find(g, keys[i]) != NULL && !gguf_flag(g, keys[i], &flag)) {
            (void)snprintf(why, why_cap, "%s must be a flag", keys[i]);
            return false;
        }
    }
    return true;
}

static int gguf_folder_open_vocab(struct gguf_vocab *v, const struct gguf *g, char *why,
                                  size_t why_cap)
{
    struct gguf_text model = {"", 0};

    *v = (struct gguf_vocab){.g = g,
                             .tokens = gguf_list(g, "tokenizer.ggml.tokens", GGUF_TEXT),
                             .kinds = gguf_find(g, "tokenizer.ggml.token_type"),
                             .scores = gguf_list(g, "tokenizer.ggml.scores", GGUF_F32)};
    if (v->tokens == NULL) {
        (void)snprintf(why, why_cap, "tokenizer.ggml.tokens is missing");
        return ERR_NOT_FOUND;
    }
    (void)gguf_get_text(g, "tokenizer.ggml.model", &model); /* "" when missing */
    v->has_merges = gguf_text_is(model, "gpt2") || gguf_text_is(model, "gemma4");
    if (gguf_text_is(model, "gpt2")) {
        v->cut = gguf_folder_cut(g, why, why_cap);
        if (v->cut == NULL)
            return ERR_UNSUPPORTED;
    } else if (!v->has_merges && !gguf_text_is(model, "llama")) {
        (void)snprintf(why, why_cap,
                       "tokenizer.ggml.model \"%.*s\" is not supported, only gpt2, llama and "
                       "gemma4",
                       (int)(model.len < 40 ? model.len : 40), model.bytes);
        return ERR_UNSUPPORTED;
    } else if (v->has_merges) {
        if (gguf_list(g, "tokenizer.ggml.merges", GGUF_TEXT) == NULL) {
            (void)snprintf(why, why_cap, "tokenizer.ggml.merges is missing");
            return ERR_CORRUPT;
        }
    } else if (v->scores == NULL || v->scores->n < v->tokens->n) {
        (void)snprintf(why, why_cap, "tokenizer.ggml.scores are missing or fewer than tokens");
        return ERR_CORRUPT;
    }
    if (!gguf_folder_are_flags(g, why, why_cap))
        return ERR_CORRUPT;
    gguf_folder_read_settings(v);
    return ERR_OK;
}

/* The type of a token. Without types, the named tokens are control tokens and all others normal. */
static enum gguf_token_type gguf_folder_kind(const struct gguf_vocab *v, uint64_t id)
{
    double kind = GGUF_TOKEN_NORMAL;

    if (v->kinds == NULL && ((int64_t)id == v->bos || (int64_t)id == v->eos ||
                             (int64_t)id == v->unk || (int64_t)id == v->pad))
        return GGUF_TOKEN_CONTROL;
    if (v->kinds != NULL && !gguf_item(v->kinds, id, &kind))
        return GGUF_TOKEN_NORMAL;
    for (int i = GGUF_TOKEN_NORMAL; i <= GGUF_TOKEN_BYTE; i++) {
        if (kind == (double)i)
            return (enum gguf_token_type)i;
    }
    return GGUF_TOKEN_NORMAL;
}

/* The text of a token; false for -1. O(id). */
static bool gguf_folder_token(const struct gguf_vocab *v, int64_t id, struct gguf_text *out)
{
    struct gguf_walk walk = gguf_walk(v->tokens);

    for (int64_t i = 0; i <= id; i++) {
        if (!gguf_next(&walk, out))
            return false;
    }
    return id >= 0;
}

static void gguf_folder_put_string(struct buf *out, struct gguf_text text)
{
    buf_add_json_string(out, text.bytes, text.len);
}

/* --- tokenizer.json -------------------------------------------------------------------------- */

/* {"the": 262, ...}. An empty text, or one with a NUL, cannot be a name; no text has such a
 * token. */
static void gguf_folder_put_vocab(struct buf *out, const struct gguf_vocab *v)
{
    struct gguf_walk walk = gguf_walk(v->tokens);
    struct gguf_text token;
    bool more = false;

    buf_add_text(out, "\"vocab\":{");
    for (unsigned long long id = 0; gguf_next(&walk, &token); id++) {
        if (token.len == 0 || memchr(token.bytes, '\0', token.len) != NULL)
            continue;
        buf_add_comma(out, more);
        gguf_folder_put_string(out, token);
        buf_printf(out, ":%llu", id);
        more = true;
    }
    buf_add_byte(out, '}');
}

/* Control tokens and pieces of other kinds are not made by merges. */
static void gguf_folder_put_scores(struct buf *out, const struct gguf_vocab *v)
{
    double score;

    buf_add_text(out, ",\"scores\":[");
    for (uint64_t id = 0; id < v->tokens->n; id++) {
        buf_add_comma(out, id > 0);
        if (gguf_folder_kind(v, id) == GGUF_TOKEN_NORMAL && gguf_item(v->scores, id, &score) &&
            isfinite(score))
            json_write_real(out, score);
        else
            buf_add_text(out, "null");
    }
    buf_add_byte(out, ']');
}

static void gguf_folder_put_merges(struct buf *out, const struct gguf_vocab *v)
{
    struct gguf_walk walk = gguf_walk(gguf_list(v->g, "tokenizer.ggml.merges", GGUF_TEXT));
    struct gguf_text merge;

    buf_add_text(out, ",\"merges\":[");
    for (bool more = false; gguf_next(&walk, &merge); more = true) {
        buf_add_comma(out, more);
        gguf_folder_put_string(out, merge);
    }
    buf_add_byte(out, ']');
}

/* Phi 3's SentencePiece model drops the white space behind its control tokens, but not behind these
 * three; only tokenizer.json says so. */
static bool gguf_folder_strips(const struct gguf_vocab *v, struct gguf_text token)
{
    struct gguf_text arch = {"", 0};

    return !v->has_merges && gguf_get_text(v->g, "general.architecture", &arch) &&
           gguf_text_is(arch, "phi3") && !gguf_text_is(token, "<unk>") &&
           !gguf_text_is(token, "<s>") && !gguf_text_is(token, "<|endoftext|>");
}

static void gguf_folder_put_added(struct buf *out, const struct gguf_vocab *v)
{
    struct gguf_walk walk = gguf_walk(v->tokens);
    struct gguf_text token;
    bool more = false;

    buf_add_text(out, "\"added_tokens\":[");
    for (uint64_t id = 0; gguf_next(&walk, &token); id++) {
        enum gguf_token_type kind = gguf_folder_kind(v, id);
        bool special = kind == GGUF_TOKEN_CONTROL || kind == GGUF_TOKEN_UNKNOWN;

        if ((!special && kind != GGUF_TOKEN_ADDED) || token.len == 0 ||
            memchr(token.bytes, '\0', token.len) != NULL)
            continue;
        buf_printf(out, "%s{\"id\":%llu,\"content\":", more ? "," : "", (unsigned long long)id);
        gguf_folder_put_string(out, token);
        buf_printf(out, ",\"special\":%s,\"rstrip\":%s}", json_flag_text(special),
                   json_flag_text(special && gguf_folder_strips(v, token)));
        more = true;
    }
    buf_add_text(out, "],");
}

/* The steps before and after BPE of a byte-level model, or of a SentencePiece model, whose pieces
 * have U+2581 for a space and, if the file says so, one before the text. */
static void gguf_folder_put_chains(struct buf *out, const struct gguf_vocab *v)
{
    static const char to_mark[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                                  "\"content\":\"\xe2\x96\x81\"}";
    static const char from_mark[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\""
                                    "},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
                                    "{\"type\":\"Fuse\"}";

    if (v->cut != NULL) {
        buf_printf(out, "\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":" BYTES("true") ",",
                   v->cut->normalizer != NULL ? v->cut->normalizer : "null", v->cut->pre_tokenizer);
        return;
    }
    buf_printf(out, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s%s]},",
               v->adds_space ? "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}," : "",
               to_mark);
    buf_printf(
        out, "\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":[%s%s]},",
        from_mark,
        v->adds_space ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
}

/* The ids around a text. */
static void gguf_folder_put_around(struct buf *out, const struct gguf_vocab *v)
{
    bool bos = v->adds_bos && v->bos >= 0, eos = v->adds_eos && v->eos >= 0;

    if (!bos && !eos) {
        buf_add_text(out, "\"post_processor\":null,");
        return;
    }
    buf_printf(out,
               "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[%s"
               "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}%s],\"special_tokens\":{",
               bos ? "{\"SpecialToken\":{\"id\":\"bos\",\"type_id\":0}}," : "",
               eos ? ",{\"SpecialToken\":{\"id\":\"eos\",\"type_id\":0}}" : "");
    if (bos)
        buf_printf(out, "\"bos\":{\"id\":\"bos\",\"ids\":[%lld]}%s", (long long)v->bos,
                   eos ? "," : "");
    if (eos)
        buf_printf(out, "\"eos\":{\"id\":\"eos\",\"ids\":[%lld]}", (long long)v->eos);
    buf_add_text(out, "}},");
}

static void gguf_folder_put_tokenizer(struct buf *out, const struct gguf_vocab *v)
{
    struct gguf_text unk;

    buf_add_byte(out, '{');
    gguf_folder_put_added(out, v);
    gguf_folder_put_chains(out, v);
    gguf_folder_put_around(out, v);
    buf_printf(out,
               "\"model\":{\"type\":\"BPE\",\"byte_fallback\":%s,\"fuse_unk\":%s,"
               "\"ignore_merges\":%s,",
               json_flag_text(v->cut == NULL), json_flag_text(v->cut == NULL),
               json_flag_text(v->cut != NULL && v->cut->ignores_merges));
    if (v->cut == NULL && gguf_folder_token(v, v->unk, &unk)) {
        buf_add_text(out, "\"unk_token\":");
        gguf_folder_put_string(out, unk);
        buf_add_byte(out, ',');
    }
    gguf_folder_put_vocab(out, v);
    if (v->has_merges)
        gguf_folder_put_merges(out, v);
    else
        gguf_folder_put_scores(out, v);
    buf_add_text(out, "}}");
}

/* --- tokenizer_config.json ------------------------------------------------------------------- */

/* The chat templates: tokenizer.chat_template, and others with their name behind it. */
static void gguf_folder_put_templates(struct buf *out, const struct gguf *g)
{
    static const char key[] = "tokenizer.chat_template";
    struct gguf_walk walk;
    struct gguf_text text;
    bool more = false;

    buf_add_text(out, "\"chat_template\":[");
    for (size_t i = 0; i < g->n_values; i++) {
        const struct gguf_value *value = &g->values[i];
        size_t len = sizeof key - 1;

        walk = gguf_walk(value);
        if (value->is_list || value->key.len < len || memcmp(value->key.bytes, key, len) != 0 ||
            (value->key.len > len && value->key.bytes[len] != '.') || !gguf_next(&walk, &text))
            continue;
        buf_printf(out, "%s{\"name\":", more ? "," : "");
        if (value->key.len == len)
            buf_add_text(out, "\"default\"");
        else
            buf_add_json_string(out, value->key.bytes + len + 1, value->key.len - len - 1);
        buf_add_text(out, ",\"template\":");
        gguf_folder_put_string(out, text);
        buf_add_byte(out, '}');
        more = true;
    }
    buf_add_byte(out, ']');
}

static void gguf_folder_put_config(struct buf *out, const struct gguf_vocab *v)
{
    const struct {
        const char *name;
        int64_t id;
    } named[] = {
        {"bos_token", v->bos}, {"eos_token", v->eos}, {"unk_token", v->unk}, {"pad_token", v->pad}};
    struct gguf_text text;

    buf_add_byte(out, '{');
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (!gguf_folder_token(v, named[i].id, &text))
            continue;
        buf_printf(out, "\"%s\":", named[i].name);
        gguf_folder_put_string(out, text);
        buf_add_byte(out, ',');
    }
    gguf_folder_put_templates(out, v->g);
    buf_add_byte(out, '}');
}

/* --- generation_config.json ------------------------------------------------------------------ */

/* The ids that end a text, and the presets of sampling that some files have. */
static void gguf_folder_put_generation(struct buf *out, const struct gguf *g)
{
    static const struct {
        const char *key, *field;
    } presets[] = {{"general.sampling.temp", "temperature"},
                   {"general.sampling.top_k", "top_k"},
                   {"general.sampling.top_p", "top_p"},
                   {"general.sampling.min_p", "min_p"}};
    int32_t ids[16];
    int n = gguf_ends(g, ids, (int)(sizeof ids / sizeof ids[0]));
    double number;

    buf_add_text(out, "{\"eos_token_id\":[");
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%d", i > 0 ? "," : "", ids[i]);
    buf_add_byte(out, ']');
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (!gguf_real(g, presets[i].key, &number) || !isfinite(number))
            continue;
        buf_printf(out, ",\"%s\":", presets[i].field);
        if (i == 1)
            buf_printf(out, "%.0f", number);
        else
            json_write_real(out, number);
    }
    buf_add_byte(out, '}');
}

/* --- the folder ------------------------------------------------------------------------------ */

enum folder_file { FOLDER_TOKENIZER, FOLDER_CONFIG, FOLDER_GENERATION, FOLDER_FILES };

static const char *const file_names[FOLDER_FILES] = {"tokenizer.json", "tokenizer_config.json",
                                                     "generation_config.json"};

static int gguf_folder_make(struct buf *out, const struct gguf *g, enum folder_file file, char *why,
                            size_t why_cap)
{
    struct gguf_vocab vocab;
    int rc;

    if (file == FOLDER_GENERATION) {
        gguf_folder_put_generation(out, g);
        return ERR_OK;
    }
    if ((rc = gguf_folder_open_vocab(&vocab, g, why, why_cap)) != ERR_OK)
        return rc;
    if (file == FOLDER_TOKENIZER)
        gguf_folder_put_tokenizer(out, &vocab);
    else
        gguf_folder_put_config(out, &vocab);
    return ERR_OK;
}

int gguf_folder_read(struct buf *out, const char *path, const char *name, char *why, size_t why_cap)
{
    struct gguf_file *file = NULL;
    char reason[200] = "";
    int which = 0, rc;

    while (which < FOLDER_FILES && strcmp(name, file_names[which]) != 0)
        which++;
    if (which == FOLDER_FILES) {
        (void)snprintf(why, why_cap, "%s: a GGUF file has no %s", path, name);
        return ERR_NOT_FOUND;
    }
    if ((rc = gguf_open(&file, path, why, why_cap)) != ERR_OK)
        return rc;
    rc = gguf_folder_make(out, gguf_of(file), (enum folder_file)which, reason, sizeof reason);
    if (rc == ERR_OK && out->failed)
        rc = ERR_NO_MEMORY;
    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "%s: %s", path, reason[0] != '\0' ? reason : err_sentence(rc));
    gguf_close(file);
    return rc;
}
