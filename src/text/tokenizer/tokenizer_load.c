/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a tokenizer: from the image of the folder's files if there is one, else from the files.
 *
 *   files -> digest -> image in the cache folder? -> checked, attached
 *                   -> JSON trees -> struct load -> image -> attached, written to the cache folder
 *
 * The JSON trees live in one arena that is freed before tokenizer_open() returns. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "text/file.h"
#include "text/tokenizer/image_file.h"
#include "text/tokenizer/tokenizer_parts.h"

#define FILE_BYTES_MAX ((size_t)256 << 20) /* the largest tokenizer.json has 40 MB */

const char *const tokenizer_file_names[TOKENIZER_FILES] = {
    [FILE_TOKENIZER] = "tokenizer.json",
    [FILE_RANKS] = "tiktoken.model",
    [FILE_VOCAB] = "vocab.json",
    [FILE_MERGES] = "merges.txt",
    [FILE_CONFIG] = "tokenizer_config.json",
    [FILE_SPECIAL] = "special_tokens_map.json",
    [FILE_ADDED] = "added_tokens.json",
    [FILE_GENERATION] = "generation_config.json",
    [FILE_MODEL] = "config.json",
};

int load_fail(struct load *load, int rc, const char *format, ...)
{
    va_list args;

    must(rc < 0);
    va_start(args, format);
    (void)vsnprintf(load->why, load->why_cap, format, args);
    va_end(args);
    return rc;
}

int load_no_memory(struct load *load)
{
    return load_fail(load, ERR_NO_MEMORY, "out of memory for the tokenizer");
}

/* --- files -------------------------------------------------------------------------------------*/

/* Is this file read? vocab.json and its companions are used only without tokenizer.json and without
 * tiktoken.model, and tiktoken.model only without tokenizer.json. Files are visited in the order of
 * the enum, so has_tokenizer is known in time. */
static bool load_is_read(enum tokenizer_file file, bool has_tokenizer)
{
    return !has_tokenizer ||
           (file != FILE_RANKS && file != FILE_VOCAB && file != FILE_MERGES && file != FILE_ADDED);
}

static bool load_is_tokenizer(enum tokenizer_file file)
{
    return file == FILE_TOKENIZER || file == FILE_RANKS;
}

/* Read every file of the folder; a missing file stays empty. */
static int load_read_files(struct load *load, const char *dir, struct buf files[TOKENIZER_FILES])
{
    bool has_tokenizer = false;
    int f;

    for (f = 0; f < TOKENIZER_FILES; f++) {
        int rc = ERR_NOT_FOUND;

        if (load_is_read((enum tokenizer_file)f, has_tokenizer))
            rc = file_read(&files[f], dir, tokenizer_file_names[f], FILE_BYTES_MAX, load->why,
                           load->why_cap);
        /* Every file alone is optional. Which combinations are enough is decided below. */
        if (rc != ERR_OK && rc != ERR_NOT_FOUND)
            return rc;
        has_tokenizer =
            has_tokenizer || (load_is_tokenizer((enum tokenizer_file)f) && rc == ERR_OK);
    }
    if (!has_tokenizer && (files[FILE_VOCAB].bytes == NULL || files[FILE_MERGES].bytes == NULL))
        return load_fail(load, ERR_NOT_FOUND,
                         "neither tokenizer.json, tiktoken.model, nor vocab.json and merges.txt");
    return ERR_OK;
}

/* The digest of a folder covers the names and contents of its files, in the order of the enum. */
static void load_digest_name(struct hash *hash, enum tokenizer_file file)
{
    const char *name = tokenizer_file_names[file];

    *hash = hash_sha256(hash->bytes, HASH_BYTES, name, strlen(name));
}

static struct hash load_digest_read(const struct buf files[TOKENIZER_FILES])
{
    struct hash hash = {{0}};
    int f;

    for (f = 0; f < TOKENIZER_FILES; f++) {
        if (files[f].bytes == NULL)
            continue;
        load_digest_name(&hash, (enum tokenizer_file)f);
        file_fold(&hash, files[f].bytes, files[f].len);
    }
    return hash;
}

/* That digest for the files in the folder, without keeping their contents in memory. */
static int load_digest_folder(struct hash *hash, const char *dir, char *why, size_t why_cap)
{
    bool has_tokenizer = false;
    int f;

    *hash = (struct hash){{0}};
    for (f = 0; f < TOKENIZER_FILES; f++) {
        /* The name is folded into a copy: a file that is missing must leave no trace in the
         * digest. */
        struct hash with = *hash;
        int rc;

        if (!load_is_read((enum tokenizer_file)f, has_tokenizer))
            continue;
        load_digest_name(&with, (enum tokenizer_file)f);
        rc = file_digest(&with, dir, tokenizer_file_names[f], FILE_BYTES_MAX, why, why_cap);
        if (rc != ERR_OK && rc != ERR_NOT_FOUND)
            return rc;
        if (rc == ERR_OK)
            *hash = with;
        /* The rule must be that of load_read_files(), or the digest would cover other files than
         * those that were read. */
        has_tokenizer =
            has_tokenizer || (load_is_tokenizer((enum tokenizer_file)f) && rc == ERR_OK);
    }
    return ERR_OK;
}

