/* SPDX-License-Identifier: Apache-2.0
 *
 * Header, then the tables, each at a multiple of a cache line. The order of the checks matters:
 * a check relies on those before it alone. */
#include "text/tokenizer/image.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#define IMAGE_ALIGN ((size_t)64)

static const char magic[8] = "quiretok";

static const size_t sizes[IMAGE_SECTIONS] = {
#define SECTION(name, type) sizeof(type),
    IMAGE_TABLES(SECTION)
#undef SECTION
};

/* Changes when a structure, a table or the byte order does. */
static uint64_t image_layout_digest(void)
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

static uint64_t image_checksum_of(const struct image_header *image)
{
    size_t from = offsetof(struct image_header, layout);

    return hash_xxh3((const char *)image + from, (size_t)image->bytes - from);
}

int image_build(struct image_header **out, const struct image_facts *facts,
                const struct image_part parts[IMAGE_SECTIONS], const struct hash *sources)
{
    struct image_table tables[IMAGE_SECTIONS];
    size_t bytes = (sizeof **out + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
    struct image_header *image;
    int s;

    for (s = 0; s < IMAGE_SECTIONS; s++) {
        if (parts[s].n > (IMAGE_BYTES_MAX - bytes) / sizes[s])
            return ERR_LIMIT;
        tables[s] = (struct image_table){.at = bytes, .n = parts[s].n};
        bytes += (parts[s].n * sizes[s] + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
        if (bytes > IMAGE_BYTES_MAX)
            return ERR_LIMIT;
    }
    image = mem_zalloc(bytes);
    if (image == NULL)
        return ERR_NO_MEMORY;
    memcpy(image->magic, magic, sizeof magic);
    image->layout = image_layout_digest();
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
    image->checksum = image_checksum_of(image);
}

/* --- checks ------------------------------------------------------------------------------------*/

static int image_corrupt(const char **why, const char *reason)
{
    *why = reason;
    return ERR_CORRUPT;
}

static bool image_is_table(const struct image_header *image, enum image_section section)
{
    const struct image_table *t = &image->tables[section];

    return t->at % IMAGE_ALIGN == 0 && t->at >= sizeof *image && t->at <= image->bytes &&
           t->n <= (image->bytes - t->at) / sizes[section];
}

static bool image_is_text(const struct image_header *image, struct image_text text)
{
    size_t n = image_count(image, IMAGE_TEXT);

    return text.at <= n && text.len <= n - text.at;
}

/* A text that those read who expect characters. */
static bool image_is_utf8(const struct image_header *image, struct image_text text)
{
    return image_is_text(image, text) &&
           utf8_is_valid((const char *)image_table(image, IMAGE_TEXT) + text.at, text.len);
}

static bool image_is_id(const struct image_header *image, int64_t id)
{
    return id >= 0 && (uint64_t)id < image_count(image, IMAGE_TOKENS);
}

static bool image_is_id_or_none(const struct image_header *image, int32_t id)
{
    return id == -1 || image_is_id(image, id);
}

static bool image_is_power_of_two(size_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static int image_check_tokens(const struct image_header *image, const char **why)
{
    const struct image_token *t = image_table(image, IMAGE_TOKENS);
    size_t n = image_count(image, IMAGE_TOKENS);
    size_t i;

    if (n > INT32_MAX / 4)
        return image_corrupt(why, "too many tokens");
    for (i = 0; i < n; i++) {
        if (!image_is_text(image, t[i].text) || !image_is_text(image, t[i].bytes) ||
            !image_is_text(image, t[i].piece))
            return image_corrupt(why, "a token's text");
        if ((t[i].flags & TOKEN_BYTE) != 0 && t[i].bytes.len != 1)
            return image_corrupt(why, "a token of one byte");
    }
    return ERR_OK;
}

/* Searches end at a free slot, so there must be one. */
static int image_check_ids_table(const struct image_header *image, enum image_section section,
                                 const char **why)
{
    const uint32_t *slots = image_table(image, section);
    size_t n = image_count(image, section);
    size_t n_free = 0;
    size_t i;

    if (!image_is_power_of_two(n))
        return image_corrupt(why, "the size of a table of tokens");
    for (i = 0; i < n; i++) {
        n_free += slots[i] == 0;
        if (slots[i] != 0 && !image_is_id(image, (int64_t)slots[i] - 1))
            return image_corrupt(why, "a table of tokens");
    }
    return n_free > 0 ? ERR_OK : image_corrupt(why, "a table of tokens is full");
}

static int image_check_pieces(const struct image_header *image, const char **why)
{
    const struct image_piece *p = image_table(image, IMAGE_PIECES);
    size_t n = image_count(image, IMAGE_PIECES);
    size_t n_free = 0;
    size_t i;

    if (!image_is_power_of_two(n))
        return image_corrupt(why, "the size of the table of pieces");
    for (i = 0; i < n; i++) {
        n_free += p[i].id == -1;
        if (!image_is_id_or_none(image, p[i].id))
            return image_corrupt(why, "the table of pieces");
    }
    return n_free > 0 ? ERR_OK : image_corrupt(why, "the table of pieces is full");
}

static int image_check_merges(const struct image_header *image, const char **why)
{
    const struct image_merge *merge = image_table(image, IMAGE_MERGES);
    size_t n = image_count(image, IMAGE_MERGES);
    size_t n_free = 0;
    size_t i;

    if (!image_is_power_of_two(n))
        return image_corrupt(why, "the size of the table of merges");
    for (i = 0; i < n; i++) {
        n_free += merge[i].pair == IMAGE_MERGE_FREE;
        if (merge[i].pair != IMAGE_MERGE_FREE &&
            (!image_is_id(image, merge[i].id) || merge[i].rank == UINT32_MAX))
            return image_corrupt(why, "the table of merges");
    }
    return n_free > 0 ? ERR_OK : image_corrupt(why, "the table of merges is full");
}

static int image_check_pairs(const struct image_header *image, const char **why)
{
    const struct image_pair *p = image_table(image, IMAGE_BYTE_PAIRS);
    size_t n = image_count(image, IMAGE_BYTE_PAIRS);
    size_t i;

    if (!image_is_power_of_two(image_count(image, IMAGE_LIKELY)))
        return image_corrupt(why, "the size of the table of likely pairs");
    if (n != ((image->facts.flags & IMAGE_BYTE_LEVEL) != 0 ? 65536 : 0))
        return image_corrupt(why, "the size of the table of byte pairs");
    for (i = 0; i < n; i++)
        if (p[i].rank != UINT32_MAX && !image_is_id(image, p[i].id))
            return image_corrupt(why, "the table of byte pairs");
    return ERR_OK;
}

/* Sorted by text, then id: the search by halves relies on it. */
static bool image_is_before(const struct image_header *image, const struct image_added *a,
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

static int image_check_added(const struct image_header *image, enum image_section section,
                             const char **why)
{
    const struct image_added *a = image_table(image, section);
    size_t n = image_count(image, section);
    size_t i;

    for (i = 0; i < n; i++) {
        if (!image_is_utf8(image, a[i].text) || a[i].text.len == 0 || !image_is_id(image, a[i].id))
            return image_corrupt(why, "an added token");
        if (i > 0 && !image_is_before(image, &a[i - 1], &a[i]))
            return image_corrupt(why, "the order of the added tokens");
    }
    return ERR_OK;
}

static int image_check_steps(const struct image_header *image, enum image_section section,
                             const char **why)
{
    const struct image_step *step = image_table(image, section);
    size_t i;

    for (i = 0; i < image_count(image, section); i++)
        if (!image_is_utf8(image, step[i].pattern) || !image_is_utf8(image, step[i].by))
            return image_corrupt(why, "a step's text");
    return ERR_OK;
}

static int image_check_list(const struct image_header *image, enum image_section section,
                            const char **why)
{
    const int32_t *ids = image_table(image, section);
    size_t i;

    for (i = 0; i < image_count(image, section); i++)
        if (!image_is_id(image, ids[i]))
            return image_corrupt(why, "a list of tokens");
    return ERR_OK;
}

static int image_check_facts(const struct image_header *image, const char **why)
{
    const struct image_facts *facts = &image->facts;
    int i;

    if ((facts->flags & ~(uint32_t)IMAGE_FLAGS_ALL) != 0 ||
        !image_is_id_or_none(image, facts->bos) || !image_is_id_or_none(image, facts->eos) ||
        !image_is_id_or_none(image, facts->pad) || !image_is_id_or_none(image, facts->unk) ||
        facts->strip_char > 0x10ffff)
        return image_corrupt(why, "a fact");
    for (i = 0; i < 256; i++)
        if (!image_is_id_or_none(image, facts->byte_ids[i]))
            return image_corrupt(why, "the token of a byte");
    for (i = 0; i < 128; i++)
        if (!image_is_id_or_none(image, facts->ascii_ids[i]))
            return image_corrupt(why, "the token of a character");
    if ((facts->flags & (IMAGE_APART | IMAGE_BYTE_LEVEL)) == (IMAGE_APART | IMAGE_BYTE_LEVEL))
        return image_corrupt(why, "bytes that are cut as characters");
    if ((facts->flags & IMAGE_APART) != 0 &&
        !image_is_power_of_two(image_count(image, IMAGE_JOINED)))
        return image_corrupt(why, "the size of the table of joined characters");
    return ERR_OK;
}

int image_check_tables(const struct image_header *image, const char **why)
{
    static int (*const checks[])(const struct image_header *, const char **) = {
        image_check_tokens, image_check_pieces, image_check_merges, image_check_pairs,
        image_check_facts};
    static const struct {
        int (*check)(const struct image_header *, enum image_section, const char **);
        enum image_section section;
    } tables[] = {
        {image_check_ids_table, IMAGE_BY_TEXT}, {image_check_ids_table, IMAGE_LONG_PIECES},
        {image_check_added, IMAGE_RAW},         {image_check_added, IMAGE_NORMAL},
        {image_check_steps, IMAGE_REWRITES},    {image_check_steps, IMAGE_CUTS},
        {image_check_list, IMAGE_BEFORE},       {image_check_list, IMAGE_AFTER},
        {image_check_list, IMAGE_SPECIAL},      {image_check_list, IMAGE_ENDS}};
    size_t i;
    int rc = ERR_OK;
    int s;

    for (s = 0; s < IMAGE_SECTIONS; s++)
        if (!image_is_table(image, (enum image_section)s))
            return image_corrupt(why, "the place of a table");
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
        return image_corrupt(why, "not an image");
    if (image->layout != image_layout_digest()) {
        *why = "the layout of another version";
        return ERR_VERSION;
    }
    if (image->bytes != len)
        return image_corrupt(why, "the length");
    if (image->checksum != image_checksum_of(image))
        return image_corrupt(why, "the checksum");
    if (memcmp(&image->sources, sources, sizeof *sources) != 0) {
        *why = "made of other files";
        return ERR_VERSION;
    }
    return image_check_tables(image, why);
}
