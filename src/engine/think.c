/* SPDX-License-Identifier: Apache-2.0
 *
 * An automaton over the bytes of the output: a state, the number of bytes of a tag that the output
 * ends with, and a count of tokens. No proper beginning of a tag is also an end of it, so a byte
 * that does not match can only be the first byte of the tag again.
 *
 *   BEFORE --open tag--> INSIDE --close tag--> OVER;  BEFORE --any other text--> OVER */
#include "engine/think.h"

#include <string.h>

/* A tag must end within its field, or think_byte() would read on. */
static bool think_is_tag(const char tag[WIRE_THINK_TAG])
{
    return tag[0] != '\0' && memchr(tag, '\0', WIRE_THINK_TAG) != NULL;
}

/* The tags and ids come from a front, so each is checked. */
int think_begin(struct seq *seq, const struct token_trie *v, int n_vocab)
{
    const struct wire_generate *generate = &seq->request.generate;

    seq->think = (struct seq_think){.state = THINK_OVER};
    if (generate->think_max == 0)
        return ERR_OK;
    if (generate->n_think_ids < 1 || generate->n_think_ids > WIRE_THINK_IDS ||
        !think_is_tag(generate->think_open) || !think_is_tag(generate->think_close))
        return ERR_INVALID;
    for (uint32_t i = 0; i < generate->n_think_ids; i++) {
        if (generate->think_ids[i] < 0 || generate->think_ids[i] >= n_vocab)
            return ERR_INVALID;
    }
    if (v == NULL)
        return ERR_NO_FORM;
    seq->think.state = (seq->request.flags & WIRE_THINKS) != 0 ? THINK_INSIDE : THINK_BEFORE;
    seq->think.n_followed = seq->n_prompt;
    seq->think.vocab = v;
    return ERR_OK;
}

/* The bytes of a token; returns their number, 0 for an unknown id. */
static size_t think_text(const struct token_trie *v, int32_t id, const unsigned char **text)
{
    const uint32_t *at = trie_text_at(v);

    if (id < 0 || (uint32_t)id >= v->n_vocab)
        return 0;
    *text = trie_text(v) + at[id];
    return at[id + 1] - at[id];
}

/* One byte of the output. In THINK_BEFORE only white space may come before the tag. */
static void think_byte(struct seq_think *think, const struct wire_generate *generate,
                       unsigned char byte)
{
    const char *tag = think->state == THINK_BEFORE ? generate->think_open : generate->think_close;
    bool is_space = byte == ' ' || (byte >= '\t' && byte <= '\r');

    if (byte == (unsigned char)tag[think->n_matched])
        think->n_matched++;
    else if (think->state == THINK_INSIDE)
        think->n_matched = byte == (unsigned char)tag[0];
    else if (think->n_matched > 0 || !is_space)
        think->state = THINK_OVER; /* an answer without reasoning */
    if (tag[think->n_matched] != '\0' || think->state == THINK_OVER)
        return;
    if (think->state == THINK_BEFORE)
        think->state = THINK_INSIDE;
    else
        think->state = THINK_OVER;
    think->n_matched = 0;
}

/* Every token that begins inside the reasoning counts, also the one that closes it. */
void think_follow(struct seq *seq)
{
    struct seq_think *think = &seq->think;

    for (; think->state != THINK_OVER && think->n_followed < seq->n_tokens; think->n_followed++) {
        const unsigned char *text = NULL;
        size_t len = think_text(think->vocab, seq->tokens[think->n_followed], &text);

        think->n_tokens += think->state == THINK_INSIDE;
        for (size_t i = 0; i < len && think->state != THINK_OVER; i++)
            think_byte(think, &seq->request.generate, text[i]);
    }
}

/* The tokens before may still be unknown to the host, so this asks: could the budget end there? */
bool think_may_force(const struct seq *seq, int n)
{
    return seq->think.state != THINK_OVER &&
           (uint32_t)(seq->think.n_tokens + n) + 1 >= seq->request.generate.think_max;
}

/* The closing tag as ids, think_ids[]: if a part of it is in the output already, the rest follows.
 * Example: ids of "</", "think", ">"; the output ends with "</": force "think". */
int32_t think_forced(const struct seq *seq)
{
    const struct wire_generate *generate = &seq->request.generate;
    const struct seq_think *think = &seq->think;
    const unsigned char *text;
    size_t len = 0;

    if (think->state != THINK_INSIDE || !think_may_force(seq, 0))
        return -1;
    for (uint32_t i = 0; i < generate->n_think_ids; i++) {
        if (len == (size_t)think->n_matched)
            return generate->think_ids[i]; /* the ids before it are in the output */
        len += think_text(think->vocab, generate->think_ids[i], &text);
    }
    return generate->think_ids[0];
}