/* Parse the JSON files; the two text files are moved to load as they are. */
static int load_parse_files(struct load *load, struct buf files[TOKENIZER_FILES])
{
    int f;

    for (f = 0; f < TOKENIZER_FILES; f++) {
        char reason[200] = "";
        int rc;

        if (files[f].bytes == NULL || f == FILE_MERGES || f == FILE_RANKS)
            continue;
        rc = json_parse(&load->files[f], &load->arena, files[f].bytes, files[f].len, reason,
                        sizeof reason);
        if (rc != ERR_OK)
            return load_fail(load, rc, "%s: %s", tokenizer_file_names[f],
                             reason[0] != '\0' ? reason : err_sentence(rc));
        if (load->files[f]->kind != JSON_OBJECT)
            return load_fail(load, ERR_INVALID, "%s: not an object", tokenizer_file_names[f]);
        buf_fini(&files[f]); /* the tree has copies */
    }
    load->merges_txt = files[FILE_MERGES];
    files[FILE_MERGES] = (struct buf){0};
    load->ranks = files[FILE_RANKS];
    files[FILE_RANKS] = (struct buf){0};
    return ERR_OK;
}

/* --- building ----------------------------------------------------------------------------------*/

/* Read the chains before and after BPE. The pre-tokenizer is prepared once for trial, to find out
 * at start whether all its patterns can be compiled. */
static int load_read_chains(struct load *load, const struct json *root)
{
    struct pretoken trial;
    bool byte_level = false;
    int rc = pretoken_read(&load->cuts, &byte_level, json_get(root, "pre_tokenizer"), load->why,
                           load->why_cap);

    if (rc == ERR_OK)
        rc = pretoken_init(&trial, &load->cuts, load->why, load->why_cap);
    if (rc != ERR_OK)
        return rc;
    pretoken_fini(&trial);
    /* Byte-level models spell bytes by printable characters, and the flag makes all later steps
     * use bytes. */
    if (byte_level)
        load->facts.flags |= IMAGE_BYTE_LEVEL;
    rc = decode_read(&load->decode, json_get(root, "decoder"), load->why, load->why_cap);
    if (rc == ERR_OK)
        rc = normal_read(&load->rewrites, json_get(root, "normalizer"), load->why, load->why_cap);
    /* The decoder and the normalizer are read last, because the normalizer is prepared for good:
     * added tokens are normalized with it. */
    if (rc == ERR_OK)
        return normal_init(&load->normal, &load->rewrites, load->why, load->why_cap);
    return rc;
}

/* Without tokenizer.json the chains are those of the tokenizer's class. */
static int load_chains(struct load *load)
{
    int rc = ERR_OK;

    /* An empty reason means that a callee failed without one, for example because of memory. */
    load->why[0] = '\0';
    if (load->files[FILE_TOKENIZER] != NULL) {
        rc = load_read_chains(load, load->files[FILE_TOKENIZER]);
    } else {
        if (load->ranks.bytes != NULL)
            pretoken_kimi(&load->cuts);
        else
            pretoken_gpt2(&load->cuts,
                          json_get_bool(load->files[FILE_CONFIG], "add_prefix_space", false));
        load->facts.flags |= IMAGE_BYTE_LEVEL;
        load->decode.flags = IMAGE_DECODE_BYTES;
    }
    if (rc == ERR_OK || load->why[0] != '\0')
        return rc;
    return load_fail(load, rc, "%s", err_sentence(rc));
}

/* Build an image from the files' contents. */
static int load_build_image(struct load *load, struct buf files[TOKENIZER_FILES],
                            struct image_header **out)
{
    int rc = load_parse_files(load, files);

    /* -1: no such token. The steps below set those that the model has. */
    load->facts.bos = load->facts.eos = load->facts.pad = load->facts.unk = -1;
    if (rc == ERR_OK)
        rc = load_model_kind(load);
    /* The order is that of the dependencies: the chains decide whether the model is byte-level,
     * the vocabulary is spelled accordingly, merges name tokens of the vocabulary, and specials
     * add to it. */
    if (rc == ERR_OK)
        rc = load_chains(load);
    if (rc == ERR_OK)
        rc = load_vocab(load);
    if (rc == ERR_OK)
        rc = load_merges(load);
    if (rc == ERR_OK)
        rc = load_specials(load);
    if (rc == ERR_OK)
        return load_pack(load, out);
    return rc;
}

