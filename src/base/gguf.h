/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF files: a model in one file, as llama.cpp writes it. The head of the file has settings
 * ("llama.block_count") and the list of tensors; the tensors' bytes follow.
 *
 * Every length in the head is checked before it is used: settings and tensors lie inside the file,
 * have the bytes that their types imply, and do not overlap. Texts are neither NUL-terminated nor
 * known to be UTF-8.
 *
 * An open file is mapped, so it must not be truncated meanwhile (reading lost bytes of a mapping
 * raises SIGBUS). Any thread may read a parsed file. Source: docs/gguf.md of ggml-org/ggml. */
#ifndef QUIRE_BASE_GGUF_H
#define QUIRE_BASE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#define GGUF_DIMS_MAX 4

/* Types of settings, with the file's numbers. */
enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_FLAG,
    GGUF_TEXT,
    GGUF_LIST,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_KINDS
};

struct gguf_text {
    const char *bytes;
    size_t len;
};

/* One setting; of a list, n items of one kind. */
struct gguf_value {
    struct gguf_text key;
    enum gguf_kind kind; /* of the items of a list; never GGUF_LIST */
    bool is_list;
    uint64_t n;           /* items of a list; else 1 */
    const uint8_t *bytes; /* unaligned; texts have their length before them */
    size_t len;           /* of bytes */
};

struct gguf_tensor {
    const char *name; /* NUL-terminated */
    const char *type; /* "F32", "Q4_K", ...; static */
    int n_dims;
    int64_t dims[GGUF_DIMS_MAX]; /* last index fastest, the reverse of the file's order */
    const uint8_t *data;
    size_t bytes;
};

struct gguf {
    struct gguf_value *values; /* [n_values], in the order of the file */
    size_t n_values;
    struct gguf_tensor *tensors; /* [n_tensors], by address of data */
    size_t n_tensors;
    const uint8_t *data; /* where the tensors' bytes begin */
};

/* Check a whole file's bytes, and list its settings and tensors in the arena; both point into
 * bytes.
 *
 * Returns ERR_OK; ERR_CORRUPT if the file breaks a rule or is cut short, ERR_UNSUPPORTED for
 * another version, byte order or unknown type of tensor (`why` receives the reason, in one
 * sentence), ERR_NO_MEMORY. */
int gguf_parse(struct gguf *out, struct arena *arena, const uint8_t *bytes, size_t len, char *why,
               size_t why_cap) ERR_CHECKED;

/* Is there a regular file at this path, and so no folder? Such a path names a GGUF file. */
bool gguf_is_path(const char *path);

/* A file that is mapped and parsed. */
struct gguf_file;

/* ERR_NOT_FOUND, ERR_IO, and the errors of gguf_parse(); `why` receives the path and the reason. */
int gguf_open(struct gguf_file **out, const char *path, char *why, size_t why_cap) ERR_CHECKED;
void gguf_close(struct gguf_file *file); /* NULL is fine */

/* --- sets of files ---------------------------------------------------------------------------- */

#define GGUF_SET_MAX 4096

/* The number of files of a set, by the ending -00001-of-00003.gguf of the first one's path; 1 for
 * any other name. ERR_INVALID for another file of a set. */
int gguf_set_count(const char *path, int *n) ERR_CHECKED;

/* The path of file i of n, which is as long as the first one's. */
void gguf_set_path(char *out, size_t cap, const char *path, int i, int n);

/* As gguf_open(), with the tensors of all files of a set and the settings of the first, which
 * `path` names. ERR_INVALID for another one. */
int gguf_open_set(struct gguf_file **out, const char *path, char *why, size_t why_cap) ERR_CHECKED;

const struct gguf *gguf_of(const struct gguf_file *file);

/* --- settings ------------------------------------------------------------------------------- */

/* The setting of a name; NULL if there is none. O(n_values). */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);

/* Its value; false, with *out unchanged, if it is missing or of another kind. Whole numbers are of
 * any width; a real number may be written as a whole one. */
bool gguf_whole(const struct gguf *g, const char *key, int64_t *out);
bool gguf_real(const struct gguf *g, const char *key, double *out);
bool gguf_flag(const struct gguf *g, const char *key, bool *out);
bool gguf_get_text(const struct gguf *g, const char *key, struct gguf_text *out);
bool gguf_text_is(struct gguf_text text, const char *word);

/* Item i of a list of numbers or flags; a single setting is a list of one. False if it is not a
 * number (flags count as 0 and 1), or i is not below n. */
bool gguf_item(const struct gguf_value *v, uint64_t i, double *out);

/* The list of a name if it has items of this kind; else NULL. */
const struct gguf_value *gguf_list(const struct gguf *g, const char *key, enum gguf_kind kind);

/* A walk over the texts of a list. */
struct gguf_walk {
    const uint8_t *at, *end;
    uint64_t left;
};

struct gguf_walk gguf_walk(const struct gguf_value *list); /* NULL: no texts */
bool gguf_next(struct gguf_walk *walk, struct gguf_text *out);

/* The tensor of a name; NULL if there is none. O(n_tensors). */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* --- tokens ----------------------------------------------------------------------------------- */

/* Types of tokens, items of tokenizer.ggml.token_type. */
enum gguf_token_type {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN,
    GGUF_TOKEN_CONTROL,
    GGUF_TOKEN_ADDED,
    GGUF_TOKEN_UNUSED,
    GGUF_TOKEN_BYTE
};

/* The ids that end a text: those that the settings name, and control tokens that end a turn or a
 * text by their name, such as <|im_end|>, because a GGUF file does not list the ids of a
 * generation_config.json. Returns their number, at most cap. */
int gguf_ends(const struct gguf *g, int32_t *out, int cap);

#endif
