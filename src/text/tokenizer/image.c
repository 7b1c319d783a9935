/* SPDX-License-Identifier: Apache-2.0
 *
 * Header, then the tables, each at a multiple of a cache line. The order of the checks matters:
 * a check relies on those before it alone. */
#include "text/tokenizer/image.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#define ALIGN ((size_t)64)

static const char magic[8] = "quiretok";

static const size_t sizes[IMAGE_SECTIONS] = {
#define SECTION(name, type) sizeof(type),
    IMAGE_TABLES(SECTION)
#undef SECTION
};

/* Changes when a structure, a table or the byte order does. */
static uint64_t layout_digest(void)
{
    static const uint32_t shape[] = {
        IMAGE_VERSION,
        0x01020304,
        sizeof(size_t),
        IMAGE_SECTIONS,
        IMAGE_PIECE_LEN,
        sizeof(struct image_header),
        offsetof(struct image_header, sources),
        offsetof(struct image_header, tables),
        offsetof(struct image_header, facts),
        sizeof(struct image_facts),
        offsetof(struct image_facts, byte_ids),
        sizeof(struct image_token),
        offsetof(struct image_token, flags),
        sizeof(struct image_piece),
        offsetof(struct image_piece, id),
        sizeof(struct image_merge),
        offsetof(struct image_merge, id),
        sizeof(struct image_pair),
        sizeof(struct image_added),
        offsetof(struct image_added, flags),
        sizeof(struct image_step),
        offsetof(struct image_step, by),
        IMAGE_FLAGS_ALL,
    };

    return hash_xxh3(shape, sizeof shape);
}

static uint64_t checksum_of(const struct image_header *image)
{
    size_t from = offsetof(struct image_header, layout);

    return hash_xxh3((const char *)image + from, (size_t)image->bytes - from);
}

int image_build(struct image_header **out, const struct image_facts *facts,
                const struct image_part parts[IMAGE_SECTIONS], const struct hash *sources)
{
    struct image_table tables[IMAGE_SECTIONS];
    size_t bytes = (sizeof **out + ALIGN - 1) / ALIGN * ALIGN;
    struct image_header *image;
    int s;

    for (s = 0; s < IMAGE_SECTIONS; s++) {
        if (parts[s].n > (IMAGE_BYTES_MAX - bytes) / sizes[s])
            return ERR_LIMIT;
        tables[s] = (struct image_table){.at = bytes, .n = parts[s].n};
        bytes += (parts[s].n * sizes[s] + ALIGN - 1) / ALIGN * ALIGN;
        if (bytes > IMAGE_BYTES_MAX)
            return ERR_LIMIT;
    }
    image = mem_zalloc(bytes);
    if (image == NULL)
        return ERR_NO_MEMORY;
    memcpy(image->magic, magic, sizeof magic);
    image->layout = layout_digest();
    image->bytes = bytes;
    image->sources = *sources;
    image->facts = *facts;
    memcpy(image->tables, tables, sizeof tables);
    for (s = 0; s < IMAGE_SECTIONS; s++)
        if (parts[s].n > 0)
            memcpy((char *)image + tables[s].at, parts[s].items, parts[s].n * sizes[s]);
    *out = image;
    return ERR_OK;
}

void image_seal(struct image_header *image)
{
    image->checksum = checksum_of(image);
}

/* --- checks ------------------------------------------------------------------------------------*/

static int corrupt(const char **why, const char *reason)
{
    *why = reason;
    return ERR_CORRUPT;
}

static bool is_table(const struct image_header *image, enum image_section s)
{
    const struct image_table *t = &image->tables[s];

    return t->at % ALIGN == 0 && t->at >= sizeof *image && t->at <= image->bytes &&
           t->n <= (image->bytes - t->at) / sizes[s];
}

static bool is_text(const struct image_header *image, struct image_text text)
{
    size_t n = image_count(image, IMAGE_TEXT);

    return text.at <= n && text.len <= n - text.at;
}

/* A text that those read who expect characters. */
static bool is_utf8(const struct image_header *image, struct image_text text)
{
    return is_text(image, text) &&
           utf8_is_valid((const char *)image_table(image, IMAGE_TEXT) + text.at, text.len);
}

static bool is_id(const struct image_header *image, int64_t id)
{
    return id >= 0 && (uint64_t)id < image_count(image, IMAGE_TOKENS);
}