static void load_fini(struct load *load)
{
    buf_fini(&load->merges_txt);
    buf_fini(&load->ranks);
    vocab_fini(&load->vocab);
    mem_free(load->merges);
    normal_fini(&load->normal);
    mem_free(load->raw.items);
    mem_free(load->normalized.items);
    token_list_fini(&load->before);
    token_list_fini(&load->after);
    token_list_fini(&load->ends);
    arena_reset(&load->arena);
}

/* --- the longest token -------------------------------------------------------------------------*/

/* The most bytes that NFC turns into one: U+1FBE U+0308 U+0301, seven bytes, become U+0390, two. */
#define NFC_SHRINKS 4

/* The most bytes that one byte after these steps may come from; 0: unbounded. Used to bound the
 * number of tokens of a text from below. */
static size_t load_shrinks(const struct steps_draft *rewrites, const struct steps_draft *cuts)
{
    size_t times = 1;
    int i;

    for (i = 0; i < rewrites->n; i++) {
        const struct step_draft *st = &rewrites->steps[i];

        if (st->kind == NORMAL_NFC)
            times *= NFC_SHRINKS;
        else if (st->kind == NORMAL_REPLACE && st->by_len > 0)
            times *= (st->pattern_len + st->by_len - 1) / st->by_len;
        else if (st->kind != NORMAL_PREPEND)
            return 0;
        if (times > UINT32_MAX) /* a factor has at most 30 bits, as an image's length */
            return 0;
    }
    for (i = 0; i < cuts->n; i++) {
        if (cuts->steps[i].kind != PRETOKEN_METASPACE &&
            cuts->steps[i].behavior == PRETOKEN_REMOVED)
            return 0;
    }
    return times;
}

/* Does every character have tokens? Then none is dropped, and no run of any length becomes one
 * unknown token. */
static bool load_knows_all(const struct image_facts *facts)
{
    return (facts->flags & (IMAGE_BYTE_LEVEL | IMAGE_BYTE_FALLBACK)) != 0 &&
           image_has_all_bytes(facts);
}

/* Does an added token absorb white space? It could be of any length. */
static bool load_takes_white_space(const struct added_set *set)
{
    size_t i;

    for (i = 0; i < set->n; i++)
        if ((set->tokens[i].flags & (ADDED_LSTRIP | ADDED_RSTRIP)) != 0)
            return true;
    return false;
}

/* The longest text of an added token. For normalized ones it is the text that is searched for,
 * which may be longer than the token's own. */
static size_t load_longest_added(const struct added_set *set)
{
    size_t most = 0;
    size_t i;

    for (i = 0; i < set->n; i++) {
        if (set->tokens[i].text.len > most)
            most = set->tokens[i].text.len;
    }
    return most;
}

/* tokenizer_most_bytes(): the longest token, times the factor by which texts shrink before BPE. */
static size_t load_find_most_bytes(const struct tokenizer *tokenizer, size_t times)
{
    size_t most = load_longest_added(&tokenizer->normalized);
    size_t i;

    /* Without a bound on the bytes of a token there is no answer: 0. */
    if (!load_knows_all(&tokenizer->image->facts) || load_takes_white_space(&tokenizer->raw) ||
        load_takes_white_space(&tokenizer->normalized))
        return 0;
    /* A token encodes its text, as an added token, or its bytes or its piece, so the longest of
     * the three is the bound. */
    for (i = 0; i < image_count(tokenizer->image, IMAGE_TOKENS); i++) {
        const struct image_token *token = &tokenizer->tokens[i];

        if (token->text.len > most)
            most = token->text.len;
        if (token->bytes.len > most)
            most = token->bytes.len;
        if (token->piece.len > most)
            most = token->piece.len;
    }
    return most * times;
}

/* --- opening -----------------------------------------------------------------------------------*/

int tokenizer_attach(struct tokenizer *tokenizer, struct image_header *image, bool mapped,
                     char *why, size_t why_cap)
{
    struct steps_draft rewrites = {.n = 0};
    struct steps_draft cuts = {.n = 0};
    int rc = ERR_CORRUPT;

    must(image != NULL);
    /* The chains of steps are opened again, because an image cannot hold compiled patterns. */
    if (steps_of_image(&rewrites, image, IMAGE_REWRITES) &&
        steps_of_image(&cuts, image, IMAGE_CUTS))
        rc = normal_init(&tokenizer->normal, &rewrites, why, why_cap);
    if (rc != ERR_OK)
        return rc;
    rc = pretoken_init(&tokenizer->pretoken, &cuts, why, why_cap);
    if (rc != ERR_OK) {
        normal_fini(&tokenizer->normal);
        return rc;
    }
    /* Functions that decode characters rely on whole ones; a damaged image could break that. */
    if (tokenizer->pretoken.spelled && (image->facts.flags & IMAGE_BYTE_LEVEL) == 0) {
        pretoken_fini(&tokenizer->pretoken);
        normal_fini(&tokenizer->normal);
        return ERR_CORRUPT;
    }
    tokenizer->image = image;
    tokenizer->mapped = mapped;
    tokenizer->tokens = image_table(image, IMAGE_TOKENS);
    tokenizer->text = image_table(image, IMAGE_TEXT);
    tokenizer->by_text = image_table(image, IMAGE_BY_TEXT);
    tokenizer->by_text_mask = image_count(image, IMAGE_BY_TEXT) - 1;
    bpe_attach(&tokenizer->bpe, image);
    added_attach(&tokenizer->raw, image, IMAGE_RAW);
    added_attach(&tokenizer->normalized, image, IMAGE_NORMAL);
    tokenizer->most_bytes = load_find_most_bytes(tokenizer, load_shrinks(&rewrites, &cuts));
    return ERR_OK;
}

/* Map the image in the cache folder and use it. After any error except ERR_NO_MEMORY the caller
 * builds the image from the files. */
static int load_open_image(struct tokenizer *tokenizer, const char *cache_dir,
                           const struct hash *sources, struct tokenizer_opening *how)
{
    struct image_header *image = NULL;
    int rc = image_map(&image, cache_dir, sources, how->cache_why, sizeof how->cache_why);

    if (rc != ERR_OK)
        return rc;
    rc = tokenizer_attach(tokenizer, image, true, how->cache_why, sizeof how->cache_why);
    /* cache_why has the reason; the caller then builds one from the files. */
    if (rc != ERR_OK)
        image_unmap(image);
    else
        how->mapped = true;
    return rc;
}

/* Build the image from the files, and write it to the cache folder for the next time. */
static int load_open_files(struct tokenizer *tokenizer, struct load *load, const char *dir,
                           const char *cache_dir, struct tokenizer_opening *how)
{
    struct buf files[TOKENIZER_FILES] = {{0}};
    struct image_header *image = NULL;
    int rc = load_read_files(load, dir, files);
    int f;

    if (rc == ERR_OK) {
        /* The digest of the contents just read: the files may have changed since the last look. */
        load->sources = load_digest_read(files);
        rc = load_build_image(load, files, &image);
    }
    for (f = 0; f < TOKENIZER_FILES; f++)
        buf_fini(&files[f]);
    if (rc != ERR_OK)
        return rc;
    /* Prefer the mapping of the file just written to a private copy: it is shared. */
    if (cache_dir[0] != '\0') {
        rc = image_write(image, cache_dir, how->cache_why, sizeof how->cache_why);
        how->written = rc == ERR_OK;
        if (rc == ERR_OK && load_open_image(tokenizer, cache_dir, &load->sources, how) == ERR_OK) {
            mem_free(image);
            return ERR_OK;
        }
    }
    rc = tokenizer_attach(tokenizer, image, false, load->why, load->why_cap);
    if (rc != ERR_OK)
        mem_free(image);
    return rc;
}

int tokenizer_open_cached(struct tokenizer **out, const char *dir, const char *cache_dir,
                          struct tokenizer_opening *how, char *why, size_t why_cap)
{
    char reason[400] = "";
    struct load load = {.why = reason, .why_cap = sizeof reason};
    struct tokenizer_opening unasked;
    struct tokenizer *tokenizer = mem_zalloc(sizeof *tokenizer);
    int rc = tokenizer == NULL ? load_no_memory(&load) : ERR_NOT_FOUND;

    must(out != NULL && dir != NULL && cache_dir != NULL);
    how = how != NULL ? how : &unasked;
    *how = (struct tokenizer_opening){.mapped = false};
    if (tokenizer != NULL && cache_dir[0] != '\0' &&
        load_digest_folder(&load.sources, dir, reason, sizeof reason) == ERR_OK)
        rc = load_open_image(tokenizer, cache_dir, &load.sources, how);
    /* No image, a damaged one, or one of another version: the tokenizer is built from the model's
     * files. The error of the image is no error of the start. */
    if (rc != ERR_OK && rc != ERR_NO_MEMORY) {
        reason[0] = '\0';
        rc = load_open_files(tokenizer, &load, dir, cache_dir, how);
    }
    load_fini(&load);
    if (!how->mapped || how->written)
        mem_trim(); /* the JSON trees are five times as large as the image */
    if (rc == ERR_OK) {
        *out = tokenizer;
        return ERR_OK;
    }
    mem_free(tokenizer);
    if (why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "tokenizer of %s: %s", dir,
                       reason[0] != '\0' ? reason : err_sentence(rc));
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *dir, char *why, size_t why_cap)
{
    return tokenizer_open_cached(out, dir, "", NULL, why, why_cap);
}