static bool is_id_or_none(const struct image_header *image, int32_t id)
{
    return id == -1 || is_id(image, id);
}

static bool is_power_of_two(size_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static int check_tokens(const struct image_header *image, const char **why)
{
    const struct image_token *t = image_table(image, IMAGE_TOKENS);
    size_t n = image_count(image, IMAGE_TOKENS);
    size_t i;

    if (n > INT32_MAX / 4)
        return corrupt(why, "too many tokens");
    for (i = 0; i < n; i++) {
        if (!is_text(image, t[i].text) || !is_text(image, t[i].bytes) ||
            !is_text(image, t[i].piece))
            return corrupt(why, "a token's text");
        if ((t[i].flags & TOKEN_BYTE) != 0 && t[i].bytes.len != 1)
            return corrupt(why, "a token of one byte");
    }
    return ERR_OK;
}

/* Searches end at a free slot, so there must be one. */
static int check_ids_table(const struct image_header *image, enum image_section s, const char **why)
{
    const uint32_t *slots = image_table(image, s);
    size_t n = image_count(image, s);
    size_t n_free = 0;
    size_t i;

    if (!is_power_of_two(n))
        return corrupt(why, "the size of a table of tokens");
    for (i = 0; i < n; i++) {
        n_free += slots[i] == 0;
        if (slots[i] != 0 && !is_id(image, (int64_t)slots[i] - 1))
            return corrupt(why, "a table of tokens");
    }
    return n_free > 0 ? ERR_OK : corrupt(why, "a table of tokens is full");
}

static int check_pieces(const struct image_header *image, const char **why)
{
    const struct image_piece *p = image_table(image, IMAGE_PIECES);
    size_t n = image_count(image, IMAGE_PIECES);
    size_t n_free = 0;
    size_t i;

    if (!is_power_of_two(n))
        return corrupt(why, "the size of the table of pieces");
    for (i = 0; i < n; i++) {
        n_free += p[i].id == -1;
        if (!is_id_or_none(image, p[i].id))
            return corrupt(why, "the table of pieces");
    }
    return n_free > 0 ? ERR_OK : corrupt(why, "the table of pieces is full");
}

static int check_merges(const struct image_header *image, const char **why)
{
    const struct image_merge *m = image_table(image, IMAGE_MERGES);
    size_t n = image_count(image, IMAGE_MERGES);
    size_t n_free = 0;
    size_t i;

    if (!is_power_of_two(n))
        return corrupt(why, "the size of the table of merges");
    for (i = 0; i < n; i++) {
        n_free += m[i].pair == IMAGE_MERGE_FREE;
        if (m[i].pair != IMAGE_MERGE_FREE && (!is_id(image, m[i].id) || m[i].rank == UINT32_MAX))
            return corrupt(why, "the table of merges");
    }
    return n_free > 0 ? ERR_OK : corrupt(why, "the table of merges is full");
}

static int check_pairs(const struct image_header *image, const char **why)
{
    const struct image_pair *p = image_table(image, IMAGE_BYTE_PAIRS);
    size_t n = image_count(image, IMAGE_BYTE_PAIRS);
    size_t i;

    if (!is_power_of_two(image_count(image, IMAGE_LIKELY)))
        return corrupt(why, "the size of the table of likely pairs");
    if (n != ((image->facts.flags & IMAGE_BYTE_LEVEL) != 0 ? 65536 : 0))
        return corrupt(why, "the size of the table of byte pairs");
    for (i = 0; i < n; i++)
        if (p[i].rank != UINT32_MAX && !is_id(image, p[i].id))
            return corrupt(why, "the table of byte pairs");
    return ERR_OK;
}

/* Sorted by text, then id: the search by halves relies on it. */
static bool is_before(const struct image_header *image, const struct image_added *a,
                      const struct image_added *b)
{
    const char *text = image_table(image, IMAGE_TEXT);
    size_t n = a->text.len < b->text.len ? a->text.len : b->text.len;
    int order = memcmp(text + a->text.at, text + b->text.at, n);

    if (order != 0)
        return order < 0;
    if (a->text.len != b->text.len)
        return a->text.len < b->text.len;
    return a->id <= b->id;
}

static int check_added(const struct image_header *image, enum image_section s, const char **why)
{
    const struct image_added *a = image_table(image, s);
    size_t n = image_count(image, s);
    size_t i;

    for (i = 0; i < n; i++) {
        if (!is_utf8(image, a[i].text) || a[i].text.len == 0 || !is_id(image, a[i].id))
            return corrupt(why, "an added token");
        if (i > 0 && !is_before(image, &a[i - 1], &a[i]))
            return corrupt(why, "the order of the added tokens");
    }
    return ERR_OK;
}

static int check_steps(const struct image_header *image, enum image_section s, const char **why)
{
    const struct image_step *step = image_table(image, s);
    size_t i;

    for (i = 0; i < image_count(image, s); i++)
        if (!is_utf8(image, step[i].pattern) || !is_utf8(image, step[i].by))
            return corrupt(why, "a step's text");
    return ERR_OK;
}

static int check_list(const struct image_header *image, enum image_section s, const char **why)
{
    const int32_t *ids = image_table(image, s);
    size_t i;

    for (i = 0; i < image_count(image, s); i++)
        if (!is_id(image, ids[i]))
            return corrupt(why, "a list of tokens");
    return ERR_OK;
}

static int check_facts(const struct image_header *image, const char **why)
{
    const struct image_facts *f = &image->facts;
    int i;

    if ((f->flags & ~(uint32_t)IMAGE_FLAGS_ALL) != 0 || !is_id_or_none(image, f->bos) ||
        !is_id_or_none(image, f->eos) || !is_id_or_none(image, f->pad) ||
        !is_id_or_none(image, f->unk) || f->strip_char > 0x10ffff)
        return corrupt(why, "a fact");
    for (i = 0; i < 256; i++)
        if (!is_id_or_none(image, f->byte_ids[i]))
            return corrupt(why, "the token of a byte");
    for (i = 0; i < 128; i++)
        if (!is_id_or_none(image, f->ascii_ids[i]))
            return corrupt(why, "the token of a character");
    if ((f->flags & (IMAGE_APART | IMAGE_BYTE_LEVEL)) == (IMAGE_APART | IMAGE_BYTE_LEVEL))
        return corrupt(why, "bytes that are cut as characters");
    if ((f->flags & IMAGE_APART) != 0 && !is_power_of_two(image_count(image, IMAGE_JOINED)))
        return corrupt(why, "the size of the table of joined characters");
    return ERR_OK;
}

int image_check_tables(const struct image_header *image, const char **why)
{
    static int (*const checks[])(const struct image_header *, const char **) = {
        check_tokens, check_pieces, check_merges, check_pairs, check_facts};
    static const struct {
        int (*check)(const struct image_header *, enum image_section, const char **);
        enum image_section section;
    } tables[] = {{check_ids_table, IMAGE_BY_TEXT}, {check_ids_table, IMAGE_LONG_PIECES},
                  {check_added, IMAGE_RAW},         {check_added, IMAGE_NORMAL},
                  {check_steps, IMAGE_REWRITES},    {check_steps, IMAGE_CUTS},
                  {check_list, IMAGE_BEFORE},       {check_list, IMAGE_AFTER},
                  {check_list, IMAGE_SPECIAL},      {check_list, IMAGE_ENDS}};
    size_t i;
    int rc = ERR_OK;
    int s;

    for (s = 0; s < IMAGE_SECTIONS; s++)
        if (!is_table(image, (enum image_section)s))
            return corrupt(why, "the place of a table");
    for (i = 0; i < sizeof checks / sizeof checks[0] && rc == ERR_OK; i++)
        rc = checks[i](image, why);
    for (i = 0; i < sizeof tables / sizeof tables[0] && rc == ERR_OK; i++)
        rc = tables[i].check(image, tables[i].section, why);
    return rc;
}

int image_check(const void *bytes, size_t len, const struct hash *sources, const char **why)
{
    const struct image_header *image = bytes;

    if (len < sizeof *image || len > IMAGE_BYTES_MAX ||
        memcmp(image->magic, magic, sizeof magic) != 0)
        return corrupt(why, "not an image");
    if (image->layout != layout_digest()) {
        *why = "the layout of another version";
        return ERR_VERSION;
    }
    if (image->bytes != len)
        return corrupt(why, "the length");
    if (image->checksum != checksum_of(image))
        return corrupt(why, "the checksum");
    if (memcmp(&image->sources, sources, sizeof *sources) != 0) {
        *why = "made of other files";
        return ERR_VERSION;
    }
    return image_check_tables(image, why);
}
